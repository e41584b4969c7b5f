"""Resample batches of unevenly stamped values onto new stamps: `resample(values, times, at)`.

>>> import numpy as np
>>> resample(np.array([0.0, 10.0]), np.array([0.0, 1.0]), np.array([0.25, 0.5]))
array([2.5, 5. ])

Search and subtraction use the type of the times (float64, int64, float32); only the weight between two stamps is
rounded to the compute type. An hour of int64 nanoseconds is as exact as a second.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from ridgeline.native import Tensors, launch_again, resample_door, take_tensors
from ridgeline.trajectory.channels import KINDS, Kinds
from ridgeline.trajectory.isolated import refuse_shared
from ridgeline.trajectory.on_numpy import resample_numpy

__all__ = ["resample"]

_run: Any = None  # the GPU's engine, once it has been imported,
_on_torch: Any = None  # and that for tensors


Function = TypeVar("Function", bound=Callable[..., Any])


def through_the_door(otherwise: Function) -> Function:
    """`otherwise` behind native/bind_door.cpp, which does the everyday call by itself; it still says what it takes."""
    takes = inspect.signature(otherwise)
    bare = [parameter.replace(annotation=parameter.empty) for parameter in takes.parameters.values()]
    signature = takes.replace(parameters=bare, return_annotation=takes.empty)
    text = f"{otherwise.__name__}{signature}\n--\n\n{inspect.getdoc(otherwise)}"
    return cast(Function, resample_door(otherwise, text))


@through_the_door
def resample(
    values: Any,
    times: Any,
    at: Any,
    *,
    kind: Kinds = "linear",
    quaternion: str = "xyzw",
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
    """`values` [B, S, D], [S, D] or [S], stamped `times` [B, S] or [S], read off `at` [B, T] or [T].

    Gives [B, T, D], [T, D] or [T]: numpy for numpy, torch on the same device for torch; with `return_mask` also
    [B, T] or [T] of booleans, False where there was nothing to read.

    kind       linear, previous, nearest, cubic (monotone pchip), slerp, angle; or [(slice, kind), …] per channel
    quaternion order of slerp's components; slerp treats all four alike, so both orders are right
    outside    before the first and after the last stamp: clamp, nan, raise, extrapolate
    max_gap    targets inside a longer gap (in the unit of times) are NaN and masked, never invented
    lengths    [B]: how many stamps of each row count; at_lengths [B]: how many targets
    offsets    [B + 1]: values [ΣS, D] and times [ΣS] are packed, trajectory b is offsets[b] … offsets[b + 1]
    normalize  {"mean", "std"} or {"q01", "q99"} per channel, in the same pass
    sort       sort the stamps first; else unsorted ones are an error that names trajectory and index
    check      False skips validation (on a GPU it costs a synchronisation)

    Of duplicate stamps the last wins. NaN values stay where they are: an exact hit beside one is not spoilt.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        if (
            not check
            and out is not None
            and type(kind) is str
            and kind in KINDS
            and outside == "clamp"
            and not (sort or return_mask)
            and max_gap is lengths is at_lengths is offsets is normalize is dtype is None
            and values.is_cuda
            and not values.requires_grad
            and all(isinstance(t, torch.Tensor) and t.device == values.device for t in (times, at, out))
            and not any(t.is_neg() for t in (values, times, at, out))
        ):
            # The whole way of a small call on a GPU is its launch; calls like it go there from the door.
            global _run
            if _run is None:
                from ridgeline.kernels.resample import again
                from ridgeline.kernels.resample import run as _run

                if again is not None:
                    for one in KINDS:
                        launch_again(resample, one, again[one])
            if (
                values.dim() == 3 == out.dim()
                and times.dim() == 2 == at.dim()
                and times.dtype == at.dtype
                and (kind != "slerp" or values.shape[2] % 4 == 0)
            ):
                refuse_shared(out, values=values, times=times, at=at)
                _run(values, times, at, out, channels=() if kind == "linear" else ((0, values.shape[2], kind),))
                return out
        global _on_torch
        if _on_torch is None:
            from ridgeline.trajectory.on_torch import resample_torch as _on_torch

            if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
                take_tensors(resample, Tensors(torch.Tensor))
        engine = _on_torch
    else:
        engine = resample_numpy
    return engine(
        values,
        times,
        at,
        kind=kind,
        quaternion=quaternion,
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
