(() => {
  const report = JSON.parse(document.getElementById("page-data").textContent);
  const rows = new Map(report.rows.map((row) => [row.index, row]));
  const verdict = document.getElementById("verdict");
  const encodeBase64 = (bytes) => btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(""));
  const decodeHex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
  const size = Number(report.checkpoint.split("\n")[1]);
  const setFolds = (open) => { for (const part of document.querySelectorAll("details")) part.open = open(part); };
  // Paper has every line; afterwards the page is as it was.
  addEventListener("beforeprint", () => setFolds((part) => { part.dataset.open = part.open ? "yes" : ""; return true; }));
  addEventListener("afterprint", () => setFolds((part) => part.dataset.open === "yes"));
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-entry]");
    if (!button) return;
    const index = Number(button.dataset.entry), row = rows.get(index);
    try {
      const verified = await proofs.verify({
        index, size, key: report.key, checkpoint: report.checkpoint,
        entry: encodeBase64(new TextEncoder().encode(row.entry)),
        path: row.path.map((k) => encodeBase64(decodeHex(report.hashes[k]))),
      });
      verdict.textContent = `Entry ${index} verified in this browser: ${verified.steps.join("; ")}.`;
      button.dataset.verified = "yes";
    } catch (error) {
      verdict.textContent = `Entry ${index} not verified: ${error.message}.`;
      button.dataset.verified = "no";
    }
  });
})();
