"""One program per block of targets: find the interval of each target once, then read and mix its frames.

The targets of all trajectories form one row, so that every lane has a target even with short trajectories. The search
of a long trajectory costs log2 S dependent loads, so it runs once per target, not per channel. The first round compares
with PIVOTS stamps at once, which also brings a short trajectory's stamps into the cache.

    python -m pytest tests/kernels/test_resample.py tests/kernels/test_compile.py
"""

from __future__ import annotations

import triton
import triton.language as tl

from ridgeline.kernels.resample import cubic, kinds

PIVOTS = tl.constexpr(8)


@triton.jit
def _at_most(stamp, key, STRICT: tl.constexpr):
    if STRICT:
        return stamp < key
    return stamp <= key


@triton.jit
def _search(clock, step, last, longest, key, STRICT: tl.constexpr):
    """Return the last index with a stamp <= key (< key if STRICT), or -1. All are [targets] but step and longest.

    `last` is the last index of the trajectory, `longest` the largest number of stamps after a pivot.
    """
    part = last // PIVOTS
    passed = tl.full(key.shape, -1, tl.int32)
    for k in tl.static_range(PIVOTS):
        passed = tl.where(_at_most(tl.load(clock + (k * part).to(tl.int64) * step), key, STRICT), k, passed)
    low = tl.where(passed < 0, -1, passed * part)
    size = longest
    while size > 1:  # the result is in [low, low + size); all targets halve together
        half = size // 2
        middle = tl.minimum(low + half, last)
        low = tl.where(_at_most(tl.load(clock + middle * step), key, STRICT), middle, low)
        size -= half
    return low


@triton.jit
def _any(flags):
    return tl.max(flags.to(tl.int32), 0) > 0


@triton.jit
def _ratio(above, below, C: tl.constexpr, ROUGH: tl.constexpr):
    """Divide, in float64 unless both are exact in float32; correctly rounded if not ROUGH. Not for 0 / 0."""
    if ROUGH and above.dtype == tl.float32:
        return kinds.divide(above, below, True)
    if above.dtype == C:
        return above / below if above.dtype == tl.float64 else tl.div_rn(above, below)
    return (above.to(tl.float64) / below.to(tl.float64)).to(C)


@triton.jit
def _frame(start, d, d_step, live, inside, NAN: tl.constexpr, C: tl.constexpr):
    """Load channels d of the frames at `start`, in the compute type; NaN or undefined if not live."""
    where = start[:, None] + (d * d_step)[None, :]
    if NAN:
        return tl.load(where, mask=live[:, None] & inside[None, :], other=float("nan")).to(C)
    return tl.load(where, mask=live[:, None] & inside[None, :]).to(C)


@triton.jit(do_not_specialize=["stamps", "targets", "rows", "gap", "per_target", "halvings"])
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
    per_target,
    halvings,
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
    CUBIC: tl.constexpr = KIND == "cubic"
    ROUGH: tl.constexpr = CUBIC and FAST and values.dtype.element_ty.primitive_bitwidth == 16

    # Every lane reads valid memory: beyond the last row it reads the last row, without a frame the first frame.
    row = tl.program_id(0).to(INDEX) * BT + tl.arange(0, BT)
    in_range = row < rows
    row = tl.minimum(row, rows - 1)
    b = row // targets if WIDE else tl.umulhi(row + 1, per_target) >> halvings
    lane = row - b * targets
    live = in_range
    if at_lengths is not None:
        live = live & (lane < tl.load(at_lengths + b))
    last = stamps.to(INDEX) - 1
    if offsets is not None:
        first = tl.load(offsets + b).to(INDEX)
        n = tl.load(offsets + b + 1).to(INDEX) - first
        if lengths is not None:
            n = tl.minimum(n.to(tl.int64), tl.load(lengths + b)).to(INDEX)
        first = tl.where(n > 0, first, 0)
        clock = times + first * t_stamp
        base = first * v_stamp
    else:
        clock = times + b * t_batch
        base = b * v_batch
        if lengths is not None:
            n = tl.minimum(stamps.to(tl.int64), tl.load(lengths + b)).to(INDEX)
    if offsets is not None or lengths is not None:
        live = live & (n > 0)
        last = tl.maximum(n - 1, 0)
    longest = last - (PIVOTS - 1) * (last // PIVOTS) + 1
    if offsets is not None or lengths is not None:
        longest = tl.max(longest, 0)

    key = tl.load(at + b * a_batch + lane * a_target)
    live = live & (key == key)
    index = _search(clock, t_stamp, last, longest, key, False)
    under = index < 0
    i = tl.maximum(index, 0)
    left_stamp = clock + i * t_stamp
    stamp = tl.load(left_stamp)
    following = tl.load(left_stamp + t_stamp, mask=i < last, other=0)
    over = (index == last) & (key > stamp)
    outside = under | over
    if OUTSIDE == "nan":
        live = live & (outside == 0)

    # A target on a stamp, or clamped at an end, needs no right node: j = i, w = 0.
    open_ = live & (i < last) & ((outside == 0) & (key > stamp))
    if EXTEND:
        open_ = live & (i < last) & (outside | (key > stamp))
    j = tl.where(open_, i + 1, i)
    after = tl.load(left_stamp + 2 * t_stamp, mask=i + 1 < last, other=0)
    has_duplicates = (open_ & (i + 1 < last) & (after == following)) | (
        live & under & (i < last) & (following == stamp)
    )
    if EXTEND:
        has_duplicates = has_duplicates | (live & over)
    if CUBIC:
        earlier = tl.load(left_stamp - t_stamp, mask=i > 0, other=0)
        beyond = tl.load(left_stamp + 3 * t_stamp, mask=i + 2 < last, other=0)
        has_p = i > 0
        has_q = j < last
        p = i - 1
        q = j + 1
        has_duplicates = has_duplicates | (
            open_ & ((has_p & (earlier == stamp)) | ((i + 2 < last) & (beyond == after)))
        )
    if _any(has_duplicates):  # rare: the last of equal stamps counts
        i = tl.where(live, _search(clock, t_stamp, last, longest, stamp, False), i)
        if EXTEND:
            sooner = _search(clock, t_stamp, last, longest, stamp, True)
            i = tl.where(live & over & (sooner >= 0), sooner, i)
            open_ = live & (i < last) & (outside | (key > stamp))
        stamp = tl.load(clock + i * t_stamp, mask=live, other=0)
        following = tl.load(clock + (i + 1) * t_stamp, mask=live & (i < last), other=0)
        j = tl.where(open_, _search(clock, t_stamp, last, longest, following, False), i)
        if CUBIC:
            p = _search(clock, t_stamp, last, longest, stamp, True)
            has_p = p >= 0
            earlier = tl.load(clock + p * t_stamp, mask=has_p, other=0)
            has_q = j < last
            after = tl.load(clock + (j + 1) * t_stamp, mask=has_q, other=0)
            q = _search(clock, t_stamp, last, longest, after, False)
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
    w = _ratio(tl.where(open_, key - left, tl.zeros_like(span)), span, C, ROUGH)

    if mask is not None:
        tl.store(mask + b * m_batch + lane * m_target, live.to(tl.uint8), mask=in_range)

    if KIND == "nearest":  # compare stamps, because the weight is rounded
        i = tl.where(open_ & ((key - left) * 2 > span), j, i)
    # Strides change with the batch's shape, their divisors rarely. With a known divisor the compiler reads frames in
    # 16-byte pieces, without a new compilation for every shape.
    o_a = tl.multiple_of(base + i * v_stamp, V_STEP)
    o_c = tl.multiple_of(base + j * v_stamp, V_STEP)
    o_to = tl.multiple_of(b * o_batch + lane * o_target, O_STEP)
    if CUBIC:
        has_p = open_ & has_p
        has_q = open_ & has_q
        o_p = base + tl.where(has_p, p, i) * v_stamp
        o_q = base + tl.where(has_q, q, j) * v_stamp
        # These decide only the shape of the curve: the differences are exact, the quotient may be approximate.
        h_p = kinds.divide(tl.where(has_p, left - earlier, span).to(C), span.to(C), FAST)
        h_q = kinds.divide(tl.where(has_q, after - right, span).to(C), span.to(C), FAST)
        cubic.targets(
            values, out, scale, shift, live, open_, in_range, has_p, has_q, o_a, o_c, o_p, o_q, o_to, w, h_p, h_q,
            v_channel, o_channel, D, BT, BD, BR, V_STEP, O_STEP, EXTEND, FAST, C,
        )  # fmt: skip
        return

    from_a, from_c, to = values + o_a, values + o_c, out + o_to
    for start in range(0, D, BD):
        d = start + tl.arange(0, BD)
        inside = d < D
        weight = w[:, None]
        a = _frame(from_a, d, v_channel, live, inside, True, C)  # NaN without a frame
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
        kinds.put(to, y, d, o_channel, in_range, inside, scale, shift, C)
