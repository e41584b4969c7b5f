"""Flat and SQ8 rows on the CPU: a search reads every row.

float32 rows use one matrix product per block; a single query uses a matrix-vector product, which reads memory faster
than FAISS's loop on the measured CPUs (docs/search.md). SQ8 codes are multiplied as bytes for a few queries and
converted to float32 block by block for many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.native import TopCandidates, dot_bytes, dot_few
from ridgeline.search.arrays import Array, Doubles, Flags, Floats, GrowableArray, Integers, count_threads, wrap_rows
from ridgeline.search.codecs import ByteCodec, Codec
from ridgeline.search.metric import compute_norms, compute_slack
from ridgeline.search.ranking import Block, CodeValues, bound_products

BLOCK_SCORES = 1 << 22  # large enough for a fast product, small enough for the caches
MAX_FEW_QUERIES = 16  # up to this many queries, a matrix product takes longer than a loop over the rows
MIN_PARALLEL_BYTES = 1 << 20  # waking a thread takes as long as reading this many bytes
MAX_BYTE_QUERIES = 4  # up to this many queries, bytes are multiplied one query at a time
GATHER_FACTOR = 8  # if fewer than 1 in 8 rows are allowed, gather them instead of skipping the others


@dataclass(frozen=True)
class FlatRows:
    """All rows, one after the other: Flat or SQ8."""

    codec: Codec
    codes: GrowableArray
    biases: GrowableArray | None  # −‖x‖²/2, for l2
    longest: float = 0.0  # ‖x‖ of the longest row

    @property
    def count(self) -> int:
        return self.codes.count

    @property
    def values(self) -> CodeValues:
        return CodeValues(self.codec, self.codes.rows)

    def append(self, vectors: Floats) -> FlatRows:
        codes = self.codec.encode(vectors)
        lengths = compute_norms(self.codec.decode(codes))
        longest = max(self.longest, float(lengths.max(initial=0.0)))
        biases = self.biases.append(compute_biases(lengths)) if self.biases is not None else None
        return replace(self, codes=self.codes.append(codes), biases=biases, longest=longest)

    def select_rows(self, rows: Integers) -> FlatRows:
        biases = wrap_rows(self.biases.rows[rows]) if self.biases is not None else None
        return replace(self, codes=wrap_rows(self.codes.rows[rows]), biases=biases)

    def slack(self, queries: Floats) -> Doubles:
        dim = queries.shape[1]
        bound = bound_products(queries, self.longest, self.longest**2 / 2 if self.biases is not None else 0.0)
        return compute_slack(dim, bound + bound_byte_products(self.codec, queries))

    def probe_one_query(self, selector: TopCandidates, query: Floats, nprobe: int, allowed: Flags | None) -> bool:
        return False  # one block holds all rows

    def blocks(self, queries: Floats, nprobe: int, allowed: Flags | None) -> Iterator[Block]:
        if not self.count or not len(queries):
            return
        multiply = QueryProduct(self.codec, queries)
        columns = max(1024, BLOCK_SCORES // len(queries))
        allowed_rows = None
        if allowed is not None:
            allowed_rows = np.flatnonzero(allowed)
            if len(allowed_rows) * GATHER_FACTOR >= self.count:
                allowed_rows = None
        codes, biases = self.codes.rows, self.biases.rows if self.biases is not None else None
        for at in range(0, self.count if allowed_rows is None else len(allowed_rows), columns):
            rows = None if allowed_rows is None else allowed_rows[at : at + columns]
            part = slice(at, at + columns) if rows is None else rows
            first = at if rows is None else 0
            scores = multiply(codes[part])
            yield Block(scores, first, rows, offsets=multiply.offsets, biases=None if biases is None else biases[part])


class QueryProduct:
    """Multiply queries with blocks of codes; the buffer for the scores is reused."""

    def __init__(self, codec: Codec, queries: Floats) -> None:
        self.offsets: Floats | None = None
        self._bytes = isinstance(codec, ByteCodec)
        if isinstance(codec, ByteCodec):
            # (base + step·code)·q, multiplied out: codes need no decoding
            self.offsets = (queries @ codec.base).astype(np.float32)
            queries = queries * codec.step
        self._queries = np.ascontiguousarray(queries, np.float32)
        self._buffer = np.empty(0, np.float32)

    def __call__(self, codes: Array, query_ids: Integers | None = None) -> Floats:
        """Return scores [queries, len(codes)], valid until the next call."""
        queries = self._queries if query_ids is None else self._queries[query_ids]
        size = len(queries) * len(codes)
        if len(self._buffer) < size:
            self._buffer = np.empty(size, np.float32)
        out = self._buffer[:size].reshape(len(queries), len(codes))
        if self._bytes and len(queries) <= MAX_BYTE_QUERIES:
            codes = np.ascontiguousarray(codes)
            for row, query in enumerate(queries):
                dot_bytes(query, codes, out[row], count_threads())
            return out
        values = codes.astype(np.float32, copy=False)
        if len(queries) == 1:
            np.matmul(values, queries[0], out=out[0])
        elif len(queries) <= MAX_FEW_QUERIES and values.flags.c_contiguous:
            dot_few(queries, values, out, count_threads() if values.nbytes > MIN_PARALLEL_BYTES else 1)
        else:
            np.matmul(queries, values.T, out=out)
        return out


def bound_byte_products(codec: Codec, queries: Floats) -> Doubles:
    """The extra bound for products of bytes: their terms are larger than those of decoded values."""
    if not isinstance(codec, ByteCodec):
        return np.zeros(len(queries))
    dim = queries.shape[1]
    base = float(np.linalg.norm(codec.base.astype(np.float64)))
    return np.asarray(compute_norms(queries * codec.step) * (255.0 * np.sqrt(dim)) + compute_norms(queries) * base)


def compute_biases(lengths: Doubles) -> Floats:
    """−‖x‖²/2 from norms."""
    with np.errstate(over="ignore"):  # beyond float32 the slack is infinite too, and biases are not used
        return np.asarray(-(lengths**2) / 2, np.float32)
