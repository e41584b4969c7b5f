"""How near two vectors are, and how far float32 can be wrong about it.

Every metric is scanned as one: score = q·x + bias, high is near, with bias −‖x‖²/2 for l2 and 0 otherwise (a squared
distance is ‖q‖² − 2·score). Scores found that way in float32, in any order of summation, differ from the true ones by
at most γ·(Σ|qᵢxᵢ| + |bias|) with γ = n·u/(1 − n·u), n = dimension + a few, u = 2⁻²⁴, plus what underflow takes away.
Rows whose float32 score lies within twice that of the k-th best hold every row of the exact top k (native/sieve.hpp),
and those few are scored again in float64.
"""

from __future__ import annotations

import numpy as np

from ridgeline.errors import unknown
from ridgeline.search.arrays import Floats, Wide

METRICS = ("cosine", "ip", "l2")
ROUNDING = 2.0**-24
UNDERFLOW = 2.0**-126
MORE_TERMS = 8  # sums and products besides those of the inner product: bias, offset, decoding
TOO_LARGE = 1e30  # above, a float32 sum may overflow


def checked_metric(metric: str) -> str:
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    return metric


def norms(vectors: Floats) -> Wide:
    """‖x‖ in float64, [n]; not finite where a component is not."""
    out = np.empty(len(vectors))
    for at in range(0, len(vectors), 8192):  # a float64 copy of everything would be twice the vectors
        part = vectors[at : at + 8192].astype(np.float64)
        out[at : at + 8192] = np.sqrt(np.einsum("ij,ij->i", part, part))
    return out


def unit(vectors: Floats, lengths: Wide) -> Floats:
    """At length 1; a zero vector stays one, and is as near to everything: 0."""
    out = np.empty_like(vectors)
    divisor = np.where(lengths > 0, lengths, 1.0)[:, None]
    for at in range(0, len(vectors), 8192):
        np.divide(vectors[at : at + 8192], divisor[at : at + 8192], out=out[at : at + 8192], casting="same_kind")
    return out


def slack(dim: int, reach: Wide) -> Wide:
    """Twice the largest error of a float32 score; `reach` [queries] bounds Σ|qᵢxᵢ| + |bias| over all rows.

    Infinite where float32 cannot be trusted at all: those queries are scored in float64 throughout.
    """
    share = (dim + MORE_TERMS) * ROUNDING
    error = share / (1 - share) * reach + (dim + MORE_TERMS) * UNDERFLOW
    return np.where(reach < TOO_LARGE, 2 * error, np.inf)
