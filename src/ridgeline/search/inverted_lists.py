"""Inverted lists (IVF) on the CPU: a row is in the list of its nearest centre, and a search reads the nearest lists.

Rows that are added together form a segment, sorted by list. Segments of similar size are merged, so there are only a
few, and adding a row moves it a logarithmic number of times. A batch of queries reads each list once for all its
queries; one query reads its lists in one native call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ridgeline.native import RabitqSearch, SingleQuery, TopCandidates, look_up
from ridgeline.search.arrays import Array, Doubles, Flags, Floats, Integers, count_threads
from ridgeline.search.codecs import ByteCodec, Codec, FlatCodec, ProductCodec, RabitqCodec
from ridgeline.search.engine import SearchOptions
from ridgeline.search.flat import QueryProduct, bound_byte_products, compute_biases
from ridgeline.search.kmeans import find_nearest_centres
from ridgeline.search.metric import MORE_TERMS, ROUNDING, TOO_LARGE, UNDERFLOW, compute_norms, compute_slack
from ridgeline.search.ranking import Block, bound_products

ROUNDED_QUERY = 2e-4  # of the product with a stored value: what RaBitQ's queries lose, relative to both norms
MIN_PARALLEL_BYTES = 1 << 20  # waking a thread takes as long as reading this many bytes


@dataclass(frozen=True)
class Segment:
    """Rows `first … first + count`, sorted by list."""

    first: int
    rows: Integers  # [n] the row at each position
    offsets: Integers  # [lists + 1]
    codes: Array  # [n, width]
    biases: Floats | None  # [n]

    @property
    def count(self) -> int:
        return len(self.rows)

    @cached_property
    def places(self) -> Integers:
        """The position of row `first + i`."""
        out = np.empty(self.count, np.int64)
        out[self.rows - self.first] = np.arange(self.count)
        return out

    @property
    def list_ids(self) -> Integers:
        """The list of the row at each position."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True)
class InvertedLists:
    """Rows in lists; see the module."""

    codec: Codec
    centres: Floats  # [lists, d]
    segments: tuple[Segment, ...]
    distances: bool  # l2: scores have a bias
    longest: float = 0.0

    @property
    def count(self) -> int:
        return sum(s.count for s in self.segments)

    @property
    def values(self) -> InvertedLists:
        return self

    def as_float32(self) -> Floats | None:
        return None

    def locate_rows(self, rows: Integers) -> tuple[Floats, Integers] | None:
        if len(self.segments) != 1 or not self.floats:
            return None
        return self.segments[0].codes, self.segments[0].places[rows]

    def append(self, vectors: Floats) -> InvertedLists:
        list_ids = find_nearest_centres(vectors, self.centres)
        codes = self.codec.encode(vectors - self.centres[list_ids] if self._residual else vectors)
        lengths = compute_norms(vectors if self._refined else self._values(codes, list_ids))
        biases = compute_biases(lengths) if self.distances else None
        first = self.count
        segment = _build_segment(
            first, list_ids, np.arange(first, first + len(vectors)), codes, biases, len(self.centres)
        )
        segments = [*self.segments, segment]
        while len(segments) > 1 and segments[-2].count < 2 * segments[-1].count:
            segments[-2:] = [_merge_segments(segments[-2], segments[-1])]
        longest = max(self.longest, float(lengths.max(initial=0.0)))
        return replace(self, segments=tuple(segments), longest=longest)

    def select_rows(self, rows: Integers) -> InvertedLists:
        codes, list_ids, biases = self.codes_by_row()
        row_biases = None if biases is None else biases[rows]
        segment = _build_segment(0, list_ids[rows], np.arange(len(rows)), codes[rows], row_biases, len(self.centres))
        return replace(self, segments=(segment,))

    def codes_by_row(self) -> tuple[Array, Integers, Floats | None]:
        """(codes, lists, biases) by row."""
        codes = np.concatenate([s.codes[s.places] for s in self.segments] or [self.codec.empty()])
        list_ids = np.concatenate([s.list_ids[s.places] for s in self.segments] or [np.zeros(0, np.int64)])
        if not self.distances:
            return codes, list_ids, None
        parts = [s.biases[s.places] for s in self.segments if s.biases is not None]
        return codes, list_ids, np.concatenate(parts or [np.zeros(0, np.float32)])

    def decode_rows(self, rows: Integers) -> Floats:
        out = np.empty((len(rows), self.centres.shape[1]), np.float32)
        for segment in self.segments:
            positions = np.flatnonzero((rows >= segment.first) & (rows < segment.first + segment.count))
            places = segment.places[rows[positions] - segment.first]
            list_ids = np.searchsorted(segment.offsets, places, "right") - 1
            out[positions] = self._values(segment.codes[places], list_ids)
        return out

    def slack(self, queries: Floats) -> Doubles:
        bound = bound_products(queries, self.longest, self.longest**2 / 2 if self.distances else 0.0)
        if self._residual:  # centre and residual are summed separately: together they can be longer than the row
            bound = bound + compute_norms(queries) * (self.longest + 2 * self._longest_centre)
        if isinstance(self.codec, RabitqCodec):
            lost = ROUNDED_QUERY * compute_norms(queries) * self._longest_difference
            return 2 * lost + compute_slack(queries.shape[1], bound)
        if isinstance(self.codec, ProductCodec) and self.codec.rotation is not None:  # products with its columns, twice
            dim = queries.shape[1]
            bound = bound + 2 * np.sqrt(dim) * compute_norms(queries) * (self.longest + self._longest_centre)
        return compute_slack(queries.shape[1], bound + bound_byte_products(self.codec, queries))

    def blocks(self, queries: Floats, nprobe: int, allowed: Flags | None) -> Iterator[Block]:
        if not self.count or not len(queries):
            return
        products = queries @ self.centres.T
        probes = self._group_queries_by_list(products, nprobe)
        tables = self.codec.tables(queries) if isinstance(self.codec, ProductCodec) else None
        rabitq = self.codec if isinstance(self.codec, RabitqCodec) else None
        multiply = QueryProduct(self.codec, queries) if tables is None and rabitq is None else None
        for list_id, query_ids in probes:
            for segment in self.segments:
                low, high = int(segment.offsets[list_id]), int(segment.offsets[list_id + 1])
                if low == high:
                    continue
                rows, codes = segment.rows[low:high], segment.codes[low:high]
                biases = None if segment.biases is None else segment.biases[low:high]
                if multiply is not None:
                    offsets = None if multiply.offsets is None else multiply.offsets[query_ids]
                    if offsets is not None and self._residual:
                        offsets = offsets + products[query_ids, list_id]
                    yield Block(multiply(codes, query_ids), 0, rows, query_ids, offsets, biases)
                elif rabitq is not None:
                    scores = np.stack([rabitq.bound(queries[query], codes) for query in query_ids])
                    offsets = np.ascontiguousarray(products[query_ids, list_id])
                    yield Block(scores, 0, rows, query_ids, offsets, biases)
                elif tables is not None:
                    offsets = np.ascontiguousarray(products[query_ids, list_id])
                    yield Block(_look_up_scores(tables, query_ids, codes), 0, rows, query_ids, offsets, biases)

    def probe_one_query(self, selector: TopCandidates, query: Floats, nprobe: int, allowed: Flags | None) -> bool:
        """Run the native loop of the codec over all lists; not for float16 values, which are multiplied as float32."""
        codec = self.codec
        if not (self.floats or isinstance(codec, ByteCodec | ProductCodec)):
            return False
        products = query @ self.centres.T
        list_ids = np.ascontiguousarray(self._choose_lists(products, nprobe)[0])
        for segment in self.segments:
            probed_bytes = segment.codes.nbytes * len(list_ids) // max(1, len(self.centres))
            location = (list_ids, segment.offsets, segment.rows)
            options = (segment.biases, allowed, count_threads() if probed_bytes > MIN_PARALLEL_BYTES else 1)
            if isinstance(codec, ProductCodec):
                selector.probe_parts(codec.tables(query)[0], segment.codes, *location, products[0, list_ids], *options)
            elif isinstance(codec, ByteCodec):
                added = np.full(len(list_ids), query[0] @ codec.base, np.float32)
                added += products[0, list_ids] if self._residual else np.float32(0)
                selector.probe_bytes(query[0] * codec.step, segment.codes, *location, added, *options)
            else:
                selector.probe(query[0], segment.codes, *location, *options)
        return True

    def make_rabitq_search(self, values: Floats | None, allowed: Flags | None, ids: Integers | None) -> RabitqSearch:
        """Return the native search over RaBitQ codes; values [rows, d] are read in full where the bounds ask for it."""
        codec = self.codec
        assert isinstance(codec, RabitqCodec)  # noqa: S101  # for the type checker
        search = RabitqSearch(
            codec.native,
            self.centres,
            self.half_squares if self.distances else None,
            values,
            allowed,
            ids,
            self.distances,
            self.longest,
            TOO_LARGE,
            self._longest_difference,
        )
        for segment in self.segments:
            search.add_segment(segment.codes, segment.offsets, segment.rows, segment.biases, self.count)
        return search

    @property
    def floats(self) -> bool:
        return isinstance(self.codec, FlatCodec) and self.codec.empty().dtype == np.float32

    @cached_property
    def half_squares(self) -> Floats:
        """‖centre‖²/2"""
        return np.asarray(np.einsum("ij,ij->i", self.centres, self.centres) / 2, self.centres.dtype)

    @cached_property
    def _longest_centre(self) -> float:
        return float(compute_norms(self.centres).max(initial=0.0))

    @property
    def _longest_difference(self) -> float:
        """The largest norm of a stored difference to a centre, which of RaBitQ with one bit can be a quarter longer."""
        return 1.5 * (self.longest + self._longest_centre)

    @property
    def _refined(self) -> bool:
        return isinstance(self.codec, RabitqCodec) and self.codec.refined

    @property
    def _residual(self) -> bool:
        return isinstance(self.codec, ProductCodec | RabitqCodec) or (
            isinstance(self.codec, ByteCodec) and self.codec.residual
        )

    def _values(self, codes: Array, list_ids: Integers) -> Floats:
        values = self.codec.decode(codes)
        return values + self.centres[list_ids] if self._residual else values

    def _choose_lists(self, products: Floats, nprobe: int) -> Integers:
        """[queries, nprobe] the nearest lists, in no order."""
        lists = len(self.centres)
        if nprobe >= lists:
            return np.broadcast_to(np.arange(lists), products.shape)
        scores = products - self.half_squares if self.distances else products
        return np.argpartition(-scores, nprobe - 1, axis=1)[:, :nprobe]

    def _group_queries_by_list(self, products: Floats, nprobe: int) -> list[tuple[int, Integers]]:
        """(list, its queries), in the order of the lists."""
        chosen = self._choose_lists(products, nprobe)
        numbers = chosen.ravel()
        query_ids = np.repeat(np.arange(len(products)), chosen.shape[1])
        order = np.argsort(numbers, kind="stable")
        list_ids, starts = np.unique(numbers[order], return_index=True)
        return list(zip(list_ids.tolist(), np.split(query_ids[order], starts[1:]), strict=True))


def _look_up_scores(tables: Floats, query_ids: Integers, codes: Array) -> Floats:
    out = np.empty((len(query_ids), len(codes)), np.float32)
    thread_count = count_threads()
    for row, query in enumerate(query_ids):
        look_up(tables[query], codes, out[row], thread_count)
    return out


def _build_segment(
    first: int, list_ids: Integers, rows: Integers, codes: Array, biases: Floats | None, lists: int
) -> Segment:
    order = np.argsort(list_ids, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(list_ids, minlength=lists))]).astype(np.int64)
    return Segment(first, rows[order], offsets, codes[order], None if biases is None else biases[order])


def _merge_segments(one: Segment, other: Segment) -> Segment:
    list_ids, rows = np.concatenate([one.list_ids, other.list_ids]), np.concatenate([one.rows, other.rows])
    codes = np.concatenate([one.codes, other.codes])
    biases = None
    if one.biases is not None and other.biases is not None:
        biases = np.concatenate([one.biases, other.biases])
    return _build_segment(one.first, list_ids, rows, codes, biases, len(one.offsets) - 1)


# Repeated searches for a few queries: one native call from the queries to their results.


Result = tuple[Doubles, Integers]


class OneQuerySearch:
    """One query, or a few, over inverted lists in one native call.

    fallback: the normal search, which explains errors and handles values that float32 cannot sum.
    """

    def __init__(
        self, lists: InvertedLists, metric: str, options: SearchOptions, fallback: Callable[[Any], Result]
    ) -> None:
        segment = lists.segments[0]
        self._k, self._fallback = options.k, fallback
        self._search = SingleQuery(
            lists.centres,
            lists.half_squares if metric == "l2" else None,
            segment.codes,
            segment.offsets,
            segment.rows,
            segment.biases,
            metric == "cosine",
            metric == "l2",
            options.nprobe,
            options.k,
            lists.longest,
            ROUNDING,
            UNDERFLOW,
            TOO_LARGE,
            MORE_TERMS,
        )

    @staticmethod
    def supports(lists: InvertedLists, options: SearchOptions) -> bool:
        """Return whether all rows are allowed, are in one segment as float32, and have ids in their order."""
        return options.allowed is None and options.ids is None and len(lists.segments) == 1 and lists.floats

    def search_on_host(self, queries: Any) -> tuple[Floats, Integers]:
        """(scores float32 [q, k], rows [q, k]) of a few queries [q, d]."""
        shape = (len(queries), self._k)
        scores, rows = np.empty(shape, np.float32), np.empty(shape, np.int64)
        with np.errstate(over="ignore"):  # overflow is not finite and takes the fallback
            if len(queries) == 1:
                done = self._search(np.ascontiguousarray(queries[0], np.float32), scores[0], rows[0])
            else:
                done = self._search.search_few(np.ascontiguousarray(queries, np.float32), scores, rows, count_threads())
            if done:
                return scores, rows
            scores_float64, rows = self._fallback(queries)
            return scores_float64.astype(np.float32), rows


class RabitqFastPath:
    """Repeated searches over RaBitQ codes without a filter: one native call from the queries to their results.

    fallback: the normal search, which explains errors and handles values that float32 cannot sum.
    """

    def __init__(
        self,
        lists: InvertedLists,
        values: Floats | None,
        unit: bool,
        options: SearchOptions,
        fallback: Callable[[Any], Result],
    ) -> None:
        self._search, self._unit, self._fallback = lists.make_rabitq_search(values, None, options.ids), unit, fallback
        self._k, self._nprobe, self._threads = options.k, options.nprobe, count_threads()

    def search_on_host(self, queries: Any) -> tuple[Floats, Integers]:
        """(scores float32 [q, k], rows [q, k]) of queries [q, d]."""
        with np.errstate(over="ignore", invalid="ignore"):  # not finite: takes the fallback
            values = np.ascontiguousarray(queries, np.float32)
            if self._unit:
                norms = np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64))
                values = (values / np.where(norms > 0, norms, 1)[:, None]).astype(np.float32)
        scores, rows = np.empty((len(values), self._k)), np.empty((len(values), self._k), np.int64)
        if self._search(values, self._nprobe, scores, rows, self._threads) < 0:
            scores, rows = self._fallback(queries)
        with np.errstate(over="ignore"):
            return scores.astype(np.float32), rows
