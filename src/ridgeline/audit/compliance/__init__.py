"""Reports on a span of a log that anyone can check without the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.compliance.check import check_report as check_report
    from ridgeline.audit.compliance.check import read_report as read_report
    from ridgeline.audit.compliance.controls import check_map as check_map
    from ridgeline.audit.compliance.report import collect as collect
    from ridgeline.audit.compliance.report import derive_tables as derive_tables
    from ridgeline.audit.compliance.report import write as write

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "check": ["check_report", "read_report"],
        "controls": ["check_map"],
        "report": ["collect", "derive_tables", "write"],
    },
)
