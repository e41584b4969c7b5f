"""HNSW on the CPU: a graph in `native/search/graph.hpp` beside the vectors, which a Flat engine stores.

The graph finds rows by a walk; the stored vectors decide among them in float64. Whatever the graph cannot do well is
an exact search of the Flat engine: radius searches, filters that few rows pass or that no row near the query passes,
values that float32 cannot sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ridgeline.errors import StoreError
from ridgeline.search.arrays import Array, Doubles, Floats, Integers, count_threads
from ridgeline.search.engine import Engine, EngineConfig, SearchOptions
from ridgeline.search.flat import FlatRows
from ridgeline.search.inputs import as_matrix, compute_finite_norms
from ridgeline.search.inverted_lists import InvertedLists
from ridgeline.search.metric import TOO_LARGE, normalize

if TYPE_CHECKING:
    from ridgeline.native import Graph

BUILD_EFFORT = 100  # rows that a walk keeps while it builds (efConstruction)
SCANNED_PER_RESULT = 6  # an exact search of this many rows takes as long as a walk that keeps one row more
LONGEST = 1e15  # the codes of longer rows would not be finite


class FlatEngine(Engine, Protocol):
    """The engine of the CPU with spec Flat."""

    @property
    def row_scorer(self) -> FlatRows | InvertedLists: ...
    def append(self, vectors: Floats) -> FlatEngine: ...
    def select_rows(self, rows: Integers) -> FlatEngine: ...
    def vectors(self, rows: Integers) -> Floats: ...


@dataclass(frozen=True)
class GraphEngine:
    """Vectors and a graph of them. The graph grows in place; an older engine ignores rows that it does not have."""

    config: EngineConfig
    flat: FlatEngine
    graph: Graph

    @property
    def count(self) -> int:
        return self.flat.count

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays().values())

    def append(self, vectors: Floats) -> GraphEngine:
        flat, graph = self.flat.append(vectors), self.graph
        if graph.count > self.count:  # rows of an `add` that was undone
            graph = graph.select(np.arange(self.count), count_threads())
        if flat.count:
            graph.add(_get_values(flat), count_threads())
        return replace(self, flat=flat, graph=graph)

    def select_rows(self, rows: Integers) -> GraphEngine:
        graph = self.graph.select(np.ascontiguousarray(rows, np.int64), count_threads())
        return replace(self, flat=self.flat.select_rows(rows), graph=graph)

    def search(self, queries: Floats, options: SearchOptions) -> tuple[Doubles, Integers]:
        usable = self.count if options.allowed is None else int(np.count_nonzero(options.allowed))
        count_to_keep = max(options.k, options.nprobe)
        effort = count_to_keep if options.allowed is None else -(-count_to_keep * self.count // max(1, usable))
        if not self._can_walk(usable, effort):
            return self.flat.search(queries, options)
        scores, rows = np.empty((len(queries), options.k)), np.empty((len(queries), options.k), np.int64)
        least = 0 if options.allowed is None else max(options.k, count_to_keep // 2)
        missing = self._walk(queries, options, effort, scores, rows, least=least)
        if missing < 0:
            return self.flat.search(queries, options)
        if missing:
            short = np.flatnonzero(rows[:, -1] < 0)
            scores[short], rows[short] = self.flat.search(queries[short], options)
        return scores, rows

    def get_fast_path(self, queries: Floats, options: SearchOptions) -> WalkSearch | None:
        """Return a faster search for the next queries of this shape, or None."""
        count_to_keep = max(options.k, options.nprobe)
        if options.allowed is not None or not len(queries) or not self._can_walk(self.count, count_to_keep):
            return None
        return WalkSearch(self, options)

    def search_radius(
        self, queries: Floats, radius: float, options: SearchOptions
    ) -> tuple[Integers, Doubles, Integers]:
        return self.flat.search_radius(queries, radius, options)

    def vectors(self, rows: Integers) -> Floats:
        return self.flat.vectors(rows)

    def arrays(self) -> Mapping[str, Array]:
        graph = self.graph
        if graph.count > self.count:
            graph = graph.select(np.arange(self.count), count_threads())
        return {**self.flat.arrays(), **graph.arrays()}

    def _can_walk(self, usable: int, effort: int) -> bool:
        return usable > SCANNED_PER_RESULT * effort and self.flat.row_scorer.longest < LONGEST

    def _walk(
        self,
        queries: Floats,
        options: SearchOptions,
        effort: int,
        scores: Doubles,
        rows: Integers,
        *,
        least: int = 0,
    ) -> int:
        return self.graph.search(
            queries,
            _get_values(self.flat),
            effort,
            self.flat.row_scorer.longest,
            TOO_LARGE,
            scores,
            rows,
            False,
            options.allowed,
            options.ids,
            options.own_rows,
            least,
            count_threads() if len(queries) > 1 else 1,
        )


class WalkSearch:
    """Repeated searches without a filter: queries of the caller go to the native walk directly.

    A walk of one query takes about 60 µs, so each µs here counts: arguments that do not change are bound once.
    """

    checks_queries = True  # a query that is not finite raises here

    def __init__(self, engine: GraphEngine, options: SearchOptions) -> None:
        self._engine, self._options, self._k = engine, options, options.k
        self._unit = engine.config.metric == "cosine"
        self._distances = engine.config.metric == "l2"
        values, longest = _get_values(engine.flat), engine.flat.row_scorer.longest
        self._before = (values, max(options.k, options.nprobe), longest, TOO_LARGE)
        self._after = (self._unit, None, options.ids, None, 0)
        self._threads = count_threads()
        self._search: Any = engine.graph.search

    def search_on_host(self, queries: Any) -> tuple[Floats, Integers]:
        """(scores float32 [q, k], rows [q, k]) of queries [q, d]."""
        count = len(queries)
        scores, rows = np.empty((count, self._k)), np.empty((count, self._k), np.int64)
        values = queries
        if queries.dtype != np.float32 or not queries.flags.c_contiguous:
            with np.errstate(over="ignore"):  # overflow is not finite and takes the exact search
                values = np.ascontiguousarray(queries, np.float32)
        threads = self._threads if count > 1 else 1
        if self._search(values, *self._before, scores, rows, *self._after, threads):
            engine = self._engine
            values = as_matrix(queries, engine.config.dim, "queries")
            norms = compute_finite_norms(values, "queries")
            scores, rows = engine.search(normalize(values, norms) if self._unit else values, self._options)
        elif not self._distances:
            return scores.astype(np.float32), rows  # products are below TOO_LARGE, so they do not overflow
        with np.errstate(over="ignore"):
            return scores.astype(np.float32), rows


def make_graph(config: EngineConfig, arrays: Mapping[str, Array] | None = None) -> Graph:
    """Return an empty graph, or one from the arrays of a saved index."""
    from ridgeline.native import Graph

    links = config.spec.links or 0
    graph = Graph(config.dim, links, max(BUILD_EFFORT, 2 * links), config.metric == "l2", config.metric == "cosine")
    if arrays is not None and len(arrays["graph_levels"]):
        try:
            graph.restore(
                arrays["graph_centre"],
                arrays["graph_codes"],
                arrays["graph_links"],
                arrays["graph_levels"],
                arrays["graph_upper"],
                arrays.get("graph_nodes", np.empty(0, np.uint32)),  # an older index has none
                int(arrays["graph_entry"][0]),
            )
        except ValueError as error:
            raise StoreError(f"the saved index is damaged: {error}; build it again.") from None
    return graph


def _get_values(flat: FlatEngine) -> Floats:
    values = flat.row_scorer.values.as_float32()
    if values is None:
        raise StoreError("HNSW keeps float32 values, and these are not; build the index again.")
    return values
