// One tooltip for chart marks and for [data-tip] texts, never cut off by the frame they stand in. Without this script the <title> elements still work, as the browser's own
// tooltips; with it they are taken out, so that the two never show at once. Text goes in as textContent only.
(() => {
  "use strict";
  const tip = document.createElement("div");
  tip.className = "chart-tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");

  for (const title of document.querySelectorAll(".chart svg title")) {
    const owner = title.parentElement;
    const text = title.textContent;
    // Only what has a role may have a label; a picture's marks are told by its description.
    if (owner.tagName === "svg" || owner.tagName === "a") owner.setAttribute("aria-label", text);
    if (owner.tagName !== "svg") owner.dataset.tipText = text;
    title.remove();
  }

  const move = (x, y) => {
    const box = tip.getBoundingClientRect();
    const left = Math.max(8, Math.min(x + 14, window.innerWidth - box.width - 8));
    const below = y + 18 + box.height < window.innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${Math.max(8, below ? y + 18 : y - box.height - 12)}px`;
  };
  const show = (event) => {
    const mark = event.target.closest && event.target.closest(".chart [data-tip-text], [data-tip]");
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.tipText ?? mark.dataset.tip;
    const box = event.target.getBoundingClientRect();
    move(event.clientX ?? box.right, event.clientY ?? box.top);
  };

  document.body.append(tip);
  document.addEventListener("pointerover", show);
  document.addEventListener("pointermove", (event) => tip.hidden || move(event.clientX, event.clientY));
  document.addEventListener("focusin", show);
  document.addEventListener("focusout", () => { tip.hidden = true; });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
})();
