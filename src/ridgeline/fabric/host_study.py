"""`study_hosts`: several hosts on one machine, as network namespaces with a given rate, delay and loss.

ridgeline fabric hosts --hosts 4 --rate 1gbit --delay 1ms

The ranks first exchange messages, all at once in all directions. From these times alone the all-reduces are
predicted, and only then measured. With several ranks on each host every algorithm is (host_tuning.py).

Rates are those of `tc tbf`. Delay, loss, duplicates and reordering come from netem, or from a wire of our own
between TUN devices where the kernel has no netem.
"""

from __future__ import annotations

import ipaddress
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
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ridgeline.errors import FabricError, InputError
from ridgeline.fabric.host_tuning import Level, find_choice, tune_hosts
from ridgeline.fabric.selection import NATIVE
from ridgeline.native import Wire

SIZES = tuple(1 << k for k in (12, 14, 16, 18, 20, 22, 23))
MOST_HOSTS, MOST_RANKS = 32, 16
PORT = 45100
MTU = 1500  # of the wire
RATE, DELAY = re.compile(r"\d+(\.\d+)?[kmg]?bit"), re.compile(r"\d+(\.\d+)?(us|ms|s)")
SECONDS_BY_UNIT = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True)
class StudyRow:
    """One size of all-reduce by one algorithm."""

    hosts: int
    algorithm: str
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
    ranks: int  # of each host
    transport: str
    rate: str
    delay: str
    loss: float
    duplicates: float
    reorder: float
    emulation: str  # of delay, loss, duplicates and reordering: netem, wire, or empty
    latency: float  # seconds of the smallest exchange
    bandwidth: float  # bytes per second that leave each rank in the largest exchange
    messages: dict[int, float]  # bytes that leave each rank → seconds
    rows: list[StudyRow]
    choice: list[dict[str, Any]]  # rows of (up_to bytes, algorithm): the fastest prediction
    inside: Level | None  # ranks of one host; None: each host has one
    between: Level

    @property
    def median_error(self) -> float:
        return statistics.median(abs(row.error) for row in self.rows)

    def get_chosen(self, nbytes: int) -> str:
        """The algorithm whose prediction is the fastest, unless the built-in one is about as fast."""
        return find_choice(self.choice, nbytes)


@dataclass(frozen=True)
class Link:
    """The connection of each host to the others."""

    rate: str = ""
    delay: str = ""
    loss: float = 0.0
    duplicates: float = 0.0
    reorder: float = 0.0

    @property
    def is_emulated(self) -> bool:
        return bool(self.delay or self.loss or self.duplicates or self.reorder)


def study_hosts(
    hosts: int = 2,
    *,
    ranks: int = 1,
    rate: str = "",
    delay: str = "",
    loss: float = 0.0,
    duplicates: float = 0.0,
    reorder: float = 0.0,
    sizes: Sequence[int] = SIZES,
    algorithms: Sequence[str] = (NATIVE,),
    transport: str = "tcp",
    timeout: float = 300.0,
    progress: Callable[[str], None] = lambda _: None,
) -> HostStudy:
    """Make namespaces, run all-reduce among ranks in them, and remove them.

    ranks       of each host (default: 1); ranks of one host share memory if transport is auto
    rate        of each host's link in each direction, as tc writes it: 500mbit, 2gbit (default: no limit)
    delay       of each host's link, one way: 500us, 10ms (default: none)
    loss        share of packets that each link loses, 0 to 0.5 (default: 0)
    duplicates  share of packets that come twice, 0 to 0.5 (default: 0)
    reorder     share of packets that come later than others, 0 to 0.5 (default: 0)
    sizes       bytes, float32
    algorithms  of all-reduce; the built-in `direct` is always measured
    timeout     seconds for everything (default: 300)

    Needs root, `ip` and `tc`. Raises InputError for wrong values, FabricError if a rank fails.
    """
    link = Link(rate, delay, loss, duplicates, reorder)
    _check(hosts, ranks, link, sizes)
    with make_hosts(hosts, link) as (names, addresses, emulation):
        progress(f"{hosts} hosts, {len(sizes)} sizes")
        task = {"sizes": list(sizes), "timeout": timeout, "algorithms": list(algorithms)}
        results = _run_ranks(names, addresses, ranks, task, transport, timeout)
    messages = {int(n): float(seconds) for n, seconds in results["messages"].items()}
    count, most = hosts * ranks, max(messages)
    rows = [
        StudyRow(hosts, *row, row[1] / row[3] * 2 * (count - 1) / count)
        for row in ((r["algorithm"], r["bytes"], r["predicted"], r["measured"]) for r in results["rows"])
    ]
    return HostStudy(
        hosts,
        ranks,
        transport,
        rate,
        delay,
        loss,
        duplicates,
        reorder,
        emulation,
        messages[min(messages)],
        most / messages[most],
        messages,
        rows,
        results["choice"],
        Level(**results["inside"]) if results["inside"] else None,
        Level(**results["between"]),
    )


def _check(hosts: int, ranks: int, link: Link, sizes: Sequence[int]) -> None:
    if not 2 <= hosts <= MOST_HOSTS:
        raise InputError(f"hosts is {hosts}; give 2 to {MOST_HOSTS}.")
    if not 1 <= ranks <= MOST_RANKS:
        raise InputError(f"ranks is {ranks}; give 1 to {MOST_RANKS} for each host.")
    if link.rate and not RATE.fullmatch(link.rate):
        raise InputError(f"rate is '{link.rate}'; give something like 500mbit or 2gbit.")
    if link.delay and not DELAY.fullmatch(link.delay):
        raise InputError(f"delay is '{link.delay}'; give something like 500us or 10ms.")
    for name in ("loss", "duplicates", "reorder"):
        if not 0 <= getattr(link, name) <= 0.5:
            raise InputError(f"{name} is {getattr(link, name)}; give a share from 0 to 0.5.")
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
def make_hosts(hosts: int, link: Link) -> Iterator[tuple[list[str], list[str], str]]:
    """Namespaces, their addresses, and what emulates delay and loss between them: netem, wire, or nothing."""
    tag = f"rlhosts{os.getpid()}"
    hub, names = f"{tag}-hub", [f"{tag}-{k}" for k in range(hosts)]
    addresses = [f"10.207.0.{k + 1}" for k in range(hosts)]
    wire: Wire | None = None
    try:
        for name in (hub, *names):
            _sh("ip", "netns", "add", name)
        uses_wire = link.is_emulated and not _has_netem(hub)
        if uses_wire:
            wire = _make_wire(names, addresses, link)
        else:
            _sh("ip", "-n", hub, "link", "add", "hub", "type", "bridge")
            _sh("ip", "-n", hub, "link", "set", "hub", "up")
        for k, (name, address) in enumerate(zip(names, addresses, strict=True)):
            if wire is None:
                _sh("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{k}", "netns", hub)
                _sh("ip", "-n", hub, "link", "set", f"p{k}", "master", "hub")
                _sh("ip", "-n", hub, "link", "set", f"p{k}", "up")
            else:
                _sh("ip", "-n", name, "link", "set", "eth0", "mtu", str(MTU), "txqueuelen", "10000")
            _sh("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _sh("ip", "-n", name, "link", "set", "eth0", "up")
            _sh("ip", "-n", name, "link", "set", "lo", "up")
            _limit(name, link, has_netem=link.is_emulated and wire is None)
        yield names, addresses, "" if not link.is_emulated else "netem" if wire is None else "wire"
    finally:
        if wire is not None:
            wire.end()
        for name in (*names, hub):
            with suppress(InputError, subprocess.TimeoutExpired):
                _sh("ip", "netns", "del", name, fails=True)


def _has_netem(name: str) -> bool:
    try:
        _sh("tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except InputError:
        return False
    _sh("tc", "-n", name, "qdisc", "del", "dev", "lo", "root")
    return True


def _make_wire(names: Sequence[str], addresses: Sequence[str], link: Link) -> Wire:
    numbers = [int(ipaddress.IPv4Address(address)) for address in addresses]
    try:
        return Wire(
            list(names),
            numbers,
            delay=_parse_seconds(link.delay),
            loss=link.loss,
            twice=link.duplicates,
            late=link.reorder,
        )
    except RuntimeError as error:
        raise InputError(
            f"this kernel has no netem, and no TUN device can be made instead ({error}): load sch_netem or tun, or "
            "leave delay, loss, duplicates and reorder out."
        ) from None


def _parse_seconds(text: str) -> float:
    """Seconds of a delay as tc writes it.

    >>> _parse_seconds("500us"), _parse_seconds("")
    (0.0005, 0.0)
    """
    number = re.match(r"[\d.]+", text)
    return float(number.group()) * SECONDS_BY_UNIT[text[number.end() :]] if number else 0.0


def _limit(name: str, link: Link, has_netem: bool) -> None:
    """Rates by tbf; delay, loss, duplicates and reordering by netem, below it."""
    parent = ["root"]
    if has_netem:
        words = ["tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "netem", "limit", "100000"]
        if link.delay or link.reorder:
            words += ["delay", link.delay or "1ms"]  # netem reorders by not delaying a packet
        words += ["loss", f"{link.loss:.4%}"] if link.loss else []
        words += ["duplicate", f"{link.duplicates:.4%}"] if link.duplicates else []
        words += ["reorder", f"{link.reorder:.4%}"] if link.reorder else []
        _sh(*words)
        parent = ["parent", "1:1"]
    if link.rate:
        number = re.match(r"[\d.]+", link.rate)
        per_s = float(number.group()) * UNITS[link.rate[number.end() :]] if number else 0.0
        burst = max(64 << 10, int(per_s / 8 * 2e-4))  # a packet that the kernel cuts later must fit
        words = ["tc", "-n", name, "qdisc", "add", "dev", "eth0", *parent, "tbf", "rate", link.rate]
        _sh(*words, "burst", str(burst), "latency", "50ms")


def _run_ranks(
    names: Sequence[str],
    addresses: Sequence[str],
    per_host: int,
    task: dict[str, Any],
    transport: str,
    timeout: float,
) -> dict[str, Any]:
    """What rank 0 found; all ranks find the same."""
    count = len(names) * per_host
    settings = {
        "RIDGELINE_FABRIC_RENDEZVOUS": f"{addresses[0]}:{PORT}",
        "RIDGELINE_FABRIC_SECRET": secrets.token_hex(32),
        "RIDGELINE_FABRIC_INTERFACE": "eth0",
        "RIDGELINE_FABRIC_TRANSPORT": transport,
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(per_host),
    }
    environment_before = {k: v for k, v in os.environ.items() if not k.startswith("RIDGELINE_FABRIC_")}
    code = "import sys; from ridgeline.fabric import host_study; host_study.run_rank(sys.argv[1])"
    deadline, ranks = time.monotonic() + timeout, []
    try:
        for rank in range(count):
            host, local = divmod(rank, per_host)
            command = ["ip", "netns", "exec", names[host], sys.executable, "-c", code, json.dumps(task)]
            environment = {**environment_before, **settings, "RANK": str(rank), "LOCAL_RANK": str(local)}
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
            answers.append(out)
        result: dict[str, Any] = json.loads(answers[0].splitlines()[-1])
        return result
    finally:
        for process in ranks:
            with process:
                process.kill()


def run_rank(task: str) -> None:
    """In the process of a rank: exchange messages, then all-reduce, and print the times."""
    from ridgeline.fabric.launch import init

    given = json.loads(task)
    comm = init(timeout=given["timeout"])
    costs = tune_hosts(comm, keep=False, sizes=given["sizes"], algorithms=given["algorithms"])
    x = np.full(1000, comm.rank + 1.0)
    if not (comm.all_reduce(x) == comm.size * (comm.size + 1) / 2).all():
        raise FabricError("an all-reduce has a wrong sum.")
    print(json.dumps(asdict(costs)), flush=True)
    comm.close()
