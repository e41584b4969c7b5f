"""`ridgeline run`: run an experiment from Hydra overrides, point by point, into outputs/."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ridgeline.cli.output import Json, Quiet, print_json, print_line, stderr, stdout
from ridgeline.cli.progress import format_left
from ridgeline.errors import Exit
from ridgeline.lab.experiment import Point, ProgressHooks, list_warnings, parse_arguments
from ridgeline.machine import Topology, topology
from ridgeline.web import format_si

if TYPE_CHECKING:
    from ridgeline.workloads import ExperimentPlan

MAX_ROWS = 40  # of a table
MAX_WARNINGS = 5  # sentences about runs whose times should not be quoted


def run(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[experiment=NAME] [KEY=VALUE]…", help="Hydra overrides.", show_default=False),
    ] = None,
    multirun: Annotated[
        bool,
        typer.Option(
            "--multirun", "-m", help="No effect, accepted as in Hydra: a comma list always gives several runs."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the points and the time they may take.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment: a model's pipeline on every GPU, from every NUMA node.

    [dim]Examples:[/]

      ridgeline run experiment=quick_test

      ridgeline run experiment=numa_study experiment.hardware.gpu_ids=[0,3] --dry-run

      ridgeline run experiment=scaling_study 'experiment.vit_configs[0].depth=2,4,8,16'

      ridgeline run experiment=transfer_study experiment.test.batch_size=8,4 \\
          'experiment.test.tensor_shape=[3,224,224],[3,384,384]' zip=\\[batch_size,tensor_shape]

      ridgeline run experiment=numa_study hydra/launcher=submitit_slurm

    Experiments: quick_test, numa_study, scaling_study, crossover_study, transfer_study, compile_study,
    stability_study; with --config-dir DIR also your own. Results go to outputs/NAME-TIME/. A stopped run continues
    when you start it again. --cfg job shows the configuration. Exit 1 if a point failed.
    """
    from ridgeline.workloads import execute_plan, plan_experiment, show_experiment_config

    arguments = parse_arguments(overrides or [])
    if arguments.shows_config:
        show_experiment_config(arguments)
        return
    machine = topology()
    plan = plan_experiment(arguments, machine)
    if dry_run:
        _print_plan(plan, machine, as_json)
        return
    with _show_progress(quiet or as_json) as hooks:
        try:
            result = execute_plan(plan, machine, hooks)
        except KeyboardInterrupt:
            print_line(
                "Stopped; outputs/ keeps what was measured, and the same command continues from there.", stderr()
            )
            raise
    failures = [row for row in result.rows if not row["success"]]
    if as_json:
        print_json({"folder": str(result.folder.path), "failed": len(failures), "results": result.rows})
    else:
        if len(failures) < len(result.rows):
            stdout().print(_make_result_table(result.rows, result.labels))
            _print_warnings(result.rows, result.labels)
        for row in failures:
            print_line(f"{row['run_id']} failed: {row['error']}")
        print_line(f"Report: {result.folder.path / 'report.html'}")
    for error in result.errors:
        print_line(f"a job failed: {error}", stderr())
    if failures or result.errors:
        raise typer.Exit(Exit.FINDINGS)


def _print_plan(plan: ExperimentPlan, machine: Topology, as_json: bool) -> None:
    from ridgeline.workloads import estimate_plan, explain_unavailable

    estimate = estimate_plan(plan, machine)
    estimates = estimate.seconds
    reasons = [explain_unavailable(point, machine) for point in plan.points]
    if as_json:
        points = [
            {"run_id": p.run_id, **p.params, "device": p.device, "gpu_id": p.gpu, "gpu_ids": p.gpus,
             "numa_node": p.node, "cpu_node": p.cpu_node, "flops": p.work.flops,
             "estimate_s": round(seconds, 1), "absent": reason}
            for p, seconds, reason in zip(plan.points, estimates, reasons, strict=True)
        ]  # fmt: skip
        print_json(
            {
                "points": points,
                "estimate_s": round(estimate.total_s, 1),
                "estimate_from": estimate.basis,
                "notes": estimate.notes,
            }
        )
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("point", "place", "batch", "image", "dtype", "GFLOP"):
        table.add_column(name, justify="left" if name in ("point", "place", "dtype") else "right")
    table.add_column("about", justify="right")
    for point, seconds, reason in list(zip(plan.points, estimates, reasons, strict=True))[:MAX_ROWS]:
        p = point.params
        shape = f"{p['channels']}×{p['image_size']}×{p['image_width']}"
        placement = f"[red]{point.placement}[/]" if reason else point.placement
        cells = (str(p["batch_size"]), shape, str(p["dtype"]), f"{point.work.flops / 1e9:.3g}", f"{seconds:.0f} s")
        table.add_row(escape(_format_point(point)), placement, *cells)
    console = stdout()
    console.print(table)
    left = len(plan.points) - MAX_ROWS
    if left > 0:
        print_line(f"… and {left} more; --json lists all.", console)
    repeated = plan.requested_points - len(plan.points)
    note = f" ({repeated} asked for twice are run once)" if repeated else ""
    print_line(f"{len(plan.points)} points{note}, about {format_left(estimate.total_s)} by {estimate.basis}.", console)
    for sentence in estimate.notes:
        print_line(f"note: {sentence}", console)
    for reason in dict.fromkeys(filter(None, reasons)):
        print_line(f"not on this machine: {reason}", console)


def _format_point(point: Point) -> str:
    p = point.params
    size = f" depth={p['depth']} dim={p['dim']}" if "depth" in p else ""
    return f"{point.name}{size}{' compiled' if p['compile_mode'] else ''}"


@contextmanager
def _show_progress(quiet: bool) -> Iterator[ProgressHooks]:
    """Show progress on stderr: a bar on a terminal, a line per point elsewhere."""
    console = stderr()

    def print_message(sentence: str) -> None:
        console.print(sentence, style="dim", markup=False, highlight=False)

    if quiet:
        yield ProgressHooks()
        return
    if not console.is_terminal:
        yield ProgressHooks(on_end=lambda _, row: print_message(_format_row(row)), on_message=print_message)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def on_end(point: Point, row: Mapping[str, Any]) -> None:
            progress.advance(task)
            if not row["success"]:
                console.print(_format_row(row), style="red", markup=False, highlight=False)

        yield ProgressHooks(
            on_start=lambda points, done: progress.update(task, total=points, completed=done),
            on_begin=lambda point: progress.update(task, description=escape(f"{point.name}  {point.placement}")),
            on_end=on_end,
            on_message=print_message,
        )


def _format_row(row: Mapping[str, Any]) -> str:
    if not row["success"]:
        return f"{row['run_id']}: FAILED, {row['error']}"
    return f"{row['run_id']}: {row['throughput']:,.1f} images/s, {row['duration']:.1f} s"


def _make_result_table(rows: list[dict[str, Any]], labels: Mapping[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("point", "images/s", "batch", "to device", "compute", "back", "overlap", "validity"):
        table.add_column(name, justify="left" if name in ("point", "validity") else "right", no_wrap=name != "point")
    for row in [r for r in rows if r["success"]][:MAX_ROWS]:
        times = [row["batch_seconds"], *(row[f"{stage}_seconds"] for stage in ("h2d", "compute", "d2h"))]
        cells = ["–" if t is None else format_si(t, "s") for t in times]
        overlap = "–" if row["overlap"] is None else f"{row['overlap']:.2f}"
        name = f"{labels[row['run_id']]} · {row['placement']}"
        table.add_row(escape(name), f"{row['throughput']:,.1f}", *cells, overlap, row["validity"])
    return table


def _print_warnings(rows: list[dict[str, Any]], labels: Mapping[str, str]) -> None:
    """Say of each run whose times should not be quoted why."""
    sentences = list_warnings([row for row in rows if row["success"]], labels)
    for sentence in sentences[:MAX_WARNINGS]:
        print_line(sentence)
    if len(sentences) > MAX_WARNINGS:
        print_line(f"… and {len(sentences) - MAX_WARNINGS} more; the report lists all.")
