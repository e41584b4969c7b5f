"""What a benchmark is asked for, and the races that follow: workloads × cases, each on a device.

Without --device a workload runs on the GPU if there is one and it supports it, else on the CPU.
"""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import ridgeline
from ridgeline.errors import InputError, unknown
from ridgeline.lab.judge import MARGIN
from ridgeline.lab.race.budget import LIMITS, LIMITS_AGAINST, TimeLimits
from ridgeline.lab.race.checkout import Checkout
from ridgeline.lab.race.loader import load_workload
from ridgeline.lab.race.measure import Plan
from ridgeline.lab.race.process import ContenderSpec
from ridgeline.lab.workload import (
    OURS,
    Case,
    Profile,
    Workload,
    choose_launcher,
    get_default_device,
    get_required_ranks,
    installed,
    is_path,
    list_devices,
    list_missing_peers,
    map_interpreters,
    parse_case,
)
from ridgeline.machine import Topology


@dataclass(frozen=True)
class BenchRequest:
    """What to measure and for how long."""

    workloads: Sequence[str]  # references of modules or files
    out: Path
    profile: Profile = Profile.QUICK
    device: str = "auto"
    cases: Sequence[str] = ()  # "bytes=1048576": these cases instead of those of the profile
    ranks: int | None = None
    budget_s: float | None = None  # for all races and their preparation
    plan: Plan = field(default_factory=Plan)
    versions: Sequence[ContenderSpec] = ()  # other versions of our code: they race ours, without peers
    tree: str | None = None  # the `src` folder of our code in such a race: a copy next to the other version
    checkout: Checkout | None = None  # in a race of a user's versions: the copy of the working tree
    interpreter: str | None = None  # in such a race with --build: that of the environment of the working tree
    build: str | None = None  # the command of a user that builds a version
    against: str | None = None  # the full hash of the commit in a race of versions
    repository: Path | None = None  # of a user, if --repo names it
    margin: float = MARGIN  # versions that differ by less are the same
    compared_cases: int = 1  # how many cases the run has, set by `run_benchmark`
    pythons: Mapping[str, str] = field(default_factory=dict)  # contender -> another interpreter

    @property
    def limits(self) -> TimeLimits:
        """The time limits of the profile. A budget from the user is used up: by one case, or by repeats of versions."""
        usual = (LIMITS_AGAINST if self.versions else LIMITS)[self.profile]
        if self.budget_s is None:
            return usual
        # With versions a first race takes a sixth at most: the rest is for repeats with fresh processes.
        most_s = min(usual.most_s, max(1.0, self.budget_s / 6)) if self.versions else math.inf
        return TimeLimits(self.budget_s, min(usual.least_s, self.budget_s, most_s), most_s)


@dataclass(frozen=True)
class Point:
    """One race to run."""

    reference: str
    workload: Workload
    case: Case
    headline: bool = True  # of the quick profile, or named by the user: the last to be left out

    @property
    def label(self) -> str:
        """The workload and the case as text for people."""
        return f"{self.workload.name} {self.case.label}"


def plan_points(request: BenchRequest, machine: Topology, on_message: Callable[[str], None]) -> list[Point]:
    """List the races to run, in order; `on_message` gets a sentence for each workload that is left out.

    Raises InputError if nothing is left to measure, or for an unknown device, case or peer.
    """
    requested = check_device(request.device, machine)
    points: list[Point] = []
    for reference in request.workloads:
        workload = load_workload(reference)
        device = _choose_device(workload, requested, machine)
        if device is None:
            on_message(f"{workload.name} does not run on {requested}; it is left out.")
            continue
        cases = _list_cases(workload, request.profile, device)
        if not cases:
            on_message(f"{workload.name} has no case that can run here on {device}; it is left out.")
        headline = cases if request.profile is Profile.QUICK else _list_cases(workload, Profile.QUICK, device)
        if request.cases and cases:
            cases = headline = [parse_case(cases[0], text) for text in request.cases]
        marked = [(case, case in headline) for case in cases]
        if request.ranks is not None:
            if request.ranks < 1:
                raise InputError(f"--ranks {request.ranks}: ask for 1 or more.")
            required = get_required_ranks(workload)
            if required not in (None, request.ranks):
                on_message(f"{workload.name} is between {required} ranks; --ranks {request.ranks} is for the others.")
            marked = [(replace(case, ranks=required or request.ranks), mark) for case, mark in marked]
        for case, _ in marked:
            if not workload.contenders(case):
                raise InputError(f"'{workload.name}' has no contender for the case {case.label}; name at least one.")
        points += [Point(reference, workload, case, mark) for case, mark in marked]
    if not points:
        raise InputError(f"nothing to measure on {requested}; name a workload that runs there.")
    _check_interpreters(points, request)
    return points


def check_device(name: str, machine: Topology) -> str:
    """Return `name` if this machine has such a device; raises InputError otherwise."""
    if name in ("auto", "cpu"):
        return name
    if name != "cuda" and not (name.startswith("cuda:") and name[5:].isdigit()):
        raise InputError(f"there is no device '{name}'; there are: auto, cpu, cuda, cuda:N.")
    machine.gpu(int(name.partition(":")[2] or 0))
    return name


def list_contenders(point: Point, request: BenchRequest) -> list[ContenderSpec]:
    """Return the reference first, then the peers; or the reference and its other versions, without peers.

    The reference is ours, or the first contender of a workload that does not have ours.
    """
    pythons = {**map_interpreters(point.workload), **request.pythons}
    missing = list_missing_peers(point.workload, point.case)
    names = [*point.workload.contenders(point.case), *(name for name in pythons if name in missing)]
    tree = str(Path(ridgeline.__file__).resolve().parent.parent)
    specs = [
        ContenderSpec(
            name,
            name,
            pythons.get(name, sys.executable),
            tree if name in pythons else None,
            choose_launcher(point.workload, point.case, name, pythons.get(name, sys.executable)),
        )
        for name in names
    ]
    reference = OURS if OURS in names else names[0]
    ours = [
        replace(
            spec,
            tree=request.tree or spec.tree,
            checkout=request.checkout,
            interpreter=request.interpreter or spec.interpreter,
        )
        for spec in specs
        if spec.name == reference
    ]
    peers = [spec for spec in specs if spec.name != reference]
    versions = [
        replace(
            spec,
            name=f"{reference}@{spec.name.partition('@')[2]}",
            contender=reference if spec.contender == OURS else spec.contender,
        )
        for spec in request.versions
    ]
    return [*ours, *(versions or peers)]


def list_missing(point: Point, request: BenchRequest) -> dict[str, str]:
    """Return the peers that are not installed and have no other interpreter, and how to install them."""
    missing = list_missing_peers(point.workload, point.case)
    return {name: extra for name, extra in missing.items() if name not in request.pythons}


def format_command(point: Point, request: BenchRequest) -> str:
    """Return the command that reproduces the record of a race."""
    case, node = point.case, request.plan.placement.node
    name = point.workload.name if not is_path(point.reference) else point.reference
    words = ["ridgeline", "bench", name, "--device", case.device]
    words += ["--case", ",".join(f"{k}={v}" for k, v in case.params.items())]
    words += ["--profile", request.profile] if request.profile is not Profile.QUICK else []
    words += ["--ranks", str(case.ranks)] if case.ranks > 1 else []
    words += ["--node", str(node)] if node is not None else []
    words += ["--cold"] if request.plan.cold else []
    words += [word for spec in request.versions for word in ("--against", spec.name.partition("@")[2])]
    words += ["--build", request.build] if request.build else []
    words += ["--repo", str(request.repository)] if request.repository else []
    words += [word for peer, path in request.pythons.items() for word in ("--python", f"{peer}={path}")]
    return shlex.join(words)


def _check_interpreters(points: Sequence[Point], request: BenchRequest) -> None:
    """Refuse --python for a peer that does not take part, before anything is written."""
    if request.pythons:
        specs = (spec for point in points for spec in list_contenders(point, replace(request, versions=())))
        names = dict.fromkeys(spec.contender for spec in specs)
        for peer in request.pythons:
            if peer not in names:
                raise unknown("peer", peer, names)


def _choose_device(workload: Workload, requested: str, machine: Topology) -> str | None:
    """Return the device of a workload; None if it does not support the requested one."""
    supported = list_devices(workload)
    if requested != "auto":
        return requested if requested.partition(":")[0] in supported else None
    gpu = "cuda" in supported and get_default_device(workload) == "cuda"
    return "cuda" if gpu and machine.gpus and installed("torch") else supported[0]


def _list_cases(workload: Workload, profile: Profile, device: str) -> list[Case]:
    matching = (c for c in workload.cases(profile) if c.device in ("any", device.partition(":")[0]))
    return [replace(c, device=device) for c in matching]
