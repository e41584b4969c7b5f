"""`ridgeline run`: from the arguments of a command line, through Hydra, to points of the pipeline and their results."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, MissingExtra
from ridgeline.lab import installed
from ridgeline.lab.experiment import (
    ConfigSource,
    ExperimentFolder,
    ExperimentRequest,
    ExperimentResult,
    Job,
    Point,
    ProgressHooks,
    RunArguments,
    RunOptions,
    check_available,
    compose_jobs,
    get_launcher,
    launch_jobs,
    run_experiment,
    run_points,
    show_config,
)
from ridgeline.machine import Ceilings, Topology, measure_quick_ceilings, read_cached_ceilings, topology
from ridgeline.workloads.experiment_points import estimate_seconds, list_points
from ridgeline.workloads.experiment_settings import ExperimentSettings

SOURCE = ConfigSource("ridgeline.conf", ExperimentSettings)
OUTPUTS = Path("outputs")
ONE_FOR_ALL = ("max_workers", "contention", "resume", "ceilings")  # settings with one value for all jobs


@dataclass(frozen=True)
class ExperimentPlan:
    """What a command line requests.

    settings          one per job
    points            of all jobs, without duplicates
    requested_points  number of points with duplicates
    """

    arguments: RunArguments
    jobs: list[Job]
    settings: list[ExperimentSettings]
    points: list[Point]
    requested_points: int

    @property
    def name(self) -> str:
        return "+".join(dict.fromkeys(s.name for s in self.settings))


def show_experiment_config(arguments: RunArguments) -> None:
    """Print what Hydra's flags request (`--cfg job`, `--info`)."""
    show_config(arguments, SOURCE)


def plan_experiment(arguments: RunArguments, machine: Topology) -> ExperimentPlan:
    """Compose every job and list its points; raises InputError for settings that cannot work."""
    from omegaconf import OmegaConf

    jobs = compose_jobs(arguments, SOURCE)
    settings: list[Any] = [OmegaConf.to_object(job.config.experiment) for job in jobs]
    for name in ONE_FOR_ALL:
        if len({getattr(s, name) for s in settings}) > 1:
            raise InputError(f"experiment.{name} is one for all points of a run; give one value, and run it twice.")
    points = [point for one in settings for point in list_points(one, machine)]
    # Round by round over all jobs: points that are compared are then measured under the same load of the machine.
    unique = sorted({point.key: point for point in points}.values(), key=lambda point: point.params["repeat"])
    return ExperimentPlan(arguments, jobs, settings, unique, len(points))


def execute_plan(
    plan: ExperimentPlan, machine: Topology, hooks: ProgressHooks, outputs: Path = OUTPUTS
) -> ExperimentResult:
    """Run the plan on this machine, or send its jobs to the launcher that the arguments name.

    Raises MissingExtra without torch, InputError if this machine lacks what a point needs.
    """
    if not installed("torch"):
        raise MissingExtra("ridgeline run", "experiments")
    first = plan.settings[0]
    command = shlex.join(["ridgeline", "run", *_list_arguments(plan.arguments)])
    measure = partial(_get_ceilings, machine=machine, measure=first.ceilings)
    options = RunOptions(first.max_workers, first.contention, command=command, measure_ceilings=measure)
    description = " ".join(dict.fromkeys(s.description for s in plan.settings))
    request = ExperimentRequest(plan.name, description, _format_config(plan.jobs), first.resume, options)
    launch = None
    if get_launcher(plan.arguments):

        def launch(folder: ExperimentFolder) -> list[str]:
            task = partial(run_job, str(folder.path.resolve()), command)
            return launch_jobs(plan.arguments, SOURCE, task, folder.path.resolve() / "jobs")

    return run_experiment(request, plan.points, outputs, machine, hooks, launch)


def run_job(folder: str, command: str, config: Any) -> None:
    """Run one job where a launcher started it: its points are those of that machine."""
    from omegaconf import OmegaConf

    settings: Any = OmegaConf.to_object(config.experiment)
    machine = topology()
    points = list_points(settings, machine)
    for point in points:
        check_available(point, machine)
    # One at a time: other jobs on this machine wait for the CPUs and the GPU of a running point.
    measure = partial(_get_ceilings, machine=machine, measure=settings.ceilings)
    options = RunOptions(1, settings.contention, shared=True, command=command, measure_ceilings=measure)
    run_points(points, ExperimentFolder(Path(folder)), machine, options, ProgressHooks())


def explain_unavailable(point: Point, machine: Topology) -> str | None:
    """Return why a point cannot run on this machine; None if it can."""
    try:
        check_available(point, machine)
    except InputError as reason:
        return str(reason)
    return None


def estimate_plan(plan: ExperimentPlan, machine: Topology) -> tuple[list[float], float, str]:
    """Return the seconds of each point, the seconds of all points, and the basis of the estimate in words."""
    ceilings = {device: read_cached_ceilings(device, machine) for device in {p.device for p in plan.points}}
    seconds = [estimate_seconds(point, ceilings[point.device]) for point in plan.points]
    first = plan.settings[0]
    gpus = {p.gpu for p in plan.points if p.gpu is not None}
    concurrent = first.max_workers if first.contention else min(first.max_workers, len(gpus) or first.max_workers)
    basis = (
        "ceilings measured here"
        if all(ceilings.values())
        else "assumed rates (ridgeline machine --ceilings measures the real ones)"
    )
    return seconds, sum(seconds) / max(1, concurrent), basis


def _get_ceilings(device: str, machine: Topology, measure: bool) -> Ceilings | None:
    """Return the cached ceilings of this kind of machine, else a quick measurement if `measure` allows one."""
    return read_cached_ceilings(device, machine) or (measure_quick_ceilings(device, machine) if measure else None)


def _format_config(jobs: Sequence[Job]) -> str:
    """Return the resolved configuration of every job as YAML, without `resume`, which does not change results."""
    from omegaconf import OmegaConf

    configs = []
    for job in jobs:
        resolved: Any = OmegaConf.to_container(job.config.experiment, resolve=True)
        resolved.pop("resume")
        overrides = [w for w in job.overrides if not w.startswith("experiment.resume")]
        configs.append({"overrides": overrides, "experiment": resolved})
    return str(OmegaConf.to_yaml(OmegaConf.create({"jobs": configs})))


def _list_arguments(arguments: RunArguments) -> list[str]:
    return [*arguments.overrides, *(f"zip=[{','.join(group)}]" for group in arguments.zips)]
