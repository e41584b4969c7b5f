"""The published protocol: learn from what is normal in the training part, then judge the test part.

    ridgeline audit evaluate logs/hdfs_sessions

1. The training part is gone through in order. Every unit is judged by what was learnt before it, then learnt if it is
   normal. Its scores and labels, but for the first tenth, give the threshold: where F1 is best; in a training part
   without anomalies, what 1 % exceed.
2. The test part is judged with nothing more learnt.
3. Figures on the test part, with 95 % intervals by bootstrap; all methods on the same draws, so that differences are
   paired. Lines and events are drawn in blocks, since they come in bursts.

Every method goes through the same three steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.audit.detector import Embed
from ridgeline.audit.evaluate.methods import CountVector, Method, methods
from ridgeline.audit.evaluate.metrics import DRAWS, Judged, figures, intervals, middle, threshold_for
from ridgeline.audit.evaluate.units import SHARE, Labelled, Unit, load

WARM_UP = 0.5  # of the training part, whose scores do not decide
RATE = 0.01
BLOCK = 20  # lines or events

Tell = Callable[[str], object]


def evaluate(path: Path, embed: Embed, share: float = SHARE, tell: Tell = lambda _: None) -> dict[str, Any]:
    """`{"protocol": …, "ridgeline": {precision, recall, f1, auroc, …}, "never_seen": …, "count_vector": …}`."""
    data = load(path, share)
    return judged(data, embed, tell)


def judged(data: Labelled, embed: Embed, tell: Tell = lambda _: None) -> dict[str, Any]:
    labels = np.array([unit.anomalous for unit in data.test])
    found: dict[str, Judged] = {}
    settings: dict[str, dict[str, Any]] = {}
    for name, several in methods(embed, data.kind).items():
        tell(f"{name}: learning")
        best, threshold = _trained(several, data.train)
        tell(f"{name}: judging")
        scores = np.array([best.judge(unit, learn=False) for unit in data.test])
        found[name] = Judged(labels, scores, threshold)
        settings[name] = {"window": best.window} if isinstance(best, CountVector) else {}
    tell("intervals")
    block = 1 if data.kind == "session" else BLOCK
    draws = intervals(found, block)
    return {"protocol": _protocol(data, block)} | {
        name: _told(name, held, draws) | settings[name] for name, held in found.items()
    }


def _trained(several: Sequence[Method], train: Sequence[Unit]) -> tuple[Method, float]:
    """The setting that tells the training part's anomalies best, and its threshold."""
    start = int(len(train) * WARM_UP)
    labels = np.array([unit.anomalous for unit in train])
    best: tuple[float, Method, float] | None = None
    for method in several:
        first = np.array([method.judge(unit, learn=not unit.anomalous) for unit in train])
        again = np.array([method.judge(unit, learn=False) for unit in train]) if labels.any() else first
        late = np.arange(len(train)) >= start
        scores = np.concatenate([first[late & ~labels], again[labels]])
        lab = np.concatenate([np.zeros((late & ~labels).sum(), bool), np.ones(labels.sum(), bool)])
        w = (~labels).sum() / (late & ~labels).sum()
        threshold = threshold_for(lab, scores, RATE, w)
        value = figures(Judged(lab, scores, threshold))["f1"] if labels.any() else 0.0
        if best is None or value > best[0]:
            best = value, method, threshold
    if best is None:
        raise ValueError("no method")
    return best[1], best[2]


def _told(name: str, held: Judged, draws: dict[str, dict[str, Any]]) -> dict[str, Any]:
    told: dict[str, Any] = dict(figures(held))
    told["ci"] = {figure: middle(values) for figure, values in draws[name].items()}
    told["threshold"] = held.threshold
    told["found"] = int((held.scores > held.threshold).sum())
    if name != "ridgeline":
        told["ridgeline_minus_this"] = {
            figure: middle(draws["ridgeline"][figure] - draws[name][figure]) for figure in ("f1", "auroc")
        }
    return told


def _protocol(data: Labelled, block: int) -> dict[str, Any]:
    return {
        "data": data.name,
        "unit": data.kind,
        "split": data.split,
        "train": len(data.train),
        "train_anomalies": sum(unit.anomalous for unit in data.train),
        "test": len(data.test),
        "test_anomalies": sum(unit.anomalous for unit in data.test),
        "learnt_from": "the normal units of the training part, in order; nothing is learnt from the test part",
        "threshold": (
            f"best F1 on the training part but its first {WARM_UP:.0%}, each unit judged before it is learnt"
            if any(unit.anomalous for unit in data.train[int(len(data.train) * WARM_UP) :])
            else f"what {RATE:.0%} of the training part exceed, which has no anomalies"
        ),
        "intervals": f"95 %, bootstrap over the test part, {DRAWS} draws of blocks of {block}",
    }
