"""Rank rows from blocks of scores: the exact k best, or all rows within a radius.

`flat.py` and `inverted_lists.py` compute the blocks of float32 scores. Here each block is reduced to candidates, which
are scored again in float64 and ranked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ridgeline.native import TopCandidates, rescore
from ridgeline.search.arrays import Array, Doubles, Flags, Floats, Integers, count_threads
from ridgeline.search.codecs import Codec
from ridgeline.search.metric import compute_norms

MAX_DECODED = 1 << 17  # candidates decoded at a time
MAX_QUERIES = 1024  # at a time, which bounds the memory for tables and candidates


@dataclass(frozen=True)
class Block:
    """float32 scores of some queries with some rows; high is near (metric.py)."""

    scores: Floats  # [queries, columns]
    first: int = 0  # row of column 0 if columns are consecutive rows
    rows: Integers | None = None  # [columns] if they are not
    query_ids: Integers | None = None  # [queries]; None: all, in order
    offsets: Floats | None = None  # [queries] to add
    biases: Floats | None = None  # [columns] to add


class Scorer(Protocol):
    """Rows that can be scored in blocks."""

    @property
    def count(self) -> int: ...
    def blocks(self, queries: Floats, nprobe: int, allowed: Flags | None) -> Iterator[Block]: ...
    def probe_one_query(self, selector: TopCandidates, query: Floats, nprobe: int, allowed: Flags | None) -> bool:
        """Score one query [1, d] directly into the selector; return False, without effect, if blocks are as fast."""

    def slack(self, queries: Floats) -> Doubles:
        """[queries] twice the largest error of a float32 score; infinite if float32 cannot hold the scores."""


class StoredValues(Protocol):
    """Rows whose stored values can be read."""

    def as_float32(self) -> Floats | None:
        """float32 [count, d] if the values are stored so, else None."""

    def locate_rows(self, rows: Integers) -> tuple[Floats, Integers] | None:
        """(float32 [n, d], positions of the rows in it) if the values are stored so, else None."""

    def decode_rows(self, rows: Integers) -> Floats: ...


def find_candidates(
    scorer: Scorer, queries: Floats, slack: Doubles, k: int, nprobe: int, allowed: Flags | None
) -> tuple[Integers, Integers]:
    """(offsets [q + 1], rows): for each query all rows that can be in its exact top k, in no order."""
    if not np.isfinite(slack).all():
        return list_all_rows(len(queries), scorer.count, allowed)
    selector = TopCandidates(min(k, max(1, scorer.count)), slack)
    if len(queries) == 1 and scorer.probe_one_query(selector, queries, nprobe, allowed):
        return selector.candidates()
    thread_count = count_threads()
    for block in scorer.blocks(queries, nprobe, allowed):
        selector.add_scores(
            block.scores,
            block.query_ids,
            block.offsets,
            block.biases,
            block.first,
            block.rows,
            allowed,
            threads=thread_count,
        )
    return selector.candidates()


def find_candidates_within(
    scorer: Scorer, queries: Floats, slack: Doubles, min_scores: Doubles, nprobe: int, allowed: Flags | None
) -> tuple[Integers, Integers]:
    """Like `find_candidates`, for all rows whose score can reach `min_scores` [q]."""
    if not np.isfinite(slack).all():
        return list_all_rows(len(queries), scorer.count, allowed)
    threshold = np.nextafter((min_scores - slack).astype(np.float32), np.float32(-np.inf))
    parts: list[tuple[Integers, Integers]] = []
    for block in scorer.blocks(queries, nprobe, allowed):
        scores = block.scores
        if block.offsets is not None:
            scores = scores + block.offsets[:, None]
        if block.biases is not None:
            scores = scores + block.biases
        query_numbers = np.arange(len(scores)) if block.query_ids is None else block.query_ids
        query, column = np.nonzero(scores >= threshold[query_numbers, None])
        rows = column + block.first if block.rows is None else block.rows[column]
        if allowed is not None:
            mask = allowed[rows] != 0
            query, rows = query[mask], rows[mask]
        parts.append((query_numbers[query], rows))
    query_ids = np.concatenate([q for q, _ in parts] or [np.zeros(0, np.int64)])
    rows = np.concatenate([r for _, r in parts] or [np.zeros(0, np.int64)])
    order = np.argsort(query_ids, kind="stable")
    offsets = np.searchsorted(query_ids[order], np.arange(len(queries) + 1)).astype(np.int64)
    return offsets, np.ascontiguousarray(rows[order], np.int64)


def rescore_candidates(
    values: StoredValues, queries: Floats, offsets: Integers, rows: Integers, squared: bool
) -> Doubles:
    """Return the inner products or squared distances of the candidates with the stored values, in float64."""
    out = np.empty(len(rows))
    location, thread_count = values.locate_rows(rows), count_threads()
    if location is not None:
        rescore(queries, location[0], offsets, location[1], out, squared, threads=thread_count)
        return out
    begin = 0
    while begin < len(queries):
        limit = int(np.searchsorted(offsets, offsets[begin] + MAX_DECODED, "right")) - 1
        end = min(len(queries), max(begin + 1, limit))
        low, high = offsets[begin], offsets[end]
        for start in range(low, high, MAX_DECODED) if end == begin + 1 else (low,):
            stop = min(high, start + MAX_DECODED) if end == begin + 1 else high
            if end == begin + 1:  # one query has no row twice
                unique_rows, positions = rows[start:stop], np.arange(stop - start)
            else:
                unique_rows, positions = np.unique(rows[start:stop], return_inverse=True)
            ends = np.clip(offsets[begin : end + 1], start, stop) - start
            rescore(
                queries[begin:end],
                values.decode_rows(unique_rows),
                ends,
                positions.astype(np.int64),
                out[start:stop],
                squared,
                thread_count,
            )
        begin = end
    return out


def rank_candidates(
    offsets: Integers, rows: Integers, scores: Doubles, k: int, squared: bool, ids: Array | None
) -> tuple[Doubles, Integers]:
    """(scores [q, k], rows [q, k]): the best k of each query, equal scores by id; missing results are ∓∞ and −1."""
    queries = len(offsets) - 1
    if queries == 1:
        return _rank_one_query(rows, scores, k, squared, ids)
    order, query_ids, position = _order_candidates(offsets, rows, scores, squared, ids)
    best_scores = np.full((queries, k), np.inf if squared else -np.inf)
    best_rows = np.full((queries, k), -1, np.int64)
    mask = position < k
    chosen = order[mask]
    best_scores[query_ids[mask], position[mask]] = scores[chosen]
    best_rows[query_ids[mask], position[mask]] = rows[chosen]
    return best_scores, best_rows


def _rank_one_query(
    rows: Integers, scores: Doubles, k: int, squared: bool, ids: Array | None
) -> tuple[Doubles, Integers]:
    """`rank_candidates` for one query."""
    order = np.lexsort((rows if ids is None else ids[rows], scores if squared else -scores))[:k]
    best_scores, best_rows = np.full((1, k), np.inf if squared else -np.inf), np.full((1, k), -1, np.int64)
    best_scores[0, : len(order)] = scores[order]
    best_rows[0, : len(order)] = rows[order]
    return best_scores, best_rows


def select_within_radius(
    offsets: Integers, rows: Integers, scores: Doubles, radius: float, squared: bool, ids: Array | None
) -> tuple[Integers, Doubles, Integers]:
    """(limits [q + 1], scores, rows): the rows of each query that are nearer than `radius`, in order."""
    order, query_ids, _ = _order_candidates(offsets, rows, scores, squared, ids)
    mask = scores[order] < radius if squared else scores[order] > radius
    limits = np.searchsorted(query_ids[mask], np.arange(len(offsets))).astype(np.int64)
    chosen = order[mask]
    return limits, scores[chosen], rows[chosen]


def bound_products(queries: Floats, longest: float, bias: float) -> Doubles:
    """Return an upper bound of Σ|qᵢxᵢ| + |bias| for each query, over rows no longer than `longest`."""
    return compute_norms(queries) * longest + bias


@dataclass(frozen=True)
class CodeValues:
    """The stored values of codes in the order of the rows."""

    codec: Codec
    codes: Array

    def as_float32(self) -> Floats | None:
        is_plain = self.codec.name == "Flat" and self.codes.dtype == np.float32 and self.codes.flags.c_contiguous
        return self.codes if is_plain else None

    def locate_rows(self, rows: Integers) -> tuple[Floats, Integers] | None:
        values = self.as_float32()
        return None if values is None else (values, rows)

    def decode_rows(self, rows: Integers) -> Floats:
        return np.ascontiguousarray(self.codec.decode(self.codes[rows]))


def _order_candidates(
    offsets: Integers, rows: Integers, scores: Doubles, squared: bool, ids: Array | None
) -> tuple[Integers, Integers, Integers]:
    """Return an order of the candidates, and in that order the query of each and its rank in the query."""
    counts = np.diff(offsets)
    query_ids = np.repeat(np.arange(len(counts)), counts)
    tie = rows if ids is None else ids[rows]
    order = np.lexsort((tie, scores if squared else -scores, query_ids))
    return order, query_ids, np.arange(len(rows)) - np.repeat(offsets[:-1], counts)


def list_all_rows(queries: int, count: int, allowed: Flags | None) -> tuple[Integers, Integers]:
    """Every row for every query, for values that float32 cannot sum."""
    rows = np.arange(count) if allowed is None else np.flatnonzero(allowed)
    return np.arange(queries + 1) * len(rows), np.tile(rows, queries)
