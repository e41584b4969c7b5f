"""A batch of a DataLoader: packed by a worker, then resampled on the device it will be used on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.trajectory.channels import affine
from ridgeline.trajectory.resample import resample
from ridgeline.trajectory.sample import Layout, Where


@dataclass(frozen=True, eq=False)
class Batch:
    """B samples on one clock, as tensors on one device."""

    values: Any  # [B, T, D]
    mask: Any  # [B, T]: every column is known
    times: Any  # [B, T] int64 nanoseconds; what is padding goes on ticking
    lengths: Any  # [B]: how many ticks are no padding
    masks: Mapping[str, Any]  # stream -> [B, T]: this stream is known
    layout: Layout
    where: tuple[Where, ...]  # [B]

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


@dataclass(frozen=True, eq=False)
class Packed:
    """What a worker sends for a GPU: everything but the resampling."""

    parts: tuple[Part, ...]
    at: Any  # [B, T]
    lengths: Any  # [B]
    layout: Layout
    where: tuple[Where, ...]
    how: How

    def pin_memory(self) -> Packed:
        """In page-locked memory; DataLoader(pin_memory=True) calls this."""
        return self._moved(lambda tensor: tensor.pin_memory())

    def resample(self) -> Batch:
        """On the device, on the current stream; nothing waits."""
        import torch

        device = torch.device(self.how.device)
        there = self._moved(lambda tensor: tensor.to(device, non_blocking=True))
        batch, ticks = there.at.shape
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
                there.at,
                kind=part.kinds,
                outside=self.how.outside,
                max_gap=self.how.max_gap_ns,
                at_lengths=there.lengths,
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
        return Batch(values, known, there.at, there.lengths, masks, self.layout, self.where)

    def _moved(self, move: Callable[[Any], Any]) -> Packed:
        parts = tuple(
            replace(p, values=move(p.values), times=move(p.times), offsets=move(p.offsets)) for p in self.parts
        )
        return replace(self, parts=parts, at=move(self.at), lengths=move(self.lengths))

    def __getattr__(self, name: str) -> Any:
        if name in ("values", "mask", "times", "masks", "names"):
            raise AttributeError(f"a batch from a worker has no '{name}' yet; iterate over on_device(loader) instead.")
        raise AttributeError(name)
