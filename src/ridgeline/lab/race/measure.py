"""Measure one case: the contenders run in turn, in shuffled order, under the same load of the machine.

    race = measure_case(reference, case, specs, plan=Plan(budget_s=10), pool=pool, machine=topology())

Rounds go on until the intervals are narrow enough, until more rounds no longer narrow them, or until the time is up.
A contender that crashes, hangs or gives a wrong output leaves the race, and its result says why; the others go on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ridgeline.errors import CaseLeftOut
from ridgeline.lab import judge
from ridgeline.lab.race.process import ContenderFailure, ContenderSpec, Group, Pool, ProcessPool
from ridgeline.lab.record import NO_CONTENDER_LEFT
from ridgeline.lab.workload import Case
from ridgeline.machine import Placement, Topology, read_machine_state, resolve_placement
from ridgeline.machine import plan as plan_placements

PLATEAU_ROUNDS = 96  # earlier rounds do not show a plateau
SIMILAR = 2.0  # contenders whose times differ by less have equal turns: the first sample of a turn is often slower
MIN_EXECUTION_S, MIN_EXECUTION_ROUNDS = 0.5, 3  # of an execution with fresh processes

OnRound = Callable[[int, float], None]  # gets the number of the round and the share of the time that is used
OnPrepare = Callable[[str], None]  # gets the name of the contender that is prepared next


@dataclass(frozen=True)
class Plan:
    """How long and how precisely to measure."""

    budget_s: float = 6.0  # for all contenders of one case, without preparation
    target: float = 0.01  # relative half-width of the intervals that ends the race early
    least_rounds: int = 12
    most_rounds: int = 400
    sample_ns: int = 300_000  # a sample shorter than a scheduler's time slice is rarely preempted
    turn_ns: int = 3_000_000  # a turn has as many samples as fit into this time, at least one
    timeout_s: float = 120.0  # for one order to a contender
    ratios_only: bool = False  # the race ends by the widths of ratios; the times themselves may stay wide
    versions: bool = False  # the contenders are versions of one code: see confirmation.py
    cold: bool = False  # empty the caches before every sample
    placement: Placement = field(default_factory=Placement)
    seed: int = 0


@dataclass
class Lane:
    """One contender during a race."""

    spec: ContenderSpec
    samples_ns: list[float] = field(default_factory=list)
    samples_per_turn: int = 1
    calls_per_sample: int = 1
    call_ns: float = 0.0  # of one call, during preparation
    turn_overhead_ns: list[int] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    placed: dict[str, Any] = field(default_factory=dict)
    check: dict[str, Any] | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    group: Group | None = None

    @property
    def racing(self) -> bool:
        """Whether it still takes part."""
        return self.failure is None and bool(self.check and self.check["ok"])

    def turn_medians(self) -> list[float]:
        """Return the median of each turn in nanoseconds."""
        return judge.turn_medians(self.samples_ns, self.samples_per_turn)


@dataclass(frozen=True)
class Task:
    """What all contenders of a race do."""

    reference: str
    case: Case
    places: list[Placement]
    cache_bytes: int

    def make_order(self, lane: Lane) -> dict[str, Any]:
        """Return the order for one contender."""
        case = {"params": dict(self.case.params), "device": self.case.device, "ranks": self.case.ranks}
        return {"workload": lane.spec.locate(self.reference), "case": case, "contender": lane.spec.contender}

    @property
    def per_rank(self) -> list[dict[str, Any]]:
        """The part of the order that differs between ranks."""
        return [{"placement": asdict(place)} for place in self.places]


@dataclass
class Race:
    """The result of `measure_case`."""

    task: Task
    lanes: list[Lane]
    executions: list[int]  # rounds of each; more than one if fresh processes repeated the race, see confirmation.py
    ended: str  # why the first execution ended: converged | plateau | budget | rounds | no contender left
    conditions: dict[str, Any]
    plan: Plan  # the plan that was used
    seconds: float = 0.0  # of the first execution's rounds, without preparation and checks

    @property
    def left_out(self) -> bool:
        """Whether the suite leaves the case out, for all contenders."""
        return all((lane.failure or "").startswith(f"raised {CaseLeftOut.__name__}") for lane in self.lanes)


class StopRule:
    """Decides when the race has measured enough.

    It looks at the widths of intervals only, never at their values: a race that stops when it sees a difference finds
    differences in noise.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._widths: dict[int, list[float]] = {}

    def find_reason(self, lanes: list[Lane], rounds: int) -> str | None:
        """Return why the race should stop after this number of rounds, or None."""
        if rounds < self._plan.least_rounds or rounds % 4 or not lanes:
            return None
        ours = lanes[0].turn_medians()
        ratios_only = (self._plan.versions or self._plan.ratios_only) and len(lanes) > 1  # only the ratio matters
        widths = [] if ratios_only else [judge.median(lane.turn_medians()).relative for lane in lanes]
        widths += [judge.paired_ratio(lane.turn_medians(), ours).relative for lane in lanes[1:]]
        self._widths[rounds] = widths
        if max(widths) <= self._plan.target:
            return "converged"
        # Independent noise shrinks by 0.7 when the rounds double; if no interval shrinks, more rounds do not help.
        half = self._widths.get(rounds // 2 // 4 * 4, [])
        if rounds >= PLATEAU_ROUNDS and len(half) == len(widths) and not ratios_only:  # a ratio's noise always shrinks
            wide = [(now, then) for now, then in zip(widths, half, strict=True) if now > self._plan.target]
            if all(now > 0.97 * then for now, then in wide):
                return "plateau"
        return None


def _ignore_round(_round: int, _share: float) -> None: ...


def _ignore_prepare(_contender: str) -> None: ...


def measure_case(
    reference: str,
    case: Case,
    specs: Sequence[ContenderSpec],
    *,
    plan: Plan,
    pool: Pool,
    machine: Topology,
    on_round: OnRound = _ignore_round,
    on_prepare: OnPrepare = _ignore_prepare,
    budget: Callable[[], float] | None = None,
) -> Race:
    """Race the contenders `specs` on one case of the workload `reference`.

    `budget` returns the seconds for the race once all contenders are ready (default: those of `plan`), because they
    may depend on the time that preparation took.
    """
    gpu = machine.gpus[_gpu_index(case.device)].uuid if case.device.startswith("cuda") and machine.gpus else None
    before = read_machine_state(gpu)
    places = choose_placements(plan.placement, case, machine)
    lanes = [Lane(spec) for spec in specs]
    task = Task(reference, case, places, _cache_bytes(machine))
    _prepare_all(lanes, task, plan, pool, on_prepare)
    _equalise(_select_similar([lane for lane in lanes if lane.racing], plan))
    plan = replace(plan, budget_s=budget()) if budget else plan
    start = time.monotonic()
    rounds, ended = _run_rounds(lanes, plan, pool, on_round)
    seconds = time.monotonic() - start
    _finish(lanes, plan, pool)
    return Race(task, lanes, [rounds], ended, {"before": before, "after": read_machine_state(gpu)}, plan, seconds)


def repeat_execution(
    race: Race,
    rounds: int | None,
    on_round: OnRound = _ignore_round,
    on_prepare: OnPrepare = _ignore_prepare,
    *,
    open_pool: Callable[[], AbstractContextManager[Pool]] = ProcessPool,
    budget_s: float | None = None,
) -> None:
    """Continue a race with fresh processes, for `rounds` rounds or for as long as their preparation took (None).

    With the same time for preparation and rounds, no other length would give more than twice the information per
    second, whether processes or rounds vary more. `budget_s`: at least this many seconds of rounds.
    """
    racing = [lane for lane in race.lanes if lane.racing]
    counts = [(lane.samples_per_turn, lane.calls_per_sample) for lane in racing]
    start = time.monotonic()
    with open_pool() as pool:
        _prepare_all(racing, race.task, race.plan, pool, on_prepare)
        for lane, (samples, calls) in zip(racing, counts, strict=True):  # all turns of a lane are of one kind
            lane.samples_per_turn, lane.calls_per_sample = samples, calls
        if budget_s is None:
            budget_s = max(MIN_EXECUTION_S, time.monotonic() - start) if rounds is None else MIN_EXECUTION_S
        seed = race.plan.seed + len(race.lanes[0].samples_ns)
        least = rounds or MIN_EXECUTION_ROUNDS
        plan = replace(race.plan, budget_s=budget_s, least_rounds=least, target=0.0, seed=seed)
        race.executions.append(_run_rounds(race.lanes, plan, pool, on_round)[0])
        _finish(racing, plan, pool, extras=False)
    for lane in racing:
        lane.group = None


def choose_placements(requested: Placement, case: Case, machine: Topology) -> list[Placement]:
    """Return one placement per rank: the requested one; without a request `machine.plan` spreads several ranks."""
    if case.ranks == 1:
        gpu = _gpu_index(case.device) if case.device.startswith("cuda") else None
        gpu = requested.gpu if requested.gpu is not None else gpu
        return [resolve_placement(Placement(requested.node, requested.cpus, requested.memory, gpu), machine)]
    if requested != Placement():
        return [resolve_placement(requested, machine)] * case.ranks
    if case.ranks > len(machine.usable_cpus):
        return [resolve_placement(requested, machine)] * case.ranks  # more ranks than CPUs: they share all of them
    return plan_placements(machine, case.ranks, "gpu" if case.device.startswith("cuda") else "core")


@contextmanager
def _record_failure(lane: Lane, pool: Pool) -> Iterator[None]:
    """Note why a contender fails inside the block, and end its processes; the race goes on without it."""
    try:
        yield
    except ContenderFailure as failure:
        lane.failure = str(failure)
        if lane.group is not None:
            pool.drop(lane.group)
            lane.group = None


def _prepare_all(lanes: list[Lane], task: Task, plan: Plan, pool: Pool, on_prepare: OnPrepare) -> None:
    """Start missing processes and let all load their libraries at once; then prepare the contenders one by one."""
    started = []
    for lane in lanes:
        with _record_failure(lane, pool):
            lane.group = pool.get(lane.spec, task.case.ranks)
            if lane.group.fresh:
                lane.group.send("load", task.per_rank, **task.make_order(lane))
                started.append((lane, lane.group))
    for lane, group in started:
        on_prepare(lane.spec.name)
        with _record_failure(lane, pool):
            group.receive(plan.timeout_s, allow_failure=True)
    for lane in lanes:
        if lane.group is not None:
            on_prepare(lane.spec.name)
            with _record_failure(lane, pool):
                _prepare(lane, lane.group, task, plan)


def _prepare(lane: Lane, group: Group, task: Task, plan: Plan) -> None:
    answers = group.do(
        "prepare",
        plan.timeout_s,
        task.per_rank,
        cold=plan.cold,
        sample_ns=plan.sample_ns,
        cache_bytes=task.cache_bytes,
        **task.make_order(lane),
    )
    first = answers[0]
    longest = max(a["sample_ns"] for a in answers)
    lane.samples_per_turn = max(1, min(32, int(plan.turn_ns // max(1, longest))))
    lane.calls_per_sample = first["calls_per_sample"]
    lane.call_ns = longest / lane.calls_per_sample
    lane.settings, lane.placed = first["settings"], first["placed"]
    lane.check = _select_worst([a["check"] for a in answers])


def _select_similar(lanes: list[Lane], plan: Plan) -> list[Lane]:
    """Return the contenders whose turns must be alike: versions of one code, else those about as fast as the first."""
    if plan.versions and not plan.ratios_only:
        return lanes
    return [lane for lane in lanes if 1 / SIMILAR < lane.call_ns / max(1e-3, lanes[0].call_ns) < SIMILAR]


def _equalise(lanes: list[Lane]) -> None:
    """Give these contenders the same number of samples per turn and of calls per sample.

    The first sample after the inputs were rewritten may be slow, which counts for more in a short turn. A sample that
    was interrupted during preparation gave too small a number, so the largest is right.
    """
    calls = max((lane.calls_per_sample for lane in lanes), default=1)
    for lane in lanes:
        lane.samples_per_turn = max(1, max(x.samples_per_turn * x.calls_per_sample for x in lanes) // calls)
    for lane in lanes:
        lane.calls_per_sample = calls


def _run_rounds(lanes: list[Lane], plan: Plan, pool: Pool, on_round: OnRound) -> tuple[int, str]:
    """Run rounds until the race ends; return their number and why it ended."""
    order = random.Random(plan.seed)  # noqa: S311
    start = time.monotonic()
    rule = StopRule(plan)
    least = plan.least_rounds if plan.versions else judge.MIN_OBSERVATIONS  # an interval needs that many
    for number in range(1, plan.most_rounds + 1):
        racing = [lane for lane in lanes if lane.racing]
        if not racing:
            return number - 1, NO_CONTENDER_LEFT
        for lane in order.sample(racing, len(racing)):
            with _record_failure(lane, pool):
                _run_turn(lane, plan)
        share = (time.monotonic() - start) / plan.budget_s
        on_round(number, min(1.0, share))
        reason = rule.find_reason([lane for lane in racing if lane.racing], number)
        if reason:
            return number, reason
        if share >= 1 and number >= least:
            return number, "budget"
    return plan.most_rounds, "rounds"


def _run_turn(lane: Lane, plan: Plan) -> None:
    assert lane.group is not None  # noqa: S101  a racing lane has one
    # All turns start on the same core (see contender.py), and on a high-numbered one: low ones serve interrupts.
    cpus = lane.placed["cpus"]
    starts = [{"start_cpu": cpus[-1 - rank % len(cpus)]} for rank in range(lane.group.ranks)]
    start_ns = time.perf_counter_ns()
    answers = lane.group.do(
        "turn", plan.timeout_s, starts, samples=lane.samples_per_turn, calls=lane.calls_per_sample, cold=plan.cold
    )
    turn_ns = time.perf_counter_ns() - start_ns
    # A collective ends when its slowest rank ends.
    samples = [max(column) for column in zip(*(a["samples_ns"] for a in answers), strict=True)]
    lane.samples_ns += samples
    lane.turn_overhead_ns.append(turn_ns - round(sum(samples) * lane.calls_per_sample))


def _finish(lanes: list[Lane], plan: Plan, pool: Pool, *, extras: bool = True) -> None:
    """Check the timed buffers once more, collect the extras, release the memory."""
    for lane in lanes:
        if (group := lane.group) is not None:
            with _record_failure(lane, pool):
                if lane.racing:
                    lane.check = _select_worst([a["check"] for a in group.do("check", plan.timeout_s)])
                if extras:
                    lane.extras = _sum_extras([a["extras"] for a in group.do("extras", plan.timeout_s)])
                group.do("close", plan.timeout_s)


def _select_worst(checks: list[dict[str, Any]]) -> dict[str, Any]:
    return next((c for c in checks if not c["ok"]), checks[0])


def _sum_extras(extras: list[dict[str, Any]]) -> dict[str, Any]:
    """Add the numbers of all ranks; other values come from the first rank."""
    total = dict(extras[0])
    for other in extras[1:]:
        for name, value in other.items():
            if isinstance(value, int | float) and isinstance(total.get(name), int | float):
                total[name] += value
    return total


def _gpu_index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _cache_bytes(machine: Topology) -> int:
    last = max((c.level for c in machine.caches), default=0)
    return sum(c.bytes for c in machine.caches if c.level == last) or 64 << 20
