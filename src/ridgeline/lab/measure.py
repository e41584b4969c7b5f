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
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ridgeline.lab import stats
from ridgeline.lab.baton import ContenderLost, Entrant, Paddock, Team
from ridgeline.lab.workload import Case
from ridgeline.machine import Placement, Topology
from ridgeline.machine import plan as spread
from ridgeline.machine.placement import resolve
from ridgeline.machine.weather import weather

PLATEAU_ROUNDS = 96  # no talk of a plateau before


@dataclass(frozen=True)
class Plan:
    """How long and how closely to look."""

    budget_s: float = 6.0  # for all contenders of one case, preparation not counted
    target: float = 0.01  # relative half-width of the intervals that ends the race early
    least_rounds: int = 12
    most_rounds: int = 400
    sample_ns: int = 300_000  # a sample shorter than a scheduler's slice is rarely preempted
    turn_ns: int = 3_000_000  # a turn holds as many samples as fit in here, at least one
    timeout_s: float = 120.0  # for any single order to a contender
    cold: bool = False  # drive the inputs out of the caches before every sample
    placement: Placement = field(default_factory=Placement)
    seed: int = 0


@dataclass
class Lane:
    """One contender's part of the race, as it will stand in the record."""

    entrant: Entrant
    samples_ns: list[float] = field(default_factory=list)
    samples_per_turn: int = 1
    calls_per_sample: int = 1
    turn_overhead_ns: list[int] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    placed: dict[str, Any] = field(default_factory=dict)
    check: dict[str, Any] | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None
    team: Team | None = None

    @property
    def racing(self) -> bool:
        return self.failure is None and bool(self.check and self.check["ok"])

    def medians(self) -> list[float]:
        return stats.turns(self.samples_ns, self.samples_per_turn)


@dataclass
class Race:
    """What `measure` gives back."""

    lanes: list[Lane]
    rounds: int
    ended: str  # converged | plateau | budget | rounds | nobody left
    weather: dict[str, Any]
    placements: list[Placement]
    plan: Plan  # as it was carried out
    seconds: float = 0.0  # from the first turn to the last; preparing and checking not counted


def measure(
    reference: str,
    case: Case,
    entrants: Sequence[Entrant],
    *,
    plan: Plan,
    paddock: Paddock,
    here: Topology,
    watch: Callable[[int, float], None] = lambda _round, _share: None,
    budget: Callable[[], float] | None = None,
) -> Race:
    """Race `entrants` on one case; `watch` hears the round and the share of the budget that is spent.

    `budget` is asked when everyone is ready, where the seconds for the race hang on what preparing took.
    """
    gpu = here.gpus[_gpu_index(case.device)].uuid if case.device.startswith("cuda") and here.gpus else None
    before = weather(gpu)
    places = placements(plan.placement, case, here)
    lanes = [Lane(entrant) for entrant in entrants]
    _load(lanes, paddock, reference, case, plan, places)
    for lane in lanes:
        if lane.team is not None:
            with _survived(lane, paddock):
                _prepare(lane, lane.team, reference, case, plan, places, here)
    plan = replace(plan, budget_s=budget()) if budget else plan
    began = time.monotonic()
    rounds, ended = _rounds(lanes, plan, paddock, watch)
    seconds = time.monotonic() - began
    for lane in lanes:
        if lane.team is not None:
            with _survived(lane, paddock):
                _finish(lane, lane.team, plan)
    return Race(lanes, rounds, ended, {"before": before, "after": weather(gpu)}, places, plan, seconds)


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


def _load(lanes: list[Lane], paddock: Paddock, reference: str, case: Case, plan: Plan, places: list[Placement]) -> None:
    """Start those that do not run yet and let them load their libraries, all at once."""
    waiting = []
    for lane in lanes:
        with _survived(lane, paddock):
            lane.team = paddock.team(lane.entrant, case.ranks)
            if lane.team.fresh:
                lane.team.order("load", _places(places), **_about(lane, reference, case))
                waiting.append(lane)
    for lane in waiting:
        with _survived(lane, paddock):
            assert lane.team is not None  # noqa: S101  it has just been given one
            lane.team.answers(plan.timeout_s, forgiving=True)


def _about(lane: Lane, reference: str, case: Case) -> dict[str, Any]:
    """What a contender must know of its task."""
    told = {"params": dict(case.params), "device": case.device, "ranks": case.ranks}
    return {"workload": reference, "case": told, "contender": lane.entrant.contender}


def _places(places: list[Placement]) -> list[dict[str, Any]]:
    return [{"placement": asdict(p)} for p in places]


def _prepare(
    lane: Lane, team: Team, reference: str, case: Case, plan: Plan, places: list[Placement], here: Topology
) -> None:
    answers = team.do(
        "prepare",
        plan.timeout_s,
        _places(places),
        cold=plan.cold,
        sample_ns=plan.sample_ns,
        cache_bytes=_cache_bytes(here),
        **_about(lane, reference, case),
    )
    first = answers[0]
    longest = max(a["sample_ns"] for a in answers)
    lane.samples_per_turn = max(1, min(32, int(plan.turn_ns // max(1, longest))))
    lane.calls_per_sample = first["calls_per_sample"]
    lane.settings, lane.placed = first["settings"], first["placed"]
    lane.check = _worst([a["check"] for a in answers])


def _rounds(lanes: list[Lane], plan: Plan, paddock: Paddock, watch: Callable[[int, float], None]) -> tuple[int, str]:
    order = random.Random(plan.seed)  # noqa: S311
    start = time.monotonic()
    judge = _Judge(plan)
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
        if spent >= 1 and number >= stats.FEWEST:  # an interval needs something to stand on
            return number, "budget"
    return plan.most_rounds, "rounds"


def _turn(lane: Lane, plan: Plan) -> None:
    assert lane.team is not None  # noqa: S101  a racing lane has one
    # The same core for everyone (see contender.py), and from the end: low-numbered ones serve interrupts.
    cpus = lane.placed["cpus"]
    starts = [{"start_cpu": cpus[-1 - rank % len(cpus)]} for rank in range(lane.team.ranks)]
    sent = time.perf_counter_ns()
    answers = lane.team.do("turn", plan.timeout_s, starts, samples=lane.samples_per_turn, cold=plan.cold)
    whole = time.perf_counter_ns() - sent
    # A collective is done when its slowest rank is.
    samples = [max(column) for column in zip(*(a["samples_ns"] for a in answers), strict=True)]
    lane.samples_ns += samples
    lane.turn_overhead_ns.append(whole - round(sum(samples) * lane.calls_per_sample))


def _finish(lane: Lane, team: Team, plan: Plan) -> None:
    """Check the timed buffers once more, gather the extras, let go of the memory."""
    if lane.racing:
        lane.check = _worst([a["check"] for a in team.do("check", plan.timeout_s)])
    lane.extras = _sum([a["extras"] for a in team.do("extras", plan.timeout_s)])
    team.do("close", plan.timeout_s)


class _Judge:
    """Decides when enough is known. It looks at widths only, never at who is ahead: stopping when a difference
    shows would find differences in pure noise."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._widths: dict[int, float] = {}

    def settled(self, lanes: list[Lane], rounds: int) -> str | None:
        if rounds < self._plan.least_rounds or rounds % 4 or not lanes:
            return None
        ours = lanes[0].medians()
        widths = [stats.median(lane.medians()).relative for lane in lanes]
        widths += [stats.paired_ratio(lane.medians(), ours).relative for lane in lanes[1:]]
        widest = max(widths)
        self._widths[rounds] = widest
        if widest <= self._plan.target:
            return "converged"
        # Independent noise shrinks by 0.7 when rounds double; if it did not shrink at all, more will not help.
        half = self._widths.get(rounds // 2 // 4 * 4)
        if rounds >= PLATEAU_ROUNDS and half is not None and widest > 0.97 * half:
            return "plateau"
        return None


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
