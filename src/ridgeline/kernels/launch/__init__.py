"""Kernels launched directly, past Triton's dispatch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.kernels.launch.direct import Sequel as Sequel

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "direct": ["Sequel"],
    },
)
