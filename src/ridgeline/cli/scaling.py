"""`ridgeline records scaling`: efficiency over workers, fitted laws, predictions marked as such."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ridgeline.cli.output import Json, print_json, print_line, print_note, stdout
from ridgeline.errors import InputError
from ridgeline.web import format_si

if TYPE_CHECKING:
    from ridgeline.lab.judge import Estimate, Scaling
    from ridgeline.lab.record import Record


def scaling(
    files: Annotated[list[Path], typer.Argument(metavar="RECORDS…", help=".jsonl files, or folders with one.")],
    over: Annotated[str, typer.Option(help="The parameter that counts workers.")] = "ranks",
    along: Annotated[str | None, typer.Option(help="A size that grows with it, in weak scaling.")] = None,
    at: Annotated[list[float] | None, typer.Option(help="Numbers of workers to predict; repeat it.")] = None,
    as_json: Json = False,
) -> None:
    """Show how recorded runs scale: speed-up, efficiency, Amdahl, Gustafson, USL.

    [dim]Examples:[/]

      ridgeline records scaling runs/

      ridgeline records scaling runs/ --over writers --at 64 --at 128 --json
    """
    from ridgeline.lab.judge import find_scalings
    from ridgeline.lab.record import read_records

    records: list[Record] = []
    for file in files:
        record_file = read_records(file)
        print_note(record_file.warning)
        records += record_file.records
    families = find_scalings(records, over, along)
    if not families:
        raise InputError(
            f"no case here was recorded with valid times at two or more values of '{over}'; "
            "record a sweep of it, or name another parameter by --over."
        )
    if as_json:
        print_json({"over": over, "families": [f.to_json(at or ()) for f in families]})
        return
    for family in families:
        stdout().print(_make_table(family, over))
        for line in _describe_laws(family, at or []):
            print_line(line)


def _make_table(family: Scaling, over: str) -> Table:
    title = f"{escape(family.name)} · {family.kind} scaling"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for column in (over, "time", "rate", "speed-up", "efficiency"):
        table.add_column(column, justify="right")
    for s in family.steps:
        cells = (f"{s.at.n:g}", format_si(s.at.seconds, "s"), format_si(s.at.rate, "items/s"), f"{s.speedup:.2f} ×")
        table.add_row(*cells, f"{s.efficiency:.1%}")
    return table


def _describe_laws(family: Scaling, at: list[float]) -> list[str]:
    sentences = [f"note: {note}." for note in family.notes]
    for name, law in family.laws.items():
        parameters = ", ".join(f"{k} {_format_estimate(v)}" for k, v in law.fit.values.items())
        error = f"; held-out error at n = {law.held_out_n:g}: {law.held_out:.1%}" if law.held_out is not None else ""
        peak = f"; slower beyond n = {law.fit.peak:.0f}" if law.fit.peak else ""
        sentences.append(f"{name}: {parameters}{peak}{error}")
        sentences += [f"  {doubt}" for doubt in law.doubts]
        for n in at:
            p = family.predict(name, n)
            word = "PREDICTED" if p.predicted else "by the law"
            rate = f"{format_si(p.rate.value, 'items/s')} [{format_si(p.rate.low, '')} to {format_si(p.rate.high, '')}]"
            sentences.append(f"  n = {n:g}: {p.speedup:.2f} × ({p.efficiency:.0%}), {rate}, {word}")
    return sentences


def _format_estimate(value: Estimate) -> str:
    return f"{value.value:.4g} [{value.low:.4g} to {'∞' if math.isinf(value.high) else format(value.high, '.4g')}]"
