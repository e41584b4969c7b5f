"""How one kind of channel goes from frame a to frame b: the arithmetic of the resampler, on registers.

Everything is in the compute type (float32; float64 for float64 values); `w` is the weight of b, 0 at a.

    TRITON_INTERPRET=1 python -m pytest tests/kernels/test_resample.py
"""

from __future__ import annotations

import triton
import triton.language as tl

PI = tl.constexpr(3.141592653589793)
TURN = tl.constexpr(6.283185307179586)
TURN_HIGH = tl.constexpr(6.28125)  # few bits, so that turns * TURN_HIGH is exact in float32
TURN_LOW = tl.constexpr(0.0019353071795864769)
NEARLY_ONE = tl.constexpr(0.9995)  # above it the sine formula divides by a small sine


@triton.jit
def linear(a, b, w):
    return a + (b - a) * w


@triton.jit
def wrapped(x):
    """x less whole turns, in [-π, π]; half a turn keeps its sign."""
    size = tl.abs(x)
    turns = tl.ceil(size * (1 / TURN) - 0.5)
    rest = (size - turns * TURN_HIGH) - turns * TURN_LOW
    rest = tl.where(rest > PI, PI, tl.where(rest < -PI, -PI, rest))  # comparisons let NaN through
    rest = tl.where(turns > 0, rest, size)
    return tl.where(x < 0, -rest, rest)


@triton.jit
def angle(a, b, w):
    return tl.where(w == 0, wrapped(a), wrapped(a + wrapped(b - a) * w))


@triton.jit
def _inner_slope(h0, h1, m0, m1):
    """Monotone pchip between spans h0, h1 with secants m0, m1 (Fritsch and Butland 1984)."""
    w0 = 2 * h1 + h0
    w1 = h1 + 2 * h0
    same = ((m0 > 0) & (m1 > 0)) | ((m0 < 0) & (m1 < 0))
    # One secant is divided before the other is multiplied: their product could leave float32's range.
    mean = (w0 + w1) * m0 * (m1 / tl.where(same, w0 * m1 + w1 * m0, 1.0))
    return tl.where(same, mean, tl.where((m0 != m0) | (m1 != m1), m0 + m1, 0.0))


@triton.jit
def _end_slope(h0, h1, m0, m1):
    """At an end: the three-point formula, kept from overshooting."""
    d = ((2 * h0 + h1) * m0 - h0 * m1) / (h0 + h1)
    turned = ((d > 0) != (m0 > 0)) | ((d < 0) != (m0 < 0))
    bent = ((m0 > 0) != (m1 > 0)) | ((m0 < 0) != (m1 < 0))
    limited = tl.where(bent & (tl.abs(d) > 3 * tl.abs(m0)), 3 * m0, d)
    return tl.where(turned & (d == d), 0.0, limited)


@triton.jit
def cubic(before, a, b, after, w, has_before, has_after, h_before, h_after):
    """Monotone cubic from a to b; spans are in units of the span from a to b, so the middle one is 1."""
    m = b - a
    m0 = (a - before) / h_before
    m1 = (after - b) / h_after
    left = tl.where(
        has_before, _inner_slope(h_before, 1.0, m0, m), tl.where(has_after, _end_slope(1.0, h_after, m, m1), m)
    )
    right = tl.where(
        has_after, _inner_slope(1.0, h_after, m, m1), tl.where(has_before, _end_slope(1.0, h_before, m, m0), m)
    )
    return a + w * (left + w * ((3 * m - 2 * left - right) + w * (left + right - 2 * m)))


@triton.jit
def _arc_cosine(x, DOUBLE: tl.constexpr):
    """acos on [0, 1]: Abramowitz and Stegun 4.4.46 (2e-8), then for float64 two steps of Newton."""
    p = -0.0012624911 * x + 0.0066700901
    p = p * x - 0.0170881256
    p = p * x + 0.0308918810
    p = p * x - 0.0501743046
    p = p * x + 0.0889789874
    p = p * x - 0.2145988016
    p = p * x + 1.5707963050
    theta = tl.sqrt(1 - x) * p
    if DOUBLE:
        theta += (tl.cos(theta) - x) / tl.sin(theta)
        theta += (tl.cos(theta) - x) / tl.sin(theta)
    return theta


@triton.jit
def _sine(x, DOUBLE: tl.constexpr, FAR: tl.constexpr):
    """sin; by its series within a quarter turn, where the library's range reduction would spill to memory."""
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
def slerp(a, b, w, DOUBLE: tl.constexpr, FAR: tl.constexpr):
    """The short way on the sphere; a, b [targets, quaternions, 4], w [targets, 1]. (0, 0, 0, 0) gives NaN."""
    a = a / tl.sqrt(tl.sum(a * a, 2))[:, :, None]
    b = b / tl.sqrt(tl.sum(b * b, 2))[:, :, None]
    dot = tl.sum(a * b, 2)
    side = tl.where(dot < 0, -1.0, 1.0).to(dot.dtype)
    dot = dot * side
    near = dot > NEARLY_ONE
    theta = _arc_cosine(tl.where(near, 0.5, dot), DOUBLE)
    sine = _sine(theta, DOUBLE, False)
    left = tl.where(near, 1 - w, _sine((1 - w) * theta, DOUBLE, FAR) / sine)
    right = tl.where(near, w, _sine(w * theta, DOUBLE, FAR) / sine) * side
    mixed = a * left[:, :, None] + b * right[:, :, None]
    mixed = mixed / tl.sqrt(tl.sum(mixed * mixed, 2))[:, :, None]
    return tl.where((w == 0)[:, :, None], a, mixed)
