"""`predict`: how long a schedule takes on a network, by an α-β model in which links are shared.

A transfer begins when its sender has the data, its receiver has done what it did before, and the links on its way are
free; it takes α, and its bytes over the slowest link, of which the transfers of one round have equal parts. What a
link carries it carries once: no prediction beats the links.

ridgeline fabric predict ring --ranks 64 --network dgx-a100 --bytes 1GiB
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.fabric.networks import Network, network_of
from ridgeline.fabric.steps import Ints, Round, Schedule

Floats = NDArray[np.float64]
STEADY = 1e-9  # relative: a round that moves all clocks by the same time will do so again


@dataclass(frozen=True)
class Prediction:
    """Derived from a model, never measured."""

    op: str
    algorithm: str
    ranks: int
    nbytes: int
    network: str
    seconds: float
    algbw: float  # bytes / s: size over time
    busbw: float  # as nccl-tests count it: comparable between rank counts
    busiest_link: str
    busiest_share: float  # of the time
    wire_bytes: float  # over all ranks
    kind: str = "predicted"


def bus_factor(op: str, ranks: int) -> float:
    """busbw / algbw as nccl-tests define it.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def predict(
    schedule: Schedule, *, network: str | Path | Mapping[str, Any] | Network = "host", nbytes: int
) -> Prediction:
    """The time of one call on data of `nbytes` (of an all-gather or reduce-scatter: all ranks' blocks together)."""
    if nbytes < 0:
        raise InputError(f"nbytes is {nbytes}; give 0 or more.")
    on = network_of(network)
    clocks = _Clocks(on, schedule.ranks, nbytes / schedule.chunks)
    steady, more = 0.0, 0  # rounds like the last one, each later by the same time
    for one in schedule.rounds():
        if one.as_before and steady:
            more += 1
            continue
        clocks.again(more, steady)
        more = 0
        before = clocks.ready.copy()
        clocks.run(one)
        moved = clocks.ready - before
        even = one.as_before and float(np.ptp(moved)) <= STEADY * float(clocks.ready.max())
        steady = float(moved[0]) if even else 0.0
    clocks.again(more, steady)
    seconds = float(clocks.ready.max(initial=0.0))
    link, share = clocks.busiest(seconds)
    rate = nbytes / seconds if seconds else 0.0
    return Prediction(
        schedule.op,
        schedule.algorithm,
        schedule.ranks,
        nbytes,
        on.name,
        seconds,
        rate,
        rate * bus_factor(schedule.op, schedule.ranks),
        link,
        share,
        clocks.moved,
    )


def _along(curve: tuple[tuple[float, float], ...], size: Floats) -> Floats:
    """Seconds of messages, between measured points along straight lines of their logarithms; flat below the first."""
    sizes, seconds = np.log(np.array(curve).T)
    at = np.log(np.maximum(size, 1.0))
    found = np.exp(np.interp(at, sizes, seconds))
    beyond = np.maximum(at - sizes[-1], 0.0)  # past the last point: as fast as there
    return np.asarray(found * np.exp(beyond), np.float64)


class _Clocks:
    """When every rank is ready and every link is free, and what each has carried."""

    def __init__(self, on: Network, ranks: int, chunk_bytes: float) -> None:
        self.on, self.ranks, self.chunk_bytes = on, ranks, chunk_bytes
        per = on.per_node or ranks
        self.node = np.arange(ranks) // per
        self.adapter = self.node * on.adapters + np.arange(ranks) % per % on.adapters
        nodes, wires = int(self.node[-1]) + 1, (int(self.node[-1]) + 1) * on.adapters
        # Links in one row: lanes out, lanes in, adapters out, adapters in, buses, the spine, one never busy.
        self.base = np.cumsum([0, ranks, ranks, wires, wires, nodes, 1])
        kinds = [on.lane, on.lane, on.nic, on.nic, on.bus or np.inf, on.spine or np.inf, np.inf]
        counts = [ranks, ranks, wires, wires, nodes, 1, 1]
        self.speed = np.repeat(np.array([k or np.inf for k in kinds]), counts)
        self.ready, self.free = np.zeros(ranks), np.zeros(len(self.speed))
        self.carried, self.moved = np.zeros(len(self.speed)), 0.0
        self._load, self._size = self.carried, 0.0  # of the last round

    def run(self, one: Round) -> None:
        source, target = one.source, one.target
        size: Floats = one.width.astype(np.float64) * self.chunk_bytes
        links, outside, load = self._ways(source, target, size)
        share = (load / self.speed)[links].max(axis=0, initial=0.0)
        alpha = np.where(outside, self.on.alpha_out, self.on.alpha)
        if self.on.curve:
            share = np.where(outside, share, _along(self.on.curve, size))
        start = np.maximum(
            np.maximum(self.ready[source], self.ready[target]), self.free[links].max(axis=0, initial=0.0)
        )
        passed = start + share
        done = passed + alpha + np.where(one.reduce, size * self.on.gamma, 0.0)
        for row in links:
            np.maximum.at(self.free, row, passed)
        self.free[-1] = 0.0
        ready = self.ready.copy()
        np.maximum.at(ready, source, passed)
        np.maximum.at(ready, target, done)
        self.ready = ready
        self.carried += load
        self._load, self._size = load, float(size.sum())
        self.moved += self._size

    def again(self, times: int, later: float) -> None:
        """Rounds like the last, in a steady state: each moves every clock on by as much as that one did."""
        if times:
            self.ready += times * later
            self.free[:-1] += times * later
            self.carried += times * self._load
            self.moved += times * self._size

    def _ways(self, source: Ints, target: Ints, size: Floats) -> tuple[Ints, NDArray[np.bool_], Floats]:
        outside: NDArray[np.bool_] = self.node[source] != self.node[target]
        nowhere = len(self.speed) - 1
        out, into, nic_out, nic_in, bus, spine = self.base[:6]
        links: Ints = np.stack(
            [
                out + source,
                into + target,
                np.where(outside, nic_out + self.adapter[source], nowhere),
                np.where(outside, nic_in + self.adapter[target], nowhere),
                np.where(outside, nowhere, bus + self.node[source]),
                np.where(outside, spine, nowhere),
            ]
        )
        load: Floats = np.bincount(links.ravel(), np.tile(size, len(links)), minlength=len(self.speed)).astype(
            np.float64
        )
        load[nowhere] = 0.0
        return links, outside, load

    def busiest(self, seconds: float) -> tuple[str, float]:
        if not seconds or not self.moved:
            return "none", 0.0
        busy = self.carried / self.speed / seconds
        link = int(busy.argmax())
        kind = int(np.searchsorted(self.base, link, side="right")) - 1
        at = link - int(self.base[kind])
        names = (
            "lane out of rank {}",
            "lane into rank {}",
            "adapter {} out",
            "adapter {} in",
            "bus of node {}",
            "spine",
        )
        return (names[kind].format(at) if kind < len(names) else "none"), float(busy[link])
