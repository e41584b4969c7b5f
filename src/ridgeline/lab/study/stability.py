"""Does a run keep its pace: drift, a step as throttling makes it, and the tail.

Samples are cut into blocks and the medians of these are looked at, since neighbours are alike. Drift is Kendall's test,
a step is Pettitt's; of the two the one that leaves less behind is named. Runs are many, so p-values are corrected by
Holm, and a change below the margin is not worth a word. A percentile is given only if enough samples lie beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ridgeline.lab.judge import stats
from ridgeline.lab.judge.verdict import MARGIN
from ridgeline.lab.study.section import DASH, Grid, Section, percent, plain, share
from ridgeline.lab.study.significance import ALPHA, holm
from ridgeline.lab.study.sweep import apart
from ridgeline.lab.study.table import Table, Trial
from ridgeline.lab.study.trend import trend
from ridgeline.web import Axis, Samples, samples, si

Array = NDArray[np.float64]
BLOCKS, PER_BLOCK = 48, 4  # at most so many blocks, of at least so many samples
FEWEST = 30  # samples of a run whose pace can be judged
BEYOND = 2  # samples that must lie beyond a percentile for it to be given
HICCUP = 2.0  # times the median
STRIPS = 6
CALM = ("steady", "unclear", "too few samples")  # words that blame nothing


@dataclass(frozen=True)
class Tail:
    """Times of single batches over the run's median; a percentile is None where too few samples lie beyond it."""

    p95: float | None
    p99: float | None
    worst: float
    hiccups: float  # share of samples beyond twice the median

    @property
    def weight(self) -> float:
        return self.p99 or self.p95 or self.worst


@dataclass(frozen=True)
class Pace:
    """How one run went."""

    trial: Trial
    n: int
    change: float  # pace at the end ÷ at the start, by the better of line and step
    kind: str  # drift | step
    at: int | None  # the sample after which it steps
    p: float | None  # None: too few samples
    tail: Tail
    word: str = ""  # steady | unclear | drifts | steps down, as under throttling | speeds up | too few samples


def paces(table: Table) -> list[Pace]:
    """Every run with samples, judged together."""
    found = [_pace(t) for t in table.trials if t.samples]
    told = [p for p in found if p.p is not None]
    sure = dict(zip(map(id, told), holm([p.p or 0.0 for p in told]), strict=True))
    return [Pace(**{**vars(p), "word": _word(p, sure.get(id(p)))}) for p in found]


def stability(table: Table, found: Sequence[Pace]) -> Section:
    title = "Stability"
    if not found:
        return Section(
            title, ["No row holds the samples of its run: pace and tail cannot be judged."] if table.trials else []
        )
    judged = [p for p in found if p.p is not None]
    few = len(found) - len(judged)
    off = [p for p in judged if p.word not in ("steady", "unclear")]
    unclear = [p for p in judged if p.word == "unclear"]
    columns = table.columns
    names = apart([{n: p.trial.level(n) for n in columns.identity} for p in found])
    told = dict(zip(map(id, found), names, strict=True))
    steady = len(judged) - len(off) - len(unclear)
    said = [f"{steady} of {len(judged)} runs kept their pace within {MARGIN:.0%}.".replace("%", " %")] if judged else []
    if unclear:
        many = "run differs" if len(unclear) == 1 else "runs differ"
        said.append(f"{len(unclear)} {many} by more between start and end, but not beyond the noise: unclear.")
    said += [f"{told[id(p)] or 'The run'} {p.word}: {_how(p)}." for p in off[:STRIPS]]
    if few:
        said.append(f"{few} of {len(found)} runs have fewer than {FEWEST} samples: too few to judge their pace.")
    tails = [p for p in found if p.tail.p99 is not None]
    if tails:
        heavy = max(tails, key=lambda p: p.tail.weight)
        said.append(
            f"The heaviest tail: {told[id(heavy)] or 'the run'}, "
            f"99 % of batches within {heavy.tail.weight:.2f} × the median."
        )
    elif judged:
        said.append("No run has the 200 samples a 99th percentile needs.")
    head = ("run", "pace", "change", "95 % within", "99 % within", "slowest", "beyond twice", "samples")
    rows = [
        [told[id(p)] or "the run", p.word, percent(p.change) if p.p is not None else DASH, *_tail(p.tail), str(p.n)]
        for p in sorted(found, key=lambda p: (p.word in CALM, -p.tail.weight))
    ]
    grid = Grid(head, rows, head[2:], "Times of single batches over the run's median.", most=12)
    findings = {
        "runs": [
            {"run": p.trial.row.get(columns.run), **{k: v for k, v in vars(p).items() if k != "trial"}} for p in found
        ]
    }
    return Section(title, said, [grid], _charts(found, told), plain(findings))


def step(levels: Array) -> tuple[int, float]:
    """Where a series steps, and Pettitt's p-value of "it does not"."""
    n = len(levels)
    signs = np.sign(levels[:, None] - levels[None, :])
    scores = np.array([signs[:k, k:].sum() for k in range(1, n)])
    k = int(np.argmax(abs(scores)))
    return k + 1, min(1.0, 2 * math.exp(-6 * float(scores[k]) ** 2 / (n**3 + n**2)))


def _pace(trial: Trial) -> Pace:
    values = np.array(trial.samples)
    over = np.sort(values / np.median(values))
    tail = Tail(_percentile(over, 0.95), _percentile(over, 0.99), float(over[-1]), float((over > HICCUP).mean()))
    if len(values) < FEWEST:
        return Pace(trial, len(values), math.nan, "", None, None, tail)
    per_block = max(PER_BLOCK, -(-len(values) // BLOCKS))
    levels = np.log(stats.turns(trial.samples, per_block))
    where = np.arange(len(levels), dtype=float)
    line = trend(where.tolist(), levels.tolist())
    rise = line.slope * (len(levels) - 1)
    left = np.abs(levels - np.median(levels - line.slope * where) - line.slope * where).sum()
    at, p = step(levels)
    before, after = np.median(levels[:at]), np.median(levels[at:])
    rest = np.abs(levels[:at] - before).sum() + np.abs(levels[at:] - after).sum()
    if rest < left:
        return Pace(trial, len(values), math.exp(after - before), "step", at * per_block, p, tail)
    return Pace(trial, len(values), math.exp(rise), "drift", None, 1.0 if line.p is None else line.p, tail)


def _word(pace: Pace, p: float | None) -> str:
    if p is None:
        return "too few samples"
    if abs(pace.change - 1) <= MARGIN:
        return "steady"
    if p >= ALPHA:
        return "unclear"
    if pace.change < 1:
        return "speeds up"
    return "steps down, as under throttling" if pace.kind == "step" else "drifts"


def _how(pace: Pace) -> str:
    when = f" after sample {pace.at}" if pace.at is not None else " from start to end"
    return f"{percent(pace.change)} time{when}"


def _percentile(over: Array, q: float) -> float | None:
    """Of sorted values; None where too few lie beyond it."""
    return float(np.quantile(over, q)) if len(over) * (1 - q) >= BEYOND - 1e-9 else None


def _tail(tail: Tail) -> list[str]:
    told = [f"{v:.2f} ×" if v is not None else DASH for v in (tail.p95, tail.p99, tail.worst)]
    return [*told, share(tail.hiccups) if tail.hiccups else "none"]


def _charts(found: Sequence[Pace], told: dict[int, str]) -> list[Markup]:
    """The runs that are worst off, sample by sample, each over its own median."""
    ranked = sorted(found, key=lambda p: (p.word in CALM, -p.tail.weight))
    strips = []
    for p in ranked[:STRIPS]:
        middle = float(np.median(p.trial.samples))
        about = f"{told[id(p)]}\n{p.word}, median {si(middle, 's')}"
        strips.append(Samples(told[id(p)] or "the run", [s / middle for s in p.trial.samples], title=about))
    caption = "Each dot is one batch, the first above; the least steady runs come first."
    return [samples(strips, title="Batch by batch", axis=Axis("time over the run's median", "×"), caption=caption)]
