"""Scores block by block, and what is made of them: the exact best, or all that are near enough.

A family of engines (scan.py, lists.py) says only how blocks of scores come about; ranking is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ridgeline.native import TopCandidates, rescore
from ridgeline.search.arrays import Array, Flags, Floats, Whole, Wide, threads
from ridgeline.search.codecs import Codec
from ridgeline.search.metric import norms

GATHERED = 1 << 17  # candidates decoded at a time
QUERIES = 1024  # searched at a time: what a query holds meanwhile (tables, candidates) is bounded by this


@dataclass(frozen=True)
class Block:
    """float32 scores of some queries with some rows; high is near (metric.py)."""

    scores: Floats  # [queries, columns]
    first: int = 0  # row of column 0, where columns are consecutive rows
    rows: Whole | None = None  # [columns] otherwise
    which: Whole | None = None  # [queries] which they are; None: all, in order
    offsets: Floats | None = None  # [queries] to be added
    biases: Floats | None = None  # [columns] to be added


class Family(Protocol):
    """Rows that can be scored in blocks."""

    @property
    def count(self) -> int: ...
    def blocks(self, queries: Floats, nprobe: int, allowed: Flags | None) -> Iterator[Block]: ...
    def probe(self, sieve: TopCandidates, query: Floats, nprobe: int, allowed: Flags | None) -> bool:
        """The same for one query [1, d], straight into the sieve; False, and nothing done, where blocks do as well."""

    def slack(self, queries: Floats) -> Wide:
        """[queries] twice the largest error of a score; infinite where float32 will not do."""


class Values(Protocol):
    """Rows whose stored values can be had."""

    def plain(self) -> Floats | None:
        """float32 [count, d], where they are kept so."""

    def stored(self, rows: Whole) -> tuple[Floats, Whole] | None:
        """(float32 [n, d], where in it those rows are), where values are kept so."""

    def decoded(self, rows: Whole) -> Floats: ...


def candidates(
    family: Family, queries: Floats, slack: Wide, k: int, nprobe: int, allowed: Flags | None
) -> tuple[Whole, Whole]:
    """(offsets [q + 1], rows): for each query every row that may belong to its exact top k, in no order."""
    if not np.isfinite(slack).all():
        return _everything(len(queries), family.count, allowed)
    sieve = TopCandidates(min(k, max(1, family.count)), slack)
    if len(queries) == 1 and family.probe(sieve, queries, nprobe, allowed):
        return sieve.candidates()
    crew = threads()
    for block in family.blocks(queries, nprobe, allowed):
        sieve.add_scores(
            block.scores, block.which, block.offsets, block.biases, block.first, block.rows, allowed, threads=crew
        )
    return sieve.candidates()


def candidates_within(
    family: Family, queries: Floats, slack: Wide, least: Wide, nprobe: int, allowed: Flags | None
) -> tuple[Whole, Whole]:
    """The same for every row whose score may reach `least` [q]."""
    if not np.isfinite(slack).all():
        return _everything(len(queries), family.count, allowed)
    bar = np.nextafter((least - slack).astype(np.float32), np.float32(-np.inf))
    found: list[tuple[Whole, Whole]] = []
    for block in family.blocks(queries, nprobe, allowed):
        scores = block.scores
        if block.offsets is not None:
            scores = scores + block.offsets[:, None]
        if block.biases is not None:
            scores = scores + block.biases
        numbers = np.arange(len(scores)) if block.which is None else block.which
        query, column = np.nonzero(scores >= bar[numbers, None])
        rows = column + block.first if block.rows is None else block.rows[column]
        if allowed is not None:
            kept = allowed[rows] != 0
            query, rows = query[kept], rows[kept]
        found.append((numbers[query], rows))
    which = np.concatenate([q for q, _ in found] or [np.zeros(0, np.int64)])
    rows = np.concatenate([r for _, r in found] or [np.zeros(0, np.int64)])
    order = np.argsort(which, kind="stable")
    offsets = np.searchsorted(which[order], np.arange(len(queries) + 1)).astype(np.int64)
    return offsets, np.ascontiguousarray(rows[order], np.int64)


def rescored(values: Values, queries: Floats, offsets: Whole, rows: Whole, squared: bool) -> Wide:
    """Inner products or squared distances of the candidates with the stored values, in float64."""
    out = np.empty(len(rows))
    stored, crew = values.stored(rows), threads()
    if stored is not None:
        rescore(queries, stored[0], offsets, stored[1], out, squared, threads=crew)
        return out
    begin = 0
    while begin < len(queries):
        limit = int(np.searchsorted(offsets, offsets[begin] + GATHERED, "right")) - 1
        end = min(len(queries), max(begin + 1, limit))
        low, high = offsets[begin], offsets[end]
        for at in range(low, high, GATHERED) if end == begin + 1 else (low,):
            top = min(high, at + GATHERED) if end == begin + 1 else high
            if end == begin + 1:  # one query has no row twice
                there, where = rows[at:top], np.arange(top - at)
            else:
                there, where = np.unique(rows[at:top], return_inverse=True)
            ends = np.clip(offsets[begin : end + 1], at, top) - at
            rescore(queries[begin:end], values.decoded(there), ends, where.astype(np.int64), out[at:top], squared, crew)
        begin = end
    return out


def ranked(offsets: Whole, rows: Whole, scores: Wide, k: int, squared: bool, ids: Array | None) -> tuple[Wide, Whole]:
    """(scores [q, k], rows [q, k]): each query's best k, equal scores by id; where none is left, ∓∞ and −1."""
    queries = len(offsets) - 1
    if queries == 1:
        return _best(rows, scores, k, squared, ids)
    order, owner, position = _ordered(offsets, rows, scores, squared, ids)
    best = np.full((queries, k), np.inf if squared else -np.inf)
    found = np.full((queries, k), -1, np.int64)
    kept = position < k
    chosen = order[kept]
    best[owner[kept], position[kept]] = scores[chosen]
    found[owner[kept], position[kept]] = rows[chosen]
    return best, found


def _best(rows: Whole, scores: Wide, k: int, squared: bool, ids: Array | None) -> tuple[Wide, Whole]:
    """`ranked` of one query."""
    order = np.lexsort((rows if ids is None else ids[rows], scores if squared else -scores))[:k]
    best, found = np.full((1, k), np.inf if squared else -np.inf), np.full((1, k), -1, np.int64)
    best[0, : len(order)] = scores[order]
    found[0, : len(order)] = rows[order]
    return best, found


def nearer(
    offsets: Whole, rows: Whole, scores: Wide, radius: float, squared: bool, ids: Array | None
) -> tuple[Whole, Wide, Whole]:
    """(limits [q + 1], scores, rows): each query's rows on the near side of `radius`, in order."""
    order, owner, _ = _ordered(offsets, rows, scores, squared, ids)
    kept = scores[order] < radius if squared else scores[order] > radius
    limits = np.searchsorted(owner[kept], np.arange(len(offsets))).astype(np.int64)
    chosen = order[kept]
    return limits, scores[chosen], rows[chosen]


def reach_of(queries: Floats, longest: float, bias: float) -> Wide:
    """A bound of Σ|qᵢxᵢ| + |bias| for each query, over rows no longer than `longest`."""
    return norms(queries) * longest + bias


@dataclass(frozen=True)
class Decoded:
    """Codes in the order of the rows, as values."""

    codec: Codec
    codes: Array

    def plain(self) -> Floats | None:
        plain = self.codec.name == "Flat" and self.codes.dtype == np.float32 and self.codes.flags.c_contiguous
        return self.codes if plain else None

    def stored(self, rows: Whole) -> tuple[Floats, Whole] | None:
        plain = self.plain()
        return None if plain is None else (plain, rows)

    def decoded(self, rows: Whole) -> Floats:
        return np.ascontiguousarray(self.codec.decode(self.codes[rows]))


def _ordered(offsets: Whole, rows: Whole, scores: Wide, squared: bool, ids: Array | None) -> tuple[Whole, Whole, Whole]:
    """An order of the candidates, and in it the query of each and its place with that query."""
    counts = np.diff(offsets)
    owner = np.repeat(np.arange(len(counts)), counts)
    tie = rows if ids is None else ids[rows]
    order = np.lexsort((tie, scores if squared else -scores, owner))
    return order, owner, np.arange(len(rows)) - np.repeat(offsets[:-1], counts)


def _everything(queries: int, count: int, allowed: Flags | None) -> tuple[Whole, Whole]:
    """Every row for every query: for values that float32 cannot add up."""
    rows = np.arange(count) if allowed is None else np.flatnonzero(allowed)
    return np.arange(queries + 1) * len(rows), np.tile(rows, queries)
