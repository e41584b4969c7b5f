"""Resample batches of unevenly stamped values onto new stamps: `resample(values, times, at)`.

>>> import numpy as np
>>> resample(np.array([0.0, 10.0]), np.array([0.0, 1.0]), np.array([0.25, 0.5]))
array([2.5, 5. ])

Search and subtraction use the type of the times (float64, int64, float32); only the weight between two stamps is
rounded to the compute type. An hour of int64 nanoseconds is as exact as a second.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ridgeline.native import TensorReader, resample_arrays, resample_tensors
from ridgeline.trajectory.channels import LOOP_KINDS, Kinds
from ridgeline.trajectory.isolated import refuse_shared
from ridgeline.trajectory.on_numpy import resample_numpy
from ridgeline.trajectory.turns import resample_turns, uses_turns

__all__ = ["resample"]

_reader: TensorReader | None = None  # reads torch's tensors, once one was given
_launches: Mapping[str, Any] = {}  # GPU launches of earlier calls, by kind
_run: Any = None  # the GPU engine, once it was imported
_on_torch: Any = None  # the engine for tensors, once it was imported


def resample(
    values: Any,
    times: Any,
    at: Any,
    *,
    kind: Kinds = "linear",
    outside: str = "clamp",
    max_gap: float | None = None,
    lengths: Any = None,
    at_lengths: Any = None,
    offsets: Any = None,
    normalize: Mapping[str, Any] | None = None,
    dtype: Any = None,
    sort: bool = False,
    check: bool = True,
    out: Any = None,
    return_mask: bool = False,
) -> Any:
    """Interpolate `values` [B, S, D], [S, D] or [S] with time stamps `times` [B, S] or [S] at `at` [B, T] or [T].

    Returns [B, T, D], [T, D] or [T]: numpy for numpy, torch on the same device for torch; with `return_mask` also
    booleans [B, T] or [T] that are False where no value is known. Raises InputError for arguments that do not fit.

    kind       linear, previous, nearest, cubic (monotone pchip), slerp, angle (radians, result in [−π, π]), angle_2pi
               ([0, 2π)), degrees ([−180, 180]), degrees_360 ([0, 360)); or [(slice, kind), …] per channel
    outside    before the first and after the last stamp: clamp, nan, raise, extrapolate
    max_gap    targets inside a longer gap (in the unit of times) are NaN and masked, never invented
    lengths    [B]: how many stamps of each row count; at_lengths [B]: how many targets
    offsets    [B + 1]: values [ΣS, D] and times [ΣS] are packed, trajectory b is offsets[b] … offsets[b + 1]
    normalize  {"mean", "std"} or {"q01", "q99"} per channel, in the same pass
    sort       sort the stamps first; otherwise unsorted stamps are an error that names trajectory and index
    check      False skips validation (on a GPU it costs a synchronisation)

    Of duplicate stamps the last one counts. A NaN value affects only targets between it and its neighbours.
    """
    # The short paths for common calls (native/resample/bind_direct.cpp); None or False: take the general path.
    if (
        outside == "clamp"
        and max_gap is lengths is at_lengths is offsets is normalize is dtype is None
        and not (sort or return_mask)
        and type(kind) is str
    ):
        if _reader is not None:
            if out is not None and not check and kind in _launches and _launches[kind](values, times, at, out):
                return out
            if kind == "linear":
                answer = resample_tensors(_reader, values, times, at, out, bool(check))
                if answer is not None:
                    return answer
        if kind == "linear":
            answer = resample_arrays(values, times, at, out, bool(check))
            if answer is not None:
                return answer
    return _resample_any(
        values,
        times,
        at,
        kind=kind,
        outside=outside,
        max_gap=max_gap,
        lengths=lengths,
        at_lengths=at_lengths,
        offsets=offsets,
        normalize=normalize,
        dtype=dtype,
        sort=sort,
        check=check,
        out=out,
        return_mask=return_mask,
    )


def _resample_any(values: Any, times: Any, at: Any, **options: Any) -> Any:
    """The general path: any types, shapes and options, and all error messages."""
    if uses_turns(options["kind"]):
        return resample_turns(_resample_any, values, times, at, **options)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(values, torch.Tensor):
        return resample_numpy(values, times, at, **options)
    global _reader, _on_torch
    if _on_torch is None:
        from ridgeline.trajectory.on_torch import resample_torch as _on_torch

        if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            _reader = TensorReader(torch.Tensor)
    if _launch_on_gpu(torch, values, times, at, **options):
        return options["out"]
    return _on_torch(values, times, at, **options)


def _launch_on_gpu(
    torch: Any, values: Any, times: Any, at: Any, *, kind: Any, outside: str, sort: bool, check: bool, out: Any,
    return_mask: bool, **others: Any,
) -> bool:  # fmt: skip
    """Launch a call that needs neither checks nor memory: a small call on a GPU consists of its launch."""
    if (
        check
        or out is None
        or type(kind) is not str
        or kind not in LOOP_KINDS
        or outside != "clamp"
        or sort
        or return_mask
        or any(option is not None for option in others.values())
        or not values.is_cuda
        or values.requires_grad
        or not all(isinstance(t, torch.Tensor) and t.device == values.device for t in (times, at, out))
        or any(t.is_neg() for t in (values, times, at, out))
    ):
        return False
    global _run, _launches
    if _run is None:
        from ridgeline.kernels.resample import launches
        from ridgeline.kernels.resample import run as _run

        if launches is not None:
            _launches = launches
    if (
        values.dim() != 3
        or out.dim() != 3
        or times.dim() != 2
        or at.dim() != 2
        or times.dtype != at.dtype
        or (kind == "slerp" and values.shape[2] % 4 != 0)
    ):
        return False
    refuse_shared(out, values=values, times=times, at=at)
    _run(values, times, at, out, channels=() if kind == "linear" else ((0, values.shape[2], kind),))
    return True
