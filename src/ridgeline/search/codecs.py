"""How a vector is kept: as it is, in bytes, or as the numbers of the nearest parts.

The *stored values* of a row are `decode(codes)` in float32, whichever engine reads them: exactness, reconstruction
and refinement speak of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ridgeline.errors import InputError
from ridgeline.search.arrays import Array, Floats
from ridgeline.search.kmeans import kmeans, nearest

LEVELS = 255  # steps between the least and the greatest value of a dimension
WORDS = 256  # of a PQ part
PQ_SAMPLE = 64 * WORDS
PQ_ROUNDS = 12


class Codec(Protocol):
    @property
    def name(self) -> str: ...

    def encode(self, vectors: Floats) -> Array: ...
    def decode(self, codes: Array) -> Floats: ...
    def empty(self) -> Array:
        """Codes of no rows: their width and type."""

    def arrays(self) -> Mapping[str, Array]:
        """What it learnt, to be kept in files."""


@dataclass(frozen=True)
class FlatCodec:
    dim: int
    dtype: str = "float32"  # or float16
    name: str = "Flat"

    def encode(self, vectors: Floats) -> Array:
        if self.dtype == "float32":
            return vectors
        with np.errstate(over="ignore"):
            codes = vectors.astype(self.dtype)
        if not np.isfinite(codes).all():
            row = int(np.flatnonzero(~np.isfinite(codes).all(1))[0])
            raise InputError(f"row {row} has values beyond float16 (65,504); use dtype='float32'.")
        return codes

    def decode(self, codes: Array) -> Floats:
        return codes.astype(np.float32, copy=False)

    def empty(self) -> Array:
        return np.empty((0, self.dim), self.dtype)

    def arrays(self) -> Mapping[str, Array]:
        return {}


@dataclass(frozen=True)
class ByteCodec:
    """SQ8: a byte per dimension, 256 even steps between the least and the greatest value seen in training."""

    base: Floats  # [d] the value of code 0
    step: Floats  # [d]
    name: str = "SQ8"

    def encode(self, vectors: Floats) -> Array:
        step = np.where(self.step > 0, self.step, 1)
        codes = np.empty(vectors.shape, np.uint8)
        for at in range(0, len(vectors), 8192):
            levels = np.rint((vectors[at : at + 8192] - self.base) / step)
            codes[at : at + 8192] = np.clip(levels, 0, LEVELS)
        return codes

    def decode(self, codes: Array) -> Floats:
        values: Floats = codes.astype(np.float32)
        values *= self.step
        values += self.base
        return values

    def empty(self) -> Array:
        return np.empty((0, len(self.base)), np.uint8)

    def arrays(self) -> Mapping[str, Array]:
        return {"base": self.base, "step": self.step}


def trained_bytes(vectors: Floats) -> ByteCodec:
    low, high = vectors.min(0), vectors.max(0)
    return ByteCodec(low.astype(np.float32), ((high.astype(np.float64) - low) / LEVELS).astype(np.float32))


@dataclass(frozen=True)
class PartCodec:
    """PQ: each of `parts` equal slices is replaced by the nearest of 256 words learnt for it."""

    words: Floats  # [parts, 256, d / parts]
    name: str = "PQ"

    @property
    def parts(self) -> int:
        return int(self.words.shape[0])

    def encode(self, vectors: Floats) -> Array:
        codes = np.empty((len(vectors), self.parts), np.uint8)
        width = self.words.shape[2]
        for part in range(self.parts):
            slices = np.ascontiguousarray(vectors[:, part * width : (part + 1) * width])
            codes[:, part] = nearest(slices, self.words[part])
        return codes

    def decode(self, codes: Array) -> Floats:
        width = self.parts * self.words.shape[2]  # said, for there may be no codes to find it from
        values: Floats = self.words[np.arange(self.parts), codes].reshape(len(codes), width)
        return values

    def tables(self, queries: Floats) -> Floats:
        """q·word for every word, [queries, parts, 256]."""
        slices = queries.reshape(len(queries), self.parts, -1)
        return np.ascontiguousarray(np.einsum("qps,pws->qpw", slices, self.words, optimize=True), np.float32)

    def empty(self) -> Array:
        return np.empty((0, self.parts), np.uint8)

    def arrays(self) -> Mapping[str, Array]:
        return {"words": self.words}


def trained_parts(vectors: Floats, parts: int, seed: int) -> PartCodec:
    """Learn the words from a sample; with fewer vectors than words, some words repeat."""
    width = vectors.shape[1] // parts
    if len(vectors) > PQ_SAMPLE:
        vectors = vectors[np.random.default_rng(seed).choice(len(vectors), PQ_SAMPLE, replace=False)]
    words = np.empty((parts, WORDS, width), np.float32)
    for part in range(parts):
        slices = np.ascontiguousarray(vectors[:, part * width : (part + 1) * width])
        learnt = kmeans(slices, min(WORDS, len(slices)), seed=seed + part, rounds=PQ_ROUNDS)
        words[part] = np.resize(learnt, (WORDS, width))
    return PartCodec(words)
