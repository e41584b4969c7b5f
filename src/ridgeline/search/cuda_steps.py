"""One search on a GPU, from raw queries to answers: which kernels, with what."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import triton

from ridgeline.kernels.search import exact as search_exact
from ridgeline.kernels.search import inverted as search_inverted
from ridgeline.kernels.search import queries as search_queries
from ridgeline.kernels.search import settle as search_settle
from ridgeline.kernels.search import short as search_short
from ridgeline.search.cuda_codes import ByteCodes, Codes, FlatCodes, PartCodes
from ridgeline.search.cuda_rows import Inverted, Stored
from ridgeline.search.engine import Ask
from ridgeline.search.tensors import Grown

Answer = tuple[torch.Tensor, torch.Tensor]  # scores and rows


@dataclass(frozen=True)
class Refiner:
    """The same rows, kept finer, in their own order."""

    codec: Codes
    codes: Grown


@dataclass(frozen=True, eq=False)
class Limits:
    """Which rows may be found and what they are called, on the GPU, in the order in which rows are stored.

    Equal scores go by id. Kernels return names and put the lower first, so a row's name is its id's rank.
    """

    told: tuple[Any, Any]  # allowed and ids, as they were asked
    allowed: torch.Tensor | None
    names: torch.Tensor | None
    rows: torch.Tensor | None  # of a name; None: it is the row


@dataclass(frozen=True)
class Steps:
    """One search: what is launched, or recorded."""

    stored: Stored
    refiner: Refiner | None
    metric: str
    ask: Ask
    limits: Limits
    early: bool  # kernels begin before the one ahead has ended, and wait for it by themselves
    sketch: torch.Tensor | None = None  # of the codes, for one query

    def __call__(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Scores, rows and the norms of the queries."""
        if self.is_short(queries):
            out = self.room(queries.device)
            return *out, self.short(queries.contiguous(), out)
        ask, stored, limits = self.ask, self.stored, self.limits
        ready, norms = search_queries.ready(queries, self._unit)
        k, words, codes = self._k, self._words, stored.codes.rows
        lists = self._lists
        if lists is not None:
            if isinstance(stored.codec, PartCodes):
                words = {**words, "books": stored.codec.words}
            scores, names = search_inverted.search(
                ready, lists.centres, lists.starts, lists.longest, codes, k, ask.nprobe, **words
            )
        elif len(queries) == 1:
            scores, names = search_exact.one(ready, codes, k, **words)
        else:
            scores, names = search_exact.many(ready, codes, k, stored.longest, **words)
        rows = names
        if limits.rows is not None and stored.count:
            rows = torch.where(names >= 0, limits.rows[names.clamp(min=0)], names)
        if self._coded and self.refiner is not None:
            scores, rows = self._refined(self.refiner, ready, names, rows)
        return scores, rows, norms

    def is_short(self, queries: torch.Tensor) -> bool:
        """Whether a few launches do it."""
        plain = not self._coded and self.limits.rows is None and not isinstance(self.stored.codec, PartCodes)
        if not plain:
            return False
        if not search_short.fits(queries, self.stored.codes.rows, self.ask.k, self._words.get("candidates")):
            return False
        return self._lists is None or search_short.fits_lists(self._lists.centres, self.ask.nprobe)

    def short(self, queries: torch.Tensor, out: Answer) -> torch.Tensor:
        """The same for one query, contiguous, by nothing but launches; its norm."""
        codes, lists = self.stored.codes.rows, self._lists
        if lists is not None:
            return search_short.lists(
                queries, self._unit, lists.centres, lists.starts, lists.longest, codes, self.ask.nprobe, out,
                early=self.early, **self._words,
            )  # fmt: skip
        if self.sketch is not None:
            return self.sketched(queries, out)[0]
        return search_short.flat(queries, self._unit, codes, out, early=self.early, **self._words)

    def sketched(self, queries: torch.Tensor, out: Answer) -> Answer:
        """The same by half of each code first; its norm, and whether that sufficed."""
        codes = self.stored.codes.rows
        return search_short.sketched(
            queries, self._unit, codes, out, sketch=self.sketch, early=self.early, **self._words
        )

    @property
    def may_sketch(self) -> bool:
        """Whether half of each code may be read first: codes in the order of the rows, many of them, and finer rows."""
        plain = isinstance(self.stored.codec, ByteCodes) and self._lists is None and "refine" in self._words
        return plain and search_short.fits_sketch(self.stored.count, self._words["candidates"])

    def room(self, device: Any) -> Answer:
        """For the answer to one query."""
        shape = (1, self.ask.k)
        return (
            torch.empty(shape, dtype=torch.float32, device=device),
            torch.empty(shape, dtype=torch.int64, device=device),
        )

    @property
    def _unit(self) -> bool:
        return self.metric == "cosine"

    @property
    def _squared(self) -> bool:
        return self.metric == "l2"

    @property
    def _coded(self) -> bool:
        """Whether the refiner is itself coded."""
        return self.refiner is not None and not isinstance(self.refiner.codec, FlatCodes)

    @property
    def _k(self) -> int:
        """How many the scan is to find."""
        return min(self.ask.k * self.ask.depth, max(1, self.stored.count)) if self._coded else self.ask.k

    @property
    def _lists(self) -> Inverted | None:
        """The lists to look into: all of them are all rows, without a need to look for the nearest."""
        lists = self.stored.lists
        if lists is None or isinstance(self.stored.codec, PartCodes) or "refine" in self._words:
            return lists
        return None if self.ask.nprobe >= len(lists.centres) else lists

    @cached_property
    def _words(self) -> dict[str, Any]:
        """What the kernels are told."""
        stored, ask, refiner = self.stored, self.ask, self.refiner
        words: dict[str, Any] = {"metric": "l2" if self._squared else "ip"}
        words |= {"allowed": self.limits.allowed, "ids": self.limits.names}
        if stored.bias is not None:
            words["bias"] = stored.bias.rows
        if isinstance(stored.codec, ByteCodes):
            words["grid"] = stored.codec.grid
        if refiner is not None and not self._coded:
            words["candidates"] = triton.next_power_of_2(max(search_exact.FEWEST, ask.k * ask.depth))
            words["refine"] = refiner.codes.rows
            if stored.lists is not None:
                words["places"] = stored.lists.places
        if self.limits.rows is not None and not self._coded:
            # The scan puts the lower row first, the last step the lower name: among many equal ones it must see many.
            words["candidates"] = max(
                words.get("candidates", 0), search_exact.candidates_for(self._k), search_settle.MOST
            )
        return words

    def _refined(
        self, refiner: Refiner, queries: torch.Tensor, names: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Candidates [Q, n] ranked again by a refiner that is itself coded, in float64."""
        k, there = self.ask.k, rows >= 0
        x = refiner.codec.decode(refiner.codes.rows[rows.clamp(min=0).flatten()]).double()
        x, q = x.view(*rows.shape, -1), queries.double()[:, None, :]
        score = -(x - q).square().sum(2) if self._squared else (x * q).sum(2)
        score = torch.where(there, score, float("-inf"))
        by_name = torch.where(there, names, torch.iinfo(torch.int64).max).argsort(dim=1)
        order = by_name.gather(1, score.gather(1, by_name).argsort(dim=1, descending=True, stable=True))[:, :k]
        best, found = score.gather(1, order), rows.gather(1, order)
        short = k - order.shape[1]
        far = float("inf") if self._squared else float("-inf")
        best = torch.nn.functional.pad(-best if self._squared else best, (0, short), value=far)
        return best.float(), torch.nn.functional.pad(found, (0, short), value=-1)
