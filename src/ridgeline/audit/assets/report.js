(() => {
  const told = JSON.parse(document.getElementById("page-data").textContent);
  const rows = new Map(told.rows.map((row) => [row.index, row]));
  const said = document.getElementById("verdict");
  const base64 = (bytes) => btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(""));
  const unhex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
  const size = Number(told.checkpoint.split("\n")[1]);
  const setFolds = (open) => { for (const part of document.querySelectorAll("details")) part.open = open(part); };
  // Paper has every line; afterwards the page is as it was.
  addEventListener("beforeprint", () => setFolds((part) => { part.dataset.open = part.open ? "yes" : ""; return true; }));
  addEventListener("afterprint", () => setFolds((part) => part.dataset.open === "yes"));
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-entry]");
    if (!button) return;
    const index = Number(button.dataset.entry), row = rows.get(index);
    try {
      const found = await proofs.verify({
        index, size, key: told.key, checkpoint: told.checkpoint,
        entry: base64(new TextEncoder().encode(row.entry)),
        path: row.path.map((k) => base64(unhex(told.hashes[k]))),
      });
      said.textContent = `Entry ${index} verified in this browser: ${found.steps.join("; ")}.`;
      button.dataset.verified = "yes";
    } catch (error) {
      said.textContent = `Entry ${index} not verified: ${error.message}.`;
      button.dataset.verified = "no";
    }
  });
})();
