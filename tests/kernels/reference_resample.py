"""A slow reference of the resampler: one target and one channel at a time, in float64 NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Channels = Sequence[tuple[int, int, str]]


def resample(
    values: Array,
    times: Array,
    at: Array,
    channels: Channels,
    *,
    lengths: Sequence[int] | None = None,
    at_lengths: Sequence[int] | None = None,
    outside: str = "clamp",
    max_gap: float | None = None,
    scale: Array | None = None,
    shift: Array | None = None,
) -> tuple[Array, Array]:
    """values [B, S, D] (or a list of [S, D]), times [B, S], at [B, T] → out [B, T, D] float64 and mask [B, T]."""
    batch, targets = at.shape
    depth = channels[-1][1] if channels else 0
    out = np.full((batch, targets, depth), np.nan)
    mask = np.zeros((batch, targets), bool)
    for b in range(batch):
        n = len(times[b]) if lengths is None else lengths[b]
        # Of equal stamps the last one counts: the others are simply left out.
        last_of_equal = [i for i in range(n) if i == n - 1 or times[b][i] != times[b][i + 1]]
        t, y = times[b][last_of_equal], np.asarray(values[b], np.float64)[last_of_equal]
        for k in range(targets if at_lengths is None else min(targets, at_lengths[b])):
            row = target(t, y, at[b, k], channels, outside, max_gap)
            if row is not None:
                mask[b, k] = True
                out[b, k] = row
    if scale is not None:
        out = out * scale
    if shift is not None:
        out = out + shift
    return out, mask


def target(t: Array, y: Array, x: Any, channels: Channels, outside: str, max_gap: float | None) -> Array | None:
    """One row at x from distinct stamps t [n] and frames y [n, D]; None if there is none."""
    n = len(t)
    if n == 0 or x != x:
        return None
    before, after = x < t[0], x > t[-1]
    if (before or after) and outside == "nan":
        return None
    i = int(np.searchsorted(t, x, side="right")) - 1
    clamped = i < 0 or i == n - 1
    if (before or after) and outside == "extrapolate" and n > 1:
        i, clamped = (0 if before else n - 2), False
    i = max(i, 0)
    j = i if clamped else i + 1
    span = t[j] - t[i]
    if max_gap is not None and not clamped and not before and not after and x != t[i] and span > max_gap:
        return None
    w = 0.0 if clamped else float(np.float64(x - t[i]) / np.float64(span))
    row = np.empty(y.shape[1])
    for start, stop, kind in channels:
        if kind == "slerp":
            for d in range(start, stop, 4):
                row[d : d + 4] = slerp(y[i, d : d + 4], y[j, d : d + 4], w)
            continue
        for d in range(start, stop):
            row[d] = channel(kind, t, y[:, d], i, j, w)
    return row


def channel(kind: str, t: Array, y: Array, i: int, j: int, w: float) -> float:
    a, b = y[i], y[j]
    if kind == "previous":
        return b if w >= 1 else a
    if kind == "nearest":
        return b if w > 0.5 else a
    if kind == "angle":
        return wrap(a) if w == 0 else wrap(a + w * wrap(b - a))
    if w == 0:
        return a
    if kind == "linear":
        return a + (b - a) * w
    return cubic(t, y, i, w)


def wrap(x: float) -> float:
    return math.remainder(x, 2 * math.pi) if math.isfinite(x) else math.nan


def slerp(a: Array, b: Array, w: float) -> Array:
    with np.errstate(all="ignore"):
        a = a / np.sqrt(np.sum(a * a))
        if w == 0:
            return a
        b = b / np.sqrt(np.sum(b * b))
        dot = float(np.sum(a * b))
        if dot < 0:
            b, dot = -b, -dot
        if dot > 1 - 1e-8:
            q = a * (1 - w) + b * w
        else:
            theta = np.arccos(dot)
            q = (a * np.sin((1 - w) * theta) + b * np.sin(w * theta)) / np.sin(theta)
        return q / np.sqrt(np.sum(q * q))


def cubic(t: Array, y: Array, i: int, w: float) -> float:
    """Monotone pchip as in scipy's PchipInterpolator, on the interval after stamp i."""
    h = np.array([np.float64(t[k + 1] - t[k]) for k in range(len(t) - 1)])
    with np.errstate(all="ignore"):
        m = np.diff(y) / h
    left, right = slope(h, m, i), slope(h, m, i + 1)
    a, b, v = y[i], y[i + 1], 1 - w
    return a * v * v * (1 + 2 * w) + b * w * w * (3 - 2 * w) + h[i] * w * v * (left * v - right * w)


def slope(h: Array, m: Array, k: int) -> float:
    """The derivative at stamp k."""
    if len(m) == 1:
        return m[0]
    if k == 0:
        return edge(h[0], h[1], m[0], m[1])
    if k == len(m):
        return edge(h[-1], h[-2], m[-1], m[-2])
    m0, m1 = m[k - 1], m[k]
    if np.isnan(m0) or np.isnan(m1):
        return np.nan
    if np.sign(m0) != np.sign(m1) or m0 == 0:
        return 0.0
    w0, w1 = 2 * h[k] + h[k - 1], h[k] + 2 * h[k - 1]
    return (w0 + w1) / (w0 / m0 + w1 / m1)


def edge(h0: float, h1: float, m0: float, m1: float) -> float:
    d = ((2 * h0 + h1) * m0 - h0 * m1) / (h0 + h1)
    if np.isnan(d):
        return np.nan
    if np.sign(d) != np.sign(m0):
        return 0.0
    if np.sign(m0) != np.sign(m1) and abs(d) > 3 * abs(m0):
        return 3 * m0
    return d
