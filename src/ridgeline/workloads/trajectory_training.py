"""`trajectory_training`: a small policy learns from uneven trajectories. Who resamples them, and does the GPU wait?

    ridgeline bench trajectory_training --device cuda

ridgeline          workers pack, the device resamples (`collate`, `on_device`)
numpy in workers   workers resample one trajectory at a time, as most people do today
resampled before   nothing left to do: the control

One step of the race is `steps` training steps, more than the loader has prefetched when its turn begins. The extras
split them into `train` (a training step was on the device) and `wait` (it had nothing to do): busy is train ÷ both.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ridgeline.lab import Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement, topology
from ridgeline.workloads._training_data import checked_rows, loader_of, reference, runs_of
from ridgeline.workloads.trajectory import correlation, host, on_device

BASE: dict[str, Any] = {"batch": 256, "stamps": 120, "targets": 100, "channels": 14}
BASE |= {"width": 256, "layers": 4, "dataset": 4096}
SMALL = {"batch": 16, "width": 32, "layers": 1, "dataset": 256}
TOLERANCE = 3e-6
KEPT = 64  # steps whose times go into the record
MOST_WORKERS = 8


class Training:
    name = "trajectory_training"
    devices = ("cpu", "cuda")
    controls = ("resampled before",)
    note = (
        "All three train the same network on the same batches; they differ in who resamples. "
        "'resampled before' is the control: what the network alone can do."
    )

    def cases(self, profile: Profile) -> Iterable[Case]:
        if not installed("torch"):
            return []
        count = max(1, min(MOST_WORKERS, len(topology().usable_cpus) - 1))
        workers = {"workers": count, "steps": max(8, 4 * count)}
        changes: list[dict[str, Any]] = [{}]
        if count > 1:
            changes += [{"workers": 1, "steps": 8}]  # a host with one core to spare
        if profile is Profile.FULL:
            changes += [{"workers": n, "steps": 4 * n} for n in (2, 4) if n < count]
            changes += [{"batch": n} for n in (64, 1024)]
            changes += [{"width": n} for n in (128, 512)]
        return [
            Case({**BASE, **SMALL, **workers}, "cpu"),
            *(Case({**BASE, **workers, **change}, "cuda") for change in changes),
        ]

    def work(self, case: Case) -> Work:
        """The network's products, forward and twice backward; a causal attention needs half of its square.

        Of memory each batch is read once, and the weights of the products are read and written.
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
        runs = runs_of(case)
        state: dict[str, Any] = {"batches": iter(loader_of(case, contender, runs, device))}
        train = _Policy(case, device)
        clock = _device_clock if device != "cpu" else _host_clock
        kept: deque[dict[str, float]] = deque(maxlen=KEPT)

        def step() -> None:
            kept.append(clock(lambda: _next(state), train, case["steps"]))

        def result() -> tuple[Any, ...]:
            index, fed = state["last"]
            rows = checked_rows(len(index))
            return [runs[index[i]] for i in rows], host(fed[rows]), train.loss()

        def extras() -> dict[str, Any]:
            return {"stages_ns": {stage: [round(1e9 * s[stage]) for s in kept] for stage in ("train", "wait")}}

        settings = {"workers": case["workers"], "prefetch": 2, "threads": torch.get_num_threads()}
        return Steps(step, result, close=state.clear, settings=settings, extras=extras)

    def check(self, case: Case, result: tuple[Any, ...]) -> Check:
        """The batch the network saw last, against float64; and the network has learnt from numbers."""
        import numpy as np

        runs, fed, loss = result
        wanted = np.stack([reference(run, case["targets"]) for run in runs])
        error = float(np.abs(fed - wanted).max() / max(1.0, float(np.abs(wanted).max())))
        quality = {"correlation": correlation(fed, wanted), "loss": loss}
        note = "largest error of what the network was fed, against float64, in units of the range"
        return Check(error <= TOLERANCE and math.isfinite(loss), error, quality, note)


def _next(state: dict[str, Any]) -> Any:
    state["last"] = next(state["batches"])
    return state["last"][1]


class _Policy:
    """One training step of a small causal transformer that foretells the next frame."""

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
    """Seconds the device had a training step, and seconds it waited for the next, by its own clock."""
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
        began = now_ns()
        frames = batch()
        had = now_ns()
        train(frames)
        spent["wait"] += had - began
        spent["train"] += now_ns() - had
    return {stage: ns / 1e9 for stage, ns in spent.items()}


workload = Training()
