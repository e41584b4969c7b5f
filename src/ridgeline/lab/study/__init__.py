"""From rows of results to answers: where a model should live, what limits it, what it will cost elsewhere.

    ridgeline run experiment=numa_study     (writes results.json, and this over it)

`study(rows)` knows columns, not models; `Columns` says which column is what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.study.section import Grid as Grid
    from ridgeline.lab.study.section import Section as Section
    from ridgeline.lab.study.table import Columns as Columns
    from ridgeline.lab.study.whole import Study as Study
    from ridgeline.lab.study.whole import study as study

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "section": ["Grid", "Section"],
        "table": ["Columns"],
        "whole": ["Study", "study"],
    },
)
