"""Metrics, and a bound on the error of their float32 scores.

Every metric is scanned as one: score = q·x + bias, high is near, with bias −‖x‖²/2 for l2 and 0 otherwise (a squared
distance is ‖q‖² − 2·score). A float32 score, in any order of summation, differs from the true one by at most
γ·(Σ|qᵢxᵢ| + |bias|) with γ = n·u/(1 − n·u), n = dimension + a few, u = 2⁻²⁴, plus the underflow. Rows whose float32
score is within twice that of the k-th best include every row of the exact top k, and those few are scored again in
float64.
"""

from __future__ import annotations

import numpy as np

from ridgeline.errors import unknown
from ridgeline.search.arrays import Doubles, Floats

METRICS = ("cosine", "ip", "l2")
ROUNDING = 2.0**-24
UNDERFLOW = 2.0**-126
MORE_TERMS = 8  # operations beside the inner product: bias, offset, decoding
TOO_LARGE = 1e30  # above, a float32 sum may overflow


def check_metric(metric: str) -> str:
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    return metric


def compute_norms(vectors: Floats) -> Doubles:
    """‖x‖ in float64, [n]; not finite if a component is not finite."""
    out = np.empty(len(vectors))
    for at in range(0, len(vectors), 8192):  # in parts: a float64 copy of all vectors is twice their size
        part = vectors[at : at + 8192].astype(np.float64)
        out[at : at + 8192] = np.sqrt(np.einsum("ij,ij->i", part, part))
    return out


def normalize(vectors: Floats, lengths: Doubles) -> Floats:
    """Scale vectors to length 1; a zero vector stays zero and scores 0 with everything."""
    out = np.empty_like(vectors)
    divisor = np.where(lengths > 0, lengths, 1.0)[:, None]
    for at in range(0, len(vectors), 8192):
        np.divide(vectors[at : at + 8192], divisor[at : at + 8192], out=out[at : at + 8192], casting="same_kind")
    return out


def compute_slack(dim: int, bound: Doubles) -> Doubles:
    """Return twice the largest error of a float32 score; `bound` [queries] bounds Σ|qᵢxᵢ| + |bias| over all rows.

    Infinite if a float32 sum can overflow: those queries are scored in float64.
    """
    share = (dim + MORE_TERMS) * ROUNDING
    error = share / (1 - share) * bound + (dim + MORE_TERMS) * UNDERFLOW
    return np.where(bound < TOO_LARGE, 2 * error, np.inf)
