"""Uneven samples → one batch on one clock: `DataLoader(dataset, collate_fn=collate(hz=50), …)`.

On a CPU the workers resample the batch. For a GPU the workers only pack it into one buffer and never use CUDA;
`on_device(loader)` copies and resamples, one batch ahead. Without workers, `on_device` is optional.

loader = DataLoader(dataset, batch_size=64, collate_fn=ridgeline.collate(hz=50), num_workers=4, pin_memory=True)
for batch in on_device(loader): ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.machine import resolve_device
from ridgeline.trajectory import arguments
from ridgeline.trajectory.channels import OUTSIDE, compute_scaling
from ridgeline.trajectory.resampling import resample
from ridgeline.trajectory.sample import KindChoice, Layout, Origins, Sample, undo_flips
from ridgeline.trajectory.stream import MAX_TICKS, Array, build_grid

DTYPES = ("float16", "bfloat16", "float32", "float64")
ALIGNMENT = 256  # bytes; every array in a buffer begins at a multiple


def collate(
    *,
    hz: float | None = None,
    steps: int | None = None,
    device: str = "auto",
    kind: KindChoice = None,
    outside: str = "nan",
    max_gap: float | None = None,
    normalize: Mapping[str, Any] | None = None,
    dtype: Any = "float32",
    fill: float | None = None,
) -> Collate:
    """Return a `collate_fn` that resamples the samples of a batch onto one clock.

    hz         ticks per second from each sample's start; episodes are padded to the longest of the batch
    steps      number of ticks: from the first to the last stamp of an episode, evenly over a window, or with hz= the
               first ticks of that rate
    device     cpu, cuda (the caller's current device), cuda:N; auto: cuda if the machine has one
    kind       as in `TrajectoryDataset`; it replaces the dataset's kinds
    outside    for a stream that begins later or ends earlier than the sample: nan, clamp, extrapolate, raise
    max_gap    seconds; targets inside a longer gap are masked
    normalize  {"mean", "std"} or {"q01", "q99"}, a number or one per column
    dtype      of the values; float64 also computes in float64
    fill       value of unknown entries, those where `valid` is False (default: NaN)

    Values are packed as float32 (float64 with dtype float64), so integers beyond 2^24 lose their last digits. Raises
    InputError for arguments that do not fit, MissingExtra without torch.
    """
    if find_spec("torch") is None:
        raise MissingExtra("collate", "torch")
    if hz is None and steps is None:
        raise InputError("collate needs a clock: give hz= or steps=.")
    arguments.check_rate(hz)
    if steps is not None and steps < 1:
        raise InputError(f"steps={steps} is no number of ticks; give 1 or more.")
    arguments.check_seconds("max_gap", max_gap)
    if outside not in OUTSIDE:
        raise unknown("policy for targets outside", outside, OUTSIDE)
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise unknown("dtype", name, DTYPES)
    if fill is not None and not arguments.is_number(fill):
        raise InputError(f"fill={fill!r} is no number; give the value of masked entries, or None for NaN.")
    device = resolve_device(device)
    rate = None if hz is None else Fraction(str(hz))
    gap = None if max_gap is None else arguments.to_limit_ns(max_gap)
    return Collate(rate, steps, kind, BatchOptions(device, outside, gap, normalize, name, fill))


@dataclass(frozen=True, eq=False)
class Collate:
    """The `collate_fn` that `collate` returns: samples in, batch out. It can be pickled."""

    hz: Fraction | None
    steps: int | None
    kind: KindChoice
    options: BatchOptions

    def __call__(self, samples: Sequence[Sample]) -> Batch | Packed:
        from torch.utils.data import get_worker_info

        packed = self.pack(samples)
        return packed if self.options.device != "cpu" and get_worker_info() is not None else packed.resample()

    def pack(self, samples: Sequence[Sample]) -> Packed:
        """Pack the samples and their target stamps into one buffer on the CPU."""
        first = samples[0]
        if any(s.layout != first.layout or s.window_ns != first.window_ns for s in samples):
            raise InputError("a batch has samples of datasets with different columns or windows; load them separately.")
        layout = first.layout.with_kinds(self.kind)
        at, lengths = self._targets(samples)
        dtype = np.float64 if self.options.dtype == "float64" else np.float32
        parts = [_stack_group(samples, members, layout, dtype) for members in _clocks(samples)]
        if self.options.outside == "raise":
            _refuse_outside(samples, at, lengths)
        options = replace(self.options, outside="clamp") if self.options.outside == "raise" else self.options
        return pack(parts, at, lengths, layout, Origins(s.origin for s in samples), options)

    def _targets(self, samples: Sequence[Sample]) -> tuple[Array, Array]:
        """Return (at [B, T], lengths [B]): ticks from each sample's start, and the number inside the sample."""
        start_ns = np.array([s.origin.start_ns for s in samples], np.int64)
        length = [s.origin.end_ns - s.origin.start_ns for s in samples]
        window = samples[0].window_ns
        if self.hz is None and window is None:
            steps = self.steps or 1
            return start_ns[:, None] + _spread(np.array(length), steps), np.full(len(start_ns), steps, np.int64)
        hz = self.hz if self.hz is not None else Fraction((self.steps or 1) * 10**9, window or 1)
        period = 10**9 * hz.denominator
        inside = np.array([n * hz.numerator // period + 1 for n in length], np.int64)
        count = int(inside.max())
        if self.steps is not None:
            count = self.steps
        elif window is not None:
            count = -int(-window * hz // 10**9)  # a window excludes its end, so neighbouring windows share no tick
        if count * len(samples) > MAX_TICKS:
            worst = samples[int(inside.argmax())].origin
            raise InputError(
                f"a batch of {len(samples)} × {count} ticks of {float(hz):g} Hz is too large (the longest is item "
                f"{worst.index}, {worst.file or 'from memory'}); give window=, steps=, or mend its stamps."
            )
        ticks = build_grid(0, -(-(count - 1) * period // hz.numerator), hz, integer_clock=True)[:count]
        return start_ns[:, None] + ticks, np.minimum(inside, count)


@dataclass(frozen=True, eq=False)
class Batch:
    """B samples on one clock, as tensors on one device. `batch["stream"]` gives the columns of one stream."""

    values: Any  # [B, T, D]
    mask: Any  # [B, T]: every column is known
    valid: Any  # [B, T, D]: this column is known
    times: Any  # [B, T] int64 nanoseconds; padding continues the ticks
    lengths: Any  # [B]: ticks that are not padding
    layout: Layout
    origins: Origins  # [B]

    def __getitem__(self, stream: str) -> Any:
        """Return the columns of one stream: [B, T, D]."""
        return self.values[..., self.layout.columns(stream)]

    @property
    def masks(self) -> Mapping[str, Any]:
        """stream -> [B, T]: every column of this stream is known."""
        return StreamMasks(self.valid, self.layout)

    @property
    def names(self) -> tuple[str, ...]:
        return self.layout.names

    @property
    def seconds(self) -> Any:
        """Seconds since each sample's start: [B, T] float64. (times / 1e9 would be float32 in torch.)"""
        return (self.times - self.times[:, :1]).double() / 1e9

    def __len__(self) -> int:
        return len(self.origins)


class StreamMasks(Mapping[str, Any]):
    """The mask of each stream of a batch, computed when it is read: a log may have hundreds of streams."""

    def __init__(self, valid: Any, layout: Layout) -> None:
        self._valid, self._layout = valid, layout

    def __getitem__(self, stream: str) -> Any:
        return self._valid[..., self._layout.columns(stream)].all(dim=-1)

    def __contains__(self, stream: object) -> bool:
        return any(stream == name for name, _, _ in self._layout.streams)

    def __iter__(self) -> Iterator[str]:
        return iter(name for name, _, _ in self._layout.streams)

    def __len__(self) -> int:
        return len(self._layout.streams)


def on_device(loader: Any) -> OnDevice:
    """Iterate over a DataLoader's batches on the device of its `collate_fn`, which `ridgeline.collate(…)` returns."""
    return OnDevice(loader)


class OnDevice:
    """Iterates over the batches of a loader, on the device of its `collate`; `len` is the loader's.

    On a GPU it copies and resamples the next batch on a separate CUDA stream while the caller uses the current one.
    On a CPU it yields the loader's batches.
    """

    def __init__(self, loader: Any) -> None:
        collate_fn = getattr(loader, "collate_fn", None)
        if not isinstance(collate_fn, Collate):
            raise InputError(
                f"on_device wants a DataLoader with collate_fn=ridgeline.collate(…); this has {collate_fn!r}."
            )
        self.loader, self.device = loader, collate_fn.options.device

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        if self.device == "cpu":
            yield from self.loader
            return
        import torch

        copy_stream = torch.cuda.Stream(torch.device(self.device))
        source = iter(self.loader)
        prefetched = _launch_next(source, copy_stream)
        while prefetched is not None:
            (batch, ready), prefetched = prefetched, _launch_next(source, copy_stream)
            caller_stream = torch.cuda.current_stream(batch.values.device)
            caller_stream.wait_event(ready)  # wait for this batch only; the next one is queued already
            for tensor in (batch.values, batch.mask, batch.valid, batch.times, batch.lengths):
                tensor.record_stream(caller_stream)
            yield batch


@dataclass(frozen=True, eq=False)
class BatchOptions:
    """The options of `collate` that the resampling of a batch needs."""

    device: str
    outside: str
    max_gap_ns: int | None
    normalize: Mapping[str, Any] | None
    dtype: str
    fill: float | None

    def scaling(self, columns: Sequence[int], width: int) -> dict[str, Any] | None:
        """Return normalize= for some of the `width` columns."""
        if self.normalize is None:
            return None
        compute_scaling(self.normalize, width)  # raises if normalize= does not fit all columns
        return {
            k: np.broadcast_to(np.asarray(v, np.float64).reshape(-1), width)[list(columns)]
            for k, v in self.normalize.items()
        }


@dataclass(frozen=True, eq=False)
class Packed:
    """A batch that a worker packed for a GPU and that is not resampled yet. All arrays are in one buffer.

    A tensor that crosses to another process costs a file to open and memory to map and pin, and each copy to a device
    is a call. One buffer pays once, not five times for every clock of the batch.
    """

    buffer: Any  # uint8
    slices: tuple[StreamGroup, ...]  # with buffer slices instead of arrays
    at: BufferSlice  # [B, T]
    lengths: BufferSlice  # [B]
    layout: Layout
    origins: Origins
    options: BatchOptions

    @property
    def parts(self) -> tuple[StreamGroup, ...]:
        return tuple(_convert_arrays(part, lambda piece: piece.view(self.buffer)) for part in self.slices)

    def pin_memory(self) -> Packed:
        """Return this batch in page-locked memory; DataLoader(pin_memory=True) calls this."""
        return replace(self, buffer=self.buffer.pin_memory())

    def resample(self) -> Batch:
        """Copy the buffer to the device and resample there, on the current CUDA stream, without waiting."""
        import torch

        device = torch.device(self.options.device)
        device_batch = replace(self, buffer=self.buffer.to(device, non_blocking=True))
        at, lengths = device_batch.at.view(device_batch.buffer), device_batch.lengths.view(device_batch.buffer)
        batch, ticks = at.shape
        width = len(self.layout.names)
        values = torch.empty((batch, ticks, width), dtype=getattr(torch, self.options.dtype), device=device)
        for part in device_batch.parts:
            first, last = part.columns[0], part.columns[-1]
            contiguous = last - first + 1 == len(part.columns)
            target = values[..., first : last + 1] if contiguous else torch.empty_like(values[..., : len(part.columns)])
            resample(
                part.values,
                part.times,
                at,
                kind=part.kinds,
                outside=self.options.outside,
                max_gap=self.options.max_gap_ns,
                at_lengths=lengths,
                offsets=part.offsets,
                normalize=self.options.scaling(part.columns, width),
                dtype=values.dtype,
                check=False,  # the dataset checked the stamps
                out=target,
            )
            if not contiguous:
                for i, column in enumerate(part.columns):
                    values[..., column] = target[..., i]
        # What is unknown is NaN: outside, in a gap, in the padding, and next to a NaN of the recording.
        valid = _find_valid(values)
        if self.options.fill is not None:
            values.nan_to_num_(nan=self.options.fill, posinf=math.inf, neginf=-math.inf)
        return Batch(values, valid.all(dim=-1), valid, at, lengths, self.layout, self.origins)

    def __getattr__(self, name: str) -> Any:
        if name in ("values", "mask", "valid", "times", "masks", "names"):
            raise AttributeError(f"a batch from a worker has no '{name}' yet; iterate over on_device(loader).")
        raise AttributeError(name)


def _find_valid(values: Any) -> Any:
    """Return booleans [B, T, D]: what is not NaN."""
    import torch

    if values.is_cuda or values.dtype is torch.bfloat16:
        return values == values  # one launch; isnan and its inverse are two
    return torch.from_numpy(~np.isnan(values.numpy()))  # numpy is the faster one on a CPU


def pack(
    parts: Sequence[StreamGroup], at: Array, lengths: Array, layout: Layout, origins: Origins, options: BatchOptions
) -> Packed:
    """Copy the arrays into one buffer."""
    import torch

    arrays: list[Array] = []
    end = 0

    def reserve(array: Array) -> BufferSlice:
        nonlocal end
        start, end = end, end + array.nbytes
        end += -end % ALIGNMENT
        arrays.append(array)
        return BufferSlice(array.dtype.name, array.shape, start, start + array.nbytes)

    slices = tuple(_convert_arrays(part, reserve) for part in parts)
    clock_slices = reserve(at), reserve(lengths)
    buffer = torch.empty(end, dtype=torch.uint8)
    at_byte, data = 0, buffer.numpy()
    for array in arrays:
        data[at_byte : at_byte + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        at_byte += array.nbytes + -array.nbytes % ALIGNMENT
    return Packed(buffer, slices, *clock_slices, layout, origins, options)


@dataclass(frozen=True, eq=False)
class StreamGroup:
    """Streams that share their stamps in every sample of a batch, packed for `resample(offsets=)`."""

    columns: tuple[int, ...]
    streams: tuple[str, ...]
    kinds: tuple[tuple[slice, str], ...]
    values: Any  # [ΣS, D]
    times: Any  # [ΣS]
    offsets: Any  # [B + 1]


@dataclass(frozen=True)
class BufferSlice:
    """The position of an array in a buffer."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def view(self, buffer: Any) -> Any:
        import torch

        return buffer[self.start : self.stop].view(getattr(torch, self.dtype)).view(self.shape)


def _clocks(samples: Sequence[Sample]) -> list[list[int]]:
    """Group the stream numbers by clock: streams of a group share their stamps in every sample."""
    shared: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(samples[0].times)):
        shared.setdefault(tuple(id(s.times[i]) for s in samples), []).append(i)
    return list(shared.values())


def _stack_group(samples: Sequence[Sample], members: Sequence[int], layout: Layout, dtype: Any) -> StreamGroup:
    ranges = [range(*layout.streams[i][1:]) for i in members]
    columns = tuple(c for r in ranges for c in r)
    offsets = np.cumsum([0, *(len(s.times[members[0]]) for s in samples)], dtype=np.int64)
    capacity = _round_up(int(offsets[-1]))
    values, times = np.zeros((capacity, len(columns)), dtype), np.zeros(capacity, np.int64)
    with np.errstate(over="ignore", invalid="ignore"):  # values beyond float32 become inf
        for sample, low, high in zip(samples, offsets[:-1], offsets[1:], strict=True):
            times[low:high] = sample.times[members[0]]
            filled = 0
            for i in members:
                piece = sample.values[i]
                if layout.kinds != sample.layout.kinds:  # collate has other kinds than the dataset
                    piece = undo_flips(piece, layout.kinds[slice(*layout.streams[i][1:])])
                values[low:high, filled : filled + piece.shape[1]] = piece
                filled += piece.shape[1]
    kinds: list[tuple[slice, str]] = []
    filled = 0
    for kind, run in groupby(layout.kinds[c] for c in columns):
        width = len(list(run))
        kinds.append((slice(filled, filled + width), kind))
        filled += width
    names = tuple(layout.streams[i][0] for i in members)
    return StreamGroup(columns, names, tuple(kinds), values, times, offsets)


def _round_up(count: int) -> int:
    """Round up, so that batches share few shapes: the GPU launches a known shape at once."""
    step = max(64, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def _spread(lengths: Array, steps: int) -> Array:
    """Return [B, steps] integers, evenly from 0 to each length."""
    last = max(1, steps - 1)
    quotient, rest = np.divmod(lengths[:, None], last)
    k = np.arange(steps, dtype=np.int64)
    spread: Array = k * quotient + (k * rest + last // 2) // last
    return spread


def _refuse_outside(samples: Sequence[Sample], at: Array, lengths: Array) -> None:
    for sample, row, count in zip(samples, at, lengths, strict=True):
        first, last = int(row[0]), int(row[count - 1])
        for (name, _, _), times in zip(sample.layout.streams, sample.times, strict=True):
            if not len(times) or first < times[0] or last > times[-1]:
                span = f"{times[0]} to {times[-1]} ns" if len(times) else "no samples"
                raise InputError(
                    f"item {sample.origin.index} ({sample.origin.file or 'from memory'}) is sampled from {first} to "
                    f"{last} ns, and its stream '{name}' has {span}; choose outside='nan' or 'clamp'."
                )


def _convert_arrays(part: StreamGroup, convert: Callable[[Any], Any]) -> StreamGroup:
    return replace(part, values=convert(part.values), times=convert(part.times), offsets=convert(part.offsets))


def _launch_next(source: Iterator[Batch | Packed], copy_stream: Any) -> tuple[Batch, Any] | None:
    """The next batch and the event of its being ready; it is being made on the stream `ours`."""
    import torch

    with torch.cuda.stream(copy_stream):
        item = next(source, None)
        if item is None:
            return None
        batch = item.resample() if isinstance(item, Packed) else item
        ready = torch.cuda.Event()
        ready.record(copy_stream)
    return batch, ready
