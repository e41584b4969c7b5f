"""resample for torch tensors: on the CPU through the native loops, on a GPU through the Triton kernel.

Gradients with respect to the values come from `differentiable.py`, the same computation in torch operations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ridgeline.errors import InputError
from ridgeline.trajectory import arguments, on_numpy
from ridgeline.trajectory.channels import compute_scaling, resolve_kinds
from ridgeline.trajectory.isolated import refuse_shared
from ridgeline.trajectory.shape import CallArrays, check_outside, unify_shapes

VALUES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
CLOCKS = (torch.float64, torch.int64, torch.float32)


def resample_torch(values: Any, times: Any, at: Any, *, dtype: Any, out: Any, **options: Any) -> Any:
    arguments.check_out(out, torch.Tensor)
    if values.dtype not in VALUES:
        raise InputError(f"values are {values.dtype}; give float16, bfloat16, float32 or float64.")
    times, at = (_clock(name, c, values.device) for name, c in (("times", times), ("at", at)))
    values, times, at = (tensor.resolve_neg() for tensor in (values, times, at))
    if out is not None and out.is_neg():
        raise InputError(
            "out is a view of conjugated complex numbers, which cannot be written; give a separate tensor."
        )
    if times.dtype != at.dtype or times.dtype not in CLOCKS:
        raise InputError(f"times are {times.dtype} and at {at.dtype}; give both as float64, int64 or float32.")
    result_dtype = dtype if dtype is not None else out.dtype if out is not None else values.dtype
    if result_dtype not in VALUES:
        why = "cannot hold NaN" if isinstance(result_dtype, torch.dtype) else "is no torch dtype"
        raise InputError(f"dtype {result_dtype} {why}; give torch.float16, bfloat16, float32 or float64.")
    if values.requires_grad and torch.is_grad_enabled():
        if out is not None:
            raise InputError("out= cannot be used while gradients are recorded; leave it out, or use torch.no_grad().")
        from ridgeline.trajectory.differentiable import resample_with_gradient

        return resample_with_gradient(resample_torch, values, times, at, dtype=result_dtype, **options)
    engine = on_gpu if values.is_cuda else _on_cpu
    return engine(values, times, at, result_dtype=result_dtype, out=out, **options)


def _on_cpu(values: Any, times: Any, at: Any, *, result_dtype: Any, out: Any, return_mask: bool, **options: Any) -> Any:
    """Run the native loops on the tensors' memory; bfloat16, which numpy lacks, passes as uint16."""
    narrow = values.dtype is torch.bfloat16
    inside = result_dtype in (values.dtype, _compute(values.dtype))
    direct = result_dtype if inside else _compute(values.dtype)
    direct_out = out if out is not None and out.dtype == direct else None
    if out is not None and direct_out is None:
        refuse_shared(out)
    answer = on_numpy.run(
        _numpy(values.detach()),
        _numpy(times),
        _numpy(at),
        out=_numpy(direct_out) if direct_out is not None else None,
        result_dtype=np.dtype("u2") if direct is torch.bfloat16 else np.dtype(VALUES[direct]),
        value_type="bfloat16" if narrow else VALUES[values.dtype],
        return_mask=return_mask,
        **{k: _on_host(v) if k in ("lengths", "at_lengths", "offsets") else v for k, v in options.items()},
    )
    array, mask = answer if return_mask else (answer, None)
    result = direct_out
    if direct_out is None:
        result = torch.from_numpy(array)
        result = (result.view(torch.bfloat16) if direct is torch.bfloat16 else result).to(result_dtype)
        if out is not None:
            if tuple(out.shape) != tuple(result.shape):
                raise InputError(f"out has shape {list(out.shape)}, the result has {list(result.shape)}.")
            result = out.copy_(result)
    return (result, torch.from_numpy(mask)) if return_mask else result


def on_gpu(
    values: Any, times: Any, at: Any, *, result_dtype: Any, out: Any, kind: Any, outside: str,
    max_gap: Any, lengths: Any, at_lengths: Any, offsets: Any, normalize: Any, sort: bool, check: bool,
    return_mask: bool,
) -> Any:  # fmt: skip
    """Run the Triton kernel; with check=False and out= it neither synchronises nor allocates."""
    from ridgeline.kernels.resample import run

    check_outside(outside)
    lengths, at_lengths, offsets = (
        _counts(name, c, values.device)
        for name, c in (("lengths", lengths), ("at_lengths", at_lengths), ("offsets", offsets))
    )
    batch = unify_shapes(values, times, at, offsets, lambda a, n: a.expand(n, *a.shape[1:]))
    if check or sort or outside == "raise":
        _validate(batch, lengths, at_lengths, offsets, outside, sort)
    if sort:
        batch = _sort(batch, lengths, offsets)
    compute = _compute(values.dtype)
    direct = result_dtype if result_dtype in (values.dtype, compute) else compute
    shape = (batch.batch, batch.targets, batch.channels)
    if out is not None and tuple(out.shape) != batch.result_shape:
        raise InputError(f"out has shape {list(out.shape)}, the result has {list(batch.result_shape)}.")
    if out is not None and out.dtype == direct:
        counts = {"lengths": lengths, "at_lengths": at_lengths, "offsets": offsets}
        refuse_shared(out, values=batch.values, times=batch.times, at=batch.at, **counts)
        target = out.view(shape)
    else:
        if out is not None:
            refuse_shared(out)
        target = values.new_empty(shape, dtype=direct)
    mask = torch.empty(shape[:2], dtype=torch.bool, device=values.device) if return_mask else None
    scaling = compute_scaling(normalize, batch.channels)
    scale, shift = (
        (torch.as_tensor(a, dtype=compute, device=values.device) for a in scaling) if scaling else (None, None)
    )
    packed = offsets is not None
    run(
        batch.values[0] if packed else batch.values,
        batch.times[0] if packed else batch.times,
        batch.at,
        target,
        mask,
        lengths=lengths,
        at_lengths=at_lengths,
        offsets=offsets,
        channels=resolve_kinds(kind, batch.channels),
        outside="clamp" if outside == "raise" else outside,
        max_gap=arguments.as_clock_gap(
            max_gap, times.dtype is torch.int64, arguments.GAP_SLACK.get(str(times.dtype).removeprefix("torch."), 0.0)
        ),
        scale=scale,
        shift=shift,
    )
    answer = target.view(batch.result_shape).to(result_dtype)
    if out is not None and answer.data_ptr() != out.data_ptr():
        answer = out.copy_(answer)
    return (answer, mask.view(batch.mask_shape)) if mask is not None else answer


def _validate(batch: CallArrays, lengths: Any, at_lengths: Any, offsets: Any, outside: str, sort: bool) -> None:
    """Run the CPU's checks on copies of the stamps, which are small compared with the values."""
    host = CallArrays(
        batch.values,
        batch.times.cpu().numpy(),
        batch.at.cpu().numpy(),
        batch.batch,
        batch.result_shape,
        batch.mask_shape,
    )
    counts = [None if c is None else c.cpu().numpy() for c in (lengths, at_lengths, offsets)]
    on_numpy.check_counts(host, *counts)
    if sort:
        return
    from ridgeline.native import first_unsorted

    trajectory = first_unsorted(host.times, counts[0], counts[2])
    if trajectory >= 0:
        raise on_numpy.disorder_error(trajectory, host, counts[0], counts[2])
    if outside == "raise":
        on_numpy.refuse_outside(host, *counts)


def _sort(batch: CallArrays, lengths: Any, offsets: Any) -> CallArrays:
    """Sort values and times of each trajectory, stable."""
    clock = batch.times.clone()
    top = torch.iinfo(clock.dtype).max if clock.dtype is torch.int64 else float("inf")
    place = torch.arange(clock.shape[1], device=clock.device)[None]
    if offsets is not None:
        owner = torch.searchsorted(offsets, place[0], right=True) - 1
        if lengths is not None:  # stamps beyond the length sort to the end
            known = owner.clamp(0, len(lengths) - 1)
            clock = clock.masked_fill(place - offsets[known] >= lengths[known], top)
        order = clock[0].argsort(stable=True)
        order = order[owner[order].argsort(stable=True)]
        return replace(batch, values=batch.values[:, order], times=batch.times[:, order])
    if lengths is not None:
        clock = clock.masked_fill(place >= lengths[:, None], top)
    order = clock.sort(dim=1, stable=True).indices
    frames = order[..., None].expand(-1, -1, batch.channels)
    return replace(batch, values=batch.values.gather(1, frames), times=batch.times.gather(1, order))


def _compute(dtype: Any) -> Any:
    return torch.float64 if dtype is torch.float64 else torch.float32


def _numpy(tensor: Any) -> Any:
    return (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()


def _clock(name: str, data: Any, device: Any) -> Any:
    try:
        return torch.as_tensor(data, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{name} is a {type(data).__name__} that torch cannot read; give a tensor of stamps."
        ) from None


def _counts(name: str, data: Any, device: Any) -> Any:
    """Return counts on the device; counts on the device are not checked, because that would synchronise."""
    if not isinstance(data, torch.Tensor):
        counts = arguments.as_counts(name, data)
        return None if counts is None else torch.from_numpy(counts).to(device)
    if data.is_floating_point() or data.is_complex() or data.dtype is torch.bool:
        raise InputError(f"{name} are {data.dtype}; give whole numbers.")
    return data.to(device, torch.int64).contiguous()


def _on_host(counts: Any) -> Any:
    return counts.cpu().numpy() if isinstance(counts, torch.Tensor) else counts
