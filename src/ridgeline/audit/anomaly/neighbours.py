"""Templates by meaning: how far a new one lies from those known to be normal, and from those a person has judged.

A template is embedded once, when it is new. Its distance (1 − cosine) to the nearest normal one is held against the
distances with which earlier templates of its family (their action) arrived, and those of all families where it has few:
in a family of one fixed sentence a small step is far, in one of free text it is not. Its tone (does it sound more like
trouble than like routine?) is held against theirs in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

MOST = 8_192  # templates held; beyond, the oldest gives way
NEAREST = 3
ARRIVALS = 200  # distances remembered per family
FAMILIES = 1_000
ENOUGH = 20  # distances of a family that outweigh those of all
ALIKE = 0.75  # cosine from which on a label reaches another template
ALL = ""
TROUBLE = (
    "fatal error",
    "failure",
    "system crashed",
    "connection lost",
    "access denied",
    "panic, execution stopped",
    "hardware fault",
    "attack, intrusion",
)
ROUTINE = (
    "information",
    "operation completed successfully",
    "status report",
    "corrected",
    "started",
    "normal routine message",
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """What was noted when a template was new."""

    distance: float  # 1 − cosine to the nearest normal one
    tone: float  # how much more it sounds like trouble than like routine, as a difference of cosines


class Neighbours:
    """Vectors of templates, how they arrived, and labels."""

    def __init__(self) -> None:
        self._vectors: Vectors = np.zeros((0, 0), np.float32)
        self._normal: NDArray[np.bool_] = np.zeros(MOST, bool)  # by row
        self._ids: list[int] = []  # row → template
        self._rows: dict[int, int] = {}
        self._next = 0  # the row that is written next
        self._arrivals: dict[str, list[Arrival]] = {ALL: []}
        self._voices: tuple[Vectors, Vectors] | None = None  # of trouble, of routine
        self._labels: list[tuple[int, str, bool]] = []  # template, actor, bad

    def __contains__(self, template: int) -> bool:
        return template in self._rows

    def nearest(self, vector: Vectors) -> list[tuple[int, float]]:
        """(template, cosine) of the nearest normal ones, best first; of equal ones the row that comes first."""
        if not self._normal.any():
            return []
        cosines = np.where(self._normal[: len(self._ids)], _products(self._vectors[: len(self._ids)], vector), -2.0)
        found = []
        for _ in range(min(NEAREST, len(cosines))):
            row = int(cosines.argmax())
            if cosines[row] > -2.0:
                found.append((self._ids[row], float(cosines[row])))
                cosines[row] = -2.0
        return found

    def mark(self, template: int, normal: bool) -> None:
        """Whether others are held against it; a template is not, until this is said."""
        row = self._rows.get(template)
        if row is not None:
            self._normal[row] = normal

    def tone(self, vector: Vectors) -> float:
        if self._voices is None:
            return 0.0
        trouble, routine = self._voices
        return float(_products(trouble, vector).max() - _products(routine, vector).max())

    def listen(self, trouble: Vectors, routine: Vectors) -> None:
        """Give the vectors of TROUBLE and ROUTINE."""
        self._voices = trouble, routine

    @property
    def listens(self) -> bool:
        return self._voices is not None

    def surprises(self, family: str, new: Arrival) -> tuple[float, float]:
        """In nats: how unusual it is for a new template to lie so far from all others, and to sound so bad."""
        own, every = self._arrivals.get(family, []), self._arrivals[ALL]
        share = 1.0 if len(own) < ENOUGH else ENOUGH / len(own)
        total = 1 + len(own) + share * len(every)

        def nats(as_large: Callable[[Arrival], bool]) -> float:
            return -math.log((1 + sum(map(as_large, own)) + share * sum(map(as_large, every))) / total)

        return nats(lambda a: a.distance >= new.distance), nats(lambda a: a.tone >= new.tone)

    def learn(self, template: int, vector: Vectors, family: str, arrival: Arrival | None) -> None:
        if self._vectors.shape[1] != len(vector):
            self._vectors = np.zeros((64, len(vector)), np.float32)
        if self._next == len(self._vectors) < MOST:
            self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)])[:MOST]
        row = self._next
        if row < len(self._ids):
            del self._rows[self._ids[row]]
            self._ids[row] = template
        else:
            self._ids.append(template)
        self._vectors[row], self._rows[template], self._normal[row] = vector, row, False
        self._next = (row + 1) % MOST
        if arrival is not None:
            if family not in self._arrivals and len(self._arrivals) >= FAMILIES:
                del self._arrivals[list(self._arrivals)[1]]
            for held in (self._arrivals.setdefault(family, []), self._arrivals[ALL]):
                held.append(arrival)
                del held[:-ARRIVALS]

    def label(self, template: int, actor: str, bad: bool) -> None:
        """What a person says of an event; the latest word on the same template and actor counts."""
        self._labels = [row for row in self._labels if row[:2] != (template, actor)][-1023:]
        self._labels.append((template, actor, bad))

    @property
    def labelled(self) -> bool:
        return bool(self._labels)

    def leaning(self, template: int, actor: str) -> float:
        """Between −1 (like what was called normal) and 1 (like what was called bad)."""
        best = strength = 0.0
        row = self._rows.get(template)
        for other, who, bad in self._labels:
            if other == template:
                alike = 1.0
            elif row is not None and other in self._rows:
                cosine = float(self._vectors[row] @ self._vectors[self._rows[other]])
                alike = max(0.0, (cosine - ALIKE) / (1 - ALIKE))
            else:
                continue
            if who != actor:
                alike *= 0.5
            if alike >= strength and alike > 0:
                strength, best = alike, alike if bad else -alike
        return best

    def state(self) -> tuple[dict[str, Any], Vectors]:
        told = {
            "ids": self._ids,
            "next": self._next,
            "arrivals": {family: [[a.distance, a.tone] for a in held] for family, held in self._arrivals.items()},
            "voices": [held.tolist() for held in self._voices] if self._voices else None,
            "labels": self._labels,
        }
        return told, self._vectors[: len(self._ids)]

    @classmethod
    def restore(cls, state: Mapping[str, Any], vectors: Vectors) -> Self:
        made = cls()
        made._ids, made._next = list(state["ids"]), state["next"]
        made._rows = {template: row for row, template in enumerate(made._ids)}
        size = 64
        while size < len(made._ids):
            size *= 2
        made._vectors = np.zeros((min(size, MOST), vectors.shape[1]), np.float32)
        made._vectors[: len(vectors)] = vectors
        made._arrivals = {family: [Arrival(*row) for row in held] for family, held in state["arrivals"].items()}
        if state["voices"] is not None:
            trouble, routine = (np.array(held, np.float32) for held in state["voices"])
            made._voices = trouble, routine
        made._labels = [(template, actor, bad) for template, actor, bad in state["labels"]]
        return made


def _products(rows: Vectors, vector: Vectors) -> Vectors:
    """rows [n, dim] · vector [dim], by this thread alone.

    A BLAS would wake a thread per core for this millisecond, wait for the last of them, and each would turn in circles
    for tens of milliseconds afterwards: where new sentences keep coming, that is every core, always.
    """
    found: Vectors = np.einsum("ij,j->i", rows, vector)
    return found
