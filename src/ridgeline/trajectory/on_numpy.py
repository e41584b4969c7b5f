"""resample on the CPU, numpy in and out: this module validates, `ridgeline.native` computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.native import first_unsorted
from ridgeline.native import resample as native_resample
from ridgeline.trajectory import arguments
from ridgeline.trajectory.channels import compute_scaling, resolve_kinds
from ridgeline.trajectory.isolated import refuse_shared
from ridgeline.trajectory.shape import CallArrays, check_outside, unify_shapes

F16, F32, F64, I64, U16 = (np.dtype(t) for t in ("f2", "f4", "f8", "i8", "u2"))
NAMES = {F16: "float16", F32: "float32", F64: "float64"}  # dtype.name is too slow for a small call
STORED = {"float16": F16, "bfloat16": U16, "float32": F32, "float64": F64}
EXACT_IN_FLOAT64 = 2**53
AUTO_THREADS = 0  # the native code chooses the number of threads


def resample_numpy(values: Any, times: Any, at: Any, *, out: Any, dtype: Any, **options: Any) -> Any:
    arguments.check_out(out, np.ndarray)
    values = arguments.as_native_array("values", values)
    if values.dtype not in NAMES:
        if values.dtype.kind not in "iub":
            raise InputError(f"values are {values.dtype}; give float16, float32, float64 or integers.")
        values = values.astype(np.float64)
    try:
        result_dtype = np.dtype(dtype) if dtype is not None else out.dtype if out is not None else values.dtype
    except TypeError:
        raise InputError(f"there is no dtype {dtype!r}; give float16, float32 or float64.") from None
    if result_dtype not in NAMES:
        raise InputError(f"dtype {result_dtype} cannot hold NaN; give float16, float32 or float64.")
    return run(values, times, at, out=out, result_dtype=result_dtype, value_type=NAMES[values.dtype], **options)


def run(
    values: Any, times: Any, at: Any, *, out: Any, result_dtype: Any, value_type: str, kind: Any, outside: str,
    max_gap: Any, lengths: Any, at_lengths: Any, offsets: Any, normalize: Any, sort: bool, check: bool,
    return_mask: bool,
) -> Any:  # fmt: skip
    """Resample; bfloat16 values of torch come as uint16, because numpy has no bfloat16."""
    check_outside(outside)
    times, at = clocks(arguments.as_native_array("times", times), arguments.as_native_array("at", at))
    lengths, at_lengths = arguments.as_counts("lengths", lengths), arguments.as_counts("at_lengths", at_lengths)
    offsets = arguments.as_counts("offsets", offsets)
    batch = unify_shapes(values, times, at, offsets, lambda a, n: np.broadcast_to(a, (n, *a.shape[1:])))
    check_counts(batch, lengths, at_lengths, offsets)
    if sort:
        batch, values, times = _sort(batch, values, times, lengths, offsets, at)
    # Check the order first if the result goes to the caller's memory or the end stamps are read; else during the work.
    beforehand = check and (out is not None or outside == "raise")
    if beforehand:
        trajectory = first_unsorted(batch.times, lengths, offsets)
        if trajectory >= 0:
            raise disorder_error(trajectory, batch, lengths, offsets)
    if outside == "raise":
        refuse_outside(batch, lengths, at_lengths, offsets)
    compute, stored = F64 if value_type == "float64" else F32, STORED[value_type]
    direct = result_dtype is stored or result_dtype is compute or result_dtype in (stored, compute)
    counts = {"lengths": lengths, "at_lengths": at_lengths, "offsets": offsets}
    result = _allocate(out, batch, result_dtype if direct else compute, direct, counts)
    mask = np.empty((batch.batch, batch.targets), np.uint8) if return_mask else None
    scaling = compute_scaling(normalize, batch.channels)
    scale, shift = (a.astype(compute) for a in scaling) if scaling else (None, None)
    integer_clock = batch.times.dtype == I64
    gap = arguments.as_clock_gap(max_gap, integer_clock, arguments.GAP_SLACK.get(batch.times.dtype.name, 0.0))
    trajectory = native_resample(
        batch.values,
        batch.times,
        batch.at,
        result,
        mask,
        lengths,
        at_lengths,
        offsets,
        list(resolve_kinds(kind, batch.channels)),
        "clamp" if outside == "raise" else outside,
        None if integer_clock else gap,
        gap if integer_clock else None,
        scale,
        shift,
        value_type,
        result.dtype == compute and stored != compute,
        AUTO_THREADS,
        bool(check) and not beforehand,
    )
    if trajectory >= 0:
        raise disorder_error(trajectory, batch, lengths, offsets)
    answer = result if direct else result.astype(result_dtype)
    if out is not None:
        if not direct:
            out[...] = answer.reshape(out.shape)
        answer = out
    else:
        answer = answer.reshape(batch.result_shape)
    return (answer, mask.view(np.bool_).reshape(batch.mask_shape)) if mask is not None else answer


def clocks(times: Any, at: Any) -> tuple[Any, Any]:
    """Convert stamps and targets to one type: int64, float64 or float32. Integers beyond 2⁵³ do not mix with floats."""
    if times.dtype is F64 and at.dtype is F64:
        return times, at
    for name, clock in (("times", times), ("at", at)):
        if clock.dtype.kind in "Mm":
            same = f".astype('{clock.dtype}').astype('int64')"
            raise InputError(f"{name} are {clock.dtype}; give times and at as int64, by {same} of both.")
        if clock.dtype.kind not in "iuf":
            raise InputError(f"{name} are {clock.dtype}; give float64, int64 or float32.")
        if clock.dtype.kind == "u" and clock.size and int(clock.max()) > arguments.INT64_MAX:
            raise InputError(f"{name} go up to {clock.max()}, beyond int64; subtract a start time.")
    if times.dtype.kind in "iu" and at.dtype.kind in "iu":
        return times.astype(np.int64, copy=False), at.astype(np.int64, copy=False)
    for name, clock in (("times", times), ("at", at)):
        if clock.dtype.kind in "iu" and clock.size and int(np.abs(clock).max()) > EXACT_IN_FLOAT64:
            raise InputError(
                f"{name} are {clock.dtype} beyond 2^53 and the other clock is floating; give both as int64."
            )
    if times.dtype == at.dtype == np.float32:
        return times, at
    return times.astype(np.float64, copy=False), at.astype(np.float64, copy=False)


def check_counts(batch: CallArrays, lengths: Any, at_lengths: Any, offsets: Any) -> None:
    """Check that lengths, at_lengths and offsets fit the arrays; the error names the first wrong entry."""
    stamps = int(batch.values.shape[1])
    limits = (("lengths", lengths, stamps), ("at_lengths", at_lengths, batch.targets))
    for name, counts, most in limits:
        if counts is None:
            continue
        if counts.shape != (batch.batch,):
            raise InputError(f"{name} has {counts.size} entries for {batch.batch} trajectories.")
        wrong = np.flatnonzero((counts < 0) | (counts > most))
        if wrong.size:
            raise InputError(f"{name}[{wrong[0]}] is {counts[wrong[0]]}; it must lie between 0 and {most}.")
    if offsets is not None:
        steps = np.diff(offsets)
        if offsets[0] < 0 or offsets[-1] > stamps or (steps < 0).any():
            raise InputError(f"offsets must rise from 0 to {stamps}; they go from {offsets[0]} to {offsets[-1]}.")


def disorder_error(trajectory: int, batch: CallArrays, lengths: Any, offsets: Any) -> InputError:
    """Return the error that names the first unsorted stamp of a trajectory."""
    first, last = _ends(batch, lengths, offsets)
    row = batch.times[0 if offsets is not None else trajectory][first[trajectory] : last[trajectory]]
    ordered = np.concatenate([row[:1] == row[:1], row[1:] >= row[:-1]])
    index = int(np.argmin(ordered))
    return InputError(
        f"times of trajectory {trajectory} are not sorted: index {index} is {row[index]}"
        f"{f' after {row[index - 1]}' if index else ''}; sort them, or give sort=True."
    )


def _allocate(out: Any, call: CallArrays, dtype: Any, direct: bool, counts: dict[str, Any]) -> Any:
    """Return the memory for the result: the caller's `out` as [B, T, D], or a new array."""
    shape = (call.batch, call.targets, call.channels)
    if out is None:
        return np.empty(shape, dtype)
    if tuple(out.shape) != call.result_shape:
        raise InputError(f"out has shape {list(out.shape)}, the result has {list(call.result_shape)}.")
    if not direct or out.dtype != dtype:
        refuse_shared(out)
        return np.empty(shape, dtype)
    refuse_shared(out, values=call.values, times=call.times, at=call.at, **counts)
    for axis in range(3 - out.ndim):
        out = out[None] if axis == 0 and len(call.mask_shape) == 1 else out[..., None]
    return out


def _ends(batch: CallArrays, lengths: Any, offsets: Any) -> tuple[Any, Any]:
    """Return the first stamp and one past the last stamp of each trajectory, as indices into its row."""
    if offsets is not None:
        return offsets[:-1], offsets[1:] if lengths is None else np.minimum(offsets[1:], offsets[:-1] + lengths)
    count = np.full(batch.batch, batch.times.shape[1], np.int64) if lengths is None else lengths
    return np.zeros(batch.batch, np.int64), count


def refuse_outside(batch: CallArrays, lengths: Any, at_lengths: Any, offsets: Any) -> None:
    first, last = _ends(batch, lengths, offsets)
    for b in range(batch.batch):
        row = batch.times[0 if offsets is not None else b][first[b] : last[b]]
        targets = batch.at[b] if at_lengths is None else batch.at[b][: at_lengths[b]]
        bad = np.flatnonzero((targets < row[0]) | (targets > row[-1])) if row.size else np.arange(targets.size)
        if bad.size:
            span = f"{row[0]} to {row[-1]}" if row.size else "nothing"
            raise InputError(
                f"target {bad[0]} of trajectory {b} is {targets[bad[0]]}, outside its stamps ({span}); "
                "choose outside='clamp', 'nan' or 'extrapolate'."
            )


def _sort(
    batch: CallArrays, values: Any, times: Any, lengths: Any, offsets: Any, at: Any
) -> tuple[CallArrays, Any, Any]:
    """Sort stamps and values of each trajectory, stable."""
    first, last = _ends(batch, lengths, offsets)
    clock, data = batch.times.copy(), batch.values.copy()
    if offsets is None and batch.times.strides[0] == 0:
        clock = np.array(batch.times)
    for b in range(batch.batch):
        row = 0 if offsets is not None else b
        piece = slice(int(first[b]), int(last[b]))
        order = np.argsort(clock[row, piece], kind="stable")
        clock[row, piece] = clock[row, piece][order]
        data[row, piece] = data[row, piece][order]
    return CallArrays(data, clock, batch.at, batch.batch, batch.result_shape, batch.mask_shape), data, clock
