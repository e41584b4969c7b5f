"""A BERT that reads packed tokens: embeddings, then layers of attention and MLP, then pooling.

BERT, RoBERTa and XLM-R differ only in how positions are counted, which `layers.py` knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ridgeline.embed.config import Config
from ridgeline.embed.layers import Layer, Layers, Packed, Words, layers_for
from ridgeline.embed.weights import read_dense, read_encoder


@dataclass(frozen=True)
class Head:
    """What follows the pooling: dense modules in float32, the cut, the norm."""

    dense: tuple[tuple[Any, Any, Any], ...]  # weight, bias, activation
    width: int | None
    normalize: bool


class Encoder:
    """ids [T] and where the texts lie → vectors float32 [n, dim]."""

    def __init__(self, config: Config, layers: Layers, head: Head, weights: dict[str, Any]) -> None:
        self.config, self.layers, self.head = config, layers, head
        position = weights["position"] + weights["type"]  # texts have only one type
        norm = layers.norm_of(weights["embed_norm.weight"], weights["embed_norm.bias"])
        self.words = Words(layers.placed(weights["word"]), layers.placed(position), norm)
        self.stack = layers.stack_of(self.words, [self._layer(weights, i) for i in range(config.layers)])

    @property
    def dim(self) -> int:
        full = self.head.dense[-1][0].shape[0] if self.head.dense else self.config.hidden
        return min(full, self.head.width or full)

    def __call__(self, ids: Any, packed: Packed) -> Any:
        with torch.inference_mode():
            return self.vectors(self.hidden(ids, packed), packed)

    def direct(self, ids: Any, offsets: Any) -> Any:
        """The same from arrays to an array, if the layers know a short way; else None."""
        return self.layers.means(ids, offsets, self.stack) if self._at_once and self.config.pooling == "mean" else None

    @property
    def _at_once(self) -> bool:
        """Whether pooling ends with the norm."""
        return self.head.normalize and not self.head.dense and self.head.width is None

    def hidden(self, ids: Any, packed: Packed) -> Any:
        """The last hidden state of every token [T, hidden]."""
        return self.layers.hidden(ids, packed, self.words, self.stack)

    def vectors(self, hidden: Any, packed: Packed) -> Any:
        """Pool, and what the model's folder and the caller want after it."""
        found = self.layers.pool(hidden, packed, self.config.pooling, self._at_once)
        if self._at_once:
            return found
        for weight, bias, activation in self.head.dense:
            found = activation(torch.nn.functional.linear(found, weight, bias))
        if self.head.width is not None:
            found = found[:, : self.head.width].contiguous()
        return self.layers.normalised(found) if self.head.normalize else found

    def _layer(self, weights: dict[str, Any], i: int) -> Layer:
        def pair(name: str) -> tuple[Any, Any]:
            return weights[f"{i}.{name}.weight"], weights[f"{i}.{name}.bias"]

        linear, norm = self.layers.linear_of, self.layers.norm_of
        return Layer(
            qkv=linear(*pair("qkv")),
            out=linear(*pair("out")),
            out_norm=norm(*pair("out_norm")),
            up=linear(*pair("up")),
            down=linear(*pair("down")),
            down_norm=norm(*pair("down_norm")),
        )


def load_encoder(config: Config, device: Any, dtype: Any, *, width: int | None, normalize: bool) -> Encoder:
    """Read the weights of a folder and lay them out for a device."""
    dense = []
    for module in config.dense:
        weight, bias = read_dense(module.folder)
        weight, bias = weight.to(device), None if bias is None else bias.to(device)
        dense.append((weight, bias, getattr(torch.nn, module.activation)()))
    head = Head(tuple(dense), width, normalize)
    return Encoder(config, layers_for(config, device, dtype), head, read_encoder(config))
