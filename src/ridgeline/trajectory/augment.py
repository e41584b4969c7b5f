"""Augment batches of images and numbers on their device: crop and resize, colour, noise and dropout.

    augment = ridgeline.trajectory.Augment(crop=0.9, size=(224, 224), brightness=0.2, hue=0.05, noise=0.01, seed=0)
    for batch in loader:
        batch = augment(batch)  # on the device of its tensors

Crop and resize are one interpolation, and all colour changes are one matrix for each item, so that a batch is read
and written twice however many changes are on. The frames of one item share their changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.errors import InputError

_GRAY = (0.299, 0.587, 0.114)  # BT.601
_IMAGES = ("observation.images.", "observation.image")
_NUMBERS = ("observation.state",)


@dataclass
class Augment:
    """Changes batches at random; `augment(batch)` returns a new dict of tensors.

    crop        share of the width and height that is kept, at a random place: a number, or the range to draw it from
    size        height and width of the result; None: those of the images
    brightness, contrast, saturation  factors are drawn from 1 - x to 1 + x
    hue         turns are drawn from -x to x; 0.5 is half the circle of hues
    noise       standard deviation that is added to numbers: one number, or {feature: number}
    dropout     share of the columns of numbers that become 0: one number, or {feature: number}
    images, numbers  features to change; None: observation.images.* and observation.state
    seed        of the random numbers; the same seed gives the same changes on the same device

    Images are [B, C, H, W] or [B, T, C, H, W], uint8 or floats in 0 … 1; the result is float32 in 0 … 1. A mask
    `FEATURE_is_pad` and every other key stays as it is.
    """

    crop: float | tuple[float, float] = 1.0
    size: tuple[int, int] | None = None
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    noise: float | Mapping[str, float] = 0.0
    dropout: float | Mapping[str, float] = 0.0
    images: tuple[str, ...] | None = None
    numbers: tuple[str, ...] | None = None
    seed: int | None = None
    _generators: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        low, high = self.crop if isinstance(self.crop, tuple) else (self.crop, self.crop)
        if not 0 < low <= high <= 1:
            raise InputError(f"crop={self.crop}: give a share above 0 and up to 1, or a range of them.")
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)}: give 0 to 1.")
        if not 0 <= self.hue <= 0.5:
            raise InputError(f"hue={self.hue}: give 0 to 0.5.")
        for value in _list_values(self.noise):
            if value < 0 or not math.isfinite(value):
                raise InputError(f"noise={self.noise}: give standard deviations of 0 or more.")
        for value in _list_values(self.dropout):
            if not 0 <= value < 1:
                raise InputError(f"dropout={self.dropout}: give shares from 0 to below 1.")
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise InputError(f"size={self.size}: give a height and a width.")

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        out = dict(batch)
        for name in self._choose(batch, self.images, _IMAGES, "images"):
            out[name] = self._change_images(name, batch[name])
        for name in self._choose(batch, self.numbers, _NUMBERS, "numbers"):
            out[name] = self._change_numbers(name, batch[name])
        return out

    def _choose(
        self, batch: Mapping[str, Any], names: tuple[str, ...] | None, prefixes: tuple[str, ...], what: str
    ) -> list[str]:
        if names is None:
            return [n for n in batch if n.startswith(prefixes) and not n.endswith(("_is_pad", ".valid", "_valid"))]
        if missing := [n for n in names if n not in batch]:
            raise InputError(f"{what}={list(names)}: the batch has no '{missing[0]}'; it has {', '.join(batch)}.")
        return list(names)

    def _draw(self, device: Any, count: int, low: float, high: float) -> Any:
        """Return `count` random numbers between two limits."""
        import torch

        return torch.rand(count, device=device, generator=self._find_generator(device)) * (high - low) + low

    def _find_generator(self, device: Any) -> Any:
        import torch

        if str(device) not in self._generators:
            generator = torch.Generator(device)
            generator.manual_seed(torch.seed() if self.seed is None else self.seed)
            self._generators[str(device)] = generator
        return self._generators[str(device)]

    def _change_images(self, name: str, values: Any) -> Any:
        if values.ndim not in (4, 5) or values.shape[-3] != 3:
            raise InputError(f"'{name}' has the shape {list(values.shape)}; give [B, 3, H, W] or [B, T, 3, H, W].")
        items = values.shape[0]
        frames = values.reshape(-1, *values.shape[-3:])
        pixels = frames.float() / 255 if not frames.is_floating_point() else frames.float()
        pixels = self._crop(pixels, items)
        pixels = self._change_colors(pixels, items)
        return pixels.reshape(*values.shape[:-3], *pixels.shape[1:])

    def _crop(self, pixels: Any, items: int) -> Any:
        """Cut a random part out of the frames of each item and resize it, in one interpolation."""
        import torch
        from torch.nn import functional

        size = self.size or tuple(pixels.shape[-2:])
        low, high = self.crop if isinstance(self.crop, tuple) else (self.crop, self.crop)
        if high == 1 and low == 1:
            if size == tuple(pixels.shape[-2:]):
                return pixels
            return functional.interpolate(pixels, size, mode="bilinear", antialias=True, align_corners=False)
        scale = self._draw(pixels.device, items, low, high)
        margin = 1 - scale
        across = self._draw(pixels.device, items, -1, 1) * margin
        down = self._draw(pixels.device, items, -1, 1) * margin
        zero = torch.zeros_like(scale)
        affine = torch.stack(
            [torch.stack([scale, zero, across], 1), torch.stack([zero, scale, down], 1)], 1
        ).repeat_interleave(len(pixels) // items, 0)
        grid = functional.affine_grid(affine, [len(pixels), 3, *size], align_corners=False)
        return functional.grid_sample(pixels, grid, mode="bilinear", padding_mode="border", align_corners=False)

    def _change_colors(self, pixels: Any, items: int) -> Any:
        """Apply one matrix [3, 3] and one shift [3] for each item; contrast turns around the mean of its frames."""
        import torch

        if not (self.brightness or self.contrast or self.saturation or self.hue):
            return pixels
        device = pixels.device
        gray = torch.tensor(_GRAY, device=device)
        matrix = torch.eye(3, device=device).repeat(items, 1, 1)
        if self.hue:
            matrix = self._turn_hues(self._draw(device, items, -self.hue, self.hue)) @ matrix
        if self.saturation:
            factor = self._draw(device, items, 1 - self.saturation, 1 + self.saturation)[:, None, None]
            matrix = (factor * torch.eye(3, device=device) + (1 - factor) * gray.expand(3, 3)) @ matrix
        if self.brightness:
            matrix = self._draw(device, items, 1 - self.brightness, 1 + self.brightness)[:, None, None] * matrix
        shift = torch.zeros(items, 3, device=device)
        if self.contrast:
            factor = self._draw(device, items, 1 - self.contrast, 1 + self.contrast)[:, None]
            colors = pixels.reshape(items, -1, 3, pixels.shape[-2] * pixels.shape[-1]).mean(dim=(1, 3))
            level = ((matrix @ colors[:, :, None])[:, :, 0] @ gray)[:, None]
            matrix, shift = factor[:, :, None] * matrix, (1 - factor) * level.expand(-1, 3)
        frames = len(pixels) // items
        flat = pixels.reshape(items * frames, 3, -1)
        wide, moved = matrix.repeat_interleave(frames, 0), shift.repeat_interleave(frames, 0)[:, :, None]
        return torch.baddbmm(moved, wide, flat).clamp_(0, 1).reshape(pixels.shape)

    def _turn_hues(self, turns: Any) -> Any:
        """Return matrices [B, 3, 3] that turn colours around the grey axis."""
        import torch

        angle = turns * (2 * math.pi)
        cos, sin = torch.cos(angle)[:, None, None], torch.sin(angle)[:, None, None]
        third = torch.full((3, 3), 1 / 3, device=turns.device)
        cross = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]], device=turns.device) / math.sqrt(3)
        return cos * torch.eye(3, device=turns.device) + (1 - cos) * third + sin * cross

    def _change_numbers(self, name: str, values: Any) -> Any:
        import torch

        if not values.is_floating_point():
            return values
        noise, dropout = _choose_value(self.noise, name), _choose_value(self.dropout, name)
        generator = self._find_generator(values.device)
        if noise:
            values = values + noise * torch.randn(
                values.shape, device=values.device, dtype=values.dtype, generator=generator
            )
        if dropout:
            columns = (values.shape[0], *[1] * (values.ndim - 2), values.shape[-1])
            mask = torch.rand(columns, device=values.device, generator=generator) >= dropout
            values = torch.where(mask, values, torch.zeros((), device=values.device, dtype=values.dtype))
        return values


def _list_values(values: float | Mapping[str, float]) -> list[float]:
    return list(values.values()) if isinstance(values, Mapping) else [values]


def _choose_value(values: float | Mapping[str, float], name: str) -> float:
    return values.get(name, 0.0) if isinstance(values, Mapping) else values
