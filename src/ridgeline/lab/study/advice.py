"""What to do: the best measured way to run each model, what other choices cost, and which points to run next.

The best is the fastest point that was measured. Two runs of equal code differ by some percent, so points within 5 % of
it (within twice the scatter of this study's runs, where a law shows that to be more) are equal. Of equal points the
advice takes the nearest node, then the model that is not compiled, then the better one for the other goal. The cost of
a wrong choice is measured at that very point: everything else equal, the worst level of that choice that was run.

Throughput is items per second as achieved. Latency is the time of one batch through all stages by itself; overlap
hides it from throughput, but not from a user who waits for one batch.

The next points to run are those where the study is least sure: predictions with wide intervals, crossovers with wide
intervals, comparisons with too few pairs, runs that were not steady.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ridgeline.lab.judge import MARGIN, MIN_OBSERVATIONS
from ridgeline.lab.study.contrasts import TOO_FEW, Finding
from ridgeline.lab.study.placement import NodeChoice, compare_nodes
from ridgeline.lab.study.scaling import Prediction, SettingLaws
from ridgeline.lab.study.section import DASH, Grid, Section, format_change, format_interval, to_json
from ridgeline.lab.study.stability import CALM, RunStability
from ridgeline.lab.study.table import (
    NONE,
    Columns,
    Sweep,
    Table,
    Trial,
    format_level,
    group_by_model,
    group_trials,
    name_processor,
    parse_number,
    sort_key,
)
from ridgeline.lab.study.transfers import Crossover, format_range
from ridgeline.web import Axis, Bar, draw_bars, format_si

GOALS = ("throughput", "latency")
TIE = 0.05  # least relative difference of two runs of equal code
MAX_TIE = 0.15
MAX_SENTENCES = 4  # models with a sentence each
MAX_CHARTED = 6
MAX_NEXT = 3  # points of each kind to run next
WIDE = 1.2  # upper end of an interval over its lower end: beyond it another point is worth running


@dataclass(frozen=True)
class Option:
    """One way to run a model: its repeats together."""

    trials: Sequence[Trial]
    rate: float  # items per second
    latency: float  # seconds

    def level(self, column: str) -> Any:
        return self.trials[0].level(column)


@dataclass(frozen=True)
class WrongChoice:
    """The worst level of one choice, everything else as recommended."""

    choice: str
    level: str
    cost: float  # time over the time of the best


@dataclass(frozen=True)
class Advice:
    """The best way to run one model for one goal."""

    goal: str  # throughput | latency
    model: str
    settings: dict[str, Any]
    rate: float
    latency: float
    wrong: Sequence[WrongChoice]  # worst first
    worst: float  # the worst point of this model over the best
    options: int


def advise(table: Table, settings: Sequence[SettingLaws] = ()) -> list[Advice]:
    """Return advice for each model and both goals; models keep their order."""
    columns, advice = table.columns, list[Advice]()
    noise = [one.best.noise for one in settings if one.best is not None]
    # The difference of two runs has √2 times the scatter of one.
    tie = min(max(TIE, 2 * math.sqrt(2) * statistics.median(noise)), MAX_TIE) if noise else TIE
    for model, trials in group_by_model(table).items():
        options = [_build_option(repeats, columns) for repeats in group_trials(trials, columns.identity).values()]
        advice += [_advise_goal(goal, model, options, columns, tie) for goal in GOALS]
    return advice


def recommend(table: Table, advice: Sequence[Advice], next_points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the advice as JSON data: by goal and model, the node of every GPU, and the points to run next."""
    goals = {goal: [to_json(a) for a in advice if a.goal == goal] for goal in GOALS}
    nodes = [{"who": c.processor, "near": c.nearest, "others": c.others} for c in compare_nodes(table)]
    return {**goals, "pairings": to_json(nodes), "next": [to_json(point) for point in next_points]}


def describe_advice(table: Table, advice: Sequence[Advice], next_points: Sequence[dict[str, Any]]) -> Section:
    """Return the first section of the page."""
    title = "Recommendation"
    if not advice:
        return Section(title, ["No run gave a time: there is nothing to recommend."])
    run_next = [f"Run next: {point['what']}, because {point['why']}." for point in next_points]
    if all(a.options == 1 for a in advice):
        models = [
            f"{a.model}: {format_si(a.rate, 'items/s')}, {format_si(a.latency, 's')} for one batch by itself."
            for a in advice[::2]
        ]
        no_choice = "Every model was run in one way only: there is nothing to choose."
        return Section(title, [no_choice, *models[: 2 * MAX_SENTENCES], *run_next])
    varied = [n for n in advice[0].settings if len(table.levels(n)) > 1]
    sentences = []
    for goal in GOALS:
        for_goal = [a for a in advice if a.goal == goal]
        if len(for_goal) <= MAX_SENTENCES:
            sentences += [_describe_model(a, varied) for a in for_goal]
        else:
            sentences.append(_describe_majority(goal, for_goal, varied))
    dtypes = {str(a.settings.get(table.columns.dtype, NONE)) for a in advice}
    if len(table.levels(table.columns.dtype)) > 1:
        sentences.append(
            f"A smaller type ({', '.join(sorted(dtypes))}) changes results: check the answers before taking it."
        )
    sentences += [_describe_node_choice(choice) for choice in compare_nodes(table)]
    sentences += run_next
    head = ("model", "for", "run it with", "rate", "latency", "the worst choice", "costs", "worst point")
    rows = [
        [
            a.model,
            a.goal,
            _format_settings(a, varied),
            f"{format_si(a.rate, 'items/s')}",
            format_si(a.latency, "s"),
            f"{a.wrong[0].choice} {a.wrong[0].level}" if a.wrong else DASH,
            format_change(a.wrong[0].cost) if a.wrong else DASH,
            format_change(a.worst),
        ]
        for a in advice
    ]
    caption = "Costs are time over time of the best; latency is one batch by itself."
    grid = Grid(head, rows, (*head[3:5], *head[6:]), caption)
    return Section(title, sentences, [grid], _draw_costs(advice), {})


def choose_next_points(
    predictions: Sequence[Prediction],
    crossovers: Sequence[tuple[Sweep, Crossover]],
    findings: Sequence[Finding],
    runs: Sequence[RunStability],
) -> list[dict[str, Any]]:
    """Return what to run next, each with its column and value where it is a point, its words, and the reason."""
    return [
        *_choose_doubtful_sizes(predictions),
        *_choose_crossover_sizes(crossovers),
        *_choose_repeats(findings),
        *_choose_longer_runs(runs),
    ]


def measure_latency(trial: Trial, columns: Columns) -> float:
    """Return the seconds of one batch through all stages alone, else the achieved time per batch."""
    stages = [trial.positive(c) for c in (columns.up, columns.compute, columns.down)]
    known = [s for s in stages if s is not None]
    return sum(known) if trial.positive(columns.compute) is not None else trial.seconds


def _build_option(trials: Sequence[Trial], columns: Columns) -> Option:
    rate = statistics.median(t.rate for t in trials)
    return Option(trials, rate, statistics.median(measure_latency(t, columns) for t in trials))


def _advise_goal(goal: str, model: str, options: Sequence[Option], columns: Columns, margin: float) -> Advice:
    cost: Callable[[Option], float] = (lambda o: 1 / o.rate) if goal == "throughput" else (lambda o: o.latency)
    least = min(cost(o) for o in options)
    tied = [o for o in options if cost(o) <= least * (1 + margin)]
    nearest = parse_number(min((o.level(columns.distance) for o in tied), key=sort_key))
    tied = [o for o in tied if parse_number(o.level(columns.distance)) == nearest]
    tied = [o for o in tied if o.level(columns.compile) == NONE] or tied
    other_cost: Callable[[Option], float] = (lambda o: o.latency) if goal == "throughput" else (lambda o: 1 / o.rate)
    best = min(tied, key=lambda o: (other_cost(o), cost(o)))
    wrong = []
    place = columns.place
    for choice, names in (("placement", place), *((f, (f,)) for f in columns.factors)):
        if goal == "latency" and choice == columns.batch:
            continue  # a larger batch takes longer: that is another goal, not a mistake
        rest = [n for n in columns.identity if n not in names]
        same = [o for o in options if all(o.level(n) == best.level(n) for n in rest)]
        worst = max(same, key=cost)
        if cost(worst) > cost(best):
            wrong.append(WrongChoice(choice, _name_choice(worst, choice, columns), cost(worst) / cost(best)))
    wrong.sort(key=lambda w: -w.cost)
    settings = {n: best.level(n) for n in (*place[:4], *columns.factors) if best.level(n) != NONE}
    if goal == "throughput":
        comparable = list(options)
    else:
        comparable = [o for o in options if o.level(columns.batch) == best.level(columns.batch)]
    worst_cost = max(map(cost, comparable)) / cost(best)
    return Advice(goal, model, settings, best.rate, best.latency, wrong, worst_cost, len(options))


def _name_choice(option: Option, choice: str, columns: Columns) -> str:
    if choice == "placement":
        return f"{name_processor(option.trials[0], columns)} from node {option.level(columns.node)}"
    return str(option.level(choice)) if option.level(choice) != NONE else "none"


def _describe_model(a: Advice, varied: Sequence[str]) -> str:
    figure = f"{format_si(a.rate, 'items/s')}" if a.goal == "throughput" else f"{format_si(a.latency, 's')} per batch"
    if a.options == 1:
        return f"{a.model}, for {a.goal}: only one way was run ({figure}), so there is nothing to choose."
    costs = ", ".join(f"{w.choice} {w.level} costs {format_change(w.cost)}" for w in a.wrong[:3] if w.cost > 1 + MARGIN)
    end = f"{costs} time" if costs else f"no other choice that was run costs more than {100 * MARGIN:.0f} %"
    return f"{a.model}, for {a.goal}: {_format_settings(a, varied)} gives {figure}; {end}."


def _describe_majority(goal: str, advice: Sequence[Advice], varied: Sequence[str]) -> str:
    """Return a sentence on the settings that most models share."""
    parts = []
    for name in varied:
        counts = Counter(str(a.settings.get(name, "none")) for a in advice)
        level, count = counts.most_common(1)[0]
        parts.append(f"{name} {level}" + ("" if count == len(advice) else f" (for {count} of {len(advice)} models)"))
    worst = max(advice, key=lambda a: a.wrong[0].cost if a.wrong else 0.0)
    cost = ""
    if worst.wrong:
        w = worst.wrong[0]
        cost = f"; the most expensive mistake is {w.choice} {w.level} for {worst.model}: {format_change(w.cost)} time"
    return f"For {goal}: {', '.join(parts) or 'nothing was varied'}{cost}."


def _describe_node_choice(choice: NodeChoice) -> str:
    """Return a sentence on the node of a GPU; a far node is better only where its entire interval says so."""
    costs = ", ".join(
        f"node {c.other} {format_change(c.ratio.value)} ({format_interval(c.ratio)})" for c in choice.others
    )
    better = [c for c in choice.others if c.ratio.high < 1 / (1 + MARGIN)]
    best = min(better, key=lambda c: c.ratio.value).other if better else choice.nearest
    return f"{choice.processor} belongs to node {best}; time over all models against node {choice.nearest}: {costs}."


def _format_settings(a: Advice, varied: Sequence[str]) -> str:
    return ", ".join(format_level(n, a.settings[n]) for n in varied if n in a.settings) or "as it was run"


def _draw_costs(advice: Sequence[Advice]) -> list[Markup]:
    """Draw what each wrong choice costs for throughput, model by model."""
    charted = [a for a in advice if a.goal == "throughput" and a.wrong][:MAX_CHARTED]
    rows = [
        Bar(f"{w.choice}: {w.level}", w.cost, group=a.model, series=w.choice, text=format_change(w.cost))
        for a in charted
        for w in a.wrong
        if w.cost > 1 + MARGIN
    ]
    if not rows:
        return []
    return [
        draw_bars(
            rows,
            title="What a wrong choice costs",
            axis=Axis("time over time of the recommended way", "×", "log"),
            reference=1.0,
            reference_label="as recommended",
            caption="One choice changed to its worst measured level, all else as recommended for throughput; "
            f"costs within {100 * MARGIN:.0f} % are not drawn.",
        )
    ]


def _choose_doubtful_sizes(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    by_size: dict[tuple[str, float], Prediction] = {}
    for p in sorted(predictions, key=lambda p: -p.doubt):
        by_size.setdefault((p.column, p.at), p)
    return [
        {
            "column": p.column,
            "at": p.at,
            "what": f"{p.column} {p.at:g}{_format_setting(p)}",
            "why": f"the law's 95 % interval there spans a factor of {p.doubt:.2g}",
        }
        for p in list(by_size.values())[:MAX_NEXT]
        if p.doubt > WIDE and math.isfinite(p.doubt)
    ]


def _choose_crossover_sizes(crossovers: Sequence[tuple[Sweep, Crossover]]) -> list[dict[str, Any]]:
    points: dict[tuple[str, float], dict[str, Any]] = {}
    for sweep, c in crossovers:
        if c.at is None or (c.inside and c.low and c.high and c.high / c.low <= WIDE):
            continue
        at = _choose_new_size(c, c.at, [x for x, _ in sweep.points])
        if at is not None:
            why = f"the crossover near it is known only as {format_range(c)}"
            points[c.column, at] = {"column": c.column, "at": at, "what": f"{c.column} {at:g}", "why": why}
    return list(points.values())[:MAX_NEXT]


def _choose_new_size(c: Crossover, middle: float, sizes: Sequence[float]) -> float | None:
    """Return a size of the interval that was not run, closest to its middle; an integer if all sizes are."""
    if not all(x.is_integer() for x in sizes):
        return middle
    low, high = c.low or middle / 2, c.high or middle * 2
    ends = max(1, math.floor(low)), math.ceil(high)
    free = {float(round(low + (high - low) * k / 64)) for k in range(65)} - set(sizes)
    return min((x for x in free if ends[0] <= x <= ends[1]), key=lambda x: abs(x - middle), default=None)


def _choose_repeats(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    untested = [f for f in findings if f.word == TOO_FEW]
    if not untested:
        return []
    pairs = min(f.contrast.ratio.n for f in untested)
    times = math.ceil(MIN_OBSERVATIONS / max(pairs, 1))
    names = ", ".join(dict.fromkeys(f.contrast.factor for f in untested))
    why = f"{names} had as few as {pairs} pairs, and a test needs {MIN_OBSERVATIONS}"
    return [{"column": None, "at": None, "what": f"the whole study {times} times over", "why": why}]


def _choose_longer_runs(runs: Sequence[RunStability]) -> list[dict[str, Any]]:
    unsteady = [r for r in runs if r.word not in CALM]
    if not unsteady:
        return []
    why = f"{len(unsteady)} {'run' if len(unsteady) == 1 else 'runs'} did not keep their speed"
    return [{"column": None, "at": None, "what": "those runs again, longer, on an idle machine", "why": why}]


def _format_setting(p: Prediction) -> str:
    levels = [f"{n} {v}" for n, v in p.setting.items() if v != NONE and n in ("dtype", "compile_mode")]
    return f" ({', '.join(levels)})" if levels else ""
