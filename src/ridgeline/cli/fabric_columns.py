"""`ridgeline fabric columns`: recorded collectives in the columns of nccl-tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from ridgeline.cli.output import Json, print_json, print_note, stdout
from ridgeline.errors import InputError

COLLECTIVES = {"allreduce": "all_reduce", "allgather": "all_gather", "broadcast": "broadcast", "p2p": "p2p"}


def columns(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .jsonl file, or a folder that holds records.jsonl.")],
    as_json: Json = False,
) -> None:
    """Show recorded collectives as nccl-tests does: size, count, type, time, algbw and busbw in GB/s, #wrong; and
    what they cost: busy cores of all ranks, context switches per call.

    [dim]Example:[/]

      ridgeline bench allreduce --ranks 2 --out runs && ridgeline fabric columns runs
    """
    from ridgeline.lab.judge import analyse_record
    from ridgeline.lab.record import read_records

    collection = read_records(file)
    print_note(collection.warning)
    rows = [
        _make_row(result)
        for record in collection.records
        if record.workload in COLLECTIVES
        for result in analyse_record(record)
    ]
    if not rows:
        raise InputError(
            f"'{file}' holds no collectives; ridgeline bench {' '.join(COLLECTIVES)} --out DIR makes some."
        )
    if as_json:
        print_json(rows)
        return
    for name, ranks in dict.fromkeys((row["workload"], row["ranks"]) for row in rows):
        note = ", including the filling of its input" if name == "allreduce" else ""
        table = Table(title=f"measured: {name}, {ranks} ranks{note}", box=box.SIMPLE)
        visible = [column for column in rows[0] if column not in ("workload", "ranks")]
        for column in visible:
            table.add_column(column, justify="left" if column in ("contender", "type") else "right", no_wrap=True)
        for row in rows:
            if (row["workload"], row["ranks"]) == (name, ranks):
                table.add_row(*(_format_cell(row[column]) for column in visible))
        stdout().print(table)


def _make_row(row: Any) -> dict[str, Any]:
    """One contender of one record; busbw is algbw times the factor of its collective."""
    from ridgeline.fabric import bus_factor

    case, lane, seconds = row.record.case, row.result, row.seconds
    op, ranks, size = COLLECTIVES[row.record.workload], case["ranks"], case["bytes"]
    extras, check = lane.extras, lane.check or {}
    algbw = size / seconds / 1e9 if seconds else None
    spent = sum(lane.samples_ns) * lane.calls_per_sample + sum(lane.turn_overhead_ns)
    calls = len(lane.samples_ns) * lane.calls_per_sample
    cpu = extras.get("cpu_user_ns", 0) + extras.get("cpu_system_ns", 0)
    switches = extras.get("context_switches_voluntary", 0) + extras.get("context_switches_involuntary", 0)
    return {
        "workload": row.record.workload,
        "contender": lane.contender,
        "ranks": ranks,
        "size": size,
        "count": max(1, size // 4 // (ranks if op == "all_gather" else 1)),
        "type": case.get("dtype", "float32"),
        "time µs": seconds * 1e6 if seconds else None,
        "algbw": algbw,
        "busbw": algbw * bus_factor(op, ranks) if algbw is not None else None,
        "#wrong": int(check["error"]) if "error" in check else None,
        "cores": cpu / spent if spent else None,
        "switches": switches / calls if calls else None,
    }


def _format_cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
