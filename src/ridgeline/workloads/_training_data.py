"""Uneven trajectories, and three loaders of them that differ in who resamples.

Every loader gives (indices [B], frames [B, T, D] on the device) without end, in an order that is shuffled anew each
epoch, and copies one batch ahead of the one in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ridgeline.lab import Case

Array = Any
Trajectory = tuple[Array, Array]  # times [S] int64 nanoseconds, values [S, D] float32
CHECKED = 32


def runs_of(case: Case) -> list[Trajectory]:
    """Lengths from half to one and a half times `stamps`, 30 to 333 Hz, jitter."""
    import numpy as np

    rng = np.random.default_rng(0)
    runs = []
    for length in rng.integers(case["stamps"] // 2, case["stamps"] * 3 // 2 + 1, case["dataset"]):
        ticks = rng.uniform(0.5, 1.5, length).cumsum() / rng.uniform(30, 333)
        values = rng.standard_normal((length, case["channels"]), dtype=np.float32).cumsum(0, dtype=np.float32) / 4
        runs.append(((ticks * 1e9).astype(np.int64), values))
    return runs


def reference(run: Trajectory, targets: int) -> Array:
    """[T, D] in float64, from the first stamp to the last in equal steps."""
    import numpy as np

    times, values = run
    at = np.linspace(0, float(times[-1] - times[0]), targets)
    clock = (times - times[0]).astype(np.float64)
    return np.stack([np.interp(at, clock, channel) for channel in values.T.astype(np.float64)], 1)


def checked_rows(batch: int) -> list[int]:
    return list(range(0, batch, max(1, batch // CHECKED)))


def loader_of(case: Case, contender: str, runs: Sequence[Trajectory], device: str) -> Iterator[tuple[list[int], Any]]:
    from torch.utils.data import DataLoader

    words: dict[str, Any] = {
        "batch_size": case["batch"],
        "sampler": _Endless(len(runs)),
        "num_workers": case["workers"],
        "prefetch_factor": 2,
        "pin_memory": device != "cpu",
    }
    if contender == "ridgeline":
        from ridgeline.trajectory import TrajectoryDataset, collate, on_device

        how = collate(steps=case["targets"], device=device, outside="clamp")
        for batch in on_device(DataLoader(TrajectoryDataset(runs), collate_fn=how, **words)):
            yield batch.where.indices.tolist(), batch.values
        return
    items = _Before(runs, case["targets"]) if contender == "resampled before" else _InWorkers(runs, case["targets"])
    yield from _ahead(iter(DataLoader(items, **words)), device)


class _Endless:
    """A sampler that shuffles again when it is through."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[int]:
        import numpy as np

        rng = np.random.default_rng()
        while True:
            yield from rng.permutation(self._count).tolist()

    def __len__(self) -> int:
        return 1 << 40


class _InWorkers:
    """Resampled where it is loaded: one searchsorted per trajectory, all its channels at once."""

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


class _Before:
    """Resampled before the training began."""

    def __init__(self, runs: Sequence[Trajectory], targets: int) -> None:
        import numpy as np

        self._frames = np.stack([reference(run, targets) for run in runs]).astype(np.float32)

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> tuple[int, Array]:
        return index, self._frames[index]


def _ahead(source: Iterator[Any], device: str) -> Iterator[tuple[list[int], Any]]:
    """Batches on the device, the next one copied on a stream of its own while one is in use."""
    import torch

    if device == "cpu":
        for index, frames in source:
            yield index.tolist(), frames
        return
    ours = torch.cuda.Stream(device)

    def launched() -> tuple[list[int], Any, Any]:
        index, frames = next(source)
        with torch.cuda.stream(ours):
            there = frames.to(device, non_blocking=True)
            done = torch.cuda.Event()
            done.record(ours)
        return index.tolist(), there, done

    ahead = launched()
    while True:
        (index, frames, done), ahead = ahead, launched()
        theirs = torch.cuda.current_stream(device)
        theirs.wait_event(done)
        frames.record_stream(theirs)
        yield index, frames
