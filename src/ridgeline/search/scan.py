"""Flat and SQ8: every row is looked at.

float32 rows go through one matrix product per block; a single query through a matrix-vector product, which on the
CPUs measured reads memory faster than FAISS's own loop (docs/search.md). SQ8 is multiplied as bytes for a few queries
and widened block by block for many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.native import TopCandidates, dot_bytes
from ridgeline.search.arrays import Array, Flags, Floats, Grown, Whole, Wide, grown, threads
from ridgeline.search.blocks import Block, Decoded, reach_of
from ridgeline.search.codecs import ByteCodec, Codec
from ridgeline.search.metric import norms, slack

SCORES = 1 << 22  # of a block: large enough for the product, small enough for the caches
FEW = 4  # queries up to which bytes are multiplied one query at a time
RARE = 8  # with fewer than one row in so many allowed, those are gathered instead of passing over the others


@dataclass(frozen=True)
class Scan:
    codec: Codec
    codes: Grown
    biases: Grown | None  # −‖x‖²/2, for l2
    longest: float = 0.0  # ‖x‖ of the longest row

    @property
    def count(self) -> int:
        return self.codes.count

    @property
    def values(self) -> Decoded:
        return Decoded(self.codec, self.codes.rows)

    def added(self, vectors: Floats) -> Scan:
        codes = self.codec.encode(vectors)
        lengths = norms(self.codec.decode(codes))
        longest = max(self.longest, float(lengths.max(initial=0.0)))
        biases = self.biases.appended(half_squares(lengths)) if self.biases is not None else None
        return replace(self, codes=self.codes.appended(codes), biases=biases, longest=longest)

    def taken(self, rows: Whole) -> Scan:
        biases = grown(self.biases.rows[rows]) if self.biases is not None else None
        return replace(self, codes=grown(self.codes.rows[rows]), biases=biases)

    def slack(self, queries: Floats) -> Wide:
        dim = queries.shape[1]
        reach = reach_of(queries, self.longest, self.longest**2 / 2 if self.biases is not None else 0.0)
        return slack(dim, reach + byte_reach(self.codec, queries))

    def probe(self, sieve: TopCandidates, query: Floats, nprobe: int, allowed: Flags | None) -> bool:
        return False  # a block holds all of it

    def blocks(self, queries: Floats, nprobe: int, allowed: Flags | None) -> Iterator[Block]:
        if not self.count or not len(queries):
            return
        product = Product(self.codec, queries)
        columns = max(1024, SCORES // len(queries))
        some = None
        if allowed is not None:
            some = np.flatnonzero(allowed)
            if len(some) * RARE >= self.count:
                some = None
        codes, biases = self.codes.rows, self.biases.rows if self.biases is not None else None
        for at in range(0, self.count if some is None else len(some), columns):
            rows = None if some is None else some[at : at + columns]
            part = slice(at, at + columns) if rows is None else rows
            first = at if rows is None else 0
            scores = product(codes[part])
            yield Block(scores, first, rows, offsets=product.offsets, biases=None if biases is None else biases[part])


class Product:
    """Queries × codes, as scores; the room for the answer is used again for the next block."""

    def __init__(self, codec: Codec, queries: Floats) -> None:
        self.offsets: Floats | None = None
        self._bytes = isinstance(codec, ByteCodec)
        if isinstance(codec, ByteCodec):
            # base + step·code, multiplied out: the codes can be used as they are
            self.offsets = (queries @ codec.base).astype(np.float32)
            queries = queries * codec.step
        self._queries = np.ascontiguousarray(queries, np.float32)
        self._room = np.empty(0, np.float32)

    def __call__(self, codes: Array, which: Whole | None = None) -> Floats:
        """[queries, len(codes)], valid until the next call."""
        queries = self._queries if which is None else self._queries[which]
        wanted = len(queries) * len(codes)
        if len(self._room) < wanted:
            self._room = np.empty(wanted, np.float32)
        out = self._room[:wanted].reshape(len(queries), len(codes))
        if self._bytes and len(queries) <= FEW:
            codes = np.ascontiguousarray(codes)
            for row, query in enumerate(queries):
                dot_bytes(query, codes, out[row], threads())
            return out
        values = codes.astype(np.float32, copy=False)
        if len(queries) == 1:
            np.matmul(values, queries[0], out=out[0])
        else:
            np.matmul(queries, values.T, out=out)
        return out


def byte_reach(codec: Codec, queries: Floats) -> Wide:
    """What multiplying bytes adds to the bound: their terms are larger than those of the values they stand for."""
    if not isinstance(codec, ByteCodec):
        return np.zeros(len(queries))
    dim = queries.shape[1]
    base = float(np.linalg.norm(codec.base.astype(np.float64)))
    return np.asarray(norms(queries * codec.step) * (255.0 * np.sqrt(dim)) + norms(queries) * base)


def half_squares(lengths: Wide) -> Floats:
    with np.errstate(over="ignore"):  # beyond float32 the bound is infinite too, and nothing looks here
        return np.asarray(-(lengths**2) / 2, np.float32)
