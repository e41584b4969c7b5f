"""What a rate of work needs and costs: machines, utilisation, backlog, dollars per million items, break-even.

    ridgeline cost --workload embed --rate 1e6/day

The arithmetic is small and open. A machine that does μ items/s (from a record) and gets λ items/s is busy λ/μ of the
time. Items come at random (Poisson) and are shared out evenly; a step takes a fixed time s and serves a batch of b.
With b = 1 that is the queue M/D/1; with more, every b-th arrival starts a batch, and

    time to fill a batch   (b - 1) / (2 λ)
    wait for the machine   ρ s / (2 b (1 - ρ))        exact for b = 1, from above for b > 1
    backlog                λ × the two (Little's law)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import InputError
from ridgeline.lab.judge import analyse
from ridgeline.lab.judge.break_even import BreakEven, break_even
from ridgeline.lab.judge.prices import HOURS_A_YEAR, Price
from ridgeline.lab.record.record import Record
from ridgeline.lab.workload import OURS

TARGET = 0.7  # busy share a plan allows: at 0.9 the queue of M/D/1 is 3.9 times as long
HOW = ("batch", "dtype", "device")  # parameters that say how a thing is done, not what


@dataclass(frozen=True)
class Service:
    """What one unit (a machine by its CPUs, or `devices` GPUs) does: a step of `seconds` serves `batch` items."""

    name: str
    device: str  # cpu | cuda
    batch: float
    seconds: float
    interval: tuple[float, float]  # of the seconds, 95 %
    devices: int = 1
    record: Record | None = None
    validity: str = "VALID"

    @property
    def rate(self) -> float:
        return self.batch / self.seconds

    @property
    def unit(self) -> str:
        return "machine" if self.device == "cpu" else "GPU" if self.devices == 1 else f"set of {self.devices} GPUs"


@dataclass(frozen=True)
class Plan:
    """So many units for a rate, how busy and how late they are, and what that costs."""

    service: Service
    rate: float  # items/s, the mean
    peak: float  # items/s, what the plan is made for
    price: Price | None
    units: int
    target: float = TARGET
    egress_usd: float = 0.0  # per item

    @property
    def busy(self) -> float:
        """Units that would be busy all the time, at the mean rate: 0.006 of a GPU."""
        return self.rate / self.service.rate

    @property
    def utilisation(self) -> float:
        return self.busy / self.units

    @property
    def at_peak(self) -> float:
        return self.peak / self.service.rate / self.units

    @property
    def fill_s(self) -> float:
        """Mean time an item waits for its batch to fill, at the mean rate (slower arrivals wait longer)."""
        return (self.service.batch - 1) / 2 / (self.rate / self.units)

    @property
    def wait_s(self) -> float:
        """Mean time a full batch waits for the machine, at the peak."""
        rho = self.at_peak
        return rho * self.service.seconds / (2 * self.service.batch * (1 - rho))

    @property
    def latency_s(self) -> float:
        return self.fill_s + self.wait_s + self.service.seconds

    @property
    def backlog(self) -> float:
        """Items waiting, in all units, on average."""
        return self.rate * self.fill_s + self.peak * self.wait_s

    @property
    def drain(self) -> float:
        """Seconds to work off what a standstill of one second leaves behind, at the mean rate."""
        return self.utilisation / (1 - self.utilisation)

    @property
    def usd_per_hour(self) -> float | None:
        if self.price is None:
            return None
        machines = self.units * self.shares * self.price.hourly(self.utilisation)
        return machines + self.egress_usd * self.rate * 3600

    @property
    def usd_per_million(self) -> float | None:
        """Of the plan: idle hours are paid for."""
        return self.usd_per_hour / (self.rate * 3600) * 1e6 if self.usd_per_hour is not None else None

    @property
    def usd_per_million_full(self) -> tuple[float, float, float] | None:
        """Of a unit that is never idle, with the interval of the measured time: value, low, high."""
        if self.price is None:
            return None
        second = self.price.hourly(1.0) * self.shares / 3600
        low, high = self.service.interval
        value, least, most = (
            1e6 * (second * s / self.service.batch + self.egress_usd) for s in (self.service.seconds, low, high)
        )
        return value, least, most

    @property
    def shares(self) -> int:
        """Prices that one unit costs."""
        return self.service.devices if self.service.device == "cuda" else 1

    def to_json(self) -> dict[str, Any]:
        record, full = self.service.record, self.usd_per_million_full
        return {
            "case": dict(record.case) if record else self.service.name,
            "record": record.id if record else None,
            "device": self.service.device,
            "unit": self.service.unit,
            "validity": self.service.validity,
            "items_per_s": self.service.rate,
            "batch": self.service.batch,
            "step_s": self.service.seconds,
            "busy_units": self.busy,
            "units": self.units,
            "utilisation": self.utilisation,
            "utilisation_at_peak": self.at_peak,
            "fill_s": self.fill_s,
            "wait_s": self.wait_s,
            "latency_s": self.latency_s,
            "backlog_items": self.backlog,
            "drain_s_per_s": self.drain,
            "price": self.price.name if self.price else None,
            "usd_per_hour": self.usd_per_hour,
            "usd_per_month": self.usd_per_hour * HOURS_A_YEAR / 12 if self.usd_per_hour is not None else None,
            "usd_per_million": self.usd_per_million,
            "usd_per_million_full": full[0] if full else None,
            "usd_per_million_full_interval": list(full[1:]) if full else None,
        }


def services(records: Iterable[Record], contender: str = OURS) -> tuple[list[Service], list[str]]:
    """What was measured, the newest of each case and machine; and a sentence for each that has no time to show."""
    found: dict[tuple[str, str], Service] = {}
    silent: list[str] = []
    for record in records:
        row = next((r for r in analyse.rows(record) if r.lane.contender == contender), None)
        if row is None or row.judged.time is None:
            why = f"{row.judged.validity}, {row.judged.advice}" if row else f"no contender '{contender}'"
            silent.append(f"{record.workload} {record.label}: {why}")
            continue
        if not record.work["items"]:
            silent.append(f"{record.workload} {record.label}: a step of no items")
            continue
        device, time = str(record.case["device"]).partition(":")[0], row.judged.time
        at = record.subject, record.machine["fingerprint"]
        old = found[at].record if at in found else None
        if old is not None and old.time > record.time:
            continue
        found[at] = Service(
            record.label,
            device,
            float(record.work["items"]),
            time.value / 1e9,
            (time.low / 1e9, time.high / 1e9),
            int(record.case["ranks"]) if device == "cuda" else 1,
            record,
            row.judged.validity,
        )
    return list(found.values()), silent


def plan(
    service: Service,
    rate: float,
    price: Price | None = None,
    *,
    target: float = TARGET,
    peak: float = 1.0,
    egress_bytes: float = 0.0,
) -> Plan:
    """The fewest units that stay at or below `target` busy when the rate is `peak` times its mean."""
    for name, value, good in (
        ("rate", rate, 0 < rate < math.inf),
        ("--target", target, 0 < target < 1),
        ("--peak", peak, peak >= 1 and rate * peak < math.inf),
        ("--egress-bytes", egress_bytes, 0 <= egress_bytes < math.inf),
    ):
        if not good:
            raise InputError(
                f"{name} {value:g} makes no plan: a rate is above 0, a target between 0 and 1, a peak from 1 up."
            )
    egress = (price.egress_usd_per_gb if price else 0.0) * egress_bytes / 1e9
    return Plan(service, rate, rate * peak, price, _units(rate * peak, service.rate * target), target, egress)


def comparable(a: Service, b: Service) -> str | None:
    """How two cases differ, in words, if only in how the same thing is done; None if they are different things."""
    if a.record is None or b.record is None or a.record.workload != b.record.workload:
        return None
    one, other = a.record.case, b.record.case
    differ = [k for k in {**one, **other} if one.get(k) != other.get(k)]
    if any(k not in HOW for k in differ):
        return None
    told = [f"{k} {one.get(k)} and {other.get(k)}" for k in differ if k != "device"]
    return ", ".join(told)


@dataclass(frozen=True)
class Versus:
    """A CPU and a GPU that do the same thing, both with a price."""

    cpu: Plan
    gpu: Plan
    differ: str  # in how they do it
    even: BreakEven

    def to_json(self) -> dict[str, Any]:
        cpu, gpu = (p.service.record.id if p.service.record else None for p in (self.cpu, self.gpu))
        return {
            "cpu": cpu,
            "gpu": gpu,
            "differ_in": self.differ or None,
            "gpu_not_dearer_above_per_s": self.even.first,
            "gpu_never_dearer_above_per_s": self.even.always,
        }


def versus(plans: Iterable[Plan]) -> list[Versus]:
    """Every such pair among the plans, and from which rate on the GPU pays."""
    held = [p for p in plans if p.price]
    pairs = ((c, g) for c in held for g in held if c.service.device == "cpu" and g.service.device == "cuda")
    return [
        Versus(c, g, differ, break_even(_offer(c), _offer(g)))
        for c, g in pairs
        if (differ := comparable(c.service, g.service)) is not None
    ]


def _offer(of: Plan) -> tuple[float, float]:
    """Dollars an hour of one unit, and the rate it may be planned for."""
    price = of.price.hourly(of.target) if of.price else math.nan
    return price * of.shares, of.service.rate * of.target


def matching(records: Iterable[Record], workload: str | None, words: Mapping[str, str]) -> list[Record]:
    """The records of a workload whose case has these values, compared as text."""
    return [
        r
        for r in records
        if (workload is None or r.workload == workload) and all(str(r.case.get(k)) == v for k, v in words.items())
    ]


def _units(rate: float, each: float) -> int:
    return max(1, math.ceil(rate / each * (1 - 1e-12)))
