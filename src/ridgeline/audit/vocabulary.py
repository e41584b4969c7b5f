"""Texts that were met and their vectors: each text has a number for ever, and goes through the encoder once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Encode = Callable[[list[str]], Vectors]


class Vocabulary:
    """text → row → unit vector; a text may have its row before it has its vector."""

    def __init__(self, encode: Encode, texts: Sequence[str] = (), vectors: Vectors | None = None) -> None:
        self._encode = encode
        self.rows = {text: row for row, text in enumerate(texts)}
        self._vectors = vectors if vectors is not None else np.zeros((0, 0), np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, text: str) -> int:
        return self.rows.setdefault(text, len(self.rows))

    def embed(self, texts: Sequence[str]) -> Vectors:
        """float32 [n, dim]."""
        wanted = [self.row(text) for text in texts]
        return self.vectors()[wanted] if wanted else np.zeros((0, self._vectors.shape[1]), np.float32)

    def vectors(self) -> Vectors:
        """float32 [rows, dim], of every text that has a row."""
        missing = list(self.rows)[len(self._vectors) :]
        if missing:
            found = np.asarray(self._encode(missing), np.float32)
            self._vectors = np.concatenate([self._vectors, found]) if len(self._vectors) else found
        return self._vectors
