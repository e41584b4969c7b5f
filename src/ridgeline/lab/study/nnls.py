"""Least squares with coefficients that cannot be negative: the active set of Lawson and Hanson, for a few columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def nnls(matrix: Array, target: Array) -> Array:
    """x ≥ 0 [k] that minimises |matrix @ x - target|; matrix [n, k], target [n].

    >>> nnls(np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.array([3.0, 2.0, 1.0]))
    array([2., 0.])
    """
    width = matrix.shape[1]
    scale = np.sqrt((matrix * matrix).sum(axis=0))
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    x, free = np.zeros(width), np.zeros(width, dtype=bool)
    slack = 1e-12 * float(np.abs(scaled.T @ target).max(initial=0.0))
    for _ in range(10 * width + 10):  # each round frees one column for good or holds some; a bound against rounding
        gradient = scaled.T @ (target - scaled @ x)
        gradient[free] = -np.inf
        if free.all() or gradient.max() <= slack:
            break
        free[int(gradient.argmax())] = True
        wanted = _solved(scaled, target, free)
        while (wanted[free] <= 0).any():
            # Walk from where we are towards what is wanted, until the first coefficient reaches zero.
            falling = free & (wanted <= 0)
            steps = x[falling] / np.maximum(x[falling] - wanted[falling], 1e-300)
            x = x + float(steps.min()) * (wanted - x)
            free &= x > 1e-14 * float(x.max(initial=0.0))
            x[~free] = 0.0
            wanted = _solved(scaled, target, free)
        x = wanted
    return np.asarray(x / scale, dtype=np.float64)


def _solved(matrix: Array, target: Array, free: NDArray[np.bool_]) -> Array:
    out = np.zeros(matrix.shape[1])
    if free.any():
        out[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
    return out
