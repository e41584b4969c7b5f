"""MaxSim on a GPU: every vector is read once in its type, then the possible winners are scored in float32.

The first scores come from float16 products, whose error has a bound for each query. The best documents of these are
scored again from the stored values; if one that was left out could belong to the best k, more are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ridgeline.kernels.search import MAXSIM_PART, score_documents, score_pairs
from ridgeline.search.arrays import Array, Doubles, Flags, Floats, GrowableArray, Integers, wrap_rows
from ridgeline.search.codecs import ByteCodec, Codec
from ridgeline.search.metric import compute_norms, compute_slack
from ridgeline.search.multi import Ragged
from ridgeline.search.tensors import GrowableTensor
from ridgeline.search.token_codes import make_token_codec, restore_token_codec

HALF_ROUNDING = 2.0**-11  # relative, of a value as float16
MORE_CANDIDATES = 32  # beyond k, in the first try
MAX_SCORES = 1 << 28  # in memory at a time


@dataclass(frozen=True)
class CudaDocuments:
    """The vectors of all documents as codes on a GPU (or, with device cpu, in Triton's interpreter)."""

    codec: Codec
    codes: GrowableTensor
    ends: GrowableArray  # on the host
    offsets: torch.Tensor  # int64 [N + 1]
    grid: tuple[torch.Tensor, torch.Tensor] | None  # of bytes
    longest: float
    device: str

    @property
    def count(self) -> int:
        return self.ends.count

    @property
    def nbytes(self) -> int:
        return int(self.codes.rows.nbytes) + int(self.offsets.nbytes)

    def append(self, documents: Ragged) -> CudaDocuments:
        codes = self.codec.encode(documents.vectors)
        longest = max(self.longest, _find_longest(self.codec, codes))
        ends = self.ends.append(documents.offsets[1:] + self.codes.count)
        stored = self.codes.append(torch.from_numpy(np.ascontiguousarray(codes)).to(self.device))
        return replace(self, codes=stored, ends=ends, longest=longest, offsets=self._make_offsets(ends.rows))

    def select_documents(self, numbers: Integers) -> CudaDocuments:
        places, offsets = self._locate(numbers)
        codes = self.codes.rows[torch.from_numpy(places).to(self.device)]
        return replace(
            self,
            codes=GrowableTensor(codes, len(codes)),
            ends=wrap_rows(offsets[1:]),
            offsets=self._make_offsets(offsets[1:]),
        )

    def search(self, queries: Ragged, k: int, allowed: Flags | None, ids: Integers | None) -> tuple[Doubles, Integers]:
        scores, numbers = np.full((len(queries), k), -np.inf), np.full((len(queries), k), -1, np.int64)
        mask = None if allowed is None else torch.from_numpy(allowed != 0).to(self.device)
        step = max(1, MAX_SCORES // max(1, self.count))
        for first in range(0, len(queries), step):
            part = queries.slice(first, min(len(queries), first + step))
            for query, (exact, row) in enumerate(self._search_some(part, k, mask), first):
                best = np.lexsort((row if ids is None else ids[row], -exact))[:k]
                scores[query, : len(best)], numbers[query, : len(best)] = exact[best], row[best]
        return scores, numbers

    def rescore(self, queries: Ragged, numbers: Sequence[Integers]) -> list[Doubles]:
        widest = max((len(chosen) for chosen in numbers), default=0)
        documents = np.full((len(queries), widest), -1, np.int64)
        for query, chosen in enumerate(numbers):
            documents[query, : len(chosen)] = chosen
        parts, part_offsets = self._cut_queries(queries)
        chosen_tensor = torch.from_numpy(documents).to(self.device)
        exact = self._score_pairs(parts, part_offsets, chosen_tensor).cpu().numpy().astype(np.float64)
        return [row[: len(chosen)] for row, chosen in zip(exact, numbers, strict=True)]

    def decode(self, numbers: Integers) -> Ragged:
        places, offsets = self._locate(numbers)
        codes = self.codes.rows[torch.from_numpy(places).to(self.device)].cpu().numpy()
        return Ragged(np.ascontiguousarray(self.codec.decode(codes)), offsets)

    def arrays(self) -> Mapping[str, Array]:
        return {
            "codes": self.codes.rows.cpu().numpy(),
            "offsets": np.concatenate([[0], self.ends.rows]),
            "longest": np.array([self.longest]),
            **self.codec.arrays(),
        }

    def _search_some(self, queries: Ragged, k: int, mask: Any) -> list[tuple[Doubles, Integers]]:
        """For each query (exact scores, documents), which hold its best k."""
        parts, part_offsets = self._cut_queries(queries)
        scores = score_documents(parts, self.codes.rows, self.offsets, self.grid)
        if len(parts) > len(queries):  # long queries have several parts
            owner = torch.repeat_interleave(torch.arange(len(queries), device=self.device), part_offsets.diff())
            scores = torch.zeros((len(queries), self.count), device=self.device).index_add_(0, owner, scores)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        slack = self._bound_error(queries)
        count = self.count if not np.isfinite(slack).all() else min(self.count, 2 * k + MORE_CANDIDATES)
        while True:
            first_scores, documents = scores.topk(count, dim=1)
            exact = self._score_pairs(parts, part_offsets, torch.where(first_scores > float("-inf"), documents, -1))
            exact_scores, first, rows = (t.cpu().numpy() for t in (exact, first_scores, documents))
            if count == self.count or self._holds_best(exact_scores, first, k, slack):
                valid = first > -np.inf
                if not np.isfinite(slack).all() and mask is None:
                    valid[:] = True
                return [
                    (row[good].astype(np.float64), numbers[good])
                    for row, numbers, good in zip(exact_scores, rows, valid, strict=True)
                ]
            count = min(self.count, 8 * count)

    def _holds_best(self, exact: Floats, first: Floats, k: int, slack: Doubles) -> bool:
        """Whether no document beyond the last of `first` can score as high as the k-th best exactly scored one."""
        if exact.shape[1] < k:
            return False
        needed = -np.partition(-exact, k - 1, axis=1)[:, k - 1]
        last = first[:, -1].astype(np.float64)
        return bool(((last + slack < needed) | (last == -np.inf)).all())

    def _score_pairs(self, parts: torch.Tensor, part_offsets: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        return score_pairs(parts, part_offsets, self.codes.rows, self.offsets, documents.contiguous(), self.grid)

    def _bound_error(self, queries: Ragged) -> Doubles:
        """[q] how far a first score can be from the exact one."""
        norms = np.add.reduceat(compute_norms(queries.vectors), queries.offsets[:-1])
        slack = compute_slack(queries.vectors.shape[1], norms * self.longest)
        if self.codes.rows.dtype == torch.float32:
            return slack
        with np.errstate(over="ignore"):
            lost = compute_norms(queries.vectors - queries.vectors.astype(np.float16).astype(np.float32))
            error = np.add.reduceat(lost, queries.offsets[:-1]) * self.longest
        if self.grid is not None:  # decoded bytes are rounded, too
            error = error + norms * self.longest * HALF_ROUNDING
        error = slack + error
        return np.where(np.isfinite(error), error, np.inf)

    def _cut_queries(self, queries: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
        """(float32 [parts, 32, d] padded by zeros, int64 [q + 1] where the parts of each query begin)."""
        counts = -(-queries.lengths // MAXSIM_PART)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        padded = np.zeros((int(starts[-1]) * MAXSIM_PART, queries.vectors.shape[1]), np.float32)
        place = np.arange(len(queries.vectors)) - np.repeat(queries.offsets[:-1], queries.lengths)
        padded[np.repeat(starts[:-1] * MAXSIM_PART, queries.lengths) + place] = queries.vectors
        parts = torch.from_numpy(padded.reshape(int(starts[-1]), MAXSIM_PART, -1)).to(self.device)
        return parts, torch.from_numpy(starts).to(self.device)

    def _make_offsets(self, ends: Integers) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([[0], ends]).astype(np.int64)).to(self.device)

    def _locate(self, numbers: Integers) -> tuple[Integers, Integers]:
        offsets = np.concatenate([[0], self.ends.rows])
        lengths = np.diff(offsets)[numbers]
        ends = np.cumsum(lengths)
        places = np.repeat(offsets[numbers] - (ends - lengths), lengths) + np.arange(int(lengths.sum()))
        return places, np.concatenate([[0], ends]).astype(np.int64)


def make_engine(codes: str, dtype: str, vectors: Floats, device: str) -> CudaDocuments:
    """Return an engine without documents; SQ8 learns the range of values from `vectors`."""
    codec = make_token_codec(codes, dtype, vectors)
    return _make(codec, codec.empty(), np.zeros(0, np.int64), 0.0, device)


def restore_engine(codes: str, dtype: str, arrays: Mapping[str, Array], device: str) -> CudaDocuments:
    """Return the engine whose `arrays` were saved."""
    codec = restore_token_codec(codes, dtype, arrays)
    longest = float(arrays["longest"][0])
    return _make(codec, np.array(arrays["codes"]), np.array(arrays["offsets"][1:]), longest, device)


def _make(codec: Codec, codes: Array, ends: Integers, longest: float, device: str) -> CudaDocuments:
    grid = None
    if isinstance(codec, ByteCodec):
        grid = torch.from_numpy(codec.base).to(device), torch.from_numpy(codec.step).to(device)
    rows = torch.from_numpy(np.ascontiguousarray(codes)).to(device)
    offsets = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int64)).to(device)
    return CudaDocuments(codec, GrowableTensor(rows, len(rows)), wrap_rows(ends), offsets, grid, longest, device)


def _find_longest(codec: Codec, codes: Array) -> float:
    parts = range(0, len(codes), 65_536)
    return max(
        (float(compute_norms(codec.decode(codes[at : at + 65_536])).max(initial=0.0)) for at in parts), default=0
    )
