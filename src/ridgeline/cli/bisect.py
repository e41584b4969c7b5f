"""`ridgeline bisect`: find the commit that made a benchmark slower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.bench import parse_seconds
from ridgeline.cli.bench_own import check_margin
from ridgeline.cli.output import Json, Quiet, print_json, print_line, status, stderr
from ridgeline.errors import Exit, InputError


def bisect(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="Folder of asv benchmarks, or a workload's .py file.")],
    good: Annotated[str, typer.Option(metavar="COMMIT", help="A commit that was fast.")],
    bad: Annotated[str, typer.Option(metavar="COMMIT", help="A later commit that is slow.")] = "HEAD",
    build: Annotated[
        str | None, typer.Option(metavar="LINE", help="Shell command that builds each version: 'pip install .'.")
    ] = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for all races, without builds.")] = "10m",
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Stop a version that gives no answer for this long.")
    ] = "120s",
    repo: Annotated[
        Path | None, typer.Option("--repo", metavar="DIR", help="The repository (default: that of the suite).")
    ] = None,
    margin: Annotated[float | None, typer.Option(help="The least slowdown that counts (default: 0.02).")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the commit that made a benchmark slower, by races in a binary search.

    [dim]Example:[/]  ridgeline bisect benchmarks --good v1.0 --bad HEAD --build 'pip install .'

    Exit 0: found; 4: the likeliest commit, because a step was not certain; 5: the bad commit is not slower.
    """
    from ridgeline.lab.race import SUITE_MARGIN, find_slow_commit, find_suite

    path = Path(suite)
    if not path.exists():
        raise InputError(f"there is no '{suite}'; name a folder of benchmarks or a workload's .py file.")
    reference = str(find_suite(path).resolve() if path.is_dir() else path.resolve())
    with status("Bisecting") as show:
        result = find_slow_commit(
            reference,
            good,
            bad,
            build=build,
            budget_s=parse_seconds(budget, "--budget"),
            timeout_s=parse_seconds(timeout, "--timeout"),
            repository=repo,
            margin=check_margin(margin, SUITE_MARGIN),
            on_activity=show,
            on_message=(lambda _: None) if quiet else lambda sentence: print_line(sentence, stderr()),
        )
    if as_json:
        print_json(result.to_json())
    else:
        ratio = result.ratio
        print_line(f"{result.commit[:12]}  {result.subject}")
        words = "found" if result.certain else "the likeliest"
        print_line(
            f"{words} of {result.commits} commits in {len(result.steps)} races; "
            f"{result.case.label}: {ratio.value:.3f} times the time ({ratio.low:.3f} to {ratio.high:.3f})."
        )
    if not result.certain:
        raise typer.Exit(Exit.UNCLEAR)
