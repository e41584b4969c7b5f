(() => {
  const at = (id) => document.getElementById(id);
  const liked = new Map();
  let turn = 0; // answers may come late and out of order; only the newest is shown

  const trouble = (text) => { at("trouble").textContent = text || ""; at("trouble").hidden = !text; };
  const ask = async (path, body) => {
    const options = body ? { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) } : {};
    const answer = await fetch(path, options);
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.error);
    return told;
  };
  const entry = (film, label, act) => {
    const line = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = film.title;
    button.setAttribute("aria-label", `${label} ${film.title}`);
    button.addEventListener("click", () => act(film));
    line.append(button);
    const more = [(film.genres || []).join(", "), film.why && film.why.length ? `because of ${film.why.join(", ")}` : ""];
    const why = document.createElement("span");
    why.className = "why";
    why.textContent = more.filter(Boolean).join(" · ");
    line.append(why);
    return line;
  };
  const show = (id, films, label, act) => at(id).replaceChildren(...films.map((film) => entry(film, label, act)));

  const follow = async () => {
    const mine = ++turn;
    show("liked", [...liked.values()].map((film) => ({ title: film.title, item: film.item })), "Drop", drop);
    at("none").hidden = liked.size > 0;
    if (!liked.size) { show("recommended", [], "Like", like); return; }
    try {
      const films = await ask("/api/new", { items: [...liked.keys()] });
      if (mine === turn) { trouble(""); show("recommended", films, "Like", like); }
    } catch (error) { trouble(error.message); }
  };
  const like = (film) => { liked.set(film.item, film); follow(); };
  const drop = (film) => { liked.delete(film.item); follow(); };

  at("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      show("found", await ask(`/api/search?k=12&q=${encodeURIComponent(at("query").value)}`), "Like", like);
      trouble("");
    } catch (error) { trouble(error.message); }
  });
})();
