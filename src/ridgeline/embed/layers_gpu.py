"""Encoder layers on a GPU: products by torch's library, all other steps by one Triton kernel each.

Each step reads and writes a hidden state once: bias, activation, residual and norm are fused into one pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ridgeline.embed.config import Config
from ridgeline.embed.layers import Embeddings, Layers, Linear, Norm, Packed
from ridgeline.kernels.encoder import (
    activate,
    add_and_normalize,
    attend,
    embed_tokens,
    linear_activate,
    linear_activate_pays,
    pool,
)

_KINDS = {"gelu": "gelu", "relu": "relu"}  # all others are gelu by tanh
_SHORT_KINDS = {"gelu": "gelu_16"}  # accurate enough for results of 16 bits


class GpuLayers(Layers):
    """Triton kernels over packed tokens."""

    def __init__(self, config: Config, device: Any, dtype: Any) -> None:
        super().__init__(config, device, dtype)
        depth = config.hidden // config.heads
        self._uses_attention_kernel = depth in (16, 32, 64, 128)
        self._kind = _KINDS.get(config.activation, "gelu_tanh")
        if dtype != torch.float32:
            self._kind = _SHORT_KINDS.get(self._kind, self._kind)
        self.by_offsets = self._uses_attention_kernel and config.padding is None

    def prepare_norm(self, weight: Any, bias: Any) -> Norm:
        """In float32, which the kernels compute in; norms are small."""
        return Norm(weight.to(self.device, torch.float32), bias.to(self.device, torch.float32), self.config.epsilon)

    def embed(self, ids: Any, packed: Packed, words: Embeddings) -> Any:
        positions, norm = None if self.config.padding is None else self.positions(ids, packed), words.norm
        tables = (words.word, words.position, norm.weight, norm.bias)
        return embed_tokens(ids, packed.offsets, *tables, norm.epsilon, positions)

    def product(self, x: Any, weight: Any, bias: Any = None) -> Any:
        """x [T, depth] · weight [width, depth]ᵀ + bias. Every product of the layers is computed here."""
        return F.linear(x, weight, bias)

    def linear(self, x: Any, layer: Linear) -> Any:
        return self.product(x, layer.weight, layer.bias)

    def up(self, x: Any, layer: Linear) -> Any:
        if self.dtype != torch.float32 and linear_activate_pays(layer.weight, len(x)):
            return linear_activate(x, layer.weight, layer.bias, self._kind)
        return activate(self.product(x, layer.weight), layer.bias, self._kind)

    def add_norm(self, x: Any, layer: Linear, residual: Any, norm: Norm) -> Any:
        return add_and_normalize(
            self.product(x, layer.weight), layer.bias, residual, norm.weight, norm.bias, norm.epsilon
        )

    def attention(self, qkv: Any, packed: Packed) -> Any:
        if not self._uses_attention_kernel:
            return super().attention(qkv, packed)
        return attend(qkv, packed.offsets, self.config.heads, packed.longest)

    def pool(self, hidden: Any, packed: Packed, mode: str, unit: bool) -> Any:
        return pool(hidden, packed.offsets, mode, unit)
