// Verifies, in the browser, that an entry is in a signed log: RFC 6962 hashes, RFC 9162 folding, an Ed25519 checkpoint.
const proofs = (() => {
  const bytes = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const hex = (data) => Array.from(data, (b) => b.toString(16).padStart(2, "0")).join("");
  const same = (a, b) => a.length === b.length && a.every((v, i) => v === b[i]);
  const sha256 = async (...parts) => {
    const joined = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
    parts.reduce((at, p) => { joined.set(p, at); return at + p.length; }, 0);
    return new Uint8Array(await crypto.subtle.digest("SHA-256", joined));
  };
  const half = (n) => Math.floor(n / 2);
  const computeRoot = async (index, size, leaf, path) => {
    if (!(index >= 0 && index < size)) throw new Error(`entry ${index} is not among ${size}`);
    let node = index, last = size - 1, hash = leaf;
    const one = new Uint8Array([1]);
    for (const sibling of path) {
      if (last === 0) throw new Error("the proof is too long");
      if (node % 2 === 1 || node === last) {
        hash = await sha256(one, sibling, hash);
        while (node % 2 === 0 && node !== 0) { node = half(node); last = half(last); }
      } else {
        hash = await sha256(one, hash, sibling);
      }
      node = half(node); last = half(last);
    }
    if (last !== 0) throw new Error("the proof is too short");
    return hash;
  };
  // "origin\nsize\nroot\n" + "\n" + "— name base64(4 bytes of key id, 64 bytes of signature)\n" …
  const parse = (note) => {
    const end = note.indexOf("\n\n");
    if (end < 0) throw new Error("the checkpoint is not signed");
    const text = note.slice(0, end + 1), lines = text.split("\n");
    const signatures = note.slice(end + 2).split("\n").filter(Boolean).map((line) => {
      const [dash, name, body] = line.split(" ");
      if (dash !== "\u2014" || !body) throw new Error("a signature cannot be read");
      return { name, body: bytes(body) };
    });
    return { text, origin: lines[0], size: Number(lines[1]), root: bytes(lines[2]), signatures };
  };
  const checkSignature = async (checkpoint, key) => {
    const [name, id, ...rest] = key.split("+"), encoded = bytes(rest.join("+"));
    if (encoded[0] !== 1) throw new Error("the key is of another kind");
    const own = checkpoint.signatures.filter((s) => s.name === name && hex(s.body.slice(0, 4)) === id);
    if (!own.length || checkpoint.origin !== name) throw new Error(`${name} has not signed this checkpoint`);
    const known = await sha256(new TextEncoder().encode(`${name}\n`), encoded);
    if (hex(known.slice(0, 4)) !== id) throw new Error("the key does not bear its own number");
    let imported;
    try {
      imported = await crypto.subtle.importKey("raw", encoded.slice(1), "Ed25519", false, ["verify"]);
    } catch { return null; } // a browser without Ed25519: the caller says so
    const message = new TextEncoder().encode(checkpoint.text);
    return crypto.subtle.verify("Ed25519", imported, own[0].body.slice(4), message);
  };
  // Verifies an answer of /api/entry. Returns the steps as sentences; throws where one fails.
  const verify = async (answer) => {
    const checkpoint = parse(answer.checkpoint), steps = [];
    if (checkpoint.size !== answer.size) throw new Error("the proof is for another size than the checkpoint");
    const leaf = answer.entry === null ? null : await sha256(new Uint8Array([0]), bytes(answer.entry));
    if (leaf === null) throw new Error("the payload was pruned; only its hash is left");
    steps.push(`leaf hash ${hex(leaf)}`);
    const path = answer.path.map(bytes);
    const root = await computeRoot(answer.index, answer.size, leaf, path);
    if (!same(root, checkpoint.root)) throw new Error("the entry does not lead to the signed root");
    steps.push(`${path.length} hashes lead to the root ${hex(root)} of ${answer.size} entries`);
    const valid = await checkSignature(checkpoint, answer.key);
    if (valid === false) throw new Error("the checkpoint's signature is wrong");
    steps.push(valid ? `signed by ${checkpoint.origin}` : "this browser cannot check Ed25519, so the signature was not checked");
    const event = JSON.parse(new TextDecoder().decode(bytes(answer.entry)));
    return { steps, event, signed: valid === true };
  };
  return { verify };
})();
