"""Templates by meaning: how far a new template is from normal ones, and how similar it is to labelled ones.

A template is embedded once, when it is new. Its distance (1 − cosine) to the nearest normal template is ranked against
the distances of earlier new templates of its family (their action), and of all families if its family has few: in a
family of one fixed sentence a small distance is unusual, in a family of free text it is not. Its tone (does it sound
more like trouble than like routine?) is ranked in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

MOST = 8_192  # templates in memory; beyond that, the oldest is replaced
NEAREST = 3
ARRIVALS = 200  # arrivals remembered per family
FAMILIES = 1_000
ENOUGH = 20  # arrivals of a family that outweigh those of all families
SIMILAR = 0.75  # lowest cosine at which a label affects another template
ALL = ""
SOUNDS_BAD = 0.05  # lowest tone that sounds like trouble
TROUBLE = (
    "fatal error",
    "failure",
    "system crashed",
    "connection lost",
    "access denied",
    "panic, execution stopped",
    "hardware fault",
    "attack, intrusion",
    "security protection disabled",
    "data loss",
    "change was rolled back",
    "malware, unauthorised access",
    "out of memory",
)
ROUTINE = (
    "information",
    "operation completed successfully",
    "status report",
    "corrected",
    "started",
    "normal routine message",
    "device or port added",
    "item created",
    "service restarted",
    "configuration reloaded",
    "user session opened",
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """The measurements of a new template."""

    distance: float  # 1 − cosine to the nearest normal template
    tone: float  # cosine to the nearest text of TROUBLE minus that to the nearest text of ROUTINE


class Neighbours:
    """The vectors, arrivals and labels of templates."""

    def __init__(self) -> None:
        self._vectors: Vectors = np.zeros((0, 0), np.float32)
        self._normal: NDArray[np.bool_] = np.zeros(MOST, bool)  # by row
        self._ids: list[int] = []  # row → template
        self._rows: dict[int, int] = {}
        self._next = 0  # the row to write next
        self._arrivals: dict[str, list[Arrival]] = {ALL: []}
        self._voices: tuple[Vectors, Vectors] | None = None  # vectors of TROUBLE and ROUTINE
        self._labels: list[tuple[int, str, bool]] = []  # template, actor, bad

    def __contains__(self, template: int) -> bool:
        return template in self._rows

    def nearest(self, vector: Vectors) -> list[tuple[int, float]]:
        """Return (template, cosine) of the nearest normal templates, best first; of equal ones the first row."""
        if not self._normal.any():
            return []
        cosines = np.where(self._normal[: len(self._ids)], _products(self._vectors[: len(self._ids)], vector), -2.0)
        nearest = []
        for _ in range(min(NEAREST, len(cosines))):
            row = int(cosines.argmax())
            if cosines[row] > -2.0:
                nearest.append((self._ids[row], float(cosines[row])))
                cosines[row] = -2.0
        return nearest

    def mark(self, template: int, normal: bool) -> None:
        """Set whether others are compared with this template; a new template is not normal."""
        row = self._rows.get(template)
        if row is not None:
            self._normal[row] = normal

    def tone(self, vector: Vectors) -> float:
        if self._voices is None:
            return 0.0
        trouble, routine = self._voices
        return float(_products(trouble, vector).max() - _products(routine, vector).max())

    def listen(self, trouble: Vectors, routine: Vectors) -> None:
        """Set the vectors of TROUBLE and ROUTINE."""
        self._voices = trouble, routine

    @property
    def listens(self) -> bool:
        return self._voices is not None

    def surprises(self, family: str, new: Arrival) -> tuple[float, float]:
        """Return the surprises, in nats, of the distance and of the tone of a new template."""
        of_family, of_all = self._arrivals.get(family, []), self._arrivals[ALL]
        share = 1.0 if len(of_family) < ENOUGH else ENOUGH / len(of_family)
        total = 1 + len(of_family) + share * len(of_all)

        def nats(as_large: Callable[[Arrival], bool]) -> float:
            return -math.log((1 + sum(map(as_large, of_family)) + share * sum(map(as_large, of_all))) / total)

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
            for arrivals in (self._arrivals.setdefault(family, []), self._arrivals[ALL]):
                arrivals.append(arrival)
                del arrivals[:-ARRIVALS]

    def label(self, template: int, actor: str, bad: bool) -> None:
        """Store the label of a person; the last label of the same template and actor counts."""
        self._labels = [row for row in self._labels if row[:2] != (template, actor)][-1023:]
        self._labels.append((template, actor, bad))

    @property
    def labelled(self) -> bool:
        return bool(self._labels)

    def leaning(self, template: int, actor: str) -> float:
        """Return a value from −1 (similar to events labelled normal) to 1 (similar to events labelled bad)."""
        best = strength = 0.0
        row = self._rows.get(template)
        for other, labelled_actor, bad in self._labels:
            if other == template:
                similarity = 1.0
            elif row is not None and other in self._rows:
                cosine = float(self._vectors[row] @ self._vectors[self._rows[other]])
                similarity = max(0.0, (cosine - SIMILAR) / (1 - SIMILAR))
            else:
                continue
            if labelled_actor != actor:
                similarity *= 0.5
            if similarity >= strength and similarity > 0:
                strength, best = similarity, similarity if bad else -similarity
        return best

    def state(self) -> tuple[dict[str, Any], Vectors]:
        state = {
            "ids": self._ids,
            "next": self._next,
            "arrivals": {family: [[a.distance, a.tone] for a in vectors] for family, vectors in self._arrivals.items()},
            "voices": [vectors.tolist() for vectors in self._voices] if self._voices else None,
            "labels": self._labels,
        }
        return state, self._vectors[: len(self._ids)]

    @classmethod
    def restore(cls, state: Mapping[str, Any], vectors: Vectors) -> Self:
        neighbours = cls()
        neighbours._ids, neighbours._next = list(state["ids"]), state["next"]
        neighbours._rows = {template: row for row, template in enumerate(neighbours._ids)}
        size = 64
        while size < len(neighbours._ids):
            size *= 2
        neighbours._vectors = np.zeros((min(size, MOST), vectors.shape[1]), np.float32)
        neighbours._vectors[: len(vectors)] = vectors
        neighbours._arrivals = {family: [Arrival(*row) for row in rows] for family, rows in state["arrivals"].items()}
        if state["voices"] is not None:
            trouble, routine = (np.array(rows, np.float32) for rows in state["voices"])
            neighbours._voices = trouble, routine
        neighbours._labels = [(template, actor, bad) for template, actor, bad in state["labels"]]
        return neighbours


def _products(rows: Vectors, vector: Vectors) -> Vectors:
    """Return rows [n, dim] · vector [dim], computed in this thread only.

    A BLAS would wake one thread per core for this millisecond, and each would spin for tens of milliseconds afterwards:
    with a steady stream of new sentences that keeps every core busy.
    """
    products: Vectors = np.einsum("ij,j->i", rows, vector)
    return products
