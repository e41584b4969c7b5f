"""The interpolation kinds: the arithmetic between frame a and frame b, on registers.

All values have the compute type (float32; float64 for float64 values); `w` is the weight of b, 0 at a.

    TRITON_INTERPRET=1 python -m pytest tests/kernels/test_resample.py
"""

from __future__ import annotations

import triton
import triton.language as tl

PI = tl.constexpr(3.141592653589793)
TURN = tl.constexpr(6.283185307179586)
TURN_HIGH = tl.constexpr(6.28125)  # few bits, so that turns * TURN_HIGH is exact in float32
TURN_LOW = tl.constexpr(0.0019353071795864769)
NEARLY_ONE = tl.constexpr(0.9995)  # above it, the chord is as exact as the arc and avoids a division by a small sine
NEARLY_ONE_64 = tl.constexpr(1 - 1e-8)
ROUND_32 = tl.constexpr(12582912.0)  # 1.5 · 2²³: adding and subtracting it rounds to an integer
ROUND_64 = tl.constexpr(6755399441055744.0)  # 1.5 · 2⁵²


@triton.jit
def divide(a, b, FAST: tl.constexpr):
    """a / b; FAST in two instructions, for float32 and |b| < 2¹²⁶."""
    if FAST and b.dtype == tl.float32:
        per_b = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [b], tl.float32, is_pure=True, pack=1)
        return a * per_b
    return a / b


@triton.jit
def _per_root(x, FAST: tl.constexpr):
    """1 / √x; FAST in one instruction, for float32 that is not subnormal."""
    if FAST and x.dtype == tl.float32:
        return tl.inline_asm_elementwise("rsqrt.approx.ftz.f32 $0, $1;", "=r,r", [x], tl.float32, is_pure=True, pack=1)
    return 1 / tl.sqrt(x)


@triton.jit
def widen(x, C: tl.constexpr, FAST: tl.constexpr):
    """Convert to the compute type; FAST converts bfloat16 in one instruction, where the compiler needs two for some."""
    if FAST and x.dtype == tl.bfloat16:
        code: tl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
        return tl.inline_asm_elementwise(code, "=&r,=r,r", [x], tl.float32, is_pure=True, pack=2)
    return x.to(C)


@triton.jit
def put(to, y, d, d_step, rows, inside, scale, shift, C: tl.constexpr):
    """Scale and shift y, if given, and store it to channels d of the rows at `to`."""
    if scale is not None:
        y = y * tl.load(scale + d, mask=inside, other=1)[None, :].to(C)
    if shift is not None:
        y = y + tl.load(shift + d, mask=inside, other=0)[None, :].to(C)
    where = to[:, None] + (d * d_step)[None, :]
    tl.store(where, y.to(to.dtype.element_ty), mask=rows[:, None] & inside[None, :])


@triton.jit
def linear(a, b, w):
    return a + (b - a) * w


@triton.jit
def wrap_angle(x):
    """Subtract full turns: the result is in [-π, π]."""
    ROUND: tl.constexpr = ROUND_64 if x.dtype == tl.float64 else ROUND_32
    turns = (x * (1 / TURN) + ROUND) - ROUND
    rest = (x - turns * TURN_HIGH) - turns * TURN_LOW
    return tl.where(rest > PI, PI, tl.where(rest < -PI, -PI, rest))  # comparisons keep NaN


@triton.jit
def angle(a, b, w):
    return wrap_angle(tl.where(w == 0, a, a + wrap_angle(b - a) * w))


@triton.jit
def _part(a, b, FAST: tl.constexpr):
    """Return a / b, clamped to [0, 1]; 0 for 0 / 0."""
    if FAST and b.dtype == tl.float32:
        code: tl.constexpr = "{ .reg .f32 r; rcp.approx.ftz.f32 r, $2; mul.sat.f32 $0, $1, r; }"
        return tl.inline_asm_elementwise(code, "=r,r,r", [a, b], tl.float32, is_pure=True, pack=1)
    p = a / b
    return tl.where(p > 0, tl.where(p < 1, p, 1.0), 0.0)


@triton.jit
def blends(w):
    """Return Hermite's polynomials at w: the weights of the rise to b, the slope at a and the slope at b."""
    rest = 1 - w
    return w * w * (3 - 2 * w), w * (rest * rest), -(w * w) * rest


@triton.jit
def inner(h, share, FAST: tl.constexpr):
    """Prepare `_inner_slope` for a span of h next to a span of 1, once for all channels of a target."""
    w0 = 2 + h
    w1 = 1 + 2 * h
    return divide(w1, w0 * h, FAST), divide(share * (w0 + w1), w1, FAST)


@triton.jit
def _inner_slope(rise, m, far, gain, FAST: tl.constexpr):
    """Return the slope between a span of h with `rise` and a span of 1 with secant m (pchip, Fritsch, Butland 1984).

    The harmonic mean of the secants, weighted by w0 = 2 + h and w1 = 1 + 2h, or 0 where they differ in sign. With
    total = m + w1 / w0 · rise / h and p = m / total it is p·(1 - p)·total·(w0 + w1) / w1. p is in [0, 1] exactly if
    the signs agree, so clamping p makes the decision.
    """
    total = m + far * rise
    p = _part(m, total, FAST)
    return (p - p * p) * total * gain


@triton.jit
def _end_slope(h, rise, m, reach, FAST: tl.constexpr):
    """Return the slope at an end: the three-point formula, clamped between 0 and 3m. `reach` is 0 with two frames.

    (pchip clamps to 3m only if the secants differ in sign; if they agree, the slope is below 2m.)
    """
    share = reach * divide(1, 1 + h, FAST)
    d = m + share * m - divide(share, h, FAST) * rise
    steep = 3 * m
    low = tl.minimum(steep, 0.0)
    high = tl.maximum(steep, 0.0)
    bounded = tl.maximum(d, low, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(bounded, high, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def cubic_inside(before, a, b, after, rise, far_p, gain_p, far_q, gain_q, FAST: tl.constexpr):
    """Interpolate by the monotone cubic from a to b. rise: the first of `blends`; the others: `inner` of the spans
    before and after, in units of the span from a to b, with the other two of `blends` as their share."""
    m = b - a
    left = _inner_slope(a - before, m, far_p, gain_p, FAST)
    right = _inner_slope(after - b, m, far_q, gain_q, FAST)
    return a + m * rise + left + right


@triton.jit
def cubic_end(before, a, b, after, w, has_before, has_after, h_before, h_after, FAST: tl.constexpr):
    """Return the part that `cubic_inside` lacks without a frame before or after (`inner` had share 0)."""
    _, left, right = blends(w)
    slope = _end_slope(
        tl.where(has_before, h_before, h_after)[:, None], tl.where(has_before[:, None], a - before, after - b), b - a,
        tl.where(has_before | has_after, 1.0, 0.0).to(w.dtype)[:, None], FAST,
    )  # fmt: skip
    return slope * (tl.where(has_before, 0.0, left) + tl.where(has_after, 0.0, right))[:, None]


@triton.jit
def cubic_anywhere(before, a, b, after, w, has_before, has_after, h_before, h_after, FAST: tl.constexpr):
    """As `cubic_inside`, with some of the frames before and after missing. Beyond an end the powers of w are large, so
    subtract their factors first."""
    m = b - a
    up = a - before
    on = after - b
    end = _end_slope(
        tl.where(has_before, h_before, h_after), tl.where(has_before, up, on), m,
        tl.where(has_before | has_after, 1.0, 0.0).to(w.dtype), FAST,
    )  # fmt: skip
    far_p, gain_p = inner(h_before, 1.0, FAST)
    far_q, gain_q = inner(h_after, 1.0, FAST)
    left = tl.where(has_before, _inner_slope(up, m, far_p, gain_p, FAST), end)
    right = tl.where(has_after, _inner_slope(on, m, far_q, gain_q, FAST), end)
    bend = left + right - 2 * m
    return a + w * (left + w * (m - left + bend * (w - 1)))


@triton.jit
def _arc_cosine(x, DOUBLE: tl.constexpr, FAST: tl.constexpr):
    """Compute acos on [0, 1]: Abramowitz and Stegun 4.4.46 (2e-8), then two steps of Newton for float64."""
    p = -0.0012624911 * x + 0.0066700901
    p = p * x - 0.0170881256
    p = p * x + 0.0308918810
    p = p * x - 0.0501743046
    p = p * x + 0.0889789874
    p = p * x - 0.2145988016
    p = p * x + 1.5707963050
    theta = tl.sqrt(1 - x) * p
    if FAST:
        theta = (1 - x) * _per_root(1 - x, FAST) * p
    if DOUBLE:
        theta += (tl.cos(theta) - x) / tl.sin(theta)
        theta += (tl.cos(theta) - x) / tl.sin(theta)
    return theta


@triton.jit
def _sine(x, DOUBLE: tl.constexpr, FAR: tl.constexpr):
    """Compute sin; within a quarter turn by its series, because the library's range reduction spills registers."""
    if DOUBLE or FAR:
        return tl.sin(x)
    y = x * x
    p = y * (1 / 6227020800) - (1 / 39916800)
    p = p * y + (1 / 362880)
    p = p * y - (1 / 5040)
    p = p * y + (1 / 120)
    p = p * y - (1 / 6)
    return x + x * y * p


@triton.jit
def slerp(a, b, w, DOUBLE: tl.constexpr, FAR: tl.constexpr, FAST: tl.constexpr):
    """Interpolate on the shorter arc; a, b [targets, quaternions, 4], w [targets, 1]. (0, 0, 0, 0) gives NaN.

    Frames are not normalised separately: their lengths go into the two weights.
    """
    per_a = _per_root(tl.sum(a * a, 2), FAST)
    per_b = _per_root(tl.sum(b * b, 2), FAST)
    dot = tl.sum(a * b, 2) * per_a * per_b
    side = tl.where(dot < 0, -per_b, per_b)
    dot = tl.abs(dot)
    if FAR:
        # Beyond the ends the angle is multiplied, and a cosine near 1 is inexact: use the chord.
        chord = a * per_a[:, :, None] - b * side[:, :, None]
        half = tl.sqrt(tl.sum(chord * chord, 2)) * 0.5
        is_close = half < 1e-6
        theta = _arc_cosine(tl.minimum(tl.where(is_close, 0.5, dot), 1.0), DOUBLE, False)
        theta += 2 * (tl.where(is_close, 0.5, half) - tl.sin(theta * 0.5)) / tl.cos(theta * 0.5)
    else:
        is_close = dot > (NEARLY_ONE_64 if DOUBLE else NEARLY_ONE)
        theta = _arc_cosine(tl.where(is_close, 0.5, dot), DOUBLE, FAST)
    # Both weights have the same sine as divisor, and the sum is normalised: only its length matters, which is
    # √(left² + right² + 2·left·right·cos).
    left = tl.where(is_close, 1 - w, _sine((1 - w) * theta, DOUBLE, FAR))
    right = tl.where(is_close, w, _sine(w * theta, DOUBLE, FAR))
    per_mixed = _per_root(left * left + right * right + 2 * left * right * dot, FAST)
    at_a = w == 0
    left = tl.where(at_a, per_a, left * per_mixed * per_a)
    right = right * per_mixed * side
    mixed = a * left[:, :, None]
    return tl.where(at_a[:, :, None], mixed, mixed + b * right[:, :, None])
