"""One index over several devices: each holds a share of the rows, searches it, and the answers are merged.

The merge is exact: shards hand over float64 scores (a GPU's: float32), and the best k of all shards are the best k of
the best k of each. Approximate specs are trained on the same vectors with the same seed everywhere, so every shard
has the same lists.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np

from ridgeline.errors import InputError
from ridgeline.search.arrays import Whole
from ridgeline.search.index import Index
from ridgeline.search.inputs import is_tensor, matrix, numbers
from ridgeline.search.rows import no_rows, table_of


class ShardedIndex:
    """`Index.sharded(["cuda:0", "cuda:1"], "Flat")`: the calls of an Index, over several."""

    def __init__(self, devices: Sequence[str], spec: str = "Flat", **settings: Any) -> None:
        if isinstance(devices, str) or not len(devices):
            raise InputError(f"devices is {devices!r}; give a list of them, like ['cuda:0', 'cuda:1'].")
        if "device" in settings:
            raise InputError("an index over several devices takes devices=, not device=.")
        self.shards = [Index(spec, device=device, **settings) for device in devices]
        self.metric = self.shards[0].metric
        self._lock = threading.Lock()
        self._state = tuple(shard._state for shard in self.shards)
        self._known = no_rows()  # all ids in the order they came: masks go by it, and no id is given twice
        self._pool = ThreadPoolExecutor(len(self.shards), "ridgeline-shard")

    def __len__(self) -> int:
        return sum(state.rows.live for state in self._state)

    @property
    def dim(self) -> int | None:
        return next((shard.dim for shard in self.shards if shard.dim is not None), None)

    @property
    def ids(self) -> Whole:
        return self._known.ids.rows[self._known.live_rows].copy()

    def train(self, vectors: Any, *, seed: int = 0) -> None:
        with self._changing():
            for shard in self.shards:
                shard.train(vectors, seed=seed)

    def add(self, vectors: Any, ids: Any = None, meta: Any = None) -> None:
        """Rows are dealt out in equal runs; searches see all of them or none."""
        with self._changing():
            values = vectors if is_tensor(vectors) else matrix(vectors, self.dim, "vectors")
            self.shards[0]._place.take_in(
                values, self.dim, self.metric, "vectors"
            )  # refused while rows have their numbers
            table = None if meta is None else table_of(meta, len(values))
            known = self._known.added(len(values), ids, None)
            fresh = known.ids.rows[self._known.count :]
            bounds = np.linspace(0, len(values), len(self.shards) + 1).astype(int)
            for shard, low, high in zip(self.shards, bounds[:-1], bounds[1:], strict=True):
                part = None if table is None else table.slice(low, high - low)
                try:
                    shard.add(values[low:high], fresh[low:high], part)
                except InputError as error:
                    raise InputError(f"of rows {low} to {high - 1}, counted from {low}: {error}") from None
            self._known = known

    def remove(self, ids: Any) -> int:
        with self._changing():
            wanted = np.unique(numbers(ids))
            rows = self._known.found(wanted, "remove only")
            for shard in self.shards:
                shard.remove(wanted[shard._state.rows.find(wanted) >= 0])
            self._known = self._known.removed(rows)
            return len(rows)

    def search(
        self,
        queries: Any,
        k: int,
        *,
        nprobe: int | None = None,
        depth: int | None = None,
        recall: float | None = None,
        where: Any = None,
    ) -> tuple[Any, Any]:
        """As Index.search; equal scores go by id, whichever shard they come from."""
        where = self._by_id(where)
        states = self._state

        def one(number: int) -> tuple[Any, Any]:
            found = self.shards[number]._search(states[number], queries, k, nprobe, depth, recall, where)
            return _host(found[0]), _host(found[1])

        parts = list(self._pool.map(one, range(len(self.shards))))
        scores = np.concatenate([s for s, _ in parts], 1).astype(np.float64)
        ids = np.concatenate([i for _, i in parts], 1)
        keys = scores if self.metric == "l2" else -scores
        # What is not there comes last, whatever its id says.
        order = np.lexsort((np.where(ids < 0, np.iinfo(np.int64).max, ids), keys), axis=1)[:, :k]
        place = self.shards[0]._place
        with np.errstate(over="ignore"):
            best = np.take_along_axis(scores, order, 1).astype(np.float32)
        return place.give_back(best, queries), place.give_back(np.take_along_axis(ids, order, 1), queries)

    def range_search(
        self, queries: Any, radius: float, *, nprobe: int | None = None, where: Any = None
    ) -> tuple[Any, Any, Any]:
        """As Index.range_search, over all shards."""
        where = self._by_id(where)
        both = zip(self.shards, self._state, strict=True)
        parts = [shard._within(state, queries, radius, nprobe, where) for shard, state in both]
        limits, scores, ids = ([_host(part[n]) for part in parts] for n in range(3))
        owner = np.concatenate([np.repeat(np.arange(len(ends) - 1), np.diff(ends)) for ends in limits])
        score, found = np.concatenate(scores), np.concatenate(ids)
        order = np.lexsort((found, score if self.metric == "l2" else -score, owner))
        ends = np.searchsorted(owner[order], np.arange(len(limits[0]))).astype(np.int64)
        back = self.shards[0]._place.give_back
        return back(ends, queries), back(score[order], queries), back(found[order], queries)

    def reconstruct(self, ids: Any) -> Any:
        """float32 [n, dim]: the stored values of these ids, from whichever shards have them."""
        wanted = numbers(ids)
        self._known.found(wanted, "reconstruct only")
        out = np.zeros((len(wanted), self.dim or 0), np.float32)
        for shard in self.shards:
            here = shard._state.rows.find(wanted) >= 0
            if here.any():
                out[here] = _host(shard.reconstruct(wanted[here]))
        return self.shards[0]._place.give_back(out, ids)

    def measure_recall(self, sample: int = 1000, k: int = 10, *, seed: int = 0) -> list[Any]:
        """Each shard on its own rows; the curves, by shard."""
        with self._changing():
            return [shard.measure_recall(sample, k, seed=seed) for shard in self.shards]

    def stats(self) -> dict[str, Any]:
        return {"count": len(self), "shards": [shard.stats() for shard in self.shards]}

    def close(self) -> None:
        """Let go of the threads; safe to call twice."""
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change the shards: searches see all of it when it is done, and none of it, now or later, where it fails."""
        with self._lock:
            try:
                yield
            except BaseException:
                for shard, state in zip(self.shards, self._state, strict=True):
                    shard._state = state
                raise
            self._state = tuple(shard._state for shard in self.shards)

    def _by_id(self, where: Any) -> Any:
        """A mask over all rows means nothing to a shard; ids do."""
        if where is None or isinstance(where, str):
            return where
        values = where.detach().cpu().numpy() if is_tensor(where) else np.asarray(where)
        if values.dtype != np.bool_:
            return values
        ids = self.ids
        if values.shape != ids.shape:
            raise InputError(f"where is a mask of shape {values.shape} for {len(ids)} rows; give one per row.")
        return ids[values]


def _host(values: Any) -> Any:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()
