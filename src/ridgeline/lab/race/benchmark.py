"""A bench: workloads × cases, raced one after the other, each recorded as soon as it is done.

A stopped bench leaves its records; the next one into the same folder skips what is there and goes on. A
finished one is a closed chapter: the next bench measures again and appends.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.lab.judge import analyse
from ridgeline.lab.race.baton import Paddock
from ridgeline.lab.race.budget import START_S, Purse, divide, want_s
from ridgeline.lab.race.heats import Line, settle
from ridgeline.lab.race.measure import Watch, measure, placements
from ridgeline.lab.race.plan import Plan
from ridgeline.lab.race.points import Ask, Point, command, entrants, plan_points, still_missing
from ridgeline.lab.record import code, record
from ridgeline.lab.record.record import Record
from ridgeline.lab.workload import Profile, Work, controls_of, note_of, weight_of
from ridgeline.machine import Ceiling, Ceilings, Topology, ceilings, facts, sharpen, topology
from ridgeline.store import lock, publish

STATE = "run.json"
Held = tuple[Work, dict[str, Any]]  # a case's work and the ceilings it is held against
TARGET = {Profile.QUICK: 0.01, Profile.FULL: 0.005}


@dataclass(frozen=True)
class Outcome:
    """The records of a run, including what a stopped one left, and the races that its time did not reach."""

    records: list[Record]
    left_out: list[Point]


@dataclass(frozen=True)
class Watcher:
    """Who wants to hear how it goes; every hook has a silent default."""

    start: Callable[[list[Point], int], None] = lambda _points, _skipped: None
    ceiling: Callable[[str], None] = lambda _what: None
    case: Callable[[Point], None] = lambda _point: None
    progress: Callable[[float, str], None] = lambda _share, _what: None
    done: Callable[[Record], None] = lambda _record: None
    say: Callable[[str], None] = lambda _sentence: None


def bench(ask: Ask, watcher: Watcher | None = None) -> Outcome:
    """Run it."""
    watcher = watcher or Watcher()
    here = topology()
    points = plan_points(ask, here, watcher.say)
    for point in points:
        placements(ask.plan.placement, point.case, here)  # a place that is not there is told before anything is made
    make_folder(ask.out)
    with lock(ask.out / ".lock", timeout=0):
        kept = _resumed(ask.out)
        if kept:
            watcher.say(f"going on with a stopped run: {len(kept)} cases are done already.")
        devices = dict.fromkeys(point.case.device for point in points)
        roofs = _Roofs({d: ceilings(d, progress=watcher.ceiling, on=here) for d in devices}, here)
        found: list[Record] = []
        todo = []
        for point in points:
            old = kept.get(_key(point, ask, here))
            if old is not None and [x.contender for x in old.contenders] == [e.name for e in entrants(point, ask)]:
                found.append(old)
            else:
                todo.append(point)
        watcher.start(points, len(found))
        left_out = list(todo)
        for point, made in _measured(ask, todo, here, roofs, watcher):
            record.append(ask.out, made)
            found.append(made)
            left_out.remove(point)
            watcher.done(made)
        _mark(ask.out, finished=True, left_out=[point.label for point in left_out])
    return Outcome(found, left_out)


def _measured(
    ask: Ask, points: list[Point], here: Topology, roofs: _Roofs, watcher: Watcher
) -> Iterator[tuple[Point, Record]]:
    """The races that fit into the time. Versions of one code are looked at a second time, see heats.py."""
    recorded = partial(_recorded, ask, facts(here), code.version())
    left, end = list(points), time.monotonic() + ask.pace.total_s
    undecided: list[tuple[Line, Held]] = []
    for again in (False, True) if ask.rivals else (False,):  # what found no time comes before any second look
        for line, held in _raced(ask, list(left), here, roofs, watcher, end, again=again):
            left.remove(line.point)
            if ask.rivals and line.wants[0]:
                undecided.append((line, held))
            else:
                yield line.point, recorded(line, held)
    held_of = {id(line): held for line, held in undecided}
    for line in settle([line for line, _ in undecided], end, partial(_watched, watcher)):
        yield line.point, recorded(line, held_of[id(line)])


def _raced(
    ask: Ask, points: list[Point], here: Topology, roofs: _Roofs, watcher: Watcher, end: float, *, again: bool
) -> Iterator[tuple[Line, Held]]:
    """One race of each case that fits, workload by workload; without time left, `again` begins nothing."""
    clock = time.monotonic
    groups = [[p for p in points if p.reference == r] for r in dict.fromkeys(p.reference for p in points)]
    wants = [(weight_of(group[0].workload), want_s(len(group), ask.pace)) for group in groups]
    for at, group in enumerate(groups):
        if again and end - clock() < START_S + ask.pace.least_s:
            return
        purse = Purse(divide(end - clock(), wants[at:])[0], ask.pace)
        roofs.look_again()
        with Paddock() as paddock:
            for point, race_s in purse.served(group, [p for p in group if p.headline]):
                began = clock()
                watcher.case(point)
                work = point.workload.work(point.case)
                held = roofs.over(point.case.device, work)
                race = measure(
                    point.reference,
                    point.case,
                    entrants(point, ask),
                    plan=_plan(ask),
                    paddock=paddock,
                    here=here,
                    watch=lambda rounds, share: watcher.progress(share, f"round {rounds}"),
                    budget=lambda race_s=race_s, began=began: race_s(clock() - began),  # type: ignore[misc]
                )
                setup_s = clock() - began - race.seconds
                purse.took(setup_s)
                yield Line(point, race, heat_s=2 * setup_s), (work, held)  # a heat races as long as its start took


def _recorded(ask: Ask, machine: Mapping[str, Any], version: Mapping[str, Any], line: Line, held: Held) -> Record:
    point, (work, over) = line.point, held
    made = record.from_race(
        point.workload.name,
        point.case,
        work,
        line.race,
        machine,
        version,
        over,
        still_missing(point, ask),
        command(point, ask),
        note_of(point.workload),
        controls_of(point.workload),
    )
    return replace(made, ceilings=analyse.raised(made.ceilings, made))


def _watched(watcher: Watcher, line: Line) -> Watch:
    watcher.case(line.point)
    return lambda rounds, share: watcher.progress(share, f"heat {len(line.race.heats) + 1}")


def _plan(ask: Ask) -> Plan:
    """How closely to look; the same may take many rounds to show."""
    plan = replace(ask.plan, target=TARGET[ask.profile])
    return replace(plan, versions=True, most_rounds=4 * plan.most_rounds) if ask.rivals else plan


class _Roofs:
    """The ceilings of each device, looked at once more before each workload that is held against them: a ceiling found
    while the machine was busy is too low."""

    def __init__(self, found: dict[str, Ceilings], here: Topology) -> None:
        self._found, self._here = found, here
        self._fresh: list[Ceiling] = []

    def look_again(self) -> None:
        self._fresh = []

    def over(self, device: str, work: Work) -> dict[str, Any]:
        """What a case is held against, as its record keeps it."""
        for ceiling in analyse.ceilings_of(self._found[device], work).values():
            if ceiling not in self._fresh:
                self._found[device] = sharpen(self._found[device], ceiling, self._here)
        self._fresh += analyse.ceilings_of(self._found[device], work).values()
        return analyse.held_against(self._found[device], work)


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
        state = None
    started = state.get("started") if isinstance(state, dict) and not state.get("finished") else None
    if isinstance(started, str) and started and (out / record.FILE).exists():
        kept = record.read(out).records
        return {r.key: r for r in kept if r.time >= started}
    _mark(out, finished=False)
    return {}


def _mark(out: Path, *, finished: bool, left_out: Sequence[str] = ()) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    state: dict[str, Any] = {"started": now, "finished": None}
    if finished:
        state = {**json.loads((out / STATE).read_text()), "finished": now, "left_out": list(left_out)}
    with publish(out / STATE) as temporary:
        temporary.write_text(json.dumps(state))
