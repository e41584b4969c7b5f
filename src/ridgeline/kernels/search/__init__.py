"""Search kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.kernels.search.queries import handed as handed
    from ridgeline.kernels.search.sketch import sketch_of as sketch_of

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "queries": ["handed"],
        "sketch": ["sketch_of"],
    },
)
