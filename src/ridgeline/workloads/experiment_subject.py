"""The measurement of one point of an experiment, in its own placed process: images through a model and back.

The pool of images and answers is allocated after placement, on the node of the point, and checked page by page before
anything is timed. The time of a batch is the time between its arrival and the one before; each stage is then timed
again by itself.

GPUs that work together have a copy of the model, a part of the pool and a thread each. A sample is then the time of a
round: one batch on every GPU.
"""

from __future__ import annotations

import copy
import inspect
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, prod
from typing import Any

from ridgeline.errors import InputError, PlacementError
from ridgeline.lab.experiment import PointRequest, PointResult, import_name
from ridgeline.machine import Placement, count_pages_by_node, now_ns, placed
from ridgeline.pipeline import (
    STAGES,
    GraphRecording,
    Intervals,
    Staging,
    allocate_pinned,
    make_chrome_trace,
    span,
    stream,
    take_excerpt,
)
from ridgeline.workloads.experiment_points import count_bytes
from ridgeline.workloads.pipeline import TOLERANCE
from ridgeline.workloads.vit import Vit, build

CHECKED = 2  # images that are compared with float64
ROUNDS = 4  # of each stage by itself, before and after the stream
# Long enough for a GPU to reach the clock that its power limit allows, as it does in the stream: an H200 computed a
# wide model in 6.5 ms during the first 60 ms, and in 6.9 ms afterwards.
ROUND_NS = 60_000_000
MAX_CALLS = 256  # in a round
TRACED = 512  # batches in the Chrome trace
READY_S = 60.0  # in which all devices must be ready to start
RECORDED = 64  # batches whose stage times go into the record


@dataclass
class Pool:
    """Host memory of one node: `slots` batches of images, and memory for their answers."""

    images: Any  # [slots, B, C, H, W]
    answers: Any  # [slots, B, …]
    nodes: dict[int, int]  # node -> number of checked pages on it

    @property
    def slots(self) -> int:
        return len(self.images)


def measure(request: PointRequest) -> PointResult:
    """Measure one point: samples of single batches, stage times, the check of the output, peak memory."""
    import torch

    params, count = request.params, len(request.devices)
    torch.set_num_threads(len(request.staging.cpus or ()) or torch.get_num_threads())
    dtype = getattr(torch, params["dtype"])
    plain = load_model(params)
    with torch.inference_mode():
        shape = tuple(plain(torch.zeros(1, *_get_image_shape(params))).shape[1:])
        devices = [_Device(name, plain, request.staging, params, shape, dtype, count) for name in request.devices]
        before = [device.time_stages() for device in devices]
        batches = ceil(params["num_samples"] / params["batch_size"] / count)
        for device in devices:
            device.pool.answers.fill_(float("nan"))
        with span("measured"):
            timelines, arrivals_ns = _stream_all(devices, batches + 1)  # one more: samples are differences
        checks = [_check(plain, device.pool, batches % device.pool.slots, params["dtype"]) for device in devices]
        after = [device.time_stages() for device in devices]
        # Rounds before and after the stream: the load of the machine may change meanwhile.
        alone = {
            stage: max(statistics.median([*b[stage], *a[stage]]) for b, a in zip(before, after, strict=True))
            for stage in STAGES
        }
        work = None
        if params["module"]:
            work = _count_work(plain, params, shape, dtype.itemsize, request.device, count)
        columns: dict[str, Any] = {"compile_seconds": devices[0].compile_s}
        if params["module"]:
            columns["parameters"] = _count_parameters(plain)
    first, timeline = devices[0].pool, timelines[0]
    pages: Counter[int] = sum((Counter(device.pool.nodes) for device in devices), Counter())
    return PointResult(
        samples_ns=[max(1.0, b - a) for a, b in pairwise(arrivals_ns)],
        work=work,
        check=next((check for check in checks if not check["ok"]), checks[0]),
        settings={
            "host memory": "pinned" if first.images.is_pinned() else "plain",
            "threads": torch.get_num_threads(),
            "slots": first.slots,
            **({"devices": count} if count > 1 else {}),
        },
        extras={
            "alone_ns": alone,
            "stages_ns": {
                stage: [round(_get_length(getattr(batch, stage)) * 1e9) for batch in timeline[-RECORDED:]]
                for stage in STAGES
            },
            "staging_nodes": {str(node): number for node, number in pages.items()},
            "timeline": take_excerpt(timeline),
            "columns": columns,
        },
        files={"trace.json": make_chrome_trace(timeline[:TRACED], process=f"{params['model']} on {request.device}")},
    )


class _Device:
    """One device with its copy of the model, its part of the pool and its warm stream."""

    def __init__(
        self,
        name: str,
        plain: Any,
        staging: Placement,
        params: Mapping[str, Any],
        shape: tuple[int, ...],
        dtype: Any,
        count: int,
    ) -> None:
        import torch

        self.name = name
        self.select()
        model = copy.deepcopy(plain).to(name, dtype) if hasattr(plain, "to") else plain
        self.pool = _allocate_pool(staging, params, shape, dtype, name, count)
        images = torch.empty_like(self.pool.images[0], device=name).copy_(self.pool.images[0])
        run, self.compile_s = _compile(model, params, images)
        self.stream = _BatchStream(params, self.pool, run, images, name)
        with span("warm-up"):
            self.stream(max(self.stream.first, ceil(params["warmup_samples"] / params["batch_size"] / count)))
        self._images, self._compute = _prepare_compute(run, images, params["graph"])

    def select(self) -> None:
        """Make it the current device of the calling thread."""
        if self.name != "cpu":
            import torch

            torch.cuda.set_device(self.name)

    def time_stages(self) -> dict[str, list[float]]:
        """Return the nanoseconds per batch of each stage by itself, one value per round."""
        self.select()
        return _time_stages(self.pool, self._compute, self._images, self.name)


def _stream_all(devices: Sequence[_Device], batches: int) -> tuple[list[list[Intervals]], list[float]]:
    """Stream `batches` batches through every device at once.

    Returns the timeline of each device, and the nanoseconds at which each round had arrived: of one device by its own
    clock, of several by the clock of the host, which they share.
    """
    if len(devices) == 1:
        timeline = devices[0].stream(batches)
        return [timeline], [batch.d2h[1] * 1e9 for batch in timeline]
    import torch

    ready = threading.Barrier(len(devices))

    def run(device: _Device) -> tuple[list[Intervals], list[int]]:
        arrivals: list[int] = []
        with torch.inference_mode():  # holds for one thread
            device.select()
            ready.wait(timeout=READY_S)
            timeline = device.stream(batches, arrivals)
        return timeline, arrivals

    with ThreadPoolExecutor(len(devices)) as pool:
        results = list(pool.map(run, devices))
    rounds = zip(*(arrivals for _, arrivals in results), strict=True)
    return [timeline for timeline, _ in results], [float(max(times)) for times in rounds]


def load_model(params: Mapping[str, Any]) -> Any:
    """Return the model in float32 on the CPU: a transformer, or the product of the user's factory."""
    if not params["module"]:
        names = ("patch_size", "depth", "heads", "dim", "mlp_dim", "output")
        return build(Vit(image=_get_image_shape(params), **{name: params[name] for name in names}))
    factory = import_name(params["module"])
    if not callable(factory):
        raise InputError(f"experiment.module '{params['module']}' is no factory; name a function that makes the model.")
    needed = [p for p in inspect.signature(factory).parameters.values() if p.default is p.empty and p.kind < 2]
    if needed:
        raise InputError(
            f"experiment.module '{params['module']}' needs '{needed[0].name}'; name one without arguments."
        )
    model = factory()
    return model.eval() if hasattr(model, "eval") else model


def _get_image_shape(params: Mapping[str, Any]) -> tuple[int, int, int]:
    return params["channels"], params["image_size"], params["image_width"]


def _allocate_pool(
    staging: Placement, params: Mapping[str, Any], shape: tuple[int, ...], dtype: Any, device: str, count: int
) -> Pool:
    """Allocate the pool of a device: its part of the memory, which `count` devices share."""
    import torch

    batch, image = params["batch_size"], _get_image_shape(params)
    slot_bytes = batch * (prod(image) + prod(shape)) * dtype.itemsize
    slots = max(1, (params["memory_size_mb"] << 20) // count // slot_bytes)
    pin = device != "cpu" and params["pinned"]

    def allocate(*sizes: int) -> Any:
        return allocate_pinned(sizes, dtype) if pin else torch.empty(sizes, dtype=dtype)

    with placed(staging):
        images, answers = allocate(slots, batch, *image), allocate(slots, batch, *shape)
        values = torch.randn(images.shape[1:], generator=torch.Generator().manual_seed(1)).to(dtype)
        for slot in images:
            slot.copy_(values)
        answers.zero_()
    pages: dict[int, int] = {}
    for tensor in (images, answers):
        for node, count in count_pages_by_node(tensor.data_ptr(), tensor.numel() * tensor.element_size()).items():
            pages[node] = pages.get(node, 0) + count
    other_nodes = set(pages) - {staging.node}
    if other_nodes and staging.memory == "bind":
        raise PlacementError(
            f"staging memory belongs on node {staging.node}, but pages of it are on node "
            f"{', '.join(map(str, sorted(other_nodes)))}."
        )
    return Pool(images, answers, pages)


def _compile(model: Any, params: Mapping[str, Any], images: Any) -> tuple[Callable[[Any], Any], float | None]:
    """Return the function that runs the model, and the seconds of its compilation (None: not compiled)."""
    import torch

    mode = params["compile_mode"]
    if not mode:
        model(images)
        _synchronize(images)
        return model, None
    start_ns = now_ns()
    with span("compile"):
        compiled = torch.compile(model, mode=mode)
        # A replayed graph overwrites its last answer, so the answer is copied.
        copies = mode not in ("default", "max-autotune-no-cudagraphs")
        run = (lambda batch: compiled(batch).clone()) if copies else compiled
        for _ in range(3):  # torch records graphs after the first calls
            run(images)
        _synchronize(images)
    return run, (now_ns() - start_ns) / 1e9


class _BatchStream:
    """Streams batches of the pool through the model; several calls share recorded graphs."""

    def __init__(
        self, params: Mapping[str, Any], pool: Pool, run: Callable[[Any], Any], device_images: Any, device: str
    ) -> None:
        self._pool, self._device, self._copy_seconds = pool, device, list[float]()
        self._options = {"depth": params["ring"], "graph": params["graph"], "staging": Staging()}
        self.first = params["ring"] + 2 if params["graph"] else 0  # batches until every slot has its recording

        def run_on_cpu(batch: dict[str, Any]) -> dict[str, Any]:
            start_ns = now_ns()
            device_images.copy_(batch["images"])  # from the pool's node into memory local to the CPUs
            self._copy_seconds.append((now_ns() - start_ns) / 1e9)
            return {"answer": run(device_images)}

        def run_on_gpu(batch: dict[str, Any]) -> dict[str, Any]:
            return {"answer": run(batch["images"])}

        self._fn = run_on_cpu if device == "cpu" else run_on_gpu

    def __call__(self, batches: int, arrivals_ns: list[int] | None = None) -> list[Intervals]:
        """Stream this many batches; `arrivals_ns` gets the time of the host at each arrival."""
        images, answers, slots = self._pool.images, self._pool.answers, self._pool.slots
        self._copy_seconds.clear()
        source = ({"images": images[number % slots]} for number in range(batches))
        out = lambda number: {"answer": answers[number % slots]}  # noqa: E731
        with stream(source, self._fn, device=self._device, out=out, **self._options) as results:
            for _ in results:
                if arrivals_ns is not None:
                    arrivals_ns.append(now_ns())
            timeline = results.timeline()
        return [_split_copy(i, self._copy_seconds[i.index]) for i in timeline] if self._copy_seconds else timeline


def _split_copy(batch: Intervals, copy_seconds: float) -> Intervals:
    """On a CPU the copy to the device is the first part of what fn does: split it from compute."""
    start, end = batch.compute
    copy_end = min(end, start + copy_seconds)
    return replace(batch, h2d=(start, copy_end), compute=(copy_end, end))


def _prepare_compute(run: Callable[[Any], Any], images: Any, graph: bool) -> tuple[Any, Callable[[], Any]]:
    """Return the input on the device, and the model over it as the stream runs it: called, or replayed."""
    if not graph:
        return images, lambda: run(images)
    recording = GraphRecording(0, lambda b: {"answer": run(b["images"])}, {"images": images}, images.device, None, ())

    def replay() -> Any:
        recording.replay()
        return recording.result["answer"]

    recording.inputs["images"].copy_(images)
    return recording.inputs["images"], replay


def _time_stages(pool: Pool, compute: Callable[[], Any], images: Any, device: str) -> dict[str, list[float]]:
    """Return the nanoseconds per batch of each stage by itself, one value per round."""
    result = compute()
    asynchronous = device != "cpu" and pool.images.is_pinned()

    def copy_up(number: int) -> None:
        images.copy_(pool.images[number % pool.slots], non_blocking=asynchronous)

    def run_model(number: int) -> None:
        compute()

    def copy_down(number: int) -> None:
        pool.answers[number % pool.slots].copy_(result, non_blocking=asynchronous)

    times = {}
    for name, stage in zip(STAGES, (copy_up, run_model, copy_down), strict=True):
        with span(f"{name} alone"):
            times[name] = _time_rounds(stage, images)
    return times


def _time_rounds(stage: Callable[[int], None], images: Any) -> list[float]:
    def time_calls(calls: int) -> float:
        _synchronize(images)
        start_ns = now_ns()
        for number in range(calls):
            stage(number)
        _synchronize(images)
        return (now_ns() - start_ns) / calls

    first_ns = time_calls(2)
    calls = max(1, min(MAX_CALLS, int(ROUND_NS / max(1.0, first_ns))))
    return [time_calls(calls) for _ in range(ROUNDS)]


def _synchronize(tensor: Any) -> None:
    if tensor.is_cuda:
        import torch

        torch.cuda.synchronize()


def _check(plain: Any, pool: Pool, slot: int, dtype: str) -> dict[str, Any]:
    """Compare the last answers of the timed stream with the same model in float64."""
    images = pool.images[slot, :CHECKED].double()
    answers = pool.answers[slot, :CHECKED].double()
    reference = copy.deepcopy(plain)
    expected = reference.double()(images) if hasattr(reference, "double") else reference(images)
    error = float((answers - expected).abs().max() / max(1e-12, float(expected.std())))
    tolerance = TOLERANCE[dtype]
    note = f"largest error against float64, in units of the spread; allowed {tolerance}"
    return {"ok": error <= tolerance, "error": error if error == error else None, "quality": {}, "note": note}


def _count_work(
    plain: Any, params: Mapping[str, Any], shape: tuple[int, ...], size: int, device: str, count: int
) -> dict[str, Any]:
    """Count FLOPs and bytes on the model itself, where its structure is not known beforehand."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        plain(torch.zeros(1, *_get_image_shape(params)))
    batch = count * params["batch_size"]
    up, down = batch * prod(_get_image_shape(params)) * size, batch * prod(shape) * size
    weights = count * _count_parameters(plain) * size
    return {"flops": counter.get_total_flops() * batch, "bytes": count_bytes(up, down, weights, device != "cpu")}


def _count_parameters(plain: Any) -> int:
    return sum(p.numel() for p in getattr(plain, "parameters", list)())


def _get_length(interval: tuple[float, float]) -> float:
    return interval[1] - interval[0]
