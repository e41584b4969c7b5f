"""A batch of a DataLoader: packed by a worker, then resampled on the device it will be used on.

What a worker packs is one buffer. A tensor that crosses a process is a file to open and memory to map and to pin, and
each copy to a device is a call: once, and not five times for every clock of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.trajectory.channels import affine
from ridgeline.trajectory.places import Places
from ridgeline.trajectory.resampling import resample
from ridgeline.trajectory.sample import Layout
from ridgeline.trajectory.timeline import Array

ALIGNED = 256  # bytes: where pieces of a buffer begin


@dataclass(frozen=True, eq=False)
class Batch:
    """B samples on one clock, as tensors on one device."""

    values: Any  # [B, T, D]
    mask: Any  # [B, T]: every column is known
    times: Any  # [B, T] int64 nanoseconds; what is padding goes on ticking
    lengths: Any  # [B]: how many ticks are no padding
    masks: Mapping[str, Any]  # stream -> [B, T]: this stream is known
    layout: Layout
    where: Places  # [B]

    def __getitem__(self, stream: str) -> Any:
        """The columns of one stream: [B, T, D]."""
        return self.values[..., self.layout.part(stream)]

    @property
    def names(self) -> tuple[str, ...]:
        return self.layout.names

    @property
    def seconds(self) -> Any:
        """Since each sample's start: [B, T] float64. (times / 1e9 would be float32 in torch.)"""
        return (self.times - self.times[:, :1]).double() / 1e9

    def __len__(self) -> int:
        return len(self.where)


@dataclass(frozen=True, eq=False)
class How:
    """What the resampling of a batch needs to know, besides the samples."""

    device: str
    outside: str
    max_gap_ns: int | None
    normalize: Mapping[str, Any] | None
    dtype: str
    fill: float | None

    def scaling(self, columns: Sequence[int], width: int) -> dict[str, Any] | None:
        """normalize= of some of all `width` columns."""
        if self.normalize is None:
            return None
        affine(self.normalize, width)  # refuses what does not fit all columns
        return {
            k: np.broadcast_to(np.asarray(v, np.float64).reshape(-1), width)[list(columns)]
            for k, v in self.normalize.items()
        }


@dataclass(frozen=True, eq=False)
class Part:
    """Streams that share their stamps in every sample of a batch, packed as `resample(offsets=)` wants them."""

    columns: tuple[int, ...]
    streams: tuple[str, ...]
    kinds: tuple[tuple[slice, str], ...]
    values: Any  # [ΣS, D]
    times: Any  # [ΣS]
    offsets: Any  # [B + 1]


@dataclass(frozen=True)
class Piece:
    """An array's place in a buffer."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def of(self, buffer: Any) -> Any:
        import torch

        return buffer[self.start : self.stop].view(getattr(torch, self.dtype)).view(self.shape)


@dataclass(frozen=True, eq=False)
class Packed:
    """What a worker sends for a GPU: everything but the resampling."""

    buffer: Any  # uint8
    kept: tuple[Part, ...]  # pieces of the buffer in the place of arrays
    at: Piece  # [B, T]
    lengths: Piece  # [B]
    layout: Layout
    where: Places
    how: How

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(_with(part, lambda piece: piece.of(self.buffer)) for part in self.kept)

    def pin_memory(self) -> Packed:
        """In page-locked memory; DataLoader(pin_memory=True) calls this."""
        return replace(self, buffer=self.buffer.pin_memory())

    def resample(self) -> Batch:
        """On the device, on the current stream; nothing waits."""
        import torch

        device = torch.device(self.how.device)
        there = replace(self, buffer=self.buffer.to(device, non_blocking=True))
        at, lengths = there.at.of(there.buffer), there.lengths.of(there.buffer)
        batch, ticks = at.shape
        width = len(self.layout.names)
        values = torch.empty((batch, ticks, width), dtype=getattr(torch, self.how.dtype), device=device)
        masks: dict[str, Any] = {}
        for part in there.parts:
            first, last = part.columns[0], part.columns[-1]
            together = last - first + 1 == len(part.columns)
            room = values[..., first : last + 1] if together else torch.empty_like(values[..., : len(part.columns)])
            _, mask = resample(
                part.values,
                part.times,
                at,
                kind=part.kinds,
                outside=self.how.outside,
                max_gap=self.how.max_gap_ns,
                at_lengths=lengths,
                offsets=part.offsets,
                normalize=self.how.scaling(part.columns, width),
                dtype=values.dtype,
                check=False,  # the dataset has checked the stamps
                out=room,
                return_mask=True,
            )
            if self.how.fill is not None:
                room.masked_fill_(~mask[..., None], self.how.fill)
            if not together:
                for i, column in enumerate(part.columns):
                    values[..., column] = room[..., i]
            masks.update(dict.fromkeys(part.streams, mask))
        shown = list({id(m): m for m in masks.values()}.values())
        known = shown[0] if len(shown) == 1 else torch.stack(shown).all(dim=0)
        return Batch(values, known, at, lengths, masks, self.layout, self.where)

    def __getattr__(self, name: str) -> Any:
        if name in ("values", "mask", "times", "masks", "names"):
            raise AttributeError(f"a batch from a worker has no '{name}' yet; iterate over on_device(loader) instead.")
        raise AttributeError(name)


def packed(parts: Sequence[Part], at: Array, lengths: Array, layout: Layout, where: Places, how: How) -> Packed:
    """Arrays of the CPU into one buffer."""
    import torch

    arrays: list[Array] = []
    end = 0

    def piece(array: Array) -> Piece:
        nonlocal end
        start, end = end, end + array.nbytes
        end += -end % ALIGNED
        arrays.append(array)
        return Piece(array.dtype.name, array.shape, start, start + array.nbytes)

    kept = tuple(_with(part, piece) for part in parts)
    pieces = piece(at), piece(lengths)
    buffer = torch.empty(end, dtype=torch.uint8)
    at_byte, room = 0, buffer.numpy()
    for array in arrays:
        room[at_byte : at_byte + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        at_byte += array.nbytes + -array.nbytes % ALIGNED
    return Packed(buffer, kept, *pieces, layout, where, how)


def _with(part: Part, made: Callable[[Any], Any]) -> Part:
    return replace(part, values=made(part.values), times=made(part.times), offsets=made(part.offsets))
