"""The activations of encoders, inside kernels."""

from __future__ import annotations

import triton
import triton.language as tl

ACTIVATIONS = ("gelu", "gelu_16", "gelu_tanh", "relu", "silu")
ROOT_HALF = tl.constexpr(0.7071067811865476)
ROOT_2_OVER_PI = tl.constexpr(0.7978845608028654)


@triton.jit
def _normal_cdf(x):
    """The cumulative normal distribution at x: an odd polynomial in x up to 4.2, 0 or 1 beyond.

    x times the error is below 6e-5 (the tanh formula: 5e-4), less than 16 bits can show. Fitted to the least maximum of
    x · error; at 4.2 the cut-off part is 5.6e-5. NaN stays NaN.
    """
    s = x * x
    p = 4.9238162414779974e-11
    p = p * s - 4.795659948304342e-09
    p = p * s + 2.072475686093252e-07
    p = p * s - 5.28956346288296e-06
    p = p * s + 8.98359335624548e-05
    p = p * s - 0.001086458959693502
    p = p * s + 0.009740940012027797
    p = p * s - 0.06622207647378231
    p = p * s + 0.39883457819177476
    cdf = tl.where(x > 4.2, 1.0, 0.5 + x * p)
    return tl.where(x < -4.2, 0.0, cdf)


@triton.jit
def _apply_activation(y, KIND: tl.constexpr):
    """none, gelu (by erf), gelu_16 (the same, for results of 16 bits), gelu_tanh, relu, silu."""
    if KIND == "none":
        pass
    elif KIND == "relu":
        y = tl.maximum(y, 0.0)
    elif KIND == "silu":
        y = y / (1 + tl.exp(-y))
    elif KIND == "gelu":
        y = 0.5 * y * (1 + tl.erf(y * ROOT_HALF))
    elif KIND == "gelu_16":
        y = y * _normal_cdf(y)
    else:
        inner = ROOT_2_OVER_PI * (y + 0.044715 * y * y * y)
        y = y / (1 + tl.exp(-2 * inner))  # y·(1 + tanh) / 2
    return y
