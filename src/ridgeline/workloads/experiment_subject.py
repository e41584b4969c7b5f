"""One point of an experiment, measured in its own placed process: images through a model and back.

The pool that images come from and answers go to is allocated after placement, on the asked node, and looked at page by
page before anything is timed. Times of single batches are the distances between their arrivals; each stage is then
timed once more with nothing beside it.
"""

from __future__ import annotations

import copy
import inspect
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, prod
from typing import Any

from ridgeline.errors import InputError, PlacementError
from ridgeline.lab.experiment import Order, Outcome, resolve
from ridgeline.machine import Placement, nodes_of, now_ns, placed
from ridgeline.pipeline import STAGES, Intervals, Recording, Staging, chrome_trace, excerpt, pinned, span, stream
from ridgeline.workloads.experiment_points import moved
from ridgeline.workloads.pipeline import LEAST
from ridgeline.workloads.vit import Vit, build

CHECKED = 2  # images held against float64
ROUNDS = 4  # of each stage by itself, before and after
# Long enough together for a GPU to reach the clock its power allows, as it does in the stream: an H200 computed a wide
# model in 6.5 ms for 60 ms and in 6.9 from then on.
ROUND_NS = 60_000_000
MOST_CALLS = 256  # in a round
TRACED = 512  # batches in the Chrome trace
KEPT = 64  # batches whose stage times go into the record


@dataclass
class Pool:
    """Host memory of one node: `slots` batches of images, and room for their answers."""

    images: Any  # [slots, B, C, H, W]
    answers: Any  # [slots, B, …]
    nodes: dict[int, int]  # node -> pages that lie there, of those looked at

    @property
    def slots(self) -> int:
        return len(self.images)


def measure(order: Order) -> Outcome:
    """The samples of one point, with everything else that was seen."""
    import torch

    params, device = order.params, order.device
    if device != "cpu":
        torch.cuda.set_device(device)
    torch.set_num_threads(len(order.staging.cpus or ()) or torch.get_num_threads())
    dtype = getattr(torch, params["dtype"])
    plain = model_of(params)
    model = copy.deepcopy(plain).to(device, dtype) if hasattr(plain, "to") else plain
    with torch.inference_mode():
        shape = tuple(plain(torch.zeros(1, *_image(params))).shape[1:])
        pool = _pool(order.staging, params, shape, dtype, device)
        there = torch.empty_like(pool.images[0], device=device).copy_(pool.images[0])
        run, compile_s = _compiled(model, params, there)
        through = _Through(params, pool, run, there, device)
        with span("warm-up"):
            through(max(through.first, ceil(params["warmup_samples"] / params["batch_size"])))
        there, play = _playing(run, there, params["graph"])
        before = _alone(pool, play, there, device)
        pool.answers.fill_(float("nan"))
        batches = ceil(params["num_samples"] / params["batch_size"])
        with span("measured"):
            timeline = through(batches + 1)  # one more: times are distances
        check = _check(plain, pool, batches % pool.slots, params["dtype"])
        after = _alone(pool, play, there, device)
        alone = {s: statistics.median([*before[s], *after[s]]) for s in STAGES}  # the weather on both sides
        work = None if not params["module"] else _work(plain, params, shape, dtype.itemsize, device)
        columns: dict[str, Any] = {"compile_seconds": compile_s}
        if params["module"]:
            columns["parameters"] = _parameters(plain)
    return Outcome(
        samples_ns=[max(1.0, (b.d2h[1] - a.d2h[1]) * 1e9) for a, b in pairwise(timeline)],
        work=work,
        check=check,
        settings={
            "host memory": "pinned" if pool.images.is_pinned() else "plain",
            "threads": torch.get_num_threads(),
            "slots": pool.slots,
        },
        extras={
            "alone_ns": alone,
            "stages_ns": {s: [round(_length(getattr(i, s)) * 1e9) for i in timeline[-KEPT:]] for s in STAGES},
            "staging_nodes": {str(node): pages for node, pages in pool.nodes.items()},
            "timeline": excerpt(timeline),
            "columns": columns,
        },
        files={"trace.json": chrome_trace(timeline[:TRACED], process=f"{params['model']} on {device}")},
    )


def model_of(params: Mapping[str, Any]) -> Any:
    """The model in float32 on the CPU: a transformer, or what the user's factory makes."""
    if not params["module"]:
        names = ("patch_size", "depth", "heads", "dim", "mlp_dim", "output")
        return build(Vit(image=_image(params), **{name: params[name] for name in names}))
    factory = resolve(params["module"])
    if not callable(factory):
        raise InputError(f"experiment.module '{params['module']}' is no factory; name a function that makes the model.")
    needed = [p for p in inspect.signature(factory).parameters.values() if p.default is p.empty and p.kind < 2]
    if needed:
        raise InputError(
            f"experiment.module '{params['module']}' needs '{needed[0].name}'; name one without arguments."
        )
    made = factory()
    return made.eval() if hasattr(made, "eval") else made


def _image(params: Mapping[str, Any]) -> tuple[int, int, int]:
    return params["channels"], params["image_size"], params["image_width"]


def _pool(staging: Placement, params: Mapping[str, Any], shape: tuple[int, ...], dtype: Any, device: str) -> Pool:
    import torch

    batch, image = params["batch_size"], _image(params)
    one = batch * (prod(image) + prod(shape)) * dtype.itemsize
    slots = max(1, (params["memory_size_mb"] << 20) // one)
    gpu = device != "cpu" and params["pinned"]

    def room(*sizes: int) -> Any:
        return pinned(sizes, dtype) if gpu else torch.empty(sizes, dtype=dtype)

    with placed(staging):
        images, answers = room(slots, batch, *image), room(slots, batch, *shape)
        drawn = torch.randn(images.shape[1:], generator=torch.Generator().manual_seed(1)).to(dtype)
        for slot in images:
            slot.copy_(drawn)
        answers.zero_()
    pages: dict[int, int] = {}
    for tensor in (images, answers):
        for node, count in nodes_of(tensor.data_ptr(), tensor.numel() * tensor.element_size()).items():
            pages[node] = pages.get(node, 0) + count
    strange = set(pages) - {staging.node}
    if strange and staging.memory == "bind":
        raise PlacementError(
            f"staging memory was asked for on node {staging.node}, yet pages of it lie on node "
            f"{', '.join(map(str, sorted(strange)))}."
        )
    return Pool(images, answers, pages)


def _compiled(model: Any, params: Mapping[str, Any], there: Any) -> tuple[Callable[[Any], Any], float | None]:
    """The model as it will be called, and the seconds its compilation took (None: there was none)."""
    import torch

    mode = params["compile_mode"]
    if not mode:
        model(there)
        _settle(there)
        return model, None
    began = now_ns()
    with span("compile"):
        fast = torch.compile(model, mode=mode)
        # A graph's answer lies where its next one will: it is brought away.
        run = fast if mode in ("default", "max-autotune-no-cudagraphs") else lambda images: fast(images).clone()
        for _ in range(3):  # graphs are recorded after the first calls
            run(there)
        _settle(there)
    return run, (now_ns() - began) / 1e9


class _Through:
    """Batches of the pool through the model, again and again; what was recorded of it is kept."""

    def __init__(
        self, params: Mapping[str, Any], pool: Pool, run: Callable[[Any], Any], there: Any, device: str
    ) -> None:
        self._pool, self._device, self._copied = pool, device, list[float]()
        self._how = {"depth": params["ring"], "graph": params["graph"], "staging": Staging()}
        self.first = params["ring"] + 2 if params["graph"] else 0  # batches until every slot has its recording

        def on_cpu(batch: dict[str, Any]) -> dict[str, Any]:
            began = now_ns()
            there.copy_(batch["images"])  # from the pool's node to beside the CPUs
            self._copied.append((now_ns() - began) / 1e9)
            return {"answer": run(there)}

        def on_gpu(batch: dict[str, Any]) -> dict[str, Any]:
            return {"answer": run(batch["images"])}

        self._fn = on_cpu if device == "cpu" else on_gpu

    def __call__(self, batches: int) -> list[Intervals]:
        images, answers, slots = self._pool.images, self._pool.answers, self._pool.slots
        self._copied.clear()
        source = ({"images": images[number % slots]} for number in range(batches))
        out = lambda number: {"answer": answers[number % slots]}  # noqa: E731
        with stream(source, self._fn, device=self._device, out=out, **self._how) as results:
            for _ in results:
                pass
            timeline = results.timeline()
        return [_parted(i, self._copied[i.index]) for i in timeline] if self._copied else timeline


def _parted(batch: Intervals, copied: float) -> Intervals:
    """On a CPU the way there is the first part of what fn does."""
    begin, end = batch.compute
    there = min(end, begin + copied)
    return replace(batch, h2d=(begin, there), compute=(there, end))


def _playing(run: Callable[[Any], Any], there: Any, graph: bool) -> tuple[Any, Callable[[], Any]]:
    """The model over one batch on the device, as the stream has it: called, or played. And where the batch lies."""
    if not graph:
        return there, lambda: run(there)
    recording = Recording(0, lambda b: {"answer": run(b["images"])}, {"images": there}, there.device, None, ())

    def play() -> Any:
        recording.play()
        return recording.answer["answer"]

    recording.inputs["images"].copy_(there)
    return recording.inputs["images"], play


def _alone(pool: Pool, play: Callable[[], Any], there: Any, device: str) -> dict[str, list[float]]:
    """Nanoseconds per batch of each stage with nothing beside it, round by round."""
    back = play()
    queued = device != "cpu" and pool.images.is_pinned()

    def up(number: int) -> None:
        there.copy_(pool.images[number % pool.slots], non_blocking=queued)

    def compute(number: int) -> None:
        play()

    def down(number: int) -> None:
        pool.answers[number % pool.slots].copy_(back, non_blocking=queued)

    found = {}
    for name, stage in zip(STAGES, (up, compute, down), strict=True):
        with span(f"{name} alone"):
            found[name] = _per_batch(stage, there)
    return found


def _per_batch(stage: Callable[[int], None], there: Any) -> list[float]:
    def taken(calls: int) -> float:
        _settle(there)
        began = now_ns()
        for number in range(calls):
            stage(number)
        _settle(there)
        return (now_ns() - began) / calls

    once = taken(2)
    calls = max(1, min(MOST_CALLS, int(ROUND_NS / max(1.0, once))))
    return [taken(calls) for _ in range(ROUNDS)]


def _settle(tensor: Any) -> None:
    if tensor.is_cuda:
        import torch

        torch.cuda.synchronize()


def _check(plain: Any, pool: Pool, slot: int, dtype: str) -> dict[str, Any]:
    """The answers that the timed stream wrote last, against the same model in float64."""
    images = pool.images[slot, :CHECKED].double()
    found = pool.answers[slot, :CHECKED].double()
    reference = copy.deepcopy(plain)
    wanted = reference.double()(images) if hasattr(reference, "double") else reference(images)
    error = float((found - wanted).abs().max() / max(1e-12, float(wanted.std())))
    least = LEAST[dtype]
    note = f"largest error against float64, in units of the spread; allowed {least}"
    return {"ok": error <= least, "error": error if error == error else None, "quality": {}, "note": note}


def _work(plain: Any, params: Mapping[str, Any], shape: tuple[int, ...], size: int, device: str) -> dict[str, Any]:
    """Counted on the model itself, where nobody could beforehand."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        plain(torch.zeros(1, *_image(params)))
    batch = params["batch_size"]
    up, down = batch * prod(_image(params)) * size, batch * prod(shape) * size
    weights = _parameters(plain) * size
    return {"flops": counter.get_total_flops() * batch, "bytes": moved(up, down, weights, device != "cpu")}


def _parameters(plain: Any) -> int:
    return sum(p.numel() for p in getattr(plain, "parameters", list)())


def _length(interval: tuple[float, float]) -> float:
    return interval[1] - interval[0]
