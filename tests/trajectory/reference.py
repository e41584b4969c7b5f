"""A slow reference of resample: float64, one target at a time, from the definition."""

from __future__ import annotations

import math

import numpy as np


def resample_one(values, times, at, kind="linear", outside="clamp", max_gap=None):
    """values [S, D] float64, times [S], at [T] → ([T, D], mask [T])."""
    values = np.asarray(values, np.float64)
    width = values.shape[1]
    # Of equal stamps the last wins.
    keep = [i for i in range(len(times)) if i + 1 == len(times) or times[i + 1] != times[i]]
    clock, rows = [times[i] for i in keep], values[keep]
    out, mask = np.full((len(at), width), math.nan), np.zeros(len(at), bool)
    for k, t in enumerate(at):
        if not clock or t != t:
            continue
        if t < clock[0] or t > clock[-1]:
            if outside == "nan":
                continue
            end = 0 if t < clock[0] else len(clock) - 1
            mask[k] = True
            if outside == "clamp" or len(clock) == 1 or kind in ("previous", "nearest"):
                out[k] = exact(rows[end], kind)
                continue
            i = 0 if t < clock[0] else len(clock) - 2
        else:
            i = max(n for n, stamp in enumerate(clock) if stamp <= t)
            mask[k] = True
            if clock[i] == t:
                out[k] = exact(rows[i], kind)
                continue
            if max_gap is not None and clock[i + 1] - clock[i] > max_gap:
                mask[k] = False
                continue
        w = float(t - clock[i]) / float(clock[i + 1] - clock[i])
        out[k] = between(kind, rows, clock, i, w)
    return out, mask


def exact(row, kind):
    if kind == "angle":
        return np.array([math.remainder(x, math.tau) for x in row])
    if kind == "slerp":
        with np.errstate(invalid="ignore"):
            return (row.reshape(-1, 4) / np.linalg.norm(row.reshape(-1, 4), axis=1, keepdims=True)).reshape(-1)
    return row


def between(kind, rows, clock, i, w):
    a, b = rows[i], rows[i + 1]
    if kind == "previous":
        return a
    if kind == "nearest":
        return b if w > 0.5 else a
    if kind == "angle":
        return np.array(
            [math.remainder(p + w * math.remainder(q - p, math.tau), math.tau) for p, q in zip(a, b, strict=True)]
        )
    if kind == "slerp":
        return np.concatenate([slerp(p, q, w) for p, q in zip(a.reshape(-1, 4), b.reshape(-1, 4), strict=True)])
    if kind == "cubic":
        from scipy.interpolate import PchipInterpolator

        curve = PchipInterpolator(np.array([float(c - clock[0]) for c in clock]), rows, extrapolate=True)
        return curve(float(clock[i] - clock[0]) + w * float(clock[i + 1] - clock[i]))
    return a + (b - a) * w


def slerp(p, q, w):
    p, q = p / np.linalg.norm(p), q / np.linalg.norm(q)
    if p @ q < 0:
        q = -q
    theta = 2 * math.atan2(np.linalg.norm(p - q), np.linalg.norm(p + q))  # exact for small angles, too
    if theta == 0:
        return p
    mixed = (math.sin((1 - w) * theta) * p + math.sin(w * theta) * q) / math.sin(theta)
    return mixed / np.linalg.norm(mixed)
