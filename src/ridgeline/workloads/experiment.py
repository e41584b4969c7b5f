"""`ridgeline run`: the words of a command line, through Hydra, to points of the pipeline, to a folder of results."""

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
    Ask,
    Finished,
    Folder,
    Job,
    Manner,
    Point,
    Source,
    Watcher,
    Words,
    composed,
    conduct,
    launch,
    launcher_of,
    refuse_absent,
    run,
)
from ridgeline.machine import Ceilings, Topology, cached, glance, topology
from ridgeline.workloads.experiment_points import estimate_s, points
from ridgeline.workloads.experiment_settings import ExperimentSettings

SOURCE = Source("ridgeline.conf", ExperimentSettings)
OUTPUTS = Path("outputs")
ONE_FOR_ALL = ("max_workers", "contention", "resume", "ceilings")


@dataclass(frozen=True)
class Plan:
    """What a command line asks for."""

    words: Words
    jobs: list[Job]
    settings: list[ExperimentSettings]  # one per job
    points: list[Point]  # of all jobs, each once
    asked_points: int  # with those that several jobs ask for

    @property
    def name(self) -> str:
        return "+".join(dict.fromkeys(s.name for s in self.settings))


def plan(words: Words, here: Topology) -> Plan:
    """Compose every job and lay out its points; what cannot be is refused before anything is made."""
    from omegaconf import OmegaConf

    jobs = composed(words, SOURCE)
    settings: list[Any] = [OmegaConf.to_object(job.config.experiment) for job in jobs]
    for name in ONE_FOR_ALL:
        if len({getattr(s, name) for s in settings}) > 1:
            raise InputError(f"experiment.{name} is one for all points of a run; give one value, and run it twice.")
    laid = [point for one in settings for point in points(one, here)]
    # Round by round over all jobs: what is to be compared was then measured under the same weather.
    unique = sorted({point.key: point for point in laid}.values(), key=lambda point: point.params["repeat"])
    return Plan(words, jobs, settings, unique, len(laid))


def execute(asked: Plan, here: Topology, watcher: Watcher, outputs: Path = OUTPUTS) -> Finished:
    """Run the plan here, or send its jobs to the launcher that was named."""
    if not installed("torch"):
        raise MissingExtra("ridgeline run", "experiments")
    first = asked.settings[0]
    command = shlex.join(["ridgeline", "run", *_as_given(asked.words)])
    measure = partial(_ceilings, here=here, wanted=first.ceilings)
    manner = Manner(first.max_workers, first.contention, command=command, measure=measure)
    ask = Ask(
        asked.name,
        " ".join(dict.fromkeys(s.description for s in asked.settings)),
        _yaml(asked.jobs),
        first.resume,
        manner,
    )
    sent = None
    if launcher_of(asked.words):

        def sent(folder: Folder) -> list[str]:
            task = partial(job, str(folder.path.resolve()), command)
            return launch(asked.words, SOURCE, task, folder.path.resolve() / "jobs")

    return conduct(ask, asked.points, outputs, here, watcher, sent)


def job(folder: str, command: str, config: Any) -> None:
    """One job, wherever a launcher runs it: its points are laid out on the machine it finds itself on."""
    from omegaconf import OmegaConf

    settings: Any = OmegaConf.to_object(config.experiment)
    here = topology()
    laid = points(settings, here)
    for point in laid:
        refuse_absent(point, here)
    # One at a time: jobs beside this one wait for the CPUs and GPUs that a point of theirs has.
    measure = partial(_ceilings, here=here, wanted=settings.ceilings)
    manner = Manner(1, settings.contention, shared=True, command=command, measure=measure)
    run(laid, Folder(Path(folder)), here, manner, Watcher())


def absent(point: Point, here: Topology) -> str | None:
    """Why a point cannot run on this machine; None if it can."""
    try:
        refuse_absent(point, here)
    except InputError as reason:
        return str(reason)
    return None


def estimates(asked: Plan, here: Topology) -> tuple[list[float], float, str]:
    """Seconds for each point and for all of them, and what that stands on."""
    known = {device: cached(device, here) for device in {p.device for p in asked.points}}
    each = [estimate_s(point, known[point.device]) for point in asked.points]
    first = asked.settings[0]
    gpus = {p.gpu for p in asked.points if p.gpu is not None}
    at_once = first.max_workers if first.contention else min(first.max_workers, len(gpus) or first.max_workers)
    ground = (
        "ceilings measured here"
        if all(known.values())
        else "assumed rates (ridgeline machine --ceilings measures the real ones)"
    )
    return each, sum(each) / max(1, at_once), ground


def _ceilings(device: str, here: Topology, wanted: bool) -> Ceilings | None:
    """Those an earlier bench has measured on this kind of machine, else at a glance if they are wanted."""
    return cached(device, here) or (glance(device, here) if wanted else None)


def _yaml(jobs: Sequence[Job]) -> str:
    """The resolved configuration of every job; `resume` is about the run and is left out."""
    from omegaconf import OmegaConf

    whole = []
    for one in jobs:
        resolved: Any = OmegaConf.to_container(one.config.experiment, resolve=True)
        resolved.pop("resume")
        overrides = [w for w in one.overrides if not w.startswith("experiment.resume")]
        whole.append({"overrides": overrides, "experiment": resolved})
    return str(OmegaConf.to_yaml(OmegaConf.create({"jobs": whole})))


def _as_given(words: Words) -> list[str]:
    return [*words.overrides, *(f"zip=[{','.join(group)}]" for group in words.zips)]
