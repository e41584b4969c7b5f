"""Measure the recall of an index on its own rows, and choose settings that reach a recall.

Queries are rows of the index. Each query is removed from its own results, in the search and in the truth, because
every search finds it. The truth is an exact search over the vectors: with Refine(Flat) or IVFn,Flat they are in the
index; with SQ8 or PQ alone the index keeps the nearest rows of some training vectors (truth.py), or the caller gives
the `originals`. If neither is possible, the truth is a search over the codes: it does not see what they lost.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.search.arrays import Doubles, Integers
from ridgeline.search.engine import Backend, Engine, EngineConfig, SearchOptions
from ridgeline.search.rows import Rows
from ridgeline.search.spec import Spec
from ridgeline.search.truth import TruthSample, needs_truth_sample

DEPTHS = (1, 2, 4, 8, 16, 32, 64)
GRAPH_EFFORTS = (10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)  # ef of HNSW
COMPLETE_RECALL = 0.9995  # a sample cannot show that more lists find more
SIMILAR_TIMES = 1.2  # times that differ by a smaller factor are noise
NORMAL_95 = 1.96  # standard deviations that hold 95 % of a normal distribution
TRIES = 3  # timings of a setting; the shortest counts
OTHER_SIZE = 1.5  # a curve is not used for an index that is larger or smaller by this factor


class RecallWarning(UserWarning):
    """A requested recall was not reached, or it is not known whether it was."""


@dataclass(frozen=True)
class Point:
    """One setting with its recall and its time."""

    nprobe: int  # HNSW: ef
    depth: int  # HNSW: 0
    recall: float
    seconds: float  # per query, in batches of the sample
    low: float = 0.0  # the 95 % interval of the recall of other queries; an older index has none
    high: float = 1.0

    def __str__(self) -> str:
        interval = f" ({self.low:.4f} to {self.high:.4f})" if (self.low, self.high) != (0, 1) else ""
        setting = f"nprobe {self.nprobe}, depth {self.depth}" if self.depth else f"ef {self.nprobe}"
        return f"{self.recall:.4f}{interval} at {setting}"


@dataclass(frozen=True)
class Curve:
    """The recall of all measured settings: k neighbours of `sample` rows among `rows`."""

    k: int
    sample: int
    rows: int
    truth: str  # "vectors" or "codes"
    points: tuple[Point, ...]

    def pick(self, recall: float) -> Point | None:
        """Return the fastest setting with this recall; of similarly fast ones, the one that reads least. None: no
        setting has it.
        """
        good = [p for p in self.points if p.recall >= recall]
        if not good:
            return None
        least = min(p.seconds for p in good)
        return min(
            (p for p in good if p.seconds <= SIMILAR_TIMES * least),
            key=lambda p: (p.nprobe * max(1, p.depth), p.seconds),
        )

    def best(self) -> Point:
        """Return the setting with the highest recall."""
        return max(self.points, key=lambda p: (p.recall, -p.seconds))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Curve:
        return Curve(**{**data, "points": tuple(Point(**p) for p in data["points"])})

    def __str__(self) -> str:
        """Only the settings that no faster setting reaches."""
        pareto: list[Point] = []
        for point in sorted(self.points, key=lambda p: (p.seconds, -p.recall)):
            if not pareto or point.recall > pareto[-1].recall:
                pareto.append(point)
        return f"recall@{self.k} against the {self.truth}: " + "; ".join(map(str, pareto))


def list_settings(spec: Spec) -> list[list[tuple[int, int]]]:
    """(nprobe, depth), in runs along which only nprobe grows; HNSW: (ef, 0)."""
    if spec.links:
        return [[(ef, 0) for ef in GRAPH_EFFORTS]]
    lists = spec.lists or 1
    probes = [1 << n for n in range(lists.bit_length()) if 1 << n < lists] + [lists]
    bounded = spec.codec == "RaBitQ" and spec.refine == "Flat"  # the bounds decide which rows are read in full
    depths: Iterable[int] = DEPTHS if spec.refine and not bounded else (1,)
    return [[(nprobe, depth) for nprobe in probes] for depth in depths]


def measure_settings(search: Any, spec: Spec, truth: Integers, own_rows: Integers, k: int) -> list[Point]:
    """Measure recall and time of each setting.

    `search(nprobe, depth, k)` returns rows [q, k]; `truth` [q, k] can end in −1; `own_rows` [q] are removed from
    results.
    """
    points: list[Point] = []
    for run in list_settings(spec):
        for nprobe, depth in run:
            elapsed_s, rows = float("inf"), truth
            for _ in range(TRIES):
                start = time.perf_counter()
                rows = search(nprobe, depth, k + 1)
                elapsed_s = min(elapsed_s, time.perf_counter() - start)
                if elapsed_s > 1:
                    break
            recall, low, high = compute_interval(count_hits(drop_own_rows(rows, own_rows, k), truth))
            points.append(Point(nprobe, depth, recall, elapsed_s / max(1, len(truth)), low, high))
            if recall >= COMPLETE_RECALL:
                break
    return points


def compute_recall(rows: Integers, truth: Integers) -> float:
    """Return the share of `truth` [q, k] that is in `rows` [q, k]; −1 is no neighbour."""
    valid = truth >= 0
    if not valid.any():
        return 1.0
    hit = (truth[:, :, None] == rows[:, None, :]).any(2) & valid
    return float(hit.sum() / valid.sum())


def count_hits(rows: Integers, truth: Integers) -> Doubles:
    """Return the share of the true neighbours of each query [q] that was found; −1 is no neighbour."""
    valid = truth >= 0
    hits = ((truth[:, :, None] == rows[:, None, :]).any(2) & valid).sum(1)
    total = valid.sum(1)
    return np.asarray(np.where(total > 0, hits / np.maximum(total, 1), 1.0))


def compute_interval(shares: Doubles) -> tuple[float, float, float]:
    """Return the mean of the recalls of single queries [q], and its 95 % interval: (mean, low, high).

    Wilson's interval for a share. The neighbours of one query are found or missed together, so the size of the sample
    is what gives the spread seen between queries, at least the number of queries: a sample without a miss is no proof.
    """
    count = len(shares)
    if not count:
        return 1.0, 0.0, 1.0
    mean = float(shares.mean())
    spread = float(shares.var(ddof=1)) / count if count > 1 else 0.0
    size = mean * (1 - mean) / spread if spread > 0 else float(count)
    half = NORMAL_95 * np.sqrt(mean * (1 - mean) / size + NORMAL_95**2 / (4 * size**2))
    centre, scale = mean + NORMAL_95**2 / (2 * size), 1 + NORMAL_95**2 / size
    return (
        mean,
        max(0.0, min(mean, float((centre - half) / scale))),
        min(1.0, max(mean, float((centre + half) / scale))),
    )


def drop_own_rows(rows: Integers, own_rows: Integers, k: int) -> Integers:
    """Remove the row of each query from its results [q, k + 1]: [q, k]."""
    keep = rows != own_rows[:, None]
    order = np.argsort(~keep, axis=1, kind="stable")  # own row last, the others in their order
    return np.take_along_axis(np.where(keep, rows, -1), order, 1)[:, :k]


def measure_curve(
    backend: Backend,
    engine: Engine,
    rows: Rows,
    truth: TruthSample | None,
    sample: int,
    k: int,
    originals: Any,
    seed: int,
) -> Curve:
    """Measure an engine on `sample` of its own rows; `originals` are the vectors before they were encoded."""
    config = engine.config
    neighbours = truth.find_neighbours(rows, k) if truth is not None and originals is None else None
    if neighbours is not None:
        prepared = backend.prepare_vectors(neighbours[0][:sample], config.dim, config.metric, "originals")
        own_rows, true_rows, truth_kind = neighbours[1][:sample], neighbours[2][:sample], "vectors"
    else:
        prepared, own_rows, true_rows, truth_kind = _find_truth(backend, engine, sample, k, originals, seed)

    def search(nprobe: int, depth: int, result_count: int) -> Integers:
        # A walk that passes the row of its query finds its neighbours sooner than the walk of a new query.
        skipped = own_rows if config.spec.links else None
        return _to_numpy(engine.search(prepared, SearchOptions(result_count, nprobe, depth, own_rows=skipped))[1])

    points = measure_settings(search, config.spec, true_rows, own_rows, k)
    return Curve(k, len(own_rows), engine.count, truth_kind, tuple(points))


def _find_truth(
    backend: Backend, engine: Engine, sample: int, k: int, originals: Any, seed: int
) -> tuple[Any, Integers, Integers, str]:
    """Return (queries, their own rows, the rows of their nearest [q, k], "vectors" or "codes") by an exact search."""
    config, count = engine.config, engine.count
    own_rows = np.sort(np.random.default_rng(seed).choice(count, sample, replace=False))
    originals_prepared = None
    if originals is not None:
        originals_prepared = backend.prepare_vectors(originals, config.dim, config.metric, "originals")
        if len(originals_prepared) != count:
            raise InputError(
                f"{len(originals_prepared)} originals for {count} rows; give one for each, in the order of ids."
            )
    queries = engine.vectors(own_rows) if originals_prepared is None else originals_prepared[own_rows]
    if originals_prepared is None and config.spec == Spec("Flat", lists=config.spec.lists):
        truth = engine.search(queries, SearchOptions(k + 1, nprobe=config.spec.lists or 1))[1]
    else:
        wrap = getattr(engine, "as_exact", None) if originals_prepared is None else None
        exact: Engine | None = wrap() if wrap is not None else None
        if exact is None:
            values = engine.vectors(np.arange(count)) if originals_prepared is None else originals_prepared
            exact_config = EngineConfig(Spec("Flat"), config.metric, config.dim, "float32")
            exact = backend.train_engine(exact_config, values[:0], 0).append(values)
        truth = exact.search(queries, SearchOptions(k + 1))[1]
    loses = originals_prepared is None and needs_truth_sample(config.spec)
    return queries, own_rows, drop_own_rows(_to_numpy(truth), own_rows, k), "codes" if loses else "vectors"


def is_outdated(curve: Curve | None, rows: int) -> bool:
    """Whether an index of this many rows differs too much from the one that was measured."""
    return curve is None or not curve.rows / OTHER_SIZE <= rows <= curve.rows * OTHER_SIZE


def choose_effort(curve: Curve, recall: float) -> Point:
    """Return the smallest effort that reaches a recall at the lower end of its interval, or else the best point."""
    good = [point for point in curve.points if point.low >= recall]
    return min(good, key=lambda point: point.nprobe) if good else curve.best()


def choose_settings(
    recall: float, spec: Spec, curve: Curve | None, rows: int, warned: set[str], k: int
) -> tuple[int, int]:
    """Return nprobe and depth of the measured setting that reaches `recall`; a RecallWarning says once if none does."""
    if not isinstance(recall, int | float) or not 0 < recall <= 1:
        raise InputError(f"recall is {recall!r}; give a share above 0 and up to 1, like 0.95.")
    slowest = (spec.lists or 1, DEPTHS[-1]) if not spec.links else (rows, 0)
    if spec.exact:
        return slowest

    def warn(sentence: str) -> None:
        if sentence not in warned:
            warned.add(sentence)
            warnings.warn(sentence, RecallWarning, stacklevel=6)

    if curve is None:
        what = "rows" if spec.links else "lists"
        warn(
            f"recall={recall} was requested of '{spec}', but no recall was measured, so all {what} are searched; "
            "call measure_recall() once."
        )
        return slowest
    if is_outdated(curve, rows):
        warn(f"recall was measured over {curve.rows} rows and the index has {rows}; call measure_recall() again.")
    if k > curve.k:
        warn(
            f"recall was measured for {curve.k} neighbours and {k} are requested, of which fewer are found; call "
            f"measure_recall(k={k})."
        )
    point = curve.pick(recall)
    if point is None:
        point = curve.best()
        warn(
            f"recall={recall} was requested of '{spec}', and the highest measured one is {point}, "
            "which is used; a finer codec or Refine(Flat) reaches more."
        )
    elif curve.truth == "codes":
        warn(
            f"recall={recall} was requested of '{spec}', but the measured {point} is against its codes, and against "
            "the vectors it is lower; call measure_recall(originals=vectors) once."
        )
    return point.nprobe, point.depth


def _to_numpy(values: Any) -> Integers:
    return np.asarray(values if isinstance(values, np.ndarray) else values.cpu().numpy())
