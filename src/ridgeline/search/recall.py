"""How much of the truth an index finds, measured on itself, and the settings that reach what is asked.

Queries are rows of the index; each is left out of its own answers, in the search and in the truth, because finding
oneself is no art. The truth is an exact search over the finest values the index holds: with Refine(Flat) or
IVFn,Flat those are the vectors themselves; with SQ8 or PQ alone they are the codes, so that give `originals` to
measure what the codes lost as well.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.search.arrays import Whole
from ridgeline.search.engine import Ask, Engine, Place, Recipe
from ridgeline.search.spec import Spec

if TYPE_CHECKING:
    from ridgeline.search.state import State

DEPTHS = (1, 2, 4, 8, 16, 32, 64)
ENOUGH = 0.9995  # more lists cannot be told from the truth by such a sample
ALIKE = 1.2  # times that differ by less are the machine's weather
TRIES = 3  # timings of a setting; the least counts


@dataclass(frozen=True)
class Point:
    """One setting, what it found and what it took."""

    nprobe: int
    depth: int
    recall: float
    seconds: float  # per query, in batches of the sample

    def __str__(self) -> str:
        return f"{self.recall:.4f} at nprobe {self.nprobe}, depth {self.depth}"


@dataclass(frozen=True)
class Curve:
    """What was measured: k neighbours of `sample` rows among `rows`."""

    k: int
    sample: int
    rows: int
    truth: str  # "vectors" or "codes"
    points: tuple[Point, ...]

    def pick(self, recall: float) -> Point | None:
        """The quickest setting that found that much; of those about as quick, the one that looks at least."""
        good = [p for p in self.points if p.recall >= recall]
        if not good:
            return None
        least = min(p.seconds for p in good)
        return min((p for p in good if p.seconds <= ALIKE * least), key=lambda p: (p.nprobe * p.depth, p.seconds))

    def best(self) -> Point:
        return max(self.points, key=lambda p: (p.recall, -p.seconds))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(told: dict[str, Any]) -> Curve:
        return Curve(**{**told, "points": tuple(Point(**p) for p in told["points"])})

    def __str__(self) -> str:
        """Only the settings worth having: those that no quicker one reaches."""
        shown: list[Point] = []
        for point in sorted(self.points, key=lambda p: (p.seconds, -p.recall)):
            if not shown or point.recall > shown[-1].recall:
                shown.append(point)
        return f"recall@{self.k} against the {self.truth}: " + "; ".join(map(str, shown))


def grid(spec: Spec) -> list[list[tuple[int, int]]]:
    """(nprobe, depth), in runs along which only nprobe grows."""
    lists = spec.lists or 1
    probes = [1 << n for n in range(lists.bit_length()) if 1 << n < lists] + [lists]
    depths: Iterable[int] = DEPTHS if spec.refine else (1,)
    return [[(nprobe, depth) for nprobe in probes] for depth in depths]


def measured(search: Any, spec: Spec, truth: Whole, own: Whole, k: int) -> list[Point]:
    """`search(nprobe, depth, k)` gives rows [q, k]; `truth` [q, k] may end in −1; `own` [q] is left out."""
    points: list[Point] = []
    for run in grid(spec):
        for nprobe, depth in run:
            taken, found = float("inf"), truth
            for _ in range(TRIES):
                began = time.perf_counter()
                found = search(nprobe, depth, k + 1)
                taken = min(taken, time.perf_counter() - began)
                if taken > 1:
                    break
            recall = recall_of(without(found, own, k), truth)
            points.append(Point(nprobe, depth, recall, taken / max(1, len(truth))))
            if recall >= ENOUGH:
                break
    return points


def recall_of(found: Whole, truth: Whole) -> float:
    """The share of `truth` [q, k] that `found` holds; −1 is no neighbour."""
    there = truth >= 0
    if not there.any():
        return 1.0
    hit = (truth[:, :, None] == found[:, None, :]).any(2) & there
    return float(hit.sum() / there.sum())


def without(found: Whole, own: Whole, k: int) -> Whole:
    """Answers [q, k + 1] less each query's own row: [q, k]."""
    keep = found != own[:, None]
    order = np.argsort(~keep, axis=1, kind="stable")  # own row last, the others as they stood
    return np.take_along_axis(np.where(keep, found, -1), order, 1)[:, :k]


def curve_of(place: Place, engine: Engine, sample: int, k: int, originals: Any, seed: int) -> Curve:
    """Measure an engine on `sample` of its own rows; `originals` are what they were before they were coded."""
    recipe, count = engine.recipe, engine.count
    own = np.sort(np.random.default_rng(seed).choice(count, sample, replace=False))
    whole = None
    if originals is not None:
        whole = place.take_in(originals, recipe.dim, recipe.metric, "originals")
        if len(whole) != count:
            raise InputError(f"{len(whole)} originals for {count} rows; give one for each, in the order of ids.")
    queries = engine.vectors(own) if whole is None else whole[own]
    if whole is None and recipe.spec == Spec("Flat", lists=recipe.spec.lists):
        truth = engine.search(queries, Ask(k + 1, nprobe=recipe.spec.lists or 1))[1]
    else:
        values = engine.vectors(np.arange(count)) if whole is None else whole
        plain = Recipe(Spec("Flat"), recipe.metric, recipe.dim, "float32")
        truth = place.trained(plain, values[:0], 0).added(values).search(queries, Ask(k + 1))[1]
    finest = "vectors" if whole is not None or (recipe.spec.refine or recipe.spec.codec) == "Flat" else "codes"

    def search(nprobe: int, depth: int, wanted: int) -> Whole:
        return _numpy(engine.search(queries, Ask(wanted, nprobe, depth))[1])

    found = measured(search, recipe.spec, without(_numpy(truth), own, k), own, k)
    return Curve(k, sample, count, finest, tuple(found))


def reaching(state: State, recall: float, warned: set[str]) -> tuple[int, int]:
    """nprobe and depth of the measured setting that reaches a recall; said once where there is none."""
    if not isinstance(recall, int | float) or not 0 < recall <= 1:
        raise InputError(f"recall is {recall!r}; give a share above 0 and up to 1, like 0.95.")
    spec = state.engine.recipe.spec if state.engine is not None else Spec("Flat")
    most = (spec.lists or 1, DEPTHS[-1])
    curve = state.curve
    if spec.exact or state.engine is None:
        return most

    def warn(sentence: str) -> None:
        if sentence not in warned:
            warned.add(sentence)
            warnings.warn(sentence, stacklevel=6)

    if curve is None:
        warn(
            f"recall={recall} was asked of '{spec}', but no recall was measured, so all lists are searched; "
            "call measure_recall() once."
        )
        return most
    if not curve.rows / 1.5 <= state.rows.live <= curve.rows * 1.5:
        warn(
            f"recall was measured over {curve.rows} rows and the index has {state.rows.live}; "
            "call measure_recall() again."
        )
    point = curve.pick(recall)
    if point is None:
        point = curve.best()
        warn(
            f"recall={recall} was asked of '{spec}', and the most that was measured is {point}, "
            "which is used; a finer codec or Refine(Flat) reaches more."
        )
    return point.nprobe, point.depth


def _numpy(values: Any) -> Whole:
    return np.asarray(values if isinstance(values, np.ndarray) else values.cpu().numpy())
