"""How a path scales with workers: measured efficiency, fitted laws, and predictions that are marked as such.

    ridgeline records scaling runs/ --over ranks --at 64

Strong scaling keeps the work, weak scaling lets it grow with n. Both read the same way here: efficiency is the rate
per worker relative to that of the fewest workers measured. A figure beyond the largest n is PREDICTED; beside it
stands the held-out error: how wrong the same law was about the largest n when it had not seen it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ridgeline.errors import InputError
from ridgeline.lab.judge import analyse, laws
from ridgeline.lab.judge.laws import Fit
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.record.record import Record
from ridgeline.lab.workload import OURS, label
from ridgeline.web import Axis, Point, Series, lines

ALIKE = 0.01  # amounts of work within this are the same
OF_KIND = {"strong": ("amdahl", "usl"), "weak": ("gustafson", "usl"), "mixed": ("usl",)}


@dataclass(frozen=True)
class Measured:
    """One point: n workers did `items` in `seconds`."""

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
    """A measured point relative to the fewest workers."""

    at: Measured
    speedup: float
    efficiency: float  # above 1 is superlinear: a cache that began to suffice, or a bad baseline


@dataclass(frozen=True)
class Law:
    """A fit and what it is worth: its held-out error, or why there is none."""

    fit: Fit
    held_out: float | None  # |predicted / measured - 1| at the largest n, fitted without it
    held_out_n: float | None
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class Prediction:
    """A law's word about n. `predicted` is True beyond what was measured."""

    n: float
    rate: Estimate
    speedup: float
    efficiency: float
    predicted: bool
    held_out: float | None


@dataclass(frozen=True)
class Scaling:
    """A family of points, all equal but for the number of workers."""

    name: str
    kind: str  # strong | weak | mixed
    steps: tuple[Step, ...]
    laws: dict[str, Law]
    notes: tuple[str, ...]

    def predict(self, law: str, n: float) -> Prediction:
        """What a fitted law says of n workers."""
        if not 1 <= n < math.inf:
            raise InputError(f"{n:g} workers cannot be predicted; give a number from 1 up.")
        if law not in self.laws:
            raise InputError(f"{law} was not fitted to {self.name}: {' '.join(self.notes) or self.kind + ' scaling'}")
        found, first, last = self.laws[law], self.steps[0].at, self.steps[-1].at
        rate = found.fit.at(n)
        speedup = rate.value / found.fit.rate(first.n)
        beyond = not first.n <= n <= last.n
        return Prediction(n, rate, speedup, speedup * first.n / n, beyond, found.held_out)

    def to_json(self, at: Iterable[float] = ()) -> dict[str, Any]:
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
            "laws": {name: self._law(name, law, at) for name, law in self.laws.items()},
            "notes": list(self.notes),
        }

    def _law(self, name: str, law: Law, at: Iterable[float]) -> dict[str, Any]:
        told = [self.predict(name, n) for n in at]
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
                for p in told
            ],
        }


def scaling(points: Sequence[Measured], name: str = "these points") -> Scaling:
    """Efficiency and laws from points in any order; the fewest workers are the baseline."""
    for p in points:
        if not (1 <= p.n < math.inf and 0 < p.seconds < math.inf and 0 < p.items < math.inf):
            raise InputError(f"{name}: n = {p.n:g}, {p.seconds:g} s, {p.items:g} items cannot be a point of scaling.")
    held = sorted(points, key=lambda p: p.n)
    if len({p.n for p in held}) < 2:
        raise InputError(f"{name}: scaling needs at least two different numbers of workers, there is {len(held[:1])}.")
    base = held[0]
    steps = tuple(Step(p, p.rate / base.rate, p.rate / base.rate * base.n / p.n) for p in held)
    kind = _kind(held)
    notes = [f"relative to n = {base.n:g}, the fewest that were measured"] if base.n != 1 else []
    if kind == "mixed":
        notes.append("the work neither stays the same nor grows with n: neither Amdahl nor Gustafson applies")
    if any(s.efficiency > 1.02 for s in steps):
        notes.append("superlinear somewhere: no law here can show that; look for a cache or a poor baseline")
    fitted = {}
    for law in OF_KIND[kind]:
        try:
            fitted[law] = _law(law, held)
        except InputError as refusal:
            notes.append(str(refusal).rstrip("."))
    return Scaling(name, kind, steps, fitted, tuple(notes))


def of_records(
    records: Iterable[Record], over: str = "ranks", along: str | None = None, contender: str = OURS
) -> list[Scaling]:
    """Every family of valid times that differ in `over` only (and in `along`, the size that grows with it)."""
    families: dict[str, tuple[str, dict[float, Measured]]] = {}
    for record in records:
        n = record.case.get(over)
        row = next((r for r in analyse.rows(record) if r.lane.contender == contender), None)
        if isinstance(n, bool) or not isinstance(n, int | float) or n < 1 or row is None or row.judged.time is None:
            continue
        rest = {k: v for k, v in record.case.items() if k not in (over, along)}
        key = json.dumps([record.workload, record.machine["fingerprint"], rest, record.cold], default=str)
        name = f"{record.workload} {label(rest)}{' · cold' if record.cold else ''} on {record.machine['cpu']}"
        time = row.judged.time
        point = Measured(n, time.value / 1e9, record.work["items"], (time.low / 1e9, time.high / 1e9), record.id)
        families.setdefault(key, (name, {}))[1][n] = point  # the newest of each n
    return [scaling(list(points.values()), name) for name, points in families.values() if len(points) > 1]


def figure(found: Scaling, to: float | None = None) -> Markup:
    """Speed-up over n: points as measured, laws dashed, drawn on to `to` where that is predicted."""
    first, last = found.steps[0].at.n, found.steps[-1].at.n
    end = max(to or last, last)
    grid = [first * (end / first) ** (i / 24) for i in range(25)]
    measured = [Point(s.at.n, s.speedup, _between(s, found.steps[0]), title=_hover(s)) for s in found.steps]
    ideal = [Point(n, n / first) for n in (first, end)]
    curves = [Series("measured", measured), Series("ideal", ideal, dashed=True)]
    for name, law in found.laws.items():
        scale = law.fit.rate(first)
        curves.append(Series(name, [Point(n, law.fit.rate(n) / scale) for n in grid], dashed=True))
    beyond = f" Beyond n = {last:g} the curves are PREDICTED." if end > last else ""
    told = {n: law.held_out for n, law in found.laws.items() if law.held_out is not None}
    errors = ", ".join(f"{name} {error:.1%}" for name, error in told.items())
    caption = f"Dashed lines are fitted laws.{beyond}" + (f" Held-out error: {errors}." if errors else "")
    return lines(
        curves,
        title=f"{found.name}: {found.kind} scaling",
        x=Axis(label="workers", scale="log2"),
        y=Axis(label="speed-up", unit="×", scale="log2"),
        caption=caption,
    )


def _kind(points: Sequence[Measured]) -> str:
    for kind, amounts in (("strong", [p.items for p in points]), ("weak", [p.items / p.n for p in points])):
        if max(amounts) <= min(amounts) * (1 + ALIKE):
            return kind
    return "mixed"


def _law(name: str, points: Sequence[Measured]) -> Law:
    found = laws.fit(name, [p.n for p in points], [p.rate for p in points])
    doubts = []
    if found.exact:
        doubts.append("as many points as parameters: it fits whatever was measured, and has no interval")
    for parameter, value in found.values.items():
        if value.low == 0 and value.value > 0 and not found.exact:
            doubts.append(f"{parameter} cannot be told from 0")
    seen = [p for p in points if p.n < points[-1].n]
    held_out = None
    if len({p.n for p in seen}) > len(found.law.parameters) + 1:
        without = laws.fit(name, [p.n for p in seen], [p.rate for p in seen])
        last = [p for p in points if p.n == points[-1].n]
        actual = math.exp(sum(math.log(p.rate) for p in last) / len(last))
        held_out = abs(without.rate(points[-1].n) / actual - 1)
    else:
        doubts.append("too few points to hold one out: what it predicts is untested")
    return Law(found, held_out, points[-1].n if held_out is not None else None, tuple(doubts))


def _between(step: Step, base: Step) -> tuple[float, float] | None:
    if step.at.interval is None:
        return None
    low, high = (step.at.items / seconds / base.at.rate for seconds in reversed(step.at.interval))
    return low, high


def _hover(step: Step) -> str:
    told: Mapping[str, str] = {
        "n": f"{step.at.n:g}",
        "speed-up": f"{step.speedup:.3f}",
        "efficiency": f"{step.efficiency:.1%}",
        "record": step.at.record[:12],
    }
    return "\n".join(f"{k} {v}" for k, v in told.items() if v)
