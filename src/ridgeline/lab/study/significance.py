"""What can be told apart: every factor tested over its pairs, corrected for there being many tests.

Holm's correction keeps the chance of even one false finding in the whole table below 5 %. A difference is named only
if it is also beyond the margin; within the margin, by its whole interval, two levels are the SAME.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.lab.judge.stats import FEWEST
from ridgeline.lab.judge.verdict import MARGIN, Comparison
from ridgeline.lab.study.contrast import Contrast
from ridgeline.lab.study.section import DASH, Grid, Section, percent, plain, spread

ALPHA = 0.05
FEW = "too few pairs"


@dataclass(frozen=True)
class Finding:
    contrast: Contrast
    corrected: float | None  # p after Holm
    word: str  # of the other level against the base: SLOWER | FASTER | SAME | UNCLEAR | too few pairs


def holm(ps: Sequence[float]) -> list[float]:
    """p-values corrected for their number, in the order given.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    out, highest = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, ps[i] * (len(ps) - rank)))
        out[i] = highest
    return out


def findings(contrasts: Sequence[Contrast]) -> list[Finding]:
    """All of them judged as one family."""
    tested = [c for c in contrasts if c.p is not None]
    corrected = dict(zip(map(id, tested), holm([c.p or 0.0 for c in tested]), strict=True))
    return [Finding(c, corrected.get(id(c)), _word(c, corrected.get(id(c)))) for c in contrasts]


def significance(found: Sequence[Finding]) -> Section:
    title = "What can be told apart"
    if not found:
        return Section(title, ["No two runs differ in one factor only: there is nothing to test."])
    tested = [f for f in found if f.corrected is not None]
    sure = [f for f in tested if f.word in (Comparison.SLOWER, Comparison.FASTER)]
    said = [
        f"Of {len(found)} comparisons {len(tested)} have the {FEWEST} pairs a test needs; in {len(sure)} of these a "
        f"difference beyond {100 * MARGIN:.0f} % survives the correction."
    ]
    said += [_sentence(f) for f in sure[:12]]
    if len(tested) < len(found):
        said.append(
            "The others had too few pairs: their ratios are shown, nothing is claimed. Repeat the runs to test them."
        )
    head = ("factor", "level", "against", "time", "95 % interval", "pairs", "p", "p corrected", "verdict")
    rows = [
        [
            f.contrast.factor,
            str(f.contrast.other),
            str(f.contrast.base) or "none",
            percent(f.contrast.ratio.value),
            spread(f.contrast.ratio),
            str(f.contrast.ratio.n),
            _p(f.contrast.p),
            _p(f.corrected),
            f.word,
        ]
        for f in found
    ]
    return Section(title, said, [Grid(head, rows, head[3:8])], findings=plain({"comparisons": found}))


def _word(c: Contrast, corrected: float | None) -> str:
    if corrected is None:
        return FEW
    if c.ratio.low >= 1 / (1 + MARGIN) and c.ratio.high <= 1 + MARGIN:
        return Comparison.SAME
    if corrected < ALPHA and c.ratio.value > 1 + MARGIN:
        return Comparison.SLOWER
    if corrected < ALPHA and c.ratio.value < 1 / (1 + MARGIN):
        return Comparison.FASTER
    return Comparison.UNCLEAR


def _sentence(f: Finding) -> str:
    c = f.contrast
    base = str(c.base) or "none"
    return f"{c.factor} {c.other} against {base}: {percent(c.ratio.value)} time ({spread(c.ratio)}, {c.basis})."


def _p(p: float | None) -> str:
    return DASH if p is None or math.isnan(p) else f"{p:.2g}"
