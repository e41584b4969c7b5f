"""Convert and check vectors and ids: NumPy arrays, lists, torch tensors of any device. An error names the wrong row."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.search.arrays import Doubles, Floats, Integers
from ridgeline.search.metric import compute_norms

KINDS = "biuf"


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # a caller with a tensor has imported torch
    return torch is not None and isinstance(value, torch.Tensor)


def as_matrix(vectors: Any, dim: int | None, what: str) -> Floats:
    """Return vectors as float32 [n, dim], contiguous; without a copy if they already are."""
    if is_tensor(vectors):
        vectors = vectors.detach().float().cpu().numpy()
    try:
        values = np.asarray(vectors)
    except ValueError as error:
        raise InputError(f"the {what} are no matrix: {error}.") from None
    if values.dtype.kind not in KINDS:
        raise InputError(f"the {what} are of type {values.dtype}; give numbers.")
    check_shape(values.shape, dim, what)
    with np.errstate(over="ignore"):  # overflow becomes inf, which the check of norms refuses
        return np.ascontiguousarray(values, np.float32)


def is_one_vector(vectors: Any) -> bool:
    """Whether it is one vector [dim] and not a matrix."""
    if hasattr(vectors, "ndim"):
        return bool(vectors.ndim == 1)
    return isinstance(vectors, list | tuple) and len(vectors) > 0 and isinstance(vectors[0], int | float | np.number)


def as_batch(vectors: Any) -> Any:
    """Return one vector [dim] as [1, dim], and anything else as it is."""
    if not is_one_vector(vectors):
        return vectors
    return (vectors if is_tensor(vectors) else np.asarray(vectors))[None]


def check_shape(shape: tuple[int, ...], dim: int | None, what: str) -> None:
    if len(shape) == 1:
        raise InputError(f"the {what} have shape {shape}; give [n, dim], one vector as vector[None].")
    if len(shape) != 2 or not shape[1]:
        raise InputError(f"the {what} have shape {shape}; give [n, dim].")
    if dim is not None and shape[1] != dim:
        raise InputError(f"the {what} have {shape[1]} dimensions, the index has {dim}; use the same model for both.")


def compute_finite_norms(vectors: Floats, what: str) -> Doubles:
    """‖x‖ of every row; raises an InputError that names the first row that is not finite."""
    lengths = compute_norms(vectors)
    if not np.isfinite(lengths).all():
        row = int(np.flatnonzero(~np.isfinite(lengths))[0])
        column = int(np.flatnonzero(~np.isfinite(vectors[row]))[0])
        raise InputError(
            f"row {row} of the {what} holds {vectors[row, column]} in column {column}; remove or correct it first."
        )
    return lengths


def check_finite(vectors: Floats, what: str) -> None:
    """Raise as `compute_finite_norms` does, in a quarter of the time for a few vectors."""
    if not np.isfinite(vectors).all():
        compute_finite_norms(vectors, what)


def as_ids(ids: Any, what: str = "ids") -> Integers:
    """Return ids as int64 [n]."""
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
