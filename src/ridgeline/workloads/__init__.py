"""One file per workload: how the lab runs it, its reference, its peers.

A file here that has a line `workload = …` is found by its name: `ridgeline bench NAME`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.workloads._registry import names as names
    from ridgeline.workloads._registry import reference as reference
    from ridgeline.workloads.charts import pictures as pictures

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "_registry": ["names", "reference"],
        "charts": ["pictures"],
    },
)
