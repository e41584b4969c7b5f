"""On a GPU: products by torch's own library, everything between them by one kernel of ours each.

A hidden state is read and written once per step: bias, activation, residual and norm ride on one pass over it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ridgeline.embed.config import Config
from ridgeline.embed.layers import Layers, Linear, Norm, Packed, Words
from ridgeline.kernels.encoder import encoder

_KINDS = {"gelu": "gelu", "relu": "relu"}  # all others are gelu by tanh
_SHORT = {"gelu": "gelu_16"}  # good enough where 16 bits are left of it


class GpuLayers(Layers):
    """The same steps by Triton kernels over the packed tokens."""

    def __init__(self, config: Config, device: Any, dtype: Any) -> None:
        super().__init__(config, device, dtype)
        depth = config.hidden // config.heads
        self._own_attention = depth in (16, 32, 64, 128)
        self._kind = _KINDS.get(config.activation, "gelu_tanh")
        if dtype != torch.float32:
            self._kind = _SHORT.get(self._kind, self._kind)
        self.by_offsets = self._own_attention and config.padding is None

    def norm_of(self, weight: Any, bias: Any) -> Norm:
        """In float32: the kernels compute in it, and there are few of them."""
        return Norm(weight.to(self.device, torch.float32), bias.to(self.device, torch.float32), self.config.epsilon)

    def embed(self, ids: Any, packed: Packed, words: Words) -> Any:
        told, norm = None if self.config.padding is None else self.positions(ids, packed), words.norm
        tables = (words.word, words.position, norm.weight, norm.bias)
        return encoder.embed(ids, packed.offsets, *tables, norm.epsilon, told)

    def up(self, x: Any, layer: Linear) -> Any:
        if self.dtype != torch.float32 and encoder.multiplies(layer.weight, len(x)):
            return encoder.linear_activate(x, layer.weight, layer.bias, self._kind)
        return encoder.activate(F.linear(x, layer.weight), layer.bias, self._kind)

    def add_norm(self, x: Any, layer: Linear, residual: Any, norm: Norm) -> Any:
        product = F.linear(x, layer.weight)
        return encoder.add_norm(product, layer.bias, residual, norm.weight, norm.bias, norm.epsilon)

    def attention(self, qkv: Any, packed: Packed) -> Any:
        if not self._own_attention:
            return super().attention(qkv, packed)
        return encoder.attention(qkv, packed.offsets, self.config.heads, packed.longest)

    def pool(self, hidden: Any, packed: Packed, mode: str, unit: bool) -> Any:
        return encoder.pool(hidden, packed.offsets, mode, unit)
