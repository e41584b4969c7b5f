"""Analyse rows of results: where a model should run, what limits it, how it scales, what to run next.

    ridgeline run experiment=numa_study     (writes results.json and the study of it)

`study(rows)` knows columns, not models; `Columns` says which column has which meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.study.analysis import Study as Study
    from ridgeline.lab.study.analysis import study as study
    from ridgeline.lab.study.placement import describe_placement as describe_placement
    from ridgeline.lab.study.rows import build_row as build_row
    from ridgeline.lab.study.rows import build_rows as build_rows
    from ridgeline.lab.study.section import Grid as Grid
    from ridgeline.lab.study.section import Section as Section
    from ridgeline.lab.study.table import Columns as Columns
    from ridgeline.lab.study.table import tabulate as tabulate

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "analysis": ["Study", "study"],
        "placement": ["describe_placement"],
        "section": ["Grid", "Section"],
        "table": ["Columns", "tabulate"],
        "rows": ["build_row", "build_rows"],
    },
)
