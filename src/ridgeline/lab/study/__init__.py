"""From rows of results to answers: where a model should live, what limits it, what it will cost elsewhere.

    ridgeline run experiment=numa_study     (writes results.json, and this over it)

`study(rows)` knows columns, not models; `Columns` says which column is what.
"""

from __future__ import annotations

from ridgeline.lab.study.section import Grid, Section
from ridgeline.lab.study.table import Columns
from ridgeline.lab.study.whole import Study, study

__all__ = ["Columns", "Grid", "Section", "Study", "study"]
