"""Search on a GPU: vectors, queries and results are tensors of the GPU; `ridgeline.kernels.search` does the work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ridgeline.errors import InputError
from ridgeline.kernels.search import (
    assign_centres,
    find_nearest_lists,
    prepare_queries,
    sample_rows,
    train_centres,
)
from ridgeline.search.arrays import Array
from ridgeline.search.codecs import encode_whole_vectors
from ridgeline.search.cuda_search import Recording, Refiner, ReplayCache, RowFilter, SearchPlan
from ridgeline.search.cuda_storage import Codes, ListLayout, StoredRows, make_empty_lists, restore_codes, train_codes
from ridgeline.search.engine import EngineConfig, SearchOptions
from ridgeline.search.inputs import as_matrix, check_shape, compute_finite_norms, is_tensor
from ridgeline.search.spec import check_dimension
from ridgeline.search.tensors import GrowableTensor, view_as_tensor

ROWS_PER_CHECK = 1 << 18
PQ_SAMPLE = 65_536


@dataclass(frozen=True)
class CudaBackend:
    """Makes engines on one GPU."""

    device: str

    def prepare_vectors(self, vectors: Any, dim: int | None, metric: str, what: str) -> Any:
        """Return float32 vectors on this GPU. Queries on a GPU are not checked, so that nothing waits: see
        `Index.search`.
        """
        if is_tensor(vectors):
            check_shape(tuple(vectors.shape), dim, what)
            if vectors.dtype.is_complex:
                raise InputError(f"the {what} are of type {vectors.dtype}; give real numbers.")
            values = vectors.detach()
            values = values if values.dtype in (torch.float32, torch.float16, torch.bfloat16) else values.float()
        else:
            values = view_as_tensor(as_matrix(vectors, dim, what))
        if what == "queries":
            if not values.is_cuda:
                compute_finite_norms(values.float().numpy(), what)
            return RawQueries(values)
        with explain_out_of_memory(self.device, values.numel() * 4, f"the {what}"):
            return _check_vectors(values, torch.device(self.device), metric, what)

    def convert_like(self, values: Any, like: Any) -> Any:
        if isinstance(values, np.ndarray):
            values = torch.from_numpy(values)
        if is_tensor(like):
            return values.to(like.device)
        return values.cpu().numpy()

    def train_engine(self, config: EngineConfig, vectors: torch.Tensor, seed: int = 0) -> CudaEngine:
        spec, metric = config.spec, "ip" if config.metric == "cosine" else "l2"
        check_dimension(spec, config.dim)
        if spec.trains and not len(vectors):
            raise InputError(f"'{spec}' cannot learn from no vectors; train with some that are like those to come.")
        centres, residual = None, vectors
        with explain_out_of_memory(self.device, 0, f"training '{spec}'"):
            if spec.lists is not None:
                if len(vectors) < spec.lists:
                    raise InputError(
                        f"'{spec}' needs {spec.lists} vectors or more to learn from and was given {len(vectors)}; "
                        "give more or use fewer lists."
                    )
                sample = sample_rows(vectors, spec.lists, seed)
                train_sample = sample.half() if metric == "ip" and sample.is_cuda else sample
                centres = train_centres(train_sample, spec.lists, metric=metric, seed=seed)
            if spec.codec == "PQ" and centres is not None:
                sample = sample_rows(vectors, 1, seed, PQ_SAMPLE)
                residual = sample - centres[assign_centres(sample, centres, metric=metric)[0].long()]
            codec = train_codes(config, spec.codec, residual, seed)
            refiner = None
            if spec.refine is not None:
                refine_codec = train_codes(config, spec.refine, vectors, seed)
                refiner = Refiner(refine_codec, _make_empty_codes(refine_codec, config.dim, vectors.device))
            return CudaEngine(
                config, self.device, _make_empty_rows(config, codec, centres, vectors.device), refiner, ReplayCache()
            )

    def restore_engine(self, config: EngineConfig, arrays: Mapping[str, Array]) -> CudaEngine:
        device = torch.device(self.device)
        if "residual" in arrays:
            arrays = encode_whole_vectors(arrays)

        def tensor(name: str) -> torch.Tensor:
            return torch.from_numpy(np.array(arrays[name])).to(device)

        spec = config.spec
        with explain_out_of_memory(self.device, sum(array.nbytes for array in arrays.values()), "the saved index"):
            codec = restore_codes(config, spec.codec, arrays, "", device)
            stored = _make_empty_rows(config, codec, tensor("centres") if spec.lists else None, device)
            codes = codec.import_codes(tensor("codes"))
            count = len(codes)
            bias = None if stored.bias is None else GrowableTensor(2 * tensor("biases"), count)
            lists = stored.lists
            if lists is not None:
                starts = tensor("offsets").int()
                sizes = starts.diff()
                list_ids = torch.repeat_interleave(torch.arange(len(sizes), device=device, dtype=torch.int32), sizes)
                lists = ListLayout(lists.centres, list_ids, tensor("rows").long(), starts, int(sizes.max()))
            unmeasured = StoredRows(
                codec, GrowableTensor(codes, count), bias, stored.longest, lists, stored.list_metric
            )
            longest = torch.maximum(
                unmeasured.longest, unmeasured._measure_norms(codes, None if lists is None else lists.list_ids)[0]
            )
            refiner = None
            if spec.refine is not None:
                refine_codec = restore_codes(config, spec.refine, arrays, "refine_", device)
                refine_rows = refine_codec.import_codes(tensor("refine_codes"))
                refiner = Refiner(refine_codec, GrowableTensor(refine_rows, len(refine_rows)))
            stored_rows = StoredRows(codec, unmeasured.codes, bias, longest, lists, stored.list_metric)
            return CudaEngine(config, self.device, stored_rows, refiner, ReplayCache())


def open_backend(device: str) -> CudaBackend:
    index = torch.device(device).index
    return CudaBackend(f"cuda:{torch.cuda.current_device() if index is None else index}")


@contextmanager
def explain_out_of_memory(device: str, size: int, what: str) -> Iterator[None]:
    """Turn an out-of-memory error of the GPU into an InputError that says what did not fit."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(torch.device(device))
        amount = f" ({size / 1e9:.1f} GB)" if size else ""
        raise InputError(
            f"{what}{amount} do not fit into {device}: {free / 1e9:.1f} of {total / 1e9:.1f} GB are free; "
            "use SQ8, Index.shard over several GPUs, or device='cpu'."
        ) from error


def _check_vectors(values: torch.Tensor, device: torch.device, metric: str, what: str) -> torch.Tensor:
    """Return vectors on the device, finite, at unit length for cosine; in parts, because a copy may not fit."""
    on_device = values.to(device).float()
    out = torch.empty_like(on_device) if metric == "cosine" else on_device
    for at in range(0, len(on_device), ROWS_PER_CHECK):
        part = on_device[at : at + ROWS_PER_CHECK]
        norms = part.double().norm(dim=1)
        if not bool(torch.isfinite(norms).all()):
            raise_not_finite(on_device, at + int((~torch.isfinite(norms)).nonzero()[0]), what)
        if metric == "cosine":
            out[at : at + ROWS_PER_CHECK] = part / torch.where(norms > 0, norms, 1.0)[:, None]
    return out


def _make_empty_codes(codec: Codes, dim: int, device: Any) -> GrowableTensor:
    return GrowableTensor(codec.encode(torch.zeros((0, dim), device=device)), 0)


def _make_empty_rows(config: EngineConfig, codec: Codes, centres: torch.Tensor | None, device: Any) -> StoredRows:
    bias = GrowableTensor(torch.empty(0, device=device), 0) if config.metric == "l2" else None
    return StoredRows(
        codec,
        _make_empty_codes(codec, config.dim, device),
        bias,
        torch.zeros(1, device=device),
        None if centres is None else make_empty_lists(centres),
        "ip" if config.metric == "cosine" else "l2",
    )


# The engine: a search copies nothing to the host and does not wait for the GPU.


MAX_SCORES = 1 << 26  # in memory at a time in a search by radius


@dataclass(frozen=True)
class RawQueries:
    """Queries as the caller gave them: of any float type, any norm, on any device."""

    values: torch.Tensor

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class CudaEngine:
    """Vectors on a GPU."""

    config: EngineConfig
    device: str
    stored: StoredRows
    refiner: Refiner | None
    replays: ReplayCache

    @property
    def count(self) -> int:
        return self.stored.count

    @property
    def nbytes(self) -> int:
        refine_codes = [] if self.refiner is None else [self.refiner.codes.rows]
        return self.replays.nbytes + sum(int(t.nbytes) for t in [*self.stored.tensors(), *refine_codes])

    def append(self, vectors: torch.Tensor) -> CudaEngine:
        with self._use_device(), explain_out_of_memory(self.device, vectors.numel() * 4, "the vectors"):
            refiner = self.refiner
            if refiner is not None:
                refiner = replace(refiner, codes=refiner.codes.append(refiner.codec.encode(vectors)))
            stored = self.stored.append(vectors) if len(vectors) else self.stored
            return replace(self, stored=stored, refiner=refiner, replays=ReplayCache())

    def select_rows(self, rows: Array) -> CudaEngine:
        rows_tensor = self._row_tensor(rows)
        refiner = self.refiner
        if refiner is not None:
            refiner = replace(refiner, codes=GrowableTensor(refiner.codes.rows[rows_tensor], len(rows_tensor)))
        return replace(self, stored=self.stored.select_rows(rows_tensor), refiner=refiner, replays=ReplayCache())

    def search(self, queries: Any, options: SearchOptions) -> tuple[torch.Tensor, torch.Tensor]:
        values = queries.values if isinstance(queries, RawQueries) else queries
        with self._use_device():
            row_filter = self._get_row_filter(options)
            plan = SearchPlan(self.stored, self.refiner, self.config.metric, options, row_filter, self._early)
            if self._simulated:
                return plan(values)
            return self.replays.search(_make_key(values, options), values, plan, self.device, row_filter)

    def get_fast_path(self, queries: RawQueries, options: SearchOptions) -> Recording | None:
        """Return the recording of such a search, or None."""
        return (
            None
            if self._simulated
            else self.replays.get(_make_key(queries.values, options), self._get_row_filter(options))
        )

    def search_radius(self, queries: Any, radius: float, options: SearchOptions) -> tuple[Any, Any, Any]:
        """Search by radius: all scores of some queries at a time in float32, then the near ones in float64."""
        values = queries.values if isinstance(queries, RawQueries) else queries
        with self._use_device():
            prepared, norms, _ = prepare_queries(values.to(self.device), self.config.metric == "cosine")
            if not bool(torch.isfinite(norms).all()):
                raise_not_finite(values, int((~torch.isfinite(norms)).nonzero()[0]), "queries")
            allowed = None if options.allowed is None else self._to_stored_order(self._tensor(options.allowed)).bool()
            tie = self._row_tensor(options.ids) if options.ids is not None else None
            queries_per_part = max(1, MAX_SCORES // max(1, self.count))
            limits, scores, rows = [np.zeros(1, np.int64)], [], []
            for at in range(0, len(prepared), queries_per_part):
                part = prepared[at : at + queries_per_part]
                is_near = self._find_near(part, radius, options.nprobe, allowed)
                query_ids, positions = is_near.nonzero(as_tuple=True)
                row = positions if self.stored.lists is None else self.stored.lists.row_ids[positions]
                score = self._compute_exact(part, query_ids, positions, row)
                mask = score < radius if self._squared else score > radius
                query_ids, row, score = query_ids[mask], row[mask], score[mask]
                order = _sort_by_query(query_ids, score if self._squared else -score, row if tie is None else tie[row])
                counts = torch.bincount(query_ids, minlength=len(part)).cpu().numpy()
                limits.append(limits[-1][-1] + np.cumsum(counts))
                scores.append(score[order])
                rows.append(row[order])
        empty = torch.zeros(0, dtype=torch.float64, device=self.device)
        return np.concatenate(limits), torch.cat([empty, *scores]), torch.cat([empty.long(), *rows])

    def vectors(self, rows: Array) -> torch.Tensor:
        rows_tensor = self._row_tensor(rows)
        if self.refiner is not None:
            return self.refiner.codec.decode(self.refiner.codes.rows[rows_tensor])
        return self.stored.decode(self.stored.locate(rows_tensor))

    def arrays(self) -> Mapping[str, Array]:
        stored = self.stored
        arrays = {**stored.codec.arrays(), "codes": stored.codec.export_codes(stored.codes.rows)}
        if stored.lists is not None:
            arrays["rows"] = stored.lists.row_ids.cpu().numpy()
            arrays["offsets"] = stored.lists.starts.cpu().numpy().astype(np.int64)
            arrays["centres"] = stored.lists.centres.cpu().numpy()
        if stored.bias is not None:
            arrays["biases"] = (stored.bias.rows / 2).cpu().numpy()
        if self.refiner is not None:
            arrays["refine_codes"] = self.refiner.codec.export_codes(self.refiner.codes.rows)
            arrays |= {f"refine_{name}": array for name, array in self.refiner.codec.arrays().items()}
        longest = 0.0
        for at in range(0, self.count, 1 << 18):
            rows = torch.arange(at, min(self.count, at + (1 << 18)), device=self.stored.codes.buffer.device)
            longest = max(longest, float(stored.decode(rows).double().norm(dim=1).max()))
        arrays["longest"] = np.array([longest])
        return arrays

    @property
    def _squared(self) -> bool:
        return self.config.metric == "l2"

    @property
    def _simulated(self) -> bool:
        """Whether the kernels run in Triton's interpreter on the CPU, as in tests."""
        return self.device == "cpu"

    @property
    def _early(self) -> bool:
        """Whether kernels can wait for each other on the GPU: from Hopper on."""
        return not self._simulated and torch.cuda.get_device_capability(self.device) >= (9, 0)

    def _get_row_filter(self, options: SearchOptions) -> RowFilter:
        """Return the filter on the GPU; filters that repeat, such as removed rows, are cached."""
        known: RowFilter
        for known in self.replays.filters:
            if known.source[0] is options.allowed and known.source[1] is options.ids:
                return known
        lists = self.stored.lists
        allowed = None if options.allowed is None else self._to_stored_order(self._tensor(options.allowed))
        if options.ids is None:
            row_filter = RowFilter((options.allowed, None), allowed, None if lists is None else lists.row_ids, None)
        else:
            order = self._row_tensor(np.argsort(options.ids, kind="stable"))
            rank = torch.empty_like(order)
            rank[order] = torch.arange(len(order), device=order.device)
            row_filter = RowFilter((options.allowed, options.ids), allowed, self._to_stored_order(rank), order)
        self.replays.filters = [row_filter, *self.replays.filters[:1]]
        return row_filter

    def _to_stored_order(self, by_row: torch.Tensor) -> torch.Tensor:
        return by_row if self.stored.lists is None else by_row[self.stored.lists.row_ids]

    def _find_near(
        self, queries: torch.Tensor, radius: float, nprobe: int, allowed: torch.Tensor | None
    ) -> torch.Tensor:
        """bool [q, N]: rows whose float32 score can be near enough."""
        values = self.stored.decode(torch.arange(self.count, device=queries.device))
        scores = queries @ values.T
        bound = queries.norm(dim=1, keepdim=True) * values.norm(dim=1)[None, :]
        if self._squared:
            scores = 2 * scores - values.square().sum(1)
            min_score = queries.square().sum(1, keepdim=True) - radius
            bound = 2 * bound + values.square().sum(1) + queries.square().sum(1, keepdim=True) + abs(radius)
        else:
            min_score = torch.full((len(queries), 1), radius, device=queries.device)
        is_near = scores >= min_score - bound * (values.shape[1] + 8) * 2.0**-23
        if self.stored.lists is not None:
            probes = min(nprobe, len(self.stored.lists.centres))
            metric = "l2" if self._squared else "ip"
            probed = find_nearest_lists(queries, self.stored.lists.centres, probes, metric=metric)
            is_probed = torch.zeros(
                (len(queries), len(self.stored.lists.centres)), dtype=torch.bool, device=is_near.device
            )
            is_probed.scatter_(1, probed.long(), True)
            is_near &= is_probed[:, self.stored.lists.list_ids.long()]
        return is_near if allowed is None else is_near & allowed

    def _compute_exact(
        self, queries: torch.Tensor, query_ids: torch.Tensor, positions: torch.Tensor, row: torch.Tensor
    ) -> Any:
        out = torch.empty(len(query_ids), dtype=torch.float64, device=queries.device)
        for at in range(0, len(query_ids), 1 << 18):
            part = slice(at, at + (1 << 18))
            if self.refiner is not None:
                x = self.refiner.codec.decode(self.refiner.codes.rows[row[part]])
            else:
                x = self.stored.decode(positions[part])
            q, x = queries[query_ids[part]].double(), x.double()
            out[part] = (q - x).square().sum(1) if self._squared else (q * x).sum(1)
        return out

    def _row_tensor(self, rows: Array) -> torch.Tensor:
        return self._tensor(np.asarray(rows, np.int64))

    def _tensor(self, array: Array) -> torch.Tensor:
        return view_as_tensor(np.ascontiguousarray(array)).to(self.device)

    def _use_device(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._simulated else torch.cuda.device(self.device)


def raise_not_finite(vectors: torch.Tensor, row: int, what: str) -> None:
    """Raise an InputError that names the first value of the row that is not finite."""
    column = int((~torch.isfinite(vectors[row].float())).nonzero()[0])
    value = float(vectors[row, column])
    raise InputError(f"row {row} of the {what} holds {value} in column {column}; remove or correct it first.")


def _make_key(queries: torch.Tensor, options: SearchOptions) -> tuple[Any, ...]:
    return queries.shape, queries.dtype, options.k, options.nprobe, options.depth


def _sort_by_query(query_ids: torch.Tensor, score: torch.Tensor, tie: torch.Tensor) -> torch.Tensor:
    """Return an order by query, then score, then tie."""
    order = tie.argsort(stable=True)
    order = order[score[order].argsort(stable=True)]
    return order[query_ids[order].argsort(stable=True)]
