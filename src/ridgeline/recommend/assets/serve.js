(() => {
  const { getElement, showError, requestJson, showWaiting } = client;
  const liked = new Map();
  let newest = 0; // answers can arrive out of order: only that of the newest request is shown

  const makeButton = (text, label, act) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-label", label);
    button.addEventListener("click", act);
    return button;
  };
  const getUser = () => getElement("user").value.trim();
  const makeItem = (film, label, act) => {
    const line = document.createElement("li");
    line.append(makeButton(film.title, `${label} ${film.title}`, () => act(film)));
    if (getUser() && label === "Like") line.append(makeButton("Not for me", `Dislike ${film.title}`, () => rate(film, 1)));
    const terms = film.terms && film.terms.length ? ` (${film.terms.join(", ")})` : "";
    const because = film.why && film.why.length ? `because of ${film.why.join(", ")}${terms}` : "";
    const stars = film.rating === undefined ? "" : `${film.rating} of 5`;
    const reason = document.createElement("span");
    reason.className = "why";
    reason.textContent = [stars, (film.genres || []).join(", "), because].filter(Boolean).join(" · ");
    line.append(reason);
    return line;
  };
  const showList = (id, films, label, act) => getElement(id).replaceChildren(...films.map((film) => makeItem(film, label, act)));

  const update = async () => {
    const request = ++newest, user = getUser();
    const query = `user=${encodeURIComponent(user)}`;
    try {
      let mine = [...liked.values()].map((film) => ({ title: film.title, item: film.item })), films = [];
      if (user) {
        const ratings = await requestJson(`/api/ratings?${query}`);
        mine = ratings.reverse();
        if (mine.length) films = await showWaiting(requestJson(`/api/recommend?${query}&diversify=${getElement("diversify").value}`));
      } else if (mine.length) {
        films = await showWaiting(requestJson("/api/new", { items: [...liked.keys()], diversify: Number(getElement("diversify").value) }));
      }
      if (request !== newest) return;
      showError("");
      showList("liked", mine, "Remove", remove);
      showList("recommended", films, "Like", like);
      getElement("no-likes").hidden = mine.length > 0;
      getElement("no-recommendations").hidden = mine.length > 0;
    } catch (error) { showError(error.message); }
  };
  const rate = async (film, rating) => {
    try {
      await requestJson("/api/ratings", { ratings: [{ user: getUser(), item: film.item, rating }] });
      await update();
    } catch (error) { showError(error.message); }
  };
  const like = (film) => {
    if (getUser()) return rate(film, 5);
    liked.set(film.item, film);
    return update();
  };
  const remove = async (film) => {
    liked.delete(film.item);
    if (getUser()) {
      const answer = await fetch(`/api/ratings?user=${encodeURIComponent(getUser())}&item=${encodeURIComponent(film.item)}`, { method: "DELETE" });
      if (!answer.ok) { showError((await answer.json()).error); return; }
    }
    await update();
  };

  getElement("user").addEventListener("change", update);
  getElement("diversify").addEventListener("change", update);
  getElement("search").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const films = await showWaiting(requestJson(`/api/search?k=12&q=${encodeURIComponent(getElement("query").value)}`));
      showList("hits", films, "Like", like);
      getElement("results").hidden = false;
      getElement("no-hits").hidden = films.length > 0;
      showError("");
    } catch (error) { showError(error.message); }
  });
})();
