"""The cost of a rate of work: machines, utilisation, backlog, dollars per million items, break-even.

    ridgeline cost --workload embed --rate 1e6/day

A machine that processes μ items/s (from a record) and receives λ items/s is busy for λ/μ of the time. Items arrive at
random (Poisson) and are divided evenly; a step takes a fixed time s and processes a batch of b. With b = 1 this is the
queue M/D/1; with b > 1 every b-th arrival starts a batch, and

    time to fill a batch   (b - 1) / (2 λ)
    wait for the machine   ρ s / (2 b (1 - ρ))        exact for b = 1, an upper bound for b > 1
    backlog                λ × the sum of both (Little's law)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import InputError, unknown
from ridgeline.lab.judge.analyse import analyse_record
from ridgeline.lab.judge.prices import HOURS_PER_YEAR, Price
from ridgeline.lab.record import Record
from ridgeline.lab.workload import OURS

TARGET = 0.7  # utilisation that a plan allows: at 0.9 the queue of M/D/1 is 3.9 times as long
METHOD_PARAMETERS = ("batch", "dtype", "device")  # how the work is done, not what the work is
MAX_STEPS = 10_000  # of a cost function: two units of nearly equal price cross that often and more
ROUNDING = 1e-12
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0, "week": 604800.0, "month": 2629800.0, "year": 31557600.0}
PERIODS = {"sec": "s", "second": "s", "m": "min", "minute": "min", "hr": "h", "hour": "h", "d": "day"}
TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
MULTIPLES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
INTEGER = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*"  # 1,000 is a thousand; 1,5 is an error
NUMBER = rf"\s*((?:{INTEGER})?(?:(?<=[0-9])|(?=\.[0-9]))(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
RATE = re.compile(NUMBER + r"\s*([kKMG]?)\s*(?:/|\bper\b)\s*([a-zA-Z]+)\s*")
HOURS = re.compile(NUMBER + r"\s*(?:/|\bper\b)\s*(d|day|w|week)\s*")
TIME = re.compile(NUMBER + r"\s*(ns|us|µs|μs|ms|s|min|h)\s*")


@dataclass(frozen=True)
class Service:
    """What one unit (a machine by its CPUs, or `devices` GPUs) does: a step of `seconds` processes `batch` items."""

    name: str
    device: str  # cpu | cuda
    batch: float
    seconds: float
    interval: tuple[float, float]  # of the seconds, 95 % confidence
    devices: int = 1
    record: Record | None = None
    validity: str = "VALID"

    @property
    def rate(self) -> float:
        """Items per second of one unit."""
        return self.batch / self.seconds

    @property
    def unit(self) -> str:
        """The unit in words: "machine", "GPU"."""
        return "machine" if self.device == "cpu" else "GPU" if self.devices == 1 else f"set of {self.devices} GPUs"


@dataclass(frozen=True)
class Calendar:
    """When machines run, and for how long they are planned."""

    running: float = 1.0  # share of all hours in which they run
    months: float | None = None  # None: without an end


ALWAYS = Calendar()


@dataclass(frozen=True)
class CapacityPlan:
    """The number of units for a rate of work, their utilisation and latency, and their cost."""

    service: Service
    rate: float  # items/s, the mean while the machines run
    peak: float  # items/s, the highest rate the plan allows for
    price: Price | None
    units: int
    target: float = TARGET
    egress_usd: float = 0.0  # dollars per item
    calendar: Calendar = ALWAYS
    items: float | None = None  # of one job; None: the work has no parts

    @property
    def busy(self) -> float:
        """The number of units at full utilisation, at the mean rate: 0.006 of a GPU."""
        return self.rate / self.service.rate

    @property
    def utilisation(self) -> float:
        """Share of the time a unit is busy, at the mean rate."""
        return self.busy / self.units

    @property
    def utilisation_at_peak(self) -> float:
        """Share of the time a unit is busy, at the peak rate."""
        return self.peak / self.service.rate / self.units

    @property
    def fill_s(self) -> float:
        """Mean seconds an item waits until its batch is full, at the mean rate (at a lower rate it waits longer)."""
        return (self.service.batch - 1) / 2 / (self.rate / self.units)

    @property
    def wait_s(self) -> float:
        """Mean seconds a full batch waits for the machine, at the peak rate."""
        rho = self.utilisation_at_peak
        return rho * self.service.seconds / (2 * self.service.batch * (1 - rho))

    @property
    def latency_s(self) -> float:
        """Mean seconds from the arrival of an item to its result."""
        return self.fill_s + self.wait_s + self.service.seconds

    @property
    def backlog(self) -> float:
        """Mean number of items that wait, in all units."""
        return self.rate * self.fill_s + self.peak * self.wait_s

    @property
    def drain(self) -> float:
        """Seconds to process the backlog of one second without service, at the mean rate."""
        return self.utilisation / (1 - self.utilisation)

    @property
    def usd_per_hour(self) -> float | None:
        """Dollars per hour of all units while they run; None without a price."""
        if self.price is None:
            return None
        machines = self.units * self.prices_per_unit * self.price.hourly(self.utilisation)
        return machines + self.egress_usd * self.rate * 3600

    @property
    def usd_per_month(self) -> float | None:
        """Dollars per month by the calendar; machines that are owned cost money when they are off, too."""
        if self.price is None or self.usd_per_hour is None:
            return None
        running, off = self.calendar.running, self.units * self.prices_per_unit * self.price.off_hourly()
        return (running * self.usd_per_hour + (1 - running) * off) * HOURS_PER_YEAR / 12

    @property
    def usd_total(self) -> float | None:
        """Dollars until the end of the calendar; None without a price or an end."""
        if self.usd_per_month is None or self.calendar.months is None:
            return None
        return self.usd_per_month * self.calendar.months

    @property
    def usd_per_million(self) -> float | None:
        """Dollars per million items with this plan: idle time costs money as well."""
        items = self.rate * self.calendar.running * SECONDS["month"]
        return self.usd_per_month / items * 1e6 if self.usd_per_month is not None else None

    @property
    def job_s(self) -> float | None:
        """Seconds in which all units do one job; None if the work has no parts."""
        return None if self.items is None else self.items / (self.units * self.service.rate)

    @property
    def usd_per_job(self) -> float | None:
        """Dollars of one job if the machines are paid for its time only."""
        if self.items is None or self.usd_per_million_full is None:
            return None
        return self.items * self.usd_per_million_full[0] / 1e6

    @property
    def usd_per_million_full(self) -> tuple[float, float, float] | None:
        """Dollars per million items of a unit that is never idle: value, low, high (interval of the measured time)."""
        if self.price is None:
            return None
        second = self.price.hourly(1.0) * self.prices_per_unit / 3600
        low, high = self.service.interval
        value, least, most = (
            1e6 * (second * s / self.service.batch + self.egress_usd) for s in (self.service.seconds, low, high)
        )
        return value, least, most

    @property
    def prices_per_unit(self) -> int:
        """How many times the price one unit costs."""
        return self.service.devices if self.service.device == "cuda" else 1

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a dict for JSON."""
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
            "utilisation_at_peak": self.utilisation_at_peak,
            "fill_s": self.fill_s,
            "wait_s": self.wait_s,
            "latency_s": self.latency_s,
            "backlog_items": self.backlog,
            "drain_s_per_s": self.drain,
            "price": self.price.name if self.price else None,
            "usd_per_hour": self.usd_per_hour,
            "usd_per_month": self.usd_per_month,
            "usd_total": self.usd_total,
            "job_s": self.job_s,
            "usd_per_job": self.usd_per_job,
            "usd_per_million": self.usd_per_million,
            "usd_per_million_full": full[0] if full else None,
            "usd_per_million_full_interval": list(full[1:]) if full else None,
        }


def list_services(records: Iterable[Record], contender: str = OURS) -> tuple[list[Service], list[str]]:
    """Return a service for the newest record of each case and machine, and a sentence for each without a valid time."""
    services: dict[tuple[str, str], Service] = {}
    skipped: list[str] = []
    for record in records:
        row = next((r for r in analyse_record(record) if r.result.contender == contender), None)
        if row is None or row.assessment.time is None:
            reason = f"{row.assessment.validity}, {row.assessment.advice}" if row else f"no contender '{contender}'"
            skipped.append(f"{record.workload} {record.label}: {reason}")
            continue
        if not record.work["items"]:
            skipped.append(f"{record.workload} {record.label}: a step of no items")
            continue
        device, time = str(record.case["device"]).partition(":")[0], row.assessment.time
        key = record.subject, record.machine["fingerprint"]
        old = services[key].record if key in services else None
        if old is not None and old.time > record.time:
            continue
        services[key] = Service(
            record.label,
            device,
            float(record.work["items"]),
            time.value / 1e9,
            (time.low / 1e9, time.high / 1e9),
            int(record.case["ranks"]) if device == "cuda" else 1,
            record,
            row.assessment.validity,
        )
    return list(services.values()), skipped


def plan_capacity(
    service: Service,
    rate: float,
    price: Price | None = None,
    *,
    target: float = TARGET,
    peak: float = 1.0,
    egress_bytes: float = 0.0,
    calendar: Calendar = ALWAYS,
    items: float | None = None,
) -> CapacityPlan:
    """Plan the smallest number of units whose utilisation is at most `target` at `peak` times the mean rate.

    `rate`: items/s while the machines run. `egress_bytes`: bytes that leave the site per item. `items`: of one job.
    Raises InputError for impossible values.
    """
    for name, value, valid in (
        ("rate", rate, 0 < rate < math.inf),
        ("--target", target, 0 < target < 1),
        ("--peak", peak, peak >= 1 and rate * peak < math.inf),
        ("--egress-bytes", egress_bytes, 0 <= egress_bytes < math.inf),
    ):
        if not valid:
            raise InputError(
                f"{name} {value:g} makes no plan: a rate is above 0, a target between 0 and 1, a peak from 1 up."
            )
    egress = (price.egress_usd_per_gb if price else 0.0) * egress_bytes / 1e9
    units = _count_units(rate * peak, service.rate * target)
    return CapacityPlan(service, rate, rate * peak, price, units, target, egress, calendar, items)


def describe_difference(a: Service, b: Service) -> str | None:
    """Say how two cases differ if they do the same work in different ways; None if they do different work."""
    if a.record is None or b.record is None or a.record.workload != b.record.workload:
        return None
    one, other = a.record.case, b.record.case
    differ = [k for k in {**one, **other} if one.get(k) != other.get(k)]
    if any(k not in METHOD_PARAMETERS for k in differ):
        return None
    return ", ".join(f"{k} {one.get(k)} and {other.get(k)}" for k in differ if k != "device")


@dataclass(frozen=True)
class DeviceComparison:
    """A CPU and a GPU that do the same work, both with a price."""

    cpu: CapacityPlan
    gpu: CapacityPlan
    difference: str  # between the two methods, in words
    break_even: BreakEven

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a dict for JSON."""
        cpu, gpu = (p.service.record.id if p.service.record else None for p in (self.cpu, self.gpu))
        return {
            "cpu": cpu,
            "gpu": gpu,
            "differ_in": self.difference or None,
            "gpu_not_dearer_above_per_s": self.break_even.first,
            "gpu_never_dearer_above_per_s": self.break_even.always,
        }


def compare_devices(plans: Iterable[CapacityPlan]) -> list[DeviceComparison]:
    """Compare every CPU with every GPU that does the same work, and find the rate from which the GPU pays."""
    priced = [p for p in plans if p.price]
    pairs = ((c, g) for c in priced for g in priced if c.service.device == "cpu" and g.service.device == "cuda")
    return [
        DeviceComparison(c, g, difference, find_break_even(_unit_cost(c), _unit_cost(g)))
        for c, g in pairs
        if (difference := describe_difference(c.service, g.service)) is not None
    ]


def _unit_cost(plan: CapacityPlan) -> tuple[float, float]:
    """Return dollars per hour of one unit, and the rate that is planned for it."""
    price = plan.price.hourly(plan.target) if plan.price else math.nan
    return price * plan.prices_per_unit, plan.service.rate * plan.target


@dataclass(frozen=True)
class BreakEven:
    """Rates in items/s just above which the larger unit does not cost more; None: there is no such rate."""

    first: float | None  # above this rate for a while at least
    always: float | None  # above this rate always


def find_break_even(small: tuple[float, float], large: tuple[float, float]) -> BreakEven:
    """Find the rate from which the larger unit pays. Each unit is ($/h, items/s it is planned for).

    Units are bought whole, so both costs are step functions of the rate.

    >>> find_break_even((1.0, 10.0), (4.0, 100.0))  # above 30/s four small units are needed, which cost one large one
    BreakEven(first=30.0, always=30.0)
    """
    (c1, m1), (c2, m2) = small, large
    cheaper = c2 / m2 < c1 / m1 * (1 - ROUNDING)
    # Above this rate one step of a cost function can no longer cross the other function.
    gap = abs(c1 / m1 - c2 / m2)
    bound = (c2 if cheaper else c1) / gap if gap > ROUNDING * c1 / m1 else math.inf
    first, always = None, 0.0
    for j in range(1, MAX_STEPS):
        # j large units do not cost more once j · c2 / c1 small units are needed, which is just above `rate`.
        rate = (math.ceil(j * c2 / c1 * (1 - ROUNDING)) - 1) * m1
        if first is None and rate < j * m2 * (1 - ROUNDING):
            first = rate
        if rate > (j - 1) * m2 * (1 + ROUNDING):
            always = max(always, rate)
        if (j - 1) * m2 > bound:
            return BreakEven(first, always if cheaper else None)
    return BreakEven(first, 0.0 if c2 <= c1 and m2 >= m1 else None)


def select_records(records: Iterable[Record], workload: str | None, values: Mapping[str, str]) -> list[Record]:
    """Return the records of a workload whose case has these values, compared as text."""
    return [
        r
        for r in records
        if (workload is None or r.workload == workload) and all(str(r.case.get(k)) == v for k, v in values.items())
    ]


def parse_rate(text: str) -> float:
    """Parse a rate such as "1e6/day" into items per second. A month is a twelfth of 365.25 days.

    Raises InputError for another form.

    >>> parse_rate("86400/day"), parse_rate("1.8M/h"), parse_rate("5_000 per second")
    (1.0, 500.0, 5000.0)
    """
    match = RATE.fullmatch(text)
    if match is None:
        raise InputError(f"'{text}' is no rate; write it like 1e6/day, 1200/h or 5000/s.")
    return _check_positive(_parse_number(match[1]) * MULTIPLES[match[2]] / parse_period(match[3]), text)


def parse_period(text: str) -> float:
    """Parse a period such as "day" into seconds. Raises InputError for another word.

    >>> parse_period("day"), parse_period("hours")
    (86400.0, 3600.0)
    """
    for period in (text.lower(), text.lower().removesuffix("s")):
        period = PERIODS.get(period, period)
        if period in SECONDS:
            return SECONDS[period]
    raise unknown("period", text, SECONDS)


def parse_hours(text: str) -> float:
    """Parse the hours in which machines run, such as "8/day" or "40/week", into a share of all hours.

    Raises InputError for another form, or more hours than there are.

    >>> parse_hours("6/day"), parse_hours("42/week")
    (0.25, 0.25)
    """
    match = HOURS.fullmatch(text.lower())
    if match is None:
        raise InputError(f"--hours '{text}' is no working time; write it like 8/day or 40/week.")
    share = _check_positive(_parse_number(match[1]), text) * 3600 / SECONDS["day" if match[2][0] == "d" else "week"]
    if share > 1:
        raise InputError(f"--hours '{text}' is more than there are: a day has 24, a week has 168.")
    return share


def parse_time(text: str) -> float:
    """Parse a time such as "0.5ms" into seconds.

    Raises InputError for another form.

    >>> parse_time("0.5ms"), parse_time("2 min")
    (0.0005, 120.0)
    """
    match = TIME.fullmatch(text)
    if match is None:
        raise InputError(f"'{text}' is no time; write it like 0.5ms, 12us or 2s.")
    return _check_positive(_parse_number(match[1]) * TIMES[match[2]], text)


def _parse_number(text: str) -> float:
    return float(text.replace("_", "").replace(",", ""))


def _check_positive(value: float, text: str) -> float:
    if not 0 < value < math.inf:
        raise InputError(f"'{text}' is not above zero and finite.")
    return value


def _count_units(rate: float, rate_per_unit: float) -> int:
    return max(1, math.ceil(rate / rate_per_unit * (1 - 1e-12)))
