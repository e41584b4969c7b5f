"""`ridgeline campaign`: measure what is not measured yet and this machine can measure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ridgeline.cli.output import Json, Quiet, RemoteShell, print_json, print_line, print_note, stderr, stdout
from ridgeline.errors import Exit, InputError

if TYPE_CHECKING:
    from ridgeline.lab.campaign import CampaignStep, Facts

OUT = Path("ridgeline-campaign")
COLOURS = {"to do": "bold", "done": "green", "failed": "red", "not possible here": "dim"}


def campaign(
    steps: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STEP]…", help="Names of steps (default: all that are possible).", show_default=False),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for records, logs, report and archive.")
    ] = OUT,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the steps with their hours and dollars; run nothing.")
    ] = False,
    topology_file: Annotated[
        Path | None,
        typer.Option(
            "--topology", metavar="FILE", help="With --dry-run: the output of `machine --json` of another machine."
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="NAME=DIR", help="Data that may not be redistributed: movielens-25m=DIR."),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            metavar="A,B,…",
            help="Equal machines, this one first, for steps with several hosts; ridgeline has the same path on all.",
        ),
    ] = None,
    shell: RemoteShell = None,
    usd_per_hour: Annotated[
        float | None, typer.Option(help="Price of this machine (default: from the price book, see `ridgeline cost`).")
    ] = None,
    max_usd: Annotated[
        float | None, typer.Option(help="Leave out steps, the least valuable first, above this sum.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start without the question.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure what is not measured yet and this machine can measure: resumable, with an estimate beforehand.

    [dim]Examples:[/]

      ridgeline campaign --dry-run

      ridgeline campaign --data movielens-25m=ml-25m --max-usd 50

      ridgeline campaign nccl --out campaign/

      ridgeline campaign --hosts node1,node2,node3,node4

    Several GPUs, NUMA nodes, hosts, large data: in order of value. The same command continues a stopped campaign and
    repeats failed steps. It ends in one folder with records, a report and an archive that can be sent; `ridgeline
    records merge` takes the folder in. Exit 1 if a step failed.
    """
    from ridgeline.lab.campaign import find_facts, find_hourly_price, plan_campaign, read_facts, read_states
    from ridgeline.lab.judge import load_prices
    from ridgeline.machine import topology
    from ridgeline.workloads import load_campaign

    if topology_file is not None and not dry_run:
        raise InputError("--topology describes another machine; add --dry-run.")
    if usd_per_hour is not None and not usd_per_hour >= 0:
        raise InputError(f"--usd-per-hour {usd_per_hour:g} is no price.")
    folders = _parse_data(data or [])
    facts = read_facts(topology_file, folders) if topology_file else find_facts(topology(), folders)
    facts = _add_hosts(facts, hosts, shell)
    states = {} if topology_file else read_states(out)
    plan = plan_campaign(load_campaign(), facts, out=out.resolve(), done=states, only=steps or ())
    hourly, source = find_hourly_price(load_prices(), facts)
    if usd_per_hour is not None:
        hourly, source = usd_per_hour, "--usd-per-hour"
    if max_usd is not None:
        plan = _select_affordable(plan, hourly, max_usd, source)
    if dry_run:
        _show_plan(plan, hourly, source, as_json)
        return
    left = [step for step in plan if step.state in ("to do", "failed")]
    if not as_json:
        _show_plan(plan, hourly, source, False)
    interactive = stderr().is_terminal and not as_json
    if left and interactive and not yes and not typer.confirm("Start?", err=True):
        raise typer.Exit(Exit.OK)
    _run(plan, out.resolve(), hourly, as_json=as_json, quiet=quiet)


def _run(plan: Sequence[CampaignStep], out: Path, hourly: float | None, *, as_json: bool, quiet: bool) -> None:
    from ridgeline.lab.campaign import run_campaign
    from ridgeline.workloads import draw_pictures

    console = stderr()

    def start(step: CampaignStep) -> None:
        if not quiet:
            end = time.strftime("%H:%M", time.localtime(time.time() + step.minutes * 60))
            print_line(f"{step.name}: {step.why} (about {step.minutes:.0f} min, until {end})", console)

    def end(step: CampaignStep) -> None:
        if not quiet:
            print_line(f"{step.name}: {step.state}{': ' + step.reason if step.reason else ''}", console)

    try:
        result = run_campaign(plan, out, on_start=start, on_end=end, draw_pictures=draw_pictures)
    except KeyboardInterrupt:
        print_line(f"Stopped; what is measured stays in {out}, and the same command goes on from there.", console)
        raise
    if as_json:
        print_json(
            {
                "steps": [step.to_json(hourly) for step in result.steps],
                "records": result.records,
                "report": str(result.page) if result.page else None,
                "archive": str(result.archive),
            }
        )
    else:
        page = f"   report: {result.page}" if result.page else ""
        print_line(f"{result.records} records{page}   to send: {result.archive}")
    failed = [step for step in result.steps if step.state == "failed"]
    for step in failed:
        print_line(f"{step.name} failed: {step.reason}; its log: {out / 'steps' / step.name / 'log.txt'}", console)
    if failed:
        raise typer.Exit(Exit.FINDINGS)


def _show_plan(plan: Sequence[CampaignStep], hourly: float | None, source: str, as_json: bool) -> None:
    """Print the steps and the sum of what is left."""
    left = [step for step in plan if step.state in ("to do", "failed")]
    hours = sum(step.hours for step in left)
    usd = None if hourly is None else round(sum(step.compute_usd(hourly) for step in left), 2)
    if as_json:
        print_json(
            {
                "steps": [step.to_json(hourly) for step in plan],
                "hours": round(hours, 3),
                "usd": usd,
                "usd_per_hour": hourly,
                "price": source,
            }
        )
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, side in (("step", "left"), ("measures", "left"), ("min", "right"), ("USD", "right"), ("state", "left")):
        table.add_column(name, justify="right" if side == "right" else "left", no_wrap=name in ("step", "min", "USD"))
    for step in plan:
        dollars = "–" if hourly is None else f"{step.compute_usd(hourly):,.2f}"
        state = f"[{COLOURS[step.state]}]{escape(step.reason or step.state)}[/]"
        table.add_row(step.name, escape(step.why), f"{step.minutes:.0f}", dollars, state)
    stdout().print(table)
    price = f", {usd:,.2f} USD ({source})" if usd is not None else ""
    print_line(f"{len(left)} steps to do: about {hours:.1f} h{price}; a step is stopped after 3 times its estimate.")
    if usd is None:
        print_note(source)


def _select_affordable(
    plan: Sequence[CampaignStep], hourly: float | None, max_usd: float, source: str
) -> list[CampaignStep]:
    if hourly is None:
        raise InputError(f"--max-usd needs a price: {source}.")
    chosen, spent = [], 0.0
    for step in plan:
        cost = step.compute_usd(hourly) if step.state in ("to do", "failed") else 0.0
        if spent + cost <= max_usd:
            chosen.append(step)
            spent += cost
    return chosen


def _add_hosts(facts: Facts, hosts: str | None, shell: str | None) -> Facts:
    """Return the facts with the hosts of --hosts and the shell of --shell."""
    names = tuple(name.strip() for name in (hosts or "").split(",")) if hosts is not None else ()
    if hosts is not None and (not all(names) or len(set(names)) < len(names)):
        raise InputError(f"--hosts '{hosts}' names a host twice or not at all; write A,B,C.")
    if shell is not None and "{host}" not in shell:
        raise InputError(f"--shell '{shell}' has no {{host}}; write 'ssh {{host}} sh'.")
    return replace(facts, hosts=names, shell=shell or facts.shell)


def _parse_data(texts: Sequence[str]) -> dict[str, str]:
    folders = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        if not equals or not name or not folder:
            raise InputError(f"--data '{text}' is not of the form NAME=FOLDER.")
        folders[name] = str(Path(folder).expanduser().resolve())
    return folders
