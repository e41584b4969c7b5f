"""float16 on an ARM CPU: products in half precision, twice as many at a time as in float32; the rest in float32.

The products are our own (`native/half.cpp`): libraries sum in float16, too, which over 1,536 terms took cosines down to
0.9999; here sums leave float16 after a few terms. Bias, activation and residual ride along. Norms are
our own as well: between our calls torch's took longer than the work they did, presumably since its threads and ours
wait busily for each other's CPUs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ridgeline.embed.config import Config
from ridgeline.embed.layers import Layers, Linear, Norm, Packed
from ridgeline.errors import InputError
from ridgeline.native import HalfLinear, half_attention, half_here, norm_rows

WIDTH = 8  # of a head: a multiple of it, or torch's own attention does it
TOKENS = 24  # per thread: for fewer, waking it takes longer (up to 32 tokens one text is no quicker by two)
_FUSED = ("gelu", "relu")


class HalfLayers(Layers):
    """Hidden states are float32; every linear layer rounds its input and gives float32 back."""

    def __init__(self, config: Config, device: Any) -> None:
        super().__init__(config, device, torch.float32)

    def linear_of(self, weight: Any, bias: Any) -> Linear:
        return Linear(HalfLinear(self.placed(weight).numpy(), self.placed(bias).numpy()), None)

    def linear(self, x: Any, layer: Linear) -> Any:
        return _through(x, layer)

    def attention(self, qkv: Any, packed: Packed) -> Any:
        hidden, heads = qkv.shape[1] // 3, self.config.heads
        if hidden // heads % WIDTH:
            return super().attention(qkv, packed)
        out = torch.empty(qkv.shape[0], hidden, dtype=torch.float16)
        half_attention(qkv.numpy(), packed.offsets.numpy(), out.numpy(), heads, _threads(len(qkv)))
        return out

    def up(self, x: Any, layer: Linear) -> Any:
        """What `add_norm` takes next is rounded at once."""
        name = self.config.activation
        if name not in _FUSED:
            return self.activated(self.linear(x, layer))
        return _through(x, layer, activation=name, dtype=torch.float16)

    def add_norm(self, x: Any, layer: Linear, residual: Any, norm: Norm) -> Any:
        return self._normed(_through(x, layer, residual=residual), norm)

    def embed(self, ids: Any, packed: Packed, word: Any, position: Any, norm: Norm) -> Any:
        hidden = F.embedding(ids, word).add_(F.embedding(self.positions(ids, packed), position))
        return self._normed(hidden, norm)

    def norm_of(self, weight: Any, bias: Any) -> Norm:
        return Norm(self.placed(weight).numpy(), self.placed(bias).numpy(), self.config.epsilon)

    def _normed(self, x: Any, norm: Norm) -> Any:
        norm_rows(x.numpy(), norm.weight, norm.bias, norm.epsilon, _threads(len(x)))
        return x

    def pool(self, *words: Any) -> Any:
        """What left the range of float16 (65,504) would be no vector; it is said, never returned."""
        found = super().pool(*words)
        if not bool(torch.isfinite(found).all()):
            raise InputError("a value of this model lies beyond the range of float16; use dtype='float32'.")
        return found


def works() -> bool:
    """Whether this CPU multiplies float16, and this build of ours knows how."""
    return bool(half_here())


def _threads(tokens: int) -> int:
    return max(1, min(int(torch.get_num_threads()), tokens // TOKENS))


def _through(
    x: Any, layer: Linear, *, residual: Any = None, activation: str = "none", dtype: Any = torch.float32
) -> Any:
    y = torch.empty(x.shape[0], layer.weight.out, dtype=dtype)
    added = None if residual is None else residual.numpy()
    layer.weight(x.contiguous().numpy(), y.numpy(), added, activation, _threads(len(x)))
    return y
