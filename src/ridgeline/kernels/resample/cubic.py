"""Cubic interpolation of a block of targets with known intervals: four frames and two slopes for every value.

A program reads complete rows, BR at a time: neighbouring threads read neighbouring values, with a quarter of the cache
lines. One thread computes the weights of a target and passes them to the threads of its channels. Loads of frames have
no mask, because every address is valid. Two masked stores write the results, because a select would cost one more
instruction per value.

    TRITON_INTERPRET=1 python -m pytest tests/kernels/test_resample.py
"""

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels.resample import kinds

LIVE, OPEN, BEFORE, AFTER = tl.constexpr(1), tl.constexpr(2), tl.constexpr(4), tl.constexpr(8)


@triton.jit
def targets(
    values, out, scale, shift, live, open_, in_range, has_p, has_q, o_a, o_c, o_p, o_q, o_to, w, h_p, h_q,
    v_channel, o_channel, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
    V_STEP: tl.constexpr, O_STEP: tl.constexpr, EXTEND: tl.constexpr, FAST: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Interpolate all channels of all targets [BT], BR at a time, from frames at o_p, o_a, o_c, o_q to rows at o_to."""
    TURNS: tl.constexpr = BT // BR
    flags = tl.where(live, LIVE, 0) | tl.where(open_, OPEN, 0) | tl.where(has_p, BEFORE, 0) | tl.where(has_q, AFTER, 0)
    at_an_end = open_ & ((has_p & has_q) == 0)
    ends = tl.reduce(tl.where(at_an_end, 1, 0) << (tl.arange(0, BT) // BR), 0, _bit_or)
    rise, left, right = kinds.blends(w)
    far_p, gain_p = kinds.inner(h_p, tl.where(has_p, left, 0.0), FAST)
    far_q, gain_q = kinds.inner(h_q, tl.where(has_q, right, 0.0), FAST)
    weights = (rise, far_p, gain_p, far_q, gain_q)
    places = (_in_steps(o_a, V_STEP), _in_steps(o_c, V_STEP), _in_steps(o_p, V_STEP), _in_steps(o_q, V_STEP))
    o_to = _in_steps(o_to, O_STEP)
    for turn in tl.static_range(TURNS):
        turn_flags = _take_turn(flags, turn, BR)
        to = _take_turn(o_to, turn, BR).to(tl.int64) * O_STEP
        end = (ends >> turn) & 1
        weight = _take_five(weights, turn, BR)
        frame_places = _take_four(places, turn, BR)
        for start in range(0, D, BD):
            frames = _frames(values, frame_places, start, v_channel, D, BD, V_STEP)
            _mix(
                frames, out, scale, shift, turn_flags, end, to, weight, (w, h_p, h_q), turn, start, o_channel, D, BD,
                BR, EXTEND, FAST, C,
            )  # fmt: skip
    unknown_rows = in_range & (live == 0)
    if tl.max(unknown_rows.to(tl.int32), 0) > 0:
        for turn in tl.static_range(TURNS):
            to = _take_turn(o_to, turn, BR).to(tl.int64) * O_STEP
            unknown = _take_turn(unknown_rows.to(tl.int32), turn, BR) != 0
            for start in range(0, D, BD):
                d = start + tl.arange(0, BD)
                where = (out + d * o_channel)[None, :] + to[:, None]
                tl.store(where, float("nan"), mask=unknown[:, None] & (d < D)[None, :])


@triton.jit
def _bit_or(a, b):
    return a | b


@triton.jit
def _in_steps(place, STEP: tl.constexpr):
    """Divide by STEP, so that the compiler knows the gathered places as multiples of it."""
    unsigned: tl.constexpr = tl.uint64 if place.dtype == tl.int64 else tl.uint32
    return (place.to(unsigned) // STEP).to(place.dtype)


@triton.jit
def _take_turn(x, turn, BR: tl.constexpr):
    """Return the part of x for the targets of this turn."""
    if x.shape[0] == BR:
        return x
    return tl.gather(x, turn * BR + tl.arange(0, BR), 0)


@triton.jit
def _take_four(x, turn, BR: tl.constexpr):
    a, b, c, d = x
    return _take_turn(a, turn, BR), _take_turn(b, turn, BR), _take_turn(c, turn, BR), _take_turn(d, turn, BR)


@triton.jit
def _take_five(x, turn, BR: tl.constexpr):
    a, b, c, d, e = x
    return (
        _take_turn(a, turn, BR),
        _take_turn(b, turn, BR),
        _take_turn(c, turn, BR),
        _take_turn(d, turn, BR),
        _take_turn(e, turn, BR),
    )


@triton.jit
def _frames(values, places, start, v_channel, D: tl.constexpr, BD: tl.constexpr, STEP: tl.constexpr):
    """Load the channels from `start` on of the frames at the four places, in the stored type."""
    from_a, from_c, from_p, from_q = places
    d = start + tl.arange(0, BD)
    channels = values + d * v_channel
    return (
        _frame(channels, from_a, d, D, BD, STEP), _frame(channels, from_c, d, D, BD, STEP),
        _frame(channels, from_p, d, D, BD, STEP), _frame(channels, from_q, d, D, BD, STEP),
    )  # fmt: skip


@triton.jit
def _frame(channels, start, d, D: tl.constexpr, BD: tl.constexpr, STEP: tl.constexpr):
    where = channels[None, :] + (start.to(tl.int64) * STEP)[:, None]
    if D % BD == 0:
        return tl.load(where)
    return tl.load(where, mask=(d < D)[None, :])


@triton.jit
def _mix(
    frames, out, scale, shift, flags, at_an_end, to, weights, spans, turn, start, o_channel, D: tl.constexpr,
    BD: tl.constexpr, BR: tl.constexpr, EXTEND: tl.constexpr, FAST: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    raw, c, before, after = frames
    SAME: tl.constexpr = scale is None and shift is None and raw.dtype == out.dtype.element_ty
    a, c = kinds.widen(raw, C, FAST), kinds.widen(c, C, FAST)
    before, after = kinds.widen(before, C, FAST), kinds.widen(after, C, FAST)
    rise, far_p, gain_p, far_q, gain_q = weights
    y = kinds.cubic_inside(
        before, a, c, after, rise[:, None], far_p[:, None], gain_p[:, None], far_q[:, None], gain_q[:, None], FAST
    )  # fmt: skip
    if at_an_end != 0:
        w, h_p, h_q = spans
        w, h_p, h_q = _take_turn(w, turn, BR), _take_turn(h_p, turn, BR), _take_turn(h_q, turn, BR)
        has_p, has_q = (flags & BEFORE) != 0, (flags & AFTER) != 0
        if EXTEND:
            z = kinds.cubic_anywhere(
                before, a, c, after, w[:, None], has_p[:, None], has_q[:, None], h_p[:, None], h_q[:, None], FAST
            )  # fmt: skip
        else:
            z = y + kinds.cubic_end(before, a, c, after, w, has_p, has_q, h_p, h_q, FAST)
        y = tl.where((has_p & has_q)[:, None], y, z)
    d = start + tl.arange(0, BD)
    inside = d < D
    on = (flags & OPEN) != 0
    if SAME:
        where = (out + d * o_channel)[None, :] + to[:, None]
        tl.store(where, y.to(out.dtype.element_ty), mask=on[:, None] & inside[None, :])
        tl.store(where, raw, mask=(flags == LIVE)[:, None] & inside[None, :])
    else:
        kinds.put(out + to, tl.where(on[:, None], y, a), d, o_channel, flags != 0, inside, scale, shift, C)
