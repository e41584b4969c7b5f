"""A benchmark: workloads × cases, one race after the other, each recorded as soon as it ends.

A stopped benchmark leaves its records; the next one into the same folder skips the recorded cases and goes on. After a
finished one, the next benchmark measures everything again and appends.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.lab.judge import describe_ceilings, match_ceilings, raise_ceilings
from ridgeline.lab.race.budget import START_S, TimeBudget, divide, estimate_need_s
from ridgeline.lab.race.confirmation import OpenCase, confirm_cases
from ridgeline.lab.race.measure import Plan, Race, choose_placements, measure_case, repeat_execution
from ridgeline.lab.race.process import ProcessPool
from ridgeline.lab.race.request import (
    BenchRequest,
    Point,
    format_command,
    list_contenders,
    list_missing,
    plan_points,
)
from ridgeline.lab.record import (
    RECORDS_FILE,
    SCHEMA,
    ContenderResult,
    Record,
    append_record,
    compute_key,
    describe_code,
    find_user_repository,
    read_records,
)
from ridgeline.lab.workload import Profile, Work, get_note, get_weight, list_controls
from ridgeline.machine import Ceiling, Ceilings, Topology, ceilings, describe_machine, remeasure_ceiling, topology
from ridgeline.store import lock, publish

STATE_FILE = "run.json"
TARGET = {Profile.QUICK: 0.01, Profile.FULL: 0.005}


@dataclass(frozen=True)
class BenchResult:
    """The records of a benchmark, with those of a stopped run before it, and the races that the time left out."""

    records: list[Record]
    left_out: list[Point]


def _ignore(*_: Any) -> None: ...


@dataclass(frozen=True)
class ProgressHooks:
    """Functions that a benchmark calls to report progress; each has a default that does nothing."""

    on_start: Callable[[list[Point], int], None] = _ignore  # all points, and how many are recorded already
    on_ceiling: Callable[[str], None] = _ignore  # the ceiling that is measured next
    on_case: Callable[[Point], None] = _ignore  # the case that starts
    on_prepare: Callable[[str], None] = _ignore  # the contender that is prepared next
    on_progress: Callable[[float, str], None] = _ignore  # share of the time of a case, and what runs
    on_record: Callable[[Record], None] = _ignore  # a case is finished
    on_message: Callable[[str], None] = _ignore  # a sentence for the user


def run_benchmark(request: BenchRequest, hooks: ProgressHooks | None = None) -> BenchResult:
    """Measure all cases of `request` that fit into its time and append their records to `request.out`.

    Raises InputError if nothing can be measured or nothing can be written to `request.out`.
    """
    hooks = hooks or ProgressHooks()
    machine = topology()
    points = plan_points(request, machine, hooks.on_message)
    request = replace(request, compared_cases=len(points))
    for point in points:
        choose_placements(request.plan.placement, point.case, machine)  # an impossible placement fails before any write
    create_output_folder(request.out)
    with lock(request.out / ".lock", timeout=0):
        stopped = read_stopped_run(request.out)
        if stopped:
            hooks.on_message(f"going on with a stopped run: {len(stopped)} cases are done already.")
        devices = dict.fromkeys(p.case.device for p in points if getattr(p.workload, "needs_ceilings", True))
        measured = {d: ceilings(d, progress=hooks.on_ceiling, on=machine) for d in devices}
        cache = _CeilingCache(measured, machine, hooks)
        records: list[Record] = []
        todo = []
        for point in points:
            old = stopped.get(_compute_key(point, request, machine))
            names = [spec.name for spec in list_contenders(point, request)]
            if old is not None and [result.contender for result in old.contenders] == names:
                records.append(old)
            else:
                todo.append(point)
        hooks.on_start(points, len(records))
        left_out = list(todo)
        for point, record in _measure_points(request, todo, machine, cache, hooks):
            left_out.remove(point)
            if record is None:
                hooks.on_message(f"{point.label}: its setup leaves this case out.")
                continue
            append_record(request.out, record)
            records.append(record)
            hooks.on_record(record)
        write_run_state(request.out, finished=True, left_out=[point.label for point in left_out])
    return BenchResult(records, left_out)


def create_output_folder(out: Path) -> None:
    """Create the folder `out`. Raises InputError if nothing can be written there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write into --out '{out}': {error.strerror}; choose another folder.") from None


class _CeilingCache:
    """The ceilings of each device. Each workload measures its ceilings once more: a ceiling that was measured while
    the machine was busy is too low."""

    def __init__(self, measured: dict[str, Ceilings], machine: Topology, hooks: ProgressHooks) -> None:
        self._measured, self._machine, self._hooks = measured, machine, hooks
        self._fresh: list[Ceiling] = []

    def expire(self) -> None:
        """Measure the ceilings again for the next workload."""
        self._fresh = []

    def describe(self, device: str, work: Work) -> dict[str, Any]:
        """Return the ceilings of a case as its record stores them."""
        if device not in self._measured:
            return {}
        for resource, ceiling in match_ceilings(self._measured[device], work).items():
            if ceiling not in self._fresh:
                self._hooks.on_ceiling(f"{resource} again")
                self._measured[device] = remeasure_ceiling(self._measured[device], ceiling, self._machine)
        self._fresh += match_ceilings(self._measured[device], work).values()
        return describe_ceilings(self._measured[device], work)


@dataclass(frozen=True)
class _CaseFacts:
    """What the record of a case needs besides its race."""

    work: Work
    ceilings: dict[str, Any]


def _measure_points(
    request: BenchRequest, points: list[Point], machine: Topology, cache: _CeilingCache, hooks: ProgressHooks
) -> Iterator[tuple[Point, Record | None]]:
    """Run the races that fit into the time. Differences between versions are confirmed, see confirmation.py.

    A case that its suite leaves out has no record.
    """
    description = describe_machine(machine)
    left, end = list(points), time.monotonic() + request.limits.total_s
    undecided: list[tuple[OpenCase, _CaseFacts]] = []
    # With versions, cases that found no time in the first pass come before any confirmation.
    for second_pass in (False, True) if request.versions else (False,):
        for case, facts in _race_points(request, list(left), machine, cache, hooks, end, second_pass=second_pass):
            left.remove(case.point)
            if case.race.left_out:
                yield case.point, None
            elif request.versions and case.remaining[0]:
                undecided.append((case, facts))
            else:
                yield case.point, _make_record(request, case.point, facts, case.race, description)
    facts_by_case = {id(case): facts for case, facts in undecided}

    def repeat(case: OpenCase, rounds: int | None) -> None:
        hooks.on_case(case.point)
        number = len(case.race.executions) + 1
        repeat_execution(
            case.race,
            rounds,
            lambda _round, share: hooks.on_progress(share, f"execution {number} with fresh processes"),
            hooks.on_prepare,
        )

    for case in confirm_cases([case for case, _ in undecided], end, repeat):
        yield case.point, _make_record(request, case.point, facts_by_case[id(case)], case.race, description)


def _race_points(
    request: BenchRequest,
    points: list[Point],
    machine: Topology,
    cache: _CeilingCache,
    hooks: ProgressHooks,
    end: float,
    *,
    second_pass: bool,
) -> Iterator[tuple[OpenCase, _CaseFacts]]:
    """Race each case that fits, workload by workload; a second pass starts only while time is left."""
    clock, limits = time.monotonic, request.limits
    groups = [[p for p in points if p.reference == r] for r in dict.fromkeys(p.reference for p in points)]
    needs = [(get_weight(group[0].workload), estimate_need_s(len(group), limits)) for group in groups]
    for i, group in enumerate(groups):
        if second_pass and end - clock() < START_S + limits.least_s:
            return
        budget = TimeBudget(divide(end - clock(), needs[i:])[0], limits)
        cache.expire()
        with ProcessPool() as pool:
            for point, race_s in budget.allot(group, [p for p in group if p.headline]):
                start = clock()
                hooks.on_case(point)
                work = point.workload.work(point.case)
                facts = _CaseFacts(work, cache.describe(point.case.device, work))
                race = measure_case(
                    point.reference,
                    point.case,
                    list_contenders(point, request),
                    plan=_make_plan(request),
                    pool=pool,
                    machine=machine,
                    on_round=lambda rounds, share: hooks.on_progress(share, f"round {rounds}"),
                    on_prepare=hooks.on_prepare,
                    budget=lambda race_s=race_s, start=start: race_s(clock() - start),  # type: ignore[misc]
                )
                setup_s = clock() - start - race.seconds
                budget.add_setup(setup_s)
                # An execution: preparation, then as long.
                yield OpenCase(point, race, False, 2 * setup_s, request.margin, request.compared_cases), facts


def _make_plan(request: BenchRequest) -> Plan:
    """Return the plan of a race; showing that two versions are the same takes many rounds."""
    plan = replace(request.plan, target=TARGET[request.profile])
    return replace(plan, versions=True, most_rounds=4 * plan.most_rounds) if request.versions else plan


def _make_record(
    request: BenchRequest,
    point: Point,
    facts: _CaseFacts,
    race: Race,
    machine: Mapping[str, Any],
) -> Record:
    record = Record(
        schema=SCHEMA,
        id=uuid.uuid4().hex,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=point.workload.name,
        case=point.case.to_json(),
        work={**asdict(facts.work), "bytes": dict(facts.work.bytes)},
        placement=tuple(asdict(place) for place in race.task.places),
        machine=machine,
        code=_describe_code(point, request),
        plan=_describe_plan(race, request),
        race={"rounds": sum(race.executions), "executions": race.executions, "ended": race.ended},
        conditions=race.conditions,
        ceilings=facts.ceilings,
        contenders=list_results(race),
        missing=list_missing(point, request),
        command=format_command(point, request),
        note=get_note(point.workload),
        controls=tuple(list_controls(point.workload)),
    )
    return replace(record, ceilings=raise_ceilings(record.ceilings, record))


def _describe_plan(race: Race, request: BenchRequest) -> dict[str, Any]:
    plan = {k: v for k, v in asdict(race.plan).items() if k != "placement"}
    if request.versions:
        plan |= {"margin": request.margin, "cases": request.compared_cases}
    return plan


def list_results(race: Race) -> tuple[ContenderResult, ...]:
    """Return what each contender of a race measured, as the record holds it."""
    return tuple(
        ContenderResult(
            contender=lane.spec.name,
            samples_ns=tuple(lane.samples_ns),
            samples_per_turn=lane.samples_per_turn,
            calls_per_sample=lane.calls_per_sample,
            settings=lane.settings,
            placed=lane.placed,
            extras=lane.extras,
            check=lane.check,
            failure=lane.failure,
            turn_overhead_ns=tuple(lane.turn_overhead_ns),
        )
        for lane in race.lanes
    )


def _compute_key(point: Point, request: BenchRequest, machine: Topology) -> str:
    places = [asdict(place) for place in choose_placements(request.plan.placement, point.case, machine)]
    # A record from a file has lists where Python has tuples.
    case, places = json.loads(json.dumps([point.case.to_json(), places]))
    name, cold = point.workload.name, request.plan.cold
    return compute_key(name, case, places, cold, describe_machine(machine), _describe_code(point, request))


def _describe_code(point: Point, request: BenchRequest) -> dict[str, Any]:
    """Return which code a race measures: that of a user, if the file of the workload is in another repository."""
    code = describe_code(request.repository or find_user_repository(point.reference))
    return {**code, "against": request.against} if request.against else code


def read_stopped_run(out: Path) -> dict[str, Record]:
    """Return the records of a stopped run by key; without one, mark the start of a new run."""
    try:
        state = json.loads((out / STATE_FILE).read_text())
    except (OSError, ValueError):
        state = None
    started = state.get("started") if isinstance(state, dict) and not state.get("finished") else None
    if isinstance(started, str) and started and (out / RECORDS_FILE).exists():
        return {r.key: r for r in read_records(out).records if r.time >= started}
    write_run_state(out, finished=False)
    return {}


def write_run_state(out: Path, *, finished: bool, left_out: Sequence[str] = ()) -> None:
    """Note in run.json that a run starts or has finished."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    state: dict[str, Any] = {"started": now, "finished": None}
    if finished:
        state = {**json.loads((out / STATE_FILE).read_text()), "finished": now, "left_out": list(left_out)}
    with publish(out / STATE_FILE) as temporary:
        temporary.write_text(json.dumps(state))
