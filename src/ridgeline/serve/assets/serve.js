(() => {
  const at = (id) => document.getElementById(id);
  const send = async (path, body) => {
    const response = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error.message || answer.error);
    return answer;
  };
  const line = (text, kind) => {
    const item = document.createElement("li");
    item.textContent = text;
    item.className = kind;
    return item;
  };
  at("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    const input = at("query").value;
    const model = at("model").value;
    const start = performance.now();
    at("time").textContent = "…";
    at("trouble").hidden = true;
    try {
      let lines;
      if (at("index")) {
        const answer = await send("/v1/search", { index: at("index").value, input, model, k: 10, truncate: true });
        lines = answer.results[0].map((row) => line(`row ${row.id}, score ${row.score.toFixed(3)}`, "row"));
      } else {
        const answer = await send("/v1/embeddings", { model, input, truncate: true });
        const vector = answer.data[0].embedding;
        lines = [line(`${vector.slice(0, 8).map((x) => x.toFixed(4)).join("  ")} … (${vector.length} numbers, ${answer.usage.total_tokens} tokens)`, "vector")];
      }
      at("time").textContent = `${(performance.now() - start).toFixed(1)} ms`;
      at("results").replaceChildren(...lines);
    } catch (error) {
      at("time").textContent = "";
      at("trouble").textContent = error.message;
      at("trouble").hidden = false;
    }
  });
})();
