"""`trajectory_training`: train a small policy on uneven trajectories, resampled in three ways. Does the GPU wait?

    ridgeline bench trajectory_training --device cuda

ridgeline          workers pack, the device resamples (`collate`, `on_device`)
numpy in workers   workers resample one trajectory at a time, as is usual today
resampled before   the control: the data is resampled before the training

One step of the race is `steps` training steps, more than the loader has prefetched at the start. The extras split the
time into `train` (the device trains) and `wait` (the device is idle).

Every loader yields (indices [B], frames [B, T, D] on the device) without end, shuffles in every epoch, and copies one
batch ahead.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ridgeline.lab import Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement, topology
from ridgeline.workloads.trajectory import correlation, host, on_device

BASE: dict[str, Any] = {"batch": 256, "stamps": 120, "targets": 100, "channels": 14}
BASE |= {"width": 256, "layers": 4, "dataset": 4096}
SMALL = {"batch": 16, "width": 32, "layers": 1, "dataset": 256}
TOLERANCE = 3e-6
MAX_STEPS = 64  # steps whose times go into the record
MAX_WORKERS = 8
Array = Any
Trajectory = tuple[Array, Array]  # times [S] int64 nanoseconds, values [S, D] float32
CHECKED = 32


class Training:
    name = "trajectory_training"
    devices = ("cpu", "cuda")
    controls = ("resampled before",)
    note = (
        "All three train the same network on the same batches; they differ in where they resample. "
        "'resampled before' is the control: the speed of the network alone."
    )

    def cases(self, profile: Profile) -> Iterable[Case]:
        if not installed("torch"):
            return []
        count = max(1, min(MAX_WORKERS, len(topology().usable_cpus) - 1))
        workers = {"workers": count, "steps": max(8, 4 * count)}
        changes: list[dict[str, Any]] = [{}]
        if count > 1:
            changes += [{"workers": 1, "steps": 8}]  # a host with one free core
        if profile is Profile.FULL:
            changes += [{"workers": n, "steps": 4 * n} for n in (2, 4) if n < count]
            changes += [{"batch": n} for n in (64, 1024)]
            changes += [{"width": n} for n in (128, 512)]
        return [
            Case({**BASE, **SMALL, **workers}, "cpu"),
            *(Case({**BASE, **workers, **change}, "cuda") for change in changes),
        ]

    def work(self, case: Case) -> Work:
        """Count the network's matrix products: forward, and twice backward; causal attention needs half of its square.

        Memory: each batch is read once; the weights of the products are read and written.
        """
        width, tokens = case["width"], case["batch"] * case["targets"]
        layer = 24 * width**2 + 2 * case["targets"] * width
        flops = 3 * tokens * (case["layers"] * layer + 4 * case["channels"] * width)
        done = case["steps"] * case.ranks
        dtype = "float32" if case.device == "cpu" else "bfloat16"
        weights = case["layers"] * 12 * width**2 + 2 * case["channels"] * width
        moved = 4 * done * (tokens * case["channels"] + 2 * weights)
        return Work(items=done, unit="training steps", flops=flops * done, bytes={"memory": moved}, dtype=dtype)

    def contenders(self, case: Case) -> Sequence[str]:
        return ["ridgeline", "numpy in workers", "resampled before"]

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        return ("torch", "torch.utils.data")

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        import torch

        device = on_device(case, place)
        torch.set_num_threads(max(1, len(topology().usable_cpus) - case["workers"]))
        runs = draw_runs(case)
        state: dict[str, Any] = {"batches": iter(iterate_batches(case, contender, runs, device))}
        train = _Policy(case, device)
        clock = _device_clock if device != "cpu" else _host_clock
        stage_times: deque[dict[str, float]] = deque(maxlen=MAX_STEPS)

        def step() -> None:
            stage_times.append(clock(lambda: _next(state), train, case["steps"]))

        def result() -> tuple[Any, ...]:
            index, fed = state["last"]
            rows = choose_rows(len(index))
            return [runs[index[i]] for i in rows], host(fed[rows]), train.loss()

        def extras() -> dict[str, Any]:
            return {"stages_ns": {stage: [round(1e9 * s[stage]) for s in stage_times] for stage in ("train", "wait")}}

        settings = {"workers": case["workers"], "prefetch": 2, "threads": torch.get_num_threads()}
        return Steps(step, result, close=state.clear, settings=settings, extras=extras)

    def check(self, case: Case, result: tuple[Any, ...]) -> Check:
        """Compare the network's last batch with float64; its loss must be finite."""
        import numpy as np

        runs, fed, loss = result
        expected = np.stack([reference(run, case["targets"]) for run in runs])
        error = float(np.abs(fed - expected).max() / max(1.0, float(np.abs(expected).max())))
        quality = {"correlation": correlation(fed, expected), "loss": loss}
        note = "largest error of what the network was fed, against float64, in units of the range"
        return Check(error <= TOLERANCE and math.isfinite(loss), error, quality, note)


def _next(state: dict[str, Any]) -> Any:
    state["last"] = next(state["batches"])
    return state["last"][1]


class _Policy:
    """One training step of a small causal transformer that predicts the next frame."""

    def __init__(self, case: Case, device: str) -> None:
        import torch
        from torch import nn

        torch.manual_seed(0)
        width, frames = case["width"], case["targets"]
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self._torch, self._device = torch, device
        self._enter, self._leave = nn.Linear(case["channels"], width), nn.Linear(width, case["channels"])
        self._body = nn.TransformerEncoder(layer, case["layers"], enable_nested_tensor=False)
        self._all = nn.ModuleList([self._enter, self._body, self._leave]).to(device)
        self._place = nn.Parameter(torch.randn(frames, width, device=device) * 0.02)
        self._mask = nn.Transformer.generate_square_subsequent_mask(frames, device=device)
        weights = [*self._all.parameters(), self._place]
        self._optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=device != "cpu")
        self._last: Any = None

    def __call__(self, frames: Any) -> None:
        with self._torch.autocast("cuda", self._torch.bfloat16, enabled=self._device != "cpu"):
            hidden = self._body(self._enter(frames) + self._place, mask=self._mask, is_causal=True)
            error = self._leave(hidden)[:, :-1].float() - frames[:, 1:]
        loss = error.square().mean()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        self._last = loss.detach()

    def loss(self) -> float:
        return float(self._last)


def _device_clock(batch: Callable[[], Any], train: Callable[[Any], None], steps: int) -> dict[str, float]:
    """Measure with CUDA events the seconds that the device trains, and those that it waits for a batch."""
    import torch

    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    ends, begins = [mark()], []
    for _ in range(steps):
        frames = batch()
        begins.append(mark())
        train(frames)
        ends.append(mark())
    ends[-1].synchronize()
    wait = sum(end.elapsed_time(begin) for end, begin in zip(ends, begins, strict=False))
    busy = sum(begin.elapsed_time(end) for begin, end in zip(begins, ends[1:], strict=True))
    return {"train": busy / 1e3, "wait": wait / 1e3}


def _host_clock(batch: Callable[[], Any], train: Callable[[Any], None], steps: int) -> dict[str, float]:
    from ridgeline.machine import now_ns

    spent = {"train": 0, "wait": 0}
    for _ in range(steps):
        start = now_ns()
        frames = batch()
        loaded = now_ns()
        train(frames)
        spent["wait"] += loaded - start
        spent["train"] += now_ns() - loaded
    return {stage: ns / 1e9 for stage, ns in spent.items()}


def draw_runs(case: Case) -> list[Trajectory]:
    """Draw trajectories: lengths from half to one and a half times `stamps`, 30 to 333 Hz, with jitter."""
    import numpy as np

    rng = np.random.default_rng(0)
    runs = []
    for length in rng.integers(case["stamps"] // 2, case["stamps"] * 3 // 2 + 1, case["dataset"]):
        ticks = rng.uniform(0.5, 1.5, length).cumsum() / rng.uniform(30, 333)
        values = rng.standard_normal((length, case["channels"]), dtype=np.float32).cumsum(0, dtype=np.float32) / 4
        runs.append(((ticks * 1e9).astype(np.int64), values))
    return runs


def reference(run: Trajectory, targets: int) -> Array:
    """Return [T, D] in float64, in equal steps from the first stamp to the last."""
    import numpy as np

    times, values = run
    at = np.linspace(0, float(times[-1] - times[0]), targets)
    clock = (times - times[0]).astype(np.float64)
    return np.stack([np.interp(at, clock, channel) for channel in values.T.astype(np.float64)], 1)


def choose_rows(batch: int) -> list[int]:
    return list(range(0, batch, max(1, batch // CHECKED)))


def iterate_batches(
    case: Case, contender: str, runs: Sequence[Trajectory], device: str
) -> Iterator[tuple[list[int], Any]]:
    from torch.utils.data import DataLoader

    loader_options: dict[str, Any] = {
        "batch_size": case["batch"],
        "sampler": _Endless(len(runs)),
        "num_workers": case["workers"],
        "prefetch_factor": 2,
        "pin_memory": device != "cpu",
    }
    if contender == "ridgeline":
        from ridgeline.trajectory import TrajectoryDataset, collate, on_device

        collate_fn = collate(steps=case["targets"], device=device, outside="clamp")
        for batch in on_device(DataLoader(TrajectoryDataset(runs), collate_fn=collate_fn, **loader_options)):
            yield batch.origins.indices.tolist(), batch.values
        return
    items = (
        _ResampledBefore(runs, case["targets"])
        if contender == "resampled before"
        else _ResampledInWorkers(runs, case["targets"])
    )
    yield from _prefetch(iter(DataLoader(items, **loader_options)), device)


class _Endless:
    """A sampler without end that shuffles again in every epoch."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[int]:
        import numpy as np

        rng = np.random.default_rng()
        while True:
            yield from rng.permutation(self._count).tolist()

    def __len__(self) -> int:
        return 1 << 40


class _ResampledInWorkers:
    """A dataset that resamples in the workers: one searchsorted per trajectory, all channels at once."""

    def __init__(self, runs: Sequence[Trajectory], targets: int) -> None:
        self._runs, self._targets = runs, targets

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: int) -> tuple[int, Array]:
        import numpy as np

        times, values = self._runs[index]
        clock = (times - times[0]).astype(np.float64)
        at = np.linspace(0, clock[-1], self._targets)
        i = np.clip(np.searchsorted(clock, at, side="right"), 1, len(clock) - 1)
        w = ((at - clock[i - 1]) / (clock[i] - clock[i - 1])).astype(np.float32)[:, None]
        before = values[i - 1]
        return index, before + (values[i] - before) * w


class _ResampledBefore:
    """A dataset that is resampled before the training."""

    def __init__(self, runs: Sequence[Trajectory], targets: int) -> None:
        import numpy as np

        self._frames = np.stack([reference(run, targets) for run in runs]).astype(np.float32)

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> tuple[int, Array]:
        return index, self._frames[index]


def _prefetch(source: Iterator[Any], device: str) -> Iterator[tuple[list[int], Any]]:
    """Iterate over batches on the device; the next one is copied on a separate CUDA stream while one is in use."""
    import torch

    if device == "cpu":
        for index, frames in source:
            yield index.tolist(), frames
        return
    copy_stream = torch.cuda.Stream(device)

    def launch_next() -> tuple[list[int], Any, Any]:
        index, frames = next(source)
        with torch.cuda.stream(copy_stream):
            on_gpu = frames.to(device, non_blocking=True)
            done = torch.cuda.Event()
            done.record(copy_stream)
        return index.tolist(), on_gpu, done

    prefetched = launch_next()
    while True:
        (index, frames, done), prefetched = prefetched, launch_next()
        caller_stream = torch.cuda.current_stream(device)
        caller_stream.wait_event(done)
        frames.record_stream(caller_stream)
        yield index, frames


workload = Training()
