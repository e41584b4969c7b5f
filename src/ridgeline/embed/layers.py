"""The steps of an encoder over packed tokens, in plain torch.

Every step is a method of `Layers`, so a device overrides the steps that it does faster. Hidden states are [T, hidden]:
the tokens of all texts one after the other, without padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from ridgeline.embed.config import Config
from ridgeline.embed.families import Rotary

BIAS_VALUES = 1 << 24  # of an attention bias that differs from text to text, held at a time: 64 MiB of float32


@dataclass(frozen=True)
class Packed:
    """The positions of texts in a batch of packed tokens, for the host and for the device."""

    offsets: Any  # int64 [n + 1], on the device
    runs: tuple[tuple[int, int, int], ...]  # (first token, texts, tokens each): neighbours of equal length
    exact: bool = True  # False: only the device knows the lengths; a text is no longer than its run says
    cache: dict[Any, Any] = field(default_factory=dict)  # what all layers of a batch share: masks, rotary positions

    @property
    def longest(self) -> int:
        return max(length for _, _, length in self.runs)


@dataclass(frozen=True)
class Linear:
    """A weight [out, in] and its bias (or None), in the form that the device needs."""

    weight: Any
    bias: Any


@dataclass(frozen=True)
class Norm:
    """The parameters of a norm."""

    weight: Any
    bias: Any  # None without one
    epsilon: float
    rms: bool = False  # by the root of the mean square, else a layer norm


@dataclass(frozen=True)
class Embeddings:
    """The tables of words and positions, the norm after their sum, and the layer that widens it."""

    word: Any
    position: Any = None
    norm: Norm | None = None
    projection: Linear | None = None


@dataclass(frozen=True)
class Layer:
    """The weights of one transformer layer. A norm that the family does not have is None."""

    qkv: Linear
    out: Linear
    up: Linear
    down: Linear
    out_norm: Norm | None = None
    down_norm: Norm | None = None
    gate: Linear | None = None
    attention_norm: Norm | None = None  # before the attention
    mlp_norm: Norm | None = None  # before the MLP
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    rotary: Rotary | None = None
    window: int | None = None  # the largest distance of a query to its keys
    position_key: Any = None  # of distances [heads, distances, head_width], multiplied with queries
    position_query: Any = None  # the same for keys
    end_norm: Norm | None = None  # after the last layer


class Layers:
    """Plain torch: correct on every device, and the reference for the others."""

    # Per CPU thread: what fits into the cache of a core (benchmarks/embed_cpu.py --sweep). For a GPU: what fills it.
    batch_tokens: ClassVar = {"cpu": 256, "cuda": 131_072}
    by_offsets = False  # whether only the device reads offsets, so that one recording serves texts of any length
    batch_invariant = False  # whether the result of a text has the same bits in any batch

    def __init__(self, config: Config, device: Any, dtype: Any) -> None:
        self.config, self.device, self.dtype = config, device, dtype

    @property
    def budget(self) -> int:
        """The default number of tokens per batch."""
        each = self.batch_tokens[self.device.type]
        return each * max(2, torch.get_num_threads()) if self.device.type == "cpu" else each

    def prepare_linear(self, weight: Any, bias: Any) -> Linear:
        """Prepare a linear layer, once."""
        return Linear(self.to_device(weight), None if bias is None else self.to_device(bias))

    def prepare_head(self, weight: Any, bias: Any) -> Linear:
        """Prepare a linear layer of a head, which is computed in float32 whatever the type of the encoder."""
        return Linear(weight.float().to(self.device), None if bias is None else bias.float().to(self.device))

    def head_linear(self, x: Any, layer: Linear) -> Any:
        """x float32 [n, in] → float32 [n, out]."""
        return F.linear(x, layer.weight, layer.bias)

    def prepare_norm(self, weight: Any, bias: Any) -> Norm:
        bias = None if bias is None else self.to_device(bias)
        return Norm(self.to_device(weight), bias, self.config.epsilon, self.config.rms)

    def prepare_distances(self, table: Any) -> None:
        """Prepare the attention bias by distance; `table` float32 [buckets, heads] is MPNet's."""
        config = self.config
        reach = torch.arange(1 - config.positions, config.positions)  # key minus query
        if config.bias == "buckets":
            self._bias = self.to_device(table[find_bucket(reach, config.buckets)].T)
        elif config.bias == "alibi":
            self._bias = self.to_device(-compute_slopes(config.heads)[:, None] * reach.abs())
        elif config.bias == "disentangled":
            span = config.buckets if config.buckets > 0 else config.longest_distance
            distance = find_log_bucket(-reach, config.buckets, config.longest_distance)
            self._distance_rows = (distance + span).clamp(0, 2 * span - 1).to(self.device)

    def prepare_stack(self, words: Embeddings, layers: list[Layer]) -> Any:
        """Prepare all layers; `run_layers` takes the result."""
        return layers

    def to_device(self, tensor: Any) -> Any:
        return tensor.to(self.device, self.dtype).contiguous()

    def run_layers(self, ids: Any, packed: Packed, words: Embeddings, stack: Any) -> Any:
        """ids [T] → [T, hidden], after all layers."""
        x = self.embed(ids, packed, words)
        run = self.run_post_norm if self.config.placement == "post" else self.run_pre_norm
        for layer in stack:
            x = run(x, packed, layer)
        return x

    def run_post_norm(self, x: Any, packed: Packed, layer: Layer) -> Any:
        """One layer with a norm after each residual."""
        out_norm: Any = layer.out_norm
        down_norm: Any = layer.down_norm
        mixed = self.attention(self.linear(x, layer.qkv), packed, layer)
        x = self.add_norm(mixed, layer.out, x, out_norm)
        return self.add_norm(self.widen(x, layer), layer.down, x, down_norm)

    def run_pre_norm(self, x: Any, packed: Packed, layer: Layer) -> Any:
        """One layer with a norm before attention and MLP, and with `out_norm` one after them, too."""
        normed = x if layer.attention_norm is None else self.normalize(x, layer.attention_norm)
        mixed = self.attention(self.linear(normed, layer.qkv), packed, layer)
        x = self.add(mixed, layer.out, x, layer.out_norm)
        inner = self.widen(self.normalize(x, layer.mlp_norm), layer)
        x = self.add(inner, layer.down, x, layer.down_norm)
        return x if layer.end_norm is None else self.normalize(x, layer.end_norm)

    def embed(self, ids: Any, packed: Packed, words: Embeddings) -> Any:
        """ids [T] → [T, hidden], before the first layer."""
        hidden = F.embedding(ids, words.word)
        if words.position is not None:
            hidden = hidden + F.embedding(self.positions(ids, packed), words.position)
        if words.projection is not None and self.config.projects_first:
            hidden = self.linear(hidden, words.projection)
        if words.norm is not None:
            hidden = self.normalize(hidden, words.norm)
        if words.projection is not None and not self.config.projects_first:
            hidden = self.linear(hidden, words.projection)
        return hidden

    def positions(self, ids: Any, packed: Packed) -> Any:
        """The row of the position table for every token, [T]."""
        starts = packed.offsets[:-1]
        lengths = packed.offsets[1:] - starts
        padding = self.config.padding
        if padding is None:
            return self.count_positions(len(ids), packed)
        # RoBERTa counts from the number of its padding token, and skips padding tokens inside a text.
        is_token = (ids != padding).long()
        before = F.pad(is_token.cumsum(0), (1, 0))
        index_in_text = before[1:] - torch.repeat_interleave(before[starts], lengths, output_size=len(ids))
        return index_in_text * is_token + padding

    def count_positions(self, tokens: int, packed: Packed) -> Any:
        """The index of every token in its text, [T]."""
        if "positions" not in packed.cache:
            starts = packed.offsets[:-1]
            begins = torch.repeat_interleave(starts, packed.offsets.diff(), output_size=tokens)
            packed.cache["positions"] = torch.arange(tokens, device=starts.device) - begins
        return packed.cache["positions"]

    def linear(self, x: Any, layer: Linear) -> Any:
        return F.linear(x, layer.weight, layer.bias)

    def widen(self, x: Any, layer: Layer) -> Any:
        """The first half of the MLP: hidden → intermediate."""
        if layer.gate is None:
            return self.up(x, layer.up)
        return self.up(x, layer.gate) * self.linear(x, layer.up)

    def up(self, x: Any, layer: Linear) -> Any:
        """Linear, bias and activation: hidden → intermediate."""
        return self.activate(F.linear(x, layer.weight, layer.bias))

    def activate(self, x: Any) -> Any:
        name = self.config.activation
        if name in ("relu", "silu"):
            return F.relu(x) if name == "relu" else F.silu(x)
        return F.gelu(x, approximate="none" if name == "gelu" else "tanh")

    def add_norm(self, x: Any, layer: Linear, residual: Any, norm: Norm) -> Any:
        """Layer norm of the linear layer plus the residual."""
        return self.normalize(F.linear(x, layer.weight, layer.bias) + residual, norm)

    def add(self, x: Any, layer: Linear, residual: Any, norm: Norm | None) -> Any:
        """The linear layer, its norm if it has one, plus the residual."""
        if norm is None:
            return self.linear(x, layer) + residual
        return self.normalize(self.linear(x, layer), norm) + residual

    def normalize(self, x: Any, norm: Any) -> Any:
        """Norm along the last axis; types of 16 bits are computed in float32."""
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        weight = norm.weight.to(wide.dtype)
        if norm.rms:
            wide = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + norm.epsilon) * weight
        else:
            bias = None if norm.bias is None else norm.bias.to(wide.dtype)
            wide = F.layer_norm(wide, (wide.shape[-1],), weight, bias, norm.epsilon)
        return wide.to(x.dtype)

    def attention(self, qkv: Any, packed: Packed, layer: Layer) -> Any:
        """qkv [T, (heads + 2·key_heads)·head_width] → [T, heads·head_width]; attention inside each text.

        Texts of equal length are one call, so no mask is needed for their ends.
        """
        config = self.config
        width, keys = config.head_width, config.key_heads
        query, key, value = qkv.view(len(qkv), -1, width).split([config.heads, keys, keys], 1)
        if layer.query_norm is not None:
            query, key = self.normalize(query, layer.query_norm), self.normalize(key, layer.key_norm)
        if layer.rotary is not None:
            query, key = (self._rotate(states, packed, layer.rotary) for states in (query, key))
        parts = []
        for first, n, length in packed.runs:
            rows = slice(first, first + n * length)
            q, k, v = (s[rows].view(n, length, -1, width).transpose(1, 2) for s in (query, key, value))
            mixed = self._attend(q, k, v, packed, layer)
            parts.append(mixed.transpose(1, 2).reshape(n * length, -1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend(self, query: Any, key: Any, value: Any, packed: Packed, layer: Layer) -> Any:
        """query [n, heads, length, width], key and value [n, key_heads, length, width] → [n, heads, length, width]."""
        config, (n, heads, length, _) = self.config, query.shape
        if config.key_heads != heads:
            key, value = (s.repeat_interleave(heads // config.key_heads, 1) for s in (key, value))
        if config.bias == "disentangled":
            step = max(1, BIAS_VALUES // (heads * length * max(length, self._span(layer))))
            parts = []
            for i in range(0, n, step):
                q, k, v = (s[i : i + step] for s in (query, key, value))
                bias = self._compare_positions(q, k, packed, layer)
                parts.append(F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=config.scale))
            return torch.cat(parts)
        mask = self._make_mask(length, packed, layer.window, query.dtype)
        causal = config.causal and mask is None and length > 1
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=config.scale)

    def _make_mask(self, length: int, packed: Packed, window: int | None, dtype: Any) -> Any:
        """What is added to the products of queries and keys: [1, heads or 1, length, length]; None: nothing."""
        if window is not None and window >= length - 1:
            window = None
        name = ("mask", length, window)
        if name not in packed.cache:
            packed.cache[name] = self._compute_mask(length, window, dtype)
        return packed.cache[name]

    def _compute_mask(self, length: int, window: int | None, dtype: Any) -> Any:
        distance = self._list_distances(length)
        if self.config.bias in ("buckets", "alibi"):
            return self._bias[:, distance + self.config.positions - 1][None]
        if window is None:
            return None  # causal attention needs no mask either
        seen = distance.abs() <= window
        if self.config.causal:
            seen &= distance <= 0
        return torch.zeros(1, 1, length, length, dtype=dtype, device=self.device).masked_fill(~seen, -torch.inf)

    def _list_distances(self, length: int) -> Any:
        """Key minus query, [length, length]."""
        index = torch.arange(length, device=self.device)
        return index[None, :] - index[:, None]

    def _span(self, layer: Layer) -> int:
        tables = [t for t in (layer.position_key, layer.position_query) if t is not None]
        return int(tables[0].shape[1])

    def _compare_positions(self, query: Any, key: Any, packed: Packed, layer: Layer) -> Any:
        """DeBERTa's attention between contents and distances, [n, heads, length, length], scaled."""
        n, heads, length, _ = query.shape
        name = ("rows", length)
        if name not in packed.cache:
            packed.cache[name] = self._distance_rows[self._list_distances(length) + self.config.positions - 1]
        rows = packed.cache[name].expand(n, heads, length, length)
        bias: Any = 0
        if layer.position_key is not None:
            bias = (query @ layer.position_key.transpose(1, 2)).gather(3, rows)
        if layer.position_query is not None:
            # the row of a key holds the distances of its queries
            bias = bias + (key @ layer.position_query.transpose(1, 2)).gather(3, rows.transpose(2, 3)).transpose(2, 3)
        return bias * self.config.scale

    def _rotate(self, states: Any, packed: Packed, rotary: Rotary) -> Any:
        """states [T, heads, width], turned by the position of each token; in float32 or wider."""
        cosine, sine = self._get_rotation(len(states), packed, rotary)
        wide = states.float() if states.dtype in (torch.float16, torch.bfloat16) else states
        first, second = wide.chunk(2, -1)
        return (wide * cosine + torch.cat([-second, first], -1) * sine).to(states.dtype)

    def _get_rotation(self, tokens: int, packed: Packed, rotary: Rotary) -> Any:
        if rotary not in packed.cache:
            width = self.config.head_width
            steps = torch.arange(0, width, 2, device=self.device).float() / width
            frequency = 1.0 / rotary.base**steps / rotary.divisor
            angle = self.count_positions(tokens, packed).float()[:, None] * frequency
            angle = torch.cat([angle, angle], 1)[:, None]
            packed.cache[rotary] = angle.cos(), angle.sin()
        return packed.cache[rotary]

    def pool(self, hidden: Any, packed: Packed, mode: str, unit: bool) -> Any:
        """hidden [T, hidden] → float32 [n, hidden]; with `unit` rows have length 1."""
        if mode == "cls":
            pooled = hidden[packed.offsets[:-1]].float()
        elif mode == "lasttoken":
            pooled = hidden[packed.offsets[1:] - 1].float()
        elif mode == "max":
            texts = [hidden[a : a + n * length].view(n, length, -1).amax(1) for a, n, length in packed.runs]
            pooled = torch.cat(texts).float()
        else:
            lengths = packed.offsets.diff()[:, None].float()
            if mode == "weightedmean":  # the first token counts once, the second twice, …
                weights = self.count_positions(len(hidden), packed)[:, None].float() + 1
                pooled = self.average(hidden.float() * weights, packed) * (2 / (lengths + 1))
            else:
                pooled = self.average(hidden, packed)
                if mode == "mean_sqrt_len_tokens":
                    pooled = pooled * lengths.sqrt()
        return self.normalize_rows(pooled) if unit else pooled

    def average(self, hidden: Any, packed: Packed) -> Any:
        """hidden [T, hidden] → the mean of each text, float32 [n, hidden]; zero for a text without tokens."""
        parts = []
        for first, n, length in packed.runs:
            texts = hidden[first : first + n * length].view(n, length, hidden.shape[1])
            parts.append(texts.sum(1, dtype=torch.float32) / max(1, length))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def encode_means(self, ids: Any, offsets: Any, stack: Any) -> Any:
        """Encode arrays of ids and offsets into unit means [n, hidden] in one call; None if the device has no such
        call.
        """
        return None

    def normalize_rows(self, vectors: Any) -> Any:
        """Scale rows to length 1; a row of zeros stays zero."""
        return F.normalize(vectors, dim=1)

    def dot_rows(self, x: Any, weight: Any) -> Any:
        """x float32 [n, width], weight [width] → their products, [n]."""
        return (x * weight).sum(1)  # a sum per row: the result does not depend on the rows beside it

    def sum_tokens(self, values: Any) -> Any:
        """Float32 [n, tokens, width] → the sums over the tokens, [n, width]."""
        return values.sum(1)


def find_bucket(distance: Any, buckets: int, furthest: int = 128) -> Any:
    """The bucket of each distance (key minus query), as in T5 and MPNet: exact when near, logarithmic when far."""
    half = buckets // 2
    before = -distance
    bucket = (before < 0).long() * half
    before = before.abs()
    exact = half // 2
    far = exact + (torch.log(before.float().clamp(min=1) / exact) / math.log(furthest / exact) * (half - exact)).long()
    return bucket + torch.where(before < exact, before, far.clamp(max=half - 1))


def find_log_bucket(distance: Any, buckets: int, furthest: int) -> Any:
    """DeBERTa's bucket of each distance (query minus key), with a sign; the distance itself without buckets."""
    if buckets <= 0:
        return distance
    middle = buckets // 2
    size = torch.where(distance.abs() < middle, middle - 1, distance.abs())
    scale = torch.log(torch.tensor((furthest - 1) / middle))
    far = torch.ceil(torch.log(size / middle) / scale * (middle - 1)) + middle
    return torch.where(size <= middle, distance, (far * distance.sign()).long())


def compute_slopes(heads: int) -> Any:
    """The slopes of ALiBi, float32 [heads]: powers of 2^(-8 / heads); between them for other numbers of heads."""
    power = 1 << (heads.bit_length() - 1)  # the largest power of two that is not above
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]
    return torch.tensor(slopes)
