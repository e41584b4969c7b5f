"""The encoder of the watcher and of the search, loaded by the first who asks it something."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.errors import MissingExtra

if TYPE_CHECKING:
    from ridgeline.audit.vocabulary import Encode, Vectors
    from ridgeline.embed import Embedder


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
                except ImportError:
                    raise MissingExtra("finding and scoring events by meaning", "audit") from None
            return np.asarray(made[0].encode(texts), np.float32)

    return encode
