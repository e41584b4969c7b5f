"""resample on the CPU, numpy in and out: validation here, the loops in native/resample."""

from __future__ import annotations

from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.native import first_unsorted
from ridgeline.native import resample as native_resample
from ridgeline.trajectory import arguments
from ridgeline.trajectory.apart import refuse_shared
from ridgeline.trajectory.channels import affine, groups
from ridgeline.trajectory.shape import Batch, policies, shaped

F16, F32, F64, I64, U16 = (np.dtype(t) for t in ("f2", "f4", "f8", "i8", "u2"))
NAMES = {F16: "float16", F32: "float32", F64: "float64"}  # dtype.name takes longer than a small call may
STORED = {"float16": F16, "bfloat16": U16, "float32": F32, "float64": F64}
EXACT_IN_FLOAT64 = 2**53
AS_WORTH = 0  # as many threads as the work is worth


def resample_numpy(values: Any, times: Any, at: Any, *, out: Any, dtype: Any, **how: Any) -> Any:
    arguments.room(out, np.ndarray)
    values = arguments.plain("values", values)
    if values.dtype not in NAMES:
        if values.dtype.kind not in "iub":
            raise InputError(f"values are {values.dtype}; give float16, float32, float64 or integers.")
        values = values.astype(np.float64)
    try:
        wanted = np.dtype(dtype) if dtype is not None else out.dtype if out is not None else values.dtype
    except TypeError:
        raise InputError(f"there is no dtype {dtype!r}; give float16, float32 or float64.") from None
    if wanted not in NAMES:
        raise InputError(f"dtype {wanted} cannot hold NaN; give float16, float32 or float64.")
    return run(values, times, at, out=out, wanted=wanted, value_type=NAMES[values.dtype], **how)


def run(
    values: Any, times: Any, at: Any, *, out: Any, wanted: Any, value_type: str, kind: Any, outside: str,
    max_gap: Any, lengths: Any, at_lengths: Any, offsets: Any, normalize: Any, sort: bool, check: bool,
    return_mask: bool,
) -> Any:  # fmt: skip
    """The same for values that may be bfloat16 under another name (torch's, seen as uint16)."""
    policies(outside)
    times, at = clocks(arguments.plain("times", times), arguments.plain("at", at))
    lengths, at_lengths = arguments.counts("lengths", lengths), arguments.counts("at_lengths", at_lengths)
    offsets = arguments.counts("offsets", offsets)
    batch = shaped(values, times, at, offsets, lambda a, n: np.broadcast_to(a, (n, *a.shape[1:])))
    counted(batch, lengths, at_lengths, offsets)
    if sort:
        batch, values, times = _sorted(batch, values, times, lengths, offsets, at)
    # Before anything is written to the caller's memory or read from the ends of the stamps; else along with the work.
    beforehand = check and (out is not None or outside == "raise")
    if beforehand:
        trajectory = first_unsorted(batch.times, lengths, offsets)
        if trajectory >= 0:
            raise disorder(trajectory, batch, lengths, offsets)
    if outside == "raise":
        refuse_outside(batch, lengths, at_lengths, offsets)
    compute, stored = F64 if value_type == "float64" else F32, STORED[value_type]
    direct = wanted is stored or wanted is compute or wanted in (stored, compute)
    counts = {"lengths": lengths, "at_lengths": at_lengths, "offsets": offsets}
    result = _room(out, batch, wanted if direct else compute, direct, counts)
    mask = np.empty((batch.batch, batch.targets), np.uint8) if return_mask else None
    scaling = affine(normalize, batch.channels)
    scale, shift = (a.astype(compute) for a in scaling) if scaling else (None, None)
    whole = batch.times.dtype == I64
    gap = arguments.gap(max_gap, whole, arguments.SLACK.get(batch.times.dtype.name, 0.0))
    trajectory = native_resample(
        batch.values,
        batch.times,
        batch.at,
        result,
        mask,
        lengths,
        at_lengths,
        offsets,
        list(groups(kind, batch.channels)),
        "clamp" if outside == "raise" else outside,
        None if whole else gap,
        gap if whole else None,
        scale,
        shift,
        value_type,
        result.dtype == compute and stored != compute,
        AS_WORTH,
        bool(check) and not beforehand,
    )
    if trajectory >= 0:
        raise disorder(trajectory, batch, lengths, offsets)
    answer = result if direct else result.astype(wanted)
    if out is not None:
        if not direct:
            out[...] = answer.reshape(out.shape)
        answer = out
    else:
        answer = answer.reshape(batch.result_shape)
    return (answer, mask.view(np.bool_).reshape(batch.mask_shape)) if mask is not None else answer


def clocks(times: Any, at: Any) -> tuple[Any, Any]:
    """Stamps and targets in one type: int64, float64 or float32; integers and floats do not mix beyond 2⁵³."""
    if times.dtype is F64 and at.dtype is F64:
        return times, at
    for name, clock in (("times", times), ("at", at)):
        if clock.dtype.kind in "Mm":
            same = f".astype('{clock.dtype}').astype('int64')"
            raise InputError(f"{name} are {clock.dtype}; give times and at as int64, by {same} of both.")
        if clock.dtype.kind not in "iuf":
            raise InputError(f"{name} are {clock.dtype}; give float64, int64 or float32.")
        if clock.dtype.kind == "u" and clock.size and int(clock.max()) > arguments.LONGEST:
            raise InputError(f"{name} go up to {clock.max()}, beyond int64; count them from a later beginning.")
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


def counted(batch: Batch, lengths: Any, at_lengths: Any, offsets: Any) -> None:
    """lengths, at_lengths and offsets point into the arrays, or are refused by their first wrong entry."""
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


def disorder(trajectory: int, batch: Batch, lengths: Any, offsets: Any) -> InputError:
    """The stamps of this trajectory are out of order: say where."""
    first, last = _ends(batch, lengths, offsets)
    row = batch.times[0 if offsets is not None else trajectory][first[trajectory] : last[trajectory]]
    ordered = np.concatenate([row[:1] == row[:1], row[1:] >= row[:-1]])
    index = int(np.argmin(ordered))
    return InputError(
        f"times of trajectory {trajectory} are not sorted: index {index} is {row[index]}"
        f"{f' after {row[index - 1]}' if index else ''}; sort them, or say sort=True."
    )


def _room(out: Any, batch: Batch, dtype: Any, direct: bool, counts: dict[str, Any]) -> Any:
    """Where the loops write: the caller's `out` seen as [B, T, D], or fresh memory."""
    shape = (batch.batch, batch.targets, batch.channels)
    if out is None:
        return np.empty(shape, dtype)
    if tuple(out.shape) != batch.result_shape:
        raise InputError(f"out has shape {list(out.shape)}, the result has {list(batch.result_shape)}.")
    if not direct or out.dtype != dtype:
        refuse_shared(out)
        return np.empty(shape, dtype)
    refuse_shared(out, values=batch.values, times=batch.times, at=batch.at, **counts)
    for axis in range(3 - out.ndim):
        out = out[None] if axis == 0 and len(batch.mask_shape) == 1 else out[..., None]
    return out


def _ends(batch: Batch, lengths: Any, offsets: Any) -> tuple[Any, Any]:
    """First and one past the last stamp of each trajectory, as indices into its row."""
    if offsets is not None:
        return offsets[:-1], offsets[1:] if lengths is None else np.minimum(offsets[1:], offsets[:-1] + lengths)
    count = np.full(batch.batch, batch.times.shape[1], np.int64) if lengths is None else lengths
    return np.zeros(batch.batch, np.int64), count


def refuse_outside(batch: Batch, lengths: Any, at_lengths: Any, offsets: Any) -> None:
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


def _sorted(batch: Batch, values: Any, times: Any, lengths: Any, offsets: Any, at: Any) -> tuple[Batch, Any, Any]:
    """Stamps and values in rising order, stable, each trajectory by itself."""
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
    return Batch(data, clock, batch.at, batch.batch, batch.result_shape, batch.mask_shape), data, clock
