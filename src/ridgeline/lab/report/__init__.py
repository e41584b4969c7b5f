"""Reports made from records: one HTML page, Markdown, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.report.history import sentences as sentences

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "history": ["sentences"],
    },
)
