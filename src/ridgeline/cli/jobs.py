"""`ridgeline jobs`: bulk jobs of this user."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from ridgeline.cli.bulk import finish, show_rows
from ridgeline.cli.output import Json, Quiet, print_json, print_line, stdout

jobs = typer.Typer(no_args_is_help=True, help="Bulk jobs of this user: list, show, resume and clean.")

JobName = Annotated[str, typer.Argument(metavar="JOB", help="The id of a job (ridgeline jobs ls).")]


@jobs.command("ls")
def ls(as_json: Json = False) -> None:
    """List the jobs of this user: running, stopped, done, missing (no target) or unknown (it cannot be read)."""
    from ridgeline.bulk import list_jobs

    listed = list_jobs()
    if as_json:
        print_json([asdict(job) for job in listed])
        return
    if not listed:
        print_line("there are no jobs; ridgeline bulk embed starts one.")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("job", "state", "chunks", "target"):
        table.add_column(name, overflow="fold")
    for job in listed:
        table.add_row(job.job, job.state, f"{'?' if job.done is None else job.done}/{job.chunks}", escape(job.target))
    stdout().print(table)


@jobs.command("show")
def show(job: JobName, as_json: Json = False) -> None:
    """Show one job: its target, its chunks, and the process that works on it."""
    from ridgeline.bulk import describe_run, show_job

    info = show_job(job)
    if as_json:
        print_json(asdict(info))
        return
    for name, value in asdict(info).items():
        if value is not None and name != "runs":
            print_line(f"{name:8} {value}")
    for number, run in enumerate(info.runs, 1):
        print_line(f"run {number:<4} {describe_run(run)}")


@jobs.command("resume")
def resume(job: JobName, as_json: Json = False, quiet: Quiet = False) -> None:
    """Resume a stopped job with the options that it was started with."""
    from ridgeline import bulk

    with show_rows(quiet) as report:
        answer = bulk.resume(job, report=report)
    finish(answer, as_json, quiet)


@jobs.command("clean")
def clean(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="The id of a job (default: all that are done or missing).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Forget jobs; finished targets stay as they are.

    A stopped job that is named loses what it has done: its target becomes empty.
    """
    from ridgeline.bulk import clean as clean_jobs

    removed = clean_jobs(job)
    if as_json:
        print_json({"removed": removed})
    else:
        print_line(f"forgotten: {', '.join(removed) or 'nothing'}")
