"""Read weights from safetensors under the names that the encoder uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ridgeline.embed.config import Config
from ridgeline.errors import InputError, MissingExtra

WEIGHTS = "model.safetensors"

# (name in the encoder, published name), within one layer
LAYER_NAMES = (
    ("out", "attention.output.dense"),
    ("out_norm", "attention.output.LayerNorm"),
    ("up", "intermediate.dense"),
    ("down", "output.dense"),
    ("down_norm", "output.LayerNorm"),
)


def find_weight_files(folder: Path) -> list[Path]:
    """Return the files of the weights: one file, or the parts that an index lists."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / f"{WEIGHTS}.index.json"
    if index.is_file():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    other = [p.name for p in (folder / "pytorch_model.bin", folder / "tf_model.h5") if p.exists()]
    hint = f" {other[0]} is not read, for it may run code;" if other else ""
    raise InputError(f"'{folder}' has no weights ({WEIGHTS});{hint} save or fetch the model as safetensors.")


def read_encoder(config: Config) -> dict[str, Any]:
    """Return name → float tensor; query, key and value of a layer are one matrix `qkv`.

    "type" is the token type of a single text, "second_type" that of the second text of a pair, if the model has one.
    """
    raw = _load_files(find_weight_files(config.folder))
    stem = next((n.removesuffix(_ANCHOR) for n in raw if n.endswith(_ANCHOR)), None)
    if stem is None:
        raise InputError(f"the weights in '{config.folder}' hold no '{_ANCHOR}', so they are no BERT's.")
    read = _WeightReader(raw, stem, config.folder)
    types = read("embeddings.token_type_embeddings.weight")
    weights = {
        "word": read("embeddings.word_embeddings.weight"),
        "position": read("embeddings.position_embeddings.weight"),
        "type": types[0],
        **({"second_type": types[1]} if len(types) > 1 else {}),
        **read.read_pair("embed_norm", "embeddings.LayerNorm"),
    }
    for i in range(config.layers):
        prefix = f"encoder.layer.{i}."
        for name, published_name in LAYER_NAMES:
            weights |= read.read_pair(f"{i}.{name}", prefix + published_name)
        weights |= read.read_joined(f"{i}.qkv", [f"{prefix}attention.self.{n}" for n in ("query", "key", "value")])
    rows, width = weights["word"].shape
    if (rows, width) != (config.vocabulary, config.hidden):
        raise InputError(
            f"'{config.folder}': the weights know {rows} tokens of width {width}, config.json says "
            f"{config.vocabulary} of {config.hidden}; they do not belong together."
        )
    return weights


def read_dense(folder: Path) -> tuple[Any, Any]:
    """(weight, bias or None) of a dense module."""
    raw = _load_files(find_weight_files(folder))
    if "linear.weight" not in raw:
        raise InputError(f"'{folder}' holds no 'linear.weight'.")
    return raw["linear.weight"].float(), raw["linear.bias"].float() if "linear.bias" in raw else None


_ANCHOR = "embeddings.word_embeddings.weight"


class _WeightReader:
    """Reads tensors by their published names, in float32; an error names the missing one."""

    def __init__(self, raw: Mapping[str, Any], stem: str, folder: Path) -> None:
        self._raw, self._stem, self._folder = raw, stem, folder

    def __call__(self, name: str) -> Any:
        # the first BERT models named the weight of a norm gamma and its bias beta
        old = re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", name))
        for full in (self._stem + name, self._stem + old):
            if full in self._raw:
                return self._raw[full].float()
        raise InputError(f"the weights in '{self._folder}' lack '{name}'; fetch the model again.")

    def read_pair(self, name: str, published_name: str) -> dict[str, Any]:
        return {f"{name}.weight": self(f"{published_name}.weight"), f"{name}.bias": self(f"{published_name}.bias")}

    def read_joined(self, name: str, published_names: Iterable[str]) -> dict[str, Any]:
        import torch

        names = list(published_names)
        return {f"{name}.{part}": torch.cat([self(f"{n}.{part}") for n in names]) for part in ("weight", "bias")}


def _load_files(files: Iterable[Path]) -> dict[str, Any]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise MissingExtra("reading safetensors", "embed") from None
    tensors: dict[str, Any] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise InputError(f"'{file}' cannot be read as safetensors: {error}; fetch it again.") from error
    return tensors
