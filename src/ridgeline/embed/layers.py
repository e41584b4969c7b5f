"""The steps of an encoder over packed tokens, in plain torch.

Every step is a method of `Layers`, so a device overrides the steps that it does faster. Hidden states are [T, hidden]:
the tokens of all texts one after the other, without padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from ridgeline.embed.config import Config


@dataclass(frozen=True)
class Packed:
    """The positions of texts in a batch of packed tokens, for the host and for the device."""

    offsets: Any  # int64 [n + 1], on the device
    runs: tuple[tuple[int, int, int], ...]  # (first token, texts, tokens each): neighbours of equal length

    @property
    def longest(self) -> int:
        return max(length for _, _, length in self.runs)


@dataclass(frozen=True)
class Linear:
    """A weight [out, in] and its bias, in the form that the device needs."""

    weight: Any
    bias: Any


@dataclass(frozen=True)
class Norm:
    """The parameters of a layer norm."""

    weight: Any
    bias: Any
    epsilon: float


@dataclass(frozen=True)
class Embeddings:
    """The tables of words and positions, and the norm after their sum."""

    word: Any
    position: Any
    norm: Norm


@dataclass(frozen=True)
class Layer:
    """The weights of one transformer layer."""

    qkv: Linear
    out: Linear
    out_norm: Norm
    up: Linear
    down: Linear
    down_norm: Norm


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
        return Linear(self.to_device(weight), self.to_device(bias))

    def prepare_head(self, weight: Any, bias: Any) -> Linear:
        """Prepare a linear layer of a head, which is computed in float32 whatever the type of the encoder."""
        return Linear(weight.float().to(self.device), None if bias is None else bias.float().to(self.device))

    def head_linear(self, x: Any, layer: Linear) -> Any:
        """x float32 [n, in] → float32 [n, out]."""
        return F.linear(x, layer.weight, layer.bias)

    def prepare_norm(self, weight: Any, bias: Any) -> Norm:
        return Norm(self.to_device(weight), self.to_device(bias), self.config.epsilon)

    def prepare_stack(self, words: Embeddings, layers: list[Layer]) -> Any:
        """Prepare all layers; `run_layers` takes the result."""
        return layers

    def to_device(self, tensor: Any) -> Any:
        return tensor.to(self.device, self.dtype).contiguous()

    def run_layers(self, ids: Any, packed: Packed, words: Embeddings, stack: Any) -> Any:
        """ids [T] → [T, hidden], after all layers."""
        x = self.embed(ids, packed, words)
        for layer in stack:
            mixed = self.attention(self.linear(x, layer.qkv), packed)
            x = self.add_norm(mixed, layer.out, x, layer.out_norm)
            x = self.add_norm(self.up(x, layer.up), layer.down, x, layer.down_norm)
        return x

    def embed(self, ids: Any, packed: Packed, words: Embeddings) -> Any:
        """ids [T] → [T, hidden], before the first layer."""
        hidden = F.embedding(ids, words.word) + F.embedding(self.positions(ids, packed), words.position)
        norm = words.norm
        return F.layer_norm(hidden, (hidden.shape[1],), norm.weight, norm.bias, norm.epsilon)

    def positions(self, ids: Any, packed: Packed) -> Any:
        """The row of the position table for every token, [T]."""
        starts = packed.offsets[:-1]
        lengths = packed.offsets[1:] - starts
        padding = self.config.padding
        if padding is None:
            indices = torch.arange(len(ids), device=ids.device)
            return indices - torch.repeat_interleave(starts, lengths, output_size=len(ids))
        # RoBERTa counts from the number of its padding token, and skips padding tokens inside a text.
        is_token = (ids != padding).long()
        before = F.pad(is_token.cumsum(0), (1, 0))
        index_in_text = before[1:] - torch.repeat_interleave(before[starts], lengths, output_size=len(ids))
        return index_in_text * is_token + padding

    def linear(self, x: Any, layer: Linear) -> Any:
        return F.linear(x, layer.weight, layer.bias)

    def up(self, x: Any, layer: Linear) -> Any:
        """Linear, bias and activation: hidden → intermediate."""
        return self.activate(F.linear(x, layer.weight, layer.bias))

    def activate(self, x: Any) -> Any:
        name = self.config.activation
        if name == "relu":
            return F.relu(x)
        return F.gelu(x, approximate="none" if name == "gelu" else "tanh")

    def add_norm(self, x: Any, layer: Linear, residual: Any, norm: Norm) -> Any:
        """Layer norm of the linear layer plus the residual."""
        summed = F.linear(x, layer.weight, layer.bias) + residual
        return F.layer_norm(summed, (summed.shape[1],), norm.weight, norm.bias, norm.epsilon)

    def attention(self, qkv: Any, packed: Packed) -> Any:
        """qkv [T, 3·hidden] → [T, hidden]; attention inside each text. Texts of equal length are one call, without a
        mask.
        """
        parts = [self._run(qkv[a : a + n * length], n, length) for a, n, length in packed.runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _run(self, qkv: Any, n: int, length: int) -> Any:
        heads = self.config.heads
        query, key, value = qkv.view(n, length, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return mixed.transpose(1, 2).reshape(n * length, -1)

    def pool(self, hidden: Any, packed: Packed, mode: str, unit: bool) -> Any:
        """hidden [T, hidden] → float32 [n, hidden]; with `unit` rows have length 1."""
        if mode == "cls":
            pooled = hidden[packed.offsets[:-1]].float()
        else:
            parts = []
            for first, n, length in packed.runs:
                texts = hidden[first : first + n * length].view(n, length, -1)
                parts.append(texts.amax(1).float() if mode == "max" else texts.mean(1, dtype=torch.float32))
            pooled = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self.normalize_rows(pooled) if unit else pooled

    def encode_means(self, ids: Any, offsets: Any, stack: Any) -> Any:
        """Encode arrays of ids and offsets into unit means [n, hidden] in one call; None if the device has no such
        call.
        """
        return None

    def normalize_rows(self, vectors: Any) -> Any:
        """Scale rows to length 1; a row of zeros stays zero."""
        return F.normalize(vectors, dim=1)

    def sum_tokens(self, values: Any) -> Any:
        """Float32 [n, tokens, width] → the sums over the tokens, [n, width]."""
        return values.sum(1)
