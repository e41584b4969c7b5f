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
        self.texts = list(texts)  # row → text
        self._rows = {text: row for row, text in enumerate(texts)}
        self._room = vectors if vectors is not None else np.zeros((0, 0), np.float32)  # doubles when it is full
        self._count = len(self._room)

    def __len__(self) -> int:
        return len(self.texts)

    def row(self, text: str) -> int:
        found = self._rows.get(text)
        if found is None:
            found = self._rows[text] = len(self.texts)
            self.texts.append(text)
        return found

    def embed(self, texts: Sequence[str]) -> Vectors:
        """float32 [n, dim]."""
        wanted = [self.row(text) for text in texts]
        return self.vectors()[wanted] if wanted else np.zeros((0, self._room.shape[1]), np.float32)

    def vectors(self) -> Vectors:
        """float32 [rows, dim], of every text that has a row; the rows of an earlier answer never change."""
        missing = self.texts[self._count :]
        if missing:
            found = np.asarray(self._encode(missing), np.float32)
            end = self._count + len(found)
            if end > len(self._room):
                room = np.empty((max(end, 2 * len(self._room), 64), found.shape[1]), np.float32)
                if self._count:
                    room[: self._count] = self._room[: self._count]
                self._room = room
            self._room[self._count : end] = found
            self._count = end
        return self._room[: self._count]
