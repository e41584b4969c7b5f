"""`ridgeline run`: an experiment by Hydra's words, point by point, into outputs/."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ridgeline.cli.speak import Json, Quiet, print_json, stderr, stdout, tell
from ridgeline.errors import Exit
from ridgeline.lab.experiment import Point, Watcher, parted, show
from ridgeline.machine import Topology, topology
from ridgeline.web import si

MANY = 40  # rows of a table before it is cut short


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[experiment=NAME] [KEY=VALUE]…", help="Hydra overrides.", show_default=False),
    ] = None,
    multirun: Annotated[
        bool, typer.Option("--multirun", "-m", help="Said for Hydra's sake: a comma list is always several runs.")
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
    stability_study; with --config-dir DIR also your own. Results go to outputs/NAME-TIME/. A stopped run goes on when
    started again. --cfg job shows the configuration. Exit 1 if a point failed.
    """
    from ridgeline.workloads import experiment

    asked = parted(words or [])
    if asked.showing:
        show(asked, experiment.SOURCE)
        return
    here = topology()
    plan = experiment.plan(asked, here)
    if dry_run:
        _list(plan, here, as_json)
        return
    with _watched(quiet or as_json) as watcher:
        try:
            done = experiment.execute(plan, here, watcher)
        except KeyboardInterrupt:
            tell("Stopped; what was measured stays in outputs/, and the same command goes on from there.", stderr())
            raise
    failed = [r for r in done.rows if not r["success"]]
    if as_json:
        print_json({"folder": str(done.folder.path), "failed": len(failed), "results": done.rows})
    else:
        if len(failed) < len(done.rows):
            stdout().print(_results(done.rows, done.labels))
        for row in failed:
            tell(f"{row['run_id']} failed: {row['error']}")
        tell(f"Report: {done.folder.path / 'report.html'}")
    for complaint in done.complaints:
        tell(f"a job failed: {complaint}", stderr())
    if failed or done.complaints:
        raise typer.Exit(Exit.FINDINGS)


def _list(plan: Any, here: Topology, as_json: bool) -> None:
    from ridgeline.workloads import experiment

    each, total, ground = experiment.estimates(plan, here)
    reasons = [experiment.absent(point, here) for point in plan.points]
    if as_json:
        points = [
            {"run_id": p.run_id, **p.params, "device": p.device, "gpu_id": p.gpu, "numa_node": p.node,
             "cpu_node": p.cpu_node, "flops": p.work.flops, "estimate_s": round(s, 1), "absent": why}
            for p, s, why in zip(plan.points, each, reasons, strict=True)
        ]  # fmt: skip
        print_json({"points": points, "estimate_s": round(total, 1), "estimate_from": ground})
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("point", "place", "batch", "image", "dtype", "GFLOP"):
        table.add_column(name, justify="left" if name in ("point", "place", "dtype") else "right")
    table.add_column("about", justify="right")
    for point, seconds, why in list(zip(plan.points, each, reasons, strict=True))[:MANY]:
        p = point.params
        shape = f"{p['channels']}×{p['image_size']}×{p['image_width']}"
        stand = f"[red]{point.stand}[/]" if why else point.stand
        cells = (str(p["batch_size"]), shape, str(p["dtype"]), f"{point.work.flops / 1e9:.3g}", f"{seconds:.0f} s")
        table.add_row(escape(_words(point)), stand, *cells)
    answer = stdout()
    answer.print(table)
    left = len(plan.points) - MANY
    if left > 0:
        tell(f"… and {left} more; --json lists all.", answer)
    once = f" ({plan.asked_points - len(plan.points)} asked for twice are run once)"
    twice = once if plan.asked_points > len(plan.points) else ""
    tell(f"{len(plan.points)} points{twice}, about {_span(total)} by {ground}.", answer)
    for reason in dict.fromkeys(filter(None, reasons)):
        tell(f"not on this machine: {reason}", answer)


def _words(point: Point) -> str:
    p = point.params
    size = f" depth={p['depth']} dim={p['dim']}" if "depth" in p else ""
    return f"{point.name}{size}{' compiled' if p['compile_mode'] else ''}"


@contextmanager
def _watched(quiet: bool) -> Iterator[Watcher]:
    """Progress on stderr: a bar on a terminal, a line per point elsewhere."""
    console = stderr()

    def say(sentence: str) -> None:
        console.print(sentence, style="dim", markup=False, highlight=False)

    if quiet:
        yield Watcher()
        return
    if not console.is_terminal:
        yield Watcher(end=lambda _, told: say(_line(told)), say=say)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def end(point: Point, told: Mapping[str, Any]) -> None:
            progress.advance(task)
            if not told["success"]:
                console.print(_line(told), style="red", markup=False, highlight=False)

        yield Watcher(
            start=lambda points, done: progress.update(task, total=points, completed=done),
            begin=lambda point: progress.update(task, description=escape(f"{point.name}  {point.stand}")),
            end=end,
            say=say,
        )


def _line(told: Mapping[str, Any]) -> str:
    if not told["success"]:
        return f"{told['run_id']}: FAILED, {told['error']}"
    return f"{told['run_id']}: {told['throughput']:,.1f} images/s, {told['duration']:.1f} s"


def _results(rows: list[dict[str, Any]], labels: Mapping[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("point", "images/s", "batch", "to device", "compute", "back", "overlap"):
        table.add_column(name, justify="left" if name == "point" else "right", no_wrap=name != "point")
    for row in [r for r in rows if r["success"]][:MANY]:
        times = [row["batch_seconds"], *(row[f"{s}_seconds"] for s in ("h2d", "compute", "d2h"))]
        shown = ["–" if t is None else si(t, "s") for t in times]
        overlap = "–" if row["overlap"] is None else f"{row['overlap']:.2f}"
        name = f"{labels[row['run_id']]} · {row['placement']}"
        table.add_row(escape(name), f"{row['throughput']:,.1f}", *shown, overlap)
    return table


def _span(seconds: float) -> str:
    """A length of time as people say it.

    >>> _span(40), _span(600), _span(9000)
    ('40 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
