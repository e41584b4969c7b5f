"""Race any workload against its peers, record the raw samples, judge them, and report.

    ridgeline bench copy matmul

The lab knows the contract (`Workload`, `Run`) and no engine; each file in `workloads/` describes one engine to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.experiment import load_experiments as load_experiments
    from ridgeline.lab.workload import OURS as OURS
    from ridgeline.lab.workload import Case as Case
    from ridgeline.lab.workload import Check as Check
    from ridgeline.lab.workload import Launcher as Launcher
    from ridgeline.lab.workload import Profile as Profile
    from ridgeline.lab.workload import Run as Run
    from ridgeline.lab.workload import Steps as Steps
    from ridgeline.lab.workload import Work as Work
    from ridgeline.lab.workload import Workload as Workload
    from ridgeline.lab.workload import format_install_hint as format_install_hint
    from ridgeline.lab.workload import installed as installed
    from ridgeline.lab.workload import is_path as is_path

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "experiment": ["load_experiments"],
        "workload": [
            "Case",
            "Check",
            "Launcher",
            "OURS",
            "Profile",
            "Run",
            "Steps",
            "Work",
            "Workload",
            "format_install_hint",
            "installed",
            "is_path",
        ],
    },
)
