"""`ridgeline history`: show records over time, their steps, and the commits that caused them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ridgeline.cli.bench import parse_seconds
from ridgeline.cli.bench_own import check_margin
from ridgeline.cli.output import (
    Json,
    Quiet,
    escape_control,
    print_json,
    print_line,
    print_note,
    status,
    stderr,
    stdout,
)
from ridgeline.errors import Exit, InputError, unknown
from ridgeline.web import format_si

if TYPE_CHECKING:
    from ridgeline.lab.judge import Series

COLOURS = {"STEADY": "green", "FASTER": "green", "SLOWER": "red", "DRIFTING": "yellow", "TOO FEW": "dim"}


def history(
    where: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A folder that contains recorded runs at any depth, or one file; with --commits a suite.",
        ),
    ],
    workload: Annotated[str | None, typer.Option(help="Show this workload only.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Probability of a false step per series (default: 0.01).")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write a page with charts, .html.")
    ] = None,
    commits: Annotated[
        str | None,
        typer.Option(
            "--commits",
            metavar="A..B",
            help="Measure commits of your repository now: DIR is a folder of asv benchmarks or a workload's .py file.",
        ),
    ] = None,
    points: Annotated[int, typer.Option(help="With --commits: how many commits to measure.")] = 9,
    build: Annotated[
        str | None, typer.Option(metavar="LINE", help="With --commits: shell command that builds each version.")
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="With --commits: time for all races.")] = "15m",
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="With --commits: stop a version that gives no answer for this long.")
    ] = "120s",
    repo: Annotated[Path | None, typer.Option("--repo", metavar="DIR", help="With --commits: the repository.")] = None,
    margin: Annotated[
        float | None, typer.Option(help="With --commits: the least change that counts (default: 0.02).")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show each case over time, its steps, and what changed at each step.

    [dim]Examples:[/]

      ridgeline history benchmarks/records

      ridgeline history runs/ --workload embed -o history.html

      ridgeline history benchmarks --commits v1.0..HEAD --build 'pip install .' -o history.html

    With --commits a sample of the commits is built and raced against the first one, and each step is searched down to
    its commit. Exit 0, or 1 if files were left out (each is named).
    """
    from ridgeline.lab.judge import ALPHA, build_history
    from ridgeline.lab.record import gather_records
    from ridgeline.lab.report import write_history

    if out is not None and out.suffix != ".html":
        raise InputError(f"'{out}' is no page; end its name with .html.")
    if commits is not None:
        if workload is not None or alpha is not None:
            raise InputError("--workload and --alpha are for recorded runs; use them without --commits.")
        _measure_commits(
            where,
            commits,
            points=points,
            build=build,
            budget_s=parse_seconds(budget, "--budget"),
            timeout_s=parse_seconds(timeout, "--timeout"),
            repository=repo,
            margin=margin,
            out=out,
            as_json=as_json,
            quiet=quiet,
        )
        return
    if build is not None or repo is not None or margin is not None:
        raise InputError("--build, --repo and --margin are for a range of commits; add --commits A..B.")
    alpha = ALPHA if alpha is None else alpha
    if not 1e-3 <= alpha <= 0.5:
        raise InputError(f"--alpha {alpha:g} is not a rate of false alarms from 0.001 to 0.5.")
    with status("history") as show_activity:
        show_activity("reading")
        folder = gather_records(where)
    if workload is not None and workload not in {r.workload for r in folder.records}:
        raise unknown("record of workload", workload, dict.fromkeys(r.workload for r in folder.records))
    with status("history") as show_activity:
        show_activity("looking for steps")
        series = build_history((r for r in folder.records if workload in (None, r.workload)), alpha)
    if not series:
        raise InputError(f"no record in '{where}' has a valid time of ours; ridgeline records ls shows why.")
    if out is not None:
        write_history(series, out, folder.refused)
    for sentence in (*folder.warnings, *(f"left out: {refusal}" for refusal in folder.refused)):
        print_note(sentence)
    if as_json:
        print_json(
            {
                "machines": folder.machines,
                "refused": list(folder.refused),
                "page": str(out) if out else None,
                "series": [s.to_json() for s in series],
            }
        )
    else:
        _print_series(series)
        if out is not None:
            print_line(f"Page: {out}")
    if folder.refused:
        raise typer.Exit(Exit.FINDINGS)


def _measure_commits(
    where: Path,
    commits: str,
    *,
    points: int,
    build: str | None,
    budget_s: float,
    timeout_s: float,
    repository: Path | None,
    margin: float | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure a range of commits; print each case with its steps, or JSON; write the page."""
    from ridgeline.lab.race import SUITE_MARGIN, find_suite, measure_history
    from ridgeline.lab.report import describe_commit_steps, write_commit_history

    first, dots, last = commits.partition("..")
    if not dots or not first or last.startswith("."):
        raise InputError(f"--commits '{commits}' is not of the form A..B; write v1.0..HEAD.")
    if not where.exists():
        raise InputError(f"there is no '{where}'; name a folder of benchmarks or a workload's .py file.")
    reference = str(find_suite(where).resolve() if where.is_dir() else where.resolve())
    with status("history") as show_activity:
        history = measure_history(
            reference,
            first,
            last or "HEAD",
            points=points,
            build=build,
            budget_s=budget_s,
            repository=repository,
            timeout_s=timeout_s,
            margin=check_margin(margin, SUITE_MARGIN),
            on_activity=show_activity,
            on_message=(lambda _: None) if quiet else lambda sentence: print_line(sentence, stderr()),
        )
    page = write_commit_history(history, out) if out is not None else None
    if as_json:
        print_json({**history.to_json(), "page": str(page) if page else None})
        return
    for one in history.cases:
        table = Table(title=escape(one.case.label), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
        for name, side in (("commit", "left"), ("time ÷ first", "right"), ("interval", "right"), ("subject", "left")):
            table.add_column(name, justify="right" if side == "right" else "left")
        for point in one.points:
            ratio = point.ratio
            interval = f"{ratio.low:.3f} to {ratio.high:.3f}" if ratio.n else ""
            subject = escape(escape_control(point.subject))
            table.add_row(point.commit[:12], f"{ratio.value:.3f}", interval, subject)
        stdout().print(table)
        for sentence in describe_commit_steps(one):
            print_line(f"  {sentence}")
    if page:
        print_line(f"Page: {page}")


def _print_series(series: list[Series]) -> None:
    from ridgeline.lab.report import describe_series

    machines = dict.fromkeys(s.last.machine["fingerprint"] for s in series)
    if len(machines) > 1:
        print_line(f"{len(machines)} kinds of machine; each is its own group, and no group compares two.")
    for fingerprint in machines:
        machine_series = [s for s in series if s.last.machine["fingerprint"] == fingerprint]
        machine = machine_series[-1].last.machine
        names = escape(escape_control(" · ".join([machine["cpu"], *(g["name"] for g in machine["gpus"])])))
        table = Table(title=names, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
        for column in ("case", "records", "from", "to", "now", "verdict"):
            table.add_column(
                column, justify="right" if column in ("records", "now") else "left", no_wrap=column != "case"
            )
        for s in machine_series:
            first, last = s.moments[0].record, s.moments[-1]
            case = escape(escape_control(f"{s.last.workload} {s.last.label}"))
            days = (escape(escape_control(r.time[:10])) for r in (first, last.record))
            now = format_si(last.assessment.time.value / 1e9, "s") if last.assessment.time else "–"
            since = f", last {s.recent.comparison}" if s.recent and s.recent.comparison else ""
            verdict = f"[{COLOURS[s.verdict]}]{s.verdict}[/]{since}"
            table.add_row(case, str(len(s.moments)), *days, now, verdict)
        stdout().print(table)
        for s in machine_series:
            if s.steps or s.drift:
                print_line(f"{s.last.workload} {s.last.label}:")
                for sentence in describe_series(s):
                    print_line(f"    {sentence}")
