"""The servers that `serve` is raced against, each as its documentation starts it.

`python -m ridgeline.workloads._serve_peers MODEL DEVICE DTYPE PORT [CALLS]` is the plain one: FastAPI, whose thread
pool calls `SentenceTransformer.encode`, at most CALLS of them at once (default: as many as the pool has threads, 40).
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

from ridgeline.errors import unknown
from ridgeline.lab import OURS, installed

PLAIN, INFINITY = "FastAPI + sentence-transformers", "infinity"
NAMES = (PLAIN, INFINITY)
HINTS = {
    PLAIN: "pip install fastapi uvicorn sentence-transformers, here or in an environment of its own (--python)",
    INFINITY: "pip install 'infinity-emb[torch,server]' in an environment of its own: --python infinity=ENV/bin/python",
}
_NEEDS = {PLAIN: ("fastapi", "uvicorn", "sentence_transformers"), INFINITY: ("infinity_emb",)}


def is_available(name: str) -> bool:
    return all(installed(module) for module in _NEEDS[name])


def make_command(contender: str, folder: Path, device: str, dtype: str) -> list[str]:
    """Return the command of a server on loopback; that of a peer ends with its port."""
    if contender == OURS:
        options = ["--port", "0", "--device", device, "--dtype", dtype, "--max-queue", "100000"]
        return [sys.executable, "-m", "ridgeline", "serve", f"bench={folder}", *options]
    port = str(_find_free_port())
    if contender == PLAIN:
        module = "ridgeline.workloads._serve_peers"
        return [sys.executable, "-m", module, str(folder), device, dtype, port]
    if contender == INFINITY:
        options = ["--model-id", str(folder), "--served-model-name", "bench", "--engine", "torch"]
        options += ["--device", device.partition(":")[0], "--dtype", "float32" if device == "cpu" else dtype]
        options += ["--url-prefix", "/v1"]  # the path of OpenAI
        return [sys.executable, "-m", "infinity_emb.cli", "v2", *options, "--port", port]
    raise unknown("contender", contender, (OURS, *NAMES))


def _find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _serve_plainly(folder: str, device: str, dtype: str, port: int, calls: int = 40) -> None:
    import base64
    import threading

    import torch
    import uvicorn
    from fastapi import FastAPI
    from sentence_transformers import SentenceTransformer

    kind = torch.float32 if device == "cpu" else getattr(torch, dtype)
    model = SentenceTransformer(folder, device=device, model_kwargs={"torch_dtype": kind})
    app, turns = FastAPI(), threading.Semaphore(calls)

    def embed(body: dict[str, Any]) -> dict[str, Any]:
        with turns:
            vectors = model.encode(body["input"], normalize_embeddings=True, show_progress_bar=False)
        rows = [base64.b64encode(row.astype("<f4")).decode() for row in vectors]
        data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
        return {"object": "list", "data": data, "model": body["model"]}

    app.post("/v1/embeddings")(embed)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    _serve_plainly(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:6]))
