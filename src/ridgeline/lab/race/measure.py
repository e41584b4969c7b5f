"""The fair race: subject and peers timed in turn, in shuffled order, under the same weather.

    race = measure(reference, case, entrants, plan=Plan(budget_s=10), paddock=paddock, here=topology())

Rounds go on until the intervals are narrow enough, the noise has plateaued, or the budget is out. A contender
that crashes, hangs or is wrong leaves the race with its reason; the others go on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ridgeline.lab.judge import stats
from ridgeline.lab.race.baton import Entrant, Paddock, Team
from ridgeline.lab.race.line import ContenderLost
from ridgeline.lab.race.plan import Judge, Lane, Plan, Race, Task
from ridgeline.lab.workload import Case
from ridgeline.machine import Placement, Topology, resolve, weather
from ridgeline.machine import plan as spread

LEAST_HEAT_S, LEAST_HEAT = 0.5, 3  # seconds and rounds of a heat with fresh processes

Watch = Callable[[int, float], None]  # hears the round and the share of the budget that is spent


def _unheard(_round: int, _share: float) -> None:
    """Nobody listens."""


def measure(
    reference: str,
    case: Case,
    entrants: Sequence[Entrant],
    *,
    plan: Plan,
    paddock: Paddock,
    here: Topology,
    watch: Watch = _unheard,
    budget: Callable[[], float] | None = None,
) -> Race:
    """Race `entrants` on one case.

    `budget` is asked when everyone is ready, where the seconds for the race hang on what preparing took.
    """
    gpu = here.gpus[_gpu_index(case.device)].uuid if case.device.startswith("cuda") and here.gpus else None
    before = weather(gpu)
    places = placements(plan.placement, case, here)
    lanes = [Lane(entrant) for entrant in entrants]
    task = Task(reference, case, places, _cache_bytes(here))
    _ready(lanes, task, plan, paddock)
    if plan.versions:
        _level([lane for lane in lanes if lane.racing])
    plan = replace(plan, budget_s=budget()) if budget else plan
    began = time.monotonic()
    rounds, ended = _rounds(lanes, plan, paddock, watch)
    seconds = time.monotonic() - began
    _finish(lanes, plan, paddock)
    return Race(task, lanes, [rounds], ended, {"before": before, "after": weather(gpu)}, plan, seconds)


def heat(race: Race, rounds: int | None, watch: Watch = _unheard) -> None:
    """Race on with fresh processes: so many rounds, or for as long as it took them to be ready.

    As long: whether luck of the processes or of the rounds is the greater one, no other length would tell more than
    twice as much in the same time.
    """
    racing = [lane for lane in race.lanes if lane.racing]
    counts = [(lane.samples_per_turn, lane.calls_per_sample) for lane in racing]
    began = time.monotonic()
    with Paddock() as paddock:
        _ready(racing, race.task, race.plan, paddock)
        for lane, held in zip(racing, counts, strict=True):  # as in the first heat: a lane holds one kind of turns
            lane.samples_per_turn, lane.calls_per_sample = held
        budget_s = max(LEAST_HEAT_S, time.monotonic() - began) if rounds is None else LEAST_HEAT_S
        seed = race.plan.seed + len(race.lanes[0].samples_ns)
        least = rounds or LEAST_HEAT
        plan = replace(race.plan, budget_s=budget_s, least_rounds=least, target=0.0, seed=seed)
        race.heats.append(_rounds(race.lanes, plan, paddock, watch)[0])
        _finish(racing, plan, paddock, extras=False)
    for lane in racing:
        lane.team = None


@contextmanager
def _survived(lane: Lane, paddock: Paddock) -> Iterator[None]:
    """Do something with a contender; if that loses it, write down why and go on without it."""
    try:
        yield
    except ContenderLost as lost:
        lane.failure = str(lost)
        if lane.team is not None:
            paddock.drop(lane.team)
            lane.team = None


def _ready(lanes: list[Lane], task: Task, plan: Plan, paddock: Paddock) -> None:
    """Start those that do not run yet and let them load their libraries, all at once; then prepare one by one."""
    fresh = []
    for lane in lanes:
        with _survived(lane, paddock):
            lane.team = paddock.team(lane.entrant, task.case.ranks)
            if lane.team.fresh:
                lane.team.order("load", task.per_rank, **task.order(lane))
                fresh.append((lane, lane.team))
    for lane, team in fresh:
        with _survived(lane, paddock):
            team.answers(plan.timeout_s, forgiving=True)
    for lane in lanes:
        if lane.team is not None:
            with _survived(lane, paddock):
                _prepare(lane, lane.team, task, plan)


def _prepare(lane: Lane, team: Team, task: Task, plan: Plan) -> None:
    answers = team.do(
        "prepare",
        plan.timeout_s,
        task.per_rank,
        cold=plan.cold,
        sample_ns=plan.sample_ns,
        cache_bytes=task.cache_bytes,
        **task.order(lane),
    )
    first = answers[0]
    longest = max(a["sample_ns"] for a in answers)
    lane.samples_per_turn = max(1, min(32, int(plan.turn_ns // max(1, longest))))
    lane.calls_per_sample = first["calls_per_sample"]
    lane.settings, lane.placed = first["settings"], first["placed"]
    lane.check = _worst([a["check"] for a in answers])


def _level(lanes: list[Lane]) -> None:
    """As many samples a turn, and as many calls a sample, for all versions of one code.

    The first sample after the inputs were rewritten may be a slow one, which counts for more in a short turn. A sample
    that was interrupted while they were counted made for fewer of them: so the most is right.
    """
    calls = max((lane.calls_per_sample for lane in lanes), default=1)
    for lane in lanes:
        lane.samples_per_turn = max(1, max(x.samples_per_turn * x.calls_per_sample for x in lanes) // calls)
    for lane in lanes:
        lane.calls_per_sample = calls


def _rounds(lanes: list[Lane], plan: Plan, paddock: Paddock, watch: Watch) -> tuple[int, str]:
    order = random.Random(plan.seed)  # noqa: S311
    start = time.monotonic()
    judge = Judge(plan)
    fewest = plan.least_rounds if plan.versions else stats.FEWEST  # an interval needs something to stand on
    for number in range(1, plan.most_rounds + 1):
        racing = [lane for lane in lanes if lane.racing]
        if not racing:
            return number - 1, "nobody left"
        for lane in order.sample(racing, len(racing)):
            with _survived(lane, paddock):
                _turn(lane, plan)
        spent = (time.monotonic() - start) / plan.budget_s
        watch(number, min(1.0, spent))
        verdict = judge.settled([lane for lane in racing if lane.racing], number)
        if verdict:
            return number, verdict
        if spent >= 1 and number >= fewest:
            return number, "budget"
    return plan.most_rounds, "rounds"


def _turn(lane: Lane, plan: Plan) -> None:
    assert lane.team is not None  # noqa: S101  a racing lane has one
    # The same core for everyone (see contender.py), and from the end: low-numbered ones serve interrupts.
    cpus = lane.placed["cpus"]
    starts = [{"start_cpu": cpus[-1 - rank % len(cpus)]} for rank in range(lane.team.ranks)]
    sent = time.perf_counter_ns()
    answers = lane.team.do(
        "turn", plan.timeout_s, starts, samples=lane.samples_per_turn, calls=lane.calls_per_sample, cold=plan.cold
    )
    whole = time.perf_counter_ns() - sent
    # A collective is done when its slowest rank is.
    samples = [max(column) for column in zip(*(a["samples_ns"] for a in answers), strict=True)]
    lane.samples_ns += samples
    lane.turn_overhead_ns.append(whole - round(sum(samples) * lane.calls_per_sample))


def _finish(lanes: list[Lane], plan: Plan, paddock: Paddock, *, extras: bool = True) -> None:
    """Check the timed buffers once more, gather the extras, let go of the memory."""
    for lane in lanes:
        if (team := lane.team) is not None:
            with _survived(lane, paddock):
                if lane.racing:
                    lane.check = _worst([a["check"] for a in team.do("check", plan.timeout_s)])
                if extras:
                    lane.extras = _sum([a["extras"] for a in team.do("extras", plan.timeout_s)])
                team.do("close", plan.timeout_s)


def _worst(checks: list[dict[str, Any]]) -> dict[str, Any]:
    return next((c for c in checks if not c["ok"]), checks[0])


def _sum(extras: list[dict[str, Any]]) -> dict[str, Any]:
    """Counters add up over ranks; what is no number is taken from the first."""
    total = dict(extras[0])
    for other in extras[1:]:
        for name, value in other.items():
            if isinstance(value, int | float) and isinstance(total.get(name), int | float):
                total[name] += value
    return total


def placements(wanted: Placement, case: Case, here: Topology) -> list[Placement]:
    """One per rank: as asked for; several ranks without a wish are spread as `machine.plan` says."""
    if case.ranks == 1:
        gpu = _gpu_index(case.device) if case.device.startswith("cuda") else None
        chosen = Placement(wanted.node, wanted.cpus, wanted.memory, wanted.gpu if wanted.gpu is not None else gpu)
        return [resolve(chosen, here)]
    if wanted != Placement():
        return [resolve(wanted, here)] * case.ranks
    if case.ranks > len(here.usable_cpus):
        return [resolve(wanted, here)] * case.ranks  # more ranks than CPUs: they share all of them
    return spread(here, case.ranks, "gpu" if case.device.startswith("cuda") else "core")


def _gpu_index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _cache_bytes(here: Topology) -> int:
    last = max((c.level for c in here.caches), default=0)
    return sum(c.bytes for c in here.caches if c.level == last) or 64 << 20
