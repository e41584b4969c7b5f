"""float16 on an ARM CPU: from tokens to what leaves the last layer in one call of our own (`native/half.cpp`).

Libraries sum in float16, too, which over 1,536 terms took cosines down to 0.9999; here sums leave float16 after a few
terms. Between the steps of a layer nothing is rearranged, nothing waits for other threads, and what texts need stays in
their core's cache. Of the first layer's products those that depend on a word alone are kept.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from ridgeline.embed.config import Config
from ridgeline.embed.layers import Layer, Layers, Linear, Packed, Words
from ridgeline.errors import InputError
from ridgeline.native import HalfEncoder, half_supported, mean_rows

WIDTH = 16  # of a head: a multiple of it, with zeros where it is none
TOKENS, THREADS = 8, 2  # so many lie side by side and are worth so many threads
MOST_KEPT = 256 << 20  # bytes of words' products
_ACTIVATIONS = {"gelu": "gelu", "relu": "relu"}  # all others are gelu by tanh


class HalfLayers(Layers):
    """Tables of words and places, and what comes out of the layers, are float32."""

    batch_tokens: ClassVar = {
        "cpu": 2_048
    }  # what a batch costs besides is 2 % with 256, and nothing with more than this

    def __init__(self, config: Config, device: Any) -> None:
        super().__init__(config, device, torch.float32)

    def stack_of(self, words: Words, layers: list[Layer]) -> HalfEncoder:
        heads = self.config.heads
        width = self.config.hidden // heads
        more = -width % WIDTH
        activation = _ACTIVATIONS.get(self.config.activation, "tanh")
        stack = HalfEncoder(self.config.hidden, heads, width + more, width**-0.5, self.config.epsilon, activation)
        padding = -1 if self.config.padding is None else self.config.padding
        word, position, weight, bias = _arrays(words.word, words.position, words.norm.weight, words.norm.bias)
        stack.set_embedding(word, position, weight, bias, padding)
        for layer in layers:
            qkv, out = _wider(layer.qkv, heads, more), layer.out
            if layer is layers[0] and 2 * len(words.word) * len(qkv.bias) <= MOST_KEPT:
                stack.cache_products(*_arrays(*_first_products(words, qkv)))
            if more:  # zeros meet zeros
                columns = out.weight.view(-1, heads, width)
                out = Linear(F.pad(columns, (0, more)).flatten(1), out.bias)
            parts = (qkv, out, layer.out_norm, layer.up, layer.down, layer.down_norm)
            stack.add(*_arrays(*(tensor for part in parts for tensor in (part.weight, part.bias))))
        return stack

    def hidden(self, ids: Any, packed: Packed, words: Words, stack: HalfEncoder) -> Any:
        rows = torch.empty(len(ids), self.config.hidden)
        stack(ids.int().numpy(), packed.offsets.numpy(), rows.numpy(), _threads(len(ids)))
        return rows

    def pool(self, hidden: Any, packed: Packed, mode: str, unit: bool) -> Any:
        """What left the range of float16 (65,504) would be no vector; it is said, never returned."""
        if mode == "mean":
            found = torch.empty(len(packed.offsets) - 1, hidden.shape[1])
            mean_rows(hidden.numpy(), packed.offsets.numpy(), found.numpy(), unit, int(torch.get_num_threads()))
        else:
            found = super().pool(hidden, packed, mode, unit)
        _refuse_beyond(found.numpy())
        return found

    def means(self, ids: Any, offsets: Any, stack: HalfEncoder) -> Any:
        found = np.empty((len(offsets) - 1, self.config.hidden), np.float32)
        stack.means(ids, offsets, found, True, _threads(len(ids)))
        _refuse_beyond(found)
        return found


def _refuse_beyond(vectors: Any) -> None:
    if not np.isfinite(vectors).all():
        raise InputError("a value of this model lies beyond the range of float16; use dtype='float32'.")


def works() -> bool:
    """Whether this CPU multiplies float16, and this build of ours knows how."""
    return bool(half_supported())


def _threads(tokens: int) -> int:
    return max(1, min(int(torch.get_num_threads()), THREADS * -(-tokens // TOKENS)))


def _arrays(*tensors: Any) -> list[Any]:
    return [tensor.numpy() for tensor in tensors]


def _first_products(words: Words, qkv: Linear) -> tuple[Any, ...]:
    """What of the first layer's queries, keys and values does not depend on the text (`native/half_words.hpp`)."""
    factors = qkv.weight * words.norm.weight
    return factors, words.position @ factors.T, factors.sum(1), qkv.weight @ words.norm.bias + qkv.bias


def _wider(qkv: Linear, heads: int, more: int) -> Linear:
    """Every head's queries, keys and values with so many zeros behind them."""
    weight = qkv.weight.view(3 * heads, -1, qkv.weight.shape[1])
    bias = qkv.bias.view(3 * heads, -1)
    return Linear(F.pad(weight, (0, 0, 0, more)).flatten(0, 1), F.pad(bias, (0, more)).flatten())
