"""Are published numbers true? A report held against itself, and our own numbers held against their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.claims.check import CheckResult as CheckResult
    from ridgeline.claims.check import check_file as check_file
    from ridgeline.claims.check import check_text as check_text
    from ridgeline.claims.finding import Finding as Finding
    from ridgeline.claims.formats import explain_finding as explain_finding
    from ridgeline.claims.formats import format_github as format_github
    from ridgeline.claims.formats import write_sarif as write_sarif

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "check": ["CheckResult", "check_file", "check_text"],
        "finding": ["Finding"],
        "formats": ["explain_finding", "format_github", "write_sarif"],
    },
)
