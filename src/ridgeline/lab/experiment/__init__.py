"""Experiments: many points, each in its own placed process, recorded, resumable, shown on pages.

    ridgeline run experiment=quick_test

The runner knows points and subjects, not what they measure; `workloads/experiment*.py` describes the pipeline to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.experiment.child import PointRequest as PointRequest
    from ridgeline.lab.experiment.child import PointResult as PointResult
    from ridgeline.lab.experiment.child import import_name as import_name
    from ridgeline.lab.experiment.compose import ConfigSource as ConfigSource
    from ridgeline.lab.experiment.compose import Job as Job
    from ridgeline.lab.experiment.compose import compose_jobs as compose_jobs
    from ridgeline.lab.experiment.compose import get_launcher as get_launcher
    from ridgeline.lab.experiment.compose import launch_jobs as launch_jobs
    from ridgeline.lab.experiment.compose import show_config as show_config
    from ridgeline.lab.experiment.experiment import ExperimentRequest as ExperimentRequest
    from ridgeline.lab.experiment.experiment import ExperimentResult as ExperimentResult
    from ridgeline.lab.experiment.experiment import run_experiment as run_experiment
    from ridgeline.lab.experiment.folder import ExperimentFolder as ExperimentFolder
    from ridgeline.lab.experiment.folder import open_folder as open_folder
    from ridgeline.lab.experiment.overrides import RunArguments as RunArguments
    from ridgeline.lab.experiment.overrides import parse_arguments as parse_arguments
    from ridgeline.lab.experiment.point import Point as Point
    from ridgeline.lab.experiment.point import check_available as check_available
    from ridgeline.lab.experiment.report import list_warnings as list_warnings
    from ridgeline.lab.experiment.results import ResultsWriter as ResultsWriter
    from ridgeline.lab.experiment.results import load_experiments as load_experiments
    from ridgeline.lab.experiment.runner import ProgressHooks as ProgressHooks
    from ridgeline.lab.experiment.runner import RunOptions as RunOptions
    from ridgeline.lab.experiment.runner import run_points as run_points
    from ridgeline.lab.experiment.slots import count_concurrent as count_concurrent

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "child": ["PointRequest", "PointResult", "import_name"],
        "compose": ["ConfigSource", "Job", "compose_jobs", "get_launcher", "launch_jobs", "show_config"],
        "experiment": ["ExperimentRequest", "ExperimentResult", "run_experiment"],
        "folder": ["ExperimentFolder", "open_folder"],
        "overrides": ["RunArguments", "parse_arguments"],
        "point": ["Point", "check_available"],
        "report": ["list_warnings"],
        "results": ["ResultsWriter", "load_experiments"],
        "runner": ["ProgressHooks", "RunOptions", "run_points"],
        "slots": ["count_concurrent"],
    },
)
