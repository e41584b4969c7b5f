"""One program per block of targets of one trajectory: find each target once, then read and mix its frames.

The search is the price of long trajectories (log2 S dependent loads), so it is paid per target and not per
channel: the first round compares with PIVOTS stamps at once, which also brings a short trajectory's stamps
into the cache.

    python -m pytest tests/kernels/test_resample.py tests/kernels/test_compile.py
"""

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels import resample_kinds as kinds

PIVOTS = tl.constexpr(8)


@triton.jit
def _at_most(stamp, key, STRICT: tl.constexpr):
    if STRICT:
        return stamp < key
    return stamp <= key


@triton.jit
def _search(times, step, n, key, STRICT: tl.constexpr):
    """The last index whose stamp is <= key (< key if STRICT), or -1; key [targets]."""
    size = tl.maximum((n + PIVOTS - 1) // PIVOTS, 1)
    passed = tl.zeros(key.shape, tl.int32)
    for k in tl.static_range(PIVOTS):  # those beyond the end repeat the last stamp, and are not counted below
        pivot = tl.load(times + tl.minimum(k * size, n - 1) * step, mask=n > 0, other=0)
        passed += _at_most(pivot, key, STRICT).to(tl.int32)
    passed = tl.minimum(passed, (n + size - 1) // size)
    low = tl.maximum(passed - 1, 0) * size
    while size > 1:  # the answer is in [low, low + size); all targets halve together
        half = size // 2
        middle = low + half
        known = middle < n
        stamp = tl.load(times + middle * step, mask=known, other=0)
        low = tl.where(known & _at_most(stamp, key, STRICT), middle, low)
        size -= half
    return tl.where(passed > 0, low, -1)


@triton.jit
def _last_equal(times, step, n, index, live):
    """Of equal stamps the last one counts. Runs are rare: without one this is a single load."""
    stamp = tl.load(times + index * step, mask=live, other=0)
    more = live & (index + 1 < n)
    following = tl.load(times + (index + 1) * step, mask=more, other=0)
    if tl.max((more & (following == stamp)).to(tl.int32), 0) > 0:
        index = tl.where(live, _search(times, step, n, stamp, False), index)
    return index


@triton.jit
def _last_before(times, step, n, index, live):
    """The last index with a smaller stamp than `index`, or -1."""
    stamp = tl.load(times + index * step, mask=live, other=0)
    more = live & (index > 0)
    previous = tl.load(times + (index - 1) * step, mask=more, other=0)
    found = index - 1
    if tl.max((more & (previous == stamp)).to(tl.int32), 0) > 0:
        found = tl.where(live, _search(times, step, n, stamp, True), found)
    return found


@triton.jit
def _ratio(above, below, C: tl.constexpr):
    """above / below, divided in float64 unless both fit float32, correctly rounded; 0 / 0 must not be asked."""
    if above.dtype == C:
        return above / below if above.dtype == tl.float64 else tl.div_rn(above, below)
    return (above.to(tl.float64) / below.to(tl.float64)).to(C)


@triton.jit
def _frame(values, row, d, step, d_step, live, inside, STEP: tl.constexpr, C: tl.constexpr):
    """Channels d of frame `row`: [targets, channels] in the compute type."""
    where = values + tl.multiple_of(row * step, STEP)[:, None] + (d * d_step)[None, :]
    return tl.load(where, mask=live[:, None] & inside[None, :], other=0).to(C)


@triton.jit(do_not_specialize=["stamps", "targets", "tiles", "gap"])
def resample(
    values,
    times,
    at,
    out,
    mask,
    lengths,
    at_lengths,
    offsets,
    scale,
    shift,
    stamps,
    targets,
    tiles,
    gap,
    v_batch,
    v_stamp,
    v_channel,
    t_batch,
    t_stamp,
    a_batch,
    a_target,
    o_batch,
    o_target,
    o_channel,
    m_batch,
    m_target,
    D: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
    KIND: tl.constexpr,
    OUTSIDE: tl.constexpr,
    GAP: tl.constexpr,
    WIDE: tl.constexpr,
    V_STEP: tl.constexpr,
    O_STEP: tl.constexpr,
):
    DOUBLE: tl.constexpr = values.dtype.element_ty == tl.float64
    C: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    EXTEND: tl.constexpr = OUTSIDE == "extrapolate" and KIND != "previous" and KIND != "nearest"

    INDEX: tl.constexpr = tl.int64 if WIDE else tl.int32

    b = (tl.program_id(0) // tiles).to(tl.int64)
    lane = (tl.program_id(0) % tiles).to(INDEX) * BT + tl.arange(0, BT)
    wanted = lane < targets
    live = wanted
    if at_lengths is not None:
        live = live & (lane < tl.load(at_lengths + b))
    # Strides change with the batch's shape, what divides them seldom does: told to the compiler, frames are
    # read in 16-byte pieces without compiling anew for every shape.
    n = stamps.to(INDEX)
    if offsets is not None:
        first = tl.load(offsets + b)
        n = (tl.load(offsets + b + 1) - first).to(INDEX)
        times += first * t_stamp
        values += tl.multiple_of(first * v_stamp, V_STEP)
    else:
        times += b * t_batch
        values += tl.multiple_of(b * v_batch, V_STEP)
    if lengths is not None:
        n = tl.minimum(n.to(tl.int64), tl.load(lengths + b)).to(INDEX)
    out += tl.multiple_of(b * o_batch, O_STEP)

    key = tl.load(at + b * a_batch + lane * a_target, mask=live, other=0)
    live = live & (key == key) & (tl.zeros_like(lane) < n)
    found = _search(times, t_stamp, n, key, False)
    last = n - 1
    under = found < 0
    i = tl.maximum(found, 0)
    stamp = tl.load(times + i * t_stamp, mask=live, other=0)
    over = (found == last) & (key > stamp)
    outside = under | over
    if OUTSIDE == "nan":
        live = live & (outside == 0)
    else:
        if tl.max((live & under).to(tl.int32), 0) > 0:
            i = tl.where(under, _last_equal(times, t_stamp, n, i, live & under), i)
        if EXTEND:  # noqa: SIM102 (one is decided by the compiler, one by the data)
            if tl.max((live & over).to(tl.int32), 0) > 0:
                previous = _last_before(times, t_stamp, n, i, live & over)
                i = tl.where(over & (previous >= 0), previous, i)

    # A target on a stamp, or held at an end, needs no right node: j = i, w = 0.
    open_ = live & (i < last) & ((outside == 0) & (key > stamp))
    if EXTEND:
        open_ = open_ | (live & (i < last) & outside)
        stamp = tl.load(times + i * t_stamp, mask=live, other=0)
    j = tl.where(open_, i + 1, i)
    j = _last_equal(times, t_stamp, n, j, open_)
    right = tl.load(times + j * t_stamp, mask=open_, other=1)
    left = tl.where(open_, stamp, tl.zeros_like(stamp))
    span = right - left
    if GAP:
        if span.dtype == tl.float64:
            limit = gap.to(tl.int64).to(tl.float64, bitcast=True)
        elif span.dtype == tl.float32:
            limit = gap.to(tl.int32).to(tl.float32, bitcast=True)
        else:
            limit = gap.to(tl.int64)
        live = live & ((open_ & (outside == 0) & (span > limit)) == 0)
        open_ = open_ & live
    w = _ratio(tl.where(open_, key - left, tl.zeros_like(span)), span, C)

    if mask is not None:
        tl.store(mask + b * m_batch + lane * m_target, live.to(tl.uint8), mask=wanted)

    if KIND == "previous":
        i = tl.where(w >= 1, j, i)
    if KIND == "nearest":
        i = tl.where(w > 0.5, j, i)
    if KIND == "cubic":
        p = _last_before(times, t_stamp, n, i, open_)
        has_p = open_ & (p >= 0)
        p = tl.where(has_p, p, i)
        has_q = open_ & (j < last)
        q = _last_equal(times, t_stamp, n, tl.where(has_q, j + 1, j), has_q)
        t_p = tl.load(times + p * t_stamp, mask=has_p, other=0)
        t_q = tl.load(times + q * t_stamp, mask=has_q, other=0)
        h_p = _ratio(tl.where(has_p, left - t_p, span), span, C)[:, None]
        h_q = _ratio(tl.where(has_q, t_q - right, span), span, C)[:, None]

    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        inside = d < D
        weight = w[:, None]
        a = _frame(values, i, d, v_stamp, v_channel, live, inside, V_STEP, C)
        if KIND == "previous" or KIND == "nearest":
            y = a
        else:
            c = _frame(values, j, d, v_stamp, v_channel, open_, inside, V_STEP, C)
            if KIND == "linear":
                y = tl.where(weight == 0, a, kinds.linear(a, c, weight))
            if KIND == "angle":
                y = kinds.angle(a, c, weight)
            if KIND == "slerp":
                a4 = tl.reshape(a, [BT, BD // 4, 4])
                c4 = tl.reshape(c, [BT, BD // 4, 4])
                y = tl.reshape(kinds.slerp(a4, c4, weight, DOUBLE, EXTEND), [BT, BD])
            if KIND == "cubic":
                before = _frame(values, p, d, v_stamp, v_channel, has_p, inside, V_STEP, C)
                after = _frame(values, q, d, v_stamp, v_channel, has_q, inside, V_STEP, C)
                y = kinds.cubic(before, a, c, after, weight, has_p[:, None], has_q[:, None], h_p, h_q)
                y = tl.where(weight == 0, a, y)
        if scale is not None:
            y = y * tl.load(scale + d, mask=inside, other=1)[None, :].to(C)
        if shift is not None:
            y = y + tl.load(shift + d, mask=inside, other=0)[None, :].to(C)
        y = tl.where(live[:, None], y, float("nan"))
        to = out + tl.multiple_of(lane * o_target, O_STEP)[:, None] + (d * o_channel)[None, :]
        tl.store(to, y.to(out.dtype.element_ty), mask=wanted[:, None] & inside[None, :])
