"""What to run next: the points where the study is least sure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ridgeline.lab.judge.stats import FEWEST
from ridgeline.lab.study.crossover import Crossover, interval
from ridgeline.lab.study.scaling import Prediction
from ridgeline.lab.study.significance import FEW, Finding
from ridgeline.lab.study.stability import CALM, Pace
from ridgeline.lab.study.sweep import Sweep
from ridgeline.lab.study.table import NONE

MOST = 3  # of each kind
WIDE = 1.2  # upper end of a crossover's interval over its lower: beyond it another size is worth running


def following(
    unseen: Sequence[Prediction],
    crossings: Sequence[tuple[Sweep, Crossover]],
    found: Sequence[Finding],
    paces: Sequence[Pace],
) -> list[dict[str, Any]]:
    """Each with its column and value where it is a point, the words for it, and why."""
    return [*_sizes(unseen), *_crossings(crossings), *_repeats(found), *_longer(paces)]


def _sizes(unseen: Sequence[Prediction]) -> list[dict[str, Any]]:
    ranked = sorted(unseen, key=lambda p: -p.doubt)
    told: dict[tuple[str, float], Prediction] = {}
    for p in ranked:
        told.setdefault((p.column, p.at), p)
    return [
        {
            "column": p.column,
            "at": p.at,
            "what": f"{p.column} {p.at:g}{_where(p)}",
            "why": f"the law's 95 % interval there spans a factor of {p.doubt:.2g}",
        }
        for p in list(told.values())[:MOST]
        if p.doubt > WIDE and math.isfinite(p.doubt)
    ]


def _crossings(crossings: Sequence[tuple[Sweep, Crossover]]) -> list[dict[str, Any]]:
    found: dict[tuple[str, float], dict[str, Any]] = {}
    for sweep, one in crossings:
        if one.at is None or (one.inside and one.low and one.high and one.high / one.low <= WIDE):
            continue
        at = _unrun(one, one.at, [x for x, _ in sweep.points])
        if at is not None:
            why = f"the crossover near it is known only as {interval(one)}"
            found[one.column, at] = {"column": one.column, "at": at, "what": f"{one.column} {at:g}", "why": why}
    return list(found.values())[:MOST]


def _unrun(one: Crossover, middle: float, run: Sequence[float]) -> float | None:
    """A size within the interval that was not run, as near to its middle as there is; whole if sizes are."""
    if not all(x.is_integer() for x in run):
        return middle
    low, high = one.low or middle / 2, one.high or middle * 2
    ends = max(1, math.floor(low)), math.ceil(high)
    free = {float(round(low + (high - low) * k / 64)) for k in range(65)} - set(run)
    return min((x for x in free if ends[0] <= x <= ends[1]), key=lambda x: abs(x - middle), default=None)


def _repeats(found: Sequence[Finding]) -> list[dict[str, Any]]:
    few = [f for f in found if f.word == FEW]
    if not few:
        return []
    pairs = min(f.contrast.ratio.n for f in few)
    times = math.ceil(FEWEST / max(pairs, 1))
    names = ", ".join(dict.fromkeys(f.contrast.factor for f in few))
    why = f"{names} had as few as {pairs} pairs, and a test needs {FEWEST}"
    return [{"column": None, "at": None, "what": f"the whole study {times} times over", "why": why}]


def _longer(paces: Sequence[Pace]) -> list[dict[str, Any]]:
    off = [p for p in paces if p.word not in CALM]
    if not off:
        return []
    why = f"{len(off)} {'run' if len(off) == 1 else 'runs'} did not keep the pace"
    return [{"column": None, "at": None, "what": "those runs again, longer, on an idle machine", "why": why}]


def _where(p: Prediction) -> str:
    told = [f"{n} {v}" for n, v in p.setting.items() if v != NONE and n in ("dtype", "compile_mode")]
    return f" ({', '.join(told)})" if told else ""
