"""`predict`: how long a schedule takes on a network, by an α-β model in which links are shared.

A transfer starts when its sender has the data, its receiver has finished its last step, and the links between them are
free. It takes α plus its bytes over the slowest link; the transfers of one round share a link equally. A link carries
each byte once: no prediction is faster than the links.

ridgeline fabric predict ring --ranks 64 --network dgx-a100 --bytes 1GiB
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.fabric.networks import Network, load_network
from ridgeline.fabric.proof import prove
from ridgeline.fabric.schedule_types import Ints, Programs, Round, Schedule
from ridgeline.fabric.schedules.hierarchical import group_ranks

Floats = NDArray[np.float64]
STEADY = 1e-9  # relative: a round that advances all clocks by the same time will do so again


@dataclass(frozen=True)
class Prediction:
    """The time of a call, from a model; never measured."""

    op: str
    algorithm: str
    ranks: int
    nbytes: int
    network: str
    seconds: float
    algbw: float  # bytes / s: size over time
    busbw: float  # as in nccl-tests: comparable between numbers of ranks
    busiest_link: str
    busiest_share: float  # of the time
    wire_bytes: float  # over all ranks
    channels: int  # rings at once
    kind: str = "predicted"


def bus_factor(op: str, ranks: int) -> float:
    """Return busbw / algbw as nccl-tests defines it.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def predict(
    schedule: Schedule,
    *,
    network: str | Path | Mapping[str, Any] | Network = "host",
    nbytes: int,
    hosts: Sequence[int | str] | None = None,
    message_bytes: int | None = None,
) -> Prediction:
    """Predict the time of one call.

    network  the name of a preset, a YAML file, a mapping, or a Network
    nbytes   size of the data (for an all-gather or reduce-scatter: of the blocks of all ranks together)
    hosts    the name or number of the host of each rank (default: `per_node` of the network, in order)
    message_bytes  the longest message: the steps are repeated for as many cuts of the data as that needs (default: one)

    Raises InputError for a negative size or an unknown network, ProofError for a custom schedule that is wrong.
    """
    if nbytes < 0:
        raise InputError(f"nbytes is {nbytes}; give 0 or more.")
    if not isinstance(schedule.programs, Programs):
        prove(schedule)
    loaded = load_network(network)
    if hosts is not None and len(hosts) != schedule.ranks:
        raise InputError(f"hosts names {len(hosts)} hosts for {schedule.ranks} ranks; give one for each rank.")
    cuts = 1
    if message_bytes is not None:
        widest = max((int(one.width.max()) for one in schedule.rounds() if one.width.size), default=1)
        cuts = max(1, math.ceil(nbytes / schedule.chunks * widest / message_bytes))
    clocks = _Clocks(loaded, schedule.ranks, nbytes / schedule.chunks / cuts, hosts)
    for _ in range(cuts):
        clocks.run_all(schedule)
    seconds = float(clocks.ready.max(initial=0.0))
    link, share = clocks.find_busiest(seconds)
    rate = nbytes / seconds if seconds else 0.0
    return Prediction(
        schedule.op,
        schedule.algorithm,
        schedule.ranks,
        nbytes,
        loaded.name,
        seconds,
        rate,
        rate * bus_factor(schedule.op, schedule.ranks),
        link,
        share,
        clocks.total_bytes,
        schedule.channels,
    )


def _interpolate(curve: tuple[tuple[float, float], ...], size: Floats) -> Floats:
    """Seconds of messages: linear interpolation of logarithms between measured points, constant below the first."""
    sizes, seconds = np.log(np.array(curve).T)
    log_size = np.log(np.maximum(size, 1.0))
    interpolated = np.exp(np.interp(log_size, sizes, seconds))
    beyond = np.maximum(log_size - sizes[-1], 0.0)  # above the last point: the rate of the last point
    return np.asarray(interpolated * np.exp(beyond), np.float64)


class _Clocks:
    """The time at which each rank is ready and each link is free, and the bytes of each link."""

    def __init__(
        self, network: Network, ranks: int, chunk_bytes: float, hosts: Sequence[int | str] | None = None
    ) -> None:
        self.network, self.ranks, self.chunk_bytes = network, ranks, chunk_bytes
        per_node = network.per_node or ranks
        self.node = np.arange(ranks) // per_node
        local = np.arange(ranks) % per_node
        if hosts is not None:
            for number, group in enumerate(group_ranks(hosts)):
                self.node[list(group)], local[list(group)] = number, np.arange(len(group))
        self.adapter = self.node * network.adapters + local % network.adapters
        nodes = int(self.node.max()) + 1
        wires = nodes * network.adapters
        # All links in one row: lanes out, lanes in, adapters out, adapters in, buses, the spine, one unused.
        self.base = np.cumsum([0, ranks, ranks, wires, wires, nodes, 1])
        lane, nic = network.lane, network.nic
        kinds = [lane, lane, nic, nic, network.bus or np.inf, network.spine or np.inf, np.inf]
        counts = [ranks, ranks, wires, wires, nodes, 1, 1]
        self.speed = np.repeat(np.array([k or np.inf for k in kinds]), counts)
        self.ready, self.free = np.zeros(ranks), np.zeros(len(self.speed))
        self.link_bytes, self.total_bytes = np.zeros(len(self.speed)), 0.0
        self._load, self._size = self.link_bytes, 0.0  # of the last round

    def run_all(self, schedule: Schedule) -> None:
        """All rounds, one after the other; each starts as soon as its ranks and links allow it."""
        steady, repeats = 0.0, 0  # rounds like the last one, each later by the same time
        for transfers in schedule.rounds():
            if transfers.as_before and steady:
                repeats += 1
                continue
            self.repeat(repeats, steady)
            repeats = 0
            before = self.ready.copy()
            self.run(transfers)
            advance = self.ready - before
            even = transfers.as_before and float(np.ptp(advance)) <= STEADY * float(self.ready.max())
            steady = float(advance[0]) if even else 0.0
        self.repeat(repeats, steady)

    def run(self, transfers: Round) -> None:
        source, target = transfers.source, transfers.target
        size: Floats = transfers.width.astype(np.float64) * self.chunk_bytes
        links, outside, load = self._find_links(source, target, size)
        share = (load / self.speed)[links].max(axis=0, initial=0.0)
        alpha = np.where(outside, self.network.alpha_out, self.network.alpha)
        if self.network.curve:
            share = np.where(outside, share, _interpolate(self.network.curve, size))
        start = np.maximum(
            np.maximum(self.ready[source], self.ready[target]), self.free[links].max(axis=0, initial=0.0)
        )
        sent = start + share
        done = sent + alpha + np.where(transfers.reduce, size * self.network.gamma, 0.0)
        for row in links:
            np.maximum.at(self.free, row, sent)
        self.free[-1] = 0.0
        ready = self.ready.copy()
        np.maximum.at(ready, source, sent)
        np.maximum.at(ready, target, done)
        self.ready = ready
        self.link_bytes += load
        self._load, self._size = load, float(size.sum())
        self.total_bytes += self._size

    def repeat(self, times: int, advance: float) -> None:
        """Rounds like the last, in a steady state: each advances every clock by the same time."""
        if times:
            self.ready += times * advance
            self.free[:-1] += times * advance
            self.link_bytes += times * self._load
            self.total_bytes += times * self._size

    def _find_links(self, source: Ints, target: Ints, size: Floats) -> tuple[Ints, NDArray[np.bool_], Floats]:
        outside: NDArray[np.bool_] = self.node[source] != self.node[target]
        unused = len(self.speed) - 1
        out, into, nic_out, nic_in, bus, spine = self.base[:6]
        links: Ints = np.stack(
            [
                out + source,
                into + target,
                np.where(outside, nic_out + self.adapter[source], unused),
                np.where(outside, nic_in + self.adapter[target], unused),
                np.where(outside, unused, bus + self.node[source]),
                np.where(outside, spine, unused),
            ]
        )
        load: Floats = np.bincount(links.ravel(), np.tile(size, len(links)), minlength=len(self.speed)).astype(
            np.float64
        )
        load[unused] = 0.0
        return links, outside, load

    def find_busiest(self, seconds: float) -> tuple[str, float]:
        if not seconds or not self.total_bytes:
            return "none", 0.0
        busy = self.link_bytes / self.speed / seconds
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
