"""The evaluation protocol: learn from the normal units of the training part, then score the test part.

    ridgeline audit evaluate logs/hdfs_sessions

1. Learn from the earlier normal units of the training part (80 %), in order.
2. Score its later normal units without learning, as the test part is scored: thresholds that are chosen by them hold
   for the test part as long as nothing has changed.
3. Choose two thresholds. Without labels: one that, with 95 % confidence, at most 0.5 % of later normal units exceed.
   With labels, if the training part has anomalies: the one with the best F1 on the later normal units and all anomalies
   of the training part. Every kind of anomaly (the same set of events) has the same weight there, since future
   anomalies will be of other kinds.
4. Score the test part without learning.
5. Compute the figures on the test part, with 95 % bootstrap intervals. All methods use the same draws, so differences
   are paired. Lines and events are drawn in blocks, since they come in bursts. If the normal units of the test part
   exceed the threshold without labels in clearly more than 1 % of cases, the answer says drift.

In addition, `live`: the detector scores the test part again and learns from all of it, as it does in the watcher.

Every method follows this protocol; the settings of a method are those with the best F1 in step 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.audit.anomaly.detector import Embed
from ridgeline.audit.anomaly.evaluate.learned import CountPca, Fitted
from ridgeline.audit.anomaly.evaluate.methods import (
    BASELINES,
    LineCounts,
    Method,
    Read,
    Watcher,
    choose_reading,
    list_kinds,
    make_methods,
)
from ridgeline.audit.anomaly.evaluate.metrics import (
    DRAWS,
    Labels,
    MethodScores,
    auroc,
    bootstrap,
    compute_figures,
    find_interval,
    find_share_interval,
    find_threshold,
    find_tolerance,
)
from ridgeline.audit.anomaly.evaluate.units import SHARE, Labelled, Unit, load

EARLY = 0.8  # share of the normal units of the training part that are learnt; the others choose the thresholds
RATE = 0.005  # of later normal units that exceed the threshold without labels
DRIFT = 0.01  # if clearly more of them do, what is normal has changed
BLOCK = 20  # lines or events

Tell = Callable[[str], object]


def evaluate(path: Path, embed: Embed, share: float = SHARE, tell: Tell = lambda _: None) -> dict[str, Any]:
    """Return `{"protocol": …, "ridgeline": {precision, recall, f1, auroc, unlabelled, …}, "never_seen": …, …}`."""
    data = load(path, share)
    return compare_methods(data, embed, tell)


def compare_methods(
    data: Labelled, embed: Embed, tell: Tell = lambda _: None, baselines: Sequence[str] = BASELINES
) -> dict[str, Any]:
    """Return the figures of the detector and of these baselines; `evaluate` describes them."""
    labels = np.array([unit.anomalous for unit in data.test])
    read = choose_reading(data.train)
    results: dict[str, MethodScores] = {}
    unlabelled: dict[str, MethodScores] = {}
    settings: dict[str, dict[str, Any]] = {}
    for name, several in make_methods(embed, data.kind, read).items():
        if name != "ridgeline" and name not in baselines:
            continue
        tell(f"{name}: learning")
        best, threshold, tolerance = _train(several, data.train, data.kind != "session", read)
        tell(f"{name}: judging")
        scores = np.array([best.judge(unit, learn=False) for unit in data.test])
        results[name] = MethodScores(labels, scores, threshold)
        unlabelled[name] = replace(results[name], threshold=tolerance)
        settings[name] = {"window": best.window} if isinstance(best, LineCounts | CountPca) else {}
        if isinstance(best, Watcher):
            tell(f"{name}: as it would be live")
            settings[name] = {"live": _live(best, data.test, labels)}
    tell("intervals")
    block = 1 if data.kind == "session" else BLOCK
    draws, unlabelled_draws = bootstrap(results, block), bootstrap(unlabelled, block)
    return {"protocol": _protocol(data, block)} | {
        name: _summarise(name, result, draws)
        | {"unlabelled": _summarise(name, unlabelled[name], unlabelled_draws) | _find_drift(unlabelled[name])}
        | settings[name]
        for name, result in results.items()
    }


def _live(watcher: Watcher, test: Sequence[Unit], labels: Labels) -> dict[str, Any]:
    """Score the test part again while learning from it, and count the alerts that the watcher would give."""
    watcher.go_live()
    rows = [(watcher.judge(unit, learn=True), watcher.alerted) for unit in test]
    alerts = np.array([alert for _, alert in rows])
    return {
        "auroc": auroc(labels, np.array([score for score, _ in rows])),
        "alerts": int(alerts.sum()),
        "alerts_right": int((alerts & labels).sum()),
        "drift": watcher.drifts,
    }


def _train(several: Sequence[Method], train: Sequence[Unit], alone: bool, read: Read) -> tuple[Method, float, float]:
    """Train every setting; return the one with the best F1 on the training part, and its two thresholds.

    The first threshold is chosen with the labels of anomalies in the training part, if there are any; the second
    without.
    """
    bad = np.array([unit.anomalous for unit in train])
    cut = int(np.flatnonzero(~bad)[int(EARLY * (~bad).sum())])  # the first of the later normal units
    late = ~bad[cut:]
    labels = np.repeat([False, True], [late.sum(), bad.sum()])
    kinds = list_kinds([unit for unit in train if unit.anomalous], read)
    often = Counter(kinds)
    weights = np.array([(~bad).sum() / late.sum()] * late.sum() + [bad.sum() / len(often) / often[k] for k in kinds])
    tried = []
    for method in several:
        for unit in train[:cut]:
            if unit.anomalous and isinstance(method, Fitted):
                method.skip(unit)
            else:
                method.judge(unit, learn=not unit.anomalous)
        later = np.array([method.judge(unit, learn=False) for unit in train[cut:]])[late]
        tolerance = find_tolerance(later, RATE)
        if not bad.any():
            tried.append((0.0, tolerance, tolerance, method))
            continue
        # Score single lines again in order, since a method may use earlier lines; sessions are independent.
        again = np.array([method.judge(unit, learn=False) for unit in train if unit.anomalous or alone])
        threshold, f1 = find_threshold(labels, np.concatenate([later, again[bad] if alone else again]), weights)
        tried.append((f1, threshold, tolerance, method))
    _, threshold, tolerance, method = max(tried, key=lambda row: row[0])
    return method, threshold, tolerance


def _find_drift(result: MethodScores) -> dict[str, Any]:
    """Return how many normal units of the test part exceed the threshold, and whether that means drift."""
    normal = result.scores[~result.labels]
    exceeding = int((normal > result.threshold).sum())
    low, high = find_share_interval(exceeding, len(normal))
    return {"exceeded": exceeding / len(normal), "exceeded_ci": [low, high], "drift": low > DRIFT}


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
        "learnt_from": f"the first {EARLY:.0%} of the normal units of the training part, in order",
        "threshold": (
            "best F1 on the later normal units and the anomalies of the training part, kinds counted the same"
            if any(unit.anomalous for unit in data.train)
            else "that without labels: the training part has no anomalies"
        ),
        "unlabelled": f"at most {RATE:.1%} of later normal units exceed it, with 95 % confidence",
        "intervals": f"95 %, bootstrap over the test part, {DRAWS} draws of blocks of {block}",
    }
