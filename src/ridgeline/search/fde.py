"""Sketches of documents of many vectors: one long vector each, whose inner product approximates MaxSim (MUVERA).

Fixed dimensional encodings of Dhulipala et al., "MUVERA: Multi-Vector Retrieval via Fixed Dimensional Encodings"
(NeurIPS 2024). Random hyperplanes divide the space into 2^bits cells, `repeats` times. In each cell a query has the sum
of its vectors there, a document their mean; an empty cell of a document takes the vector whose cell differs in the
fewest bits. A random projection of signs shortens each cell to `width` components.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.search.arrays import Array, Flags, Floats, GrowableArray, Integers, wrap_rows

if TYPE_CHECKING:
    from ridgeline.search.multi import Ragged

REPEATS, BITS, WIDTH = 20, 5, 16
DOCUMENTS_AT_ONCE = 256


@dataclass(frozen=True)
class Sketch:
    """The sketches of all documents, float16 [N, repeats · 2^bits · width]."""

    dim: int
    repeats: int
    bits: int
    width: int
    seed: int
    codes: GrowableArray

    def settings(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("dim", "repeats", "bits", "width", "seed")}

    def append(self, documents: Ragged) -> Sketch:
        """Return the sketches followed by those of more documents."""
        codes = self.codes
        for at in range(0, len(documents), DOCUMENTS_AT_ONCE):
            part = documents.slice(at, min(len(documents), at + DOCUMENTS_AT_ONCE))
            codes = codes.append(self._encode(part, True).astype(np.float16))
        return replace(self, codes=codes)

    def select_documents(self, numbers: Integers) -> Sketch:
        return replace(self, codes=wrap_rows(self.codes.rows[numbers]))

    def find_candidates(self, queries: Ragged, count: int, allowed: Flags | None) -> list[Integers]:
        """The documents with the highest scores by sketch for each query, ascending."""
        encoded = self._encode(queries, False)
        scores = np.empty((len(queries), self.codes.count), np.float32)
        for at in range(0, self.codes.count, 4096):
            scores[:, at : at + 4096] = encoded @ self.codes.rows[at : at + 4096].astype(np.float32).T
        if allowed is not None:
            scores[:, allowed == 0] = -np.inf
        out = []
        for row in scores:
            chosen = np.argpartition(-row, count - 1)[:count] if count < len(row) else np.arange(len(row))
            out.append(np.sort(chosen[row[chosen] > -np.inf]).astype(np.int64))
        return out

    @cached_property
    def _random(self) -> tuple[Floats, Floats]:
        """(hyperplanes [repeats, dim, bits], projections of signs [repeats, dim, width])"""
        random = np.random.default_rng(self.seed)
        planes = random.standard_normal((self.repeats, self.dim, self.bits)).astype(np.float32)
        signs = random.choice(np.array([-1, 1], np.float32), (self.repeats, self.dim, self.width))
        return planes, (signs / np.sqrt(np.float32(self.width))).astype(np.float32)

    @cached_property
    def _distances(self) -> Array:
        """[cells, cells] the number of different bits"""
        cells = np.arange(1 << self.bits)
        return np.asarray(np.bitwise_count(cells[:, None] ^ cells[None]))

    def _encode(self, items: Ragged, are_documents: bool) -> Floats:
        """float32 [items, repeats · cells · width]"""
        cells, count = 1 << self.bits, len(items)
        planes, signs = self._random
        owner = np.repeat(np.arange(count), items.lengths)
        out = np.empty((count, self.repeats, cells, self.width), np.float32)
        for repeat in range(self.repeats):
            cell = ((items.vectors @ planes[repeat]) > 0) @ (1 << np.arange(self.bits))
            short = items.vectors @ signs[repeat]
            place = owner * cells + cell
            sums = np.zeros((count * cells, self.width), np.float32)
            np.add.at(sums, place, short)
            filled = np.bincount(place, minlength=count * cells)
            if are_documents:
                sums /= np.maximum(filled, 1)[:, None]
                self._fill_empty(sums.reshape(count, cells, -1), filled.reshape(count, cells), items, cell, short)
            out[:, repeat] = sums.reshape(count, cells, -1)
        return out.reshape(count, -1)

    def _fill_empty(self, sums: Floats, filled: Integers, items: Ragged, cell: Integers, short: Floats) -> None:
        """Give each empty cell of a document the vector whose cell differs in the fewest bits."""
        distance = self._distances[cell]  # [vectors, cells]
        keys = distance.astype(np.int64) * len(cell) + np.arange(len(cell))[:, None]
        nearest = np.minimum.reduceat(keys, items.offsets[:-1], axis=0) % len(cell)
        empty = filled == 0
        sums[empty] = short[nearest[empty]]


def make_sketch(dim: int, repeats: int = REPEATS, bits: int = BITS, width: int = WIDTH, seed: int = 0) -> Sketch:
    """Return a sketch without documents; the same settings give the same one everywhere."""
    size = repeats * (1 << bits) * width
    empty: Any = np.zeros((0, size), np.float16)
    return Sketch(dim, repeats, bits, width, seed, wrap_rows(empty))
