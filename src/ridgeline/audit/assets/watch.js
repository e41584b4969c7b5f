(() => {
  const { getElement, showError, requestJson, showWaiting } = client;
  const PAGE = 60; // events of one request
  let next = 0, previous = null, shownAlerts = "";

  const makeElement = (name, text, kind) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const formatNumber = (n) => n.toLocaleString("en");
  const formatTime = (ns) => new Date(Number(BigInt(ns) / 1000000n)).toISOString().replace("T", " ").slice(0, 19);
  const describeEvent = (event) => event === null ? "(pruned)" : [event.action, event.subject, event.actor && `by ${event.actor}`,
    event.attributes.message ?? (Object.keys(event.attributes).length ? JSON.stringify(event.attributes) : "")]
    .filter(Boolean).join(" ").slice(0, 400);
  const makeRow = (index, event, score, reason) => {
    const line = makeElement("tr");
    const first = makeElement("td"), button = makeElement("button", String(index));
    button.type = "button";
    button.setAttribute("aria-label", `Show and verify entry ${index}`);
    button.addEventListener("click", () => showEntry(index));
    first.append(button);
    const text = makeElement("td", describeEvent(event), "what");
    if (reason) text.append(makeElement("span", reason, "reason soft"));
    line.append(first, makeElement("td", event ? formatTime(event.time) : "", "when"), text, makeElement("td", score == null ? "" : score.toFixed(3), "num"));
    return line;
  };

  const showEntry = async (index) => {
    getElement("detail").hidden = false;
    getElement("detail-title").textContent = `Entry ${index}`;
    getElement("verdict").className = "";
    getElement("verdict").textContent = "verifying …";
    getElement("steps").replaceChildren();
    getElement("event").textContent = "";
    try {
      const verified = await proofs.verify(await requestJson(`/api/entry?index=${index}`));
      getElement("event").textContent = JSON.stringify(verified.event, null, 1);
      getElement("steps").replaceChildren(...verified.steps.map((step) => makeElement("li", step)));
      getElement("verdict").textContent = verified.signed ? "Verified in this browser." : "In the log; signature not checked.";
      getElement("verdict").className = "good";
    } catch (error) {
      getElement("verdict").textContent = `Not verified: ${error.message}.`;
      getElement("verdict").className = "bad";
    }
    getElement("detail").scrollIntoView({ block: "nearest" });
  };

  const updateStatus = async () => {
    const log = await requestJson("/api/status"), now = performance.now(), watcher = log.watcher;
    getElement("size").textContent = formatNumber(log.size);
    getElement("signed").textContent = `signed ${formatTime(log.signed_ns)}`;
    getElement("root").textContent = log.root;
    getElement("chain").textContent = log.pruned.length ? "signed, pruned" : "signed";
    getElement("witnesses").textContent = log.witnesses.length
      ? log.witnesses.map((x) => `${x.names.join(", ")} saw ${formatNumber(x.size)}`).join("; ") : "no witness yet";
    getElement("backlog").textContent = formatNumber(log.backlog);
    getElement("waits").textContent = watcher && watcher.wait_p99_s != null ? `99 % scored within ${watcher.wait_p99_s.toFixed(2)} s` : watcher ? "" : "no watcher is running";
    const dropped = watcher ? Object.values(watcher.dropped).reduce((a, b) => a + b, 0) : 0;
    getElement("sources").textContent = watcher ? `${Object.keys(watcher.taken).length} sources, ${formatNumber(dropped)} dropped` : "";
    if (previous) getElement("rate").textContent = `${formatNumber(Math.round(Math.max(0, log.size - previous.size) / (now - previous.time) * 1000))}/s`;
    previous = { size: log.size, time: now };
  };
  const updateEvents = async () => {
    const events = await requestJson(`/api/events?after=${next}&k=${PAGE}`);
    if (!events.length) return;
    next = events[events.length - 1].index + 1;
    const lines = events.map((event) => { const line = makeRow(event.index, event, event.score); if (event.own) line.className = "own"; return line; });
    getElement("events").prepend(...lines.reverse());
    while (getElement("events").children.length > 4 * PAGE) getElement("events").lastChild.remove();
    hideOwn();
  };
  const hideOwn = () => { for (const line of getElement("events").children) line.hidden = line.className === "own" && !getElement("own").checked; };
  const updateAlerts = async () => {
    const alerts = await requestJson("/api/alerts?k=50"), text = JSON.stringify(alerts);
    if (text === shownAlerts) return;
    shownAlerts = text;
    getElement("no-alerts").hidden = alerts.length > 0;
    getElement("alerts").replaceChildren(...alerts.map((a) =>
      makeRow(a.entry, a.event, a.score, (a.severity ? `${a.severity}: ` : "") + a.reason + (a.label ? ` · ${a.label.verdict}, says ${a.label.by}` : ""))));
  };
  const update = async () => {
    try { await updateStatus(); await updateEvents(); await updateAlerts(); } catch (error) { showError(error.message); }
    setTimeout(update, 1000);
  };

  getElement("own").addEventListener("change", hideOwn);
  getElement("search").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const query = new URLSearchParams({ q: getElement("query").value, k: "12", where: getElement("where").value });
      const answer = await showWaiting(requestJson(`/api/search?${query}`));
      getElement("results").hidden = false;
      getElement("complete").textContent = answer.complete < answer.size
        ? `The index is complete up to entry ${formatNumber(answer.complete)} of ${formatNumber(answer.size)}.` : `All ${formatNumber(answer.size)} entries were searched.`;
      getElement("hits").replaceChildren(...answer.hits.map((hit) => makeRow(hit.entry, hit.event, hit.relevance)));
      showError("");
    } catch (error) { showError(error.message); }
  });
  update();
})();
