"""What goes round: angles in degrees or in [0, turn), and quaternions whose sign flips.

The loops of `resample` interpolate radians and give [−π, π] (kind "angle"). Other angles are converted before and
after.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.trajectory.channels import TURNS, Turn, compute_scaling, resolve_kinds

Array = np.ndarray[Any, Any]
_NO_TURN = Turn(1.0, np.inf, False)  # of channels that are no such angle


def uses_turns(kind: Any) -> bool:
    """Whether `kind`, of one of the forms that `resample` takes, has an angle that the loops do not know."""
    if isinstance(kind, str):
        return kind in TURNS
    return isinstance(kind, list | tuple) and any(
        isinstance(part, list | tuple) and len(part) == 2 and isinstance(part[1], str) and part[1] in TURNS
        for part in kind
    )


def resample_turns(
    run: Callable[..., Any], values: Any, times: Any, at: Any, *, kind: Any, normalize: Any, dtype: Any, out: Any,
    return_mask: bool, **options: Any,
) -> Any:  # fmt: skip
    """Call `run` (the general path of `resample`) in radians; convert, normalize and round its result."""
    values, result_dtype, where = _prepare(values, dtype, out)
    channels = 1 if values.ndim == 1 else int(values.shape[-1])
    groups = resolve_kinds(kind, channels)
    turns = [TURNS.get(name, _NO_TURN) for start, stop, name in groups for _ in range(start, stop)]
    radians = _build_row(values, [turn.radians for turn in turns])
    length = _build_row(values, [turn.length for turn in turns])
    positive = _build_row(values, [float(turn.positive) for turn in turns]) > 0
    kinds = [(slice(start, stop), "angle" if name in TURNS else name) for start, stop, name in groups]
    answer, mask = run(
        values * radians, times, at, kind=kinds, normalize=None, dtype=None, out=None, return_mask=True, **options
    )
    answer = answer / radians
    answer = where(positive & (answer < 0), answer + length, answer)
    answer = where(positive & (answer >= length), 0 * answer, answer)  # rounded up to a full turn
    scaling = compute_scaling(normalize, channels)
    if scaling is not None:
        scale, shift = (_build_row(values, row) for row in scaling)
        answer = answer * scale + shift
    if out is not None:
        if tuple(out.shape) != tuple(answer.shape):
            raise InputError(f"out has shape {list(out.shape)}, the result has {list(answer.shape)}.")
        out[...] = answer
    else:
        out = answer.astype(result_dtype, copy=False) if isinstance(answer, np.ndarray) else answer.to(result_dtype)
    return (out, mask) if return_mask else out


def undo_sign_flips(values: Array) -> Array:
    """Return quaternions [S, 4 n] where each is on the side of the one before: q and −q are the same rotation.

    Rows with NaN or only zeros are no rotations; the next rotation follows the last one before them.

    >>> undo_sign_flips(np.array([[1.0, 0, 0, 0], [-1, 0, 0, 0], [-0.9, 0.1, 0, 0]]))[:, 0].tolist()
    [1.0, 1.0, 0.9]
    """
    q = values.reshape(len(values), -1, 4)
    if len(q) < 2:
        return values
    known = np.isfinite(q).all(axis=2) & (q != 0).any(axis=2)
    before = q[:-1]
    if not known.all():
        last = np.maximum.accumulate(np.where(known, np.arange(len(q))[:, None], 0), axis=0)[:-1]
        before = np.take_along_axis(q, last[:, :, None], axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        flips = np.einsum("skc,skc->sk", q[1:], before) < 0
    if not flips.any():
        return values
    signs = np.ones(q.shape[:2], values.dtype)
    signs[1:] = np.where(np.logical_xor.accumulate(flips, axis=0), -1, 1)
    turned: Array = (q * signs[:, :, None]).reshape(values.shape)
    return turned


def _prepare(values: Any, dtype: Any, out: Any) -> tuple[Any, Any, Callable[..., Any]]:
    """Return the values as float32 or float64, the type of the result, and `where` of numpy or torch."""
    if hasattr(values, "detach"):
        import torch

        result_dtype = dtype if dtype is not None else out.dtype if out is not None else values.dtype
        holds_nan = isinstance(result_dtype, torch.dtype) and result_dtype.is_floating_point
        values = values if values.dtype in (torch.float32, torch.float64) else values.float()
        where: Callable[..., Any] = torch.where
    else:
        values = np.asarray(values)
        floats = values if values.dtype.kind == "f" else values.astype(np.float64)
        result_dtype = np.dtype(dtype if dtype is not None else out.dtype if out is not None else floats.dtype)
        holds_nan = result_dtype.kind == "f"
        values = floats.astype(np.float32) if floats.dtype == np.float16 else floats
        where = np.where
    if not holds_nan:
        raise InputError(f"dtype {result_dtype} cannot hold NaN; give float16, float32 or float64.")
    return values, result_dtype, where


def _build_row(values: Any, numbers: Any) -> Any:
    """Return one number for each channel in the type of `values`; one number for values without channels."""
    row = np.asarray(numbers, np.float64)[0 if values.ndim == 1 else slice(None)]
    if isinstance(values, np.ndarray):
        return row.astype(values.dtype)
    return _build_tensor_row(tuple(np.atleast_1d(row).tolist()), row.ndim, values.dtype, values.device)


@lru_cache(maxsize=64)
def _build_tensor_row(numbers: tuple[float, ...], ndim: int, dtype: Any, device: Any) -> Any:
    """Rows stay on the device: a copy from the host costs a call several microseconds and ends a graph's capture."""
    import torch

    with torch.inference_mode(False):  # a tensor of inference mode could not take part in later gradients
        return torch.tensor(numbers if ndim else numbers[0], dtype=dtype, device=device)
