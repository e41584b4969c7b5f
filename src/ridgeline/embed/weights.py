"""Weights from safetensors, under the names this encoder uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ridgeline.embed.config import Config
from ridgeline.errors import InputError, MissingExtra

WEIGHTS = "model.safetensors"

# (ours, theirs), within one layer
LAYER = (
    ("out", "attention.output.dense"),
    ("out_norm", "attention.output.LayerNorm"),
    ("up", "intermediate.dense"),
    ("down", "output.dense"),
    ("down_norm", "output.LayerNorm"),
)


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights: one, or the parts an index names."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / f"{WEIGHTS}.index.json"
    if index.is_file():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    other = [p.name for p in (folder / "pytorch_model.bin", folder / "tf_model.h5") if p.exists()]
    hint = f" {other[0]} is not read, for it may run code;" if other else ""
    raise InputError(f"'{folder}' has no weights ({WEIGHTS});{hint} save or fetch the model as safetensors.")


def read_encoder(config: Config) -> dict[str, Any]:
    """Our names → float tensors; query, key and value of a layer are one matrix `qkv`."""
    raw = _read(weight_files(config.folder))
    stem = next((n.removesuffix(_ANCHOR) for n in raw if n.endswith(_ANCHOR)), None)
    if stem is None:
        raise InputError(f"the weights in '{config.folder}' hold no '{_ANCHOR}', so they are no BERT's.")
    take = _Taker(raw, stem, config.folder)
    found = {
        "word": take("embeddings.word_embeddings.weight"),
        "position": take("embeddings.position_embeddings.weight"),
        "type": take("embeddings.token_type_embeddings.weight")[0],
        **take.pair("embed_norm", "embeddings.LayerNorm"),
    }
    for i in range(config.layers):
        theirs = f"encoder.layer.{i}."
        for ours, name in LAYER:
            found |= take.pair(f"{i}.{ours}", theirs + name)
        found |= take.joined(f"{i}.qkv", [f"{theirs}attention.self.{n}" for n in ("query", "key", "value")])
    rows, width = found["word"].shape
    if (rows, width) != (config.vocabulary, config.hidden):
        raise InputError(
            f"'{config.folder}': the weights know {rows} tokens of width {width}, config.json says "
            f"{config.vocabulary} of {config.hidden}; they do not belong together."
        )
    return found


def read_dense(folder: Path) -> tuple[Any, Any]:
    """(weight, bias or None) of a dense module."""
    raw = _read(weight_files(folder))
    if "linear.weight" not in raw:
        raise InputError(f"'{folder}' holds no 'linear.weight'.")
    return raw["linear.weight"].float(), raw["linear.bias"].float() if "linear.bias" in raw else None


_ANCHOR = "embeddings.word_embeddings.weight"


class _Taker:
    """Gives tensors by their published names, in float32, and says which one is missing."""

    def __init__(self, raw: Mapping[str, Any], stem: str, folder: Path) -> None:
        self._raw, self._stem, self._folder = raw, stem, folder

    def __call__(self, name: str) -> Any:
        # the first BERTs called a norm's weight gamma and its bias beta
        old = re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", name))
        for full in (self._stem + name, self._stem + old):
            if full in self._raw:
                return self._raw[full].float()
        raise InputError(f"the weights in '{self._folder}' lack '{name}'; fetch the model anew.")

    def pair(self, ours: str, theirs: str) -> dict[str, Any]:
        return {f"{ours}.weight": self(f"{theirs}.weight"), f"{ours}.bias": self(f"{theirs}.bias")}

    def joined(self, ours: str, theirs: Iterable[str]) -> dict[str, Any]:
        import torch

        names = list(theirs)
        return {f"{ours}.{part}": torch.cat([self(f"{n}.{part}") for n in names]) for part in ("weight", "bias")}


def _read(files: Iterable[Path]) -> dict[str, Any]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise MissingExtra("reading safetensors", "embed") from None
    found: dict[str, Any] = {}
    for file in files:
        try:
            found |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise InputError(f"'{file}' cannot be read as safetensors: {error}; fetch it anew.") from error
    return found
