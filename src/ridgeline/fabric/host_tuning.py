"""`tune_hosts`: measure the levels of a network of hosts, predict every algorithm, then measure it.

torchrun --nnodes 2 --nproc-per-node 4 … --no-python ridgeline fabric tune --hosts

There are two levels: ranks inside a host, and hosts. For each one, ranks of that level exchange messages in all
directions at once; these times give α (seconds of a message) and β (bytes per second). From α and β
alone the algorithms are predicted, and the fastest prediction is chosen for each size. The all-reduces are measured
only then, to show the error of the predictions, and what the choice costs beside the best.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ridgeline.errors import FabricError, unknown
from ridgeline.fabric.communicator import Communicator
from ridgeline.fabric.network_rendezvous import NetworkWorld
from ridgeline.fabric.networks import Network
from ridgeline.fabric.prediction import predict
from ridgeline.fabric.schedules import ALGORITHMS, schedule
from ridgeline.fabric.schedules.hierarchical import group_ranks
from ridgeline.fabric.selection import NATIVE, describe_layout, get_tuning_path, read_tuning
from ridgeline.native import FABRIC_INLINE_BYTES, FABRIC_MESSAGE_BYTES
from ridgeline.store import publish

SIZES = tuple(1 << k for k in range(12, 26, 2))
MESSAGES = tuple(1 << k for k in (0, 12, 14, 16, 18, 20, 22))
SECONDS, LEAST, MOST = 0.3, 5, 60  # of one size
PAUSE_S = 0.05  # between sizes: a limited link first sends what it has, and saves up its next burst
CLEARLY_FASTER = 0.9  # of the time of the built-in way
GAMMA = 1 / 10e9  # seconds to add one byte

Times = dict[int, float]  # bytes → seconds


@dataclass(frozen=True)
class Level:
    """Ranks inside a host, or hosts: a message of n bytes takes alpha + n / beta seconds."""

    alpha: float
    beta: float
    times: Times  # measured: bytes that leave each rank → seconds


@dataclass(frozen=True)
class TunedRow:
    """One algorithm at one size."""

    algorithm: str
    bytes: int
    predicted: float  # seconds, before it was measured
    measured: float  # seconds of the slowest rank, lower quartile of the calls

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class HostTuning:
    """What `tune_hosts` found."""

    layout: str  # ranks of each host
    transport: str
    inside: Level | None  # None: each host has one rank
    between: Level
    messages: Times  # exchanges of all ranks: bytes that leave each rank → seconds
    rows: list[TunedRow]
    choice: list[dict[str, Any]]  # rows of (up_to bytes, algorithm)

    @property
    def median_error(self) -> float:
        return statistics.median(abs(row.error) for row in self.rows)

    def get_chosen(self, nbytes: int) -> str:
        """The algorithm that calls of this size use."""
        return find_choice(self.choice, nbytes)

    def get_regret(self, nbytes: int) -> float:
        """The time of the chosen algorithm over that of the fastest one, as measured."""
        measured = {row.algorithm: row.measured for row in self.rows if row.bytes == nbytes}
        return measured[self.get_chosen(nbytes)] / min(measured.values())


def find_choice(rows: Sequence[Mapping[str, Any]], nbytes: int) -> str:
    """The algorithm for a size, by rows of (up_to bytes, algorithm)."""
    return next((str(row["algorithm"]) for row in rows if nbytes <= row["up_to"]), NATIVE)


def tune_hosts(
    comm: Communicator,
    *,
    keep: bool = True,
    sizes: Sequence[int] = SIZES,
    algorithms: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> HostTuning:
    """Measure all-reduce among ranks of several hosts; all ranks call it, and get the same result.

    keep        save the choice on every host: later jobs with as many ranks on as many hosts use it (default: True)
    sizes       bytes, float32
    algorithms  to predict and measure, beside the built-in `direct` (default: all)
    progress    called with one line of text

    Raises FabricError if the ranks share one host, InputError for an unknown algorithm.
    """
    names = [NATIVE, *(name for name in (algorithms or ALGORITHMS["all_reduce"]) if name != NATIVE)]
    for name in names:
        if name not in ALGORITHMS["all_reduce"]:
            raise unknown("algorithm for all_reduce", name, ALGORITHMS["all_reduce"])
    hosts = list_hosts(comm)
    if len(set(hosts)) < 2:
        raise FabricError("tune_hosts: all ranks are on one host; start them on several hosts, or use `tune`.")
    groups = group_ranks(hosts)
    number, local = next((k, group.index(comm.rank)) for k, group in enumerate(groups) if comm.rank in group)
    progress(f"{comm.size} ranks on {len(groups)} hosts: exchanges of messages")
    messages = measure_exchanges(comm, comm)
    inside = _measure_level(comm, number) if max(map(len, groups)) > 1 else None
    between = _measure_level(comm, local)
    predicted = {name: dict.fromkeys(sizes, 0.0) for name in names}
    network = make_network(inside, between, min(map(len, groups)))
    for name, by_size in predicted.items():
        plan = schedule("all_reduce", name, ranks=comm.size, hosts=hosts)
        for n in by_size:
            if name == NATIVE:
                by_size[n] = predict_all_reduce(n, comm.size, messages, comm.config.small_bytes)
            else:
                call = messages[min(messages)]  # ranks compare their calls first
                by_size[n] = (
                    call
                    + predict(plan, network=network, nbytes=n, hosts=hosts, message_bytes=FABRIC_MESSAGE_BYTES).seconds
                )
    choice = choose(predicted, sizes)
    rows = []
    for name, by_size in predicted.items():
        progress(f"all-reduce by {name}")
        for n in sizes:
            x = np.zeros(n // 4, np.float32)
            # A name costs a check of all arguments, which a plain call saves.
            is_plain = name == NATIVE and n <= comm._choice.native_up_to
            seconds = measure(comm, partial(comm.all_reduce, x, algorithm=None if is_plain else name))
            rows.append(TunedRow(name, n, by_size[n], seconds))
    result = HostTuning(describe_layout(hosts), comm.config.transport, inside, between, messages, rows, choice)
    if keep:
        _save(result)
    return result


def _measure_level(comm: Communicator, color: int) -> Level:
    """Exchanges among the ranks of each color, at the same time; ranks that are alone take no part."""
    part = comm.split(color)
    if part is None:  # of a rank without a color
        raise FabricError("tune_hosts: this rank is in no part.")
    with part:
        measured = np.zeros((1 + len(MESSAGES), 2))
        times = sorted(measure_exchanges(part, comm).items())
        measured[: len(times)] = np.reshape(times, (-1, 2))
    result: Times = {}
    for rows in comm.all_gather(measured):
        for n, seconds in rows:
            if seconds:
                result[int(n)] = max(result.get(int(n), 0.0), float(seconds))
    return fit_level(result)


def list_hosts(comm: Communicator) -> list[str]:
    """The host of each rank."""
    world = comm._world
    if not isinstance(world, NetworkWorld):
        return ["this host"] * comm.size
    return [world.membership.members[r].host for r in comm._world_ranks]


def make_network(inside: Level | None, between: Level, local: int) -> Network:
    """The network that predictions use; without ranks inside a host its first level does not matter.

    local  ranks of each host that sent at the same time: each had its share of the link
    """
    local_level, nic = inside or between, local * between.beta
    return Network(
        "hosts", 1, local_level.alpha, max(local_level.beta, nic), alpha_out=between.alpha, nic=nic, gamma=GAMMA
    )


def fit_level(times: Mapping[int, float]) -> Level:
    """α is the time of the smallest message, β the rate of the largest ones, for which a link saves up no burst.

    >>> level = fit_level({1: 1e-4, 1000: 1.1e-4, 1_000_000: 1.01e-2, 4_000_000: 4.01e-2})
    >>> round(level.alpha * 1e6), round(level.beta / 1e6)
    (100, 100)
    """
    sizes = sorted(times)
    alpha = times[sizes[0]]
    rates = [n / max(times[n] - alpha, 1e-9) for n in sizes[1:][-2:]]
    return Level(alpha, statistics.median(rates), dict(times))


def measure_exchanges(comm: Communicator, all_ranks: Communicator) -> Times:
    """Each rank sends to all others at once: bytes that leave it → seconds.

    all_ranks  begin each size together, so that large messages of one part do not delay small ones of another
    """
    others = comm.size - 1
    if not others:
        for _ in range(2 + len(MESSAGES)):
            all_ranks.barrier()
        return {}
    all_ranks.barrier()
    measure(comm, partial(comm.all_to_all, np.zeros(comm.size << 20, np.uint8)))  # connections start slowly
    times: Times = {}
    for n in (get_inline_limit(comm.size, comm.config.small_bytes), *(max(1, size // others) for size in MESSAGES)):
        all_ranks.barrier()
        out = np.zeros((comm.size, n), np.uint8)
        times[n * others] = measure(comm, partial(comm.all_gather, np.zeros(n, np.uint8), out=out))
    return times


def measure(comm: Communicator, call: Callable[[], Any]) -> float:
    """Seconds of a call, the same on all ranks: of each call the time of its slowest rank, since a rank that comes late
    waits less; of all calls the lower quartile, which other load changes least."""
    time.sleep(PAUSE_S)
    taken, count = np.zeros(MOST + 1), np.array([LEAST])
    for k in range(MOST + 1):
        comm.barrier()
        start = time.perf_counter()
        call()
        taken[k] = time.perf_counter() - start
        if k == 1:  # rank 0 decides how many
            count[0] = max(LEAST, min(MOST, int(SECONDS / max(1e-6, taken[k]))))
            comm.broadcast(count)
        if k >= count[0]:
            break
    slowest = comm.all_gather(taken).max(axis=0)[1 : int(count[0]) + 1]
    return float(np.quantile(slowest, 0.25))


def predict_all_reduce(nbytes: int, ranks: int, messages: Mapping[int, float], small_bytes: int = 8 << 10) -> float:
    """Seconds of an all-reduce by the engine's own way, from the times of exchanges.

    A call that fits its frame goes to all other ranks at once, as do exchanges of such blocks. Otherwise each rank
    sends 2 (ranks - 1) / ranks of the data, in two steps that overlap: one message more than an exchange. The smallest
    exchange takes two messages, since its slowest rank waits for one that begins a message later.

    >>> messages = {1: 2e-4, 1_000_000: 1e-2}
    >>> round(predict_all_reduce(1_000_000, 2, messages), 4)
    0.0101
    """
    others, limit = ranks - 1, get_inline_limit(ranks, small_bytes)
    if nbytes <= limit:
        return interpolate(nbytes * others, {n: seconds for n, seconds in messages.items() if n <= limit * others})
    return messages[min(messages)] / 2 + interpolate(2 * others / ranks * nbytes, messages)


def get_inline_limit(ranks: int, small_bytes: int) -> int:
    """The largest block that a rank sends to all others together with its call."""
    return max(1, min(small_bytes, FABRIC_INLINE_BYTES // (ranks - 1)))


def interpolate(nbytes: float, messages: Mapping[int, float]) -> float:
    """Seconds of a message between measured sizes; beyond them, at the rate of the last two."""
    sizes = sorted(messages)
    seconds = [messages[n] for n in sizes]
    if nbytes <= sizes[-1] or len(sizes) < 2:
        return float(np.interp(nbytes, sizes, seconds))
    rate = max(sizes[-1] - sizes[-2], 1) / max(seconds[-1] - seconds[-2], 1e-9)
    return seconds[-1] + (nbytes - sizes[-1]) / rate


def choose(predicted: Mapping[str, Mapping[int, float]], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of (up_to bytes, algorithm): the fastest prediction, if it is clearly faster than the built-in way.

    >>> choose({"direct": {100: 1.0, 400: 9.0}, "ring": {100: 0.95, 400: 2.0}}, [100, 400])
    [{'up_to': 200, 'algorithm': 'direct'}, {'up_to': 4611686018427387904, 'algorithm': 'ring'}]
    """
    rows: list[dict[str, Any]] = []
    for n, after in zip(sizes, [*sizes[1:], None], strict=True):
        best = min(predicted, key=lambda name: predicted[name][n])
        name = best if predicted[best][n] < CLEARLY_FASTER * predicted[NATIVE][n] else NATIVE
        up_to = int((n * after) ** 0.5) if after else 1 << 62
        if rows and rows[-1]["algorithm"] == name:
            rows[-1]["up_to"] = up_to
        else:
            rows.append({"up_to": up_to, "algorithm": name})
    return [] if all(row["algorithm"] == NATIVE for row in rows) else rows


def _save(result: HostTuning) -> None:
    path = get_tuning_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"choice": {"all_reduce": {}}, "networks": {}} | read_tuning()
    table = document.setdefault("hosts", {}).setdefault(result.transport, {}).setdefault("all_reduce", {})
    table[result.layout] = result.choice
    with publish(path) as temporary:
        temporary.write_text(json.dumps(document, indent=1))
