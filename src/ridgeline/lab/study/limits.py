"""What limits each run: the bus, memory, arithmetic or overhead, by its stages and by the measured roofline.

`ridgeline.lab.judge.limits` finds the limit; this module reads the amounts of a run and presents the answer. Bytes
through memory are the compulsory ones (weights once, inputs, outputs), so the share of memory is a lower bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from ridgeline.lab.judge import (
    COMPUTE,
    DOWN,
    MEMORY,
    OVERHEAD,
    TRANSFER,
    UP,
    StageLimit,
    compute_floors,
    find_stage_limit,
    read_rates,
    select_ceilings,
)
from ridgeline.lab.study.section import DASH, Grid, Section, format_share, to_json
from ridgeline.lab.study.table import Columns, Table, Trial, name_differences, transfer_share
from ridgeline.machine import Ceilings
from ridgeline.web import Axis, Point, Roof, Series, draw_roofline, format_si

DIRECTIONS = {UP: "to the device", DOWN: "back"}
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "half": "float16", "float": "float32"}
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
AnyCeilings = Ceilings | Mapping[str, Ceilings] | None
Kind = Literal["memory", "compute"]


@dataclass(frozen=True)
class RunLimit:
    """One run and what limits it."""

    trial: Trial
    limit: StageLimit
    transfers: float | None  # share of the stages' time that goes into transfers
    floors: Mapping[str, float]  # the least seconds of each resource: up, down, memory, compute

    @property
    def stage(self) -> str:
        """The slowest stage in words."""
        return DIRECTIONS.get(self.limit.stage, self.limit.stage)


def find_run_limits(table: Table, ceilings: AnyCeilings) -> list[RunLimit]:
    """Return the limit of every trial; without `ceilings` the rates in its row count."""
    return [_find_run_limit(trial, table.columns, ceilings) for trial in table.trials]


def describe_limits(table: Table, runs: Sequence[RunLimit]) -> Section:
    """Return the section on limits, with a roofline per device where rates are known."""
    title = "What limits it"
    known = [r for r in runs if r.limit.kind]
    if not known:
        return Section(
            title, ["No row has the times of its stages: the limits of the runs are unknown."] if runs else []
        )
    counts = Counter(r.limit.kind for r in known)
    words = {
        TRANSFER: "transfers",
        MEMORY: "memory",
        COMPUTE: "arithmetic",
        OVERHEAD: "none of these (launches, the host, waiting)",
    }
    parts = [f"{counts[kind]} by {name}" for kind, name in words.items() if counts[kind]]
    sentences = [f"What bounds the {len(known)} runs: {', '.join(parts)}."]
    if not any(r.floors for r in known):
        sentences.append("No ceilings are known: bounds are by stage times only, and no roofline is drawn.")
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
    names = name_differences([{n: r.trial.level(n) for n in columns.identity} for r in known])
    rows = [_run_row(r, name) for r, name in zip(known, names, strict=True)]
    findings = {
        "counts": counts,
        "runs": [
            {
                "run": r.trial.row.get(columns.run),
                "bound": r.limit.kind,
                "slowest_stage": r.stage,
                "transfer_share": r.transfers,
                "slowest_over_achieved": r.limit.filled,
                "floors_s": r.floors,
                "share_of_limit": r.limit.reached,
            }
            for r in known
        ],
    }
    grids = [Grid(head, rows, (*head[3:5], head[6]))]
    return Section(title, sentences, grids, draw_rooflines(table, known), to_json(findings))


def draw_rooflines(table: Table, runs: Sequence[RunLimit]) -> list[Markup]:
    """Draw one roofline per device: FLOPs over the bytes to the device (or through memory, where there is no bus)."""
    columns, charts = table.columns, []
    for device in dict.fromkeys(str(r.trial.level(columns.device)) for r in runs):
        on_device = [r for r in runs if str(r.trial.level(columns.device)) == device and COMPUTE in r.floors]
        resource = UP if any(UP in r.floors for r in on_device) else MEMORY
        slope, per = ("bus, to the device", "to the device") if resource == UP else (MEMORY, "of memory")
        series: dict[str, list[Point]] = {}
        rates: dict[tuple[str, Kind], float] = {}
        for r in (r for r in on_device if resource in r.floors):
            amounts = _read_amounts(r.trial, columns)
            flops, moved = amounts[COMPUTE], amounts[resource]
            about = _hover_text(r, str(r.trial.level(columns.model)))
            point = Point(flops / moved, flops / r.trial.seconds, title=about)
            series.setdefault(f"{r.limit.kind}-bound", []).append(point)
            roofs: tuple[tuple[str, Kind, float], ...] = (
                (slope, "memory", moved / r.floors[resource]),
                (f"{_read_dtype(r.trial, columns)} matmul", "compute", flops / r.floors[COMPUTE]),
            )
            for name, kind, rate in roofs:
                rates[name, kind] = max(rate, rates.get((name, kind), 0.0))
        if series:
            charts.append(
                draw_roofline(
                    [Roof(name, rate, kind) for (name, kind), rate in rates.items()],
                    [Series(name, series[name]) for name in sorted(series)],
                    title=f"Roofline of {device}",
                    x=Axis(f"FLOPs per byte {per}", "FLOP/B", "log"),
                    caption="Left of the ridge the bytes take longer than the arithmetic, right of it the other way.",
                )
            )
    return charts


def _find_run_limit(trial: Trial, columns: Columns, ceilings: AnyCeilings) -> RunLimit:
    stages = {
        name: seconds
        for name, column in ((UP, columns.up), (COMPUTE, columns.compute), (DOWN, columns.down))
        if (seconds := trial.positive(column)) is not None
    }
    amounts = _read_amounts(trial, columns)
    device_ceilings = _select_device_ceilings(trial, columns, ceilings)
    if device_ceilings:
        rates = read_rates(device_ceilings, _read_dtype(trial, columns), amounts)
    else:
        rates = _read_row_rates(trial, columns)
    floors = compute_floors(amounts, rates)
    share = transfer_share(trial, columns) if stages else None
    return RunLimit(trial, find_stage_limit(trial.seconds, stages, floors), share, floors)


def _select_device_ceilings(trial: Trial, columns: Columns, ceilings: AnyCeilings) -> Ceilings | None:
    if ceilings is None:
        return None
    device, gpu = str(trial.level(columns.device)), trial.number(columns.gpu)
    candidates = list(ceilings.values()) if isinstance(ceilings, Mapping) else [ceilings]
    return select_ceilings(candidates, f"{device}:{gpu:.0f}" if device == "cuda" and gpu is not None else device)


def _read_amounts(trial: Trial, columns: Columns) -> dict[str, float]:
    """Return the bytes and FLOPs that a batch needs at least."""
    up, down = (trial.number(c) or 0.0 for c in (columns.up_bytes, columns.down_bytes))
    weights = (trial.number(columns.parameters) or 0.0) * BYTES.get(_read_dtype(trial, columns), 4)
    flops = trial.number(columns.flops) or 0.0
    amounts = {UP: up, DOWN: down, MEMORY: weights + up + down, COMPUTE: flops}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _read_row_rates(trial: Trial, columns: Columns) -> dict[str, float]:
    """Return the measured rates that the row itself has."""
    names = zip((COMPUTE, MEMORY, UP, DOWN), columns.ceilings, strict=True)
    return {name: rate for name, column in names if (rate := trial.positive(column)) is not None}


def _read_dtype(trial: Trial, columns: Columns) -> str:
    dtype = str(trial.level(columns.dtype))
    return DTYPES.get(dtype, dtype)


def _run_row(r: RunLimit, name: str) -> list[str]:
    highest = max(r.floors, key=lambda resource: r.floors[resource]) if r.floors else ""
    return [
        name or "the run",
        r.limit.kind,
        r.stage,
        format_share(r.transfers),
        format_share(r.limit.filled),
        DIRECTIONS.get(highest, highest) or DASH,
        format_share(r.limit.reached),
    ]


def _hover_text(r: RunLimit, name: str) -> str:
    floors = ", ".join(f"{DIRECTIONS.get(n, n)} {format_si(s, 's')}" for n, s in r.floors.items())
    parts = (
        name,
        f"{format_si(r.trial.seconds, 's')} per batch, {r.limit.kind}-bound",
        f"at least: {floors}",
        f"{format_share(r.limit.reached)} of the limit",
    )
    return "\n".join(parts)
