"""Any workload, raced fairly against its peers, recorded raw, judged, shown.

    ridgeline bench copy matmul

The lab knows the contract (`Workload`, `Run`) and no engine: files in `workloads/` introduce engines to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline.lab.workload import Case, Check, Profile, Run, Steps, Work, Workload

if TYPE_CHECKING:
    from ridgeline.lab.experiment.table import load_experiments

__all__ = ["Case", "Check", "Profile", "Run", "Steps", "Work", "Workload", "load_experiments"]


def __getattr__(name: str) -> Any:
    if name == "load_experiments":  # pulls in the runner, which a contender's process has no use for
        from ridgeline.lab.experiment.table import load_experiments

        return load_experiments
    raise AttributeError(f"module 'ridgeline.lab' has no attribute {name!r}")
