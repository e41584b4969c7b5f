"""`ridgeline history`: records over time, their steps, and the commit that changed them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ridgeline.cli.speak import Json, note, plain, print_json, status, stdout, tell
from ridgeline.errors import Exit, InputError, unknown
from ridgeline.web import si

if TYPE_CHECKING:
    from ridgeline.lab.judge import Series

COLOURS = {"STEADY": "green", "FASTER": "green", "SLOWER": "red", "DRIFTING": "yellow", "TOO FEW": "dim"}


def history(
    where: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder of recorded runs, searched through; or one file.")
    ],
    workload: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="How often a series without a step may seem to have one; else 0.01.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="A page with charts, .html.")] = None,
    as_json: Json = False,
) -> None:
    """Show how each case did over time, and what changed where it stepped.

    [dim]Examples:[/]

      ridgeline history benchmarks/records

      ridgeline history runs/ --workload embed -o history.html

    Exit 0, or 1 where files were left out (each is named).
    """
    from ridgeline.lab.judge import history as lab
    from ridgeline.lab.judge import steps
    from ridgeline.lab.record import gather
    from ridgeline.lab.report import history as history_page

    alpha = steps.ALPHA if alpha is None else alpha
    if not 1e-3 <= alpha <= 0.5:
        raise InputError(f"--alpha {alpha:g} is no rate of false alarms this can keep; give 0.001 to 0.5.")
    if out is not None and out.suffix != ".html":
        raise InputError(f"'{out}' is no page; end its name with .html.")
    with status("history") as say:
        say("reading")
        gathered = gather(where)
    if workload is not None and workload not in {r.workload for r in gathered.records}:
        raise unknown("record of workload", workload, dict.fromkeys(r.workload for r in gathered.records))
    with status("history") as say:
        say("looking for steps")
        found = lab.history((r for r in gathered.records if workload in (None, r.workload)), alpha)
    if not found:
        raise InputError(f"no record in '{where}' has a valid time of ours; ridgeline records ls shows why.")
    if out is not None:
        history_page.write(found, out, gathered.refused)
    for sentence in (*gathered.warnings, *(f"left out: {refusal}" for refusal in gathered.refused)):
        note(sentence)
    if as_json:
        told = {"machines": gathered.machines, "refused": list(gathered.refused), "page": str(out) if out else None}
        print_json({**told, "series": [s.to_json() for s in found]})
    else:
        _show(found)
        if out is not None:
            tell(f"Page: {out}")
    if gathered.refused:
        raise typer.Exit(Exit.FINDINGS)


def _show(found: list[Series]) -> None:
    from ridgeline.lab.report import sentences

    machines = dict.fromkeys(s.last.machine["fingerprint"] for s in found)
    if len(machines) > 1:
        tell(f"{len(machines)} kinds of machine; each is a group of its own, and none is compared with another.")
    for fingerprint in machines:
        own = [s for s in found if s.last.machine["fingerprint"] == fingerprint]
        machine = own[-1].last.machine
        names = escape(plain(" · ".join([machine["cpu"], *(g["name"] for g in machine["gpus"])])))
        table = Table(title=names, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
        for column in ("case", "records", "from", "to", "now", "word"):
            table.add_column(
                column, justify="right" if column in ("records", "now") else "left", no_wrap=column != "case"
            )
        for s in own:
            first, last = s.moments[0].record, s.moments[-1]
            case = escape(plain(f"{s.last.workload} {s.last.label}"))
            days = (escape(plain(r.time[:10])) for r in (first, last.record))
            now = si(last.judged.time.value / 1e9, "s") if last.judged.time else "–"
            since = f", last {s.recent.comparison}" if s.recent and s.recent.comparison else ""
            word = f"[{COLOURS[s.word]}]{s.word}[/]{since}"
            table.add_row(case, str(len(s.moments)), *days, now, word)
        stdout().print(table)
        for s in own:
            if s.steps or s.drift:
                tell(f"{s.last.workload} {s.last.label}:")
                for sentence in sentences(s):
                    tell(f"    {sentence}")
