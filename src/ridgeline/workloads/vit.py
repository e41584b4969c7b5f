"""A family of vision transformers with exact counts of FLOPs and bytes: the models of `ridgeline run`.

>>> vit = Vit(image=(3, 224, 224), patch_size=16, depth=12, heads=12, dim=768, mlp_dim=3072)
>>> vit.tokens, f"{vit.parameters / 1e6:.1f} M", f"{vit.flops(1) / 1e9:.1f} GFLOP"
(197, '85.8 M', '35.1 GFLOP')

depth 0 is the control: it computes nothing, but transfers as many bytes to the device and back. `output` chooses what
comes back: one vector per image (cls, pooled) or one per token, which grows with the image.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ridgeline.errors import InputError, unknown

OUTPUTS = ("cls", "pooled", "tokens")


@dataclass(frozen=True)
class Vit:
    """The sizes of a vision transformer; raises InputError for sizes that do not divide each other."""

    image: tuple[int, int, int] = (3, 224, 224)  # channels, height, width
    patch_size: int = 16
    depth: int = 12
    heads: int = 12
    dim: int = 768
    mlp_dim: int = 3072
    output: str = "cls"

    def __post_init__(self) -> None:
        channels, height, width = self.image
        for name in ("patch_size", "heads", "dim", "mlp_dim"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; give 1 or more.")
        if min(self.image) < 1 or self.depth < 0:
            raise InputError(
                f"the image is {channels}×{height}×{width} and depth {self.depth}; neither can be negative."
            )
        if height % self.patch_size or width % self.patch_size:
            raise InputError(
                f"an image of {height}×{width} is not cut evenly into patches of {self.patch_size}; "
                f"give a height and width that {self.patch_size} divides."
            )
        if self.dim % self.heads:
            raise InputError(
                f"{self.heads} heads do not share {self.dim} dimensions evenly; give heads that divide dim."
            )
        if self.output not in OUTPUTS:
            raise unknown("output", self.output, OUTPUTS)

    @property
    def tokens(self) -> int:
        """The number of patches, and one for the class."""
        return self.image[1] * self.image[2] // self.patch_size**2 + 1

    @property
    def parameters(self) -> int:
        if not self.depth:
            return 0
        dim, patch = self.dim, self.patch_size**2 * self.image[0]
        layer = 4 * dim + 4 * (dim * dim + dim) + 2 * dim * self.mlp_dim + self.mlp_dim + dim
        return patch * dim + dim + dim + self.tokens * dim + self.depth * layer + 2 * dim

    def flops(self, batch: int) -> int:
        """Return the multiplications and additions of all matrix products; norms and activations do not count."""
        if not self.depth:
            return 0
        tokens, dim = self.tokens, self.dim
        patches = 2 * (tokens - 1) * self.patch_size**2 * self.image[0] * dim
        layer = 8 * tokens * dim * dim + 4 * tokens * tokens * dim + 4 * tokens * dim * self.mlp_dim
        return batch * (patches + self.depth * layer)

    def up_bytes(self, batch: int, size: int) -> int:
        """Return the bytes of a batch of images, with `size` bytes per value."""
        return batch * prod(self.image) * size

    def down_bytes(self, batch: int, size: int) -> int:
        """Return the bytes of the answers of a batch."""
        return batch * prod(self.shape) * size

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the answer for one image."""
        return (self.tokens, self.dim) if self.output == "tokens" else (self.dim,)


def build(vit: Vit, *, seed: int = 0) -> Any:
    """Return the module in float32 on the CPU, with random weights: images [B, C, H, W] → [B, *vit.shape]."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return (_define_model() if vit.depth else _define_control())(vit).eval()


def _define_control() -> Any:
    from torch import nn

    class Control(nn.Module):  # type: ignore[misc]
        """Returns as many values as the answer has, copied from the image: transfers without arithmetic."""

        def __init__(self, vit: Vit) -> None:
            super().__init__()
            self.shape, self.size = vit.shape, prod(vit.shape)

        def forward(self, images: Any) -> Any:
            flat = images.flatten(1)
            repeats = -(-self.size // flat.shape[1])
            part = flat[:, : self.size].clone() if repeats == 1 else flat.repeat(1, repeats)[:, : self.size]
            return part.reshape(-1, *self.shape)

    return Control


def _define_model() -> Any:
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, vit: Vit) -> None:
            super().__init__()
            self.heads = vit.heads
            self.first, self.second = nn.LayerNorm(vit.dim), nn.LayerNorm(vit.dim)
            self.qkv, self.out = nn.Linear(vit.dim, 3 * vit.dim), nn.Linear(vit.dim, vit.dim)
            self.up, self.down = nn.Linear(vit.dim, vit.mlp_dim), nn.Linear(vit.mlp_dim, vit.dim)

        def forward(self, x: Any) -> Any:
            batch, tokens, dim = x.shape
            q, k, v = self.qkv(self.first(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, dim)
            x = x + self.out(mixed)
            return x + self.down(F.gelu(self.up(self.second(x))))

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self, vit: Vit) -> None:
            super().__init__()
            self.output = vit.output
            self.patches = nn.Conv2d(vit.image[0], vit.dim, vit.patch_size, vit.patch_size)
            self.class_token = nn.Parameter(torch.zeros(1, 1, vit.dim))
            self.positions = nn.Parameter(torch.randn(1, vit.tokens, vit.dim) * 0.02)
            self.blocks = nn.ModuleList(Block(vit) for _ in range(vit.depth))
            self.norm = nn.LayerNorm(vit.dim)

        def forward(self, images: Any) -> Any:
            x = self.patches(images).flatten(2).transpose(1, 2)
            x = torch.cat([self.class_token.expand(len(x), -1, -1), x], 1) + self.positions
            for block in self.blocks:
                x = block(x)
            x = self.norm(x)
            return x if self.output == "tokens" else x[:, 0] if self.output == "cls" else x.mean(1)

    return Model
