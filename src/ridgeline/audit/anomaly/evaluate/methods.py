"""What is compared: the detector, and two baselines that are hard to beat.

never_seen     how many templates of a unit were in nothing normal so far
count_vector   how far its counts of templates are from those of the nearest normal unit; a single line is judged by
               itself and by the lines up to it, as many as told the anomalies of the training part best

All read the same templates and learn from the same units.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.audit.anomaly.detector import Detector, Embed
from ridgeline.audit.anomaly.evaluate.units import Unit
from ridgeline.audit.anomaly.sentences import sentence
from ridgeline.audit.anomaly.template import Miner

WINDOWS = (1, 5, 10, 20)  # lines that count_vector may take together


class Method(Protocol):
    def judge(self, unit: Unit, learn: bool) -> float:
        """The score of a unit; if `learn`, it is normal and known from then on."""
        ...


class NeverSeen:
    def __init__(self) -> None:
        self._miner, self._seen = Miner(), set[int]()

    def judge(self, unit: Unit, learn: bool) -> float:
        found = _templates(self._miner, unit)
        score = sum(template not in self._seen for template in found)
        if learn:
            self._seen.update(found)
        return float(score)


class CountVector:
    """Distance: Σ|a − b| / Σ(a + b), 0 for the same counts, 1 for nothing in common."""

    def __init__(self, window: int = 1) -> None:
        self.window = window  # units of one event are counted together with those before them
        self._miner = Miner()
        self._before: deque[tuple[list[int], bool]] = deque(maxlen=max(window - 1, 0))
        self._known: set[frozenset[tuple[int, int]]] = set()
        self._matrix: NDArray[np.float32] = np.zeros((64, 64), np.float32)

    def judge(self, unit: Unit, learn: bool) -> float:
        found = _templates(self._miner, unit)
        counts = Counter(found)
        for templates, _ in self._before:
            counts.update(templates)
        clean = learn and all(normal for _, normal in self._before)
        self._before.append((found, learn))
        score = self._distance(counts)
        if clean:
            self._add(counts)
        return score

    def _distance(self, counts: Mapping[int, int]) -> float:
        if frozenset(counts.items()) in self._known:
            return 0.0
        if not self._known:
            return 1.0
        self._grow(0, max(counts))
        row = np.zeros(self._matrix.shape[1], np.float32)
        row[list(counts)] = list(counts.values())
        known = self._matrix[: len(self._known)]
        return float((np.abs(known - row).sum(1) / (known + row).sum(1)).min())

    def _add(self, counts: Mapping[int, int]) -> None:
        key = frozenset(counts.items())
        if key in self._known:
            return
        self._grow(len(self._known), max(counts))
        self._matrix[len(self._known), list(counts)] = list(counts.values())
        self._known.add(key)

    def _grow(self, row: int, column: int) -> None:
        rows, columns = self._matrix.shape
        if row >= rows or column >= columns:
            more = np.zeros((rows * 2 if row >= rows else rows, max(columns * 2, column + 1)), np.float32)
            more[:rows, :columns] = self._matrix
            self._matrix = more


class LineCounts:
    """Single lines or events: the distance of one by itself, and of those up to it taken together."""

    def __init__(self, window: int) -> None:
        self.window = window
        self._own, self._together = CountVector(), CountVector(window)

    def judge(self, unit: Unit, learn: bool) -> float:
        own = self._own.judge(unit, learn)
        return own + self._together.judge(unit, learn) if self.window > 1 else own


class Watcher:
    """The detector of the watcher. A session is judged when it has ended, a line or event at once."""

    def __init__(self, embed: Embed, kind: str) -> None:
        self._detector, self._whole, self._entry = Detector(embed), kind == "session", 0
        self.alerted = False  # by the unit judged last, at the detector's own line

    def judge(self, unit: Unit, learn: bool) -> float:
        self._entry += 1
        found = self._detector.score(unit.events, [self._entry] * len(unit.events), learn=learn)
        self.alerted = any(judgement.alert for judgement in found)
        if self._whole:
            found = self._detector.ended(learn=learn)
            self.alerted |= any(judgement.alert for judgement in found)
        return max(judgement.score for judgement in found)


def _templates(miner: Miner, unit: Unit) -> list[int]:
    return [miner.learn(sentence(event)).id for event in unit.events]


def kinds_of(units: Sequence[Unit]) -> list[tuple[int, ...]]:
    """For each unit the templates that are in it, however often."""
    miner = Miner()
    for unit in units:
        _templates(miner, unit)
    return [tuple(sorted(set(_templates(miner, unit)))) for unit in units]


def methods(embed: Embed, kind: str) -> dict[str, Sequence[Method]]:
    """By name, each in the settings between which the training part decides."""
    single = kind != "session"
    return {
        "ridgeline": [Watcher(embed, kind)],
        "never_seen": [NeverSeen()],
        "count_vector": [LineCounts(window) for window in WINDOWS] if single else [CountVector()],
    }
