"""The published protocol: learn from what is normal in the training part, then judge the test part.

    ridgeline audit evaluate logs/hdfs_sessions

1. The training part is gone through in order. Every unit is judged by what was learnt before it, then learnt if it is
   normal.
2. The threshold is where F1 is best on the training part: its normal units with the scores they had before they were
   learnt (those of its later half, which stand for all), its anomalies as they are judged at its end, every kind of
   them (those with the same templates) counted the same, since those to come will be of other kinds. In a training part
   without anomalies it is what 1 % of the normal units exceed.
3. The test part is judged with nothing more learnt.
4. Figures on the test part, with 95 % intervals by bootstrap; all methods on the same draws, so that differences are
   paired. Lines and events are drawn in blocks, since they come in bursts.

Beside that, `live`: the detector goes through the test part again, learning from all of it as it does in the watcher.

Every method goes the same way; where it has settings, those with the best F1 in step 2 are taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.audit.anomaly.detector import Embed
from ridgeline.audit.anomaly.evaluate.methods import LineCounts, Method, Watcher, kinds_of, methods
from ridgeline.audit.anomaly.evaluate.metrics import (
    DRAWS,
    Judged,
    Labels,
    auroc,
    exceeded_by,
    figures,
    intervals,
    middle,
    threshold_for,
)
from ridgeline.audit.anomaly.evaluate.units import SHARE, Labelled, Unit, load

EARLY = 0.5  # of the training part, whose normal units do not decide: little was known yet
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
        best, threshold = _trained(several, data.train, alone=data.kind != "session")
        tell(f"{name}: judging")
        scores = np.array([best.judge(unit, learn=False) for unit in data.test])
        found[name] = Judged(labels, scores, threshold)
        settings[name] = {"window": best.window} if isinstance(best, LineCounts) else {}
        if isinstance(best, Watcher):
            tell(f"{name}: as it would be live")
            settings[name] = {"live": _live(best, data.test, labels)}
    tell("intervals")
    block = 1 if data.kind == "session" else BLOCK
    draws = intervals(found, block)
    return {"protocol": _protocol(data, block)} | {
        name: _told(name, held, draws) | settings[name] for name, held in found.items()
    }


def _live(watcher: Watcher, test: Sequence[Unit], labels: Labels) -> dict[str, Any]:
    """The test part once more, now learnt from as it is judged, with the alerts the watcher would have given."""
    rows = [(watcher.judge(unit, learn=True), watcher.alerted) for unit in test]
    alerts = np.array([alert for _, alert in rows])
    return {
        "auroc": auroc(labels, np.array([score for score, _ in rows])),
        "alerts": int(alerts.sum()),
        "alerts_right": int((alerts & labels).sum()),
    }


def _trained(several: Sequence[Method], train: Sequence[Unit], alone: bool) -> tuple[Method, float]:
    """The setting that tells the training part's anomalies best, and its threshold."""
    bad = np.array([unit.anomalous for unit in train])
    late = ~bad & (np.cumsum(~bad) > EARLY * (~bad).sum())
    labels = np.repeat([False, True], [late.sum(), bad.sum()])
    kinds = kinds_of([unit for unit in train if unit.anomalous])
    often = Counter(kinds)
    weights = np.array([(~bad).sum() / late.sum()] * late.sum() + [bad.sum() / len(often) / often[k] for k in kinds])
    tried = []
    for method in several:
        first = np.array([method.judge(unit, learn=not unit.anomalous) for unit in train])
        # Single lines once more in order, since a method may look at what came before; sessions stand by themselves.
        again = [method.judge(unit, learn=False) for unit in train if bad.any() and (unit.anomalous or alone)]
        scores = np.concatenate([first[late], np.array(again)[bad] if alone and again else again])
        threshold, f1 = threshold_for(labels, scores, weights) if bad.any() else (exceeded_by(scores, RATE), 0.0)
        tried.append((f1, threshold, method))
    _, threshold, method = max(tried, key=lambda row: row[0])
    return method, threshold


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
            "best F1 on the training part, kinds of anomalies counted the same; normal units as judged before "
            "they were learnt"
            if any(unit.anomalous for unit in data.train)
            else f"what {RATE:.0%} of the training part exceed, which has no anomalies"
        ),
        "intervals": f"95 %, bootstrap over the test part, {DRAWS} draws of blocks of {block}",
    }
