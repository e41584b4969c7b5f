"""The evaluation protocol: learn from the normal units of the training part, then score the test part.

    ridgeline audit evaluate logs/hdfs_sessions

1. Score the units of the training part in order; learn each normal unit after its score.
2. Choose the threshold with the best F1 on the training part. Its normal units have the scores from before they were
   learnt (only those of the later half, weighted for all); its anomalies are scored at the end. Every kind of anomaly
   (the same set of templates) has the same weight, since future anomalies will be of other kinds. Without anomalies,
   the threshold is the score that 1 % of the normal units exceed.
3. Score the test part without learning.
4. Compute the figures on the test part, with 95 % bootstrap intervals. All methods use the same draws, so differences
   are paired. Lines and events are drawn in blocks, since they come in bursts.

In addition, `live`: the detector scores the test part again and learns from all of it, as it does in the watcher.

Every method follows this protocol; the settings of a method are those with the best F1 in step 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.audit.anomaly.detector import Embed
from ridgeline.audit.anomaly.evaluate.methods import LineCounts, Method, Watcher, list_kinds, make_methods
from ridgeline.audit.anomaly.evaluate.metrics import (
    DRAWS,
    Labels,
    MethodScores,
    auroc,
    bootstrap,
    compute_figures,
    find_exceeded,
    find_interval,
    find_threshold,
)
from ridgeline.audit.anomaly.evaluate.units import SHARE, Labelled, Unit, load

EARLY = 0.5  # share of the training part whose normal units do not count for the threshold
RATE = 0.01
BLOCK = 20  # lines or events

Tell = Callable[[str], object]


def evaluate(path: Path, embed: Embed, share: float = SHARE, tell: Tell = lambda _: None) -> dict[str, Any]:
    """`{"protocol": …, "ridgeline": {precision, recall, f1, auroc, …}, "never_seen": …, "count_vector": …}`."""
    data = load(path, share)
    return compare_methods(data, embed, tell)


def compare_methods(data: Labelled, embed: Embed, tell: Tell = lambda _: None) -> dict[str, Any]:
    labels = np.array([unit.anomalous for unit in data.test])
    results: dict[str, MethodScores] = {}
    settings: dict[str, dict[str, Any]] = {}
    for name, several in make_methods(embed, data.kind).items():
        tell(f"{name}: learning")
        best, threshold = _train(several, data.train, alone=data.kind != "session")
        tell(f"{name}: judging")
        scores = np.array([best.judge(unit, learn=False) for unit in data.test])
        results[name] = MethodScores(labels, scores, threshold)
        settings[name] = {"window": best.window} if isinstance(best, LineCounts) else {}
        if isinstance(best, Watcher):
            tell(f"{name}: as it would be live")
            settings[name] = {"live": _live(best, data.test, labels)}
    tell("intervals")
    block = 1 if data.kind == "session" else BLOCK
    draws = bootstrap(results, block)
    return {"protocol": _protocol(data, block)} | {
        name: _summarise(name, result, draws) | settings[name] for name, result in results.items()
    }


def _live(watcher: Watcher, test: Sequence[Unit], labels: Labels) -> dict[str, Any]:
    """Score the test part again while learning from it, and count the alerts that the watcher would give."""
    rows = [(watcher.judge(unit, learn=True), watcher.alerted) for unit in test]
    alerts = np.array([alert for _, alert in rows])
    return {
        "auroc": auroc(labels, np.array([score for score, _ in rows])),
        "alerts": int(alerts.sum()),
        "alerts_right": int((alerts & labels).sum()),
    }


def _train(several: Sequence[Method], train: Sequence[Unit], alone: bool) -> tuple[Method, float]:
    """Train every setting; return the one with the best F1 on the training part, and its threshold."""
    bad = np.array([unit.anomalous for unit in train])
    late = ~bad & (np.cumsum(~bad) > EARLY * (~bad).sum())
    labels = np.repeat([False, True], [late.sum(), bad.sum()])
    kinds = list_kinds([unit for unit in train if unit.anomalous])
    often = Counter(kinds)
    weights = np.array([(~bad).sum() / late.sum()] * late.sum() + [bad.sum() / len(often) / often[k] for k in kinds])
    tried = []
    for method in several:
        first = np.array([method.judge(unit, learn=not unit.anomalous) for unit in train])
        # Score single lines again in order, since a method may use earlier lines; sessions are independent.
        again = [method.judge(unit, learn=False) for unit in train if bad.any() and (unit.anomalous or alone)]
        scores = np.concatenate([first[late], np.array(again)[bad] if alone and again else again])
        threshold, f1 = find_threshold(labels, scores, weights) if bad.any() else (find_exceeded(scores, RATE), 0.0)
        tried.append((f1, threshold, method))
    _, threshold, method = max(tried, key=lambda row: row[0])
    return method, threshold


def _summarise(name: str, result: MethodScores, draws: dict[str, dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = dict(compute_figures(result))
    summary["ci"] = {figure: find_interval(values) for figure, values in draws[name].items()}
    summary["threshold"] = result.threshold
    summary["found"] = int((result.scores > result.threshold).sum())
    if name != "ridgeline":
        summary["ridgeline_minus_this"] = {
            figure: find_interval(draws["ridgeline"][figure] - draws[name][figure]) for figure in ("f1", "auroc")
        }
    return summary


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
