"""What to do: the best measured way to run each model, for throughput and for latency, and what another choice costs.

The best is the fastest point that was measured. Two runs of equal code differ by some percent, so points within 5 % of
it (within twice the scatter of this study's runs, where a law tells that and it is more) are equals: of these the
nearest node is taken, then the plainest (not compiled), then the better of the other goal. What a wrong choice costs
is measured at that very point: all else equal, the worst level of that choice that was run.
Throughput is items per second as achieved. Latency is the time of one batch through all stages by itself; overlapping
hides it from throughput, not from who waits.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ridgeline.lab.judge.verdict import MARGIN
from ridgeline.lab.study.contrast import Contrast
from ridgeline.lab.study.remote import pairings
from ridgeline.lab.study.scaling import Fitted
from ridgeline.lab.study.section import DASH, Grid, Section, percent, plain, spread
from ridgeline.lab.study.sweep import said, subjects
from ridgeline.lab.study.table import NONE, Columns, Table, Trial, groups, number, order, seat
from ridgeline.web import Axis, Bar, bars, si

TIED = 0.05  # what two runs of equal code differ by at the least
LOOSEST = 0.15
SAID = 4  # models put into words one by one


@dataclass(frozen=True)
class Option:
    """One way to run a model: its repeats together."""

    trials: Sequence[Trial]
    rate: float  # items per second
    latency: float  # seconds

    def level(self, column: str) -> Any:
        return self.trials[0].level(column)


@dataclass(frozen=True)
class Wrong:
    """A choice made badly, all else as recommended."""

    choice: str
    level: str
    cost: float  # rate lost as a factor of time (throughput), or latency over the best (latency)


@dataclass(frozen=True)
class Advice:
    goal: str  # throughput | latency
    model: str
    settings: dict[str, Any]
    rate: float
    latency: float
    wrong: Sequence[Wrong]  # worst first
    worst: float  # the worst point of this model over the best
    options: int


def advise(table: Table, laws: Sequence[Fitted] = ()) -> list[Advice]:
    """For each model both goals; models in the order they came."""
    found: list[Advice] = []
    scatter = [one.best.noise for one in laws if one.best is not None]
    # Of a difference of two runs: √2 times that of one.
    tied = min(max(TIED, 2 * math.sqrt(2) * statistics.median(scatter)), LOOSEST) if scatter else TIED
    for model, trials in subjects(table).items():
        options = [_option(own, table.columns) for own in groups(trials, table.columns.identity).values()]
        found += [_advice(goal, model, options, table.columns, tied) for goal in ("throughput", "latency")]
    return found


def recommendation(table: Table, found: Sequence[Advice], following: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """As plain data: by goal and model, the node of every GPU, and what to run next."""
    goals = {goal: [plain(a) for a in found if a.goal == goal] for goal in ("throughput", "latency")}
    nodes = [{"who": who, "near": near, "others": plain(costs)} for who, near, costs in pairings(table)]
    return {**goals, "pairings": plain(nodes), "next": [plain(point) for point in following]}


def advising(table: Table, found: Sequence[Advice], following: Sequence[dict[str, Any]]) -> Section:
    """The section that leads the page."""
    title = "Recommendation"
    if not found:
        return Section(title, ["No run gave a time: there is nothing to recommend."])
    after = [f"Run next: {point['what']}, because {point['why']}." for point in following]
    if all(a.options == 1 for a in found):
        only = [
            f"{a.model}: {si(a.rate, 'items/s')}, {si(a.latency, 's')} for one batch by itself." for a in found[::2]
        ]
        none = "Every model was run in one way only: there is nothing to choose."
        return Section(title, [none, *only[: 2 * SAID], *after])
    varied = [n for n in found[0].settings if len(table.levels(n)) > 1]
    told = []
    for goal in ("throughput", "latency"):
        own = [a for a in found if a.goal == goal]
        told += [_sentence(a, varied) for a in own] if len(own) <= SAID else [_together(goal, own, varied)]
    dtypes = {str(a.settings.get(table.columns.dtype, NONE)) for a in found}
    if len(table.levels(table.columns.dtype)) > 1:
        told.append(
            f"A smaller type ({', '.join(sorted(dtypes))}) changes results: check the answers before taking it."
        )
    told += [_pairing(*pairing) for pairing in pairings(table)]
    told += after
    head = ("model", "for", "run it with", "rate", "latency", "the worst choice", "costs", "worst point")
    rows = [
        [
            a.model,
            a.goal,
            _settings(a, varied),
            f"{si(a.rate, 'items/s')}",
            si(a.latency, "s"),
            f"{a.wrong[0].choice} {a.wrong[0].level}" if a.wrong else DASH,
            percent(a.wrong[0].cost) if a.wrong else DASH,
            percent(a.worst),
        ]
        for a in found
    ]
    grid = Grid(
        head, rows, (*head[3:5], *head[6:]), "Costs are time over time of the best; latency is one batch by itself."
    )
    return Section(title, told, [grid], _charts(found), {})


def latency(trial: Trial, columns: Columns) -> float:
    """One batch through all stages alone, where each is told; else the time per batch as achieved."""
    stages = [trial.positive(c) for c in (columns.up, columns.compute, columns.down)]
    known = [s for s in stages if s is not None]
    return sum(known) if trial.positive(columns.compute) is not None else trial.seconds


def _option(trials: Sequence[Trial], columns: Columns) -> Option:
    rate = statistics.median(t.rate for t in trials)
    return Option(trials, rate, statistics.median(latency(t, columns) for t in trials))


def _advice(goal: str, model: str, options: Sequence[Option], columns: Columns, margin: float) -> Advice:
    cost: Callable[[Option], float] = (lambda o: 1 / o.rate) if goal == "throughput" else (lambda o: o.latency)
    least = min(cost(o) for o in options)
    tied = [o for o in options if cost(o) <= least * (1 + margin)]
    near = number(min((o.level(columns.distance) for o in tied), key=order))
    tied = [o for o in tied if number(o.level(columns.distance)) == near]
    tied = [o for o in tied if o.level(columns.compile) == NONE] or tied
    other: Callable[[Option], float] = (lambda o: o.latency) if goal == "throughput" else (lambda o: 1 / o.rate)
    best = min(tied, key=lambda o: (other(o), cost(o)))
    wrong = []
    place = columns.place
    for choice, names in (("placement", place), *((f, (f,)) for f in columns.factors)):
        if goal == "latency" and choice == columns.batch:
            continue  # a larger batch takes longer: that is no mistake but another goal
        rest = [n for n in columns.identity if n not in names]
        same = [o for o in options if all(o.level(n) == best.level(n) for n in rest)]
        worst = max(same, key=cost)
        if cost(worst) > cost(best):
            wrong.append(Wrong(choice, _level(worst, choice, columns), cost(worst) / cost(best)))
    wrong.sort(key=lambda w: -w.cost)
    settings = {n: best.level(n) for n in (*place[:3], *columns.factors) if best.level(n) != NONE}
    compared = (
        options if goal == "throughput" else [o for o in options if o.level(columns.batch) == best.level(columns.batch)]
    )
    return Advice(
        goal, model, settings, best.rate, best.latency, wrong, max(map(cost, compared)) / cost(best), len(options)
    )


def _level(option: Option, choice: str, columns: Columns) -> str:
    if choice == "placement":
        return f"{seat(option.trials[0], columns)} from node {option.level(columns.node)}"
    return str(option.level(choice)) if option.level(choice) != NONE else "none"


def _sentence(a: Advice, varied: Sequence[str]) -> str:
    figure = f"{si(a.rate, 'items/s')}" if a.goal == "throughput" else f"{si(a.latency, 's')} per batch"
    if a.options == 1:
        return f"{a.model}, for {a.goal}: only one way was run ({figure}), so there is nothing to choose."
    costs = ", ".join(f"{w.choice} {w.level} costs {percent(w.cost)}" for w in a.wrong[:3] if w.cost > 1 + MARGIN)
    end = f"{costs} time" if costs else f"no other choice that was run costs more than {100 * MARGIN:.0f} %"
    return f"{a.model}, for {a.goal}: {_settings(a, varied)} gives {figure}; {end}."


def _pairing(who: str, near: Any, costs: Sequence[Contrast]) -> str:
    """Which node belongs to a GPU; a far one is named better only where its whole interval says so."""
    told = ", ".join(f"node {c.other} {percent(c.ratio.value)} ({spread(c.ratio)})" for c in costs)
    better = [c for c in costs if c.ratio.high < 1 / (1 + MARGIN)]
    best = min(better, key=lambda c: c.ratio.value).other if better else near
    return f"{who} belongs to node {best}; time over all models against node {near}: {told}."


def _together(goal: str, own: Sequence[Advice], varied: Sequence[str]) -> str:
    """What most models have in common."""
    parts = []
    for name in varied:
        counts = Counter(str(a.settings.get(name, "none")) for a in own)
        level, count = counts.most_common(1)[0]
        parts.append(f"{name} {level}" + ("" if count == len(own) else f" (for {count} of {len(own)} models)"))
    worst = max(own, key=lambda a: a.wrong[0].cost if a.wrong else 0.0)
    cost = ""
    if worst.wrong:
        w = worst.wrong[0]
        cost = f"; the dearest mistake is {w.choice} {w.level} for {worst.model}: {percent(w.cost)} time"
    return f"For {goal}: {', '.join(parts) or 'nothing was varied'}{cost}."


def _settings(a: Advice, varied: Sequence[str]) -> str:
    return ", ".join(said(n, a.settings[n]) for n in varied if n in a.settings) or "as it was run"


def _charts(found: Sequence[Advice]) -> list[Markup]:
    """What each wrong choice costs for throughput, model by model."""
    own = [a for a in found if a.goal == "throughput" and a.wrong][:6]
    rows = [
        Bar(f"{w.choice}: {w.level}", w.cost, group=a.model, series=w.choice, text=percent(w.cost))
        for a in own
        for w in a.wrong
        if w.cost > 1 + MARGIN
    ]
    if not rows:
        return []
    return [
        bars(
            rows,
            title="What a wrong choice costs",
            axis=Axis("time over time of the recommended way", "×", "log"),
            reference=1.0,
            reference_label="as recommended",
            caption="One choice changed to its worst measured level, all else as recommended for throughput; "
            f"costs within {100 * MARGIN:.0f} % are not drawn.",
        )
    ]
