"""Read weights from safetensors under the names that the encoder uses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgeline.embed.config import STATIC, Config
from ridgeline.embed.families import FAMILIES, Half, Source
from ridgeline.embed.tensor_files import find_weight_files, load_tensors, read_table
from ridgeline.errors import InputError

# Tensors that are no part of the encoder: heads (heads.py reads them), poolers, and buffers.
_OTHER_TENSORS = re.compile(
    r"(^|\.)(position_ids|token_type_ids|inv_freq|original_inv_freq|sinusoidal\w*)$"
    r"|(^|\.)(pooler|cls|lm_head|predictions|sop_classifier|classifier|pre_classifier|score|qa_outputs)\."
    r"|^(head|decoder|vocab_transform|vocab_layer_norm|vocab_projector|mask_predictions|lm_predictions)\."
)


def read_encoder(config: Config) -> dict[str, Any]:
    """Return name → float tensor, by the names of `families.py`; query, key and value of a layer are one matrix `qkv`.

    "type" is the token type of a single text, "second_type" that of the second text of a pair, if the model has one.
    A tensor that is missing, or that no part of the encoder takes, is an InputError that names it.
    """
    if config.model_type == STATIC:
        return {"word": read_table(config.folder)}
    family = FAMILIES[config.model_type]
    raw = load_tensors(find_weight_files(config.folder))
    stem = next((n.removesuffix(a) for a in family.anchor for n in raw if n.endswith(a)), None)
    if stem is None:
        raise InputError(
            f"the weights in '{config.folder}' hold no '{family.anchor[0]}', so they are no {config.model_type}'s."
        )
    read = _WeightReader(raw, stem, config)
    weights = {"word": read.read_table(family.tensors["word"])}
    if config.position_table:
        weights["position"] = read.read_table(family.tensors["position"])
    types = read.read_table(family.tensors["type"], needed=False) if "type" in family.tensors else None
    if types is not None and len(types):
        weights["type"] = types[0]
        if len(types) > 1:
            weights["second_type"] = types[1]
    for name, needed in (("embed_norm", config.embed_norm), ("final_norm", "final_norm" in family.tensors)):
        if needed:
            weights |= read.read_norm(name, family.tensors[name])
    if config.projected:
        weights |= read.read_linear("projection", family.tensors["projection"], config.model_type == "albert")
    if config.bias == "buckets" or config.has_distances:
        weights["distances"] = read.read_table(family.tensors["distances"])
    if config.normalizes_distances:
        weights |= read.read_norm("distance_norm", family.tensors["distance_norm"], bias=True)
    for i in range(config.layers):
        weights |= _read_layer(read, config, i)
    read.refuse_unused()
    if config.position_table and len(weights["position"]) < config.positions:
        raise InputError(
            f"'{config.folder}': the weights have {len(weights['position'])} positions, config.json says "
            f"{config.positions}; they do not belong together."
        )
    rows, width = weights["word"].shape
    if rows != config.vocabulary or (width != config.hidden and not config.projected):
        raise InputError(
            f"'{config.folder}': the weights know {rows} tokens of width {width}, config.json says "
            f"{config.vocabulary} of {config.hidden}; they do not belong together."
        )
    return weights


def _read_layer(read: _WeightReader, config: Config, i: int) -> dict[str, Any]:
    family = FAMILIES[config.model_type]
    numbers = {"i": i, "group": i // config.inner_group, "inner": i % config.inner_group}
    stems = [stem.format(**numbers) for stem in family.layer_stems]
    weights: dict[str, Any] = {}
    for name, sources in family.layer.items():
        full = [_prefix(stem, source) for stem in stems for source in sources]
        if name == "attention_norm" and i == 0 and config.skips_first_norm:
            continue
        if name in ("position_key", "position_query"):
            used = "c2p" if name == "position_key" else "p2c"
            if config.bias == "disentangled" and not config.shares_position_projections and used in config.disentangled:
                weights |= read.read_linear(f"{i}.{name}", full, bias=True)
        elif name.endswith("norm"):
            weights |= read.read_norm(f"{i}.{name}", full)
        else:
            part = "up" if name == "gate" else name
            weights |= read.read_linear(f"{i}.{name}", full, part in config.biases)
    return weights


def read_dense(folder: Path) -> tuple[Any, Any]:
    """(weight, bias or None) of a dense module."""
    raw = load_tensors(find_weight_files(folder))
    if "linear.weight" not in raw:
        raise InputError(f"'{folder}' holds no 'linear.weight'.")
    return raw["linear.weight"].float(), raw["linear.bias"].float() if "linear.bias" in raw else None


def read_layer_norm(folder: Path) -> tuple[Any, Any]:
    """(weight, bias) of a LayerNorm module."""
    raw = load_tensors(find_weight_files(folder))
    for name in ("norm.weight", "norm.bias"):
        if name not in raw:
            raise InputError(f"'{folder}' holds no '{name}'.")
    return raw["norm.weight"].float(), raw["norm.bias"].float()


class _WeightReader:
    """Reads tensors by their published names, in float32; an error names the missing one."""

    def __init__(self, raw: Mapping[str, Any], stem: str, config: Config) -> None:
        self._raw, self._stem, self._config = raw, stem, config
        self._used: set[str] = set()

    def read_table(self, sources: Sequence[Source], *, needed: bool = True) -> Any:
        return self._read(sources, "weight", needed=needed)

    def read_linear(self, name: str, sources: Sequence[Source], bias: bool) -> dict[str, Any]:
        parts = {f"{name}.weight": self._read(sources, "weight")}
        return parts | {f"{name}.bias": self._read(sources, "bias")} if bias else parts

    def read_norm(self, name: str, sources: Sequence[Source], bias: bool | None = None) -> dict[str, Any]:
        weight = self._read(sources, "weight") + FAMILIES[self._config.model_type].norm_offset
        if "norm" in self._config.biases if bias is None else bias:
            return {f"{name}.weight": weight, f"{name}.bias": self._read(sources, "bias")}
        return {f"{name}.weight": weight}

    def refuse_unused(self) -> None:
        """Raise if a tensor is there that no part of the encoder takes: the model would be another."""
        unused = FAMILIES[self._config.model_type].unused
        for name in self._raw:
            if name not in self._used and not _OTHER_TENSORS.search(name) and not name.endswith(unused):
                raise InputError(
                    f"the weights in '{self._config.folder}' have '{name}', which a {self._config.model_type} encoder "
                    "as in its config.json has not; fetch the model again."
                )

    def _read(self, sources: Sequence[Source], part: str, *, needed: bool = True) -> Any:
        import torch

        for source in sources:
            names = [f"{name}.{part}" for name in _list_names(source)]
            full_names = [self._find(name) for name in names]
            if any(name is None for name in full_names):
                if any(name is not None for name in full_names):  # a part of what belongs together
                    self._raise_missing(names[full_names.index(None)])
                continue
            tensors = [self._raw[name].float() for name in full_names if name is not None]
            self._used.update(name for name in full_names if name is not None)
            if isinstance(source, Half):
                return tensors[0].chunk(2)[source.second]
            return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        if needed:
            self._raise_missing(f"{next(_list_names(sources[0]))}.{part}")
        return None

    def _find(self, name: str) -> str | None:
        # the first BERT models named the weight of a norm gamma and its bias beta
        old = re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", name))
        return next((full for full in (self._stem + name, self._stem + old) if full in self._raw), None)

    def _raise_missing(self, name: str) -> None:
        raise InputError(f"the weights in '{self._config.folder}' lack '{name}'; fetch the model again.")


def _list_names(source: Source) -> Iterator[str]:
    if isinstance(source, Half):
        yield source.name
    elif isinstance(source, str):
        yield source
    else:
        yield from source


def _prefix(stem: str, source: Source) -> Source:
    if isinstance(source, Half):
        return Half(stem + source.name, source.second)
    return stem + source if isinstance(source, str) else tuple(stem + name for name in source)
