"""Find and read the tensors of a folder's safetensors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ridgeline.embed.folder_files import read_json_object
from ridgeline.errors import InputError, MissingExtra

WEIGHTS = "model.safetensors"
_TABLE_NAMES = ("embedding.weight", "embeddings")  # of a static table


def find_weight_files(folder: Path) -> list[Path]:
    """Return the files of the weights: one file, or the parts that an index lists."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / f"{WEIGHTS}.index.json"
    if index.is_file():
        parts = read_json_object(index).get("weight_map")
        if not isinstance(parts, dict) or not all(isinstance(name, str) for name in parts.values()):
            raise InputError(f"'{index}' has no weight_map of tensors and files; fetch the model again.")
        return [folder / name for name in sorted(set(parts.values()))]
    other = [p.name for p in (folder / "pytorch_model.bin", folder / "tf_model.h5") if p.exists()]
    hint = f" {other[0]} is not read, for it may run code;" if other else ""
    raise InputError(f"'{folder}' has no weights ({WEIGHTS});{hint} save or fetch the model as safetensors.")


def load_tensors(files: Iterable[Path]) -> dict[str, Any]:
    """Return all tensors of the files, by name."""
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


def read_table_shape(folder: Path) -> tuple[int, int]:
    """Return tokens and width of a static table."""
    rows, width = read_table(folder).shape
    return int(rows), int(width)


def read_table(folder: Path) -> Any:
    """Return a static table, float32 [tokens, width]; model2vec's mapping and weights are worked into it."""
    raw = load_tensors(find_weight_files(folder))
    name = next((name for name in _TABLE_NAMES if name in raw), None)
    if name is None:
        raise InputError(f"the weights in '{folder}' hold no table of words ('{_TABLE_NAMES[0]}').")
    table = raw[name].float()
    if "mapping" in raw:
        table = table[raw["mapping"].long()]
    if "weights" in raw:
        table = table * raw["weights"].float()[:, None]
    return table
