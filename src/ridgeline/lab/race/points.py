"""What a bench is asked for, and the races that come of it: workloads × cases, each on the device that is right for it.

Where nothing else is asked for, a workload runs on the GPU if there is one and it can, else on the CPU.
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
from ridgeline.lab.race.baton import Entrant
from ridgeline.lab.race.budget import PACES, PACES_AGAINST, Pace
from ridgeline.lab.race.loading import load
from ridgeline.lab.race.plan import Plan
from ridgeline.lab.workload import (
    OURS,
    Case,
    Profile,
    Workload,
    default_device_of,
    devices_of,
    installed,
    interpreters_of,
    launcher_of,
    missing_peers,
    only_ranks_of,
    own_case,
)
from ridgeline.machine import Topology


@dataclass(frozen=True)
class Ask:
    """What to measure and how long."""

    workloads: Sequence[str]  # module or file references
    out: Path
    profile: Profile = Profile.QUICK
    device: str = "auto"
    cases: Sequence[str] = ()  # "bytes=1048576": cases of the user's own instead of the profile's
    ranks: int | None = None
    budget_s: float | None = None  # for all races and what prepares them
    plan: Plan = field(default_factory=Plan)
    rivals: Sequence[Entrant] = ()  # other versions of our own code: they race ours, the peers stay out
    tree: str | None = None  # the `src` folder ours comes from then, a copy beside theirs
    pythons: Mapping[str, str] = field(default_factory=dict)  # contender -> its own interpreter

    @property
    def pace(self) -> Pace:
        """As the profile has it; a budget of the user's own is used up, by one case too (versions: by second looks)."""
        usual = (PACES_AGAINST if self.rivals else PACES)[self.profile]
        if self.budget_s is None:
            return usual
        return Pace(self.budget_s, min(usual.least_s, self.budget_s), usual.most_s if self.rivals else math.inf)


@dataclass(frozen=True)
class Point:
    """One race to run."""

    reference: str
    workload: Workload
    case: Case
    headline: bool = True  # of the quick profile, or asked for by name: the last to be left out

    @property
    def label(self) -> str:
        return f"{self.workload.name} {self.case.label}"


def plan_points(ask: Ask, here: Topology, say: Callable[[str], None]) -> list[Point]:
    """The races to run, in order."""
    wanted = known_device(ask.device, here)
    points: list[Point] = []
    for reference in ask.workloads:
        workload = load(reference)
        device = _device(workload, wanted, here)
        if device is None:
            say(f"{workload.name} does not run on {wanted}; it is left out.")
            continue
        cases = _cases(workload, ask.profile, device)
        if not cases:
            say(f"{workload.name} has no case that can run here on {device}; it is left out.")
        headline = cases if ask.profile is Profile.QUICK else _cases(workload, Profile.QUICK, device)
        if ask.cases and cases:
            cases = headline = [own_case(cases[0], words) for words in ask.cases]
        marked = [(case, case in headline) for case in cases]
        if ask.ranks is not None:
            if ask.ranks < 1:
                raise InputError(f"--ranks {ask.ranks}: ask for 1 or more.")
            only = only_ranks_of(workload)
            if only not in (None, ask.ranks):
                say(f"{workload.name} is between {only} ranks; --ranks {ask.ranks} is for the others.")
            marked = [(replace(case, ranks=only or ask.ranks), mark) for case, mark in marked]
        for case, _ in marked:
            if OURS not in workload.contenders(case):
                raise InputError(
                    f"the contenders of '{workload.name}' lack '{OURS}', the one that peers are held against."
                )
        points += [Point(reference, workload, case, mark) for case, mark in marked]
    if not points:
        raise InputError(f"nothing to measure on {wanted}; name a workload that runs there.")
    _known_peers(points, ask)
    return points


def _known_peers(points: Sequence[Point], ask: Ask) -> None:
    """An interpreter is for someone who takes part; what its launcher lacks is told before anything is made."""
    if ask.pythons:
        names = dict.fromkeys(e.contender for p in points for e in entrants(p, replace(ask, rivals=())))
        for peer in ask.pythons:
            if peer not in names:
                raise unknown("peer", peer, names)


def known_device(wanted: str, here: Topology) -> str:
    """What was asked for, if there is such a device."""
    if wanted in ("auto", "cpu"):
        return wanted
    if wanted != "cuda" and not (wanted.startswith("cuda:") and wanted[5:].isdigit()):
        raise InputError(f"there is no device '{wanted}'; there are: auto, cpu, cuda, cuda:N.")
    here.gpu(int(wanted.partition(":")[2] or 0))
    return wanted


def _device(workload: Workload, wanted: str, here: Topology) -> str | None:
    """Where it runs; None if not on what was asked for."""
    can = devices_of(workload)
    if wanted != "auto":
        return wanted if wanted.partition(":")[0] in can else None
    gpu = "cuda" in can and default_device_of(workload) == "cuda"
    return "cuda" if gpu and here.gpus and installed("torch") else can[0]


def _cases(workload: Workload, profile: Profile, device: str) -> list[Case]:
    fitting = (c for c in workload.cases(profile) if c.device in ("any", device.partition(":")[0]))
    return [replace(c, device=device) for c in fitting]


def entrants(point: Point, ask: Ask) -> list[Entrant]:
    """Ours first, then the peers; or other versions of ours, which want all the time there is."""
    pythons = {**interpreters_of(point.workload), **ask.pythons}
    absent = missing_peers(point.workload, point.case)
    names = [*point.workload.contenders(point.case), *(name for name in pythons if name in absent)]
    own = str(Path(ridgeline.__file__).resolve().parent.parent)
    peers = [
        Entrant(
            name,
            name,
            pythons.get(name, sys.executable),
            own if name in pythons else None,
            launcher_of(point.workload, point.case, name, pythons.get(name, sys.executable)),
        )
        for name in names
    ]
    mine = [replace(e, tree=ask.tree) if ask.tree else e for e in peers if e.name == OURS]
    rest = [e for e in peers if e.name != OURS]
    return [*mine, *(ask.rivals or rest)]


def still_missing(point: Point, ask: Ask) -> dict[str, str]:
    """Peers that are not installed here and were given no interpreter of their own."""
    return {name: cure for name, cure in missing_peers(point.workload, point.case).items() if name not in ask.pythons}


def command(point: Point, ask: Ask) -> str:
    """What reproduces a record."""
    case, node = point.case, ask.plan.placement.node
    name = point.workload.name if not point.reference.endswith(".py") else point.reference
    words = ["ridgeline", "bench", name, "--device", case.device]
    words += ["--case", ",".join(f"{k}={v}" for k, v in case.params.items())]
    words += ["--profile", ask.profile] if ask.profile is not Profile.QUICK else []
    words += ["--ranks", str(case.ranks)] if case.ranks > 1 else []
    words += ["--node", str(node)] if node is not None else []
    words += ["--cold"] if ask.plan.cold else []
    words += [word for rival in ask.rivals for word in ("--against", rival.name.partition("@")[2])]
    words += [word for peer, path in ask.pythons.items() for word in ("--python", f"{peer}={path}")]
    return shlex.join(words)
