"""The encoder of the watcher and of the search, loaded by the first who asks it something."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.errors import MissingExtra

if TYPE_CHECKING:
    from ridgeline.audit.watch.vocabulary import Encode, Vectors
    from ridgeline.embed import Embedder

FEW = 4  # texts


def encoder(model: str, device: str = "auto") -> Encode:
    """texts → float32 [n, dim]; the model is loaded once, by whoever asks first."""
    made: list[Embedder] = []
    lock = threading.Lock()

    def encode(texts: list[str]) -> Vectors:
        with lock:
            if not made:
                try:
                    from ridgeline.embed import Embedder

                    made.append(Embedder(model, device=device))
                    _warm(made[0])
                except ImportError:
                    raise MissingExtra("finding and scoring events by meaning", "audit") from None
            return _encoded(made[0], texts)

    return encode


def _encoded(embedder: Embedder, texts: list[str]) -> Vectors:
    """On a GPU a few texts go one by one: each is one recording played back, a batch is many launches."""
    if texts and len(texts) <= FEW and embedder.device != "cpu":
        return np.stack([embedder.encode_one(text) for text in texts])
    return np.asarray(embedder.encode(texts), np.float32)


def _warm(embedder: Embedder) -> None:
    """What a GPU compiles and records for a size, it does before the first event waits for it."""
    if embedder.device == "cpu":
        return
    for words in (1, 20, 40, 80):
        _encoded(embedder, ["ready " * words])
    for count in (5, 8, 16, 31, 64):
        _encoded(embedder, ["ready " * (1 + k % 20) for k in range(count)])
