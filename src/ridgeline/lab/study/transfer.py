"""The two ways over the bus: what a transfer costs before the first byte, what a byte costs, what grows with a model.

seconds = latency + bytes ÷ bandwidth      by non-negative least squares, for each way and setting
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.study.law import ONE, Datum, error, held_out, sum_law
from ridgeline.lab.study.section import DASH, Grid, Section, plain, share
from ridgeline.lab.study.sweep import Sweep, apart
from ridgeline.lab.study.table import Columns, Table, Trial, groups
from ridgeline.web import Axis, Point, Series, lines, si

AMOUNT = "bytes"
LAW = sum_law("latency + bytes ÷ bandwidth", [AMOUNT])
# What a transfer does not depend on.
BESIDE = ("dtype", "compile_mode")


@dataclass(frozen=True)
class Way:
    setting: dict[str, Any]
    way: str  # to the device | back
    runs: int
    latency: Estimate | None  # seconds
    bandwidth: Estimate | None  # bytes per second
    held_out: float
    best: float  # the highest rate seen, bytes per second


def ways(table: Table) -> list[Way]:
    columns, found = table.columns, []
    names = [n for n in columns.setting if n not in BESIDE]
    for levels, trials in groups(table.trials, names).items():
        for way, seconds, amount in _directions(columns):
            data = _data(trials, seconds, amount)
            if data:
                found.append(_way(dict(zip(names, levels, strict=True)), way, data))
    return found


def transfer(table: Table, every: Sequence[Sweep]) -> Section:
    title, found = "Transfers", ways(table)
    if not found:
        return Section(title, ["No row tells bytes and seconds of a transfer: nothing went over a bus."])
    names = apart([w.setting for w in found])
    rows = [
        [
            name or "all",
            w.way,
            _seconds(w.latency),
            _rate(w.bandwidth),
            si(w.best, "B/s"),
            share(w.held_out),
            str(w.runs),
        ]
        for w, name in zip(found, names, strict=True)
    ]
    head = ("setting", "way", "before the first byte", "bandwidth", "highest rate seen", "held-out error", "runs")
    grown = growth(table, every)
    said = [f"{w.way.capitalize()}{f' ({n})' if n else ''}: {_rate(w.bandwidth)} after {_seconds(w.latency)}."
            for w, n in list(zip(found, names, strict=True))[:4] if w.bandwidth]  # fmt: skip
    if not any(w.bandwidth for w in found):
        said.append(
            "Too few sizes were moved to part the cost of a byte from that of a transfer; rates are in the table."
        )
    said += grown
    findings = plain({"ways": found, "growth": grown})
    return Section(title, said, [Grid(head, rows, head[2:])], [_chart(table)], findings)


def growth(table: Table, every: Sequence[Sweep]) -> list[str]:
    """How the bytes of each way grow along each size, in sentences."""
    columns, said = table.columns, []
    for column in columns.sizes:
        own = [s for s in every if s.column == column]
        for way, _, amount in _directions(columns):
            powers = []
            for sweep in own:
                known = [(x, v) for (x, _), v in zip(sweep.points, sweep.median(amount), strict=True) if v]
                if len(known) > 1:
                    (a, first), (b, last) = known[0], known[-1]
                    powers.append(math.log(last / first) / math.log(b / a))
            if powers:
                low, high = min(powers), max(powers)
                word = "do not grow" if max(abs(low), abs(high)) < 0.05 else f"grow by the power {low:.2g}"
                word += f" to {high:.2g}" if high - low > 0.05 else ""
                said.append(f"Bytes {way} {word} along {column}.")
    return said


def _directions(columns: Columns) -> list[tuple[str, str, str]]:
    return [("to the device", columns.up, columns.up_bytes), ("back", columns.down, columns.down_bytes)]


def _data(trials: Sequence[Trial], seconds: str, amount: str) -> list[Datum]:
    told = ((t.positive(amount), t.positive(seconds)) for t in trials)
    return [Datum({AMOUNT: moved}, s) for moved, s in told if moved is not None and s is not None]


def _way(setting: dict[str, Any], way: str, data: Sequence[Datum]) -> Way:
    best = max(d.amounts[AMOUNT] / d.seconds for d in data)
    law = LAW(data)
    cost = law.coefficients.get(AMOUNT) if law else None
    if law is None or cost is None or cost.value <= 0:
        return Way(setting, way, len(data), None, None, math.nan, best)
    fastest = 1 / cost.low if cost.low > 0 else math.inf
    bandwidth = Estimate(1 / cost.value, 1 / cost.high, fastest, cost.n)
    return Way(setting, way, len(data), law.coefficients[ONE], bandwidth, error(held_out(LAW, data)), best)


def _chart(table: Table) -> Markup:
    columns, series = table.columns, []
    names = [n for n in columns.setting if n not in BESIDE]
    settled = groups(table.trials, names)
    labels = apart([dict(zip(names, levels, strict=True)) for levels in settled])
    for (levels, trials), label in zip(settled.items(), labels, strict=True):
        del levels
        for way, seconds, amount in _directions(columns):
            by_size: dict[float, list[float]] = {}
            for d in _data(trials, seconds, amount):
                by_size.setdefault(d.amounts[AMOUNT], []).append(d.amounts[AMOUNT] / d.seconds)
            points = [Point(size, max(rates), (min(rates), max(rates))) for size, rates in by_size.items()]
            if points:
                series.append(Series(", ".join(n for n in (way, label) if n), points))
    return lines(
        series[:8],
        title="Rate of a transfer over its size",
        x=Axis("bytes per batch", "B", "log"),
        y=Axis("rate", "B/s", "log"),
        caption="The highest rate at each size; whiskers reach down to the lowest run.",
    )


def _seconds(e: Estimate | None) -> str:
    return DASH if e is None else f"{si(e.value, 's')} ({si(e.low, 's')} to {si(e.high, 's')})"


def _rate(e: Estimate | None) -> str:
    return DASH if e is None else f"{si(e.value, 'B/s')} ({si(e.low, 'B/s')} to {si(e.high, 'B/s')})"
