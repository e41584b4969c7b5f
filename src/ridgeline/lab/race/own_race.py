"""Races of a user's own contenders: commands, HTTP endpoints, functions. No workload file, no reserved name.

    records = race_cases("commands", cases, prepare_groups, plan, out)

The first contender is the reference: the others are compared with it. The rounds, the statistics and the record are
those of every other race (measure.py, judge); only what carries out an order differs, a `Group` for each contender.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.lab.race.benchmark import (
    ProgressHooks,
    create_output_folder,
    list_results,
    read_stopped_run,
    write_run_state,
)
from ridgeline.lab.race.measure import Plan, Race, choose_placements, measure_case
from ridgeline.lab.race.process import ContenderSpec, Group
from ridgeline.lab.record import SCHEMA, Record, append_record, compute_key, describe_code, find_toplevel
from ridgeline.lab.workload import Case, Work
from ridgeline.machine import Topology, describe_machine, topology
from ridgeline.store import lock

OWN_MARGIN = 0.01  # two times of a user's contenders that differ by less are the same
DEFAULT_BUDGET_S = 20.0  # of all cases
OWN_PLAN = Plan(target=0.004, most_rounds=2000, sample_ns=0, turn_ns=1, ratios_only=True)


@contextmanager
def _start_nothing(_: Case) -> Iterator[Mapping[str, Group]]:
    yield {}


@dataclass(frozen=True)
class OwnRace:
    """What is raced: the names of the contenders, the reference first, and how to start them for a case."""

    name: str  # of the workload in the records: "commands", "http"
    contenders: tuple[str, ...]
    start: Callable[[Case], AbstractContextManager[Mapping[str, Group]]] = _start_nothing
    unit: str = "runs"
    command: str = ""  # repeats the race
    settings: Mapping[str, Any] = field(default_factory=dict)  # a stopped run goes on only with the same
    margin: float = OWN_MARGIN


class OwnPool:
    """The groups of the contenders of one case, by name."""

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self._groups = groups

    def get(self, spec: ContenderSpec, ranks: int) -> Group:
        """Return the group of a contender."""
        return self._groups[spec.name]

    def drop(self, group: Group) -> None:
        """End a group."""
        group.kill()


@dataclass(frozen=True)
class OwnCase:
    """One case of such a race, as progress displays see it."""

    workload: str
    case: Case

    @property
    def label(self) -> str:
        """The workload and the case as text for people."""
        return f"{self.workload} {self.case.label}"


def race_cases(
    race: OwnRace, cases: Sequence[Case], plan: Plan, out: Path, budget_s: float, hooks: ProgressHooks | None = None
) -> list[Record]:
    """Race all cases, and append each record to `out` as soon as it is measured.

    The time is divided evenly over the cases that are left. A stopped run goes on where it stood.
    """
    hooks = hooks or ProgressHooks()
    machine = topology()
    create_output_folder(out)
    records: list[Record] = []
    with lock(out / ".lock", timeout=0):
        stopped = read_stopped_run(out)
        points = [OwnCase(race.name, case) for case in cases]
        done = [_find_record(race, case, plan, machine, stopped) for case in cases]
        hooks.on_start(points, sum(record is not None for record in done))  # type: ignore[arg-type]
        end = time.monotonic() + budget_s
        left = sum(record is None for record in done)
        for point, old in zip(points, done, strict=True):
            if old is not None:
                records.append(old)
                continue
            hooks.on_case(point)  # type: ignore[arg-type]
            record = race_case(race, point.case, plan, machine, max(0.0, end - time.monotonic()) / left, hooks)
            append_record(out, record)
            records.append(record)
            left -= 1
            hooks.on_record(record)
        write_run_state(out, finished=True)
    return records


def race_case(
    race: OwnRace, case: Case, plan: Plan, machine: Topology, budget_s: float, hooks: ProgressHooks | None = None
) -> Record:
    """Race the contenders on one case and return the record."""
    hooks = hooks or ProgressHooks()
    start = time.monotonic()
    with race.start(case) as groups:
        result = measure_case(
            race.name,
            case,
            [ContenderSpec(name, name) for name in race.contenders],
            plan=plan,
            pool=OwnPool(groups),
            machine=machine,
            on_round=lambda rounds, share: hooks.on_progress(share, f"round {rounds}"),
            on_prepare=hooks.on_prepare,
            budget=lambda: max(0.1, budget_s - (time.monotonic() - start)),
        )
    return make_own_record(race, case, result, machine)


def make_own_record(race: OwnRace, case: Case, result: Race, machine: Topology) -> Record:
    """Return the record of a race of a user's contenders."""
    plan = {k: v for k, v in asdict(result.plan).items() if k != "placement"}
    return Record(
        schema=SCHEMA,
        id=uuid.uuid4().hex,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=race.name,
        case=case.to_json(),
        work=asdict(Work(items=1, unit=race.unit, launches=0)),
        placement=tuple(asdict(place) for place in result.task.places),
        machine=describe_machine(machine),
        code=_describe_code(race),
        plan={**plan, "reference": race.contenders[0], "margin": race.margin},
        race={"rounds": sum(result.executions), "executions": result.executions, "ended": result.ended},
        conditions=result.conditions,
        ceilings={},
        contenders=list_results(result),
        command=race.command,
    )


def name_contenders(names: Sequence[str]) -> tuple[str, ...]:
    """Return names that differ: the second `sort a` becomes `sort a #2`.

    >>> name_contenders(["a", "b", "a"])
    ('a', 'b', 'a #2')
    """
    counts: dict[str, int] = {}
    out = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        out.append(name if counts[name] == 1 else f"{name} #{counts[name]}")
    return tuple(out)


def _describe_code(race: OwnRace) -> dict[str, Any]:
    """Return the code of a user's race: the commit of the repository that holds the working folder, if there is one."""
    return {**describe_code(find_toplevel(Path.cwd())), "race": dict(race.settings)}


def _find_record(
    race: OwnRace, case: Case, plan: Plan, machine: Topology, stopped: Mapping[str, Record]
) -> Record | None:
    if not stopped:
        return None
    places = [asdict(place) for place in choose_placements(plan.placement, case, machine)]
    body, places = json.loads(json.dumps([case.to_json(), places]))
    key = compute_key(race.name, body, places, plan.cold, describe_machine(machine), _describe_code(race))
    old = stopped.get(key)
    same = old is not None and old.code.get("race") == json.loads(json.dumps(dict(race.settings)))
    return old if same else None


def iterate_cases(params: Mapping[str, Sequence[int | float | str]], device: str = "cpu") -> Iterator[Case]:
    """Yield one case for each combination of the values.

    >>> [case.label for case in iterate_cases({"n": [1, 2], "m": ["a"]})]
    ['n=1 m=a · cpu', 'n=2 m=a · cpu']
    """
    cases: list[dict[str, Any]] = [{}]
    for name, values in params.items():
        cases = [{**case, name: value} for case in cases for value in values]
    yield from (Case(case, device) for case in cases)


def change_plan(plan: Plan, timeout_s: float) -> Plan:
    """Return the plan of a user's race with another timeout."""
    return replace(plan, timeout_s=timeout_s)
