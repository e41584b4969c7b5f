"""The tables of a trajectory study, in Markdown, from records: data types, batches, lengths, channels, kinds, GPUs,
roofline, the million, training.

    python benchmarks/trajectory_tables.py benchmarks/records/h200-trajectory.jsonl

All numbers come from the records: rate is batch ÷ time, GB/s is compulsory bytes ÷ time, the share is of the ceiling
measured on the same machine, a speed-up is a ratio of one race. A table with fewer than two rows is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tables import Cells, format_ratios, format_share, get_seconds, list_machines, list_rows, print_table

from ridgeline.lab.judge import Row
from ridgeline.lab.record import Record
from ridgeline.web import format_si

BASE = {"batch": 256, "stamps": 100, "targets": 50, "channels": 32, "kind": "linear", "clock": "uneven", "ranks": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path)
    for name, machine_records in list_machines(parser.parse_args().records):
        print(f"# {name}\n")
        for device in dict.fromkeys(r.case["device"] for r in machine_records):
            tables(device, [r for r in machine_records if r.case["device"] == device])


def tables(device: str, records: list[Record]) -> None:
    plain = [r for r in records if r.workload == "trajectory"]
    for size in sorted({r.case["batch"] for r in plain}):
        speeds(f"Data types, batch {size:,}, {device}", "dtype", choose_rows(plain, free=("dtype",), batch=size))
        for dtype in dict.fromkeys(r.case["dtype"] for r in plain):
            kinds = choose_rows(plain, free=("kind",), batch=size, dtype=dtype)
            speeds(f"Kinds, batch {size:,}, {dtype}, {device}", "kind", kinds)
    for dtype in dict.fromkeys(r.case["dtype"] for r in plain):
        speeds(f"Batch, {dtype}, {device}", "batch", choose_rows(plain, free=("batch",), dtype=dtype))
        lengths = choose_rows(plain, free=("stamps", "targets"), dtype=dtype)
        speeds(f"Length, {dtype}, {device}", "stamps", lengths)
        speeds(f"Channels, {dtype}, {device}", "channels", choose_rows(plain, free=("channels",), dtype=dtype))
        for size in sorted({r.case["batch"] for r in plain}):
            gpus(f"GPUs, batch {size:,} each, {dtype}", choose_rows(plain, free=("ranks",), dtype=dtype, batch=size))
    roofline(f"Roofline, {device}", [r for r in plain if r.work["flops"]])
    million(f"From host memory and back, {device}", [r for r in records if r.workload == "trajectory_million"])
    training(f"Training, {device}", [r for r in records if r.workload == "trajectory_training"])


def choose_rows(records: Iterable[Record], free: Sequence[str], **fixed: Any) -> list[Record]:
    """The records that differ from the base, as `fixed` changes it, in nothing but `free`."""
    fixed_params = {k: v for k, v in {**BASE, **fixed}.items() if k not in free}
    fit = [r for r in records if all(r.case.get(k) == v for k, v in fixed_params.items())]
    return sorted(fit, key=lambda r: [r.case[k] for k in free])


def speeds(title: str, name: str, records: list[Record]) -> None:
    def cells(record: Record, ours: Row, peers: list[Row]) -> Cells:
        value = record.case[name]
        parts = (
            f"{value} → {record.case['targets']}"
            if name == "stamps"
            else f"{value:,}"
            if value != str(value)
            else value
        )
        moved = record.work["bytes"]["memory"] / get_seconds(ours)
        return [
            parts,
            format_si(get_seconds(ours), "s"),
            f"{ours.items_per_s:,.0f}",
            f"{moved / 1e9:,.1f}",
            format_share(ours),
            format_ratios(peers),
        ]

    heads = [name, "time", "trajectories/s", "GB/s", "of ceiling", "their time ÷ ours"]
    write(title, heads, records, cells)


def gpus(title: str, records: list[Record]) -> None:
    alone = next((rate for r in records if r.case["ranks"] == 1 and (rate := list_rows(r)[0].items_per_s)), None)

    def cells(record: Record, ours: Row, peers: list[Row]) -> Cells:
        ranks, rate = record.case["ranks"], ours.items_per_s or 0
        gain = rate / alone if alone else float("nan")
        total = f"{record.work['items']:,}"
        return [
            str(ranks),
            total,
            format_si(get_seconds(ours), "s"),
            f"{rate:,.0f}",
            f"{gain:.2f} ×",
            f"{gain / ranks:.1%}",
        ]

    write(title, ["GPUs", "total batch", "time", "trajectories/s", "speed-up", "efficiency"], records, cells)


def roofline(title: str, records: list[Record]) -> None:
    def cells(record: Record, ours: Row, peers: list[Row]) -> Cells:
        intensity = record.work["flops"] / record.work["bytes"]["memory"]
        memory, compute = (record.ceilings.get(k, {}).get("rate") for k in ("memory", "compute"))
        ridge = f"{compute / memory:.1f}" if memory and compute else "–"
        bound = f"{format_si(intensity * memory, 'FLOP/s')}" if memory else "–"
        done = format_si(ours.flops_per_s or 0, "FLOP/s")
        return [record.label, f"{intensity:.3f}", ridge, bound, done, format_share(ours)]

    heads = ["case", "FLOP per byte", "ridge", "memory allows", "measured", "of ceiling"]
    write(title, heads, records, cells)


def million(title: str, records: list[Record]) -> None:
    """Every contender: what overlap gives is seen beside 'in turn'."""
    lines = []
    for record in records:
        for row in list_rows(record):
            if row.seconds:
                stage_text = " · ".join(f"{stage} {format_si(s, 's')}" for stage, s in row.stages.items())
                up, down = (record.work["bytes"].get(k, 0) / row.seconds / 1e9 for k in ("pcie", "pcie_back"))
                fill = f"{max(row.stages.values()) / row.seconds:.0%}" if row.stages else "–"
                rate = f"{row.items_per_s:,.0f}"
                links = f"{up:.1f} / {down:.1f}" if up else "–"
                label = f"{record.label}, {row.result.contender}"
                lines.append([label, format_si(row.seconds, "s"), rate, stage_text, links, fill, format_share(row)])
    heads = [
        "case, contender",
        "time",
        "trajectories/s",
        "stages",
        "GB/s up / back",
        "longest stage ÷ time",
        "of ceiling",
    ]
    print_table(title, heads, lines, least=1)


def training(title: str, records: list[Record]) -> None:
    lines = []
    for record in records:
        for row in list_rows(record):
            if row.seconds:
                train, wait = (row.stages.get(k, float("nan")) for k in ("train", "wait"))
                steps = record.work["items"]
                busy = f"{train / (train + wait):.1%}"
                label = f"{record.label}, {row.result.contender}"
                lines.append(
                    [label, f"{row.items_per_s:.1f}", format_si(train / steps, "s"), format_si(wait / steps, "s"), busy]
                )
    print_table(title, ["case, contender", "steps/s", "train per step", "wait per step", "busy"], lines, least=1)


def write(title: str, heads: Cells, records: list[Record], cells: Callable[[Record, Row, list[Row]], Cells]) -> None:
    rows = [(r, list_rows(r)) for r in records]
    print_table(
        title,
        heads,
        [cells(r, row_values[0], row_values[1:]) for r, row_values in rows if row_values and row_values[0].seconds],
    )


if __name__ == "__main__":
    main()
