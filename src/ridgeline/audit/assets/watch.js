(() => {
  const at = (id) => document.getElementById(id);
  const MOST = 60;
  let next = 0, before = null, shownAlerts = "";

  const trouble = (text) => { at("trouble").textContent = text || ""; at("trouble").hidden = !text; };
  const ask = async (path) => {
    const answer = await fetch(path);
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.error);
    return told;
  };
  const make = (name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const number = (n) => n.toLocaleString("en");
  const moment = (ns) => new Date(Number(BigInt(ns) / 1000000n)).toISOString().replace("T", " ").slice(0, 19);
  const words = (event) => event === null ? "(pruned)" : [event.action, event.subject, event.actor && `by ${event.actor}`,
    event.attributes.message ?? (Object.keys(event.attributes).length ? JSON.stringify(event.attributes) : "")]
    .filter(Boolean).join(" ").slice(0, 400);
  const row = (index, event, score, more) => {
    const line = make("tr");
    const first = make("td"), button = make("button", String(index));
    button.type = "button";
    button.setAttribute("aria-label", `Show and verify entry ${index}`);
    button.addEventListener("click", () => show(index));
    first.append(button);
    const what = make("td", words(event), "what");
    if (more) what.append(make("span", more, "reason soft"));
    line.append(first, make("td", event ? moment(event.time) : "", "when"), what, make("td", score == null ? "" : score.toFixed(3), "num"));
    return line;
  };

  const show = async (index) => {
    at("detail").hidden = false;
    at("detail-title").textContent = `Entry ${index}`;
    at("verdict").className = "";
    at("verdict").textContent = "verifying …";
    at("steps").replaceChildren();
    at("event").textContent = "";
    try {
      const told = await ask(`/api/entry?index=${index}`);
      const found = await proofs.verify(told);
      at("event").textContent = JSON.stringify(found.event, null, 1);
      at("steps").replaceChildren(...found.steps.map((step) => make("li", step)));
      at("verdict").textContent = found.signed ? "Verified in this browser." : "In the log; signature not checked.";
      at("verdict").className = "good";
    } catch (error) {
      at("verdict").textContent = `Not verified: ${error.message}.`;
      at("verdict").className = "bad";
    }
    at("detail").scrollIntoView({ block: "nearest" });
  };

  const status = async () => {
    const told = await ask("/api/status"), now = performance.now(), w = told.watcher;
    at("size").textContent = number(told.size);
    at("signed").textContent = `signed ${moment(told.signed_ns)}`;
    at("root").textContent = told.root;
    at("chain").textContent = told.pruned.length ? "signed, pruned" : "signed";
    at("witnesses").textContent = told.witnesses.length
      ? told.witnesses.map((x) => `${x.names.join(", ")} saw ${number(x.size)}`).join("; ") : "no witness yet";
    at("backlog").textContent = number(told.backlog);
    at("waits").textContent = w && w.wait_p99_s != null ? `99 % scored within ${w.wait_p99_s.toFixed(2)} s` : w ? "" : "no watcher is running";
    const dropped = w ? Object.values(w.dropped).reduce((a, b) => a + b, 0) : 0;
    at("sources").textContent = w ? `${Object.keys(w.taken).length} sources, ${number(dropped)} dropped` : "";
    if (before) at("rate").textContent = `${number(Math.round(Math.max(0, told.size - before.size) / (now - before.at) * 1000))}/s`;
    before = { size: told.size, at: now };
  };
  const stream = async () => {
    const found = await ask(`/api/events?after=${next}&k=${MOST}`);
    if (!found.length) return;
    next = found[found.length - 1].index + 1;
    const lines = found.map((event) => { const line = row(event.index, event, event.score); if (event.own) line.className = "own"; return line; });
    at("events").prepend(...lines.reverse());
    while (at("events").children.length > 4 * MOST) at("events").lastChild.remove();
    hideOwn();
  };
  const hideOwn = () => { for (const line of at("events").children) line.hidden = line.className === "own" && !at("own").checked; };
  const alerts = async () => {
    const found = await ask("/api/alerts?k=50"), text = JSON.stringify(found);
    if (text === shownAlerts) return;
    shownAlerts = text;
    at("no-alerts").hidden = found.length > 0;
    at("alerts").replaceChildren(...found.map((a) =>
      row(a.entry, a.event, a.score, (a.severity ? `${a.severity}: ` : "") + a.reason + (a.label ? ` · ${a.label.verdict}, says ${a.label.by}` : ""))));
  };
  const turn = async () => {
    try { await status(); await stream(); await alerts(); } catch (error) { trouble(error.message); }
    setTimeout(turn, 1000);
  };

  at("own").addEventListener("change", hideOwn);
  at("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const given = new URLSearchParams({ q: at("query").value, k: "12", where: at("where").value });
      const told = await ask(`/api/search?${given}`);
      at("results").hidden = false;
      at("complete").textContent = told.complete < told.size
        ? `The index is complete up to entry ${number(told.complete)} of ${number(told.size)}.` : `All ${number(told.size)} entries were searched.`;
      at("found").replaceChildren(...told.hits.map((hit) => row(hit.entry, hit.event, hit.relevance)));
      trouble("");
    } catch (error) { trouble(error.message); }
  });
  turn();
})();
