"""`ridgeline bench`: race the workloads on this machine and write the report."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ridgeline import workloads
from ridgeline.cli import summary, tables
from ridgeline.cli.speak import Device, Json, Quiet, print_json, status, stderr, stdout, tell
from ridgeline.cli.watching import watcher
from ridgeline.errors import Exit, InputError, unknown
from ridgeline.lab import Profile
from ridgeline.lab.judge import analyse, standings
from ridgeline.lab.race import Ask, Entrant, Outcome, Plan, Point, copied, rival
from ridgeline.lab.race import bench as run_bench
from ridgeline.lab.record import FILE, Record
from ridgeline.lab.report import report
from ridgeline.machine import Placement
from ridgeline.workloads import pictures

OUT = Path("ridgeline-report")


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD]…",
            help="Names, or .py files of your own; all when left out.",
            show_default=False,
        ),
    ] = None,
    profile: Annotated[Profile, typer.Option(help="quick: minutes; full: the numbers one publishes.")] = Profile.QUICK,
    device: Device = "auto",
    case: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="K=V,…", help="A case of your own instead of the profile's."),
    ] = None,
    ranks: Annotated[int | None, typer.Option(help="Processes per contender.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="For all races and what prepares them: 90s, 5m, 1h. Else 4m (quick), 7.5m (full)."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where records.jsonl and report.html go.")] = OUT,
    node: Annotated[int | None, typer.Option(help="Stand on this NUMA node, CPUs and memory.")] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Drive the inputs out of the caches before every sample.")
    ] = False,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="A contender silent for this long is stopped.")] = "120s",
    against: Annotated[
        str | None, typer.Option(metavar="COMMIT", help="Race the working tree against this commit; peers stay out.")
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option("--python", metavar="PEER=PATH", help="Run a peer in an interpreter of its own."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Race workloads against their tuned peers; write records.jsonl and report.html.

    [dim]Examples:[/]

      ridgeline bench

      ridgeline bench copy matmul --profile full --device cuda

      ridgeline bench copy --case bytes=1048576 --json

      ridgeline bench spin --against HEAD~1

    Of one workload all cases are shown, of several one line each; records.jsonl and report.html hold the rest. What the
    time did not reach is said. A stopped run goes on where it was when started again. Exit 1 if anything of ours is
    WRONG or INCOMPLETE.
    """
    references = [_reference(n) for n in names or workloads.names()]
    ask = Ask(
        workloads=references,
        out=out,
        profile=profile,
        device=device,
        cases=case or (),
        ranks=ranks,
        budget_s=seconds(budget, "--budget") if budget else None,
        plan=Plan(
            placement=Placement(node=node, memory="bind" if node is not None else "local"),
            cold=cold,
            timeout_s=seconds(timeout, "--timeout"),
        ),
        rivals=_rivals(against),
        pythons=dict(_pair(p) for p in python or ()),
    )
    console = stderr()
    try:
        with (
            copied() if ask.rivals else nullcontext() as tree,
            watcher(console, live=console.is_terminal and not (quiet or as_json)) as watching,
        ):
            outcome = run_bench(replace(ask, tree=tree), watching)
    except KeyboardInterrupt:
        kept = out / FILE
        stays = f"what was measured stays in {kept}; the same command goes on from there" if kept.exists() else ""
        tell(f"Stopped; {stays or 'nothing was measured yet'}.", console)
        raise
    records = outcome.records
    page = report.write(records, out, pictures=pictures)
    bad = analyse.failed(records)
    if as_json:
        print_json(
            {
                "cases": [analyse.to_json(r) for r in records],
                "standings": [s.to_json() for s in standings(records)],
                "left_out": [{"workload": p.workload.name, "case": p.case.to_json()} for p in outcome.left_out],
                "report": str(page),
            }
        )
    else:
        _told(outcome, ask, page)
    for sentence in bad:
        console.print(sentence, style="red", markup=False, highlight=False)
    if bad:
        raise typer.Exit(Exit.FINDINGS)


def seconds(text: str, option: str) -> float:
    """A length of time as people write it.

    >>> seconds("5m", "--budget"), seconds("90", "--budget")
    (300.0, 90.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", text.strip())
    if not match or float(match[1]) == 0:
        raise InputError(f"{option} '{text}' is no length of time; write 90s, 5m or 1h.")
    return float(match[1]) * {"ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3600}[match[2]]


def _reference(name: str) -> str:
    if name.endswith(".py"):
        return name
    if name not in workloads.names():
        raise unknown("workload", name, workloads.names())
    return workloads.reference(name)


def _pair(text: str) -> tuple[str, str]:
    peer, equals, path = text.partition("=")
    if not equals:
        raise InputError(f"--python '{text}' is not of the form PEER=PATH.")
    if not Path(path).exists():
        raise InputError(f"--python {peer}: there is no interpreter at '{path}'.")
    return peer, path


def _told(outcome: Outcome, ask: Ask, page: Path) -> None:
    """One workload: every case and contender. Several: a line for each path, and what else must be known."""
    answer, records = stdout(), outcome.records
    found = standings(records)
    if len(found) == 1:
        for table in tables.races(records, answer.width):
            answer.print(table)
    elif not ask.rivals:
        answer.print(summary.summary(found, answer.width))
    if ask.rivals:
        for part in summary.against(records, [r.name for r in ask.rivals]):
            answer.print(part)
    else:
        for sentence in summary.asides(found, records):
            tell(sentence, answer)
    for sentence in left_out(outcome.left_out, records, ask):
        tell(sentence, answer)
    tell(f"Report: {page}   all cases: ridgeline records show {page.parent}", answer)


def left_out(points: Sequence[Point], records: Sequence[Record], ask: Ask) -> list[str]:
    """What the time did not reach, by workload, and how to have it."""
    if not points:
        return []
    counts = Counter(p.workload.name for p in points)
    whole = counts + Counter(r.workload for r in records)
    told = ", ".join(f"{name} {count} of {whole[name]}" for name, count in counts.items())
    minutes = math.ceil(ask.pace.total_s / 60)
    return [f"Cases left out for lack of time ({minutes} min): {told}. Name fewer workloads, or give more --budget."]


def _rivals(commit: str | None) -> list[Entrant]:
    if commit is None:
        return []
    with status("Building") as say:
        say(commit)
        return [rival(commit)]
