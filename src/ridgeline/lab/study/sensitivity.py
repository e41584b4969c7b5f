"""Which points suffer most from a far node, and whether that follows from how much of their time is transfers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ridgeline.lab.study.contrast import Contrast, Pair, contrast
from ridgeline.lab.study.section import Grid, percent, share, spread
from ridgeline.lab.study.sweep import apart
from ridgeline.lab.study.table import Columns, Trial
from ridgeline.lab.study.trend import Trend, trend
from ridgeline.web import Axis, Point, Series, lines

MOST = 10


@dataclass(frozen=True)
class Sensitive:
    """One point from one far node."""

    what: dict[str, Any]
    node: Any
    penalty: Contrast
    transfers: float | None  # share of the stages' time that goes into transfers, from the nearest node


def sensitivities(far: Sequence[Pair], columns: Columns) -> list[Sensitive]:
    """Every point by itself, the most sensitive first; repeats of a point together."""
    places = (columns.node, columns.distance)
    points: dict[tuple[Any, ...], list[Pair]] = {}
    for a, b in far:
        points.setdefault(tuple(b.level(n) for n in columns.identity), []).append((a, b))
    found = []
    for own in points.values():
        a, b = own[0]
        what = {n: a.level(n) for n in columns.identity if n not in places}
        node = b.level(columns.node)
        effect = contrast(own, columns.node, a.level(columns.node), node)
        found.append(Sensitive(what, node, effect, transfer_share(a, columns)))
    return sorted(found, key=lambda s: -s.penalty.ratio.value)


def with_transfers(found: Sequence[Sensitive]) -> Trend | None:
    """How the logarithm of the penalty rises with the share of transfers."""
    told = [(s.transfers, math.log(s.penalty.ratio.value)) for s in found if s.transfers is not None]
    return trend([x for x, _ in told], [y for _, y in told]) if len({x for x, _ in told}) > 1 else None


def sentences(found: Sequence[Sensitive], rises: Trend | None) -> list[str]:
    names = apart([s.what for s in found])
    said = []
    if len(found) > 1:
        worst = found[0]
        said.append(
            f"The most sensitive point: {names[0] or 'the point'}, "
            f"{percent(worst.penalty.ratio.value)} from node {worst.node}."
        )
    if rises is not None and math.isfinite(rises.slope):
        test = f"p = {rises.p:.2g}" if rises.p is not None else "too few points for a test"
        change = percent(rises.factor(0.1))
        said.append(f"For every tenth of the time that goes into transfers the penalty changes by {change} ({test}).")
    return said


def grid(found: Sequence[Sensitive]) -> Grid:
    names = apart([s.what for s in found])
    head = ("point", "from node", "time", "95 % interval", "transfer share", "pairs")
    rows = [
        [
            name or "the point",
            str(s.node),
            percent(s.penalty.ratio.value),
            spread(s.penalty.ratio),
            share(s.transfers),
            str(s.penalty.ratio.n),
        ]
        for s, name in zip(found, names, strict=True)
    ]
    return Grid(head, rows, head[2:], "Each point by itself, the most sensitive first.", most=MOST)


def chart(found: Sequence[Sensitive]) -> list[Markup]:
    """Penalty over transfer share, a dot per point."""
    names = apart([s.what for s in found])
    series: dict[str, list[Point]] = {}
    for s, name in zip(found, names, strict=True):
        if s.transfers is not None:
            ratio = s.penalty.ratio
            about = f"{name}\nfrom node {s.node}: {percent(ratio.value)}\n{share(s.transfers)} of the time in transfers"
            series.setdefault(f"from node {s.node}", []).append(Point(s.transfers, ratio.value, title=about))
    if sum(map(len, series.values())) < 3:
        return []
    return [
        lines(
            [Series(name, points, apart=True) for name, points in series.items()],
            title="Penalty over the share of transfers",
            x=Axis("share of the stages' time in transfers, from the nearest node", low=0.0, high=1.0),
            y=Axis("time over time from the nearest node", "×"),
            reference=1.0,
            reference_label="as from the nearest node",
            caption="A dot is one point of the study. What computes long enough hides where its memory lies.",
        )
    ]


def transfer_share(trial: Trial, columns: Columns) -> float | None:
    """The part of the stages' time that goes into transfers; None where the stages are not told."""
    ways = [v for v in (trial.positive(columns.up), trial.positive(columns.down)) if v is not None]
    compute = trial.positive(columns.compute)
    return sum(ways) / (sum(ways) + compute) if ways and compute is not None else None
