"""MaxSim on a GPU: every vector is read once in its type, then the possible winners are scored in float32.

The first scores come from float16 products, whose error has a bound for each query. The best documents of these are
scored again from the stored values; if one that was left out could belong to the best k, more are.

The launches take longer than the kernels of a small index, so a search that repeats is replayed as a CUDA graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.kernels import record_graph
from ridgeline.kernels.search import MAX_CANDIDATES, MAXSIM_PART, score_documents, score_pairs, select_best
from ridgeline.search.arrays import Array, Doubles, Flags, Floats, GrowableArray, Integers, wrap_rows
from ridgeline.search.codecs import ByteCodec, Codec
from ridgeline.search.metric import compute_norms, compute_slack
from ridgeline.search.multi import Ragged
from ridgeline.search.tensors import GrowableTensor
from ridgeline.search.token_codes import make_token_codec, restore_token_codec

HALF_ROUNDING = 2.0**-11  # relative, of a value as float16
MORE_CANDIDATES = 32  # beyond k, in the first try
MAX_SCORES = 1 << 28  # in memory at a time
MAX_RECORDINGS = 8  # searches of one shape as CUDA graphs
MAX_RECORDED_QUERIES = 16  # with more queries the launches do not matter
MAX_SEEN_SHAPES = 512

Ranking: TypeAlias = tuple[Floats, Floats, NDArray[np.int32]]  # exact scores, first scores, documents, each [q, count]


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
    replays: ReplayCache = field(init=False, compare=False, default_factory=lambda: ReplayCache())

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
        documents = np.full((len(queries), widest), -1, np.int32)
        for query, chosen in enumerate(numbers):
            documents[query, : len(chosen)] = chosen
        parts, starts, chosen_tensor = (
            torch.from_numpy(a).to(self.device) for a in (*_cut_queries(queries), documents)
        )
        exact = self._score_pairs(parts, starts, chosen_tensor).cpu().numpy().astype(np.float64)
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
        parts, starts = _cut_queries(queries)
        slack = np.zeros(0)

        def bound_error() -> None:
            nonlocal slack
            slack = self._bound_error(queries)

        count = min(self.count, 2 * k + MORE_CANDIDATES)
        result = self._rank(parts, starts, count, mask, meanwhile=bound_error)
        finite = bool(np.isfinite(slack).all())
        while count < self.count and not (finite and self._holds_best(result, k, slack)):
            count = min(self.count, 8 * count) if finite else self.count
            result = self._rank(parts, starts, count, mask)
        exact, _, rows = result
        return [
            (row[numbers >= 0].astype(np.float64), numbers[numbers >= 0].astype(np.int64))
            for row, numbers in zip(exact, rows, strict=True)
        ]

    def _rank(
        self, parts: Floats, starts: Integers, count: int, mask: Any, meanwhile: Callable[[], None] = lambda: None
    ) -> Ranking:
        """Rank the documents by their first scores, the best `count` exactly. `meanwhile` runs while the GPU works."""
        if mask is not None or self.device == "cpu" or len(starts) - 1 > MAX_RECORDED_QUERIES:
            given = torch.from_numpy(parts).to(self.device), torch.from_numpy(starts).to(self.device)
            result = self._launch(*given, count, mask)
            meanwhile()
            return _unpack(result.cpu().numpy())
        return _unpack(self.replays.rank(self, parts, starts, count, meanwhile))

    def _launch(self, parts: torch.Tensor, part_offsets: torch.Tensor, count: int, mask: Any) -> torch.Tensor:
        query_count = len(part_offsets) - 1
        scores = score_documents(parts, self.codes.rows, self.offsets, self.grid)
        if len(parts) > query_count:  # long queries have several parts
            owner = torch.searchsorted(part_offsets, torch.arange(len(parts), device=self.device), right=True) - 1
            scores = torch.zeros((query_count, self.count), device=self.device).index_add_(0, owner, scores)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        if count <= MAX_CANDIDATES and count < self.count:
            first, documents = select_best(scores, count)
        else:  # also documents whose first score is no number
            first, documents = scores.topk(count, dim=1)
            documents = (documents if mask is None else torch.where(mask[documents], documents, -1)).int()
        exact = self._score_pairs(parts, part_offsets, documents)
        return torch.stack([exact, first, documents.view(torch.float32)])  # one copy to the host

    def _holds_best(self, ranking: Ranking, k: int, slack: Doubles) -> bool:
        """Whether no document beyond those ranked can score as high as the k-th best exactly scored one."""
        exact, first, _ = ranking
        if exact.shape[1] < k:
            return False
        needed = -np.partition(-exact, k - 1, axis=1)[:, k - 1]
        last = first[:, -1]
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

    def _make_offsets(self, ends: Integers) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([[0], ends]).astype(np.int64)).to(self.device)

    def _locate(self, numbers: Integers) -> tuple[Integers, Integers]:
        offsets = np.concatenate([[0], self.ends.rows])
        lengths = np.diff(offsets)[numbers]
        ends = np.cumsum(lengths)
        places = np.repeat(offsets[numbers] - (ends - lengths), lengths) + np.arange(int(lengths.sum()))
        return places, np.concatenate([[0], ends]).astype(np.int64)


class ReplayCache:
    """The recorded searches of an engine, by shape. An engine never changes, so they stay valid."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: set[Any] = set()
        self._recordings: dict[Any, Recording] = {}

    def rank(
        self, engine: CudaDocuments, parts: Floats, starts: Integers, count: int, meanwhile: Callable[[], None]
    ) -> Floats:
        key = (parts.shape, tuple(starts.tolist()), count)
        with self._lock, torch.cuda.device(engine.device):
            recording = self._recordings.get(key)
            if recording is None and key in self._seen:
                if len(self._recordings) >= MAX_RECORDINGS:
                    self._recordings.pop(next(iter(self._recordings)))
                recording = self._recordings[key] = Recording(engine, parts, starts, count)
            if recording is not None:
                return recording(parts, meanwhile)
            if len(self._seen) < MAX_SEEN_SHAPES:
                self._seen.add(key)
            given = torch.from_numpy(parts).to(engine.device), torch.from_numpy(starts).to(engine.device)
            result = engine._launch(*given, count, None)
            meanwhile()
            return np.asarray(result.cpu().numpy())


class Recording:
    """A search for queries of one shape as a CUDA graph, with its copies. One thread at a time uses it."""

    def __init__(self, engine: CudaDocuments, parts: Floats, starts: Integers, count: int) -> None:
        parts_tensor, offsets = (torch.from_numpy(array).to(engine.device) for array in (parts, starts))
        self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = engine._launch(parts_tensor, offsets, count, None)
        self._stream.synchronize()
        self._host_parts = torch.empty(parts.shape, dtype=torch.float32, pin_memory=True)
        self._host_result = torch.empty(result.shape, dtype=torch.float32, pin_memory=True)

        def steps() -> None:
            parts_tensor.copy_(self._host_parts, non_blocking=True)
            self._result = engine._launch(parts_tensor, offsets, count, None)
            self._host_result.copy_(self._result, non_blocking=True)

        self._graph = record_graph(steps, parts_tensor.device)
        self._inputs = engine.codes, engine.offsets, engine.grid, offsets, parts_tensor  # the graph reads them

    def __call__(self, parts: Floats, meanwhile: Callable[[], None]) -> Floats:
        self._host_parts.numpy()[...] = parts
        with torch.cuda.stream(self._stream):
            self._graph.replay()
        try:
            meanwhile()
        finally:
            self._stream.synchronize()
        return np.array(self._host_result.numpy())


def _unpack(result: Floats) -> Ranking:
    return result[0], result[1], result[2].view(np.int32)


def _cut_queries(queries: Ragged) -> tuple[Floats, Integers]:
    """(float32 [parts, 32, d] padded by zeros, int64 [q + 1] where the parts of each query begin)."""
    vectors = queries.vectors
    if len(queries) == 1:
        count = -(-len(vectors) // MAXSIM_PART)
        padded = np.zeros((count * MAXSIM_PART, vectors.shape[1]), np.float32)
        padded[: len(vectors)] = vectors
        return padded.reshape(count, MAXSIM_PART, -1), np.array([0, count], np.int64)
    counts = -(-queries.lengths // MAXSIM_PART)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    padded = np.zeros((int(starts[-1]) * MAXSIM_PART, queries.vectors.shape[1]), np.float32)
    place = np.arange(len(queries.vectors)) - np.repeat(queries.offsets[:-1], queries.lengths)
    padded[np.repeat(starts[:-1] * MAXSIM_PART, queries.lengths) + place] = queries.vectors
    return padded.reshape(int(starts[-1]), MAXSIM_PART, -1), starts


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
