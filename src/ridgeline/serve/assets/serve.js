(() => {
  const { getElement, showError, requestJson } = client;
  let newest = 0; // answers can arrive out of order: only that of the newest request is shown
  const makeLine = (text, kind) => {
    const line = document.createElement("li");
    line.textContent = text;
    line.className = kind;
    return line;
  };
  const searchIndex = async (model, input) => {
    const answer = await requestJson("/v1/search", { index: getElement("index").value, input, model, k: 10, truncate: true });
    return answer.results[0].map((row) => makeLine(`row ${row.id}, score ${row.score.toFixed(3)}`, "row"));
  };
  const encode = async (model, input) => {
    const answer = await requestJson("/v1/embeddings", { model, input, truncate: true });
    const vector = answer.data[0].embedding;
    const first = vector.slice(0, 8).map((number) => number.toFixed(4)).join("  ");
    return [makeLine(`${first} … (${vector.length} numbers, ${answer.usage.total_tokens} tokens)`, "vector")];
  };
  const ask = async (event) => {
    event.preventDefault();
    const request = ++newest;
    const start = performance.now();
    try {
      const lines = await (getElement("index") ? searchIndex : encode)(getElement("model").value, getElement("query").value);
      if (request !== newest) return;
      showError("");
      getElement("time").textContent = `${(performance.now() - start).toFixed(1)} ms, the way to the server included`;
      getElement("results").replaceChildren(...lines);
    } catch (error) {
      if (request !== newest) return;
      getElement("time").textContent = "";
      getElement("results").replaceChildren();
      showError(error.message);
    }
  };
  if (getElement("ask")) getElement("ask").addEventListener("submit", ask);
})();
