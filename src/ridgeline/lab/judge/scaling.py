"""How a path scales with workers: measured efficiency, fitted laws, and predictions that are marked as such.

    ridgeline records scaling runs/ --over ranks --at 64

Strong scaling keeps the work, weak scaling lets it grow with n. The analysis reads both the same way: efficiency is
the rate per worker relative to that of the smallest n measured. A figure beyond the largest n is PREDICTED. Beside it
stands the held-out error: how wrong the same law was about the largest n when it was fitted without that point.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ridgeline.errors import InputError
from ridgeline.lab.judge import analyse_record
from ridgeline.lab.judge.laws import ScalingFit, fit_scaling_law
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.record import Record
from ridgeline.lab.workload import OURS, format_case
from ridgeline.web import Axis, Point, Series, draw_lines

SAME_WORK = 0.01  # amounts of work within this relative difference count as equal
LAWS_BY_KIND = {"strong": ("amdahl", "usl"), "weak": ("gustafson", "usl"), "mixed": ("usl",)}


@dataclass(frozen=True)
class ScalingPoint:
    """One measurement: n workers process `items` in `seconds`."""

    n: float
    seconds: float
    items: float = 1.0
    interval: tuple[float, float] | None = None  # of the seconds
    record: str = ""

    @property
    def rate(self) -> float:
        return self.items / self.seconds


@dataclass(frozen=True)
class Step:
    """A measured point relative to the point with the fewest workers."""

    at: ScalingPoint
    speedup: float
    efficiency: float  # above 1 is superlinear: a cache that began to suffice, or a bad baseline


@dataclass(frozen=True)
class CheckedLaw:
    """A fit with its held-out error, or the reasons to doubt it."""

    fit: ScalingFit
    held_out: float | None  # |predicted / measured - 1| at the largest n, fitted without it
    held_out_n: float | None
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class Prediction:
    """What a law says about n workers. `predicted` is True outside the measured range."""

    n: float
    rate: Estimate
    speedup: float
    efficiency: float
    predicted: bool
    held_out: float | None


@dataclass(frozen=True)
class Scaling:
    """Points of one case that differ only in the number of workers, with the laws fitted to them.

    kind   strong | weak | mixed
    steps  measured points, fewest workers first
    laws   by name: amdahl, gustafson, usl
    notes  sentences about the baseline and about laws that could not be fitted
    """

    name: str
    kind: str
    steps: tuple[Step, ...]
    laws: dict[str, CheckedLaw]
    notes: tuple[str, ...]

    def predict(self, law: str, n: float) -> Prediction:
        """Return what the fitted `law` says about n workers; raises InputError for n < 1 or a law that has no fit."""
        if not 1 <= n < math.inf:
            raise InputError(f"{n:g} workers cannot be predicted; give a number from 1 up.")
        if law not in self.laws:
            raise InputError(f"{law} was not fitted to {self.name}: {' '.join(self.notes) or self.kind + ' scaling'}")
        checked, first, last = self.laws[law], self.steps[0].at, self.steps[-1].at
        rate = checked.fit.estimate_rate(n)
        speedup = rate.value / checked.fit.rate(first.n)
        beyond = not first.n <= n <= last.n
        return Prediction(n, rate, speedup, speedup * first.n / n, beyond, checked.held_out)

    def to_json(self, at: Iterable[float] = ()) -> dict[str, Any]:
        """Return the analysis as JSON data, with predictions for the worker counts `at`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "measured": [
                {
                    "n": s.at.n,
                    "seconds": s.at.seconds,
                    "items_per_s": s.at.rate,
                    "speedup": s.speedup,
                    "efficiency": s.efficiency,
                    "record": s.at.record or None,
                }
                for s in self.steps
            ],
            "laws": {name: self._law_to_json(name, law, at) for name, law in self.laws.items()},
            "notes": list(self.notes),
        }

    def _law_to_json(self, name: str, law: CheckedLaw, at: Iterable[float]) -> dict[str, Any]:
        predictions = [self.predict(name, n) for n in at]
        return {
            "parameters": {
                k: {"value": v.value, "interval": [v.low, v.high if math.isfinite(v.high) else None]}
                for k, v in law.fit.values.items()
            },
            "residual": law.fit.residual,
            "peak_n": law.fit.peak,
            "held_out_error": law.held_out,
            "held_out_n": law.held_out_n,
            "doubts": list(law.doubts),
            "at": [
                {
                    "n": p.n,
                    "predicted": p.predicted,
                    "items_per_s": p.rate.value,
                    "interval": [p.rate.low, p.rate.high if math.isfinite(p.rate.high) else None],
                    "speedup": p.speedup,
                    "efficiency": p.efficiency,
                    "held_out_error": p.held_out,
                }
                for p in predictions
            ],
        }


def analyze_scaling(points: Sequence[ScalingPoint], name: str = "these points") -> Scaling:
    """Compute efficiency and fit laws; points come in any order, the fewest workers are the baseline.

    Raises InputError for a point that is not positive and finite, and for fewer than two different worker counts.
    """
    for p in points:
        if not (1 <= p.n < math.inf and 0 < p.seconds < math.inf and 0 < p.items < math.inf):
            raise InputError(f"{name}: n = {p.n:g}, {p.seconds:g} s, {p.items:g} items cannot be a point of scaling.")
    ordered = sorted(points, key=lambda p: p.n)
    if len({p.n for p in ordered}) < 2:
        raise InputError(
            f"{name}: scaling needs at least two different numbers of workers, there is {len(ordered[:1])}."
        )
    base = ordered[0]
    steps = tuple(Step(p, p.rate / base.rate, p.rate / base.rate * base.n / p.n) for p in ordered)
    kind = _classify(ordered)
    notes = [f"relative to n = {base.n:g}, the fewest that were measured"] if base.n != 1 else []
    if kind == "mixed":
        notes.append("the work neither stays the same nor grows with n: neither Amdahl nor Gustafson applies")
    if any(s.efficiency > 1.02 for s in steps):
        notes.append("superlinear somewhere: no law here can show that; look for a cache or a poor baseline")
    laws = {}
    for law in LAWS_BY_KIND[kind]:
        try:
            laws[law] = _fit_and_check(law, ordered)
        except InputError as refusal:
            notes.append(str(refusal).rstrip("."))
    return Scaling(name, kind, steps, laws, tuple(notes))


def find_scalings(
    records: Iterable[Record], over: str = "ranks", along: str | None = None, contender: str = OURS
) -> list[Scaling]:
    """Return one `Scaling` for every group of records that differ in the parameter `over` only.

    along      a size that grows with `over` in weak scaling, and may differ too
    contender  whose times are read
    """
    families: dict[str, tuple[str, dict[float, ScalingPoint]]] = {}
    for record in records:
        n = record.case.get(over)
        row = next((r for r in analyse_record(record) if r.result.contender == contender), None)
        if isinstance(n, bool) or not isinstance(n, int | float) or n < 1 or row is None or row.assessment.time is None:
            continue
        rest = {k: v for k, v in record.case.items() if k not in (over, along)}
        key = json.dumps([record.workload, record.machine["fingerprint"], rest, record.cold], default=str)
        name = f"{record.workload} {format_case(rest)}{' · cold' if record.cold else ''} on {record.machine['cpu']}"
        time = row.assessment.time
        point = ScalingPoint(n, time.value / 1e9, record.work["items"], (time.low / 1e9, time.high / 1e9), record.id)
        families.setdefault(key, (name, {}))[1][n] = point  # the newest of each n
    return [analyze_scaling(list(points.values()), name) for name, points in families.values() if len(points) > 1]


def draw_scaling(scaling: Scaling, to: float | None = None) -> Markup:
    """Draw speed-up over n: measured points, ideal, laws as dashed lines, extended to `to` workers."""
    first, last = scaling.steps[0].at.n, scaling.steps[-1].at.n
    end = max(to or last, last)
    grid = [first * (end / first) ** (i / 24) for i in range(25)]
    measured = [
        Point(s.at.n, s.speedup, _speedup_interval(s, scaling.steps[0]), title=_hover_text(s)) for s in scaling.steps
    ]
    ideal = [Point(n, n / first) for n in (first, end)]
    curves = [Series("measured", measured), Series("ideal", ideal, dashed=True)]
    for name, law in scaling.laws.items():
        scale = law.fit.rate(first)
        curves.append(Series(name, [Point(n, law.fit.rate(n) / scale) for n in grid], dashed=True))
    beyond = f" Beyond n = {last:g} the curves are PREDICTED." if end > last else ""
    known = {name: law.held_out for name, law in scaling.laws.items() if law.held_out is not None}
    errors = ", ".join(f"{name} {error:.1%}" for name, error in known.items())
    caption = f"Dashed lines are fitted laws.{beyond}" + (f" Held-out error: {errors}." if errors else "")
    return draw_lines(
        curves,
        title=f"{scaling.name}: {scaling.kind} scaling",
        x=Axis(label="workers", scale="log2"),
        y=Axis(label="speed-up", unit="×", scale="log2"),
        caption=caption,
    )


def _classify(points: Sequence[ScalingPoint]) -> str:
    for kind, amounts in (("strong", [p.items for p in points]), ("weak", [p.items / p.n for p in points])):
        if max(amounts) <= min(amounts) * (1 + SAME_WORK):
            return kind
    return "mixed"


def _fit_and_check(name: str, points: Sequence[ScalingPoint]) -> CheckedLaw:
    fit = fit_scaling_law(name, [p.n for p in points], [p.rate for p in points])
    doubts = []
    if fit.exact:
        doubts.append("as many points as parameters: it fits whatever was measured, and has no interval")
    for parameter, value in fit.values.items():
        if value.low == 0 and value.value > 0 and not fit.exact:
            doubts.append(f"{parameter} may be 0")
    smaller = [p for p in points if p.n < points[-1].n]
    held_out = None
    if len({p.n for p in smaller}) > len(fit.law.parameters) + 1:
        without = fit_scaling_law(name, [p.n for p in smaller], [p.rate for p in smaller])
        last = [p for p in points if p.n == points[-1].n]
        actual = math.exp(sum(math.log(p.rate) for p in last) / len(last))
        held_out = abs(without.rate(points[-1].n) / actual - 1)
    else:
        doubts.append("too few points to hold one out: what it predicts is untested")
    return CheckedLaw(fit, held_out, points[-1].n if held_out is not None else None, tuple(doubts))


def _speedup_interval(step: Step, base: Step) -> tuple[float, float] | None:
    if step.at.interval is None:
        return None
    low, high = (step.at.items / seconds / base.at.rate for seconds in reversed(step.at.interval))
    return low, high


def _hover_text(step: Step) -> str:
    values: Mapping[str, str] = {
        "n": f"{step.at.n:g}",
        "speed-up": f"{step.speedup:.3f}",
        "efficiency": f"{step.efficiency:.1%}",
        "record": step.at.record[:12],
    }
    return "\n".join(f"{k} {v}" for k, v in values.items() if v)
