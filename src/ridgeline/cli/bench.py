"""`ridgeline bench`: race the workloads on this machine and write the report."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from ridgeline import workloads
from ridgeline.cli import bench_own, summary, tables
from ridgeline.cli.bench_progress import BenchProgress, show_progress
from ridgeline.cli.output import Device, Json, Quiet, print_json, print_line, stderr, stdout
from ridgeline.errors import Exit, InputError, unknown
from ridgeline.lab import Profile, is_path
from ridgeline.store import publish

if TYPE_CHECKING:
    from ridgeline.lab.race import BenchRequest, BenchResult, Point
    from ridgeline.lab.record import Record

OUT = Path("ridgeline-report")
HTTP = "HTTP addresses (--http)"
COMMANDS = "Commands (after --, or --sh)"


class BenchCommand(typer.core.TyperCommand):
    """`ridgeline bench`: everything after the first -- is the command lines of a user, separated by --."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            start = args.index("--")
            args, rest = args[:start], args[start + 1 :]
            ctx.meta["commands"] = bench_own.split_commands(rest)
        return super().parse_args(ctx, args)


COMMAND_CLASS = BenchCommand


def bench(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD]…",
            help="Names of workloads, .py files, or folders of asv benchmarks (default: all).",
            show_default=False,
        ),
    ] = None,
    profile: Annotated[
        Profile, typer.Option(help="quick: minutes; full: the cases for published numbers.")
    ] = Profile.QUICK,
    device: Device = "auto",
    case: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="K=V,…", help="Measure this case instead of those of the profile."),
    ] = None,
    ranks: Annotated[int | None, typer.Option(help="Processes per contender.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time for all races and their preparation: 90s, 5m, 1h (default: 4m, full 7.5m; "
            "commands 20s, --http 30s). Building for --against is not part of it.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for records.jsonl and report.html.")] = OUT,
    node: Annotated[int | None, typer.Option(help="Bind CPUs and memory to this NUMA node.")] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Empty the caches before every sample.")] = False,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Stop a contender that gives no answer for this long.")
    ] = "120s",
    against: Annotated[
        str | None, typer.Option(metavar="COMMIT", help="Race the working tree against this commit, without peers.")
    ] = None,
    repo: Annotated[
        Path | None,
        typer.Option(
            "--repo",
            metavar="DIR",
            help="With --against: the repository whose commits race (default: that of the workload's file).",
        ),
    ] = None,
    build: Annotated[
        str | None,
        typer.Option(
            metavar="LINE",
            help="With --against: shell command that builds each version in its folder: 'pip install .'.",
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="With --against: write the verdicts for a merge request."),
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option("--python", metavar="PEER=PATH", help="Run a peer with another interpreter."),
    ] = None,
    shell: Annotated[
        list[str] | None,
        typer.Option("--sh", metavar="LINE", help="Race this line of the shell.", rich_help_panel=COMMANDS),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="Name of a contender, in order.", rich_help_panel=COMMANDS),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME=V,…",
            help="A case for each value; {NAME} stands for it in all commands.",
            rich_help_panel=COMMANDS,
        ),
    ] = None,
    setup: Annotated[
        str | None,
        typer.Option(metavar="LINE", help="Shell command before the first run of a case.", rich_help_panel=COMMANDS),
    ] = None,
    prepare: Annotated[
        str | None,
        typer.Option(metavar="LINE", help="Shell command before each run, not timed.", rich_help_panel=COMMANDS),
    ] = None,
    cleanup: Annotated[
        str | None,
        typer.Option(metavar="LINE", help="Shell command after the last run of a case.", rich_help_panel=COMMANDS),
    ] = None,
    warmup: Annotated[
        int, typer.Option(min=0, help="Runs of each command that do not count.", rich_help_panel=COMMANDS)
    ] = 1,
    same_output: Annotated[
        bool,
        typer.Option(
            "--same-output",
            help="A command that prints something else than the first one is WRONG.",
            rich_help_panel=COMMANDS,
        ),
    ] = False,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="LINE",
            help="Shell command that reads the output of a contender; exit code 0: it is right.",
            rich_help_panel=COMMANDS,
        ),
    ] = None,
    exit_code: Annotated[
        list[int] | None,
        typer.Option("--exit-code", help="Exit code that is right (default: 0).", rich_help_panel=COMMANDS),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Stop a contender with more memory: 500MB, 1GiB (default: 3/4 of what is available).",
            rich_help_panel=COMMANDS,
        ),
    ] = None,
    http: Annotated[
        bool, typer.Option("--http", help="Race the HTTP addresses that are named.", rich_help_panel=HTTP)
    ] = False,
    rate: Annotated[
        float, typer.Option(help="Requests per second to one address at a time.", rich_help_panel=HTTP)
    ] = 20.0,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", metavar="NAME: VALUE", help="Header of every request.", rich_help_panel=HTTP),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="BODY", help="Send this body with POST.", rich_help_panel=HTTP)
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            help="Smaller relative differences are SAME (default: 0.01; --http and your commits: 0.02).",
            rich_help_panel=COMMANDS,
        ),
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

      ridgeline bench my_workload.py --against HEAD~1

      ridgeline bench -- ./old --flag -- ./new --flag

      ridgeline bench --http http://localhost:8000/ http://localhost:8001/ --rate 100

      ridgeline bench --sh 'sort f{n}' --sh 'sort -S 1M f{n}' --param n=10,1000 --setup 'seq {n} > f{n}' --same-output

    With one workload it prints all cases, with several one line each; records.jsonl and report.html hold the rest. It
    names the cases that the time leaves out. The same command continues a stopped run. Exit 1 if a result of ours is
    WRONG or INCOMPLETE; of your own
    commands, if any of them is.
    """
    if http:
        bench_own.run_http(
            names or (),
            rate=rate,
            headers=header or (),
            body=data,
            labels=label or (),
            margin=margin,
            refused=[
                option
                for option, value in {"--case": case, "--against": against, "--sh": shell, "--param": param}.items()
                if value or ctx.meta.get("commands")
            ],
            out=out,
            budget_s=parse_seconds(budget, "--budget") if budget else None,
            timeout_s=min(30.0, parse_seconds(timeout, "--timeout")),
            as_json=as_json,
            quiet=quiet,
        )
        return
    own_options = bench_own.OwnOptions(
        commands=[*ctx.meta.get("commands", ()), *(["sh", "-c", line] for line in shell or ())],
        shell=len(shell or ()),
        names=label or (),
        params=param or (),
        setup=setup,
        prepare=prepare,
        cleanup=cleanup,
        warmup=warmup,
        same_output=same_output,
        check=check,
        exit_codes=tuple(exit_code or (0,)),
        memory=memory,
        margin=margin,
    )
    if own_options.used:
        refused = {"--case": case, "--ranks": ranks, "--against": against, "--python": python, "--cold": cold}
        bench_own.run_own(
            own_options,
            names=names or (),
            refused=[option for option, value in refused.items() if value],
            out=out,
            budget_s=parse_seconds(budget, "--budget") if budget else None,
            timeout_s=parse_seconds(timeout, "--timeout"),
            node=node,
            as_json=as_json,
            quiet=quiet,
        )
        return
    from ridgeline.lab.judge import MARGIN, analysis_to_json, list_failures, summarise_paths
    from ridgeline.lab.race import SUITE_MARGIN, BenchRequest, Plan, choose_repository, run_benchmark
    from ridgeline.lab.record import RECORDS_FILE
    from ridgeline.lab.report import write_report
    from ridgeline.machine import Placement
    from ridgeline.workloads import draw_pictures

    request = BenchRequest(
        workloads=[_find_workload(name) for name in names or workloads.list_workloads()],
        out=out,
        profile=profile,
        device=device,
        cases=case or (),
        ranks=ranks,
        budget_s=parse_seconds(budget, "--budget") if budget else None,
        plan=Plan(
            placement=Placement(node=node, memory="bind" if node is not None else "local"),
            cold=cold,
            timeout_s=parse_seconds(timeout, "--timeout"),
        ),
        build=build,
        pythons=dict(_parse_interpreter(p) for p in python or ()),
    )
    if margin is not None and against is None:
        raise InputError("--margin says which versions are the SAME; add --against COMMIT.")
    if markdown is not None and against is None:
        raise InputError("--markdown is for a race of two versions; add --against COMMIT.")
    if build is not None and against is None:
        raise InputError("--build says how to build two versions; add --against COMMIT.")
    if repo is not None and against is None:
        raise InputError("--repo says whose commits race; add --against COMMIT.")
    repository = choose_repository(request.workloads, repo) if against is not None else None
    if repo is not None:
        request = replace(request, repository=repository)
    if against is not None:
        usual = MARGIN if repository is None else SUITE_MARGIN
        request = replace(request, margin=bench_own.check_margin(margin, usual))
    if build is not None and against is not None and repository is None:
        raise InputError("--build is for your own repository; ridgeline builds its own native module itself.")
    console = stderr()
    live = console.is_terminal and not as_json
    build_s = 0.0  # not part of the budget
    try:
        with (
            show_progress(console, live=live, quiet=quiet) as progress,
            ExitStack() as stack,
        ):
            if against is not None:
                start = time.monotonic()
                request = _add_version(request, against, repository, stack, progress)
                build_s = time.monotonic() - start
            progress.total_s = request.limits.total_s
            result = run_benchmark(request, progress.hooks)
            progress.show_activity("writing the report")
            page = write_report(result.records, out, draw_pictures=draw_pictures)
    except KeyboardInterrupt:
        file = out / RECORDS_FILE
        state = f"the records stay in {file}; the same command goes on from there"
        print_line(f"Stopped; {state if file.exists() else 'nothing was measured yet'}.", console)
        raise
    records = result.records
    failures = list_failures(records)
    if as_json:
        print_json(
            {
                "cases": [analysis_to_json(r) for r in records],
                "standings": [path.to_json() for path in summarise_paths(records)],
                "left_out": [{"workload": p.workload.name, "case": p.case.to_json()} for p in result.left_out],
                "build_s": round(build_s, 1),
                "report": str(page),
            }
        )
    else:
        _print_result(result, request, page)
        if build_s >= 1:
            print_line(f"Building took {build_s:.0f} s besides the time of the races.", stdout())
    for sentence in failures:
        console.print(sentence, style="red", markup=False, highlight=False)
    if markdown is not None:
        with publish(markdown) as temporary:
            temporary.write_text(tables.format_version_markdown(records, _choose_version_exit(records)) + "\n")
    if request.versions and (code := _choose_version_exit(records)) is not Exit.OK:
        raise typer.Exit(code)
    if failures:
        raise typer.Exit(Exit.FINDINGS)


def _choose_version_exit(records: Sequence[Record]) -> Exit:
    """Return the worst case of the working tree against the commit: slower, then no valid time, then unclear."""
    from ridgeline.lab.judge import Comparison, analyse_record

    # The verdict is about the commit, relative to the working tree: a FASTER commit is a slower working tree.
    verdicts = {row.comparison for record in records for row in analyse_record(record) if not row.ours}
    if Comparison.FASTER in verdicts:
        return Exit.SLOWER
    if None in verdicts or not verdicts:
        return Exit.NOT_COMPARABLE
    return Exit.UNCLEAR if Comparison.UNCLEAR in verdicts else Exit.OK


def _add_version(
    request: BenchRequest, commit: str, repository: Path | None, stack: ExitStack, progress: BenchProgress
) -> BenchRequest:
    """Prepare both versions of the user's repository, or of ridgeline (None), and add the other one to the race."""
    from ridgeline.lab.race import add_packages, build_version, copy_working_tree, export_versions

    reports = (progress.show_activity, progress.show_message)
    if repository is None:
        version = build_version(commit, *reports)
        return replace(request, versions=[version], tree=stack.enter_context(copy_working_tree(*reports)))
    files = [name for name in request.workloads if is_path(name)]
    both = stack.enter_context(export_versions(repository, commit, files, *reports, build=request.build))
    add_packages(both.interpreter)
    return replace(
        request,
        versions=[both.version],
        checkout=both.working_tree,
        interpreter=both.interpreter,
        against=both.commit,
    )


def parse_seconds(text: str, option: str) -> float:
    """Parse a length of time; `option` names the option in the message.

    >>> parse_seconds("5m", "--budget"), parse_seconds("90", "--budget")
    (300.0, 90.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", text.strip())
    if not match or float(match[1]) == 0:
        raise InputError(f"{option} '{text}' is no length of time; write 90s, 5m or 1h.")
    return float(match[1]) * {"ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3600}[match[2]]


def describe_left_out(points: Sequence[Point], records: Sequence[Record], request: BenchRequest) -> list[str]:
    """Say which cases the time left out, by workload, and how to measure them; nothing if there are none."""
    if not points:
        return []
    counts = Counter(p.workload.name for p in points)
    totals = counts + Counter(r.workload for r in records)
    names = ", ".join(f"{name} {count} of {totals[name]}" for name, count in counts.items())
    minutes = math.ceil(request.limits.total_s / 60)
    return [f"Cases left out for lack of time ({minutes} min): {names}. Name fewer workloads, or give more --budget."]


def _find_workload(name: str) -> str:
    if name.endswith(".py"):
        return name
    if name not in workloads.list_workloads() and Path(name).is_dir():
        from ridgeline.lab.race import find_suite

        return str(find_suite(Path(name)).resolve())
    if name not in workloads.list_workloads() and (" " in name or shutil.which(name)):
        raise InputError(
            f"there is no workload '{name}'. To race commands, write: ridgeline bench -- {name}, with another -- "
            f"before each further one, or --sh '{name}' for a line of the shell."
        )
    if name not in workloads.list_workloads():
        raise unknown("workload", name, workloads.list_workloads())
    return workloads.get_reference(name)


def _parse_interpreter(text: str) -> tuple[str, str]:
    peer, equals, path = text.partition("=")
    if not equals:
        raise InputError(f"--python '{text}' is not of the form PEER=PATH.")
    if not Path(path).exists():
        raise InputError(f"--python {peer}: there is no interpreter at '{path}'.")
    return peer, path


def _print_result(result: BenchResult, request: BenchRequest, page: Path) -> None:
    """Print every case and contender of one workload, or a line per path of several, and notes."""
    from ridgeline.lab.judge import summarise_paths

    console, records = stdout(), result.records
    paths = summarise_paths(records)
    if len(paths) == 1:
        for table in tables.list_race_tables(records, console.width):
            console.print(table)
    elif not request.versions:
        console.print(summary.build_summary(paths, console.width))
    if request.versions:
        for part in summary.compare_with_versions(records, [spec.name for spec in request.versions]):
            console.print(part)
    else:
        for sentence in summary.list_notes(paths, records):
            print_line(sentence, console)
    if request.against:  # the tables are about the commit
        code = _choose_version_exit(records)
        words = tables.EXIT_WORDS.get(code, "a case has no valid time")
        print_line(f"The working tree against {request.against[:7]}: {words} (exit code {int(code)}).", console)
    for sentence in describe_left_out(result.left_out, records, request):
        print_line(sentence, console)
    print_line(f"Report: {page}   all cases: ridgeline records show {page.parent}", console)
