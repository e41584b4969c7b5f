"""Scaling laws: what a batch costs by its FLOPs and bytes, how well that holds for points the law has not seen.

    seconds = a + b·FLOPs + c·bytes      by non-negative least squares of the relative errors
    … + FLOPs÷width, depth, parameters   with what else grows: values moved, launches, weights
    seconds = k·FLOPs^p·bytes^q          powers
    seconds = k·depth^p·dim^q·batch^r    powers of the sizes themselves
    seconds = f·slowest stage            each stage by its own law: what overlapping gives

All are fitted for each setting (device, place, dtype, compile mode); the one with the least error on held-out points
speaks. Unseen points lie between and beyond those of the sweeps; their FLOPs and bytes are carried over by the
polynomial through the nearest points, which is exact where they are polynomials of the size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.study.law import ONE, Datum, Fit, Law, error, held_out, power_law, slowest_law, sum_law, worst
from ridgeline.lab.study.section import Grid, Section, plain, share
from ridgeline.lab.study.sweep import Sweep, apart, said
from ridgeline.lab.study.table import NONE, Columns, Table, Trial, groups
from ridgeline.web import Axis, Point, Series, lines, si

NEAREST = 4  # points of a sweep that carry its amounts over to an unseen one
BYTES = "bytes"
NARROW = "FLOPs ÷ width"  # what is moved to be reckoned with: the narrower a model, the more of it per FLOP
CHARTS = 6
SAID = 4  # settings put into words one by one; the tables have all
GOOD = 0.15  # error on held-out points up to which a law is worth using


@dataclass(frozen=True)
class Fitted:
    """The laws of one setting that could be tried on held-out points, best first."""

    setting: Mapping[str, Any]
    data: Sequence[Datum]
    laws: Sequence[tuple[Law, list[float]]]  # with predicted over measured of held-out points

    @property
    def best(self) -> Law | None:
        return self.laws[0][0] if self.laws else None


@dataclass(frozen=True)
class Prediction:
    """One point nobody has measured."""

    setting: Mapping[str, Any]
    column: str
    at: float
    beyond: bool  # outside the sweep
    seconds: Estimate
    fixed: Mapping[str, Any]

    @property
    def doubt(self) -> float:
        """How many times the upper end is the lower."""
        e = self.seconds
        return e.high / e.low if e.low > 0 and math.isfinite(e.high) else math.inf


def fitted(table: Table) -> list[Fitted]:
    """Every setting with enough points for a law."""
    columns, found = table.columns, []
    for levels, trials in groups(table.trials, columns.setting).items():
        data = [d for t in trials if (d := datum(t, columns)) is not None]
        tried = [(law, held_out(fit, data)) for fit in _fits(columns) if (law := fit(data)) is not None]
        tried = [one for one in tried if math.isfinite(error(one[1]))]
        # Judged where all of them can say something: a power cannot speak of depth 0, and should not gain by that.
        shared = [i for i in range(len(data)) if all(math.isfinite(ratios[i]) for _, ratios in tried)]
        tried.sort(key=lambda one: (error([one[1][i] for i in shared]) if shared else 0.0, error(one[1])))
        found.append(Fitted(dict(zip(columns.setting, levels, strict=True)), data, tried))
    return found


def datum(trial: Trial, columns: Columns) -> Datum | None:
    """A trial as a law sees it; None where neither FLOPs nor bytes are told."""
    names = (columns.flops, columns.up_bytes, columns.down_bytes, columns.parameters, columns.batch, *columns.sizes)
    amounts = filled({n: v for n in names if (v := trial.number(n)) is not None and v >= 0}, columns)
    if columns.flops not in amounts and BYTES not in amounts:
        return None
    stages = {n: v for n in (columns.up, columns.compute, columns.down) if (v := trial.positive(n)) is not None}
    return Datum(amounts, trial.seconds, stages)


def filled(told: Mapping[str, float], columns: Columns) -> dict[str, float]:
    """Amounts with those that follow from them: all bytes, and FLOPs over the width."""
    amounts = dict(told)
    up, down = amounts.get(columns.up_bytes), amounts.get(columns.down_bytes)
    if up is not None or down is not None:
        amounts[BYTES] = (up or 0.0) + (down or 0.0)
    if amounts.get(columns.width) and columns.flops in amounts:
        amounts[NARROW] = amounts[columns.flops] / amounts[columns.width]
    return amounts


def predictions(table: Table, settled: Sequence[Fitted], every: Sequence[Sweep]) -> list[Prediction]:
    """Points between and beyond those of every sweep, by the best law of its setting."""
    columns, found = table.columns, []
    for one in settled:
        if one.best is None:
            continue
        for sweep in _own(one, every):
            for at, beyond in unseen([x for x, _ in sweep.points]):
                amounts = carried(sweep, at, columns)
                if amounts is not None:
                    told = one.best.predict(amounts)
                    if math.isfinite(told.value):
                        found.append(Prediction(one.setting, sweep.column, at, beyond, told, sweep.fixed))
    return found


def unseen(xs: Sequence[float]) -> list[tuple[float, bool]]:
    """Between neighbours (their geometric mean) and twice beyond the last; whole numbers stay whole.

    >>> unseen([2, 8, 12])
    [(4.0, False), (10.0, False), (24.0, True)]
    """
    whole = all(float(x).is_integer() for x in xs)
    middle = [math.sqrt(a * b) for a, b in pairwise(xs)]
    points = [(float(round(x)) if whole else x, False) for x in middle]
    return [(x, far) for x, far in [*points, (2.0 * xs[-1], True)] if x not in xs]


def carried(sweep: Sweep, at: float, columns: Columns) -> dict[str, float] | None:
    """The amounts at a point of a sweep that was not run."""
    told = [(x, d.amounts) for x, own in sweep.points for t in own[:1] if (d := datum(t, columns)) is not None]
    near = sorted(told, key=lambda p: abs(math.log(p[0] / at)))[:NEAREST]
    if len(near) < 2:
        return None
    shared = set.intersection(*(set(amounts) for _, amounts in near))
    out = {name: _lagrange([(x, amounts[name]) for x, amounts in near], at) for name in shared}
    out[sweep.column] = at
    return out if all(math.isfinite(v) and v >= 0 for v in out.values()) else None


def scaling(table: Table, settled: Sequence[Fitted], told: Sequence[Prediction], every: Sequence[Sweep]) -> Section:
    title = "Scaling laws"
    usable = [one for one in settled if one.laws]
    if not usable:
        few = max((len({tuple(sorted(d.amounts.items())) for d in one.data}) for one in settled), default=0)
        why = f"the most points of one setting are {few}" if few else "no row tells both a time and FLOPs or bytes"
        return Section(title, [f"Too few points for a law: {why}."], findings={"settings": []})
    names = apart([one.setting for one in usable])
    sentences = [_sentence(one, name) for one, name in zip(usable, names, strict=True)]
    if len(usable) > SAID:
        errors = sorted(error(one.laws[0][1]) for one in usable)
        sentences = [
            f"In {len(usable)} settings the best law predicts points it has not seen within {share(errors[0])} to "
            f"{share(errors[-1])} on average, {share(errors[len(errors) // 2])} in the middle."
        ]
    rows = [
        [name or "all", law.name, share(error(ratios)), share(worst(ratios)), str(sum(map(math.isfinite, ratios)))]
        for one, name in zip(usable, names, strict=True)
        for law, ratios in one.laws
    ]
    head = ("setting", "law", "held-out error", "worst", "over runs")
    grids = [
        Grid(head, rows, head[2:], "Mean and worst relative error on points the law had not seen, best law first.")
    ]
    grids.append(_coefficients(usable, names))
    if told:
        grids.append(_predicted(told))
    drawn = [(one, sweep) for one in usable for sweep in _own(one, every)][:CHARTS]
    charts = [c for one, sweep in drawn if (c := _chart(table, one, sweep)) is not None]
    findings = {
        "settings": [
            {
                "setting": one.setting,
                "runs": len(one.data),
                "laws": [
                    {
                        "law": law.name,
                        "held_out_error": error(ratios),
                        "held_out_worst": worst(ratios),
                        "held_out_points": sum(map(math.isfinite, ratios)),
                        "coefficients": law.coefficients,
                    }
                    for law, ratios in one.laws
                ],
            }
            for one in usable
        ],
        "predictions": [{k: v for k, v in vars(p).items() if k != "fixed"} for p in told],
    }
    return Section(title, sentences, grids, charts, plain(findings))


def _fits(columns: Columns) -> list[Fit]:
    flops, more = columns.flops, [NARROW, *columns.sizes[:1], columns.parameters]
    sizes = (*columns.sizes, columns.batch)
    compute = [sum_law("", [flops]), sum_law("", [flops, *more]), power_law("", [flops]), power_law("", sizes)]
    return [
        sum_law("a + b·FLOPs + c·bytes", [flops, BYTES]),
        sum_law(f"the sum with {', '.join(more)}", [flops, BYTES, *more]),
        power_law("k·FLOPs^p·bytes^q", [flops, BYTES]),
        power_law(f"powers of {', '.join(sizes)}", sizes),
        slowest_law(
            "the slowest stage",
            {
                columns.up: [sum_law("", [columns.up_bytes])],
                columns.compute: compute,
                columns.down: [sum_law("", [columns.down_bytes])],
            },
        ),
    ]


def _own(one: Fitted, every: Sequence[Sweep]) -> list[Sweep]:
    """The sweeps made in this setting."""
    return [s for s in every if all(s.fixed.get(n, NONE) == v for n, v in one.setting.items())]


def _lagrange(points: Sequence[tuple[float, float]], at: float) -> float:
    total = 0.0
    for i, (x, y) in enumerate(points):
        share = y
        for j, (other, _) in enumerate(points):
            if i != j:
                share *= (at - other) / (x - other)
        total += share
    return total


def _sentence(one: Fitted, name: str) -> str:
    law, ratios = one.laws[0]
    where = f"{name}: " if name else ""
    off = error(ratios)
    doubt = "" if off <= GOOD else "; that is not a law to plan with"
    return f"{where}{law.name} predicts points it has not seen within {share(off)} on average{doubt}."


def _coefficients(usable: Sequence[Fitted], names: Sequence[str]) -> Grid:
    rows = []
    for one, name in zip(usable, names, strict=True):
        law = one.laws[0][0]
        for term, e in law.coefficients.items():
            label = "constant" if term == ONE else term
            rows.append([name or "all", label, f"{e.value:.4g}", f"{e.low:.4g} to {e.high:.4g}"])
    head = ("setting", "of", "coefficient", "95 % interval")
    return Grid(head, rows, head[2:], "Coefficients of the best law: seconds per unit, or powers.")


def _predicted(told: Sequence[Prediction]) -> Grid:
    names = apart([p.fixed for p in told])
    rows = [
        [
            f"{p.column} {p.at:g}" + (f" ({name})" if name else "") + (", beyond the sweep" if p.beyond else ""),
            si(p.seconds.value, "s"),
            f"{si(p.seconds.low, 's')} to {si(p.seconds.high, 's')}",
        ]
        for p, name in zip(told, names, strict=True)
    ]
    return Grid(("unseen point", "predicted", "95 % interval"), rows, ("predicted", "95 % interval"), "Per batch.")


def _chart(table: Table, one: Fitted, sweep: Sweep) -> Markup | None:
    """Measured times along a sweep, and the band in which the law expects a further run."""
    if one.best is None:
        return None
    xs = [x for x, _ in sweep.points]
    grid = sorted({*xs, *(x for x, _ in unseen(xs))})
    band = []
    for x in grid:
        amounts = carried(sweep, x, table.columns)
        told = one.best.predict(amounts) if amounts else None
        if told is not None and math.isfinite(told.value) and told.low <= told.high:
            band.append(Point(x, told.value, (told.low, told.high)))
    columns = table.columns
    shown = (*columns.sizes, columns.batch, columns.dtype, columns.compile, columns.node)
    measured = [Point(x, t.seconds, title=str(t.row.get(columns.run, ""))) for x, own in sweep.points for t in own]
    fixed = ", ".join(said(n, sweep.fixed[n]) for n in shown if sweep.fixed.get(n, NONE) != NONE)
    return lines(
        [Series("measured", measured, apart=True), Series(one.best.name, band, band=True, dashed=True)],
        title=f"Time per batch over {sweep.column}" + (f" ({fixed})" if fixed else ""),
        x=Axis(sweep.column, scale="log2"),
        y=Axis("time per batch", "s", "log"),
        caption="The band is where the law expects 95 % of further runs; past the last measured point it extrapolates.",
    )
