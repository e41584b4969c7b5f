"""True neighbours of a few vectors, for an index whose codes lose precision.

Codes cannot tell which vectors were nearest. So an index with such codes keeps some of its training vectors as queries,
and updates their nearest rows with every `add`, while the vectors are still at hand. `measure_recall` compares with
them. It costs QUERIES products per added vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.search.arrays import Floats, Integers
from ridgeline.search.engine import Backend, EngineConfig, SearchOptions
from ridgeline.search.inputs import is_tensor
from ridgeline.search.rows import Rows
from ridgeline.search.spec import Spec

QUERIES = 128
NEIGHBOURS = 64  # per query; a recall@k with a larger k needs the originals
HELD_OUT_FROM = 20  # times as many training vectors as queries
MIN_QUERIES = 20  # with fewer usable ones, a recall would be chance
BLOCK = 65_536  # rows of one exact search
SMALL_ADD = 256  # rows; for so few, making an engine takes most of the time
SAME = 1e-10  # relative squared distance below which a row is the query itself


@dataclass(frozen=True)
class TruthSample:
    """Queries float32 [q, dim] and the ids and scores of their nearest rows [q, NEIGHBOURS], best first, id −1 if none.

    `query_ids` [q] is the id of the row that is the query itself, or −1; it is not among its neighbours. `complete`
    [q] says that the list holds every row of the index. Otherwise rows may follow that it does not hold.
    """

    queries: Floats
    ids: Integers
    scores: Floats
    query_ids: Integers
    complete: Integers

    def append(self, backend: Backend, metric: str, vectors: Any, ids: Integers) -> TruthSample:
        """Return the sample after an `add` of prepared vectors with these ids."""
        sample = self
        for start in range(0, len(vectors), BLOCK):
            sample = sample._append_block(backend, metric, vectors[start : start + BLOCK], ids[start : start + BLOCK])
        return sample

    def remove(self, ids: Integers) -> TruthSample:
        """Return the sample without these ids: shorter lists, whose entries are still the nearest rows."""
        valid = (self.ids >= 0) & ~np.isin(self.ids, ids)
        order = np.argsort(~valid, axis=1, kind="stable")
        return replace(
            self,
            ids=np.take_along_axis(np.where(valid, self.ids, -1), order, 1),
            scores=np.take_along_axis(self.scores, order, 1),
            query_ids=np.where(np.isin(self.query_ids, ids), -1, self.query_ids),
        )

    def find_neighbours(self, rows: Rows, k: int) -> tuple[Floats, Integers, Integers] | None:
        """Return (queries [q, dim], their rows [q] or −1, the rows of their k nearest [q, k]); None if the sample
        cannot say, for example after the removal of many rows."""
        if k > NEIGHBOURS:
            return None
        usable = np.flatnonzero(((self.ids >= 0).sum(1) >= k) | (self.complete > 0))
        if len(usable) < MIN_QUERIES:
            return None
        ids = self.ids[usable, :k]
        neighbours = np.where(ids >= 0, rows.find(ids.ravel()).reshape(ids.shape), -1)
        return self.queries[usable], rows.find(self.query_ids[usable]), neighbours

    def _append_block(self, backend: Backend, metric: str, vectors: Any, ids: Integers) -> TruthSample:
        # One more, because the query itself may be among them.
        scores, rows = _search_exact(backend, metric, vectors, self.queries, min(NEIGHBOURS + 1, len(vectors)))
        first = _to_numpy(vectors[np.maximum(rows[:, 0], 0)])
        distances = ((first - self.queries) ** 2).sum(1)
        is_query = (self.query_ids < 0) & (rows[:, 0] >= 0) & (distances <= SAME * (self.queries**2).sum(1))
        new_ids = np.where(rows >= 0, ids[np.maximum(rows, 0)], -1)
        query_ids = np.where(is_query, new_ids[:, 0], self.query_ids)
        new_ids[is_query, 0] = -1

        counts = (self.ids >= 0).sum(1)
        all_ids = np.concatenate([self.ids, new_ids], 1)
        all_scores = np.concatenate([self.scores, scores], 1)
        keys = np.where(all_ids >= 0, all_scores if metric == "l2" else -all_scores, np.inf)
        order = np.argsort(keys, axis=1, kind="stable")[:, :NEIGHBOURS]
        # Behind the last known neighbour of an incomplete list, rows are missing, so the list does not grow.
        length = np.where(self.complete > 0, NEIGHBOURS, counts)
        valid = np.arange(order.shape[1])[None] < length[:, None]
        complete = (self.complete > 0) & ((all_ids >= 0).sum(1) <= NEIGHBOURS) & (len(vectors) <= NEIGHBOURS + 1)
        return replace(
            self,
            ids=np.where(valid, np.take_along_axis(all_ids, order, 1), -1),
            scores=np.take_along_axis(all_scores, order, 1),
            query_ids=query_ids,
            complete=complete.astype(np.int64),
        )


def _search_exact(backend: Backend, metric: str, vectors: Any, queries: Floats, k: int) -> tuple[Floats, Integers]:
    """Return (scores, rows) [q, k] of an exact search over prepared vectors."""
    if not is_tensor(vectors) and len(vectors) <= SMALL_ADD:
        products = queries.astype(np.float64) @ vectors.T.astype(np.float64)
        if metric == "l2":
            products = 2 * products - (vectors.astype(np.float64) ** 2).sum(1) - (queries**2.0).sum(1)[:, None]
        rows = np.argsort(-products, axis=1, kind="stable")[:, :k]
        scores = np.take_along_axis(products, rows, 1).astype(np.float32)
        return -scores if metric == "l2" else scores, rows
    if not is_tensor(vectors):
        config = EngineConfig(Spec("Flat"), metric, queries.shape[1], "float32")
        scores, rows = backend.train_engine(config, vectors[:0], 0).append(vectors).search(queries, SearchOptions(k))
        return np.asarray(scores, np.float32), rows
    import torch

    # Plain torch: the search kernels would be compiled for these few queries.
    values, targets = vectors.float(), torch.from_numpy(queries).to(vectors.device)
    keys = targets @ values.T
    if metric == "l2":
        keys = 2 * keys - (values**2).sum(1)[None] - (targets**2).sum(1)[:, None]
    best, rows = keys.topk(k, dim=1)
    return (-best if metric == "l2" else best).cpu().numpy(), rows.cpu().numpy()


def make_truth_sample(vectors: Any, seed: int) -> TruthSample:
    """Choose queries among prepared training vectors [n, dim]."""
    chosen = _choose_rows(len(vectors), seed)
    queries = np.ascontiguousarray(_to_numpy(vectors[chosen]), np.float32)
    count = len(queries)
    return TruthSample(
        queries,
        np.full((count, NEIGHBOURS), -1, np.int64),
        np.zeros((count, NEIGHBOURS), np.float32),
        np.full(count, -1, np.int64),
        np.ones(count, np.int64),
    )


def hold_out_truth_sample(vectors: Any, seed: int, lists: int) -> tuple[Any, TruthSample]:
    """Choose queries among prepared training vectors: (the vectors to train on, the sample).

    Codes are trained on the others: they suit the vectors that they were trained on, which as queries have a higher
    recall than new ones. Few vectors, for the number of lists, are all needed for training.
    """
    sample = make_truth_sample(vectors, seed)
    if len(vectors) < max(HELD_OUT_FROM * QUERIES, lists + QUERIES):
        return vectors, sample
    mask = np.ones(len(vectors), np.bool_)
    mask[_choose_rows(len(vectors), seed)] = False
    if is_tensor(vectors):
        import torch

        return vectors[torch.from_numpy(mask).to(vectors.device)], sample
    return vectors[mask], sample


def needs_truth_sample(spec: Spec) -> bool:
    """Whether the finest codec of the index loses precision."""
    return (spec.refine or spec.codec) != "Flat"


def _choose_rows(count: int, seed: int) -> Integers:
    return np.sort(np.random.default_rng(seed).choice(count, min(QUERIES, count), replace=False))


def _to_numpy(values: Any) -> Any:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()
