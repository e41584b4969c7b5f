"""`tune`: measure every algorithm on this host, keep which is fastest for which size, and calibrate predictions.

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
from ridgeline.fabric.choice import NATIVE, table_path
from ridgeline.fabric.communicator import Communicator
from ridgeline.fabric.config import FabricConfig
from ridgeline.fabric.launch import spawn
from ridgeline.fabric.networks import Network
from ridgeline.fabric.prediction import predict
from ridgeline.fabric.schedules import ALGORITHMS, schedule
from ridgeline.fabric.tune_ways import LARGE, SMALL, measured_ways, ways_from
from ridgeline.store import publish

SIZES = tuple(1 << k for k in range(12, 27, 2))  # measured by every algorithm, and calibrated from, with their doubles
BETWEEN = tuple(3 << k for k in range(12, 25, 2))  # measured, and only compared
LEAST, MOST, SECONDS = 3, 100, 0.03  # calls of one point in a pass
PASSES = 5


@dataclass(frozen=True)
class Error:
    """A prediction beside a measurement it was not calibrated from."""

    nbytes: int
    measured_s: float
    predicted_s: float

    @property
    def relative(self) -> float:
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class Tuned:
    ranks: int
    seconds: dict[str, dict[int, float]]  # algorithm → size → median of the slowest rank
    choice: list[dict[str, Any]]
    ways: dict[str, Any]  # of `Ways`, those that could be measured
    network: Network
    errors: list[Error]

    @property
    def worst(self) -> float:
        return max((abs(e.relative) for e in self.errors), default=0.0)


def tune(
    ranks: int, *, keep: bool = True, sizes: Sequence[int] = SIZES, say: Callable[[str], None] = lambda _: None
) -> Tuned:
    """Measure all-reduce among `ranks` ranks of this host, and where the engine's own ways begin.

    `keep`: later calls and predictions use it.
    """
    if ranks < 2:
        raise InputError(f"{ranks} ranks have nothing to tell each other; tune 2 or more.")
    names = [NATIVE, *(a for a in ALGORITHMS["all_reduce"] if a != NATIVE)]
    between = [n for n in BETWEEN if min(sizes) < n < max(sizes)]
    say(f"{len(names)} algorithms, {len(sizes)} sizes, {ranks} ranks")
    config = FabricConfig(collective_algorithm=NATIVE)
    curve_sizes = sorted({*sizes, *(2 * n for n in sizes if 2 * n < max(sizes))})
    alone = [*(n for n in curve_sizes if n not in sizes), *between]
    large = [n for n in LARGE if n <= max(sizes)]
    ways = ways_from(spawn(measured_ways, ranks, args=(SMALL, large), config=config), SMALL, large)
    config = replace(config, **ways)
    found = spawn(_measured, ranks, args=(names, list(sizes), alone), config=config)
    slowest = {a: {n: max(one[a][n] for one in found) for n in found[0][a]} for a in names}
    curve = tuple((n / ranks, slowest[NATIVE][n] / (2 * (ranks - 1))) for n in curve_sizes)
    fastest = max(nbytes / seconds for nbytes, seconds in curve)
    network = Network("host", None, 0.0, fastest, curve=curve)
    made = schedule("all_reduce", NATIVE, ranks=ranks)
    errors = [Error(n, slowest[NATIVE][n], predict(made, network=network, nbytes=n).seconds) for n in between]
    tuned = Tuned(ranks, slowest, _choice(slowest, sizes), ways, network, errors)
    if keep:
        _keep(tuned)
    return tuned


def _choice(seconds: dict[str, dict[int, float]], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of (up to so many bytes, algorithm); the engine's own way unless another is clearly faster."""
    rows: list[dict[str, Any]] = []
    for n, after in zip(sizes, [*sizes[1:], None], strict=True):
        best = min(seconds, key=lambda a: seconds[a][n])
        name = best if seconds[best][n] < 0.9 * seconds[NATIVE][n] else NATIVE
        up_to = int((n * after) ** 0.5) if after else 1 << 62
        if rows and rows[-1]["algorithm"] == name:
            rows[-1]["up_to"] = up_to
        else:
            rows.append({"up_to": up_to, "algorithm": name})
    return [] if all(row["algorithm"] == NATIVE for row in rows) else rows


def _measured(
    comm: Communicator, names: Sequence[str], sizes: Sequence[int], alone: Sequence[int]
) -> dict[str, dict[int, float]]:
    """Medians, the algorithms in turn at every size (the engine's own way `alone` at some); inputs rewritten.

    All sizes are gone through several times: what others do on the machine for a second is then no one size's matter.
    """
    points = sorted([*sizes, *alone])
    samples: dict[str, dict[int, list[float]]] = {
        a: {n: [] for n in points if n in sizes or a == NATIVE} for a in names
    }
    for n in points * PASSES:
        x = np.empty(n // 4, np.float32)
        turn = [a for a in names if n in samples[a]]
        calls = np.array([MOST])
        for k in range(MOST):
            for a in turn:
                x[:] = comm.rank + 1
                comm.barrier()
                began = time.perf_counter()
                comm.all_reduce(x, algorithm=None if a == NATIVE else a)  # as callers do: naming it is the longer way
                if k:  # the first touches new memory
                    samples[a][n].append(time.perf_counter() - began)
            if k == 1:  # one rank's clock decides for all how many calls this size gets
                calls[0] = max(LEAST, min(MOST, int(SECONDS / max(1e-6, samples[turn[0]][n][-1]))))
                comm.broadcast(calls)
            if k >= calls[0]:
                break
    return {a: {n: statistics.median(taken) for n, taken in found.items()} for a, found in samples.items()}


def _keep(tuned: Tuned) -> None:
    path = table_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        kept = {"choice": {"all_reduce": {}}, "networks": {}}
    kept["choice"]["all_reduce"][str(tuned.ranks)] = tuned.choice
    kept.setdefault("ways", {})[str(tuned.ranks)] = tuned.ways
    kept["networks"][str(tuned.ranks)] = {**asdict(tuned.network), "worst": tuned.worst}
    with publish(path) as tmp:
        tmp.write_text(json.dumps(kept, indent=1))


def tuned_network(ranks: int) -> tuple[Network, float] | None:
    """What was measured on this kind of machine for so many ranks, and the largest error of its predictions."""
    try:
        kept = json.loads(table_path().read_text())["networks"][str(ranks)]
        worst = float(kept.pop("worst"))
        kept["curve"] = tuple((float(a), float(b)) for a, b in kept["curve"])
        return Network(**kept), worst
    except (OSError, ValueError, KeyError, TypeError):
        return None
