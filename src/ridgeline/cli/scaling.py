"""`ridgeline records scaling`: efficiency over workers, fitted laws, predictions marked as such."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ridgeline.cli.speak import Json, note, print_json, stdout, tell
from ridgeline.errors import InputError
from ridgeline.lab.judge import Estimate
from ridgeline.lab.record import record
from ridgeline.web import si

if TYPE_CHECKING:
    from ridgeline.lab.judge import Scaling


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
    from ridgeline.lab.judge import scaling as lab

    records: list[record.Record] = []
    for file in files:
        found = record.read(file)
        note(found.warning)
        records += found.records
    families = lab.of_records(records, over, along)
    if not families:
        raise InputError(
            f"no case here was recorded with valid times at two or more values of '{over}'; "
            "record a sweep of it, or name another parameter by --over."
        )
    if as_json:
        print_json({"over": over, "families": [f.to_json(at or ()) for f in families]})
        return
    for family in families:
        stdout().print(_measured(family, over))
        for line in _laws(family, at or []):
            tell(line)


def _measured(family: Scaling, over: str) -> Table:
    title = f"{escape(family.name)} · {family.kind} scaling"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for column in (over, "time", "rate", "speed-up", "efficiency"):
        table.add_column(column, justify="right")
    for s in family.steps:
        cells = (f"{s.at.n:g}", si(s.at.seconds, "s"), si(s.at.rate, "items/s"), f"{s.speedup:.2f} ×")
        table.add_row(*cells, f"{s.efficiency:.1%}")
    return table


def _laws(family: Scaling, at: list[float]) -> list[str]:
    out = [f"note: {sentence}." for sentence in family.notes]
    for name, law in family.laws.items():
        told = ", ".join(f"{k} {_told(v)}" for k, v in law.fit.values.items())
        held = f"; held-out error at n = {law.held_out_n:g}: {law.held_out:.1%}" if law.held_out is not None else ""
        peak = f"; slower beyond n = {law.fit.peak:.0f}" if law.fit.peak else ""
        out.append(f"{name}: {told}{peak}{held}")
        out += [f"  {doubt}" for doubt in law.doubts]
        for n in at:
            p = family.predict(name, n)
            word = "PREDICTED" if p.predicted else "by the law"
            rate = f"{si(p.rate.value, 'items/s')} [{si(p.rate.low, '')} to {si(p.rate.high, '')}]"
            out.append(f"  n = {n:g}: {p.speedup:.2f} × ({p.efficiency:.0%}), {rate}, {word}")
    return out


def _told(value: Estimate) -> str:
    return f"{value.value:.4g} [{value.low:.4g} to {'∞' if math.isinf(value.high) else format(value.high, '.4g')}]"
