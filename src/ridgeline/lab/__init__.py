"""Any workload, raced fairly against its peers, recorded raw, judged, shown.

    ridgeline bench copy matmul

The lab knows the contract (`Workload`, `Run`) and no engine: files in `workloads/` introduce engines to it.
"""

from __future__ import annotations

from ridgeline.lab.workload import Case, Check, Profile, Run, Steps, Work, Workload

__all__ = ["Case", "Check", "Profile", "Run", "Steps", "Work", "Workload"]
