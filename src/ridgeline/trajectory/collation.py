"""Uneven samples to one batch on one clock: `DataLoader(dataset, collate_fn=collate(hz=50), …)`.

On a CPU the batch is resampled where it is collated, in the workers too. For a GPU the workers only pack, and never
touch CUDA; `on_device(loader)` then copies and resamples, one batch ahead. Without workers it may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.machine import device_named
from ridgeline.trajectory import arguments
from ridgeline.trajectory.batch import Batch, How, Packed, Part, packed
from ridgeline.trajectory.channels import OUTSIDE
from ridgeline.trajectory.places import Places
from ridgeline.trajectory.sample import Layout, Sample, Told
from ridgeline.trajectory.timeline import MOST_TICKS, Array, grid

DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, eq=False)
class Collate:
    """What `collate` gives: a list of samples in, a batch out. It can be pickled."""

    hz: Fraction | None
    steps: int | None
    kind: Told
    how: How

    def __call__(self, samples: Sequence[Sample]) -> Batch | Packed:
        from torch.utils.data import get_worker_info

        found = self.pack(samples)
        return found if self.how.device != "cpu" and get_worker_info() is not None else found.resample()

    def pack(self, samples: Sequence[Sample]) -> Packed:
        """The samples back to back, with their targets; all of it on the CPU."""
        first = samples[0]
        if any(s.layout != first.layout or s.window_ns != first.window_ns for s in samples):
            raise InputError("a batch has samples of datasets with different columns or windows; load them separately.")
        layout = first.layout.told(self.kind)
        at, lengths = self._targets(samples)
        kept = np.float64 if self.how.dtype == "float64" else np.float32
        parts = [_part(samples, members, layout, kept) for members in _clocks(samples)]
        if self.how.outside == "raise":
            _refuse_outside(samples, at, lengths)
        how = replace(self.how, outside="clamp") if self.how.outside == "raise" else self.how
        return packed(parts, at, lengths, layout, Places(s.where for s in samples), how)

    def _targets(self, samples: Sequence[Sample]) -> tuple[Array, Array]:
        """(at [B, T], lengths [B]): ticks from each sample's start on, and how many lie inside it."""
        begin = np.array([s.where.start_ns for s in samples], np.int64)
        length = [s.where.end_ns - s.where.start_ns for s in samples]
        window = samples[0].window_ns
        if self.hz is None and window is None:
            steps = self.steps or 1
            return begin[:, None] + _spread(np.array(length), steps), np.full(len(begin), steps, np.int64)
        hz = self.hz if self.hz is not None else Fraction((self.steps or 1) * 10**9, window or 1)
        period = 10**9 * hz.denominator
        inside = np.array([n * hz.numerator // period + 1 for n in length], np.int64)
        count = int(inside.max())
        if self.steps is not None:
            count = self.steps
        elif window is not None:
            count = -int(-window * hz // 10**9)  # a window is half open, so that neighbours share no tick
        if count * len(samples) > MOST_TICKS:
            worst = samples[int(inside.argmax())].where
            raise InputError(
                f"a batch of {len(samples)} × {count} ticks of {float(hz):g} Hz is too large (the longest is item "
                f"{worst.index}, {worst.file or 'from memory'}); give window=, steps=, or mend its stamps."
            )
        ticks = grid(0, -(-(count - 1) * period // hz.numerator), hz, whole=True)[:count]
        return begin[:, None] + ticks, np.minimum(inside, count)


def collate(
    *,
    hz: float | None = None,
    steps: int | None = None,
    device: str = "auto",
    kind: Told = None,
    outside: str = "nan",
    max_gap: float | None = None,
    normalize: Mapping[str, Any] | None = None,
    dtype: Any = "float32",
    fill: float | None = None,
) -> Collate:
    """A `collate_fn` that brings samples onto one clock.

    hz         ticks per second from each sample's start on; whole episodes are padded to the longest of the batch
    steps      that many ticks: spread from the first to the last stamp of an episode, evenly over a window, or with hz=
               the first so many of that rate
    device     cpu, cuda (the consumer's current device), cuda:N; auto is cuda where there is one
    kind       as in `TrajectoryDataset`, over what that says
    outside    for a stream that begins later or ends earlier than the sample: nan, clamp, extrapolate, raise
    max_gap    seconds; what lies in a longer gap is masked
    normalize  {"mean", "std"} or {"q01", "q99"}, a number or one per column
    dtype      of the values; float64 also computes in it
    fill       what masked values hold; None: NaN

    Values are packed as float32 (float64 with that dtype), so integers beyond 2^24 lose their last digits.
    """
    if find_spec("torch") is None:
        raise MissingExtra("collate", "torch")
    if hz is None and steps is None:
        raise InputError("collate needs a clock: give hz= or steps=.")
    arguments.rate(hz)
    if steps is not None and steps < 1:
        raise InputError(f"steps={steps} is no number of ticks; give 1 or more.")
    arguments.seconds("max_gap", max_gap)
    if outside not in OUTSIDE:
        raise unknown("policy for targets outside", outside, OUTSIDE)
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise unknown("dtype", name, DTYPES)
    if fill is not None and not arguments.number(fill):
        raise InputError(f"fill={fill!r} is no number; give one for what is masked to hold, or None for NaN.")
    device = device_named(device)
    rate = None if hz is None else Fraction(str(hz))
    gap = None if max_gap is None else arguments.limit_ns(max_gap)
    return Collate(rate, steps, kind, How(device, outside, gap, normalize, name, fill))


def _clocks(samples: Sequence[Sample]) -> list[list[int]]:
    """The streams, by number, that share their stamps in every one of the samples."""
    shared: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(samples[0].times)):
        shared.setdefault(tuple(id(s.times[i]) for s in samples), []).append(i)
    return list(shared.values())


def _part(samples: Sequence[Sample], members: Sequence[int], layout: Layout, dtype: Any) -> Part:
    ranges = [range(*layout.streams[i][1:]) for i in members]
    columns = tuple(c for r in ranges for c in r)
    offsets = np.cumsum([0, *(len(s.times[members[0]]) for s in samples)], dtype=np.int64)
    room = _roomy(int(offsets[-1]))
    values, times = np.zeros((room, len(columns)), dtype), np.zeros(room, np.int64)
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 is inf
        for sample, low, high in zip(samples, offsets[:-1], offsets[1:], strict=True):
            times[low:high] = sample.times[members[0]]
            done = 0
            for i in members:
                piece = sample.values[i]
                values[low:high, done : done + piece.shape[1]] = piece
                done += piece.shape[1]
    kinds: list[tuple[slice, str]] = []
    done = 0
    for kind, run in groupby(layout.kinds[c] for c in columns):
        width = len(list(run))
        kinds.append((slice(done, done + width), kind))
        done += width
    names = tuple(layout.streams[i][0] for i in members)
    return Part(columns, names, tuple(kinds), values, times, offsets)


def _roomy(count: int) -> int:
    """A little more than asked, so that batches share few shapes: a shape the GPU has seen launches at once."""
    step = max(64, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def _spread(lengths: Array, steps: int) -> Array:
    """[B, steps] whole numbers, evenly from 0 to each length."""
    last = max(1, steps - 1)
    whole, rest = np.divmod(lengths[:, None], last)
    k = np.arange(steps, dtype=np.int64)
    spread: Array = k * whole + (k * rest + last // 2) // last
    return spread


def _refuse_outside(samples: Sequence[Sample], at: Array, lengths: Array) -> None:
    for sample, row, count in zip(samples, at, lengths, strict=True):
        first, last = int(row[0]), int(row[count - 1])
        for (name, _, _), times in zip(sample.layout.streams, sample.times, strict=True):
            if not len(times) or first < times[0] or last > times[-1]:
                span = f"{times[0]} to {times[-1]} ns" if len(times) else "no samples"
                raise InputError(
                    f"item {sample.where.index} ({sample.where.file or 'from memory'}) is asked from {first} to {last} "
                    f"ns, and its stream '{name}' has {span}; choose outside='nan' or 'clamp'."
                )
