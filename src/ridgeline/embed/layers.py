"""The steps of an encoder over packed tokens, in plain torch; a device may have better ones.

Every step the encoder takes is a method of `Layers`, so a device that does one better overrides it and nothing else
changes. Hidden states are `[T, hidden]`: the tokens of all texts one after the other, without padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from ridgeline.embed.config import Config


@dataclass(frozen=True)
class Packed:
    """Where the texts lie in a batch of packed tokens, for the host and for the device."""

    offsets: Any  # int64 [n + 1], on the device
    runs: tuple[tuple[int, int, int], ...]  # (first token, texts, tokens each): neighbours of equal length

    @property
    def longest(self) -> int:
        return max(length for _, _, length in self.runs)


@dataclass(frozen=True)
class Linear:
    """A weight `[out, in]` and its bias, in whatever form the device wants them."""

    weight: Any
    bias: Any


@dataclass(frozen=True)
class Norm:
    weight: Any
    bias: Any
    epsilon: float


@dataclass(frozen=True)
class Words:
    """What tokens are before the first layer: a row of each table, added, and the norm."""

    word: Any
    position: Any
    norm: Norm


@dataclass(frozen=True)
class Layer:
    qkv: Linear
    out: Linear
    out_norm: Norm
    up: Linear
    down: Linear
    down_norm: Norm


class Layers:
    """Plain torch: right on every device, and what the others are compared with."""

    # Per CPU thread: what stays in a core's cache (benchmarks/embed_cpu.py --sweep). For a GPU: what fills it.
    batch_tokens: ClassVar = {"cpu": 256, "cuda": 131_072}
    by_offsets = False  # whether the device alone knows where texts end, so that a recording serves texts of any length

    def __init__(self, config: Config, device: Any, dtype: Any) -> None:
        self.config, self.device, self.dtype = config, device, dtype

    @property
    def budget(self) -> int:
        """Tokens per batch where the caller leaves it to us."""
        each = self.batch_tokens[self.device.type]
        return each * max(2, torch.get_num_threads()) if self.device.type == "cpu" else each

    def linear_of(self, weight: Any, bias: Any) -> Linear:
        """Prepare a linear layer, once."""
        return Linear(self.placed(weight), self.placed(bias))

    def norm_of(self, weight: Any, bias: Any) -> Norm:
        return Norm(self.placed(weight), self.placed(bias), self.config.epsilon)

    def stack_of(self, words: Words, layers: list[Layer]) -> Any:
        """All layers, once they are prepared: what `hidden` takes."""
        return layers

    def placed(self, tensor: Any) -> Any:
        return tensor.to(self.device, self.dtype).contiguous()

    def hidden(self, ids: Any, packed: Packed, words: Words, stack: Any) -> Any:
        """ids [T] → [T, hidden], after all layers."""
        x = self.embed(ids, packed, words)
        for layer in stack:
            mixed = self.attention(self.linear(x, layer.qkv), packed)
            x = self.add_norm(mixed, layer.out, x, layer.out_norm)
            x = self.add_norm(self.up(x, layer.up), layer.down, x, layer.down_norm)
        return x

    def embed(self, ids: Any, packed: Packed, words: Words) -> Any:
        """ids [T] → [T, hidden], before the first layer."""
        hidden = F.embedding(ids, words.word) + F.embedding(self.positions(ids, packed), words.position)
        norm = words.norm
        return F.layer_norm(hidden, (hidden.shape[1],), norm.weight, norm.bias, norm.epsilon)

    def positions(self, ids: Any, packed: Packed) -> Any:
        """The row of the position table for every token [T]."""
        starts = packed.offsets[:-1]
        lengths = packed.offsets[1:] - starts
        padding = self.config.padding
        if padding is None:
            counted = torch.arange(len(ids), device=ids.device)
            return counted - torch.repeat_interleave(starts, lengths, output_size=len(ids))
        # RoBERTa counts from its padding number on, and a padding token written in a text does not count.
        real = (ids != padding).long()
        before = F.pad(real.cumsum(0), (1, 0))
        within = before[1:] - torch.repeat_interleave(before[starts], lengths, output_size=len(ids))
        return within * real + padding

    def linear(self, x: Any, layer: Linear) -> Any:
        return F.linear(x, layer.weight, layer.bias)

    def up(self, x: Any, layer: Linear) -> Any:
        """Linear, bias and activation: hidden → intermediate."""
        return self.activated(F.linear(x, layer.weight, layer.bias))

    def activated(self, x: Any) -> Any:
        name = self.config.activation
        if name == "relu":
            return F.relu(x)
        return F.gelu(x, approximate="none" if name == "gelu" else "tanh")

    def add_norm(self, x: Any, layer: Linear, residual: Any, norm: Norm) -> Any:
        """Linear and bias, plus the residual, normalised."""
        summed = F.linear(x, layer.weight, layer.bias) + residual
        return F.layer_norm(summed, (summed.shape[1],), norm.weight, norm.bias, norm.epsilon)

    def attention(self, qkv: Any, packed: Packed) -> Any:
        """qkv [T, 3·hidden] → [T, hidden]; each text sees itself only. Texts of one length go together, unmasked."""
        parts = [self._run(qkv[a : a + n * length], n, length) for a, n, length in packed.runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _run(self, qkv: Any, n: int, length: int) -> Any:
        heads = self.config.heads
        query, key, value = qkv.view(n, length, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return mixed.transpose(1, 2).reshape(n * length, -1)

    def pool(self, hidden: Any, packed: Packed, mode: str, unit: bool) -> Any:
        """hidden [T, hidden] → float32 [n, hidden]; with `unit` rows of unit length."""
        if mode == "cls":
            found = hidden[packed.offsets[:-1]].float()
        else:
            parts = []
            for first, n, length in packed.runs:
                texts = hidden[first : first + n * length].view(n, length, -1)
                parts.append(texts.amax(1).float() if mode == "max" else texts.mean(1, dtype=torch.float32))
            found = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self.normalised(found) if unit else found

    def means(self, ids: Any, offsets: Any, stack: Any) -> Any:
        """Arrays of ids and offsets → unit means [n, hidden], an array; None where there is no such short way."""
        return None

    def normalised(self, vectors: Any) -> Any:
        """Rows of unit length; a row of zeros stays one."""
        return F.normalize(vectors, dim=1)


def layers_for(config: Config, device: Any, dtype: Any) -> Layers:
    """The best layers there are for a device."""
    if device.type == "cpu":
        from ridgeline.embed.layers_cpu import cpu_layers

        return cpu_layers(config, device, dtype)
    try:
        from ridgeline.embed.layers_gpu import GpuLayers
    except ImportError:  # no Triton: plain torch does it all
        return Layers(config, device, dtype)
    return GpuLayers(config, device, dtype)
