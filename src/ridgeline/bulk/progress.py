"""Measure a running job over all its workers: rows, stages, devices, cost, and what limits it.

A worker says with each chunk where it ran and how long it read, computed and wrote. The driver adds that up. A run of
the driver leaves its numbers in the target, so that the cost and the time of a job that was stopped are not lost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ridgeline.bulk.parts import Outcome
from ridgeline.errors import InputError
from ridgeline.lab.judge import Price, find_price, get_price, load_prices
from ridgeline.machine import describe_machine

STAGES = ("read", "compute", "write")
LONG_START = 0.5  # of the time of a run: then the start of the workers limits it
SHOWN_DEVICES = 8  # in one line of progress
MOST_STEPS = 20  # of a record: a step is as many chunks as the workers have at once, or more


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    rows: int  # done now
    before: int  # done in earlier runs
    total: int
    seconds: float  # of this run
    rejects: int
    busy: Mapping[str, float]  # seconds by worker
    devices: Mapping[str, float] = field(default_factory=dict)  # by device: the share of the time that it computes
    rate: float = 0.0  # rows/s since the first chunk was done; 0: not known yet
    usd: float | None = None  # of this run and the earlier ones; None: there is no price

    @property
    def rows_per_s(self) -> float:
        return self.rate or (self.rows / self.seconds if self.seconds else 0.0)

    @property
    def left_s(self) -> float | None:
        """The seconds that the rest takes at this rate; None before the first chunk."""
        left = self.total - self.rows - self.before
        return left / self.rows_per_s if self.rows_per_s and left >= 0 else None


@dataclass
class DeviceUse:
    """What the workers of one device did."""

    workers: set[int] = field(default_factory=set)
    rows: int = 0
    chunks: int = 0
    seconds: dict[str, float] = field(default_factory=dict)  # by stage


@dataclass(frozen=True)
class HourlyCost:
    """The dollars per hour of all devices of a run; `price` names the entry of the price book."""

    usd_per_hour: float
    price: str


def check_price(name: str | None, device: str) -> None:
    """Raise InputError if there is no such price, or if it is one for another kind of device."""
    if name is None:
        return
    price = get_price(load_prices(), name)
    if device != "auto" and price.device != device.partition(":")[0]:
        kinds = {"cpu": "a CPU", "cuda": "a GPU"}
        raise InputError(f"--price '{name}' is for {kinds[price.device]}, and the job runs on --device {device}.")


def find_hourly_cost(name: str | None, devices: list[str], units: int, local: bool) -> HourlyCost | None:
    """Return what the devices of a run cost: by the named price, else by the price of this machine if it has one."""
    kind = "cuda" if any(device.startswith("cuda") for device in devices) else "cpu"
    known: list[Price] = load_prices()
    price = get_price(known, name) if name else find_price(known, describe_machine(), kind) if local else None
    if price is None or price.device != kind:
        return None
    return HourlyCost(price.hourly() * units, price.name)


class Meter:
    """Adds up what the workers of one run did."""

    def __init__(self, total: int, before: int, rejects: int, earlier: list[dict[str, Any]] | None = None) -> None:
        self.total, self.before, self.rejects = total, before, rejects
        self.earlier = earlier or []  # what `describe` returned in earlier runs of the job
        self.rows = 0
        self.devices: dict[str, DeviceUse] = {}
        self.hosts: set[str] = set()
        self.commits: list[tuple[float, int]] = []  # (seconds since the start, rows) of each chunk
        self.busy: dict[str, float] = {}
        self.cost: HourlyCost | None = None
        self.workers = 1
        self.start_s = 0.0  # until the workers were ready, as far as the first chunk shows it
        self._started = time.monotonic()
        self._ended: float | None = None

    @property
    def seconds(self) -> float:
        return (self._ended or time.monotonic()) - self._started

    def stop(self) -> None:
        """Stop the clock."""
        self._ended = time.monotonic()

    def add(self, outcome: Outcome, rows: int) -> None:
        """Count a chunk that is done."""
        now = self.seconds
        if not self.commits:
            self.start_s = max(0.0, now - sum(outcome.seconds.values()))
        self.rows += rows
        self.commits.append((now, rows))
        if outcome.part is not None:
            self.rejects += outcome.part.rejects
        place = outcome.place
        if place is None:
            return
        self.hosts.add(place.host)
        use = self.devices.setdefault(f"{place.host} {place.device}", DeviceUse())
        use.workers.add(place.process)
        use.rows += rows
        use.chunks += 1
        for stage, seconds in outcome.seconds.items():
            use.seconds[stage] = use.seconds.get(stage, 0.0) + seconds

    def measure_devices(self) -> dict[str, float]:
        """Return the share of the time in which each device computes, since the workers were ready.

        A CPU has as many places as it has workers; the workers of a GPU share it.
        """
        elapsed = self.seconds - self.start_s
        if elapsed <= 0:
            return {}
        single = len(self.hosts) <= 1
        shares = {}
        for name, use in sorted(self.devices.items()):
            host, _, device = name.partition(" ")
            places = 1 if device.startswith("cuda") else len(use.workers)
            shares[device if single else f"{host} {device}"] = min(
                1.0, use.seconds.get("compute", 0.0) / (elapsed * places)
            )
        return shares

    def measure_rate(self) -> float:
        """Return rows/s from the first chunk on: the start of the workers says nothing about the rest."""
        if len(self.commits) < 2:
            return 0.0
        first_s, first_rows = self.commits[0]
        elapsed = self.seconds - first_s
        return (self.rows - first_rows) / elapsed if elapsed > 0 else 0.0

    def add_usd(self) -> float | None:
        """Return the dollars of this run and of the earlier ones."""
        earlier: list[float] = [run["usd"] for run in self.earlier if run.get("usd") is not None]
        if self.cost is None:
            return sum(earlier) if earlier else None
        return sum(earlier) + self.cost.usd_per_hour * self.seconds / 3600

    def get_progress(self) -> Progress:
        return Progress(
            self.rows,
            self.before,
            self.total,
            self.seconds,
            self.rejects,
            dict(self.busy),
            self.measure_devices(),
            self.measure_rate(),
            self.add_usd(),
        )

    def describe(self) -> dict[str, Any]:
        """Return what this run did, as JSON values."""
        usd = None if self.cost is None else self.cost.usd_per_hour * self.seconds / 3600
        return {
            "rows": self.rows,
            "seconds": self.seconds,
            "start_seconds": self.start_s,
            "rows_per_s": self.measure_rate() or (self.rows / self.seconds if self.seconds else 0.0),
            "workers": self.workers,
            "stages": self.sum_stages(),
            "devices": self.measure_devices(),
            "usd": usd,
            "price": None if self.cost is None else self.cost.price,
        }

    def sum_stages(self) -> dict[str, float]:
        """Return the seconds of all workers by stage, and those in which they waited."""
        stages = {
            stage: sum(use.seconds.get(stage, 0.0) for use in self.devices.values())
            for stage in STAGES
            if any(stage in use.seconds for use in self.devices.values())
        }
        capacity = self.workers * max(0.0, self.seconds - self.start_s)
        return {**stages, "wait": max(0.0, capacity - sum(stages.values()))}

    def list_steps(self) -> tuple[int, list[float]]:
        """Return (chunks of a step, the seconds of each step): the samples of a record."""
        chunks = max(self.workers, -(-len(self.commits) // MOST_STEPS))
        times = [self.start_s, *(seconds for seconds, _ in self.commits)]
        ends = times[::chunks]
        if len(ends) < 2:
            return len(self.commits), [times[-1] - times[0]]
        return chunks, [later - earlier for earlier, later in pairwise(ends)]


def find_limit(run: Mapping[str, Any]) -> str:
    """Say in one sentence what limited a run that `Meter.describe` describes, and what would help.

    >>> run = {"seconds": 100.0, "start_seconds": 4.0, "workers": 2, "rows": 9}
    >>> find_limit({**run, "stages": {"read": 10.0, "compute": 170.0, "write": 4.0, "wait": 8.0}})
    'The computation took 89 % of the time of the workers; more or faster devices help.'
    """
    if not run["rows"]:
        return "Nothing was left to compute."
    if run["start_seconds"] > LONG_START * run["seconds"]:
        return (
            f"The workers took {run['start_seconds']:.1f} of {run['seconds']:.1f} s to start; "
            "in a job of more rows that weighs less."
        )
    stages = run["stages"]
    total = sum(stages.values())
    if not total:
        return "The run was too short to tell."
    name = max(stages, key=lambda stage: stages[stage])
    what, cure = {
        "read": ("Reading the source", "more workers help, or a source that is nearer"),
        "compute": ("The computation", "more or faster devices help"),
        "write": ("Writing the target", "more workers help, or a target that is nearer"),
        "wait": ("Waiting for chunks", "smaller chunks help: there were too few for all workers"),
    }[name]
    return f"{what} took {stages[name] / total:.0%} of the time of the workers; {cure}.".replace("%", " %")


def describe_run(run: Mapping[str, Any]) -> str:
    """Return what one run of a driver did as one line.

    >>> run = {"rows": 500, "seconds": 10.0, "rows_per_s": 50.0, "devices": {"cpu": 0.9}, "usd": None}
    >>> describe_run({**run, "before": 100, "total": 1000})
    '500 rows in 10 s, 50/s, cpu 90 % busy; 400 of 1,000 were left, 8 s at this rate'
    """
    rate = run["rows"] / run["seconds"] if run["seconds"] else 0.0
    parts = [f"{run['rows']:,} rows in {run['seconds']:,.0f} s", f"{rate:,.0f}/s"]
    parts += [f"{device} {100 * share:.0f} % busy" for device, share in list(run["devices"].items())[:SHOWN_DEVICES]]
    if run["usd"] is not None:
        parts.append(f"${run['usd']:.2f}")
    left = run["total"] - run["before"] - run["rows"]
    rest = f"; {left:,} of {run['total']:,} were left" if left > 0 else ""
    if left > 0 and run["rows_per_s"]:
        rest += f", {left / run['rows_per_s']:,.0f} s at this rate"
    return ", ".join(parts) + rest


def describe_progress(progress: Progress, unit: str = "rows") -> str:
    """Return progress as one line.

    >>> describe_progress(Progress(500, 100, 1000, 10.0, 1, {}))
    '600 of 1,000 rows, 50/s, 1 reject'
    >>> devices = {"cuda:0": 0.97, "cuda:1": 0.4}
    >>> describe_progress(Progress(500, 100, 1000, 10.0, 0, {}, devices, usd=0.126))
    '600 of 1,000 rows, 50/s, cuda:0 97 % busy, cuda:1 40 % busy, $0.13 so far'
    """
    parts = [f"{progress.rows + progress.before:,} of {progress.total:,} {unit}, {progress.rows_per_s:,.0f}/s"]
    if progress.rejects:
        parts.append(f"{progress.rejects} reject{'s' * (progress.rejects != 1)}")
    if len(progress.devices) <= SHOWN_DEVICES:
        parts += [f"{device} {100 * share:.0f} % busy" for device, share in progress.devices.items()]
    else:
        shares = list(progress.devices.values())
        parts.append(f"{len(shares)} devices {100 * min(shares):.0f} to {100 * max(shares):.0f} % busy")
    if progress.usd is not None:
        parts.append(f"${progress.usd:.2f} so far")
    return ", ".join(parts)
