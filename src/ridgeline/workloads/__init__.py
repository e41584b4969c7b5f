"""One file per workload: how the lab runs it, its reference, its peers.

A file with a line `workload = …` is a workload of that name: `ridgeline bench NAME`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.workloads._registry import get_reference as get_reference
    from ridgeline.workloads._registry import list_workloads as list_workloads
    from ridgeline.workloads._registry import load_campaign as load_campaign
    from ridgeline.workloads.charts import draw_pictures as draw_pictures
    from ridgeline.workloads.experiment import ExperimentPlan as ExperimentPlan
    from ridgeline.workloads.experiment import estimate_plan as estimate_plan
    from ridgeline.workloads.experiment import execute_plan as execute_plan
    from ridgeline.workloads.experiment import explain_unavailable as explain_unavailable
    from ridgeline.workloads.experiment import plan_experiment as plan_experiment
    from ridgeline.workloads.experiment import show_experiment_config as show_experiment_config

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "_registry": ["get_reference", "list_workloads", "load_campaign"],
        "charts": ["draw_pictures"],
        "experiment": [
            "ExperimentPlan",
            "estimate_plan",
            "execute_plan",
            "explain_unavailable",
            "plan_experiment",
            "show_experiment_config",
        ],
    },
)
