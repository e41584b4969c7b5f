"""Encoder layers on a GPU: products by torch's library, all other steps by one Triton kernel each.

Each step reads and writes a hidden state once: bias, activation, residual and norm are fused into one pass. With
`batch_invariant` the products are kernels, too: the library sums in another order for another number of tokens. Then
every step computes a token, or a text, in one way whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from ridgeline.embed.config import Config
from ridgeline.embed.families import Rotary
from ridgeline.embed.layers import Embeddings, Layer, Layers, Linear, Norm, Packed
from ridgeline.kernels.encoder import (
    ADDED_COLUMNS,
    GATE_COLUMNS,
    MAX_WIDTH,
    AttentionKind,
    Distances,
    activate,
    activate_gate,
    add_and_normalize,
    add_then_normalize,
    attend,
    embed_tokens,
    join_gate,
    library_agrees,
    linear,
    linear_activate_pays,
    linear_by_library,
    linear_gated,
    multiply_heads,
    pool,
    prepare_heads,
)

_KINDS = {"gelu": "gelu", "relu": "relu", "silu": "silu"}  # all others are gelu by tanh
_POOLINGS = ("mean", "max", "cls")  # of the kernel
_SHORT_KINDS = {"gelu": "gelu_16"}  # accurate enough for results of 16 bits
# Rows that the library multiplies at a time in a batch-invariant product; with few rows it sums in other orders.
LIBRARY_STEP = 8_192
LIBRARY_SIZES = (65_536, 32_768, 16_384, LIBRARY_STEP)  # where it does not agree for a larger multiple of the step
SMALL_LIBRARY_SIZES = (4_096, 2_048, 1_024)  # float32 only: other types have tensor cores in our kernel
MAX_PRODUCTS = 1 << 29  # values of the products with distances that are held at a time: 1 GiB of 16 bits


class GpuLayers(Layers):
    """Triton kernels over packed tokens."""

    def __init__(self, config: Config, device: Any, dtype: Any, batch_invariant: bool = False) -> None:
        super().__init__(config, device, dtype)
        self._uses_attention_kernel = 0 < config.head_width <= MAX_WIDTH
        self.batch_invariant = batch_invariant and (self._uses_attention_kernel or not config.layers)
        self._kind = _KINDS.get(config.activation, "gelu_tanh")
        if dtype != torch.float32:
            self._kind = _SHORT_KINDS.get(self._kind, self._kind)
        self._adds_products = dtype != torch.float32 and config.hidden % ADDED_COLUMNS == 0
        self._rotations: dict[Rotary, Any] = {}
        self._agreements: dict[Any, bool] = {}
        self.by_offsets = (
            config.plain and self._uses_attention_kernel and config.padding is None and config.pooling in _POOLINGS
        )

    def prepare_norm(self, weight: Any, bias: Any) -> Norm:
        """In float32, which the kernels compute in; norms are small."""
        bias = None if bias is None else bias.to(self.device, torch.float32)
        return Norm(weight.to(self.device, torch.float32), bias, self.config.epsilon, self.config.rms)

    def prepare_distances(self, table: Any) -> None:
        super().prepare_distances(table)
        if self.config.bias in ("buckets", "alibi"):
            self._bias = self._bias.float().contiguous()
        elif self.config.bias == "disentangled":
            self._distance_rows = self._distance_rows.int().contiguous()

    def prepare_stack(self, words: Embeddings, layers: list[Layer]) -> Any:
        """Join the gate and what it multiplies to one weight."""
        joined: dict[int, Layer] = {}  # a layer can be used several times
        for layer in layers:
            if layer.gate is not None and id(layer) not in joined:
                self._inner = len(layer.up.weight)
                gate_bias, up_bias = (
                    part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias
                    for part in (layer.gate, layer.up)
                )
                bias = None if layer.gate.bias is layer.up.bias is None else join_gate(gate_bias, up_bias)
                both = Linear(join_gate(layer.gate.weight, layer.up.weight), bias)
                joined[id(layer)] = replace(layer, gate=None, up=both)
        return [joined.get(id(layer), layer) for layer in layers]

    def run_layers(self, ids: Any, packed: Packed, words: Embeddings, stack: Any) -> Any:
        if self.config.placement == "post" or not stack:
            return super().run_layers(ids, packed, words, stack)
        # A residual, its sum and the norm that follows are one pass, so a norm is computed at the end of what precedes.
        x = self.embed(ids, packed, words)
        first = stack[0].attention_norm
        normed = x.clone() if first is None else self.normalize(x, first)
        for layer, following in zip(stack, [*stack[1:], None], strict=True):
            next_norm = layer.end_norm if following is None else following.attention_norm
            mixed = self.attention(self.linear(normed, layer.qkv), packed, layer)
            x, normed = self._add_then_normalize(mixed, layer.out, x, layer.out_norm, layer.mlp_norm)
            inner = self.widen(normed, layer)
            x, normed = self._add_then_normalize(inner, layer.down, x, layer.down_norm, next_norm)
        return normed

    def embed(self, ids: Any, packed: Packed, words: Embeddings) -> Any:
        if words.position is None or words.norm is None or words.projection is not None:
            return super().embed(ids, packed, words)
        positions, norm = None if self.config.padding is None else self.positions(ids, packed), words.norm
        tables = (words.word, words.position, norm.weight, norm.bias)
        return embed_tokens(ids, packed.offsets, *tables, norm.epsilon, positions)

    def product(self, x: Any, weight: Any, bias: Any = None) -> Any:
        """x [T, depth] · weight [width, depth]ᵀ + bias. Every product of the layers is computed here."""
        if not self.batch_invariant:
            return F.linear(x, weight, bias)
        return linear_by_library(x, weight, bias, self._choose_library_sizes(weight, bias, len(x)))

    def _add_product(self, total: Any, x: Any, weight: Any) -> None:
        """Add the product to `total` [T, width] while it is in registers, and round once."""
        if self.batch_invariant:
            linear_by_library(x, weight, None, self._choose_library_sizes(weight, None, len(x), True), total)
        else:
            total.addmm_(x, weight.T)

    def _choose_library_sizes(self, weight: Any, bias: Any, rows: int, add: bool = False) -> list[int]:
        """The numbers of rows to give to the library: most of them at once, because each call costs time to launch."""
        most = rows // LIBRARY_STEP * LIBRARY_STEP
        large = (most,) if most and self._library_agrees(weight, bias, most, add) else LIBRARY_SIZES
        sizes = (*large, *SMALL_LIBRARY_SIZES) if self.dtype == torch.float32 else large
        return [size for size in sizes if size <= rows and self._library_agrees(weight, bias, size, add)]

    def _library_agrees(self, weight: Any, bias: Any, size: int, add: bool = False) -> bool:
        """Whether the library has the bits of our own kernel for `size` rows, under the settings of torch."""
        matmul = torch.backends.cuda.matmul
        narrow = getattr(matmul, "fp32_precision", None) or matmul.allow_tf32  # older versions of torch have the latter
        sums = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
        key = (tuple(weight.shape), bias is None, weight.dtype, size, add, str(narrow), str(sums))
        if key not in self._agreements:
            try:
                self._agreements[key] = library_agrees(weight, bias, size, add)
            except torch.OutOfMemoryError:
                self._agreements[key] = False
        return self._agreements[key]

    def linear(self, x: Any, layer: Linear) -> Any:
        return self.product(x, layer.weight, layer.bias)

    def head_linear(self, x: Any, layer: Linear) -> Any:
        return self.product(x, layer.weight, layer.bias)

    def widen(self, x: Any, layer: Layer) -> Any:
        if not self.config.gated:
            return self.up(x, layer.up)
        weight, bias = layer.up.weight, layer.up.bias
        if self.dtype != torch.float32 and (self.batch_invariant or linear_activate_pays(weight, len(x))):
            return linear_gated(x, weight, bias, self._kind, self._inner)
        return activate_gate(self.product(x, weight), bias, self._kind, self._inner, GATE_COLUMNS)

    def up(self, x: Any, layer: Linear) -> Any:
        if self.dtype != torch.float32 and (self.batch_invariant or linear_activate_pays(layer.weight, len(x))):
            return linear(x, layer.weight, layer.bias, self._kind)
        return activate(self.product(x, layer.weight), layer.bias, self._kind)

    def add_norm(self, x: Any, layer: Linear, residual: Any, norm: Norm) -> Any:
        product = self.product(x, layer.weight)
        return add_and_normalize(product, layer.bias, residual, norm.weight, norm.bias, norm.epsilon, norm.rms)

    def _add_then_normalize(self, x: Any, layer: Linear, residual: Any, inner: Norm | None, norm: Norm | None) -> Any:
        if self._adds_products and layer.bias is None and inner is None:
            self._add_product(residual, x, layer.weight)
            return residual, residual if norm is None else self.normalize(residual, norm)
        before, after = (None if n is None else (n.weight, n.bias) for n in (inner, norm))
        product, config = self.product(x, layer.weight), self.config
        return add_then_normalize(product, layer.bias, residual, before, after, config.epsilon, config.rms)

    def normalize(self, x: Any, norm: Norm) -> Any:
        rows = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(rows)
        add_and_normalize(rows, None, None, norm.weight, norm.bias, norm.epsilon, norm.rms, out)
        return out.view(x.shape)

    def attention(self, qkv: Any, packed: Packed, layer: Layer) -> Any:
        if not self._uses_attention_kernel:
            return super().attention(qkv, packed, layer)
        config = self.config
        norms, turns = None, None
        if layer.query_norm is not None and layer.key_norm is not None:
            norms = layer.query_norm.weight, layer.key_norm.weight
        if layer.rotary is not None:
            turns = self.count_positions(len(qkv), packed), *self._get_turns(layer.rotary)
        if norms is not None or turns is not None:
            shape = config.heads, config.key_heads, config.head_width
            prepare_heads(qkv, *shape, norms, config.epsilon, turns)
        kind = AttentionKind(
            scale=config.head_width**-0.5 if config.scale is None else config.scale,
            key_heads=config.key_heads or config.heads,
            causal=config.causal,
            window=layer.window,
            bias=self._bias if config.bias in ("buckets", "alibi") else None,
        )
        runs = packed.runs if self.batch_invariant else None
        if config.bias != "disentangled":
            at_most = not packed.exact
            return attend(qkv, packed.offsets, config.heads, config.head_width, packed.longest, kind, runs, at_most)
        return self._attend_to_distances(qkv, packed, layer, kind)

    def _attend_to_distances(self, qkv: Any, packed: Packed, layer: Layer, kind: AttentionKind) -> Any:
        """DeBERTa's attention, some runs at a time: the products with all distances are large."""
        heads, width = self.config.heads, self.config.head_width
        tables = [t for t in (layer.position_key, layer.position_query) if t is not None]
        most = max(1, MAX_PRODUCTS // (len(tables) * heads * tables[0].shape[1]))
        parts, text = [], 0
        for group in _split_runs(packed.runs, most):
            first, (last, texts, length) = group[0][0], group[-1]
            rows, count = qkv[first : last + texts * length], sum(n for _, n, _ in group)
            by_query = None if layer.position_key is None else multiply_heads(rows, 0, layer.position_key)
            by_key = None if layer.position_query is None else multiply_heads(rows, heads * width, layer.position_query)
            offsets = packed.offsets[text : text + count + 1] - first
            runs = tuple((a - first, n, tokens) for a, n, tokens in group)
            with_distances = replace(kind, distances=Distances(self._distance_rows, by_query, by_key))
            parts.append(
                attend(rows, offsets, heads, width, length, with_distances, runs if self.batch_invariant else None)
            )
            text += count
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _get_turns(self, rotary: Rotary) -> Any:
        """Cosine and sine of all positions, float32 [positions, width / 2]."""
        if rotary not in self._rotations:
            width = self.config.head_width
            steps = torch.arange(0, width, 2, device=self.device).float() / width
            frequency = 1.0 / rotary.base**steps / rotary.divisor
            angle = torch.arange(self.config.positions, device=self.device).float()[:, None] * frequency
            self._rotations[rotary] = angle.cos().contiguous(), angle.sin().contiguous()
        return self._rotations[rotary]

    def pool(self, hidden: Any, packed: Packed, mode: str, unit: bool) -> Any:
        if mode not in _POOLINGS:
            return super().pool(hidden, packed, mode, unit)
        return pool(hidden, packed.offsets, mode, unit)

    def average(self, hidden: Any, packed: Packed) -> Any:
        return pool(hidden, packed.offsets, "mean", False)

    def normalize_rows(self, vectors: Any) -> Any:
        each = torch.arange(len(vectors) + 1, device=vectors.device)
        return pool(vectors.contiguous(), each, "cls", True)

    def sum_tokens(self, values: Any) -> Any:
        texts, length, _ = values.shape
        starts = torch.arange(texts + 1, device=values.device) * length
        return pool(values.flatten(0, 1).contiguous(), starts, "sum", False)

    def dot_rows(self, x: Any, weight: Any) -> Any:
        return self.product(x, weight[None])[:, 0]


def _split_runs(runs: tuple[tuple[int, int, int], ...], most: int) -> list[list[tuple[int, int, int]]]:
    """Split runs into groups of no more than `most` tokens; a longer text is a group of its own.

    >>> _split_runs(((0, 3, 2), (6, 1, 9)), 4)
    [[(0, 2, 2)], [(4, 1, 2)], [(6, 1, 9)]]
    """
    groups: list[list[tuple[int, int, int]]] = [[]]
    capacity = most
    for first, texts, length in runs:
        done = 0
        while done < texts:
            if groups[-1] and capacity < length:
                groups.append([])
                capacity = most
            n = min(texts - done, max(1, capacity // max(1, length)))
            groups[-1].append((first + done * length, n, length))
            done, capacity = done + n, capacity - n * length
    return groups
