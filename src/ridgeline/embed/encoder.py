"""A BERT encoder over packed tokens: embeddings, layers of attention and MLP, pooling.

BERT, RoBERTa and XLM-R differ only in how they count positions (`layers.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ridgeline.embed.config import Config
from ridgeline.embed.layers import Embeddings, Layer, Layers, Packed
from ridgeline.embed.weights import read_dense, read_encoder


@dataclass(frozen=True)
class Head:
    """The steps after the pooling: dense modules in float32, truncation, normalisation."""

    dense: tuple[tuple[Any, Any, Any, bool], ...]  # weight, bias, activation, whether its input is normalised
    width: int | None
    normalize: bool


class Encoder:
    """ids [T] and the offsets of texts → vectors float32 [n, dim]."""

    def __init__(self, config: Config, layers: Layers, head: Head, weights: dict[str, Any]) -> None:
        self.config, self.layers, self.head = config, layers, head
        position = weights["position"] + weights["type"]  # there is only one token type
        norm = layers.prepare_norm(weights["embed_norm.weight"], weights["embed_norm.bias"])
        self.words = Embeddings(layers.to_device(weights["word"]), layers.to_device(position), norm)
        self._dense = [
            (layers.prepare_head(weight, bias), activation, normalized)
            for weight, bias, activation, normalized in head.dense
        ]
        self.stack = layers.prepare_stack(self.words, [self._layer(weights, i) for i in range(config.layers)])

    @property
    def dim(self) -> int:
        full = self.head.dense[-1][0].shape[0] if self.head.dense else self.config.hidden
        return min(full, self.head.width or full)

    @property
    def has_pair_types(self) -> bool:
        """Whether ids of the second text of a pair are counted from the size of the vocabulary (`load_encoder`)."""
        return len(self.words.word) == 2 * self.config.vocabulary

    def __call__(self, ids: Any, packed: Packed) -> Any:
        with torch.inference_mode():
            return self.vectors(self.compute_hidden(ids, packed), packed)

    def encode_arrays(self, ids: Any, offsets: Any) -> Any:
        """Encode NumPy arrays to a NumPy array in one native call if the layers support it; else None."""
        return (
            self.layers.encode_means(ids, offsets, self.stack)
            if self._ends_with_norm and self.config.pooling == "mean"
            else None
        )

    @property
    def _ends_with_norm(self) -> bool:
        """Whether nothing but normalisation follows the pooling."""
        return self.head.normalize and not self.head.dense and self.head.width is None

    def compute_hidden(self, ids: Any, packed: Packed) -> Any:
        """Return the last hidden state of every token, [T, hidden]."""
        return self.layers.run_layers(ids, packed, self.words, self.stack)

    def vectors(self, hidden: Any, packed: Packed) -> Any:
        """Pool, then apply the dense modules, the truncation and the normalisation."""
        vectors = self.layers.pool(hidden, packed, self.config.pooling, self._ends_with_norm)
        if self._ends_with_norm:
            return vectors
        for linear, activation, normalized in self._dense:
            vectors = self.layers.normalize_rows(vectors) if normalized else vectors
            vectors = activation(self.layers.head_linear(vectors, linear))
        if self.head.width is not None:
            vectors = vectors[:, : self.head.width].contiguous()
        return self.layers.normalize_rows(vectors) if self.head.normalize else vectors

    def _layer(self, weights: dict[str, Any], i: int) -> Layer:
        def pair(name: str) -> tuple[Any, Any]:
            return weights[f"{i}.{name}.weight"], weights[f"{i}.{name}.bias"]

        linear, norm = self.layers.prepare_linear, self.layers.prepare_norm
        return Layer(
            qkv=linear(*pair("qkv")),
            out=linear(*pair("out")),
            out_norm=norm(*pair("out_norm")),
            up=linear(*pair("up")),
            down=linear(*pair("down")),
            down_norm=norm(*pair("down_norm")),
        )


def load_encoder(
    config: Config, device: Any, dtype: Any, *, width: int | None, normalize: bool, for_pairs: bool = False
) -> Encoder:
    """Read the weights of a folder and prepare them for a device.

    for_pairs  token n of the second text of a pair has the number n + vocabulary: the table of words gets a second
               half with the difference between both token types added, if the model has two. So ids alone describe a
               pair, and no step of any device needs types.
    """
    dense = []
    for module in config.dense:
        weight, bias = read_dense(module.folder)
        dense.append((weight, bias, getattr(torch.nn, module.activation)(), module.normalized))
    head = Head(tuple(dense), width, normalize)
    weights = read_encoder(config)
    if for_pairs and "second_type" in weights:
        second = weights["word"] + (weights["second_type"] - weights["type"])
        weights["word"] = torch.cat([weights["word"], second])
    return Encoder(config, choose_layers(config, device, dtype), head, weights)


def choose_layers(config: Config, device: Any, dtype: Any) -> Layers:
    """Return the fastest layers for a device."""
    if device.type == "cpu":
        from ridgeline.embed.layers_cpu import choose_cpu_layers

        return choose_cpu_layers(config, device, dtype)
    try:
        from ridgeline.embed.layers_gpu import GpuLayers
    except ImportError:  # no Triton
        return Layers(config, device, dtype)
    return GpuLayers(config, device, dtype)
