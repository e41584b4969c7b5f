"""resample on the CPU for slerp, angle and cubic, in turn in one process with the same in torch eager (searchsorted,
gather and the formula) and, for cubic, with scipy's PchipInterpolator, a trajectory at a time.

    python benchmarks/trajectory_kinds.py [ROUNDS]

Medians over the rounds; the peer's answer is compared with ours in the first of them.
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator
from trajectory_cpu import time_call

import ridgeline

BATCH, STAMPS, TARGETS = 256, 100, 50
Call = Callable[[], Any]


def main(rounds: int) -> None:
    rng = np.random.default_rng(0)
    times = 1.7e9 + np.cumsum(rng.uniform(0.001, 0.02, (BATCH, STAMPS)), 1)
    at = times[:, :1] + (times[:, -1:] - times[:, :1]) * np.linspace(0, 1, TARGETS)
    print(f"{BATCH} x ({STAMPS} -> {TARGETS}), float64 stamps, {torch.get_num_threads()} threads of torch")
    for kind in ("slerp", "angle", "cubic"):
        for dtype in (np.float32, np.float64):
            for width in (8, 32):
                values = rng.standard_normal((BATCH, STAMPS, width)).astype(dtype)
                ours = functools.partial(ridgeline.resample, values, times, at, kind=kind)
                run_peer = peer(kind, values, times, at)
                off = largest_difference(kind, np.asarray(run_peer()), ours())
                if off > 1e-5:
                    raise SystemExit(f"{kind} x {width}: answers differ by {off:.1g}")
                rows = [(time_call(run_peer), time_call(ours), time_call(ours)) for _ in range(rounds)]
                other, after, again = (1e6 * statistics.median(column) for column in zip(*rows, strict=True))
                name = f"{kind} {np.dtype(dtype).name} x {width}"
                print(
                    f"{name:20s} {after:7.0f} us after the peer {again:7.0f} us again, "
                    f"{'scipy' if kind == 'cubic' else 'torch'} {other:8.0f} us, {other / after:6.1f} x",
                    flush=True,
                )


def largest_difference(kind: str, one: np.ndarray, other: np.ndarray) -> float:
    """How far answers are apart, but for the one in ten thousand where either way is the short one."""
    off = np.abs(one - other)
    if kind == "angle":  # π and -π are one
        off = np.minimum(off, np.abs(2 * np.pi - off))
    if kind == "slerp":  # and so are q and -q
        one, other = (x.reshape(-1, 4) for x in (one, other))
        off = np.minimum(np.abs(one - other).max(1), np.abs(one + other).max(1))
    return float(np.quantile(off, 0.9999))


def peer(kind: str, values: np.ndarray, times: np.ndarray, at: np.ndarray) -> Call:
    if kind == "cubic":
        return lambda: np.stack([PchipInterpolator(*one)(t) for *one, t in zip(times, values, at, strict=True)])
    return functools.partial(by_torch, kind, *(torch.from_numpy(a) for a in (values, times, at)))


def by_torch(kind: str, values: Any, times: Any, at: Any) -> Any:
    i = torch.searchsorted(times, at, right=True).clamp(1, times.shape[1] - 1)
    before, after = times.gather(1, i - 1), times.gather(1, i)
    w = ((at - before) / (after - before)).clamp(0, 1).unsqueeze(-1).to(values.dtype)
    j = i.unsqueeze(-1).expand(-1, -1, values.shape[2])
    a, b = values.gather(1, j - 1), values.gather(1, j)
    if kind == "angle":
        return wrap_angle(a + wrap_angle(b - a) * w)
    p, q = (torch.nn.functional.normalize(x.unflatten(-1, (-1, 4)), dim=-1) for x in (a, b))
    w = w.unsqueeze(-1)
    dot = (p * q).sum(-1, keepdim=True)
    q = torch.where(dot < 0, -q, q)
    theta = torch.acos(dot.abs().clamp(max=1 - 1e-7))
    mixed = (torch.sin((1 - w) * theta) * p + torch.sin(w * theta) * q) / torch.sin(theta)
    return torch.nn.functional.normalize(mixed, dim=-1).flatten(-2)


def wrap_angle(x: Any) -> Any:
    return x - 2 * math.pi * torch.round(x / (2 * math.pi))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 31)
