"""Cubic for a block of targets that have been found: four frames and two slopes for every value, so that what the
targets cost counts less than what each value does.

A program takes whole rows, some at a time: what lies side by side is read by neighbouring threads, in a quarter of
the lines. Frames are read without a mask (every place is one that can be read) and results are written by two
stores, since a choice between two values would be one more instruction for each.

    TRITON_INTERPRET=1 python -m pytest tests/kernels/test_resample.py
"""

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels import resample_kinds as kinds

LIVE, OPEN, BEFORE, AFTER = tl.constexpr(1), tl.constexpr(2), tl.constexpr(4), tl.constexpr(8)


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _of(x, turn, BR: tl.constexpr):
    """Of the targets whose turn it is."""
    if x.shape[0] == BR:
        return x
    return tl.gather(x, turn * BR + tl.arange(0, BR), 0)


@triton.jit
def _steps(place, STEP: tl.constexpr):
    """In units of STEP: what is gathered is then known to be a multiple of it."""
    unsigned: tl.constexpr = tl.uint64 if place.dtype == tl.int64 else tl.uint32
    return (place.to(unsigned) // STEP).to(place.dtype)


@triton.jit
def _frame(channels, start, inside, EVEN: tl.constexpr, STEP: tl.constexpr):
    where = channels[None, :] + (start.to(tl.int64) * STEP)[:, None]
    if EVEN:
        return tl.load(where)
    return tl.load(where, mask=inside[None, :])


@triton.jit
def targets(
    values, out, scale, shift, live, open_, wanted, has_p, has_q, o_a, o_c, o_p, o_q, o_to, w, h_p, h_q,
    v_channel, o_channel, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr,
    V_STEP: tl.constexpr, O_STEP: tl.constexpr, EXTEND: tl.constexpr, FAST: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """All channels of all targets [BT], from the frames at o_p, o_a, o_c and o_q to the row at o_to."""
    seen = tl.where(live, LIVE, 0) | tl.where(open_, OPEN, 0) | tl.where(has_p, BEFORE, 0) | tl.where(has_q, AFTER, 0)
    at_an_end = open_ & ((has_p & has_q) == 0)
    ends = tl.reduce(tl.where(at_an_end, 1, 0) << (tl.arange(0, BT) // BR), 0, _either)
    whole, left, right = kinds.blends(w)
    far_p, gain_p = kinds.inner(h_p, tl.where(has_p, left, 0.0), FAST)
    far_q, gain_q = kinds.inner(h_q, tl.where(has_q, right, 0.0), FAST)
    places = (
        _steps(o_a, V_STEP), _steps(o_c, V_STEP), _steps(o_p, V_STEP), _steps(o_q, V_STEP), _steps(o_to, O_STEP),
    )  # fmt: skip
    weights = (whole, far_p, gain_p, far_q, gain_q)
    spans = (w, h_p, h_q)
    for turn in tl.static_range(0, BT // BR):
        _rows(
            values, out, scale, shift, seen, (ends >> turn) & 1, places, weights, spans, turn, v_channel, o_channel,
            D, BD, BR, V_STEP, O_STEP, EXTEND, FAST, C,
        )  # fmt: skip
    none = wanted & (live == 0)
    if tl.max(none.to(tl.int32), 0) > 0:
        for start in range(0, D, BD):
            d = start + tl.arange(0, BD)
            where = out + o_to[:, None] + (d * o_channel)[None, :]
            tl.store(where, float("nan"), mask=none[:, None] & (d < D)[None, :])


@triton.jit
def _rows(
    values, out, scale, shift, seen, at_an_end, places, weights, spans, turn, v_channel, o_channel, D: tl.constexpr,
    BD: tl.constexpr, BR: tl.constexpr, V_STEP: tl.constexpr, O_STEP: tl.constexpr, EXTEND: tl.constexpr,
    FAST: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Some of the targets, all channels."""
    EVEN: tl.constexpr = D % BD == 0
    SAME: tl.constexpr = scale is None and shift is None and values.dtype == out.dtype
    o_a, o_c, o_p, o_q, o_to = places
    whole, far_p, gain_p, far_q, gain_q = weights
    w, h_p, h_q = spans
    seen = _of(seen, turn, BR)
    on = (seen & OPEN) != 0
    from_a, from_c, from_p, from_q = _of(o_a, turn, BR), _of(o_c, turn, BR), _of(o_p, turn, BR), _of(o_q, turn, BR)
    to = _of(o_to, turn, BR).to(tl.int64) * O_STEP
    of_rise = _of(whole, turn, BR)[:, None]
    far_before, before_a = _of(far_p, turn, BR)[:, None], _of(gain_p, turn, BR)[:, None]
    far_after, after_c = _of(far_q, turn, BR)[:, None], _of(gain_q, turn, BR)[:, None]
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        inside = d < D
        channels = values + d * v_channel
        raw = _frame(channels, from_a, inside, EVEN, V_STEP)
        a = kinds.widened(raw, C, FAST)
        c = kinds.widened(_frame(channels, from_c, inside, EVEN, V_STEP), C, FAST)
        before = kinds.widened(_frame(channels, from_p, inside, EVEN, V_STEP), C, FAST)
        after = kinds.widened(_frame(channels, from_q, inside, EVEN, V_STEP), C, FAST)
        y = kinds.cubic_inside(before, a, c, after, of_rise, far_before, before_a, far_after, after_c, FAST)
        if at_an_end != 0:
            weight, h_before, h_after = _of(w, turn, BR), _of(h_p, turn, BR), _of(h_q, turn, BR)
            has_p, has_q = (seen & BEFORE) != 0, (seen & AFTER) != 0
            if EXTEND:
                z = kinds.cubic_anywhere(
                    before, a, c, after, weight[:, None], has_p[:, None], has_q[:, None], h_before[:, None],
                    h_after[:, None], FAST,
                )  # fmt: skip
            else:
                z = y + kinds.cubic_end(before, a, c, after, weight, has_p, has_q, h_before, h_after, FAST)
            y = tl.where((has_p & has_q)[:, None], y, z)
        if SAME:
            where = (out + d * o_channel)[None, :] + to[:, None]
            tl.store(where, y.to(out.dtype.element_ty), mask=on[:, None] & inside[None, :])
            tl.store(where, raw, mask=(seen == LIVE)[:, None] & inside[None, :])
        else:
            y = tl.where(on[:, None], y, a)
            kinds.put(out + to, y, d, o_channel, seen != 0, inside, scale, shift, C)
