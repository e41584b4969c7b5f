"""What limits each run: the bus, memory, arithmetic, or none of them, by its own stages and by the measured roofline.

By stages: in an overlapped pipeline the slowest one sets the pace. By the roofline: the least time each resource needs
for the work (bytes over the bus, bytes through memory, FLOPs), at the rate this machine was measured to give it; the
highest floor is the limit. Bytes through memory are the compulsory ones (weights once, what goes in, what comes out),
so memory is never blamed too much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from ridgeline.lab.study.section import DASH, Grid, Section, plain, share
from ridgeline.lab.study.sensitivity import transfer_share
from ridgeline.lab.study.sweep import apart
from ridgeline.lab.study.table import Columns, Table, Trial
from ridgeline.machine import Ceilings
from ridgeline.web import Axis, Point, Roof, Series, roofline, si

TRANSFER, MEMORY, COMPUTE, OVERHEAD = "transfer", "memory", "compute", "overhead"
HALF = 0.5  # a slowest stage that fills less of the time than this does not explain it
IDLE = 0.1  # of the nearest roof: below it the device mostly waits for launches
WAYS = {"up": "to the device", "down": "back"}
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "half": "float16", "float": "float32"}
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
Limits = Ceilings | Mapping[str, Ceilings] | None
Kind = Literal["memory", "compute"]


@dataclass(frozen=True)
class Bound:
    """One run and what it is bound by."""

    trial: Trial
    word: str  # transfer | memory | compute | overhead | "" where no stage is told
    stage: str  # the slowest stage, in words
    transfers: float | None  # share of the stages' time that goes into transfers
    filled: float | None  # slowest stage ÷ achieved: 1 is all that overlapping can give
    floors: Mapping[str, float]  # seconds each resource needs at least
    reached: float | None  # highest floor ÷ achieved


def bounds(table: Table, ceilings: Limits) -> list[Bound]:
    return [_bound(trial, table.columns, _held(trial, table.columns, ceilings)) for trial in table.trials]


def bound(table: Table, found: Sequence[Bound]) -> Section:
    title = "What limits it"
    told = [b for b in found if b.word]
    if not told:
        return Section(
            title, ["No row tells the times of its stages: what limits a run cannot be said."] if found else []
        )
    counts = Counter(b.word for b in told)
    words = {
        TRANSFER: "transfers",
        MEMORY: "memory",
        COMPUTE: "arithmetic",
        OVERHEAD: "none of these (launches, the host, waiting)",
    }
    parts = [f"{counts[w]} by {name}" for w, name in words.items() if counts[w]]
    sentences = [f"What bounds the {len(told)} runs: {', '.join(parts)}."]
    if not any(b.floors for b in told):
        sentences.append("No ceilings are known: bounds are by stage times only, and no roofline is drawn.")
    charts = rooflines(table, told)
    head = (
        "run",
        "bound by",
        "slowest stage",
        "transfer share",
        "slowest ÷ achieved",
        "limit by roofline",
        "of that limit",
    )
    columns = table.columns
    names = apart([{n: b.trial.level(n) for n in columns.identity} for b in told])
    rows = [_row(b, name) for b, name in zip(told, names, strict=True)]
    grids = [Grid(head, rows, (*head[3:5], head[6]))]
    findings = {
        "counts": counts,
        "runs": [
            {
                "run": b.trial.row.get(columns.run),
                "bound": b.word,
                "slowest_stage": b.stage,
                "transfer_share": b.transfers,
                "slowest_over_achieved": b.filled,
                "floors_s": b.floors,
                "share_of_limit": b.reached,
            }
            for b in told
        ],
    }
    return Section(title, sentences, grids, charts, plain(findings))


def rooflines(table: Table, told: Sequence[Bound]) -> list[Markup]:
    """One per device: FLOPs against the bytes that must go up (or through memory, where there is no bus)."""
    columns, out = table.columns, []
    for device in dict.fromkeys(str(b.trial.level(columns.device)) for b in told):
        own = [b for b in told if str(b.trial.level(columns.device)) == device and COMPUTE in b.floors]
        resource = "up" if any("up" in b.floors for b in own) else MEMORY
        slope, per = ("bus, to the device", "to the device") if resource == "up" else (MEMORY, "of memory")
        series: dict[str, list[Point]] = {}
        rates: dict[tuple[str, Kind], float] = {}
        for b in (b for b in own if resource in b.floors):
            amounts = _amounts(b.trial, columns)
            flops, moved = amounts[COMPUTE], amounts[resource]
            about = _about(b, str(b.trial.level(columns.model)))
            series.setdefault(f"{b.word}-bound", []).append(Point(flops / moved, flops / b.trial.seconds, title=about))
            roofs: tuple[tuple[str, Kind, float], ...] = (
                (slope, "memory", moved / b.floors[resource]),
                (f"{_dtype(b.trial, columns)} matmul", "compute", flops / b.floors[COMPUTE]),
            )
            for name, kind, rate in roofs:
                rates[name, kind] = max(rate, rates.get((name, kind), 0.0))
        if series:
            out.append(
                roofline(
                    [Roof(name, rate, kind) for (name, kind), rate in rates.items()],
                    [Series(name, series[name]) for name in sorted(series)],
                    title=f"Roofline of {device}",
                    x=Axis(f"FLOPs per byte {per}", "FLOP/B", "log"),
                    caption="Left of the ridge the bytes take longer than the arithmetic, right of it the other way.",
                )
            )
    return out


def transfers(trial: Trial, columns: Columns) -> float | None:
    """Seconds of the slower way over the bus, by itself."""
    ways = [v for v in (trial.positive(columns.up), trial.positive(columns.down)) if v is not None]
    return max(ways) if ways else None


def _bound(trial: Trial, columns: Columns, limits: Ceilings | None) -> Bound:
    stages = {
        name: v
        for name, c in (("up", columns.up), (COMPUTE, columns.compute), ("down", columns.down))
        if (v := trial.positive(c)) is not None
    }
    amounts = _amounts(trial, columns)
    rates = _rates(trial, columns, limits, amounts) if limits else _own_rates(trial, columns)
    floors = {name: amounts[name] / rate for name, rate in rates.items() if amounts.get(name) and rate > 0}
    reached = max(floors.values()) / trial.seconds if floors else None
    if not stages:
        return Bound(trial, "", "", None, None, floors, reached)
    slowest = max(stages, key=lambda s: stages[s])
    portion = transfer_share(trial, columns)
    filled = stages[slowest] / trial.seconds
    word = TRANSFER if slowest != COMPUTE else _inside(stages[COMPUTE], floors)
    if filled < HALF:
        word = OVERHEAD
    return Bound(trial, word, WAYS.get(slowest, slowest), portion, filled, floors, reached)


def _inside(seconds: float, floors: Mapping[str, float]) -> str:
    """What the compute stage itself is bound by; without ceilings it is taken for arithmetic."""
    held = {name: floors[name] for name in (COMPUTE, MEMORY) if name in floors}
    if not held:
        return COMPUTE
    nearest = max(held, key=lambda name: held[name])
    return nearest if held[nearest] / seconds >= IDLE else OVERHEAD


def _amounts(trial: Trial, columns: Columns) -> dict[str, float]:
    """What must be moved and reckoned per batch."""
    up, down = (trial.number(c) or 0.0 for c in (columns.up_bytes, columns.down_bytes))
    weights = (trial.number(columns.parameters) or 0.0) * BYTES.get(_dtype(trial, columns), 4)
    flops = trial.number(columns.flops) or 0.0
    found = {"up": up, "down": down, MEMORY: weights + up + down, COMPUTE: flops}
    return {name: v for name, v in found.items() if v > 0}


def _rates(trial: Trial, columns: Columns, limits: Ceilings, amounts: Mapping[str, float]) -> dict[str, float]:
    moved = int(amounts.get(MEMORY, 0))
    found = {
        COMPUTE: limits.compute(_dtype(trial, columns)),
        MEMORY: limits.bandwidth("read", moved) or limits.bandwidth("copy", moved),
        "up": limits.transfer("h2d", int(amounts.get("up", 0))),
        "down": limits.transfer("d2h", int(amounts.get("down", 0))),
    }
    return {name: c.base for name, c in found.items() if c is not None}


def _own_rates(trial: Trial, columns: Columns) -> dict[str, float]:
    """The ceilings a row carries itself."""
    named = zip((COMPUTE, MEMORY, "up", "down"), columns.ceilings, strict=True)
    return {name: rate for name, column in named if (rate := trial.positive(column)) is not None}


def _held(trial: Trial, columns: Columns, ceilings: Limits) -> Ceilings | None:
    """The ceilings of the device a trial ran on."""
    if ceilings is None:
        return None
    device, gpu = str(trial.level(columns.device)), trial.number(columns.gpu)
    own = list(ceilings.values()) if isinstance(ceilings, Mapping) else [ceilings]
    named = f"{device}:{gpu:.0f}" if device == "cuda" and gpu is not None else device
    exact = next((c for c in own if c.device == named), None)
    return exact or next((c for c in own if c.device.partition(":")[0] == device.partition(":")[0]), None)


def _dtype(trial: Trial, columns: Columns) -> str:
    told = str(trial.level(columns.dtype))
    return DTYPES.get(told, told)


def _row(b: Bound, name: str) -> list[str]:
    limit = max(b.floors, key=lambda name: b.floors[name]) if b.floors else ""
    return [
        name or "the run",
        b.word,
        b.stage,
        share(b.transfers),
        share(b.filled),
        WAYS.get(limit, limit) or DASH,
        share(b.reached),
    ]


def _about(b: Bound, name: str) -> str:
    floors = ", ".join(f"{WAYS.get(n, n)} {si(s, 's')}" for n, s in b.floors.items())
    lines = (
        name,
        f"{si(b.trial.seconds, 's')} per batch, {b.word}-bound",
        f"at least: {floors}",
        f"{share(b.reached)} of the limit",
    )
    return "\n".join(lines)
