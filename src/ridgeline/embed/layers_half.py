"""float16 on an ARM CPU: all layers in one call of our own (`native/half.cpp`), what is before and after in float32.

Libraries sum in float16, too, which over 1,536 terms took cosines down to 0.9999; here sums leave float16 after a few
terms. Between the steps of a layer nothing is rearranged, nothing waits for other threads, and what texts need stays in
their core's cache.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ridgeline.embed.config import Config
from ridgeline.embed.layers import Layer, Layers, Linear, Norm, Packed
from ridgeline.errors import InputError
from ridgeline.native import HalfStack, half_here, norm_rows

WIDTH = 16  # of a head: a multiple of it, with zeros where it is none
TOKENS = 8  # per thread: as many lie side by side
_ACTIVATIONS = {"gelu": "gelu", "relu": "relu"}  # all others are gelu by tanh


class HalfLayers(Layers):
    """What goes into the layers and comes out of them is float32."""

    def __init__(self, config: Config, device: Any) -> None:
        super().__init__(config, device, torch.float32)

    def stack_of(self, layers: list[Layer]) -> HalfStack:
        heads = self.config.heads
        width = self.config.hidden // heads
        more = -width % WIDTH
        activation = _ACTIVATIONS.get(self.config.activation, "tanh")
        stack = HalfStack(self.config.hidden, heads, width + more, width**-0.5, self.config.epsilon, activation)
        for layer in layers:
            qkv, out = _wider(layer.qkv, heads, more), layer.out
            if more:  # zeros meet zeros
                columns = out.weight.view(-1, heads, width)
                out = Linear(F.pad(columns, (0, more)).flatten(1), out.bias)
            parts = (qkv, out, layer.out_norm, layer.up, layer.down, layer.down_norm)
            stack.add(*(tensor.numpy() for part in parts for tensor in (part.weight, part.bias)))
        return stack

    def through(self, x: Any, stack: HalfStack, packed: Packed) -> Any:
        stack(x.numpy(), packed.offsets.numpy(), _threads(len(x)))
        return x

    def embed(self, ids: Any, packed: Packed, word: Any, position: Any, norm: Norm) -> Any:
        hidden = F.embedding(ids, word).add_(F.embedding(self.positions(ids, packed), position))
        norm_rows(hidden.numpy(), norm.weight.numpy(), norm.bias.numpy(), norm.epsilon, _threads(len(hidden)))
        return hidden

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
    return max(1, min(int(torch.get_num_threads()), -(-tokens // TOKENS)))


def _wider(qkv: Linear, heads: int, more: int) -> Linear:
    """Every head's queries, keys and values with so many zeros behind them."""
    weight = qkv.weight.view(3 * heads, -1, qkv.weight.shape[1])
    bias = qkv.bias.view(3 * heads, -1)
    return Linear(F.pad(weight, (0, 0, 0, more)).flatten(0, 1), F.pad(bias, (0, more)).flatten())
