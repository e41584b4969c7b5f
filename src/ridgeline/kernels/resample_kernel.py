"""One program per block of targets: find each target once, then read and mix its frames.

Targets of all trajectories lie in one row, so that every lane has one, however short the trajectories are. The
search is the price of long trajectories (log2 S dependent loads), so it is paid per target and not per channel: the
first round compares with PIVOTS stamps at once, which also brings a short trajectory's stamps into the cache.

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
def _search(clock, step, n, longest, key, STRICT: tl.constexpr):
    """The last index whose stamp is <= key (< key if STRICT), or -1; all [targets] but step and longest."""
    size = tl.maximum((longest + PIVOTS - 1) // PIVOTS, 1)
    some = n > 0
    passed = tl.zeros(key.shape, tl.int32)
    for k in tl.static_range(PIVOTS):  # those beyond the end repeat the last stamp, and are not counted below
        pivot = tl.load(clock + tl.minimum(k * size, n - 1) * step, mask=some, other=0)
        passed += _at_most(pivot, key, STRICT).to(tl.int32)
    passed = tl.minimum(passed, (n + size - 1) // size)
    low = tl.maximum(passed - 1, 0) * size
    while size > 1:  # the answer is in [low, low + size); all targets halve together
        half = size // 2
        middle = low + half
        known = middle < n
        stamp = tl.load(clock + middle * step, mask=known, other=0)
        low = tl.where(known & _at_most(stamp, key, STRICT), middle, low)
        size -= half
    return tl.where(passed > 0, low, -1)


@triton.jit
def _any(flags):
    return tl.max(flags.to(tl.int32), 0) > 0


@triton.jit
def _ratio(above, below, C: tl.constexpr):
    """above / below, divided in float64 unless both fit float32, correctly rounded; 0 / 0 must not be asked."""
    if above.dtype == C:
        return above / below if above.dtype == tl.float64 else tl.div_rn(above, below)
    return (above.to(tl.float64) / below.to(tl.float64)).to(C)


@triton.jit
def _frame(start, d, d_step, live, inside, NAN: tl.constexpr, C: tl.constexpr):
    """Channels d of the frames that begin at `start`, in the compute type; NaN or anything where not live."""
    where = start[:, None] + (d * d_step)[None, :]
    if NAN:
        return tl.load(where, mask=live[:, None] & inside[None, :], other=float("nan")).to(C)
    return tl.load(where, mask=live[:, None] & inside[None, :]).to(C)


@triton.jit
def _inner_weights(w, h_p, h_q, FAST: tl.constexpr):
    """Of each target, for `kinds.cubic_inside`."""
    whole, left, right = kinds.blends(w)
    far_p, gain_p = kinds.inner(h_p, left, FAST)
    far_q, gain_q = kinds.inner(h_q, right, FAST)
    return whole, far_p, gain_p, far_q, gain_q


@triton.jit
def _inside(before, a, c, further, weights, FAST: tl.constexpr):
    whole, far_p, gain_p, far_q, gain_q = weights
    return kinds.cubic_inside(
        before, a, c, further, whole[:, None], far_p[:, None], gain_p[:, None], far_q[:, None], gain_q[:, None], FAST
    )  # fmt: skip


@triton.jit
def _put(to, y, d, d_step, wanted, inside, scale, shift, C: tl.constexpr):
    """Normalised where that is wanted, in the type of the results, to channels d of the rows that begin at `to`."""
    if scale is not None:
        y = y * tl.load(scale + d, mask=inside, other=1)[None, :].to(C)
    if shift is not None:
        y = y + tl.load(shift + d, mask=inside, other=0)[None, :].to(C)
    where = to[:, None] + (d * d_step)[None, :]
    tl.store(where, y.to(to.dtype.element_ty), mask=wanted[:, None] & inside[None, :])


@triton.jit
def _rows(
    values, out, scale, shift, o_a, o_c, o_p, o_q, o_to, w, h_p, h_q, weights, seen, pick, v_channel, o_channel,
    D: tl.constexpr, BD: tl.constexpr, V_STEP: tl.constexpr, O_STEP: tl.constexpr, FAST: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Cubic for some of the targets, all channels; places in units of the steps."""
    bits = tl.gather(seen, pick, 0)
    live, wanted, has_p, has_q = (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0
    from_a = values + tl.gather(o_a, pick, 0) * V_STEP
    from_c = values + tl.gather(o_c, pick, 0) * V_STEP
    from_p = values + tl.gather(o_p, pick, 0) * V_STEP
    from_q = values + tl.gather(o_q, pick, 0) * V_STEP
    to = out + tl.gather(o_to, pick, 0) * O_STEP
    weight = tl.gather(w, pick, 0)
    whole, far_p, gain_p, far_q, gain_q = weights
    some = (
        tl.gather(whole, pick, 0), tl.gather(far_p, pick, 0), tl.gather(gain_p, pick, 0), tl.gather(far_q, pick, 0),
        tl.gather(gain_q, pick, 0),
    )  # fmt: skip
    at_an_end = _any(live & (weight != 0) & ((has_p & has_q) == 0))
    weight = weight[:, None]
    before_a = tl.gather(h_p, pick, 0)[:, None]
    after_c = tl.gather(h_q, pick, 0)[:, None]
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        inside = d < D
        a = _frame(from_a, d, v_channel, live, inside, True, C)
        c = _frame(from_c, d, v_channel, live, inside, False, C)
        before = _frame(from_p, d, v_channel, live, inside, False, C)
        further = _frame(from_q, d, v_channel, live, inside, False, C)
        if at_an_end:
            y = kinds.cubic_anywhere(
                before, a, c, further, weight, has_p[:, None], has_q[:, None], before_a, after_c, FAST
            )
        else:
            y = _inside(before, a, c, further, some, FAST)
        _put(to, tl.where(weight == 0, a, y), d, o_channel, wanted, inside, scale, shift, C)


@triton.jit(do_not_specialize=["stamps", "targets", "rows", "gap"])
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
    rows,
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
    BR: tl.constexpr,
    KIND: tl.constexpr,
    OUTSIDE: tl.constexpr,
    GAP: tl.constexpr,
    WIDE: tl.constexpr,
    V_STEP: tl.constexpr,
    O_STEP: tl.constexpr,
    FAST: tl.constexpr,
):
    DOUBLE: tl.constexpr = values.dtype.element_ty == tl.float64
    C: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    EXTEND: tl.constexpr = OUTSIDE == "extrapolate" and KIND != "previous" and KIND != "nearest"
    INDEX: tl.constexpr = tl.int64 if WIDE else tl.int32

    row = tl.program_id(0).to(INDEX) * BT + tl.arange(0, BT)
    wanted = row < rows
    b = (row // targets).to(INDEX)
    lane = row - b * targets
    live = wanted
    if at_lengths is not None:
        live = live & (lane < tl.load(at_lengths + b, mask=wanted, other=0))
    # Strides change with the batch's shape, what divides them seldom does: told to the compiler, frames are
    # read in 16-byte pieces without compiling anew for every shape.
    n = tl.zeros([BT], INDEX) + stamps
    longest = stamps.to(INDEX)
    if offsets is not None:
        first = tl.load(offsets + b, mask=wanted, other=0).to(INDEX)
        n = tl.load(offsets + b + 1, mask=wanted, other=0).to(INDEX) - first
        clock = times + first * t_stamp
        base = first * v_stamp
        longest = tl.max(n, 0)
    else:
        clock = times + b * t_batch
        base = b * v_batch
    if lengths is not None:
        n = tl.minimum(n.to(tl.int64), tl.load(lengths + b, mask=wanted, other=0)).to(INDEX)

    key = tl.load(at + b * a_batch + lane * a_target, mask=live, other=0)
    live = live & (key == key) & (n > 0)
    found = _search(clock, t_stamp, n, longest, key, False)
    last = n - 1
    under = found < 0
    i = tl.maximum(found, 0)
    stamp = tl.load(clock + i * t_stamp, mask=live, other=0)
    following = tl.load(clock + (i + 1) * t_stamp, mask=live & (i < last), other=0)
    over = (found == last) & (key > stamp)
    outside = under | over
    if OUTSIDE == "nan":
        live = live & (outside == 0)

    # A target on a stamp, or held at an end, needs no right node: j = i, w = 0.
    open_ = live & (i < last) & ((outside == 0) & (key > stamp))
    if EXTEND:
        open_ = live & (i < last) & (outside | (key > stamp))
    j = tl.where(open_, i + 1, i)
    after = tl.load(clock + (j + 1) * t_stamp, mask=open_ & (j < last), other=0)
    twice = (open_ & (j < last) & (after == following)) | (live & under & (i < last) & (following == stamp))
    if EXTEND:
        twice = twice | (live & over)
    if _any(twice):  # seldom: of equal stamps the last one counts
        i = tl.where(live, _search(clock, t_stamp, n, longest, stamp, False), i)
        if EXTEND:
            earlier = _search(clock, t_stamp, n, longest, stamp, True)
            i = tl.where(live & over & (earlier >= 0), earlier, i)
            open_ = live & (i < last) & (outside | (key > stamp))
        stamp = tl.load(clock + i * t_stamp, mask=live, other=0)
        following = tl.load(clock + (i + 1) * t_stamp, mask=live & (i < last), other=0)
        j = tl.where(open_, _search(clock, t_stamp, n, longest, following, False), i)
    right = tl.where(open_, following, tl.full([BT], 1, following.dtype))
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

    if KIND == "nearest":  # by the stamps themselves: a weight has been rounded
        i = tl.where(open_ & ((key - left) * 2 > span), j, i)
    from_a = values + tl.multiple_of(base + i * v_stamp, V_STEP)
    from_c = values + tl.multiple_of(base + j * v_stamp, V_STEP)
    to = out + tl.multiple_of(b * o_batch + lane * o_target, O_STEP)
    if KIND == "cubic":
        has_p = open_ & (i > 0)
        p = tl.maximum(i - 1, 0)
        t_p = tl.load(clock + p * t_stamp, mask=has_p, other=0)
        has_q = open_ & (j < last)
        q = tl.where(has_q, j + 1, j)
        t_q = tl.load(clock + q * t_stamp, mask=has_q, other=0)
        beyond = tl.load(clock + (q + 1) * t_stamp, mask=has_q & (q < last), other=0)
        if _any((has_p & (t_p == left)) | (has_q & (q < last) & (beyond == t_q))):
            p = _search(clock, t_stamp, n, longest, left, True)
            has_p = has_p & (p >= 0)
            p = tl.maximum(p, 0)
            t_p = tl.load(clock + p * t_stamp, mask=has_p, other=0)
            q = tl.where(has_q, _search(clock, t_stamp, n, longest, t_q, False), j)
        # Only the shape of the curve hangs on these: the differences are exact, their quotient need not be.
        h_p = kinds.over(tl.where(has_p, left - t_p, span).to(C), span.to(C), FAST)
        h_q = kinds.over(tl.where(has_q, t_q - right, span).to(C), span.to(C), FAST)
        if BR < BT:
            # Whole rows at a time: what lies side by side is read by neighbouring threads, in a quarter of the lines.
            seen = live.to(tl.int32) + 2 * wanted.to(tl.int32) + 4 * has_p.to(tl.int32) + 8 * has_q.to(tl.int32)
            o_a = (base + i * v_stamp) // V_STEP
            o_c = (base + j * v_stamp) // V_STEP
            o_p = (base + p * v_stamp) // V_STEP
            o_q = (base + q * v_stamp) // V_STEP
            o_to = (b * o_batch + lane * o_target) // O_STEP
            weights = _inner_weights(w, h_p, h_q, FAST)
            for r in tl.static_range(0, BT, BR):
                _rows(
                    values, out, scale, shift, o_a, o_c, o_p, o_q, o_to, w, h_p, h_q, weights, seen,
                    r + tl.arange(0, BR), v_channel, o_channel, D, BD, V_STEP, O_STEP, FAST, C,
                )  # fmt: skip
            return
        from_p = values + tl.multiple_of(base + p * v_stamp, V_STEP)
        from_q = values + tl.multiple_of(base + q * v_stamp, V_STEP)
        at_an_end = _any(open_ & ((has_p & has_q) == 0))

    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        inside = d < D
        weight = w[:, None]
        a = _frame(from_a, d, v_channel, live, inside, True, C)  # and where there is nothing, NaN it stays
        y = a
        if KIND != "previous" and KIND != "nearest":
            c = _frame(from_c, d, v_channel, live, inside, False, C)  # i = j where there is no right node
            if KIND == "linear":
                y = tl.where(weight == 0, a, kinds.linear(a, c, weight))
            if KIND == "angle":
                y = kinds.angle(a, c, weight)
            if KIND == "slerp":
                a4 = tl.reshape(a, [BT, BD // 4, 4])
                c4 = tl.reshape(c, [BT, BD // 4, 4])
                y = tl.reshape(kinds.slerp(a4, c4, weight, DOUBLE, EXTEND, FAST), [BT, BD])
            if KIND == "cubic":
                before = _frame(from_p, d, v_channel, live, inside, False, C)
                further = _frame(from_q, d, v_channel, live, inside, False, C)
                if at_an_end:
                    y = kinds.cubic_anywhere(
                        before, a, c, further, weight, has_p[:, None], has_q[:, None], h_p[:, None], h_q[:, None], FAST
                    )
                else:
                    y = _inside(before, a, c, further, _inner_weights(w, h_p, h_q, FAST), FAST)
                y = tl.where(weight == 0, a, y)
        _put(to, y, d, o_channel, wanted, inside, scale, shift, C)
