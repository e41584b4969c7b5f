"""Encoder layers on a GPU: products by torch's library, all other steps by one Triton kernel each.

Each step reads and writes a hidden state once: bias, activation, residual and norm are fused into one pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ridgeline.embed.config import Config
from ridgeline.embed.layers import Embeddings, Layer, Layers, Linear, Norm, Packed
from ridgeline.kernels.encoder import (
    activate,
    add_and_normalize,
    attend,
    embed_tokens,
    linear_activate,
    linear_activate_pays,
    pool,
)

_KINDS = {"gelu": "gelu", "relu": "relu", "silu": "silu"}  # all others are gelu by tanh
_POOLINGS = ("mean", "max", "cls")  # of the kernel
_SHORT_KINDS = {"gelu": "gelu_16"}  # accurate enough for results of 16 bits


class GpuLayers(Layers):
    """Triton kernels over packed tokens."""

    def __init__(self, config: Config, device: Any, dtype: Any) -> None:
        super().__init__(config, device, dtype)
        self._uses_attention_kernel = config.plain_attention and config.head_width in (16, 32, 64, 128)
        self._kind = _KINDS.get(config.activation, "gelu_tanh")
        if dtype != torch.float32:
            self._kind = _SHORT_KINDS.get(self._kind, self._kind)
        self.by_offsets = (
            config.plain and self._uses_attention_kernel and config.padding is None and config.pooling in _POOLINGS
        )

    def prepare_norm(self, weight: Any, bias: Any) -> Norm:
        """In float32, which the kernels compute in; norms are small."""
        weight = weight.to(self.device, torch.float32)
        if bias is None and not self.config.rms:
            bias = torch.zeros_like(weight)
        bias = None if bias is None else bias.to(self.device, torch.float32)
        return Norm(weight, bias, self.config.epsilon, self.config.rms)

    def prepare_linear(self, weight: Any, bias: Any) -> Linear:
        """The kernels add a bias, so a layer without one has zeros."""
        return super().prepare_linear(weight, weight.new_zeros(len(weight)) if bias is None else bias)

    def embed(self, ids: Any, packed: Packed, words: Embeddings) -> Any:
        if words.position is None or words.norm is None or words.projection is not None:
            return super().embed(ids, packed, words)
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

    def attention(self, qkv: Any, packed: Packed, layer: Layer) -> Any:
        if not self._uses_attention_kernel:
            return super().attention(qkv, packed, layer)
        return attend(qkv, packed.offsets, self.config.heads, packed.longest)

    def pool(self, hidden: Any, packed: Packed, mode: str, unit: bool) -> Any:
        if mode not in _POOLINGS:
            return super().pool(hidden, packed, mode, unit)
        return pool(hidden, packed.offsets, mode, unit)
