"""What a race is: how long to look, each contender's part, and when enough is known."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ridgeline.lab.judge import stats
from ridgeline.lab.race.baton import Entrant, Team
from ridgeline.lab.workload import Case
from ridgeline.machine import Placement

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
    versions: bool = False  # contenders are versions of one code: see `heats.py`
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


@dataclass(frozen=True)
class Task:
    """What all contenders are told."""

    reference: str
    case: Case
    places: list[Placement]
    cache_bytes: int

    def order(self, lane: Lane) -> dict[str, Any]:
        case = {"params": dict(self.case.params), "device": self.case.device, "ranks": self.case.ranks}
        return {"workload": self.reference, "case": case, "contender": lane.entrant.contender}

    @property
    def per_rank(self) -> list[dict[str, Any]]:
        return [{"placement": asdict(place)} for place in self.places]


@dataclass
class Race:
    """What `measure` gives back."""

    task: Task
    lanes: list[Lane]
    heats: list[int]  # rounds of each; more than one where fresh processes had to tell more, see `heats.py`
    ended: str  # the first: converged | plateau | budget | rounds | nobody left
    weather: dict[str, Any]
    plan: Plan  # as it was carried out
    seconds: float = 0.0  # of the first heat's rounds; preparing and checking not counted


class Judge:
    """Decides when enough is known. It looks at widths only, never at who is ahead: stopping when a difference
    shows would find differences in pure noise."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._widths: dict[int, list[float]] = {}

    def settled(self, lanes: list[Lane], rounds: int) -> str | None:
        if rounds < self._plan.least_rounds or rounds % 4 or not lanes:
            return None
        ours = lanes[0].medians()
        ratios_only = self._plan.versions and len(lanes) > 1  # how long each takes is not the question
        widths = [] if ratios_only else [stats.median(lane.medians()).relative for lane in lanes]
        widths += [stats.paired_ratio(lane.medians(), ours).relative for lane in lanes[1:]]
        self._widths[rounds] = widths
        if max(widths) <= self._plan.target:
            return "converged"
        # Independent noise shrinks by 0.7 when rounds double; where none of it shrank at all, more will not help.
        half = self._widths.get(rounds // 2 // 4 * 4, [])
        if rounds >= PLATEAU_ROUNDS and len(half) == len(widths) and not ratios_only:  # a ratio's noise always shrinks
            wide = [(now, then) for now, then in zip(widths, half, strict=True) if now > self._plan.target]
            if all(now > 0.97 * then for now, then in wide):
                return "plateau"
        return None
