"""IVF: rows lie in the list of their nearest centre, and a search looks at the lists nearest to the query.

Rows that were added together form a segment, sorted by list. Segments of like size are merged, so there are never
more than a few, and adding a row costs a logarithmic number of moves. A batch reads each list once, for all queries
that want it; one query's lists are read by one native call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ridgeline.native import TopCandidates, look_up
from ridgeline.search.arrays import Array, Flags, Floats, Whole, Wide, threads
from ridgeline.search.blocks import Block, reach_of
from ridgeline.search.codecs import ByteCodec, Codec, FlatCodec, PartCodec
from ridgeline.search.kmeans import nearest
from ridgeline.search.metric import norms, slack
from ridgeline.search.scan import Product, byte_reach, half_squares

ALONE = 1 << 20  # bytes: waking a thread costs as much as reading so many


@dataclass(frozen=True)
class Segment:
    """Rows `first … first + count`, sorted by list."""

    first: int
    rows: Whole  # [n] the row at each place
    offsets: Whole  # [lists + 1]
    codes: Array  # [n, width]
    biases: Floats | None  # [n]

    @property
    def count(self) -> int:
        return len(self.rows)

    @cached_property
    def places(self) -> Whole:
        """Where row `first + i` lies."""
        out = np.empty(self.count, np.int64)
        out[self.rows - self.first] = np.arange(self.count)
        return out

    @property
    def homes(self) -> Whole:
        """The list of the row at each place."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True)
class Lists:
    codec: Codec
    centres: Floats  # [lists, d]
    segments: tuple[Segment, ...]
    distances: bool  # l2: scores carry a bias
    longest: float = 0.0

    @property
    def count(self) -> int:
        return sum(s.count for s in self.segments)

    @property
    def values(self) -> Lists:
        return self

    def plain(self) -> Floats | None:
        return None

    def stored(self, rows: Whole) -> tuple[Floats, Whole] | None:
        if len(self.segments) != 1 or not self.floats:
            return None
        return self.segments[0].codes, self.segments[0].places[rows]

    def added(self, vectors: Floats) -> Lists:
        homes = nearest(vectors, self.centres)
        codes = self.codec.encode(vectors - self.centres[homes] if self._residual else vectors)
        lengths = norms(self._values(codes, homes))
        biases = half_squares(lengths) if self.distances else None
        first = self.count
        fresh = _segment(first, homes, np.arange(first, first + len(vectors)), codes, biases, len(self.centres))
        segments = [*self.segments, fresh]
        while len(segments) > 1 and segments[-2].count < 2 * segments[-1].count:
            segments[-2:] = [_merged(segments[-2], segments[-1])]
        longest = max(self.longest, float(lengths.max(initial=0.0)))
        return replace(self, segments=tuple(segments), longest=longest)

    def taken(self, rows: Whole) -> Lists:
        codes, homes, biases = self.in_order()
        kept = None if biases is None else biases[rows]
        segment = _segment(0, homes[rows], np.arange(len(rows)), codes[rows], kept, len(self.centres))
        return replace(self, segments=(segment,))

    def in_order(self) -> tuple[Array, Whole, Floats | None]:
        """(codes, lists, biases) by row."""
        codes = np.concatenate([s.codes[s.places] for s in self.segments] or [self.codec.empty()])
        homes = np.concatenate([s.homes[s.places] for s in self.segments] or [np.zeros(0, np.int64)])
        if not self.distances:
            return codes, homes, None
        parts = [s.biases[s.places] for s in self.segments if s.biases is not None]
        return codes, homes, np.concatenate(parts or [np.zeros(0, np.float32)])

    def decoded(self, rows: Whole) -> Floats:
        out = np.empty((len(rows), self.centres.shape[1]), np.float32)
        for segment in self.segments:
            mine = np.flatnonzero((rows >= segment.first) & (rows < segment.first + segment.count))
            places = segment.places[rows[mine] - segment.first]
            homes = np.searchsorted(segment.offsets, places, "right") - 1
            out[mine] = self._values(segment.codes[places], homes)
        return out

    def slack(self, queries: Floats) -> Wide:
        reach = reach_of(queries, self.longest, self.longest**2 / 2 if self.distances else 0.0)
        if self._residual:  # centre and remainder are added up apart: together they may be longer than the row
            reach = reach + norms(queries) * (self.longest + 2 * self._farthest)
        return slack(queries.shape[1], reach + byte_reach(self.codec, queries))

    def blocks(self, queries: Floats, nprobe: int, allowed: Flags | None) -> Iterator[Block]:
        if not self.count or not len(queries):
            return
        products = queries @ self.centres.T
        wanted = self._probed(products, nprobe)
        tables = self.codec.tables(queries) if isinstance(self.codec, PartCodec) else None
        product = Product(self.codec, queries) if tables is None else None
        for number, which in wanted:
            for segment in self.segments:
                low, high = int(segment.offsets[number]), int(segment.offsets[number + 1])
                if low == high:
                    continue
                rows, codes = segment.rows[low:high], segment.codes[low:high]
                biases = None if segment.biases is None else segment.biases[low:high]
                if product is not None:
                    offsets = None if product.offsets is None else product.offsets[which]
                    yield Block(product(codes, which), 0, rows, which, offsets, biases)
                elif tables is not None:
                    offsets = np.ascontiguousarray(products[which, number])
                    yield Block(_looked_up(tables, which, codes), 0, rows, which, offsets, biases)

    def probe(self, sieve: TopCandidates, query: Floats, nprobe: int, allowed: Flags | None) -> bool:
        """By the codec's own loop over all lists; not for values in float16, which are multiplied as float32."""
        codec = self.codec
        if not (self.floats or isinstance(codec, ByteCodec | PartCodec)):
            return False
        products = query @ self.centres.T
        wanted = np.ascontiguousarray(self._chosen(products, nprobe)[0])
        for segment in self.segments:
            looked = segment.codes.nbytes * len(wanted) // max(1, len(self.centres))
            where = (wanted, segment.offsets, segment.rows)
            more = (segment.biases, allowed, threads() if looked > ALONE else 1)
            if isinstance(codec, PartCodec):
                sieve.probe_parts(codec.tables(query)[0], segment.codes, *where, products[0, wanted], *more)
            elif isinstance(codec, ByteCodec):
                sieve.probe_bytes(query[0] * codec.step, segment.codes, *where, float(query[0] @ codec.base), *more)
            else:
                sieve.probe(query[0], segment.codes, *where, *more)
        return True

    @property
    def floats(self) -> bool:
        return isinstance(self.codec, FlatCodec) and self.codec.empty().dtype == np.float32

    @cached_property
    def halves(self) -> Floats:
        """‖centre‖²/2"""
        return np.asarray(np.einsum("ij,ij->i", self.centres, self.centres) / 2)

    @cached_property
    def _farthest(self) -> float:
        return float(norms(self.centres).max(initial=0.0))

    @property
    def _residual(self) -> bool:
        return isinstance(self.codec, PartCodec)

    def _values(self, codes: Array, homes: Whole) -> Floats:
        values = self.codec.decode(codes)
        return values + self.centres[homes] if self._residual else values

    def _chosen(self, products: Floats, nprobe: int) -> Whole:
        """[queries, nprobe] the nearest lists, in no order."""
        lists = len(self.centres)
        if nprobe >= lists:
            return np.broadcast_to(np.arange(lists), products.shape)
        scores = products - self.halves if self.distances else products
        return np.argpartition(-scores, nprobe - 1, axis=1)[:, :nprobe]

    def _probed(self, products: Floats, nprobe: int) -> list[tuple[int, Whole]]:
        """(list, queries that want it), by list."""
        chosen = self._chosen(products, nprobe)
        numbers = chosen.ravel()
        owners = np.repeat(np.arange(len(products)), chosen.shape[1])
        order = np.argsort(numbers, kind="stable")
        present, starts = np.unique(numbers[order], return_index=True)
        return list(zip(present.tolist(), np.split(owners[order], starts[1:]), strict=True))


def _looked_up(tables: Floats, which: Whole, codes: Array) -> Floats:
    out = np.empty((len(which), len(codes)), np.float32)
    crew = threads()
    for row, query in enumerate(which):
        look_up(tables[query], codes, out[row], crew)
    return out


def _segment(first: int, homes: Whole, rows: Whole, codes: Array, biases: Floats | None, lists: int) -> Segment:
    order = np.argsort(homes, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(homes, minlength=lists))]).astype(np.int64)
    return Segment(first, rows[order], offsets, codes[order], None if biases is None else biases[order])


def _merged(one: Segment, other: Segment) -> Segment:
    homes, rows = np.concatenate([one.homes, other.homes]), np.concatenate([one.rows, other.rows])
    codes = np.concatenate([one.codes, other.codes])
    biases = None
    if one.biases is not None and other.biases is not None:
        biases = np.concatenate([one.biases, other.biases])
    return _segment(one.first, homes, rows, codes, biases, len(one.offsets) - 1)
