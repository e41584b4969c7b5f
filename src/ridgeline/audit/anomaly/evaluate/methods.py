"""The methods that are compared: the detector, and six baselines that are hard to beat.

never_seen     the number of different events of a unit that no normal unit had so far
count_vector   the distance of its event counts from those of the nearest normal unit; a single line is judged alone
               and together with the lines before it, as many as separate the training part best
ngram          the share of its runs of three events that no normal unit had; for a single line, the run that it ends
count_pca, tfidf_forest, next_template: see learned.py

The baselines read events as they are, without the detector's templates. Only in events that do not recur in the
training part as they are (they have times, addresses or ids) numbers are masked.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.audit.anomaly.detector import Detector, Embed
from ridgeline.audit.anomaly.evaluate.learned import CountPca, NextTemplate, TfidfForest
from ridgeline.audit.anomaly.evaluate.units import Event, Unit
from ridgeline.audit.anomaly.sentences import describe_event
from ridgeline.audit.anomaly.template import mask

BASELINES = ("never_seen", "count_vector", "count_pca", "tfidf_forest", "ngram", "next_template")
WINDOWS = (1, 5, 10, 20)  # numbers of lines that count_vector may judge together
RUN = 3  # events in a run of ngram
RECURRING = 3  # normal units with the same event; in events of fewer units numbers are masked

Read = Callable[[Event], str]


class Method(Protocol):
    def judge(self, unit: Unit, learn: bool) -> float:
        """Return the score of a unit; with `learn`, add it to the normal units."""
        ...


class NeverSeen:
    def __init__(self, read: Read) -> None:
        self._read, self._seen = read, set[str]()

    def judge(self, unit: Unit, learn: bool) -> float:
        events = {self._read(event) for event in unit.events}
        score = len(events - self._seen)
        if learn:
            self._seen |= events
        return float(score)


class NewRuns:
    """Single lines have no session: their run goes back to the lines before."""

    def __init__(self, read: Read, single: bool) -> None:
        self._read, self._single = read, single
        self._seen = set[tuple[str, ...]]()
        self._before: list[str] = [""] * (RUN - 1)

    def judge(self, unit: Unit, learn: bool) -> float:
        events = [*self._before, *map(self._read, unit.events)]
        if self._single:
            self._before = events[1 - RUN :]
        runs = list(zip(*(events[start:] for start in range(RUN)), strict=False))
        score = sum(run not in self._seen for run in runs) / len(runs)
        if learn:
            self._seen.update(runs)
        return score


class CountVector:
    """Distance: Σ|a − b| / Σ(a + b), 0 for the same counts, 1 for nothing in common."""

    def __init__(self, read: Read, window: int = 1) -> None:
        self.window = window  # units of one event are counted together with this many before them
        self._read, self._columns = read, dict[str, int]()
        self._before: deque[tuple[list[int], bool]] = deque(maxlen=max(window - 1, 0))
        self._known: set[frozenset[tuple[int, int]]] = set()
        self._matrix: NDArray[np.float32] = np.zeros((64, 64), np.float32)

    def judge(self, unit: Unit, learn: bool) -> float:
        current = [self._columns.setdefault(self._read(event), len(self._columns)) for event in unit.events]
        counts = Counter(current)
        for columns, _ in self._before:
            counts.update(columns)
        clean = learn and all(normal for _, normal in self._before)
        self._before.append((current, learn))
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
    """For single lines or events: the distance of one alone, plus that of the window that it ends."""

    def __init__(self, read: Read, window: int) -> None:
        self.window = window
        self._single, self._together = CountVector(read), CountVector(read, window)

    def judge(self, unit: Unit, learn: bool) -> float:
        single = self._single.judge(unit, learn)
        return single + self._together.judge(unit, learn) if self.window > 1 else single


class Watcher:
    """The detector of the watcher. It judges a session when it has ended, and a line or event at once."""

    def __init__(self, embed: Embed, kind: str) -> None:
        self._detector, self._by_session, self._entry = Detector(embed), kind == "session", 0
        self._detector.trust = True  # what it learns in training is normal
        self.alerted = False  # whether the last unit gave an alert

    def go_live(self) -> None:
        """From now on, what it learns may be an anomaly."""
        self._detector.trust = False

    @property
    def drifts(self) -> bool:
        return self._detector.drifts

    def judge(self, unit: Unit, learn: bool) -> float:
        self._entry += 1
        judgements = self._detector.score(unit.events, [self._entry] * len(unit.events), learn=learn)
        self.alerted = any(judgement.alert for judgement in judgements)
        if self._by_session:
            judgements = self._detector.end_sessions(learn=learn)
            self.alerted |= any(judgement.alert for judgement in judgements)
        score = max(judgement.score for judgement in judgements)
        return score / (1.0 - score)  # proportional to −log p


def choose_reading(train: Sequence[Unit]) -> Read:
    """Return how the baselines read events: as they are if they recur in the normal units, else with masked numbers."""
    units = Counter(
        sentence
        for unit in train
        if not unit.anomalous
        for sentence in {describe_event(event) for event in unit.events}
    )
    recurring = {sentence for sentence, count in units.items() if count >= RECURRING}

    def read(event: Event) -> str:
        sentence = describe_event(event)
        return sentence if sentence in recurring else mask(sentence)

    return read


def list_kinds(units: Sequence[Unit], read: Read) -> list[tuple[str, ...]]:
    """Return for each unit the set of its events, sorted."""
    return [tuple(sorted({read(event) for event in unit.events})) for unit in units]


def make_methods(embed: Embed, kind: str, read: Read) -> dict[str, Sequence[Method]]:
    """Make the methods by name, each with the settings that the training part chooses from."""
    single = kind != "session"
    return {
        "ridgeline": [Watcher(embed, kind)],
        "never_seen": [NeverSeen(read)],
        "count_vector": [LineCounts(read, window) for window in WINDOWS] if single else [CountVector(read)],
        "count_pca": [CountPca(read, window) for window in (WINDOWS if single else (1,))],
        "tfidf_forest": [TfidfForest(read)],
        "ngram": [NewRuns(read, single)],
        "next_template": [NextTemplate(read, single)],
    }
