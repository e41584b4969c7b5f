"""Reports made from records: one HTML page, Markdown, JSON; and a page of history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.report.figures import STAGE_NAMES as STAGE_NAMES
    from ridgeline.lab.report.figures import draw_timeline as draw_timeline
    from ridgeline.lab.report.history import describe_commit_steps as describe_commit_steps
    from ridgeline.lab.report.history import describe_series as describe_series
    from ridgeline.lab.report.history import write_commit_history as write_commit_history
    from ridgeline.lab.report.history import write_history as write_history
    from ridgeline.lab.report.report import build_report as build_report
    from ridgeline.lab.report.report import write_report as write_report

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "figures": ["STAGE_NAMES", "draw_timeline"],
        "history": ["describe_commit_steps", "describe_series", "write_commit_history", "write_history"],
        "report": ["build_report", "write_report"],
    },
)
