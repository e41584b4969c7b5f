"""The methods that are compared: the detector, and two baselines that are hard to beat.

never_seen     the number of templates of a unit that no normal unit had so far
count_vector   the distance of its template counts from those of the nearest normal unit; a single line is judged alone
               and together with the lines before it, as many as separate the training part best

All methods read the same templates and learn from the same units.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.audit.anomaly.detector import Detector, Embed
from ridgeline.audit.anomaly.evaluate.units import Unit
from ridgeline.audit.anomaly.sentences import describe_event
from ridgeline.audit.anomaly.template import Miner

WINDOWS = (1, 5, 10, 20)  # numbers of lines that count_vector may judge together


class Method(Protocol):
    def judge(self, unit: Unit, learn: bool) -> float:
        """Return the score of a unit; with `learn`, add it to the normal units."""
        ...


class NeverSeen:
    def __init__(self) -> None:
        self._miner, self._seen = Miner(), set[int]()

    def judge(self, unit: Unit, learn: bool) -> float:
        templates = _templates(self._miner, unit)
        score = sum(template not in self._seen for template in templates)
        if learn:
            self._seen.update(templates)
        return float(score)


class CountVector:
    """Distance: Σ|a − b| / Σ(a + b), 0 for the same counts, 1 for nothing in common."""

    def __init__(self, window: int = 1) -> None:
        self.window = window  # units of one event are counted together with this many before them
        self._miner = Miner()
        self._before: deque[tuple[list[int], bool]] = deque(maxlen=max(window - 1, 0))
        self._restore_known: set[frozenset[tuple[int, int]]] = set()
        self._matrix: NDArray[np.float32] = np.zeros((64, 64), np.float32)

    def judge(self, unit: Unit, learn: bool) -> float:
        current = _templates(self._miner, unit)
        counts = Counter(current)
        for templates, _ in self._before:
            counts.update(templates)
        clean = learn and all(normal for _, normal in self._before)
        self._before.append((current, learn))
        score = self._distance(counts)
        if clean:
            self._add(counts)
        return score

    def _distance(self, counts: Mapping[int, int]) -> float:
        if frozenset(counts.items()) in self._restore_known:
            return 0.0
        if not self._restore_known:
            return 1.0
        self._grow(0, max(counts))
        row = np.zeros(self._matrix.shape[1], np.float32)
        row[list(counts)] = list(counts.values())
        known = self._matrix[: len(self._restore_known)]
        return float((np.abs(known - row).sum(1) / (known + row).sum(1)).min())

    def _add(self, counts: Mapping[int, int]) -> None:
        key = frozenset(counts.items())
        if key in self._restore_known:
            return
        self._grow(len(self._restore_known), max(counts))
        self._matrix[len(self._restore_known), list(counts)] = list(counts.values())
        self._restore_known.add(key)

    def _grow(self, row: int, column: int) -> None:
        rows, columns = self._matrix.shape
        if row >= rows or column >= columns:
            more = np.zeros((rows * 2 if row >= rows else rows, max(columns * 2, column + 1)), np.float32)
            more[:rows, :columns] = self._matrix
            self._matrix = more


class LineCounts:
    """For single lines or events: the distance of one alone, plus that of the window that it ends."""

    def __init__(self, window: int) -> None:
        self.window = window
        self._single, self._together = CountVector(), CountVector(window)

    def judge(self, unit: Unit, learn: bool) -> float:
        single = self._single.judge(unit, learn)
        return single + self._together.judge(unit, learn) if self.window > 1 else single


class Watcher:
    """The detector of the watcher. It judges a session when it has ended, and a line or event at once."""

    def __init__(self, embed: Embed, kind: str) -> None:
        self._detector, self._by_session, self._entry = Detector(embed), kind == "session", 0
        self.alerted = False  # whether the last unit gave an alert

    def judge(self, unit: Unit, learn: bool) -> float:
        self._entry += 1
        judgements = self._detector.score(unit.events, [self._entry] * len(unit.events), learn=learn)
        self.alerted = any(judgement.alert for judgement in judgements)
        if self._by_session:
            judgements = self._detector.end_sessions(learn=learn)
            self.alerted |= any(judgement.alert for judgement in judgements)
        return max(judgement.score for judgement in judgements)


def _templates(miner: Miner, unit: Unit) -> list[int]:
    return [miner.learn(describe_event(event)).id for event in unit.events]


def list_kinds(units: Sequence[Unit]) -> list[tuple[int, ...]]:
    """Return for each unit the set of its templates, sorted."""
    miner = Miner()
    for unit in units:
        _templates(miner, unit)
    return [tuple(sorted(set(_templates(miner, unit)))) for unit in units]


def make_methods(embed: Embed, kind: str) -> dict[str, Sequence[Method]]:
    """Make the methods by name, each with the settings that the training part chooses from."""
    single = kind != "session"
    return {
        "ridgeline": [Watcher(embed, kind)],
        "never_seen": [NeverSeen()],
        "count_vector": [LineCounts(window) for window in WINDOWS] if single else [CountVector()],
    }
