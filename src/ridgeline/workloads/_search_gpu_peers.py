"""The peers of `search` on a GPU, tuned as their documentation recommends: queries and results stay on the device, in
torch's stream, and values are float16 like ours.

FAISS-GPU  4 GB of scratch memory, queries as tensors (faiss.contrib.torch_utils); exact: float16 or float32, whichever
           is faster for the case; lists of float16, and PQ codes whose candidates torch ranks again
cuVS       one handle in torch's stream, so that a call waits for nothing; brute force, IVF-Flat, CAGRA
torch      the plain product with top-k; and as an expert writes it: maxima of groups, the best groups, their rows
           scored again in float32, replayed as a CUDA graph
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from ridgeline.lab import installed
from ridgeline.workloads._search_data import Vectors

Find = Callable[[Any, int], tuple[Any, Any]]  # scores, rows
Peer = tuple[Find, dict[str, Any]]
Tune = Callable[[Callable[[Any], Find], Sequence[Any]], tuple[Any, float]]  # the first setting that reaches the recall

TORCH_GROUPS = "torch groups + CUDA graph"
FAISS_GPU, CUVS = "FAISS-GPU Flat", "cuVS brute force"
FAISS_GPU_IVF, FAISS_GPU_PQ = "FAISS-GPU IVF float16", "FAISS-GPU IVF-PQ + rerank"
CUVS_IVF, CUVS_CAGRA = "cuVS IVF-Flat", "cuVS CAGRA"
EXACT = (TORCH_GROUPS, FAISS_GPU, CUVS)
APPROXIMATE = (FAISS_GPU_IVF, FAISS_GPU_PQ, CUVS_IVF, CUVS_CAGRA)
SCRATCH_BYTES = 4 << 30
GROUP = 64  # rows
MORE_GROUPS = 2  # times k: float16 scores are not exact, so the best group maxima are not quite the best
PROBES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
RERANKED = (2, 5, 10, 20, 50)  # candidates per result
MAX_RERANKED = 2048  # FAISS-GPU returns no more
TRIES = 5  # timings of the two types of an exact index


def is_available(name: str) -> bool:
    if name in (FAISS_GPU, FAISS_GPU_IVF, FAISS_GPU_PQ):
        return _has_faiss_gpu()
    return installed("torch") and (name == TORCH_GROUPS or installed("cuvs"))


@cache
def _has_faiss_gpu() -> bool:
    """Whether the module `faiss`, which faiss-cpu and the packages for GPUs share, has the parts for GPUs."""
    if not (installed("faiss") and installed("torch")):
        return False
    try:
        import torch  # noqa: F401  # first: it loads the CUDA libraries that faiss needs
        import faiss  # isort: skip
    except (ImportError, OSError):
        return False
    return hasattr(faiss, "StandardGpuResources")


def build_gpu_peer(name: str, vectors: Vectors, lists: int, device: str, tune: Tune, sample: Any) -> Peer:
    """Build a peer; `sample` [q, dim] are queries like those of the case, on the device."""
    if name == TORCH_GROUPS:
        return build_torch_groups(vectors, device)
    if name == FAISS_GPU:
        return _build_faiss_flat(vectors, sample)
    if name == FAISS_GPU_IVF:
        return _build_faiss_lists(vectors, lists, device, tune)
    if name == FAISS_GPU_PQ:
        return _build_faiss_parts(vectors, lists, device, tune)
    if name == CUVS:
        return _build_cuvs_exact(vectors, device)
    return _build_cuvs_lists(vectors, lists, device, tune) if name == CUVS_IVF else _build_cagra(vectors, device, tune)


def build_torch_groups(vectors: Vectors, device: str) -> Peer:
    """The maxima of groups of 64 rows, the best 2 · k groups, and the best of their rows in float32."""
    import torch

    count, dim = vectors.shape
    padded = -(-count // GROUP) * GROUP
    dtype = torch.float32 if device == "cpu" else torch.float16
    stored = torch.zeros((padded, dim), dtype=dtype, device=device)
    stored[:count] = torch.from_numpy(vectors).to(device, dtype)
    recorded: dict[tuple[int, int], tuple[Any, Any, Any]] = {}

    def search(queries: Any, k: int) -> tuple[Any, Any]:
        scores = queries.to(dtype) @ stored.T
        scores[:, count:] = float("-inf")
        grouped = scores.view(len(queries), -1, GROUP)
        groups = grouped.amax(2).topk(min(MORE_GROUPS * k, padded // GROUP), dim=1).indices
        candidates = grouped.gather(1, groups[:, :, None].expand(-1, -1, GROUP)).flatten(1)
        rows = (groups[:, :, None] * GROUP + torch.arange(GROUP, device=device)).flatten(1)
        best = candidates.topk(min(4 * k, candidates.shape[1]), dim=1)
        rows = rows.gather(1, best.indices)
        exact = torch.einsum("qd,qcd->qc", queries.float(), stored[rows.clamp(max=count - 1)].float())
        exact = exact.masked_fill(best.values == float("-inf"), float("-inf"))
        result = exact.topk(min(k, exact.shape[1]), dim=1)
        return result.values, rows.gather(1, result.indices)

    def find(queries: Any, k: int) -> tuple[Any, Any]:
        tensor = torch.as_tensor(queries, device=device)
        if device == "cpu":
            return search(tensor, k)
        key = (len(tensor), k)
        if key not in recorded:
            recorded[key] = _record(search, tensor, k)
        graph, given, result = recorded[key]
        given.copy_(tensor)
        graph.replay()
        return result[0].clone(), result[1].clone()

    return find, {"dtype": str(dtype), "group": GROUP, "groups per result": MORE_GROUPS}


def _record(search: Find, queries: Any, k: int) -> tuple[Any, Any, Any]:
    """Record a search as a CUDA graph: (graph, its queries, its result)."""
    import torch

    given = queries.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        search(given, k)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = search(given, k)
    return graph, given, result


def _load_faiss() -> tuple[Any, Any]:
    """(faiss, its resources), with tensors as arguments."""
    import torch  # noqa: F401  # first: it loads the CUDA libraries that faiss needs
    import faiss  # isort: skip
    import faiss.contrib.torch_utils  # isort: skip  # search takes tensors, and works in torch's stream

    resources = faiss.StandardGpuResources()
    resources.setTempMemory(SCRATCH_BYTES)
    return faiss, resources


def _build_faiss_flat(vectors: Vectors, sample: Any) -> Peer:
    faiss, resources = _load_faiss()
    best: tuple[float, Any, dict[str, Any]] | None = None
    for half in (True, False):
        config = faiss.GpuIndexFlatConfig()
        config.useFloat16, config.device = half, sample.device.index or 0
        index = faiss.GpuIndexFlatIP(resources, vectors.shape[1], config)
        index.add(vectors)
        settings = {"dtype": "float16" if half else "float32", "scratch": SCRATCH_BYTES, "queries": "device tensors"}
        elapsed_s = _time_calls(partial(index.search, sample, 10))
        if best is None or elapsed_s < best[0]:
            best = (elapsed_s, _keep(resources, index.search), settings)
    assert best is not None  # noqa: S101  # for the type checker
    return best[1], best[2]


def _time_calls(call: Callable[[], Any]) -> float:
    """The shortest of a few calls, after one that is not counted."""
    import torch

    best = float("inf")
    for attempt in range(TRIES + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if attempt:
            best = min(best, time.perf_counter() - start)
    return best


def _build_faiss_lists(vectors: Vectors, lists: int, device: str, tune: Tune) -> Peer:
    import torch

    faiss, resources = _load_faiss()
    config = faiss.GpuIndexIVFScalarQuantizerConfig()
    config.device = torch.device(device).index or 0
    index = faiss.GpuIndexIVFScalarQuantizer(
        resources, vectors.shape[1], lists, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT, False, config
    )
    index.train(vectors)
    index.add(vectors)

    def find(nprobe: Any) -> Find:
        index.nprobe = nprobe
        return _keep(resources, index.search)

    nprobe, recall = tune(find, [n for n in PROBES if n <= lists])
    return find(nprobe), {"index": f"IVF{lists},SQfp16", "nprobe": nprobe, "recall when tuned": recall}


def _build_faiss_parts(vectors: Vectors, lists: int, device: str, tune: Tune) -> Peer:
    import torch

    faiss, resources = _load_faiss()
    config = faiss.GpuIndexIVFPQConfig()
    config.device, config.useFloat16LookupTables = torch.device(device).index or 0, True
    parts = max(m for m in (8, 12, 16, 24, 32, 48, 64, 96) if vectors.shape[1] % m == 0)
    index = faiss.GpuIndexIVFPQ(resources, vectors.shape[1], lists, parts, 8, faiss.METRIC_INNER_PRODUCT, config)
    index.train(vectors)
    index.add(vectors)
    stored = torch.from_numpy(vectors).to(device, torch.float16)

    def find(knob: Any) -> Find:
        nprobe, factor = knob

        def search(queries: Any, k: int) -> tuple[Any, Any]:
            index.nprobe = nprobe
            rows = index.search(queries, min(MAX_RERANKED, k * factor))[1]
            exact = torch.einsum("qd,qcd->qc", queries.float(), stored[rows.clamp(min=0)].float())
            best = exact.masked_fill(rows < 0, float("-inf")).topk(k, dim=1)
            return best.values, rows.gather(1, best.indices)

        return _keep(resources, search)

    knobs = [(n, factor) for n in PROBES if n <= lists for factor in RERANKED]
    knob, recall = tune(find, sorted(knobs, key=lambda pair: pair[0] * (8 + pair[1])))
    settings = {"index": f"IVF{lists},PQ{parts}", "nprobe": knob[0], "reranked per result": knob[1]}
    return find(knob), {**settings, "recall when tuned": recall}


def _keep(resources: Any, search: Find) -> Find:
    """Return the search with the resources of its index, which must live as long."""

    def find(queries: Any, k: int) -> tuple[Any, Any]:
        _ = resources
        return search(queries, k)

    return find


def _open_cuvs(device: str) -> Any:
    """A handle in torch's stream: with it a call returns before the GPU is done."""
    import torch
    from cuvs.common import Resources

    return Resources(stream=torch.cuda.current_stream(torch.device(device)).cuda_stream)


def _wrap_cuvs(
    module: Any, index: Any, handle: Any, parameters: tuple[Any, ...], from_squares: bool, stored: Any
) -> Find:
    """Return the search; it keeps the vectors `stored`, which an index of cuVS reads and does not hold."""
    import torch

    def find(queries: Any, k: int) -> tuple[Any, Any]:
        _ = stored
        values = queries.half()
        arguments = (*parameters, index, values, k)
        scores, rows = (torch.as_tensor(v, device=values.device) for v in module.search(*arguments, resources=handle))
        return 1 - scores / 2 if from_squares else scores, rows.long()  # of unit vectors

    return find


def _build_cuvs_exact(vectors: Vectors, device: str) -> Peer:
    import torch
    from cuvs.neighbors import brute_force

    handle = _open_cuvs(device)
    stored = torch.from_numpy(vectors).to(device, torch.float16)
    index = brute_force.build(stored, metric="inner_product", resources=handle)
    return _wrap_cuvs(brute_force, index, handle, (), False, stored), {"dtype": "float16"}


def _build_cuvs_lists(vectors: Vectors, lists: int, device: str, tune: Tune) -> Peer:
    import torch
    from cuvs.neighbors import ivf_flat

    handle = _open_cuvs(device)
    stored = torch.from_numpy(vectors).to(device, torch.float16)
    parameters = ivf_flat.IndexParams(n_lists=lists, metric="inner_product")
    index = ivf_flat.build(parameters, stored, resources=handle)

    def find(nprobe: Any) -> Find:
        return _wrap_cuvs(ivf_flat, index, handle, (ivf_flat.SearchParams(n_probes=nprobe),), False, stored)

    nprobe, recall = tune(find, [n for n in PROBES if n <= lists])
    return find(nprobe), {"n_lists": lists, "n_probes": nprobe, "dtype": "float16", "recall when tuned": recall}


def _build_cagra(vectors: Vectors, device: str, tune: Tune) -> Peer:
    import torch
    from cuvs.neighbors import cagra

    handle = _open_cuvs(device)
    stored = torch.from_numpy(vectors).to(device, torch.float16)
    parameters = cagra.IndexParams(metric="sqeuclidean", graph_degree=64, intermediate_graph_degree=128)
    index = cagra.build(parameters, stored, resources=handle)

    def find(itopk: Any) -> Find:
        return _wrap_cuvs(cagra, index, handle, (cagra.SearchParams(itopk_size=itopk),), True, stored)

    itopk, recall = tune(find, [16, 32, 64, 128, 256, 512])
    settings = {"graph_degree": 64, "itopk_size": itopk, "dtype": "float16"}
    return find(itopk), {**settings, "recall when tuned": recall}
