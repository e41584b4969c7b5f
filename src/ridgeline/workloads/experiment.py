"""`ridgeline run`: from the arguments of a command line, through Hydra, to points of the pipeline and their results."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    count_concurrent,
    get_launcher,
    launch_jobs,
    run_experiment,
    run_points,
    show_config,
)
from ridgeline.machine import Ceilings, Topology, measure_quick_ceilings, read_cached_ceilings, topology
from ridgeline.workloads.experiment_points import START_S, estimate_seconds, list_points
from ridgeline.workloads.experiment_settings import ExperimentSettings

SOURCE = ConfigSource("ridgeline.conf", ExperimentSettings)
OUTPUTS = Path("outputs")
ONE_FOR_ALL = ("workers", "contention", "resume", "ceilings")  # settings with one value for all jobs
GPU_IDS = "experiment.hardware.gpu_ids"
LIST_OF_LISTS = re.compile(r"\[[\d\s,]*\](\s*,\s*\[[\d\s,]*\])+")  # "[0],[0,1]"


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

    arguments = replace(arguments, overrides=tuple(map(_group_gpus, arguments.overrides)))
    jobs = compose_jobs(arguments, SOURCE)
    settings: list[Any] = [OmegaConf.to_object(job.config.experiment) for job in jobs]
    for name in ONE_FOR_ALL:
        if len({getattr(s, name) for s in settings}) > 1:
            name = {"workers": "max_workers"}.get(name, name)
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
    options = RunOptions(first.workers, first.contention, command=command, measure_ceilings=measure)
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


@dataclass(frozen=True)
class PlanEstimate:
    """How long a plan may take.

    seconds  of each point
    total_s  of all points, as many at once as this machine can run
    basis    of the estimate, in words
    notes    sentences about settings that do not fit
    """

    seconds: list[float]
    total_s: float
    basis: str
    notes: list[str]


def estimate_plan(plan: ExperimentPlan, machine: Topology) -> PlanEstimate:
    """Estimate how long a plan takes on this machine."""
    ceilings = {device: read_cached_ceilings(device, machine) for device in {p.device for p in plan.points}}
    seconds = [estimate_seconds(point, ceilings[point.device]) for point in plan.points]
    first = plan.settings[0]
    concurrent = count_concurrent(plan.points, machine, first.workers)
    by_gpu: dict[int, float] = {}
    for point, point_s in zip(plan.points, seconds, strict=True):
        for gpu in point.gpus:
            by_gpu[gpu] = by_gpu.get(gpu, 0.0) + point_s
    if by_gpu and not first.contention:
        total_s = max(sum(seconds) / concurrent, *by_gpu.values())
    else:  # they share what computes: only their starts overlap
        starts_s = sum(START_S[point.device] for point in plan.points)
        total_s = starts_s / concurrent + sum(seconds) - starts_s
    basis = (
        "ceilings measured here"
        if all(ceilings.values())
        else "assumed rates (ridgeline machine --ceilings measures the real ones)"
    )
    return PlanEstimate(seconds, total_s, basis, _list_notes(plan, seconds, concurrent))


def _list_notes(plan: ExperimentPlan, seconds: Sequence[float], concurrent: int) -> list[str]:
    notes = []
    workers = plan.settings[0].workers
    if workers > concurrent and len(plan.points) > concurrent:
        notes.append(f"max_workers={workers}, but this machine can run only {concurrent} of these points at once.")
    late = [(s, p) for s, p in zip(seconds, plan.points, strict=True) if s > p.timeout_s]
    if late:
        longest, point = max(late, key=lambda entry: entry[0] / entry[1].timeout_s)
        notes.append(
            f"{len(late)} of {len(plan.points)} points may take longer than experiment.test.timeout_s and would be "
            f"stopped: {point.name} about {longest:.0f} s, with a timeout of {point.timeout_s:g} s. Give more."
        )
    return notes


def _group_gpus(override: str) -> str:
    """In a comma list of gpu_ids each choice is one point of GPUs that work together: [0],[0,1] → [[0]],[[0,1]]."""
    key, equals, value = override.partition("=")
    if key != GPU_IDS or not LIST_OF_LISTS.fullmatch(value.strip()):
        return override
    return key + equals + re.sub(r"\[[^\]]*\]", r"[\g<0>]", value)


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
