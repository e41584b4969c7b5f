"""The part of `tune` that finds where one way of the engine's own calls ends and the next begins."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ridgeline.fabric.communicator import Communicator
from ridgeline.fabric.ways import NEVER

SMALL = tuple(1 << k for k in range(8, 14))
LARGE = tuple(1 << k for k in (20, 22, 24, 26))
CALLS = 15  # timed together where data is small: a clock is no cheaper than such a call
SECONDS = 0.3  # of one size, both ways
CLEARLY = 0.95


def measured_ways(comm: Communicator, small: Sequence[int], large: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Way → "usual" and "other" → seconds per size, slowest rank's to be taken; the two in turn."""
    engine = comm._engine
    found = {"whole": _both(comm, "all_reduce", [n for n in small if n <= engine.small], "whole")}
    if engine.foreign:
        found["foreign"] = _both(comm, "all_reduce", large, "foreign_from")
        found["foreign_move"] = _both(comm, "broadcast", large, "foreign_moves_from")
    return found


def ways_from(found: Sequence[dict[str, Any]], small: Sequence[int], large: Sequence[int]) -> dict[str, Any]:
    """The bytes of `Ways`, from what every rank measured."""
    slowest = {
        way: {side: [max(values) for values in zip(*(one[way][side] for one in found), strict=True)] for side in sides}
        for way, sides in found[0].items()
    }
    kept = {"whole_bytes": begins(small, **slowest["whole"])}
    for way, name in (("foreign", "foreign_bytes"), ("foreign_move", "foreign_move_bytes")):
        if way in slowest:
            kept[name] = begins(large, **slowest[way])
    return kept


def begins(sizes: Sequence[int], usual: Sequence[float], other: Sequence[float]) -> int:
    """From how many bytes on the other way is clearly faster, at that size and all beyond.

    >>> begins([100, 400, 1600], usual=[1, 2, 8], other=[3, 1, 2])
    200
    """
    start = NEVER
    for k in reversed(range(len(usual))):
        if other[k] >= CLEARLY * usual[k]:
            break
        start = int((sizes[k - 1] * sizes[k]) ** 0.5) if k else 0
    return start


def _both(comm: Communicator, op: str, sizes: Sequence[int], threshold: str) -> dict[str, list[float]]:
    """Times with one of the engine's thresholds out of reach (as usual), and at 0 (the other way)."""
    found: dict[str, list[float]] = {"usual": [], "other": []}
    for n in sizes:
        x = np.ones(n // 4, np.float32)
        call = comm.all_reduce if op == "all_reduce" else comm.broadcast
        calls = CALLS if n <= SMALL[-1] else 1
        samples: list[list[float]] = [[], []]
        turns, until = np.array([1]), time.perf_counter() + SECONDS
        while turns[0]:
            for other in (False, True):
                x[:] = 0
                setattr(comm._engine, threshold, 0 if other else NEVER)
                comm.barrier()
                began = time.perf_counter()
                for _ in range(calls):
                    call(x)
                samples[other].append((time.perf_counter() - began) / calls)
            setattr(comm._engine, threshold, NEVER)
            turns[0] = time.perf_counter() < until
            comm.broadcast(turns)  # one rank's clock decides for all
        for side, taken in zip(found.values(), samples, strict=True):
            side.append(statistics.median(taken))
    return found
