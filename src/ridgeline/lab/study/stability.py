"""Whether a run keeps its speed: drift, a step as throttling makes it, and the tail.

Neighbouring samples are correlated, so the tests look at medians of blocks. Drift is Kendall's test, a step is
Pettitt's; the report names the one that leaves smaller residuals. There are many runs, so Holm's method corrects the
p-values, and a change below the margin is not reported. A percentile needs enough samples beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ridgeline.lab.judge import MARGIN, turn_medians
from ridgeline.lab.study.contrasts import ALPHA, correct_holm, fit_trend
from ridgeline.lab.study.section import DASH, Grid, Section, format_change, format_share, to_json
from ridgeline.lab.study.table import Table, Trial, name_differences
from ridgeline.web import Axis, Samples, draw_samples, format_si

Array = NDArray[np.float64]
MAX_BLOCKS, PER_BLOCK = 48, 4  # at most this many blocks, each of at least this many samples
MIN_SAMPLES = 30  # of a run whose speed can be judged
BEYOND = 2  # samples that must lie beyond a percentile
HICCUP = 2.0  # times the median
MAX_CHARTED = 6
CALM = ("steady", "unclear", "too few samples")  # words that report no problem


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
class RunStability:
    """How steady one run was."""

    trial: Trial
    n: int
    change: float  # time at the end ÷ at the start, by the better of line and step
    kind: str  # drift | step
    at: int | None  # the sample after which it steps
    p: float | None  # None: too few samples
    tail: Tail
    word: str = ""  # steady | unclear | drifts | steps down, as under throttling | speeds up | too few samples


def judge_stability(table: Table) -> list[RunStability]:
    """Judge every run that has samples; all tests share one correction."""
    runs = [_test_run(t) for t in table.trials if t.samples]
    tested = [run for run in runs if run.p is not None]
    corrected = dict(zip(map(id, tested), correct_holm([run.p or 0.0 for run in tested]), strict=True))
    return [RunStability(**{**vars(run), "word": _choose_word(run, corrected.get(id(run)))}) for run in runs]


def describe_stability(table: Table, runs: Sequence[RunStability]) -> Section:
    """Return the section on stability, with the samples of the least steady runs."""
    title = "Stability"
    if not runs:
        return Section(
            title, ["No row has the samples of its run: speed and tail cannot be judged."] if table.trials else []
        )
    tested = [r for r in runs if r.p is not None]
    untested = len(runs) - len(tested)
    unsteady = [r for r in tested if r.word not in ("steady", "unclear")]
    unclear = [r for r in tested if r.word == "unclear"]
    columns = table.columns
    labels = name_differences([{n: r.trial.level(n) for n in columns.identity} for r in runs])
    names = dict(zip(map(id, runs), labels, strict=True))
    steady = len(tested) - len(unsteady) - len(unclear)
    sentences = []
    if tested:
        sentences.append(f"{steady} of {len(tested)} runs kept their speed within {100 * MARGIN:.0f} %.")
    if unclear:
        verb = "run differs" if len(unclear) == 1 else "runs differ"
        sentences.append(f"{len(unclear)} {verb} by more between start and end, but not beyond the noise: unclear.")
    sentences += [f"{names[id(r)] or 'The run'} {r.word}: {_describe_change(r)}." for r in unsteady[:MAX_CHARTED]]
    if untested:
        sentences.append(
            f"{untested} of {len(runs)} runs have fewer than {MIN_SAMPLES} samples: too few to judge their speed."
        )
    tails = [r for r in runs if r.tail.p99 is not None]
    if tails:
        heavy = max(tails, key=lambda r: r.tail.weight)
        sentences.append(
            f"The heaviest tail: {names[id(heavy)] or 'the run'}, "
            f"99 % of batches within {heavy.tail.weight:.2f} × the median."
        )
    elif tested:
        sentences.append("No run has the 200 samples a 99th percentile needs.")
    head = ("run", "speed", "change", "95 % within", "99 % within", "slowest", "beyond twice", "samples")
    rows = [
        [
            names[id(r)] or "the run",
            r.word,
            format_change(r.change) if r.p is not None else DASH,
            *_tail_cells(r.tail),
            str(r.n),
        ]
        for r in _rank_runs(runs)
    ]
    grid = Grid(head, rows, head[2:], "Times of single batches over the run's median.", max_rows=12)
    findings = {
        "runs": [
            {"run": r.trial.row.get(columns.run), **{k: v for k, v in vars(r).items() if k != "trial"}} for r in runs
        ]
    }
    return Section(title, sentences, [grid], _draw_samples(runs, names), to_json(findings))


def find_step(levels: Array) -> tuple[int, float]:
    """Return the index at which a series steps, and Pettitt's p-value of "it does not step"."""
    n = len(levels)
    signs = np.sign(levels[:, None] - levels[None, :])
    scores = np.array([signs[:k, k:].sum() for k in range(1, n)])
    k = int(np.argmax(abs(scores)))
    return k + 1, min(1.0, 2 * math.exp(-6 * float(scores[k]) ** 2 / (n**3 + n**2)))


def _test_run(trial: Trial) -> RunStability:
    values = np.array(trial.samples)
    relative = np.sort(values / np.median(values))
    p95, p99 = _percentile(relative, 0.95), _percentile(relative, 0.99)
    tail = Tail(p95, p99, float(relative[-1]), float((relative > HICCUP).mean()))
    if len(values) < MIN_SAMPLES:
        return RunStability(trial, len(values), math.nan, "", None, None, tail)
    per_block = max(PER_BLOCK, -(-len(values) // MAX_BLOCKS))
    levels = np.log(turn_medians(trial.samples, per_block))
    index = np.arange(len(levels), dtype=float)
    line = fit_trend(index.tolist(), levels.tolist())
    rise = line.slope * (len(levels) - 1)
    line_residuals = np.abs(levels - np.median(levels - line.slope * index) - line.slope * index).sum()
    at, p = find_step(levels)
    before, after = np.median(levels[:at]), np.median(levels[at:])
    step_residuals = np.abs(levels[:at] - before).sum() + np.abs(levels[at:] - after).sum()
    if step_residuals < line_residuals:
        return RunStability(trial, len(values), math.exp(after - before), "step", at * per_block, p, tail)
    return RunStability(trial, len(values), math.exp(rise), "drift", None, 1.0 if line.p is None else line.p, tail)


def _choose_word(run: RunStability, p: float | None) -> str:
    if p is None:
        return "too few samples"
    if abs(run.change - 1) <= MARGIN:
        return "steady"
    if p >= ALPHA:
        return "unclear"
    if run.change < 1:
        return "speeds up"
    return "steps down, as under throttling" if run.kind == "step" else "drifts"


def _describe_change(run: RunStability) -> str:
    when = f" after sample {run.at}" if run.at is not None else " from start to end"
    return f"{format_change(run.change)} time{when}"


def _percentile(relative: Array, q: float) -> float | None:
    """Return a percentile of sorted values; None where too few lie beyond it."""
    return float(np.quantile(relative, q)) if len(relative) * (1 - q) >= BEYOND - 1e-9 else None


def _rank_runs(runs: Sequence[RunStability]) -> list[RunStability]:
    """Return the least steady runs first."""
    return sorted(runs, key=lambda r: (r.word in CALM, -r.tail.weight))


def _tail_cells(tail: Tail) -> list[str]:
    ratios = [f"{v:.2f} ×" if v is not None else DASH for v in (tail.p95, tail.p99, tail.worst)]
    return [*ratios, format_share(tail.hiccups) if tail.hiccups else "none"]


def _draw_samples(runs: Sequence[RunStability], names: dict[int, str]) -> list[Markup]:
    """Draw the least steady runs sample by sample, each over its own median."""
    strips = []
    for r in _rank_runs(runs)[:MAX_CHARTED]:
        median = float(np.median(r.trial.samples))
        about = f"{names[id(r)]}\n{r.word}, median {format_si(median, 's')}"
        strips.append(Samples(names[id(r)] or "the run", [s / median for s in r.trial.samples], title=about))
    caption = "Each dot is one batch, the first above; the least steady runs come first."
    return [draw_samples(strips, title="Batch by batch", axis=Axis("time over the run's median", "×"), caption=caption)]
