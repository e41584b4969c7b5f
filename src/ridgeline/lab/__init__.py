"""Any workload, raced fairly against its peers, recorded raw, judged, shown.

    ridgeline bench copy matmul

The lab knows the contract (`Workload`, `Run`) and no engine: files in `workloads/` introduce engines to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.experiment.table import load_experiments as load_experiments
    from ridgeline.lab.workload import (
        OURS as OURS,
    )
    from ridgeline.lab.workload import (
        Case as Case,
    )
    from ridgeline.lab.workload import (
        Check as Check,
    )
    from ridgeline.lab.workload import (
        Launcher as Launcher,
    )
    from ridgeline.lab.workload import (
        Profile as Profile,
    )
    from ridgeline.lab.workload import (
        Run as Run,
    )
    from ridgeline.lab.workload import (
        Steps as Steps,
    )
    from ridgeline.lab.workload import (
        Work as Work,
    )
    from ridgeline.lab.workload import (
        Workload as Workload,
    )
    from ridgeline.lab.workload import (
        cure as cure,
    )
    from ridgeline.lab.workload import (
        installed as installed,
    )

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "experiment.table": ["load_experiments"],
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
            "cure",
            "installed",
        ],
    },
)
