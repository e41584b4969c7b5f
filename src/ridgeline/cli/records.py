"""`ridgeline records`: look into record files and take their raw samples elsewhere."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli import tables
from ridgeline.cli.scaling import scaling
from ridgeline.cli.speak import Json, note, print_json, stderr, stdout, tell
from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.lab.judge import analyse
from ridgeline.lab.record import Record, Records, record
from ridgeline.store import publish

records = typer.Typer(no_args_is_help=True, help="List, show and export recorded runs; see how they scale.")
records.command("scaling")(scaling)
COLUMNS = ("record", "time", "workload", "case", "machine", "commit", "contender", "ok", "turn", "sample_ns")
File = Annotated[Path, typer.Argument(metavar="FILE", help="A .jsonl file, or a folder that holds records.jsonl.")]


@records.command("ls")
def ls(file: File, as_json: Json = False) -> None:
    """List the records of a file."""
    found = _read(file)
    if as_json:
        print_json({"torn": found.torn, "records": [_line(r) for r in found.records]})
    else:
        stdout().print(tables.listing(found.records))


@records.command("show")
def show(
    file: File,
    which: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="The beginning of a record's id; the last one if left out."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show one record: its races as a table, or raw as JSON."""
    found = _read(file)
    chosen = [r for r in found.records if r.id.startswith(which or "")]
    if not chosen:
        raise unknown("record", which or "", [r.id[:8] for r in found.records])
    if as_json:
        print_json(record.to_json(chosen[-1]))
        return
    answer = stdout()
    for part in tables.races(chosen[-1:], answer.width):
        answer.print(part)
    answer.print(tables.facts(chosen[-1]))


@records.command("export")
def export(
    file: File,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help=".json, .csv or .parquet; JSON to stdout if left out.")
    ] = None,
) -> None:
    """Export: JSON (whole records), CSV or Parquet (one row per sample).

    [dim]Example:[/]  ridgeline records export runs/ -o samples.parquet
    """
    found = _read(file)
    if out is None:
        print_json([record.to_json(r) for r in found.records])
        return
    writers = {".json": _json, ".csv": _csv, ".parquet": _parquet}
    if out.suffix not in writers:
        raise InputError(f"cannot tell the format of '{out}'; end it with .json, .csv or .parquet.")
    with publish(out) as temporary:
        writers[out.suffix](found.records, temporary)
    samples = sum(len(lane.samples_ns) for r in found.records for lane in r.contenders)
    tell(f"{samples} samples → {out}", stderr())


def _read(file: Path) -> Records:
    found = record.read(file)
    note(found.warning)
    return found


def _line(r: Record) -> dict[str, Any]:
    return {
        "id": r.id,
        "time": r.time,
        "workload": r.workload,
        "case": dict(r.case),
        "commit": r.code["commit"],
        "contenders": {row.lane.contender: row.judged.validity for row in analyse.rows(r)},
    }


def _samples(found: tuple[Record, ...]) -> dict[str, list[Any]]:
    """Long form: one row per sample. Samples of a wrong output are marked by `ok`."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for r in found:
        for lane in r.contenders:
            n = len(lane.samples_ns)
            ok = bool(lane.check and lane.check["ok"]) and lane.failure is None
            about = (r.id, r.time, r.workload, json.dumps(dict(r.case)), r.machine["fingerprint"], r.code["commit"])
            for name, value in zip(columns, (*about, lane.contender, ok), strict=False):
                columns[name] += [value] * n
            columns["turn"] += [i // lane.samples_per_turn for i in range(n)]
            columns["sample_ns"] += list(lane.samples_ns)
    return columns


def _json(found: tuple[Record, ...], path: Path) -> None:
    path.write_text(json.dumps([record.to_json(r) for r in found], indent=1))


def _csv(found: tuple[Record, ...], path: Path) -> None:
    columns = _samples(found)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    path.write_text(text.getvalue())


def _parquet(found: tuple[Record, ...], path: Path) -> None:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtra("Parquet", "parquet") from None
    parquet.write_table(arrow.table(_samples(found)), path)
