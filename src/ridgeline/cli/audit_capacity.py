"""`ridgeline audit capacity`: what a rate of events means for a watcher of known speed."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from ridgeline.cli.speak import Json, print_json, stdout
from ridgeline.errors import InputError


def register(app: typer.Typer) -> None:
    app.command("capacity")(capacity)


def capacity(
    speed: Annotated[float, typer.Argument(metavar="EVENTS/S", help="What `ridgeline bench audit` measured here.")],
    rate: Annotated[
        list[float] | None, typer.Option(metavar="N", help="Events per hour; else four usual ones.")
    ] = None,
    as_json: Json = False,
) -> None:
    """How busy a watcher will be, how long events wait for their turn (beyond the batch window), what backlog grows."""
    from rich.table import Table

    from ridgeline.audit.watch import HOUR, RATES, forecast
    from ridgeline.web import si

    if any(not 0 <= given < math.inf for given in rate or ()):
        raise InputError("--rate is a number of events per hour, 0 or more.")
    if speed == math.inf:
        raise InputError("the speed is a number of events per second; give what was measured.")
    found = forecast(speed, {f"{n:,g} per hour": n / HOUR for n in rate} if rate else RATES)
    if as_json:
        print_json([vars(f) for f in found])
        return
    table = Table(box=None, pad_edge=False)
    for title in ("rate", "busy", "wait for its turn", "backlog after an hour"):
        table.add_column(title, justify="left" if title == "rate" else "right")
    for f in found:
        wait = "grows" if f.wait_s is None else si(f.wait_s, "s")
        table.add_row(f.what, f"{f.utilisation:.3%}", wait, f"{f.backlog_per_hour:,.0f}")
    stdout().print(table)
