"""`HybridIndex`: dense and sparse vectors of the same rows in one search, fused by rank or by weights.

>>> import numpy as np
>>> from scipy.sparse import csr_array
>>> from ridgeline.search import Index, SparseIndex
>>> dense, sparse = Index("Flat", metric="ip", device="cpu"), SparseIndex(device="cpu")
>>> dense.add(np.eye(2))
>>> sparse.add(csr_array(np.array([[0.0, 1.0], [2.0, 0.0]])))
>>> index = HybridIndex(dense=dense, sparse=sparse)
>>> query = {"dense": np.array([[1.0, 0.5]]), "sparse": csr_array(np.array([[1.0, 0.0]]))}
>>> index.search(**query, k=2, fuse=(0.5, 0.5))[1].tolist()
[[1, 0]]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.search.arrays import Doubles, Floats, Integers
from ridgeline.search.index import Index
from ridgeline.search.inputs import as_batch, as_ids, is_tensor
from ridgeline.search.rows import make_row_mask
from ridgeline.search.sparse import SparseIndex, SparseSnapshot, as_sparse_rows, find_best, score_rows, select_rows

RANK_CONSTANT = 60  # of reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009)
RANKED = 10  # rows per result that each side ranks, unless a search says otherwise
MIN_RANKED = 100


class HybridIndex:
    """A dense and a sparse index over the same ids.

    Both stay what they are: change them through `add` and `remove` here, or one by one. A row that only one of them has
    takes part with the score of that one.
    """

    def __init__(self, *, dense: Index, sparse: SparseIndex) -> None:
        if not isinstance(dense, Index) or not isinstance(sparse, SparseIndex):
            raise InputError(
                f"HybridIndex takes dense=Index and sparse=SparseIndex, not {type(dense).__name__} and "
                f"{type(sparse).__name__}."
            )
        self.dense, self.sparse = dense, sparse

    def __len__(self) -> int:
        """The number of rows that both have."""
        return len(np.intersect1d(self.dense.ids, self.sparse.ids))

    def add(self, *, dense: Any, sparse: Any, ids: Any = None, meta: Any = None) -> None:
        """Add rows to both indexes, with the same ids, or to neither; `meta` goes to the dense one."""
        count = len(as_sparse_rows(sparse, self.sparse.dim, "sparse vectors")[2]) - 1
        if len(dense) != count:
            raise InputError(f"{len(dense)} dense and {count} sparse vectors; give one of each for every row.")
        if ids is None:
            first = max(self.dense._snapshot.rows.next_id, self.sparse._snapshot.rows.next_id)
            ids = np.arange(first, first + count)
        self.sparse.add(sparse, ids=ids)
        try:
            self.dense.add(dense, ids=ids, meta=meta)
        except BaseException:
            self.sparse.remove(ids)
            raise

    def remove(self, ids: Any) -> int:
        """Remove rows from both indexes and return their number. An id that neither has is an InputError."""
        removed_ids = np.unique(as_ids(ids))
        dense, sparse = np.isin(removed_ids, self.dense.ids), np.isin(removed_ids, self.sparse.ids)
        missing = removed_ids[~(dense | sparse)]
        if len(missing):
            raise InputError(f"id {missing[0]} is not in the index; remove only ids that were added.")
        self.dense.remove(removed_ids[dense])
        self.sparse.remove(removed_ids[sparse])
        return len(removed_ids)

    def search(
        self,
        *,
        dense: Any,
        sparse: Any,
        k: int,
        where: Any = None,
        fuse: str | tuple[float, float] = "rank",
        ranked: int | None = None,
        **settings: Any,
    ) -> tuple[Floats, Integers]:
        """Return (scores float32 [q, k], ids int64 [q, k]), best first, equal scores by id; missing ids are −1.

        dense, sparse  queries of both kinds, as many of each
        where          a condition over the columns of the dense index (or of the sparse one), or ids
        fuse           "rank": the sum of 1/(60 + rank) over both, among the best `ranked` of each; sparse ranks only
                       rows that share a term with the query
                       (w_dense, w_sparse): w_dense · dense score + w_sparse · sparse score, of all rows: exact if the
                       dense index is. For l2 the dense score is the negative distance.
        ranked         for "rank"; by default 10 · k, 100 or more
        settings       nprobe, depth or recall of the dense search
        """
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InputError(f"k is {k!r}; ask for 1 row or more.")
        queries = as_batch(dense.detach().cpu().numpy() if is_tensor(dense) else dense)
        sparse_queries = as_sparse_rows(sparse, self.sparse.dim, "sparse queries")
        if len(queries) != len(sparse_queries[2]) - 1:
            raise InputError(f"{len(queries)} dense and {len(sparse_queries[2]) - 1} sparse queries; give one of each.")
        allowed = self._find_allowed(where)
        snapshot = self.sparse._snapshot
        mask = snapshot.rows.alive if allowed is None else _mask_rows(snapshot, allowed)
        sparse_scores = score_rows(snapshot, sparse_queries)
        scores, ids = np.full((len(queries), int(k)), -np.inf), np.full((len(queries), int(k)), -1, np.int64)
        if not len(queries):
            return scores.astype(np.float32), ids
        if fuse == "rank":
            count = max(RANKED * int(k), MIN_RANKED) if ranked is None else max(int(ranked), int(k))
            count = max(1, min(count, max(len(self.dense), len(self.sparse))))
            nearest = self.dense.search(queries, count, where=allowed, **settings)[1]
            for number, (values, matches) in enumerate(sparse_scores):
                best = find_best(values, select_rows(mask, matches), count, snapshot.rows)
                _fuse_ranks(
                    [nearest[number][nearest[number] >= 0], snapshot.rows.ids.rows[best]], scores[number], ids[number]
                )
        else:
            weights, differ = _check_weights(fuse), self._ids_differ
            for number, (values, _) in enumerate(sparse_scores):
                best_scores, best_ids = self._fuse_scores(
                    queries[number : number + 1], values, snapshot, mask, allowed, int(k), weights, differ, settings
                )
                scores[number, : len(best_ids)], ids[number, : len(best_ids)] = best_scores, best_ids
        return scores.astype(np.float32), ids

    def _fuse_scores(
        self,
        query: Floats,
        values: Doubles,
        snapshot: SparseSnapshot,
        mask: Any,
        allowed: Integers | None,
        k: int,
        weights: tuple[float, float],
        differ: bool,
        settings: dict[str, Any],
    ) -> tuple[Doubles, Integers]:
        """The threshold algorithm (Fagin, Lotem and Naor): rank ever more rows of both until no other can be better."""
        w_dense, w_sparse = weights
        total = max(len(self.dense), len(self.sparse))
        count = max(4 * k, MIN_RANKED)
        while True:
            near_scores, nearest = (part[0] for part in self.dense.search(query, count, where=allowed, **settings))
            nearest, near_scores = nearest[nearest >= 0], near_scores[nearest >= 0].astype(np.float64)
            signed = -near_scores if self.dense.metric == "l2" else near_scores
            best = find_best(values, None if mask is None else mask != 0, count, snapshot.rows)
            candidates = np.union1d(nearest, snapshot.rows.ids.rows[best])
            fused = w_dense * self._score_dense(query, candidates, nearest, signed)
            rows = snapshot.rows.find(candidates)
            fused += w_sparse * np.where(rows >= 0, values[np.maximum(rows, 0)] if len(values) else 0.0, 0.0)
            order = np.lexsort((candidates, -fused))[:k]
            if count >= total or (len(nearest) < count and len(best) < count):
                return fused[order], candidates[order]
            # A row that neither side has ranked so far scores at most this; one that only one side has counts 0 there.
            least = 0.0 if differ else -np.inf
            dense_bound = max(float(signed[-1]) if len(nearest) >= count else -np.inf, least)
            sparse_bound = max(float(values[best[-1]]) if len(best) >= count else 0.0, least)
            bound = (w_dense * dense_bound if w_dense else 0.0) + (w_sparse * sparse_bound if w_sparse else 0.0)
            if len(order) >= k and fused[order[-1]] > bound:
                return fused[order], candidates[order]
            count *= 4

    def _score_dense(self, query: Floats, candidates: Integers, nearest: Integers, signed: Doubles) -> Doubles:
        """The dense scores of some ids: those of the search, and the others from the stored values; 0 if missing."""
        out = np.zeros(len(candidates))
        known = np.isin(candidates, nearest)
        order = np.argsort(nearest)
        out[known] = signed[order][np.searchsorted(nearest[order], candidates[known])]
        rest = np.flatnonzero(~known)
        rest = rest[self.dense._snapshot.rows.find(candidates[rest]) >= 0]
        if len(rest):
            stored = np.asarray(self.dense.reconstruct(candidates[rest]), np.float64)
            exact = np.asarray(query[0], np.float64)
            if self.dense.metric == "cosine":
                length = np.linalg.norm(exact)
                exact = exact / length if length > 0 else exact
            out[rest] = -((stored - exact) ** 2).sum(1) if self.dense.metric == "l2" else stored @ exact
        return out

    @property
    def _ids_differ(self) -> bool:
        one, other = self.dense.ids, self.sparse.ids
        return len(one) != len(other) or not np.array_equal(np.sort(one), np.sort(other))

    def _find_allowed(self, where: Any) -> Integers | None:
        """The ids that a condition allows; None: all."""
        if where is None:
            return None
        values = where.detach().cpu().numpy() if is_tensor(where) else where
        if not isinstance(values, str) and np.asarray(values).dtype != np.bool_:
            return as_ids(values, "ids of where")
        rows = self.dense._snapshot.rows
        if isinstance(values, str) and rows.meta is None and self.sparse.meta is not None:
            rows = self.sparse._snapshot.rows
        mask = make_row_mask(rows, values)
        return rows.ids.rows[mask != 0] if mask is not None else None

    def __repr__(self) -> str:
        return f"HybridIndex(dense={self.dense!r}, sparse={self.sparse!r})"


def _mask_rows(snapshot: SparseSnapshot, allowed: Integers) -> Any:
    return make_row_mask(snapshot.rows, allowed)


def _fuse_ranks(rankings: list[Integers], scores: Doubles, ids: Integers) -> None:
    """Write the best ids of several rankings by the sum of 1/(60 + rank)."""
    names, place = np.unique(np.concatenate(rankings), return_inverse=True)
    parts = np.concatenate([1 / (RANK_CONSTANT + 1 + np.arange(len(ranking))) for ranking in rankings])
    fused = np.bincount(place, parts, len(names))
    order = np.lexsort((names, -fused))[: len(ids)]
    scores[: len(order)], ids[: len(order)] = fused[order], names[order]


def _check_weights(fuse: Any) -> tuple[float, float]:
    try:
        w_dense, w_sparse = (float(weight) for weight in fuse)
    except (TypeError, ValueError):
        raise InputError(f"fuse is {fuse!r}; give 'rank' or two weights: (dense, sparse).") from None
    if isinstance(fuse, str) or not (np.isfinite([w_dense, w_sparse]).all() and w_dense >= 0 and w_sparse >= 0):
        raise InputError(f"fuse is {fuse!r}; give 'rank' or two weights of 0 or more: (dense, sparse).")
    if w_dense == w_sparse == 0:
        raise InputError("fuse is (0, 0), which ranks nothing; give a weight above 0.")
    return w_dense, w_sparse
