"""Peers that resample a batch, each written for speed as its users would write it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.lab import installed

Engine = Callable[[Any, Any, Any], Any]

# Settings of each peer, for the record.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "np.interp": {"how": "one call per trajectory and channel"},
    "numpy": {"how": "one searchsorted for all trajectories, fancy indexing"},
    "torch": {"how": "searchsorted, gather of rows, lerp; eager"},
    "torch.compile": {"how": "the same, compiled", "mode": "default", "dynamic": False},
    "F.interpolate": {
        "how": "mode linear",
        "align_corners": True,
        "stamps": "not looked at: right for uniform ones only",
    },
    "scipy": {"how": "PchipInterpolator, Slerp; one trajectory at a time"},
}


def engine(name: str, kind: str) -> Engine:
    makers: dict[str, Callable[[], Engine]] = {
        "np.interp": lambda: by_interp,
        "numpy": lambda: by_numpy(kind),
        "torch": lambda: by_torch(kind),
        "torch.compile": lambda: by_compiled_torch(kind),
        "F.interpolate": lambda: by_interpolate,
        "scipy": lambda: by_scipy(kind),
    }
    return makers[name]()


def can_compile(device: str) -> bool:
    """Whether torch.compile can run: it needs Triton for a GPU, a C++ compiler for the CPU."""
    if not installed("torch"):
        return False
    return installed("triton") if device != "cpu" else shutil.which(os.environ.get("CXX", "g++")) is not None


def by_interp(values: Any, times: Any, at: Any) -> Any:
    """np.interp, one trajectory and channel at a time."""
    import numpy as np

    out = np.empty((*at.shape, values.shape[2]), values.dtype)
    for b in range(len(values)):
        for d in range(values.shape[2]):
            out[b, :, d] = np.interp(at[b], times[b], values[b, :, d])
    return out


def by_numpy(kind: str) -> Engine:
    """One searchsorted over all trajectories, monotone through an offset per row, then fancy indexing."""
    import numpy as np

    def run(values: Any, times: Any, at: Any) -> Any:
        batch, stamps = values.shape[:2]
        low, high = times.min(), times.max()
        lift = (np.arange(batch) * (high - low + 1))[:, None]
        flat = np.searchsorted((times - low + lift).ravel(), (at - low + lift).ravel(), side="right")
        i = np.clip(flat.reshape(at.shape) - 1 - (np.arange(batch) * stamps)[:, None], 0, stamps - 1)
        rows = np.arange(batch)[:, None]
        if kind == "previous":
            return values[rows, i]
        i = np.minimum(i, stamps - 2)
        left, right = times[rows, i], times[rows, i + 1]
        w = np.clip((at - left) / (right - left), 0, 1).astype(values.dtype)[..., None]
        a = values[rows, i]
        return a + (values[rows, i + 1] - a) * w

    return run


def by_torch(kind: str) -> Engine:
    """searchsorted, then a gather of complete rows: one index per row, where `gather` needs one per number."""
    import torch

    def linear(values: Any, times: Any, at: Any) -> Any:
        v, t, a = (torch.as_tensor(x) for x in (values, times, at))
        i = torch.searchsorted(t, a, right=True).clamp(1, t.shape[1] - 1)
        left, right = t.gather(1, i - 1), t.gather(1, i)
        w = ((a - left) / (right - left)).clamp(0, 1).unsqueeze(-1).to(v.dtype)
        rows = torch.arange(v.shape[0], device=v.device).unsqueeze(1)
        return torch.lerp(v[rows, i - 1], v[rows, i], w)

    def previous(values: Any, times: Any, at: Any) -> Any:
        v, t, a = (torch.as_tensor(x) for x in (values, times, at))
        i = (torch.searchsorted(t, a, right=True) - 1).clamp(min=0)
        return v[torch.arange(v.shape[0], device=v.device).unsqueeze(1), i]

    return {"linear": linear, "previous": previous}[kind]


def by_compiled_torch(kind: str) -> Engine:
    """`by_torch` as one compiled graph; torch caches the compiled code on disk.

    Each case resets the compiler: after a few shapes torch would silently run the code uncompiled.
    """
    import torch

    torch.compiler.reset()
    run: Engine = torch.compile(by_torch(kind), dynamic=False)

    def step(values: Any, times: Any, at: Any) -> Any:
        return run(*(torch.as_tensor(x) for x in (values, times, at)))

    return step


def by_interpolate(values: Any, times: Any, at: Any) -> Any:
    """F.interpolate: it ignores the stamps and takes equal steps from the first to the last."""
    import torch
    from torch.nn.functional import interpolate

    v = torch.as_tensor(values).transpose(1, 2)
    return interpolate(v, size=at.shape[1], mode="linear", align_corners=True).transpose(1, 2).contiguous()


def by_scipy(kind: str) -> Engine:
    import numpy as np

    def run(values: Any, times: Any, at: Any) -> Any:
        rows = (scipy_one(kind, *row) for row in zip(values, times, at, strict=True))
        return np.stack(list(rows)).astype(values.dtype)

    return run


def scipy_one(kind: str, values: Any, times: Any, at: Any) -> Any:
    import numpy as np
    from scipy.interpolate import PchipInterpolator
    from scipy.spatial.transform import Rotation, Slerp

    start = times[0]
    clock, targets = times - start, np.clip(at - start, 0, times[-1] - start)
    if kind == "cubic":
        return PchipInterpolator(clock, values)(targets)
    parts = []
    for d in range(0, values.shape[1], 4):
        rotation = Rotation.from_quat(values[:, d : d + 4])
        rotations = Slerp(clock, rotation)(targets).as_quat()
        # A rotation has two quaternions: take the sign of the stamp before, as ridgeline does.
        before = values[np.clip(np.searchsorted(clock, targets, side="right") - 1, 0, None), d : d + 4]
        parts.append(rotations * np.where((rotations * before).sum(1, keepdims=True) < 0, -1, 1))
    return np.concatenate(parts, 1)
