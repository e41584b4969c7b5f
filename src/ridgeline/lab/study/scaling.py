"""How time grows with a model: scaling laws with predictions for points that were not run, and regimes along sweeps.

    seconds = a + b·FLOPs + c·bytes      by non-negative least squares of the relative errors
    … + FLOPs÷width, depth, parameters   with other amounts that grow: values moved, launches, weights
    seconds = k·FLOPs^p·bytes^q          powers
    seconds = k·depth^p·dim^q·batch^r    powers of the sizes themselves
    seconds = f·slowest stage            each stage by its own law: the time of an overlapped pipeline

Every setting (device, place, dtype, compile mode) gets all laws; the law with the least error on held-out points makes
the predictions. Predicted points lie between and beyond the points of the sweeps. Their FLOPs and bytes come from the
polynomial through the nearest points, which is exact where they are polynomials of the size.

A regime is a stretch of a sweep on which one straight line fits log time over log work; its slope is the exponent that
names it: flat, sub-linear, linear or super-linear. Work is FLOPs where they grow along the sweep, else the column of
the sweep. Linear time is a saturated rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.lab.judge import (
    MIN_OBSERVATIONS,
    ONE,
    CostLaw,
    Estimate,
    FitCost,
    Observation,
    cross_validate,
    mean_error,
    median,
    power_law,
    slowest_stage_law,
    sum_law,
    worst_error,
)
from ridgeline.lab.study.section import Grid, Section, format_share, to_json
from ridgeline.lab.study.table import (
    NONE,
    Columns,
    Sweep,
    Table,
    Trial,
    format_level,
    group_trials,
    name_differences,
    name_sweeps,
    to_level,
)
from ridgeline.web import Axis, Point, Series, draw_lines, format_si

Array = NDArray[np.float64]
NEAREST = 4  # points of a sweep that give the amounts of a point that was not run
BYTES = "bytes"
FLOPS_PER_WIDTH = "FLOPs ÷ width"  # stands for values moved per FLOP: a narrow model moves more
MAX_CHARTS = 6
MAX_SENTENCES = 4  # settings with a sentence each; the tables have all settings
GOOD = 0.15  # error on held-out points up to which a law is good enough to plan with
FLAT, LINEAR, STEEP = 0.2, 0.85, 1.15  # exponents at which the regime changes
STRAIGHT = 0.06  # least allowed distance of a point from its line: two runs of equal code differ by this much
RATES = {"flat": "rising", "sub-linear": "rising", "linear": "saturated", "super-linear": "falling"}


@dataclass(frozen=True)
class SettingLaws:
    """The laws of one setting that passed cross-validation, best first."""

    setting: Mapping[str, Any]
    data: Sequence[Observation]
    laws: Sequence[tuple[CostLaw, list[float]]]  # with predicted over measured of held-out points

    @property
    def best(self) -> CostLaw | None:
        return self.laws[0][0] if self.laws else None


@dataclass(frozen=True)
class Prediction:
    """The time of one point that was not run."""

    setting: Mapping[str, Any]
    column: str
    at: float
    beyond: bool  # outside the sweep
    seconds: Estimate
    fixed: Mapping[str, Any]

    @property
    def doubt(self) -> float:
        """The upper end of the interval over its lower end."""
        e = self.seconds
        return e.high / e.low if e.low > 0 and math.isfinite(e.high) else math.inf


@dataclass(frozen=True)
class Stretch:
    """A part of a sweep in one regime."""

    column: str
    fixed: Mapping[str, Any]
    start: float
    end: float
    regime: str  # of time against work
    rate: str  # of work per second: rising | saturated | falling
    exponent: float
    work: str  # the unit of work: FLOPs, or the column of the sweep


def fit_laws(table: Table) -> list[SettingLaws]:
    """Fit and cross-validate all laws in every setting."""
    columns, settings = table.columns, []
    for levels, trials in group_trials(table.trials, columns.setting).items():
        data = [d for t in trials if (d := read_observation(t, columns)) is not None]
        laws = [(law, cross_validate(fit, data)) for fit in _list_fits(columns) if (law := fit(data)) is not None]
        laws = [pair for pair in laws if math.isfinite(mean_error(pair[1]))]
        # Compare laws on points that all of them can predict: a power law cannot predict depth 0, and must not gain
        # by that.
        shared = [i for i in range(len(data)) if all(math.isfinite(ratios[i]) for _, ratios in laws)]
        laws.sort(key=lambda pair: (mean_error([pair[1][i] for i in shared]) if shared else 0.0, mean_error(pair[1])))
        settings.append(SettingLaws(dict(zip(columns.setting, levels, strict=True)), data, laws))
    return settings


def read_observation(trial: Trial, columns: Columns) -> Observation | None:
    """Return a trial as an observation for laws; None where it has neither FLOPs nor bytes."""
    names = (columns.flops, columns.up_bytes, columns.down_bytes, columns.parameters, columns.batch, *columns.sizes)
    amounts = derive_amounts({n: v for n in names if (v := trial.number(n)) is not None and v >= 0}, columns)
    if columns.flops not in amounts and BYTES not in amounts:
        return None
    stages = {n: v for n in (columns.up, columns.compute, columns.down) if (v := trial.positive(n)) is not None}
    return Observation(amounts, trial.seconds, stages)


def derive_amounts(known: Mapping[str, float], columns: Columns) -> dict[str, float]:
    """Return the amounts with those that follow from them: all bytes, and FLOPs over the width."""
    amounts = dict(known)
    up, down = amounts.get(columns.up_bytes), amounts.get(columns.down_bytes)
    if up is not None or down is not None:
        amounts[BYTES] = (up or 0.0) + (down or 0.0)
    if amounts.get(columns.width) and columns.flops in amounts:
        amounts[FLOPS_PER_WIDTH] = amounts[columns.flops] / amounts[columns.width]
    return amounts


def predict_seconds(
    settings: Sequence[SettingLaws], amounts: Mapping[str, float], setting: Mapping[str, Any], columns: Columns
) -> Estimate:
    """Return the seconds per batch of a point that was not run, with the interval that holds 95 % of such runs.

    The best law of the setting that can use these amounts makes the prediction. Raises InputError where `setting`
    selects no law or several, or where no law can use the amounts.
    """
    unknown = [name for name in setting if name not in columns.setting]
    if unknown:
        raise InputError(f"'{unknown[0]}' is no part of a setting; those are {', '.join(columns.setting)}.")
    usable = [one for one in settings if one.best is not None]
    matches = [one for one in usable if all(one.setting[n] == to_level(v) for n, v in setting.items())]
    if len(matches) != 1:
        names = (
            "; ".join(name or "the only one" for name in name_differences([one.setting for one in usable])) or "none"
        )
        many = f"{len(matches)} settings have" if matches else "no setting has"
        raise InputError(f"{many} a law for this request; name one setting. There are laws for: {names}.")
    all_amounts = derive_amounts(amounts, columns)
    predictions = (law.predict(all_amounts) for law, _ in matches[0].laws)
    prediction = next((e for e in predictions if e.value > 0), None)  # NaN where a law needs another amount
    if prediction is None:
        needed = ", ".join(sorted(set().union(*(d.amounts for d in matches[0].data))))
        raise InputError(
            f"no law can predict from {', '.join(amounts) or 'nothing'}; laws use some of these amounts: {needed}."
        )
    return prediction


def predict_unseen(table: Table, settings: Sequence[SettingLaws], sweeps: Sequence[Sweep]) -> list[Prediction]:
    """Predict points between and beyond those of every sweep, by the best law of its setting."""
    columns, predictions = table.columns, []
    for one in settings:
        if one.best is None:
            continue
        for sweep in _select_sweeps(one, sweeps):
            for at, beyond in choose_unseen([x for x, _ in sweep.points]):
                amounts = interpolate_amounts(sweep, at, columns)
                if amounts is not None:
                    seconds = one.best.predict(amounts)
                    if math.isfinite(seconds.value):
                        predictions.append(Prediction(one.setting, sweep.column, at, beyond, seconds, sweep.fixed))
    return predictions


def choose_unseen(xs: Sequence[float]) -> list[tuple[float, bool]]:
    """Return (point, beyond the sweep): geometric means of neighbours, and twice the last; integers stay integers.

    >>> choose_unseen([2, 8, 12])
    [(4.0, False), (10.0, False), (24.0, True)]
    """
    integers = all(float(x).is_integer() for x in xs)
    middles = [math.sqrt(a * b) for a, b in pairwise(xs)]
    points = [(float(round(x)) if integers else x, False) for x in middles]
    return [(x, far) for x, far in [*points, (2.0 * xs[-1], True)] if x not in xs]


def interpolate_amounts(sweep: Sweep, at: float, columns: Columns) -> dict[str, float] | None:
    """Return the amounts at a point of a sweep that was not run; None where the sweep has too few."""
    known = [
        (x, d.amounts) for x, ts in sweep.points for t in ts[:1] if (d := read_observation(t, columns)) is not None
    ]
    nearest = sorted(known, key=lambda p: abs(math.log(p[0] / at)))[:NEAREST]
    if len(nearest) < 2:
        return None
    shared = set.intersection(*(set(amounts) for _, amounts in nearest))
    values = {name: _interpolate([(x, amounts[name]) for x, amounts in nearest], at) for name in shared}
    values[sweep.column] = at
    return values if all(math.isfinite(v) and v >= 0 for v in values.values()) else None


def describe_scaling(
    table: Table, settings: Sequence[SettingLaws], predictions: Sequence[Prediction], sweeps: Sequence[Sweep]
) -> Section:
    """Return the section on scaling laws: errors, coefficients, predictions and charts."""
    title = "Scaling laws"
    usable = [one for one in settings if one.laws]
    if not usable:
        most = max((len({tuple(sorted(d.amounts.items())) for d in one.data}) for one in settings), default=0)
        why = f"the most points of one setting are {most}" if most else "no row has both a time and FLOPs or bytes"
        return Section(title, [f"Too few points for a law: {why}."], findings={"settings": []})
    names = name_differences([one.setting for one in usable])
    sentences = [_describe_setting(one, name) for one, name in zip(usable, names, strict=True)]
    if len(usable) > MAX_SENTENCES:
        errors = sorted(mean_error(one.laws[0][1]) for one in usable)
        sentences = [
            f"In {len(usable)} settings the best law predicts points it has not seen within {format_share(errors[0])} "
            f"to {format_share(errors[-1])} on average, {format_share(errors[len(errors) // 2])} in the middle."
        ]
    rows = [
        [
            name or "all",
            law.name,
            format_share(mean_error(ratios)),
            format_share(worst_error(ratios)),
            str(sum(map(math.isfinite, ratios))),
        ]
        for one, name in zip(usable, names, strict=True)
        for law, ratios in one.laws
    ]
    head = ("setting", "law", "held-out error", "worst", "over runs")
    grids = [
        Grid(head, rows, head[2:], "Mean and worst relative error on points the law had not seen, best law first."),
        _coefficient_grid(usable, names),
    ]
    if predictions:
        grids.append(_prediction_grid(predictions))
    charted = [(one, sweep) for one in usable for sweep in _select_sweeps(one, sweeps)][:MAX_CHARTS]
    charts = [chart for one, sweep in charted if (chart := _draw_law(table, one, sweep)) is not None]
    findings = {
        "settings": [
            {
                "setting": one.setting,
                "runs": len(one.data),
                "laws": [
                    {
                        "law": law.name,
                        "held_out_error": mean_error(ratios),
                        "held_out_worst": worst_error(ratios),
                        "held_out_points": sum(map(math.isfinite, ratios)),
                        "coefficients": law.coefficients,
                    }
                    for law, ratios in one.laws
                ],
            }
            for one in usable
        ],
        "predictions": [{k: v for k, v in vars(p).items() if k != "fixed"} for p in predictions],
    }
    return Section(title, sentences, grids, charts, to_json(findings))


def name_regime(exponent: float) -> str:
    """Return the word for an exponent of time against work.

    >>> [name_regime(e) for e in (0.05, 0.5, 1.0, 1.6)]
    ['flat', 'sub-linear', 'linear', 'super-linear']
    """
    if exponent <= FLAT:
        return "flat"
    return "sub-linear" if exponent < LINEAR else "linear" if exponent <= STEEP else "super-linear"


def find_regimes(table: Table, sweep: Sweep) -> list[Stretch]:
    """Return the regimes along one sweep, in order."""
    times = [float(np.median([t.seconds for t in trials])) for _, trials in sweep.points]
    flops = sweep.median(table.columns.flops)
    known = [v for v in flops if v is not None]
    grows = len(known) == len(flops) and all(b > a * 1.001 for a, b in pairwise(known))
    u, y = np.log(known if grows else [x for x, _ in sweep.points]), np.log(times)
    tolerance = max(STRAIGHT, _median_noise(sweep))
    ends = [0]
    for i in range(2, len(u)):
        # A stretch continues while one line fits all its points: single steps would follow the noise.
        if abs(_fit_line(u, y, ends[-1], i)[1]).max() > math.log1p(tolerance):
            ends.append(i - 1)
    ends.append(len(u) - 1)
    names = [name_regime(_fit_line(u, y, a, b)[0]) for a, b in pairwise(ends)]
    stretches, first = [], 0
    for i in range(1, len(names) + 1):
        if i == len(names) or names[i] != names[first]:
            a, b, word = ends[first], ends[i], names[first]
            span = sweep.points[a][0], sweep.points[b][0]
            work = "FLOPs" if grows else sweep.column
            exponent = _fit_line(u, y, a, b)[0]
            stretches.append(Stretch(sweep.column, sweep.fixed, *span, word, RATES[word], exponent, work))
            first = i
    return stretches


def describe_regimes(table: Table, sweeps: Sequence[Sweep]) -> Section:
    """Return the section on regimes along all sweeps."""
    if not sweeps:
        return Section("Regimes", ["No sweep has three or more values: regimes cannot be named."])
    named = zip(sweeps, name_sweeps(sweeps), strict=True)
    stretches = [(name, s) for sweep, name in named for s in find_regimes(table, sweep)]
    rows = [
        [s.column, name or "all", f"{s.start:g} to {s.end:g}", s.regime, s.rate, f"{s.exponent:.2f}", s.work]
        for name, s in stretches
    ]
    head = ("along", "of", "from", "time grows", "rate is", "exponent", "against")
    columns = dict.fromkeys(s.column for _, s in stretches)
    sentences = [_describe_column(column, [s for _, s in stretches if s.column == column]) for column in columns]
    grid = Grid(head, rows, ("exponent",), "An exponent of 1 is a rate that no longer grows.")
    return Section("Regimes", sentences, [grid], findings=to_json({"stretches": [s for _, s in stretches]}))


def _list_fits(columns: Columns) -> list[FitCost]:
    flops, more = columns.flops, [FLOPS_PER_WIDTH, *columns.sizes[:1], columns.parameters]
    sizes = (*columns.sizes, columns.batch)
    compute = [sum_law("", [flops]), sum_law("", [flops, *more]), power_law("", [flops]), power_law("", sizes)]
    return [
        sum_law("a + b·FLOPs + c·bytes", [flops, BYTES]),
        sum_law(f"the sum with {', '.join(more)}", [flops, BYTES, *more]),
        power_law("k·FLOPs^p·bytes^q", [flops, BYTES]),
        power_law(f"powers of {', '.join(sizes)}", sizes),
        slowest_stage_law(
            "the slowest stage",
            {
                columns.up: [sum_law("", [columns.up_bytes])],
                columns.compute: compute,
                columns.down: [sum_law("", [columns.down_bytes])],
            },
        ),
    ]


def _select_sweeps(one: SettingLaws, sweeps: Sequence[Sweep]) -> list[Sweep]:
    """Return the sweeps of this setting."""
    return [s for s in sweeps if all(s.fixed.get(n, NONE) == v for n, v in one.setting.items())]


def _interpolate(points: Sequence[tuple[float, float]], at: float) -> float:
    """Return the value of Lagrange's polynomial through the points."""
    total = 0.0
    for i, (x, y) in enumerate(points):
        term = y
        for j, (other, _) in enumerate(points):
            if i != j:
                term *= (at - other) / (x - other)
        total += term
    return total


def _median_noise(sweep: Sweep) -> float:
    """Return the relative error of the sweep's medians by their samples: twice the median half-width."""
    known = [median(t.samples).relative for t in sweep.trials if len(t.samples) >= MIN_OBSERVATIONS]
    return 2 * float(np.median(known)) if known else 0.0


def _fit_line(u: Array, y: Array, first: int, last: int) -> tuple[float, Array]:
    """Return the slope over these points, and the residuals."""
    x, level = u[first : last + 1], y[first : last + 1]
    centered = x - x.mean()
    slope = float(centered @ level) / float(centered @ centered)
    return slope, np.asarray(level - level.mean() - slope * centered)


def _describe_setting(one: SettingLaws, name: str) -> str:
    law, ratios = one.laws[0]
    prefix = f"{name}: " if name else ""
    error = mean_error(ratios)
    doubt = "" if error <= GOOD else "; that is not a law to plan with"
    return f"{prefix}{law.name} predicts points it has not seen within {format_share(error)} on average{doubt}."


def _describe_column(column: str, stretches: Sequence[Stretch]) -> str:
    """Return a sentence on where each regime occurs, over all sweeps along a column."""
    parts = []
    for regime in RATES:
        same = [s for s in stretches if s.regime == regime]
        if same:
            count = f" in {len(same)} stretches" if len(same) > 1 else ""
            parts.append(f"{regime} between {min(s.start for s in same):g} and {max(s.end for s in same):g}{count}")
    return f"Along {column} time is {'; '.join(parts)}."


def _coefficient_grid(usable: Sequence[SettingLaws], names: Sequence[str]) -> Grid:
    rows = []
    for one, name in zip(usable, names, strict=True):
        law = one.laws[0][0]
        for term, e in law.coefficients.items():
            label = "constant" if term == ONE else term
            rows.append([name or "all", label, f"{e.value:.4g}", f"{e.low:.4g} to {e.high:.4g}"])
    head = ("setting", "of", "coefficient", "95 % interval")
    return Grid(head, rows, head[2:], "Coefficients of the best law: seconds per unit, or powers.")


def _prediction_grid(predictions: Sequence[Prediction]) -> Grid:
    names = name_differences([p.fixed for p in predictions])
    rows = [
        [
            f"{p.column} {p.at:g}" + (f" ({name})" if name else "") + (", beyond the sweep" if p.beyond else ""),
            format_si(p.seconds.value, "s"),
            f"{format_si(p.seconds.low, 's')} to {format_si(p.seconds.high, 's')}",
        ]
        for p, name in zip(predictions, names, strict=True)
    ]
    return Grid(("unseen point", "predicted", "95 % interval"), rows, ("predicted", "95 % interval"), "Per batch.")


def _draw_law(table: Table, one: SettingLaws, sweep: Sweep) -> Markup | None:
    """Draw measured times along a sweep, and the band in which the law expects a further run."""
    if one.best is None:
        return None
    columns = table.columns
    xs = [x for x, _ in sweep.points]
    band = []
    for x in sorted({*xs, *(x for x, _ in choose_unseen(xs))}):
        amounts = interpolate_amounts(sweep, x, columns)
        seconds = one.best.predict(amounts) if amounts else None
        if seconds is not None and math.isfinite(seconds.value) and seconds.low <= seconds.high:
            band.append(Point(x, seconds.value, (seconds.low, seconds.high)))
    named = (*columns.sizes, columns.batch, columns.dtype, columns.compile, columns.node)
    measured = [Point(x, t.seconds, title=str(t.row.get(columns.run, ""))) for x, ts in sweep.points for t in ts]
    fixed = ", ".join(format_level(n, sweep.fixed[n]) for n in named if sweep.fixed.get(n, NONE) != NONE)
    return draw_lines(
        [Series("measured", measured, points_only=True), Series(one.best.name, band, band=True, dashed=True)],
        title=f"Time per batch over {sweep.column}" + (f" ({fixed})" if fixed else ""),
        x=Axis(sweep.column, scale="log2"),
        y=Axis("time per batch", "s", "log"),
        caption="The band is where the law expects 95 % of further runs; past the last measured point it extrapolates.",
    )
