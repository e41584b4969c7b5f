"""`ridgeline records`: list, show and export records, and analyse how they scale."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli import tables
from ridgeline.cli.output import Json, print_json, print_line, print_note, stderr, stdout
from ridgeline.cli.scaling import scaling
from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.lab.judge import analyse_record
from ridgeline.lab.race import create_output_folder
from ridgeline.lab.record import (
    Record,
    RecordFile,
    append_record,
    import_results,
    merge_records,
    read_records,
    record_to_json,
)
from ridgeline.store import publish

records = typer.Typer(no_args_is_help=True, help="List, show and export recorded runs; see how they scale.")
records.command("scaling")(scaling)
COLUMNS = ("record", "time", "workload", "case", "machine", "commit", "contender", "ok", "turn", "sample_ns")
File = Annotated[Path, typer.Argument(metavar="FILE", help="A .jsonl file, or a folder with records.jsonl.")]


@records.command("ls")
def ls(file: File, as_json: Json = False) -> None:
    """List the records of a file."""
    content = _read(file)
    if as_json:
        print_json({"torn": content.torn, "records": [_summarise(r) for r in content.records]})
    else:
        stdout().print(tables.build_record_list(content.records))


@records.command("show")
def show(
    file: File,
    which: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="The beginning of a record's id (default: the last record)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show one record: its races as a table, or raw as JSON."""
    content = _read(file)
    matches = [r for r in content.records if r.id.startswith(which or "")]
    if not matches:
        raise unknown("record", which or "", [r.id[:8] for r in content.records])
    if as_json:
        print_json(record_to_json(matches[-1]))
        return
    console = stdout()
    for part in tables.list_race_tables(matches[-1:], console.width):
        console.print(part)
    console.print(tables.build_record_facts(matches[-1]))


@records.command("export")
def export(
    file: File,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A .json, .csv or .parquet file (default: JSON to stdout).")
    ] = None,
) -> None:
    """Export complete records as JSON, or one row per sample as CSV or Parquet.

    [dim]Example:[/]  ridgeline records export runs/ -o samples.parquet
    """
    content = _read(file)
    if out is None:
        print_json([record_to_json(r) for r in content.records])
        return
    writers = {".json": _write_json, ".csv": _write_csv, ".parquet": _write_parquet}
    if out.suffix not in writers:
        raise InputError(f"cannot recognise the format of '{out}'; end it with .json, .csv or .parquet.")
    with publish(out) as temporary:
        writers[out.suffix](content.records, temporary)
    samples = sum(len(result.samples_ns) for r in content.records for result in r.contenders)
    print_line(f"{samples} samples → {out}", stderr())


@records.command("import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="JSON of Google Benchmark, nvbench or pytest-benchmark; target/criterion."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for records.jsonl.")],
) -> None:
    """Read the results of another benchmark tool as records, for compare, history and report.

    [dim]Example:[/]  ridgeline records import results.json -o runs/monday
    """
    if not file.exists():
        raise InputError(f"there is no '{file}'.")
    records = import_results(file)
    create_output_folder(out)
    for record in records:
        append_record(out, record)
    print_line(f"{len(records)} record{'s' * (len(records) != 1)} → {out}", stderr())


@records.command("merge")
def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="RECORDS…", help=".jsonl files, or folders with some.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for records.jsonl; it may hold some.")
    ],
) -> None:
    """Bring the records of several folders together, each once and unchanged.

    [dim]Example:[/]  ridgeline records merge theirs/ ours/ -o all/
    """
    total, new = merge_records(paths, out)
    print_line(f"{total} record{'s' * (total != 1)} in {out}, {new} of them new.", stderr())


def _read(file: Path) -> RecordFile:
    content = read_records(file)
    print_note(content.warning)
    return content


def _summarise(r: Record) -> dict[str, Any]:
    return {
        "id": r.id,
        "time": r.time,
        "workload": r.workload,
        "case": dict(r.case),
        "commit": r.code["commit"],
        "contenders": {row.result.contender: row.assessment.validity for row in analyse_record(r)},
    }


def _build_sample_columns(records: tuple[Record, ...]) -> dict[str, list[Any]]:
    """Return one row per sample, column by column; `ok` is false for samples of a wrong output."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for r in records:
        for result in r.contenders:
            n = len(result.samples_ns)
            ok = bool(result.check and result.check["ok"]) and result.failure is None
            facts = (r.id, r.time, r.workload, json.dumps(dict(r.case)), r.machine["fingerprint"], r.code["commit"])
            for name, value in zip(columns, (*facts, result.contender, ok), strict=False):
                columns[name] += [value] * n
            columns["turn"] += [i // result.samples_per_turn for i in range(n)]
            columns["sample_ns"] += list(result.samples_ns)
    return columns


def _write_json(records: tuple[Record, ...], path: Path) -> None:
    path.write_text(json.dumps([record_to_json(r) for r in records], indent=1))


def _write_csv(records: tuple[Record, ...], path: Path) -> None:
    columns = _build_sample_columns(records)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    path.write_text(text.getvalue())


def _write_parquet(records: tuple[Record, ...], path: Path) -> None:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtra("Parquet", "parquet") from None
    parquet.write_table(arrow.table(_build_sample_columns(records)), path)
