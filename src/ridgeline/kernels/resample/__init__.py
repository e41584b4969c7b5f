"""The Triton kernel that resamples trajectories on a GPU: `run` launches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.kernels.resample.resample import launches as launches
    from ridgeline.kernels.resample.resample import run as run

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "resample": ["launches", "run"],
    },
)
