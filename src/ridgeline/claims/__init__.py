"""Are published numbers true? A report held against itself, and our own numbers held against their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.claims.check import CheckResult as CheckResult
    from ridgeline.claims.check import check_file as check_file
    from ridgeline.claims.check import check_text as check_text
    from ridgeline.claims.finding import Finding as Finding

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "check": ["CheckResult", "check_file", "check_text"],
        "finding": ["Finding"],
    },
)
