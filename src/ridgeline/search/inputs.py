"""Vectors as they come: NumPy arrays, lists, torch tensors of any device; refused with the row that is wrong."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.search.arrays import Floats, Whole, Wide
from ridgeline.search.metric import norms

KINDS = "biuf"


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # who has a tensor has imported it
    return torch is not None and isinstance(value, torch.Tensor)


def matrix(vectors: Any, dim: int | None, what: str) -> Floats:
    """float32 [n, dim], contiguous; the caller's own memory where it is that already."""
    if is_tensor(vectors):
        vectors = vectors.detach().float().cpu().numpy()
    try:
        values = np.asarray(vectors)
    except ValueError as error:
        raise InputError(f"the {what} are no matrix: {error}.") from None
    if values.dtype.kind not in KINDS:
        raise InputError(f"the {what} are of type {values.dtype}; give numbers.")
    refuse_shape(values.shape, dim, what)
    with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is refused as that
        return np.ascontiguousarray(values, np.float32)


def refuse_shape(shape: tuple[int, ...], dim: int | None, what: str) -> None:
    if len(shape) == 1:
        raise InputError(f"the {what} have shape {shape}; give [n, dim], one vector as vector[None].")
    if len(shape) != 2 or not shape[1]:
        raise InputError(f"the {what} have shape {shape}; give [n, dim].")
    if dim is not None and shape[1] != dim:
        raise InputError(f"the {what} have {shape[1]} dimensions, the index has {dim}; use the same model for both.")


def finite_norms(vectors: Floats, what: str) -> Wide:
    """‖x‖ of every row, or an InputError naming the first that is not finite."""
    lengths = norms(vectors)
    if not np.isfinite(lengths).all():
        row = int(np.flatnonzero(~np.isfinite(lengths))[0])
        column = int(np.flatnonzero(~np.isfinite(vectors[row]))[0])
        raise InputError(
            f"row {row} of the {what} holds {vectors[row, column]} in column {column}; remove or mend it first."
        )
    return lengths


def numbers(ids: Any, what: str = "ids") -> Whole:
    """int64 [n]."""
    if is_tensor(ids):
        ids = ids.detach().cpu().numpy()
    values = np.asarray(ids)
    if values.ndim == 0:
        values = values[None]
    if values.size == 0:
        return np.zeros(0, np.int64)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InputError(f"the {what} are {values.dtype} of shape {values.shape}; give whole numbers, [n].")
    if values.dtype == np.uint64 and values.max() > np.iinfo(np.int64).max:
        raise InputError(f"the {what} go up to {values.max()}; the largest is {np.iinfo(np.int64).max}.")
    return values.astype(np.int64)
