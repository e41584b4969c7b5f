"""`study_hosts`: several hosts on one machine, as network namespaces with a given rate, delay and loss.

ridgeline fabric hosts --hosts 4 --rate 1gbit --delay 1ms

The ranks first exchange messages, all at once in all directions. From these times alone the all-reduces are
predicted, and only then measured.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ridgeline.errors import FabricError, InputError

SIZES = tuple(1 << k for k in (12, 14, 16, 18, 20, 22, 23))
MOST_HOSTS = 32
PORT = 45100
SECONDS, LEAST, MOST = 0.4, 5, 60  # of one size
PAUSE_S = 0.05  # between sizes: a limited link first sends what it has, and saves up its next burst
RATE, DELAY = re.compile(r"\d+(\.\d+)?[kmg]?bit"), re.compile(r"\d+(\.\d+)?(us|ms|s)")
UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True)
class StudyRow:
    """One size of all-reduce."""

    hosts: int
    bytes: int
    predicted: float  # seconds, before it was measured
    measured: float  # seconds of the slowest rank, lower quartile of the calls
    busbw: float  # bytes per second, as nccl-tests defines it

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class HostStudy:
    """What `study_hosts` found."""

    hosts: int
    transport: str
    rate: str
    delay: str
    loss: float
    latency: float  # seconds of the smallest exchange
    bandwidth: float  # bytes per second that leave each host in the largest exchange
    messages: dict[int, float]  # bytes that leave each host → seconds
    rows: list[StudyRow]

    @property
    def median_error(self) -> float:
        return statistics.median(abs(row.error) for row in self.rows)


def study_hosts(
    hosts: int = 2,
    *,
    rate: str = "",
    delay: str = "",
    loss: float = 0.0,
    sizes: Sequence[int] = SIZES,
    transport: str = "tcp",
    timeout: float = 300.0,
    progress: Callable[[str], None] = lambda _: None,
) -> HostStudy:
    """Make namespaces, run all-reduce among one rank in each, and remove them.

    rate      of each host's link in each direction, as tc writes it: 500mbit, 2gbit (default: no limit)
    delay     of each host's link, one way: 500us, 10ms (default: none); needs netem in the kernel
    loss      share of packets that each link loses, 0 to 0.5 (default: 0); needs netem in the kernel
    sizes     bytes, float32
    timeout   seconds for everything (default: 300)

    Needs root, `ip` and `tc`. Raises InputError for wrong values, FabricError if a rank fails.
    """
    _check(hosts, rate, delay, loss, sizes)
    with _make_hosts(hosts, rate, delay, loss) as (names, addresses):
        progress(f"{hosts} hosts, {len(sizes)} sizes")
        answers = _run_ranks(names, addresses, list(sizes), transport, timeout)
    messages = {int(n): _summarize(answers, "messages", n) for n in answers[0]["messages"]}
    rows = []
    for n in sizes:
        measured = _summarize(answers, "seconds", str(n))
        predicted = predict_all_reduce(n, hosts, messages)
        rows.append(StudyRow(hosts, n, predicted, measured, n / measured * 2 * (hosts - 1) / hosts))
    most = max(messages)
    return HostStudy(
        hosts, transport, rate, delay, loss, messages[min(messages)], most / messages[most], messages, rows
    )


def _summarize(answers: Sequence[dict[str, Any]], kind: str, size: str) -> float:
    """Of each call the time of its slowest rank; of all calls the lower quartile, which other load changes least."""
    slowest = np.max([answer[kind][size] for answer in answers], axis=0)
    return float(np.quantile(slowest, 0.25))


def predict_all_reduce(nbytes: int, hosts: int, messages: dict[int, float], small_bytes: int = 8 << 10) -> float:
    """Seconds of an all-reduce by the engine's own way, from the times of exchanges.

    A call that fits its frame goes to all other hosts at once. Otherwise each host sends 2 (hosts - 1) / hosts of the
    data, in two steps that overlap.

    >>> messages = {1: 1e-4, 1_000_000: 1e-2}
    >>> round(predict_all_reduce(1_000_000, 2, messages), 4)
    0.0101
    """
    latency = messages[min(messages)]
    if nbytes <= small_bytes:
        return interpolate(nbytes * (hosts - 1), messages)
    return latency + interpolate(2 * (hosts - 1) / hosts * nbytes, messages)


def interpolate(nbytes: float, messages: dict[int, float]) -> float:
    """Seconds of a message between measured sizes; beyond them, at the rate of the last two."""
    sizes = sorted(messages)
    seconds = [messages[n] for n in sizes]
    if nbytes <= sizes[-1] or len(sizes) < 2:
        return float(np.interp(nbytes, sizes, seconds))
    rate = max(sizes[-1] - sizes[-2], 1) / max(seconds[-1] - seconds[-2], 1e-9)
    return seconds[-1] + (nbytes - sizes[-1]) / rate


def _check(hosts: int, rate: str, delay: str, loss: float, sizes: Sequence[int]) -> None:
    if not 2 <= hosts <= MOST_HOSTS:
        raise InputError(f"hosts is {hosts}; give 2 to {MOST_HOSTS}.")
    if rate and not RATE.fullmatch(rate):
        raise InputError(f"rate is '{rate}'; give something like 500mbit or 2gbit.")
    if delay and not DELAY.fullmatch(delay):
        raise InputError(f"delay is '{delay}'; give something like 500us or 10ms.")
    if not 0 <= loss <= 0.5:
        raise InputError(f"loss is {loss}; give a share from 0 to 0.5.")
    if not sizes or any(n < 4 or n % 4 for n in sizes):
        raise InputError(f"sizes is {list(sizes)}; give multiples of 4 bytes.")
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        raise InputError(f"{' and '.join(missing)} of iproute2 cannot be found; install iproute2.")
    if os.geteuid():
        raise InputError("network namespaces need root; run the command with sudo.")


def _sh(*words: str, fails: bool = False) -> None:
    result = subprocess.run(words, capture_output=True, text=True, timeout=30)
    if result.returncode and not fails:
        raise InputError(f"'{' '.join(words)}' failed: {result.stderr.strip() or result.returncode}.")


@contextmanager
def _make_hosts(hosts: int, rate: str, delay: str, loss: float) -> Iterator[tuple[list[str], list[str]]]:
    """Namespaces whose links meet in a bridge, which has a namespace of its own."""
    tag = f"rlhosts{os.getpid()}"
    hub, names = f"{tag}-hub", [f"{tag}-{k}" for k in range(hosts)]
    addresses = [f"10.207.0.{k + 1}" for k in range(hosts)]
    try:
        _sh("ip", "netns", "add", hub)
        _sh("ip", "-n", hub, "link", "add", "hub", "type", "bridge")
        _sh("ip", "-n", hub, "link", "set", "hub", "up")
        for k, (name, address) in enumerate(zip(names, addresses, strict=True)):
            _sh("ip", "netns", "add", name)
            _sh("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{k}", "netns", hub)
            _sh("ip", "-n", hub, "link", "set", f"p{k}", "master", "hub")
            _sh("ip", "-n", hub, "link", "set", f"p{k}", "up")
            _sh("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _sh("ip", "-n", name, "link", "set", "eth0", "up")
            _sh("ip", "-n", name, "link", "set", "lo", "up")
            _limit(name, rate, delay, loss)
        yield names, addresses
    finally:
        for name in (*names, hub):
            with suppress(InputError, subprocess.TimeoutExpired):
                _sh("ip", "netns", "del", name, fails=True)


def _limit(name: str, rate: str, delay: str, loss: float) -> None:
    """Rates by tbf; delay and loss by netem, below it."""
    parent = ["root"]
    if delay or loss:
        words = ["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "netem", "limit", "100000"]
        words += ["delay", delay] if delay else []
        words += ["loss", f"{loss:.4%}"] if loss else []
        try:
            _sh(*words)
        except InputError as error:
            raise InputError(
                f"this kernel cannot delay or lose packets ({error}) Load sch_netem, or leave delay and loss out."
            ) from None
        parent = ["parent", "1:1"]
    if rate:
        number = re.match(r"[\d.]+", rate)
        per_s = float(number.group()) * UNITS[rate[number.end() :]] if number else 0.0
        burst = max(64 << 10, int(per_s / 8 * 2e-4))  # a packet that the kernel cuts later must fit
        words = ["tc", "-n", name, "qdisc", "add", "dev", "eth0", *parent, "tbf", "rate", rate]
        _sh(*words, "burst", str(burst), "latency", "50ms")


def _run_ranks(
    names: Sequence[str], addresses: Sequence[str], sizes: list[int], transport: str, timeout: float
) -> list[dict[str, Any]]:
    settings = {
        "RIDGELINE_FABRIC_RENDEZVOUS": f"{addresses[0]}:{PORT}",
        "RIDGELINE_FABRIC_SECRET": secrets.token_hex(32),
        "RIDGELINE_FABRIC_INTERFACE": "eth0",
        "RIDGELINE_FABRIC_TRANSPORT": transport,
        "WORLD_SIZE": str(len(names)),
        "LOCAL_WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }
    environment_before = {k: v for k, v in os.environ.items() if not k.startswith("RIDGELINE_FABRIC_")}
    code = "import sys; from ridgeline.fabric import host_study; host_study.run_rank(sys.argv[1])"
    task = json.dumps({"sizes": sizes, "timeout": timeout})
    deadline, ranks = time.monotonic() + timeout, []
    try:
        for rank, name in enumerate(names):
            command = ["ip", "netns", "exec", name, sys.executable, "-c", code, task]
            environment = {**environment_before, **settings, "RANK": str(rank)}
            ranks.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        answers = []
        for rank, process in enumerate(ranks):
            try:
                out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise FabricError(f"rank {rank} did not end within {timeout:g} s.") from None
            if process.returncode:
                text = (err.strip().splitlines() or ["no message"])[-1]
                raise FabricError(f"rank {rank} ended with {process.returncode}: {text}")
            answers.append(json.loads(out.splitlines()[-1]))
        return answers
    finally:
        for process in ranks:
            with process:
                process.kill()


def run_rank(task: str) -> None:
    """In the process of a rank: exchange messages, then all-reduce, and print the times."""
    from ridgeline.fabric.launch import init

    given = json.loads(task)
    comm = init(timeout=given["timeout"])
    most = max(given["sizes"])
    message_sizes = sorted({1, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, most, 2 * most})
    others = comm.size - 1
    _measure(comm, partial(comm.all_to_all, np.zeros(comm.size << 20, np.uint8)))  # connections start slowly
    messages = {
        n * others: _measure(
            comm, partial(comm.all_gather, np.zeros(n, np.uint8), out=np.zeros((comm.size, n), np.uint8))
        )
        for n in sorted({max(1, n // others) for n in message_sizes})
    }
    seconds = {n: _measure(comm, partial(comm.all_reduce, np.zeros(n // 4, np.float32))) for n in given["sizes"]}
    x = np.full(1000, comm.rank + 1.0)
    if not (comm.all_reduce(x) == comm.size * (comm.size + 1) / 2).all():
        raise FabricError("an all-reduce has a wrong sum.")
    print(json.dumps({"messages": messages, "seconds": seconds}), flush=True)
    comm.close()


def _measure(comm: Any, call: Callable[[], Any]) -> list[float]:
    """Seconds of some calls; rank 0 decides how many."""
    time.sleep(PAUSE_S)
    taken, count = [], np.array([LEAST])
    for k in range(MOST + 1):
        comm.barrier()
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
        if k == 1:
            count[0] = max(LEAST, min(MOST, int(SECONDS / max(1e-6, taken[-1]))))
            comm.broadcast(count)
        if k >= count[0]:
            break
    return taken[1:]
