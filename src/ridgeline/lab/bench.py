"""A bench: workloads × cases, raced one after the other, each recorded as soon as it is done.

A stopped bench leaves its records; the next one into the same folder skips what is there and goes on. A
finished one is a closed chapter: the next bench measures again and appends.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ridgeline
from ridgeline.errors import InputError
from ridgeline.lab import analyse, code, record
from ridgeline.lab.baton import Entrant, Paddock
from ridgeline.lab.loading import load
from ridgeline.lab.measure import Plan, measure, placements
from ridgeline.lab.record import Record
from ridgeline.lab.workload import (
    OURS,
    Case,
    Profile,
    Workload,
    controls_of,
    devices_of,
    installed,
    interpreters_of,
    missing_peers,
    note_of,
    own_case,
)
from ridgeline.machine import Ceilings, Topology, ceilings, topology
from ridgeline.machine.ceiling import sharpen
from ridgeline.machine.identity import facts
from ridgeline.store import lock, publish

STATE = "run.json"
CASE_BUDGET_S = {Profile.QUICK: 5.0, Profile.FULL: 20.0}
TARGET = {Profile.QUICK: 0.01, Profile.FULL: 0.005}


@dataclass(frozen=True)
class Ask:
    """What to measure and how long."""

    workloads: Sequence[str]  # module or file references
    out: Path
    profile: Profile = Profile.QUICK
    device: str = "auto"
    cases: Sequence[str] = ()  # "bytes=1048576": cases of the user's own instead of the profile's
    ranks: int | None = None
    budget_s: float | None = None  # for everything
    plan: Plan = field(default_factory=Plan)
    rivals: Sequence[Entrant] = ()  # other versions of our own code, racing beside the peers
    pythons: Mapping[str, str] = field(default_factory=dict)  # contender -> its own interpreter


@dataclass(frozen=True)
class Point:
    """One race to run."""

    reference: str
    workload: Workload
    case: Case


@dataclass(frozen=True)
class Watcher:
    """Who wants to hear how it goes; every hook has a silent default."""

    start: Callable[[list[Point], int], None] = lambda _points, _skipped: None
    ceiling: Callable[[str], None] = lambda _what: None
    case: Callable[[Point, int], None] = lambda _point, _number: None
    progress: Callable[[float, str], None] = lambda _share, _what: None
    done: Callable[[Record], None] = lambda _record: None
    say: Callable[[str], None] = lambda _sentence: None


def bench(ask: Ask, watcher: Watcher | None = None) -> list[Record]:
    """Run it; the records are those of this run, including what a stopped run left."""
    watcher = watcher or Watcher()
    here = topology()
    device = choose_device(ask.device, here)
    points = plan_points(ask, device, watcher)
    for point in points:
        placements(ask.plan.placement, point.case, here)  # a place that is not there is told before anything is made
    make_folder(ask.out)
    with lock(ask.out / ".lock", timeout=0):
        kept = _resumed(ask.out)
        if kept:
            watcher.say(f"going on with a stopped run: {len(kept)} cases are done already.")
        limits = ceilings(device, progress=watcher.ceiling, on=here)
        found: list[Record] = []
        todo = []
        for point in points:
            old = kept.get(_key(point, ask, here))
            if old is not None and [x.contender for x in old.contenders] == [e.name for e in entrants(point, ask)]:
                found.append(old)
            else:
                todo.append(point)
        watcher.start(points, len(found))
        for made in _measured(ask, todo, here, limits, watcher):
            record.append(ask.out, made)
            found.append(made)
            watcher.done(made)
        _mark(ask.out, finished=True)
    return found


def choose_device(wanted: str, here: Topology) -> str:
    """auto is the first GPU where there is one and torch can drive it."""
    if wanted == "auto":
        return "cuda" if here.gpus and installed("torch") else "cpu"
    if wanted == "cpu":
        return wanted
    if wanted != "cuda" and not (wanted.startswith("cuda:") and wanted[5:].isdigit()):
        raise InputError(f"there is no device '{wanted}'; there are: auto, cpu, cuda, cuda:N.")
    here.gpu(int(wanted.partition(":")[2] or 0))
    return wanted


def plan_points(ask: Ask, device: str, watcher: Watcher) -> list[Point]:
    """The races to run, in order."""
    points: list[Point] = []
    for reference in ask.workloads:
        workload = load(reference)
        kind = device.partition(":")[0]
        if kind not in devices_of(workload):
            watcher.say(f"{workload.name} does not run on {device}; it is left out.")
            continue
        fitting = (c for c in workload.cases(ask.profile) if c.device in ("any", kind))
        cases = [replace(c, device=device) for c in fitting]
        if ask.cases and cases:
            cases = [own_case(cases[0], words) for words in ask.cases]
        if ask.ranks is not None:
            if ask.ranks < 1:
                raise InputError(f"--ranks {ask.ranks}: ask for 1 or more.")
            cases = [replace(c, ranks=ask.ranks) for c in cases]
        for case in cases:
            if OURS not in workload.contenders(case):
                raise InputError(
                    f"the contenders of '{workload.name}' lack '{OURS}', the one that peers are held against."
                )
        points += [Point(reference, workload, case) for case in cases]
    if not points:
        raise InputError(f"nothing to measure on {device}; name a workload that runs there.")
    return points


def _measured(ask: Ask, points: list[Point], here: Topology, limits: Ceilings, watcher: Watcher) -> Iterator[Record]:
    deadline = time.monotonic() + ask.budget_s if ask.budget_s else None
    machine, version = facts(here), code.version()
    for reference in dict.fromkeys(p.reference for p in points):
        with Paddock() as paddock:
            for point in (p for p in points if p.reference == reference):
                number = points.index(point)
                watcher.case(point, number)
                work = point.workload.work(point.case)
                plan = replace(
                    ask.plan,
                    budget_s=_share(deadline, len(points) - number) or CASE_BUDGET_S[ask.profile],
                    target=TARGET[ask.profile],
                )
                for ceiling in analyse.ceilings_of(limits, work).values():
                    limits = sharpen(limits, ceiling, here)
                race = measure(
                    reference,
                    point.case,
                    entrants(point, ask),
                    plan=plan,
                    paddock=paddock,
                    here=here,
                    watch=lambda rounds, share: watcher.progress(share, f"round {rounds}"),
                )
                made = record.from_race(
                    point.workload.name,
                    point.case,
                    work,
                    race,
                    plan,
                    machine,
                    version,
                    analyse.held_against(limits, work),
                    missing_peers(point.workload, point.case),
                    command(point, ask),
                    note_of(point.workload),
                    controls_of(point.workload),
                )
                yield replace(made, ceilings=analyse.raised(made.ceilings, made))


def entrants(point: Point, ask: Ask) -> list[Entrant]:
    """Ours first, then other versions of ours, then the peers."""
    pythons = {**interpreters_of(point.workload), **ask.pythons}
    names = list(point.workload.contenders(point.case))
    own = str(Path(ridgeline.__file__).resolve().parent.parent)
    peers = [Entrant(n, n, pythons[n], own) if n in pythons else Entrant(n, n) for n in names]
    mine = [e for e in peers if e.name == OURS]
    rest = [e for e in peers if e.name != OURS]
    return [*mine, *ask.rivals, *rest]


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


def _share(deadline: float | None, cases_left: int) -> float | None:
    return max(0.5, (deadline - time.monotonic()) / cases_left) if deadline is not None else None


def _key(point: Point, ask: Ask, here: Topology) -> str:
    where = [asdict(p) for p in placements(ask.plan.placement, point.case, here)]
    # As JSON has it: tuples are lists there.
    case, where = json.loads(json.dumps([point.case.to_json(), where]))
    return record.key(point.workload.name, case, where, ask.plan.cold, facts(here), code.version())


def make_folder(out: Path) -> None:
    """Make the out folder; say at once if nothing can be written there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write into --out '{out}': {error.strerror}; choose another folder.") from None


def _resumed(out: Path) -> dict[str, Record]:
    """Complete records of a run that was stopped; marks the start of a new run otherwise."""
    try:
        state = json.loads((out / STATE).read_text())
    except (OSError, ValueError):
        state = {}
    if state.get("started") and not state.get("finished") and (out / record.FILE).exists():
        kept = record.read(out).records
        return {r.key: r for r in kept if r.time >= state["started"]}
    _mark(out, finished=False)
    return {}


def _mark(out: Path, *, finished: bool) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    state: dict[str, Any] = {"started": now, "finished": None}
    if finished:
        state = {**json.loads((out / STATE).read_text()), "finished": now}
    with publish(out / STATE) as temporary:
        temporary.write_text(json.dumps(state))
