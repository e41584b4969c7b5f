"""An engine whose vectors lie on a GPU. Nothing of a search comes to the host, and nothing of it waits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ridgeline.errors import InputError
from ridgeline.kernels.search import lists as search_lists
from ridgeline.kernels.search import queries as search_queries
from ridgeline.search.arrays import Array
from ridgeline.search.cuda_rows import Stored
from ridgeline.search.cuda_steps import Limits, Refiner, Steps
from ridgeline.search.engine import Ask, Recipe
from ridgeline.search.replay import Recorded, Replays
from ridgeline.search.tensors import Grown, seen

AT_A_TIME = 1 << 26  # scores that are there at once in a search by radius


@dataclass(frozen=True)
class Asked:
    """Queries as they came: of any float type, of any length, on any device."""

    values: torch.Tensor

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class CudaEngine:
    recipe: Recipe
    device: str
    stored: Stored
    refiner: Refiner | None
    replays: Replays

    @property
    def count(self) -> int:
        return self.stored.count

    @property
    def nbytes(self) -> int:
        fine = [] if self.refiner is None else [self.refiner.codes.rows]
        return self.replays.nbytes + sum(int(t.nbytes) for t in [*self.stored.tensors(), *fine])

    def added(self, vectors: torch.Tensor) -> CudaEngine:
        from ridgeline.search.cuda import spared

        with self._here(), spared(self.device, vectors.numel() * 4, "the vectors"):
            refiner = self.refiner
            if refiner is not None:
                refiner = replace(refiner, codes=refiner.codes.appended(refiner.codec.encode(vectors)))
            stored = self.stored.added(vectors) if len(vectors) else self.stored
            return replace(self, stored=stored, refiner=refiner, replays=Replays())

    def taken(self, rows: Array) -> CudaEngine:
        at = self._rows(rows)
        refiner = self.refiner
        if refiner is not None:
            refiner = replace(refiner, codes=Grown(refiner.codes.rows[at], len(at)))
        return replace(self, stored=self.stored.taken(at), refiner=refiner, replays=Replays())

    def search(self, queries: Any, ask: Ask) -> tuple[torch.Tensor, torch.Tensor]:
        given = queries.values if isinstance(queries, Asked) else queries
        with self._here():
            limits = self._limits(ask)
            steps = Steps(self.stored, self.refiner, self.recipe.metric, ask, limits, self._early)
            if self._simulated:
                return search_queries.handed(*steps(given))
            return self.replays.search(_key(given, ask), given, steps, self.device, limits)

    def door(self, queries: Asked, ask: Ask) -> Recorded | None:
        """The recording that answers such a search at once; None while there is none."""
        return None if self._simulated else self.replays.get(_key(queries.values, ask), self._limits(ask))

    def within(self, queries: Any, radius: float, ask: Ask) -> tuple[Any, Any, Any]:
        """All scores are there at once, for some queries at a time; those near enough are computed in float64."""
        given = queries.values if isinstance(queries, Asked) else queries
        with self._here():
            ready, norms = search_queries.ready(given.to(self.device), self.recipe.metric == "cosine")
            if not bool(torch.isfinite(norms).all()):
                refuse(given, int((~torch.isfinite(norms)).nonzero()[0]), "queries")
            allowed = None if ask.allowed is None else self._stored_order(self._tensor(ask.allowed)).bool()
            tie = self._rows(ask.ids) if ask.ids is not None else None
            few = max(1, AT_A_TIME // max(1, self.count))
            limits, scores, rows = [np.zeros(1, np.int64)], [], []
            for at in range(0, len(ready), few):
                part = ready[at : at + few]
                near = self._near(part, radius, ask.nprobe, allowed)
                owner, place = near.nonzero(as_tuple=True)
                row = place if self.stored.lists is None else self.stored.lists.places[place]
                score = self._exact(part, owner, place, row)
                kept = score < radius if self._squared else score > radius
                owner, row, score = owner[kept], row[kept], score[kept]
                order = _ordered(owner, score if self._squared else -score, row if tie is None else tie[row])
                counts = torch.bincount(owner, minlength=len(part)).cpu().numpy()
                limits.append(limits[-1][-1] + np.cumsum(counts))
                scores.append(score[order])
                rows.append(row[order])
        empty = torch.zeros(0, dtype=torch.float64, device=self.device)
        return np.concatenate(limits), torch.cat([empty, *scores]), torch.cat([empty.long(), *rows])

    def vectors(self, rows: Array) -> torch.Tensor:
        at = self._rows(rows)
        if self.refiner is not None:
            return self.refiner.codec.decode(self.refiner.codes.rows[at])
        return self.stored.values(self.stored.at(at))

    def arrays(self) -> Mapping[str, Array]:
        stored = self.stored
        kept = {**stored.codec.arrays(), "codes": stored.codec.saved(stored.codes.rows)}
        if stored.lists is not None:
            kept["rows"] = stored.lists.places.cpu().numpy()
            kept["offsets"] = stored.lists.starts.cpu().numpy().astype(np.int64)
            kept["centres"] = stored.lists.centres.cpu().numpy()
        if stored.bias is not None:
            kept["biases"] = (stored.bias.rows / 2).cpu().numpy()
        if self.refiner is not None:
            kept["refine_codes"] = self.refiner.codec.saved(self.refiner.codes.rows)
            kept |= {f"refine_{name}": array for name, array in self.refiner.codec.arrays().items()}
        longest = 0.0
        for at in range(0, self.count, 1 << 18):
            rows = torch.arange(at, min(self.count, at + (1 << 18)), device=self.stored.codes.buffer.device)
            longest = max(longest, float(stored.values(rows).double().norm(dim=1).max()))
        kept["longest"] = np.array([longest])
        return kept

    @property
    def _squared(self) -> bool:
        return self.recipe.metric == "l2"

    @property
    def _simulated(self) -> bool:
        """Whether the kernels are interpreted on the CPU, as in tests."""
        return self.device == "cpu"

    @property
    def _early(self) -> bool:
        """Whether kernels can wait for each other by themselves there: from Hopper on."""
        return not self._simulated and torch.cuda.get_device_capability(self.device) >= (9, 0)

    def _limits(self, ask: Ask) -> Limits:
        """Made once for filters that stay the same from search to search, as that of removed rows does."""
        kept: Limits
        for kept in self.replays.masks:
            if kept.told[0] is ask.allowed and kept.told[1] is ask.ids:
                return kept
        lists = self.stored.lists
        allowed = None if ask.allowed is None else self._stored_order(self._tensor(ask.allowed))
        if ask.ids is None:
            found = Limits((ask.allowed, None), allowed, None if lists is None else lists.places, None)
        else:
            order = self._rows(np.argsort(ask.ids, kind="stable"))
            rank = torch.empty_like(order)
            rank[order] = torch.arange(len(order), device=order.device)
            found = Limits((ask.allowed, ask.ids), allowed, self._stored_order(rank), order)
        self.replays.masks = [found, *self.replays.masks[:1]]
        return found

    def _stored_order(self, of_rows: torch.Tensor) -> torch.Tensor:
        return of_rows if self.stored.lists is None else of_rows[self.stored.lists.places]

    def _near(self, queries: torch.Tensor, radius: float, nprobe: int, allowed: torch.Tensor | None) -> torch.Tensor:
        """bool [q, N]: rows whose score in float32 may be near enough."""
        values = self.stored.values(torch.arange(self.count, device=queries.device))
        scores = queries @ values.T
        reach = queries.norm(dim=1, keepdim=True) * values.norm(dim=1)[None, :]
        if self._squared:
            scores = 2 * scores - values.square().sum(1)
            least = queries.square().sum(1, keepdim=True) - radius
            reach = 2 * reach + values.square().sum(1) + queries.square().sum(1, keepdim=True) + abs(radius)
        else:
            least = torch.full((len(queries), 1), radius, device=queries.device)
        near = scores >= least - reach * (values.shape[1] + 8) * 2.0**-23
        if self.stored.lists is not None:
            probes = min(nprobe, len(self.stored.lists.centres))
            metric = "l2" if self._squared else "ip"
            chosen = search_lists.probe(queries, self.stored.lists.centres, probes, metric=metric)
            looked = torch.zeros((len(queries), len(self.stored.lists.centres)), dtype=torch.bool, device=near.device)
            looked.scatter_(1, chosen.long(), True)
            near &= looked[:, self.stored.lists.near.long()]
        return near if allowed is None else near & allowed

    def _exact(self, queries: torch.Tensor, owner: torch.Tensor, place: torch.Tensor, row: torch.Tensor) -> Any:
        out = torch.empty(len(owner), dtype=torch.float64, device=queries.device)
        for at in range(0, len(owner), 1 << 18):
            part = slice(at, at + (1 << 18))
            if self.refiner is not None:
                x = self.refiner.codec.decode(self.refiner.codes.rows[row[part]])
            else:
                x = self.stored.values(place[part])
            q, x = queries[owner[part]].double(), x.double()
            out[part] = (q - x).square().sum(1) if self._squared else (q * x).sum(1)
        return out

    def _rows(self, rows: Array) -> torch.Tensor:
        return self._tensor(np.asarray(rows, np.int64))

    def _tensor(self, array: Array) -> torch.Tensor:
        return seen(np.ascontiguousarray(array)).to(self.device)

    def _here(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._simulated else torch.cuda.device(self.device)


def refuse(vectors: torch.Tensor, row: int, what: str) -> None:
    """Say what is not finite in a row."""
    column = int((~torch.isfinite(vectors[row].float())).nonzero()[0])
    value = float(vectors[row, column])
    raise InputError(f"row {row} of the {what} holds {value} in column {column}; remove or mend it first.")


def _key(queries: torch.Tensor, ask: Ask) -> tuple[Any, ...]:
    return queries.shape, queries.dtype, ask.k, ask.nprobe, ask.depth


def _ordered(owner: torch.Tensor, score: torch.Tensor, tie: torch.Tensor) -> torch.Tensor:
    """By owner, then score, then tie."""
    order = tie.argsort(stable=True)
    order = order[score[order].argsort(stable=True)]
    return order[owner[order].argsort(stable=True)]
