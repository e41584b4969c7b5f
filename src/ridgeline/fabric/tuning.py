"""`tune`: measure every algorithm on this host, save the fastest for each size, and calibrate predictions.

ridgeline fabric tune
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.fabric.communicator import Communicator
from ridgeline.fabric.config import FabricConfig
from ridgeline.fabric.host_tuning import choose
from ridgeline.fabric.launch import spawn
from ridgeline.fabric.networks import Network
from ridgeline.fabric.prediction import predict
from ridgeline.fabric.schedules import ALGORITHMS, schedule
from ridgeline.fabric.selection import NATIVE, NEVER, get_tuning_path
from ridgeline.store import publish

SIZES = tuple(
    1 << k for k in range(12, 27, 2)
)  # measured by every algorithm; these and their doubles calibrate predictions
BETWEEN = tuple(3 << k for k in range(12, 25, 2))  # measured, and only compared with predictions
LEAST, MOST, SECONDS = 3, 100, 0.03  # calls of one point in a pass
PASSES = 5

# Thresholds of the native algorithm
SMALL = tuple(1 << k for k in range(8, 14))
LARGE = tuple(1 << k for k in (20, 22, 24, 26))
SMALL_CALLS = 15  # timed together for small data: reading the clock takes as long as such a call
METHOD_SECONDS = 0.3  # for both methods at one size
CLEARLY_FASTER = 0.95


@dataclass(frozen=True)
class PredictionError:
    """A prediction and a measurement that did not calibrate it."""

    nbytes: int
    measured_s: float
    predicted_s: float

    @property
    def relative(self) -> float:
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class TuningResult:
    """The measurements of `tune`."""

    ranks: int
    seconds: dict[str, dict[int, float]]  # algorithm → size → median of the slowest rank
    choice: list[dict[str, Any]]
    thresholds: dict[str, Any]  # the fields of `Thresholds` that could be measured
    network: Network
    errors: list[PredictionError]

    @property
    def worst(self) -> float:
        return max((abs(e.relative) for e in self.errors), default=0.0)


def tune(
    ranks: int, *, keep: bool = True, sizes: Sequence[int] = SIZES, progress: Callable[[str], None] = lambda _: None
) -> TuningResult:
    """Measure all-reduce among `ranks` ranks of this host, and the thresholds of the native algorithm.

    keep      save the result: later calls and predictions use it (default: True)
    sizes     bytes to measure
    progress  called with one line of text

    Raises InputError for fewer than 2 ranks.
    """
    if ranks < 2:
        raise InputError(f"{ranks} ranks do not communicate; tune 2 or more.")
    names = [NATIVE, *(a for a in ALGORITHMS["all_reduce"] if a != NATIVE)]
    between = [n for n in BETWEEN if min(sizes) < n < max(sizes)]
    progress(f"{len(names)} algorithms, {len(sizes)} sizes, {ranks} ranks")
    config = FabricConfig(collective_algorithm=NATIVE)
    curve_sizes = sorted({*sizes, *(2 * n for n in sizes if 2 * n < max(sizes))})
    native_only = [*(n for n in curve_sizes if n not in sizes), *between]
    large = [n for n in LARGE if n <= max(sizes)]
    methods = spawn(_measure_methods, ranks, args=(SMALL, large), config=config)
    thresholds = _find_thresholds(methods, SMALL, large)
    config = replace(config, **thresholds)
    medians = spawn(_measure_algorithms, ranks, args=(names, list(sizes), native_only), config=config)
    slowest = {a: {n: max(rank[a][n] for rank in medians) for n in medians[0][a]} for a in names}
    curve = tuple((n / ranks, slowest[NATIVE][n] / (2 * (ranks - 1))) for n in curve_sizes)
    fastest = max(nbytes / seconds for nbytes, seconds in curve)
    network = Network("host", None, 0.0, fastest, curve=curve)
    plan = schedule("all_reduce", NATIVE, ranks=ranks)
    errors = [PredictionError(n, slowest[NATIVE][n], predict(plan, network=network, nbytes=n).seconds) for n in between]
    result = TuningResult(ranks, slowest, choose(slowest, sizes), thresholds, network, errors)
    if keep:
        _save(result)
    return result


def _measure_algorithms(
    comm: Communicator, names: Sequence[str], sizes: Sequence[int], native_only: Sequence[int]
) -> dict[str, dict[int, float]]:
    """Median seconds by algorithm and size; the algorithms take turns (at some sizes only the native one).

    The sizes are measured in several passes, so that a short load of the machine does not affect one size only.
    """
    points = sorted([*sizes, *native_only])
    samples: dict[str, dict[int, list[float]]] = {
        a: {n: [] for n in points if n in sizes or a == NATIVE} for a in names
    }
    for n in points * PASSES:
        x = np.empty(n // 4, np.float32)
        measured = [a for a in names if n in samples[a]]
        calls = np.array([MOST])
        for k in range(MOST):
            for a in measured:
                x[:] = comm.rank + 1
                comm.barrier()
                start = time.perf_counter()
                comm.all_reduce(x, algorithm=None if a == NATIVE else a)  # a named algorithm takes a slower path
                if k:  # the first call touches new memory
                    samples[a][n].append(time.perf_counter() - start)
            if k == 1:  # the clock of one rank decides the number of calls for all
                calls[0] = max(LEAST, min(MOST, int(SECONDS / max(1e-6, samples[measured[0]][n][-1]))))
                comm.broadcast(calls)
            if k >= calls[0]:
                break
    return {a: {n: statistics.median(seconds) for n, seconds in by_size.items()} for a, by_size in samples.items()}


def _save(result: TuningResult) -> None:
    path = get_tuning_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        document = {"choice": {"all_reduce": {}}, "networks": {}}
    document["choice"]["all_reduce"][str(result.ranks)] = result.choice
    document.setdefault("ways", {})[str(result.ranks)] = result.thresholds
    document["networks"][str(result.ranks)] = {**asdict(result.network), "worst": result.worst}
    with publish(path) as temporary:
        temporary.write_text(json.dumps(document, indent=1))


def load_tuned_network(ranks: int) -> tuple[Network, float] | None:
    """Return the network measured for `ranks` ranks on this kind of machine and its largest relative error, or None."""
    try:
        values = json.loads(get_tuning_path().read_text())["networks"][str(ranks)]
        worst = float(values.pop("worst"))
        values["curve"] = tuple((float(a), float(b)) for a, b in values["curve"])
        return Network(**values), worst
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _measure_methods(
    comm: Communicator, small: Sequence[int], large: Sequence[int]
) -> dict[str, dict[str, list[float]]]:
    """Threshold → "default" and "other" method → seconds per size in this rank; the methods take turns."""
    engine = comm._engine
    seconds = {
        "whole": _compare_methods(comm, "all_reduce", [n for n in small if n <= engine.small], "full_reduce_bytes")
    }
    if engine.foreign:
        seconds["foreign"] = _compare_methods(comm, "all_reduce", large, "foreign_from")
        seconds["foreign_move"] = _compare_methods(comm, "broadcast", large, "foreign_moves_from")
    return seconds


def _find_thresholds(seconds: Sequence[dict[str, Any]], small: Sequence[int], large: Sequence[int]) -> dict[str, Any]:
    """The fields of `Thresholds`, from the measurements of all ranks."""
    slowest = {
        name: {
            method: [max(values) for values in zip(*(rank[name][method] for rank in seconds), strict=True)]
            for method in methods
        }
        for name, methods in seconds[0].items()
    }
    thresholds = {"whole_bytes": find_threshold(small, **slowest["whole"])}
    for name, field in (("foreign", "foreign_bytes"), ("foreign_move", "foreign_move_bytes")):
        if name in slowest:
            thresholds[field] = find_threshold(large, **slowest[name])
    return thresholds


def find_threshold(sizes: Sequence[int], default: Sequence[float], other: Sequence[float]) -> int:
    """The bytes from which the other method is clearly faster, at that size and all larger ones.

    >>> find_threshold([100, 400, 1600], default=[1, 2, 8], other=[3, 1, 2])
    200
    """
    start = NEVER
    for k in reversed(range(len(default))):
        if other[k] >= CLEARLY_FASTER * default[k]:
            break
        start = int((sizes[k - 1] * sizes[k]) ** 0.5) if k else 0
    return start


def _compare_methods(comm: Communicator, op: str, sizes: Sequence[int], threshold: str) -> dict[str, list[float]]:
    """Seconds with one threshold of the engine out of reach (the default method), and at 0 (the other method)."""
    seconds: dict[str, list[float]] = {"default": [], "other": []}
    for n in sizes:
        x = np.ones(n // 4, np.float32)
        call = comm.all_reduce if op == "all_reduce" else comm.broadcast
        calls = SMALL_CALLS if n <= SMALL[-1] else 1
        samples: list[list[float]] = [[], []]
        go_on, deadline = np.array([1]), time.perf_counter() + METHOD_SECONDS
        while go_on[0]:
            for other in (False, True):
                x[:] = 0
                setattr(comm._engine, threshold, 0 if other else NEVER)
                comm.barrier()
                start = time.perf_counter()
                for _ in range(calls):
                    call(x)
                samples[other].append((time.perf_counter() - start) / calls)
            setattr(comm._engine, threshold, NEVER)
            go_on[0] = time.perf_counter() < deadline
            comm.broadcast(go_on)  # the clock of one rank decides for all
        for method, values in zip(seconds.values(), samples, strict=True):
            method.append(statistics.median(values))
    return seconds
