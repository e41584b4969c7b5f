"""`ridgeline resample`: recordings of any rate onto one clock, as Parquet, NPZ or a LeRobot dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ridgeline.cli.speak import Device, Json, Quiet, print_json, stderr
from ridgeline.errors import Exit, InputError, unknown

if TYPE_CHECKING:
    from ridgeline.trajectory import Done


def resample(
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT…", help="ULog, MCAP, ROS bag, HDF5, CSV, …")],
    hz: Annotated[float, typer.Option("--hz", help="The rate of the clock.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help=".parquet or .npz for one input; a folder for many, or for LeRobot.")
    ],
    form: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="parquet, npz or lerobot; else by OUT's suffix.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="STREAM=KIND", help="linear, previous, nearest, cubic, slerp or angle."),
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topics", metavar="NAME,…", help="Only these; patterns like 'imu*' too.")
    ] = None,
    max_gap: Annotated[float | None, typer.Option(metavar="S", help="Nothing is made up in a longer gap.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(metavar="S", help="Nothing farther than this from a real sample.")
    ] = None,
    shift: Annotated[
        list[str] | None, typer.Option("--shift", metavar="STREAM=S", help="Move a stream in time, in seconds.")
    ] = None,
    span: Annotated[
        str,
        typer.Option(metavar="RULE", help="Where the clock runs: auto, intersection or union of the streams."),
    ] = "auto",
    sort: Annotated[
        bool, typer.Option("--sort", help="Put stamps that go back in order, instead of refusing.")
    ] = False,
    fps: Annotated[float | None, typer.Option(help="For recordings without stamps (robomimic HDF5).")] = None,
    time_column: Annotated[str | None, typer.Option(metavar="NAME", help="The time column of a table.")] = None,
    time_unit: Annotated[str | None, typer.Option(metavar="UNIT", help="Its unit: ns, us, ms or s.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Also redo what is finished.")] = False,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Bring every stream of a recording onto one clock.

    [dim]Examples:[/]

      ridgeline resample flight.ulg --hz 50 -o flight.parquet

      ridgeline resample logs/*.ulg --hz 50 -o dataset --format lerobot --topics 'vehicle_attitude,actuator*'

      ridgeline resample run.mcap --hz 30 -o run.npz --kind '/base/yaw=angle' --max-gap 0.1 --shift /camera=-0.02

    Span auto: the clock runs where all streams that run through the recording have data (those with at least 50
    samples that cover half of the longest such stream); sparse and late ones are null outside their own span. What
    lies in a gap, outside, or too far from a sample is null. Finished outputs are skipped next time. Exit 1 if some
    inputs failed, 2 if nothing could be done.
    """
    from ridgeline.trajectory import convert as job
    from ridgeline.trajectory import pair, writers

    settings = job.Settings(
        hz=hz,
        kinds=dict(pair(k, "--kind") for k in kind or ()),
        topics=words(topics),
        max_gap=max_gap,
        tolerance=tolerance,
        shifts={name: _number(value, "--shift") for name, value in (pair(s, "--shift") for s in shift or ())},
        span=_span(span),
        sort=sort,
        fps=fps,
        clock=time_column,
        unit=time_unit,
    )
    if not hz > 0:
        raise InputError(f"--hz {hz} is no rate; give a number above 0.")
    chosen = writers.format_for(out, form)
    folder = chosen == "lerobot" or writers.format_for(out) is None
    if len(inputs) > 1 and not folder:
        raise InputError(f"--out '{out}' is one file, and there are {len(inputs)} inputs; give a folder.")
    place = _device(device)
    chosen = chosen or "parquet"
    with _progress(len(inputs), quiet or as_json) as each:
        if folder:
            results = job.convert_many(inputs, out, chosen, settings, force=force, device=place, each=each)
            if len(inputs) == 1 and results[0].error:
                raise InputError(results[0].error)
        else:
            results = [job.convert(inputs[0], out, chosen, settings, force=force, device=place)]
            each(results[0])
    _answer(results, out, as_json, quiet)
    failed = [r for r in results if r.error]
    if failed:
        raise typer.Exit(Exit.BAD_INPUT if len(failed) == len(results) else Exit.FINDINGS)


def words(lists: Sequence[str] | None) -> tuple[str, ...]:
    """Options that may be given several times, and with commas."""
    return tuple(word for text in lists or () for word in text.split(",") if word)


def _answer(results: Sequence[Done], out: Path, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json({"out": str(out), "files": [asdict(r) for r in results]})
        return
    console = stderr()

    def line(text: str) -> None:  # paths and errors hold brackets, which are no markup
        console.print(text, highlight=False, soft_wrap=True)

    for r in results:
        if r.error:
            line(f"[red]failed[/] {escape(f'{r.input}: {r.error}')}")
        elif r.skipped:
            line(f"[dim]{escape(f'{r.input} is done already ({r.output})')}; --force redoes it.[/]")
        elif not quiet:
            for note in r.notes:
                line(f"[dim]{escape(note)}[/]")
            many = f", {r.episodes} episodes" if r.episodes > 1 else ""
            line(escape(f"{r.input} → {r.output}: {r.rows} rows × {r.columns} columns{many}"))


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[Done], None]]:
    console = stderr()
    if quiet or total == 1 or not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("resampling", total=total)
        yield lambda done: bar.update(task, advance=1, description=done.input.name)


def _device(device: str) -> str:
    """One recording is far too small to pay for a trip to the GPU, so auto means cpu here."""
    if device in ("auto", "cpu"):
        return "cpu"
    from ridgeline.machine import device_named

    return device_named(device)


def _span(span: str) -> Any:
    from ridgeline.trajectory import SPANS

    if span not in SPANS:
        raise unknown("span", span, SPANS)
    return span


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} '{text}' is no number of seconds.") from None
