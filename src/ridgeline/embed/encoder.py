"""An encoder over packed tokens: embeddings, layers of attention and MLP, pooling.

Its parts come from a family's page (`families.py`), their steps are those of a device (`layers.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ridgeline.embed.config import Config, LayerNorm
from ridgeline.embed.layers import Embeddings, Layer, Layers, Linear, Norm, Packed
from ridgeline.embed.weights import read_dense, read_encoder, read_layer_norm
from ridgeline.errors import InputError

NORM_EPSILON = 1e-5  # of a LayerNorm module, torch's default


@dataclass(frozen=True)
class HeadModule:
    """A dense module or a layer norm after the pooling."""

    weight: Any
    bias: Any  # None without one
    activation: Any  # of a dense module; None: a layer norm
    normalized: bool  # whether its input has unit length


@dataclass(frozen=True)
class Head:
    """The steps after the pooling: modules in float32, truncation, normalisation."""

    modules: tuple[HeadModule, ...]
    width: int | None
    normalize: bool


class Encoder:
    """ids [T] and the offsets of texts → vectors float32 [n, dim]."""

    def __init__(self, config: Config, layers: Layers, head: Head, weights: dict[str, Any]) -> None:
        self.config, self.layers, self.head = config, layers, head
        word, position = weights["word"], weights.get("position")
        if "type" in weights:  # there is only one token type, so it is added to a table
            if position is None:
                word = word + weights["type"]
            else:
                position = position + weights["type"]
        self.words = Embeddings(
            layers.to_device(word * config.embed_scale if config.embed_scale != 1 else word),
            None if position is None else layers.to_device(position),
            _prepare_norm(layers, weights, "embed_norm"),
            _prepare_linear(layers, weights, "projection"),
        )
        distances = weights.get("distances")
        if distances is not None and config.normalizes_distances:
            norm = (distances.shape[1],), weights["distance_norm.weight"], weights["distance_norm.bias"]
            distances = torch.nn.functional.layer_norm(distances, *norm, config.epsilon)
        layers.prepare_distances(distances)
        self._modules = [(module, _prepare_module(layers, module)) for module in head.modules]
        stack = [self._make_layer(weights, i, distances) for i in range(config.layers)]
        if config.layer_order:
            stack = [stack[i] for i in config.layer_order]
        self.stack = layers.prepare_stack(self.words, stack)

    @property
    def dim(self) -> int:
        modules, config = self.head.modules, self.config
        full = len(modules[-1].weight) if modules else config.hidden * len(config.poolings)
        return min(full, self.head.width or full)

    @property
    def has_pair_types(self) -> bool:
        """Whether ids of the second text of a pair are counted from the size of the vocabulary (`load_encoder`)."""
        return len(self.words.word) == 2 * self.config.vocabulary

    def __call__(self, ids: Any, packed: Packed, prompt_tokens: int = 0) -> Any:
        with torch.inference_mode():
            return self.vectors(self.compute_hidden(ids, packed), packed, prompt_tokens)

    def encode_arrays(self, ids: Any, offsets: Any) -> Any:
        """Encode NumPy arrays to a NumPy array in one native call if the layers support it; else None."""
        return (
            self.layers.encode_means(ids, offsets, self.stack)
            if self._ends_with_norm and self.config.poolings == ("mean",)
            else None
        )

    @property
    def _ends_with_norm(self) -> bool:
        """Whether nothing but normalisation follows the pooling."""
        return self.head.normalize and not self.head.modules and self.head.width is None

    def compute_hidden(self, ids: Any, packed: Packed) -> Any:
        """Return the last hidden state of every token, [T, hidden]."""
        return self.layers.run_layers(ids, packed, self.words, self.stack)

    def vectors(self, hidden: Any, packed: Packed, prompt_tokens: int = 0) -> Any:
        """Pool, then apply the modules after it, the truncation and the normalisation.

        prompt_tokens  the number of first tokens of every text that the pooling leaves out
        """
        if prompt_tokens:
            hidden, packed = drop_first_tokens(hidden, packed, prompt_tokens)
        poolings = self.config.poolings
        only_pools = self._ends_with_norm and len(poolings) == 1
        pooled = [self.layers.pool(hidden, packed, pooling, only_pools) for pooling in poolings]
        vectors = pooled[0] if len(pooled) == 1 else torch.cat(pooled, 1)
        if only_pools:
            return vectors
        for module, linear in self._modules:
            vectors = self.layers.normalize_rows(vectors) if module.normalized else vectors
            if module.activation is None:
                width = (len(linear.weight),)
                vectors = torch.nn.functional.layer_norm(vectors, width, linear.weight, linear.bias, NORM_EPSILON)
            else:
                vectors = module.activation(self.layers.head_linear(vectors, linear))
        if self.head.width is not None:
            vectors = vectors[:, : self.head.width].contiguous()
        return self.layers.normalize_rows(vectors) if self.head.normalize else vectors

    def _make_layer(self, weights: dict[str, Any], i: int, distances: Any) -> Layer:
        config, layers = self.config, self.layers
        parts: dict[str, Any] = {name: _prepare_linear(layers, weights, f"{i}.{name}") for name in _LINEARS}
        parts |= {name: _prepare_norm(layers, weights, f"{i}.{name}") for name in _NORMS}
        last = i == config.layers - 1
        return Layer(
            **parts,
            rotary=config.rotary[i] if config.rotary else None,
            window=config.windows[i] if config.windows else None,
            position_key=self._project_distances(weights, i, distances, "c2p"),
            position_query=self._project_distances(weights, i, distances, "p2c"),
            end_norm=_prepare_norm(layers, weights, "final_norm") if last else None,
        )

    def _project_distances(self, weights: dict[str, Any], i: int, distances: Any, kind: str) -> Any:
        """DeBERTa: the keys (c2p) or queries (p2c) of all distances, which do not depend on the text."""
        config = self.config
        if config.bias != "disentangled" or kind not in config.disentangled:
            return None
        if config.shares_position_projections:
            part = 1 if kind == "c2p" else 0  # the keys or queries of the texts
            weight, bias = (weights[f"{i}.qkv.{name}"].chunk(3)[part] for name in ("weight", "bias"))
        else:
            name = "position_key" if kind == "c2p" else "position_query"
            weight, bias = weights[f"{i}.{name}.weight"], weights[f"{i}.{name}.bias"]
        projected = torch.nn.functional.linear(distances, weight, bias)
        return self.layers.to_device(projected.view(len(projected), config.heads, -1).transpose(0, 1))


_LINEARS = ("qkv", "out", "up", "down", "gate")
_NORMS = ("out_norm", "down_norm", "attention_norm", "mlp_norm", "query_norm", "key_norm")


def _prepare_linear(layers: Layers, weights: dict[str, Any], name: str) -> Linear | None:
    if f"{name}.weight" not in weights:
        return None
    return layers.prepare_linear(weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def _prepare_module(layers: Layers, module: HeadModule) -> Linear:
    if module.activation is None:
        return Linear(module.weight.to(layers.device), module.bias.to(layers.device))
    return layers.prepare_head(module.weight, module.bias)


def _prepare_norm(layers: Layers, weights: dict[str, Any], name: str) -> Norm | None:
    if f"{name}.weight" not in weights:
        return None
    return layers.prepare_norm(weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def load_encoder(
    config: Config,
    device: Any,
    dtype: Any,
    *,
    width: int | None,
    normalize: bool,
    for_pairs: bool = False,
    batch_invariant: bool = False,
) -> Encoder:
    """Read the weights of a folder and prepare them for a device.

    for_pairs  token n of the second text of a pair has the number n + vocabulary: the table of words gets a second
               half with the difference between both token types added, if the model has two. So ids alone describe a
               pair, and no step of any device needs types.
    batch_invariant  choose layers that give a text the same bits in any batch, where there is a choice
    """
    head = read_head(config, width=width, normalize=normalize)
    weights = read_encoder(config)
    if for_pairs and "second_type" in weights:
        second = weights["word"] + (weights["second_type"] - weights["type"])
        weights["word"] = torch.cat([weights["word"], second])
    return Encoder(config, choose_layers(config, device, dtype, batch_invariant), head, weights)


def read_head(config: Config, *, width: int | None, normalize: bool) -> Head:
    """Read the weights of the modules after the pooling.

    width  components of a vector that are kept; None: all
    """
    modules = []
    for module in config.modules:
        if isinstance(module, LayerNorm):
            modules.append(HeadModule(*read_layer_norm(module.folder), None, module.normalized))
        else:
            activation = getattr(torch.nn, module.activation)()
            modules.append(HeadModule(*read_dense(module.folder), activation, module.normalized))
    return Head(tuple(modules), width, normalize)


def drop_first_tokens(hidden: Any, packed: Packed, count: int) -> tuple[Any, Packed]:
    """Return hidden states and positions without the first `count` tokens of every text; each needs more of them.

    >>> packed = Packed(torch.tensor([0, 3, 6, 8]), ((0, 2, 3), (6, 1, 2)))
    >>> hidden, packed = drop_first_tokens(torch.arange(8)[:, None], packed, 1)
    >>> hidden[:, 0].tolist(), packed.offsets.tolist(), packed.runs
    ([1, 2, 4, 5, 7], [0, 2, 4, 5], ((0, 2, 2), (4, 1, 1)))
    """
    if any(length <= count for _, _, length in packed.runs):
        raise InputError(f"a text has no tokens beyond the {count} of the prompt; shorten the prompt.")
    starts = packed.offsets[:-1]
    keep = torch.ones(len(hidden), dtype=torch.bool, device=hidden.device)
    keep[(starts[:, None] + torch.arange(count, device=starts.device)).flatten()] = False
    offsets = packed.offsets - count * torch.arange(len(packed.offsets), device=packed.offsets.device)
    runs, first = [], 0
    for _, texts, length in packed.runs:
        runs.append((first, texts, length - count))
        first += texts * (length - count)
    return hidden[keep], Packed(offsets, tuple(runs))


def choose_layers(config: Config, device: Any, dtype: Any, batch_invariant: bool = False) -> Layers:
    """Return the fastest layers for a device."""
    if device.type == "cpu":
        from ridgeline.embed.layers_cpu import choose_cpu_layers

        return choose_cpu_layers(config, device, dtype)
    try:
        from ridgeline.embed.layers_gpu import GpuLayers
    except ImportError:  # no Triton
        return Layers(config, device, dtype)
    return GpuLayers(config, device, dtype, batch_invariant)
