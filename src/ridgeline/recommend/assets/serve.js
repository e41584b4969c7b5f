(() => {
  const { getElement, showError, requestJson, showWaiting } = client;
  const liked = new Map();
  let newest = 0; // answers can arrive out of order: only that of the newest request is shown

  const makeItem = (film, label, act) => {
    const line = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = film.title;
    button.setAttribute("aria-label", `${label} ${film.title}`);
    button.addEventListener("click", () => act(film));
    line.append(button);
    const details = [(film.genres || []).join(", "), film.why && film.why.length ? `because of ${film.why.join(", ")}` : ""];
    const reason = document.createElement("span");
    reason.className = "why";
    reason.textContent = details.filter(Boolean).join(" · ");
    line.append(reason);
    return line;
  };
  const showList = (id, films, label, act) => getElement(id).replaceChildren(...films.map((film) => makeItem(film, label, act)));

  const updateRecommendations = async () => {
    const request = ++newest;
    showList("liked", [...liked.values()].map((film) => ({ title: film.title, item: film.item })), "Remove", removeLike);
    getElement("no-likes").hidden = liked.size > 0;
    getElement("no-recommendations").hidden = liked.size > 0;
    if (!liked.size) { showList("recommended", [], "Like", addLike); return; }
    try {
      const films = await showWaiting(requestJson("/api/new", { items: [...liked.keys()] }));
      if (request === newest) { showError(""); showList("recommended", films, "Like", addLike); }
    } catch (error) { showError(error.message); }
  };
  const addLike = (film) => { liked.set(film.item, film); updateRecommendations(); };
  const removeLike = (film) => { liked.delete(film.item); updateRecommendations(); };

  getElement("search").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const films = await showWaiting(requestJson(`/api/search?k=12&q=${encodeURIComponent(getElement("query").value)}`));
      showList("hits", films, "Like", addLike);
      getElement("results").hidden = false;
      getElement("no-hits").hidden = films.length > 0;
      showError("");
    } catch (error) { showError(error.message); }
  });
})();
