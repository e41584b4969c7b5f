"""One search on a GPU: choose the kernels, run them, and record them for repeated searches of the same shape.

The launches of a small search take longer than its kernels. So the first search of a shape runs normally, the second
is recorded, and later ones replay the recording on the stream of the caller. Another stream waits for the last one, so
one recording serves several threads in turn. A search for one query is a few kernels that are launched directly: they
read the query in place and write into new tensors. Other searches are a CUDA graph: queries are copied into the
tensor that it reads, and results out of the tensors that it writes.

A search for one query over SQ8 with a refiner reads a sketch of the codes first (`build_sketch`). The first such
recording builds the sketch and keeps it if it suffices for most of a sample of stored rows.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ridgeline.kernels import LaunchSequence, record_graph
from ridgeline.kernels.search import (
    MAX_CANDIDATES,
    MIN_CANDIDATES,
    Rounding,
    build_sketch,
    can_search_by_sketch,
    can_search_one_query,
    can_search_one_query_in_lists,
    choose_candidate_count,
    choose_rounding,
    copy_results,
    prepare_queries,
    search_lists,
    search_lists_one_query,
    search_rows_batch,
    search_rows_one_query,
    search_sketch_one_query,
)
from ridgeline.search.arrays import Array
from ridgeline.search.cuda_storage import ByteCodes, Codes, FlatCodes, ListLayout, ProductCodes, StoredRows
from ridgeline.search.engine import SearchOptions
from ridgeline.search.tensors import GrowableTensor, view_as_tensor

Result = tuple[torch.Tensor, torch.Tensor]  # scores and rows


@dataclass(frozen=True)
class Refiner:
    """The same rows with a finer codec, in the order of the rows."""

    codec: Codes
    codes: GrowableTensor


@dataclass(frozen=True, eq=False)
class RowFilter:
    """The rows that a search may return, and their result ids, on the GPU, in the order of the stored rows.

    Equal scores go by id. Kernels return result ids and put the lower one first, so the result id of a row is the rank
    of its id.
    """

    source: tuple[Any, Any]  # allowed and ids of the SearchOptions
    allowed: torch.Tensor | None
    result_ids: torch.Tensor | None
    rows: torch.Tensor | None  # the row of each result id; None: it is the row


@dataclass(frozen=True)
class SearchPlan:
    """One search: the kernels to launch, or to record."""

    stored: StoredRows
    refiner: Refiner | None
    metric: str
    options: SearchOptions
    row_filter: RowFilter
    early: bool  # kernels may start before their predecessor ends, and wait for it on the GPU
    sketch: torch.Tensor | None = None  # of the codes, for one query

    def __call__(self, queries: torch.Tensor) -> Result:
        """Run the search; a query that is not finite gets nan and -1."""
        if self.is_one_query(queries):
            result = self.allocate_result(queries.device)
            self.launch_one_query(queries.contiguous(), result)
            return result
        options, stored, row_filter = self.options, self.stored, self.row_filter
        prepared, norms, rounded = prepare_queries(queries, self._unit, self._rounding, early=self.early)
        k, kernel_options, codes = self._k, self._kernel_options, stored.codes.rows
        lists = self._lists
        if lists is not None:
            if isinstance(stored.codec, ProductCodes):
                kernel_options = {**kernel_options, "books": stored.codec.words}
            scores, result_ids = search_lists(
                prepared, lists.centres, lists.starts, lists.longest, codes, k, options.nprobe, rounded=rounded,
                half=self._unit and lists.centres.shape[0] > MIN_HALF_LISTS, early=self.early, **kernel_options,
            )  # fmt: skip
        else:
            scores, result_ids = search_rows_batch(
                prepared, codes, k, stored.longest, rounded=rounded, **kernel_options
            )
        rows = result_ids
        if row_filter.rows is not None and stored.count:
            rows = torch.where(result_ids >= 0, row_filter.rows[result_ids.clamp(min=0)], result_ids)
        if self._refiner_is_coded and self.refiner is not None:
            scores, rows = self._rerank(self.refiner, prepared, result_ids, rows)
        return copy_results(scores, rows, norms)

    def is_one_query(self, queries: torch.Tensor) -> bool:
        """Return whether the search is a few direct launches."""
        plain = (
            not self._refiner_is_coded
            and self.row_filter.rows is None
            and not isinstance(self.stored.codec, ProductCodes)
        )
        if not plain:
            return False
        if not can_search_one_query(
            queries, self.stored.codes.rows, self.options.k, self._kernel_options.get("candidates")
        ):
            return False
        return self._lists is None or can_search_one_query_in_lists(self._lists.centres, self.options.nprobe)

    def launch_one_query(self, queries: torch.Tensor, out: Result) -> torch.Tensor:
        """Search for one contiguous query with launches only; return its norm."""
        codes, lists = self.stored.codes.rows, self._lists
        if lists is not None:
            return search_lists_one_query(
                queries, self._unit, lists.centres, lists.starts, lists.longest, codes, self.options.nprobe, out,
                early=self.early, **self._kernel_options,
            )  # fmt: skip
        if self.sketch is not None:
            return self.launch_sketch(queries, out)[0]
        return search_rows_one_query(
            queries, self._unit, codes, out, rounding=self._rounding, early=self.early, **self._kernel_options
        )

    def launch_sketch(self, queries: torch.Tensor, out: Result) -> Result:
        """Like `launch_one_query`, with a scan of the sketch first; return the norm and whether the sketch sufficed."""
        codes = self.stored.codes.rows
        return search_sketch_one_query(
            queries, self._unit, codes, out, sketch=self.sketch, early=self.early, **self._kernel_options
        )

    @property
    def may_sketch(self) -> bool:
        """Whether a sketch can be scanned first: SQ8 codes in the order of the rows, many of them, and a refiner."""
        plain = isinstance(self.stored.codec, ByteCodes) and self._lists is None and "refine" in self._kernel_options
        return plain and can_search_by_sketch(self.stored.count, self._kernel_options["candidates"])

    def allocate_result(self, device: Any) -> Result:
        """Allocate the result of one query."""
        shape = (1, self.options.k)
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

    @cached_property
    def _rounding(self) -> Rounding | None:
        """How queries are rounded for the matrix units; None: the scan does not use them."""
        codec, options = self.stored.codec, self._kernel_options
        if isinstance(codec, ProductCodes):
            return None
        return choose_rounding(
            self.stored.codes.rows.dtype, self.stored.longest, options["metric"], options.get("grid")
        )

    @property
    def _refiner_is_coded(self) -> bool:
        """Whether the refiner stores codes, not values."""
        return self.refiner is not None and not isinstance(self.refiner.codec, FlatCodes)

    @property
    def _k(self) -> int:
        """The number of results of the scan."""
        return (
            min(self.options.k * self.options.depth, max(1, self.stored.count))
            if self._refiner_is_coded
            else self.options.k
        )

    @property
    def _lists(self) -> ListLayout | None:
        """The lists to probe; None if all lists are probed, because then all rows are scanned in order."""
        lists = self.stored.lists
        if lists is None or isinstance(self.stored.codec, ProductCodes) or "refine" in self._kernel_options:
            return lists
        return None if self.options.nprobe >= len(lists.centres) else lists

    @cached_property
    def _kernel_options(self) -> dict[str, Any]:
        """Keyword arguments for the kernels."""
        stored, options, refiner = self.stored, self.options, self.refiner
        kernel_options: dict[str, Any] = {"metric": "l2" if self._squared else "ip"}
        kernel_options |= {"allowed": self.row_filter.allowed, "ids": self.row_filter.result_ids}
        if stored.bias is not None:
            kernel_options["bias"] = stored.bias.rows
        if isinstance(stored.codec, ByteCodes):
            kernel_options["grid"] = stored.codec.grid
        if refiner is not None and not self._refiner_is_coded:
            kernel_options["candidates"] = max(MIN_CANDIDATES, options.k * options.depth)
            kernel_options["refine"] = refiner.codes.rows
            if stored.lists is not None:
                kernel_options["places"] = stored.lists.row_ids
        if self.row_filter.rows is not None and not self._refiner_is_coded:
            # The scan orders ties by row, the rescoring by id: among many equal scores it needs many candidates.
            kernel_options["candidates"] = max(
                kernel_options.get("candidates", 0), choose_candidate_count(self._k), MAX_CANDIDATES
            )
        return kernel_options

    def _rerank(
        self, refiner: Refiner, queries: torch.Tensor, result_ids: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rank candidates [Q, n] again by a refiner that stores codes, in float64."""
        k, valid = self.options.k, rows >= 0
        x = refiner.codec.decode(refiner.codes.rows[rows.clamp(min=0).flatten()]).double()
        x, q = x.view(*rows.shape, -1), queries.double()[:, None, :]
        score = -(x - q).square().sum(2) if self._squared else (x * q).sum(2)
        score = torch.where(valid, score, float("-inf"))
        by_id = torch.where(valid, result_ids, torch.iinfo(torch.int64).max).argsort(dim=1)
        order = by_id.gather(1, score.gather(1, by_id).argsort(dim=1, descending=True, stable=True))[:, :k]
        best, best_rows = score.gather(1, order), rows.gather(1, order)
        missing = k - order.shape[1]
        no_score = float("inf") if self._squared else float("-inf")
        best = torch.nn.functional.pad(-best if self._squared else best, (0, missing), value=no_score)
        return best.float(), torch.nn.functional.pad(best_rows, (0, missing), value=-1)


MIN_HALF_LISTS = 512  # lists of unit vectors whose centres are multiplied in float16; with fewer it hardly matters
MAX_RECORDINGS = 8
MAX_SEEN_SHAPES = 512
MAX_QUERIES = 4096  # with more queries the launches do not matter
SKETCH_SAMPLE = 32  # rows that test a sketch as queries
MIN_SKETCH_SHARE = 0.8  # of the sample; a sketch that does not suffice adds half a scan


class GraphRecording:
    """A search of one shape as a CUDA graph. `row_filter` is the filter that the graph reads."""

    def __init__(self, queries: torch.Tensor, plan: SearchPlan, device: Any, row_filter: Any) -> None:
        self.row_filter, self.query_count = row_filter, len(queries)
        self._plan = plan  # keeps the tensors alive that the graph reads
        self._lock = threading.Lock()
        self._queries = torch.empty(queries.shape, dtype=queries.dtype, device=device)
        self._queries.copy_(queries)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            plan(self._queries)
        torch.cuda.current_stream().wait_stream(stream)

        def steps() -> None:
            self._result = plan(self._queries)

        self._graph = record_graph(steps, self._queries.device)
        self._last = torch.cuda.current_stream()
        self._host: list[torch.Tensor] = []  # queries, scores and rows in pinned host memory
        self._host_graph: torch.cuda.CUDAGraph | None = None  # with the copies from and to them

    def replay(self) -> None:
        """Run the graph for the queries that are already in its tensor; benchmarks time this on the GPU."""
        self._graph.replay()

    def search_on_host(self, queries: Array) -> tuple[Array, Array]:
        """Search for queries that are a NumPy array: one copy to the GPU, one back, through pinned memory."""
        with self._lock, torch.cuda.device(self._queries.device):
            stream = torch.cuda.current_stream()
            if stream != self._last:
                stream.wait_stream(self._last)
                self._last = stream
            if self._host_graph is None:
                self._host_graph = self._record_on_host()
            with np.errstate(over="ignore", invalid="ignore"):  # values that overflow have no results
                values = np.ascontiguousarray(queries, np.float32)
            self._host[0].copy_(view_as_tensor(values))  # by several threads
            self._host_graph.replay()
            stream.synchronize()
            return self._host[1].numpy().copy(), self._host[2].numpy().copy()

    def _record_on_host(self) -> torch.cuda.CUDAGraph:
        """Record the search with the copies of queries and results: fewer launches than around it."""
        tensors = (self._queries, *self._result)
        self._host = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]

        def steps() -> None:
            self._queries.copy_(self._host[0], non_blocking=True)
            self._host_result = self._plan(self._queries)  # the graph writes it
            self._host[1].copy_(self._host_result[0], non_blocking=True)
            self._host[2].copy_(self._host_result[1], non_blocking=True)

        return record_graph(steps, self._queries.device)

    def __call__(self, queries: torch.Tensor) -> Result:
        with self._lock:
            stream = torch.cuda.current_stream(self._queries.device)
            if stream != self._last:
                stream.wait_stream(self._last)
                self._last = stream
            self._queries.copy_(queries, non_blocking=True)
            self._graph.replay()
            scores, rows = self._result
            return scores.clone(), rows.clone()


class LaunchRecording:
    """A search for one query as a sequence of launches."""

    def __init__(self, queries: torch.Tensor, plan: SearchPlan, device: Any, row_filter: Any) -> None:
        self.row_filter = row_filter
        self._lock = threading.Lock()
        self._dtype, self._device = queries.dtype, torch.device(device)
        self._index = self._device.index or 0
        query, result = queries.to(device).contiguous(), plan.allocate_result(device)
        self._tensors, self.query_count = (query, *result), 1
        self._sequence = LaunchSequence(lambda: plan.launch_one_query(query, result), self._tensors, plan.early)
        self._stream = torch.cuda.current_stream()
        self._host: list[torch.Tensor] | None = None  # the tensors in pinned host memory

    def __call__(self, queries: torch.Tensor) -> Result:
        if torch.cuda.current_device() != self._index:
            with torch.cuda.device(self._index):
                return self(queries)
        if queries.dtype != self._dtype or not queries.is_contiguous() or not queries.is_cuda or queries.is_neg():
            queries = queries.to(self._device, self._dtype).resolve_neg().contiguous()
        with self._lock:
            stream = get_raw_stream(self._index)
            if stream != self._stream.cuda_stream:
                self._switch_stream()
            at = queries.data_ptr()
            self._sequence.begin(stream, at)
            scores, rows = torch.empty_like(self._tensors[1]), torch.empty_like(self._tensors[2])
            self._sequence.end(stream, at, scores.data_ptr(), rows.data_ptr())
            return scores, rows

    def search_on_host(self, query: Array) -> tuple[Array, Array]:
        """Search for a query that is a NumPy array: the kernels read it from host memory and write to host memory."""
        if torch.cuda.current_device() != self._index:
            with torch.cuda.device(self._index):
                return self.search_on_host(query)
        with self._lock:
            if self._host is None:
                self._host = [torch.empty_like(t, device="cpu", pin_memory=True) for t in self._tensors]
            host_query, scores, rows = self._host
            with np.errstate(over="ignore", invalid="ignore"):  # values that overflow have no results
                host_query.numpy()[...] = query
            if get_raw_stream(self._index) != self._stream.cuda_stream:
                self._switch_stream()
            self._sequence(self._stream.cuda_stream, host_query.data_ptr(), scores.data_ptr(), rows.data_ptr())
            self._stream.synchronize()
            return scores.numpy().copy(), rows.numpy().copy()

    def replay(self) -> None:
        """Search for the recorded query again; benchmarks time this on the GPU."""
        self._sequence(get_raw_stream(self._index), *(t.data_ptr() for t in self._tensors))

    def _switch_stream(self) -> None:
        """Move to another stream, which waits for the last one; its tensors must not be reused before that."""
        stream = torch.cuda.current_stream()
        stream.wait_stream(self._stream)
        for tensor in self._sequence.tensors:
            tensor.record_stream(stream)
        self._stream = stream


Recording = GraphRecording | LaunchRecording


def get_raw_stream(device: int) -> int:
    """Return the handle of the current stream without creating a stream object."""
    return int(torch._C._cuda_getCurrentRawStream(device))


def record_search(queries: torch.Tensor, plan: SearchPlan, device: Any, row_filter: Any) -> Recording:
    """Record a search, as launches if possible, else as a CUDA graph."""
    if plan.is_one_query(queries):
        try:
            return LaunchRecording(queries, plan, device, row_filter)
        except (AttributeError, TypeError, KeyError, RuntimeError):  # another version of Triton or the driver
            pass
    return GraphRecording(queries, plan, device, row_filter)


class ReplayCache:
    """The recordings of an engine, by shape. An engine never changes, so they stay valid."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen_keys: set[Hashable] = set()
        self._recordings: dict[Hashable, Recording] = {}
        self._sketch: torch.Tensor | None = None
        self._sketch_allowed = True  # False once a sketch did not pay
        self.filters: list[Any] = []  # the last two filters on the GPU

    def get(self, key: Hashable, row_filter: Any) -> Recording | None:
        recording = self._recordings.get(key)
        return recording if recording is not None and recording.row_filter is row_filter else None

    def search(self, key: Hashable, queries: torch.Tensor, plan: SearchPlan, device: Any, row_filter: Any) -> Result:
        """Return the result of `plan`, by a recording if there is one; the current device is `device`."""
        recording = self.get(key, row_filter)
        if recording is None:
            with self._lock:
                known = key in self._seen_keys and len(queries) <= MAX_QUERIES
                if known:
                    if len(self._recordings) >= MAX_RECORDINGS:
                        self._recordings.pop(next(iter(self._recordings)))
                    recording = self._recordings[key] = record_search(
                        queries, self._add_sketch(queries, plan), device, row_filter
                    )
                elif len(self._seen_keys) < MAX_SEEN_SHAPES:
                    self._seen_keys.add(key)
        return recording(queries) if recording is not None else plan(queries.to(device))

    @property
    def nbytes(self) -> int:
        return 0 if self._sketch is None else self._sketch.nbytes

    def _add_sketch(self, queries: torch.Tensor, plan: SearchPlan) -> SearchPlan:
        """Return the plan with a sketch if that pays."""
        if not (self._sketch_allowed and plan.is_one_query(queries) and plan.may_sketch):
            return plan
        if self._sketch is None:
            try:
                sketch_plan = replace(plan, sketch=build_sketch(plan.stored.codes.rows))
                self._sketch_allowed = sketch_pays(sketch_plan)
            except torch.OutOfMemoryError:
                self._sketch_allowed = False
            if not self._sketch_allowed:
                return plan
            self._sketch = sketch_plan.sketch
        return replace(plan, sketch=self._sketch)


def sketch_pays(plan: SearchPlan) -> bool:
    """Return whether the sketch suffices for most of a sample of stored rows."""
    count = plan.stored.count
    rows = torch.arange(0, count, max(1, count // SKETCH_SAMPLE))[:SKETCH_SAMPLE].tolist()
    enough = 0
    for row in rows:
        query = plan.stored.decode(torch.tensor([row], device=plan.stored.codes.buffer.device))
        enough += int(plan.launch_sketch(query, plan.allocate_result(query.device))[1])
    return enough >= MIN_SKETCH_SHARE * len(rows)
