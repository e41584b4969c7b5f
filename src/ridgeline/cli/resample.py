"""`ridgeline resample`: resample recordings onto one clock, as Parquet, CSV, NPZ or a LeRobot dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ridgeline.cli.mapping import use_mapping
from ridgeline.cli.output import Device, Json, Quiet, print_json, print_note, stderr
from ridgeline.cli.progress import show_progress
from ridgeline.cli.read_options import Comment, Delimiter, Encoding, Fps, Stamps, TimeColumn, TimeUnit, Topics
from ridgeline.cli.resample_options import (
    Action,
    Camera,
    Codec,
    Crf,
    Fill,
    Gop,
    MaxGap,
    Shift,
    State,
    TaskText,
    Tolerance,
)
from ridgeline.errors import Exit, InputError, unknown

if TYPE_CHECKING:
    from ridgeline.trajectory import ConversionResult

# Files of other programs that people may ask for
OTHER_FILES = {".json", ".jsonl", ".feather", ".arrow", ".xlsx", ".npy", ".mat", ".pkl", ".zip", ".gz", ".zarr"}


def resample(
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT…", help="ULog, MCAP, ROS bag, HDF5, CSV, …")],
    hz: Annotated[float, typer.Option("--hz", help="Rate of the clock, in Hz.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="A .parquet, .csv, .npz or .mcap file for one input; a folder for several, or for LeRobot.",
        ),
    ],
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--mapping",
            metavar="FILE",
            is_eager=True,
            callback=use_mapping,
            help="Take options from a TOML, JSON or YAML file; those on the command line count more.",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="NAME", help="parquet, csv, npz, mcap or lerobot (default: by the suffix of OUT)."
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="STREAM=KIND",
            help="Interpolate STREAM by linear, previous, nearest, cubic, slerp, angle, angle_2pi, degrees or "
            "degrees_360 (default: guessed).",
        ),
    ] = None,
    topics: Topics = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="NAME,…", help="Leave these topics or streams out; patterns work."),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename",
            metavar="OLD=NEW",
            help="Give a stream, or all streams of a topic, another name; --kind and --shift use the new one.",
        ),
    ] = None,
    max_gap: MaxGap = None,
    tolerance: Tolerance = None,
    shift: Shift = None,
    span: Annotated[
        str,
        typer.Option(metavar="RULE", help="Span of the clock: auto, intersection or union of the streams."),
    ] = "auto",
    sort: Annotated[
        bool, typer.Option("--sort", help="Sort stamps that go back; without it they are an error.")
    ] = False,
    camera: Camera = None,
    state: State = None,
    action: Action = None,
    task: TaskText = None,
    fill: Fill = None,
    codec: Codec = None,
    crf: Crf = None,
    cut: Annotated[
        list[str] | None,
        typer.Option(
            "--cut",
            metavar="RULE",
            help="Cut a recording into episodes: gap=S (pauses), marker=TOPIC (each message starts one), while=STREAM "
            "(where it is not 0), change=STREAM (where its value changes).",
        ),
    ] = None,
    gop: Gop = 2,
    append: Annotated[bool, typer.Option("--append", help="Add the episodes to the LeRobot dataset in OUT.")] = False,
    fps: Fps = None,
    time_column: TimeColumn = None,
    time_unit: TimeUnit = None,
    stamps: Stamps = "auto",
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    comment: Comment = None,
    force: Annotated[bool, typer.Option("--force", help="Convert again inputs with a finished output.")] = False,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Resample every stream of a recording onto one clock.

    [dim]Examples:[/]

      ridgeline resample flight.ulg --hz 50 -o flight.parquet

      ridgeline resample logs/*.ulg --hz 50 -o dataset --format lerobot --topics 'vehicle_attitude,actuator*'

      ridgeline resample run.mcap --hz 30 -o run.npz --kind '/base/yaw=angle' --max-gap 0.1 --shift /camera=-0.02

      ridgeline resample run.mcap --hz 30 -o set --format lerobot --camera front=/camera/front --state /joints/position

    With --state or --action, other streams are written only if --topics names them. A frame is the nearest one; in a
    gap the last one is held, and observation.images.NAME.valid is false.

    Span auto: the clock runs where all long streams have data; a long stream has at least 50 samples and covers half
    of the longest such stream. Other streams are null outside their span. Targets in a gap, outside, or too far from a
    sample are null. A second run skips finished outputs; Ctrl-C keeps them. Exit code: 1 if some inputs failed, 2 if
    all failed.
    """
    from ridgeline.trajectory import ConversionSettings, convert, convert_many, writers

    settings = ConversionSettings(
        hz=hz,
        kinds=dict(parse_assignment(k, "--kind") for k in kind or ()),
        topics=split_names(topics),
        max_gap=max_gap,
        tolerance=tolerance,
        shifts=parse_shifts(shift or ()),
        span=_check_span(span),
        sort=sort,
        fps=fps,
        clock=time_column,
        unit=time_unit,
        stamps=stamps,
        encoding=encoding,
        delimiter=delimiter,
        comment=comment,
        exclude=split_names(exclude),
        rename=dict(parse_assignment(r, "--rename") for r in rename or ()),
        cameras=parse_cameras(camera or ()),
        state=split_names(state),
        action=split_names(action),
        task=task,
        fill=fill,
        codec=codec,
        crf=crf,
        gop=gop,
        cuts=tuple(cut or ()),
    )
    settings.cut_topics  # noqa: B018 (raises for rules that are none)
    settings.read_options()  # raises for wrong options before a file is read
    settings.video  # noqa: B018 (likewise)
    if not hz > 0:
        raise InputError(f"--hz {hz} is no rate; give a number above 0.")
    chosen = writers.choose_format(out, form)
    _check_suffix(out)
    folder = chosen == "lerobot" or writers.choose_format(out) is None
    if len(inputs) > 1 and not folder:
        raise InputError(f"--out '{out}' is one file, and there are {len(inputs)} inputs; give a folder.")
    device_name = _choose_device(device)
    chosen = chosen or "parquet"
    with _progress(inputs, quiet) as (each, advance):
        if folder:
            results = convert_many(
                inputs,
                out,
                chosen,
                settings,
                force=force,
                device=device_name,
                append=append,
                each=each,
                advance=advance,
            )
            if len(inputs) == 1 and results[0].error:
                raise InputError(results[0].error)
        else:
            results = [convert(inputs[0], out, chosen, settings, force=force, device=device_name, advance=advance)]
            each(results[0])
    _print_results(results, out, as_json, quiet)
    failed = [r for r in results if r.error]
    if failed:
        raise typer.Exit(Exit.BAD_INPUT if len(failed) == len(results) else Exit.FINDINGS)
    if any(r.lost for r in results):
        raise typer.Exit(Exit.FINDINGS)


def parse_assignment(text: str, option: str) -> tuple[str, str]:
    """Split `name=value` at the last `=`, because names may contain one.

    >>> parse_assignment("vehicle_attitude/q=slerp", "--kind")
    ('vehicle_attitude/q', 'slerp')
    """
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value:
        raise InputError(f"{option} '{text}' is not of the form NAME=VALUE.")
    return name, value


def parse_cameras(texts: Sequence[str]) -> dict[str, str]:
    """Return {name: topic}; the name is before the first `=`."""
    out: dict[str, str] = {}
    for text in texts:
        name, equals, topic = text.partition("=")
        if not equals or not name or not topic:
            raise InputError(f"--camera '{text}' is not of the form NAME=TOPIC.")
        if out.setdefault(name, topic) != topic:
            raise InputError(f"--camera {name} names two topics, {out[name]} and {topic}; choose another name.")
    return out


def parse_shifts(texts: Sequence[str]) -> dict[str, float]:
    """Return {stream: seconds}."""
    pairs = (parse_assignment(text, "--shift") for text in texts)
    return {name: _parse_seconds(value, "--shift") for name, value in pairs}


def split_names(lists: Sequence[str] | None) -> tuple[str, ...]:
    """Split the values of a repeatable option at commas."""
    return tuple(word for text in lists or () for word in text.split(",") if word)


def _print_results(results: Sequence[ConversionResult], out: Path, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json({"out": str(out), "files": [asdict(r) for r in results]})
        return
    console = stderr()

    def line(text: str) -> None:  # escape brackets of paths and errors, which are no markup
        console.print(text, highlight=False, soft_wrap=True)

    for r in results:
        if r.skipped and not quiet:
            for note in r.notes:
                line(f"[dim]{escape(note)}[/]")
        if r.error:
            line(f"[red]failed[/] {escape(f'{r.input}: {r.error}')}")
        elif r.skipped:
            for topic, count in r.lost.items():
                line(escape(f"{topic}: {count} frames of {r.input} cannot be decoded."))
            line(f"[dim]{escape(f'{r.input} is up to date ({r.output})')}; --force converts it again.[/]")
        elif not quiet:
            for note in r.notes:
                line(f"[dim]{escape(note)}[/]" if not r.lost else escape(note))
            many = f", {r.episodes} episodes" if r.episodes > 1 else ""
            line(escape(f"{r.input} → {r.output}: {r.rows} rows × {r.columns} columns{many}"))


@contextmanager
def _progress(
    inputs: Sequence[Path], quiet: bool
) -> Iterator[tuple[Callable[[ConversionResult], None], Callable[[float], None]]]:
    """Show the recordings that are done, and the time left by their size; Ctrl-C says what is finished."""
    sizes = [_measure_size(path) for path in inputs]
    finished: list[ConversionResult] = []
    with show_progress("resampling", len(inputs), "recordings" if len(inputs) > 1 else "recording", quiet) as report:

        def each(result: ConversionResult) -> None:
            finished.append(result)
            skipped = sum(size for size, r in zip(sizes, finished, strict=False) if r.skipped)  # they take no time
            report(len(finished), (sum(sizes[: len(finished)]) - skipped) / max(1, sum(sizes) - skipped))

        def advance(share: float) -> None:
            """Report a part of the recording that is converted now."""
            done = sum(sizes[: len(finished)]) + share * (sizes[len(finished)] if len(finished) < len(sizes) else 0)
            skipped = sum(size for size, r in zip(sizes, finished, strict=False) if r.skipped)
            report(len(finished), (done - skipped) / max(1, sum(sizes) - skipped))

        try:
            yield each, advance
        except KeyboardInterrupt:
            done = sum(not r.error for r in finished)
            if done and len(inputs) > 1:
                print_note(
                    f"{done} of {len(inputs)} recordings are finished; the same command continues with the rest."
                )
            raise


def _measure_size(path: Path) -> int:
    """Return the bytes of a recording; 0 if it cannot be found, which is an error later."""
    try:
        files = path.rglob("*") if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:
        return 0


def _check_suffix(out: Path) -> None:
    """Refuse a folder with the name of a file that resample does not write."""
    from ridgeline.trajectory import readers, writers

    suffix = out.suffix.lower()
    known = {s for _, suffixes in readers.FORMATS.values() for s in suffixes} | OTHER_FILES
    written = [s for s in writers.FORMATS.values() if s]
    if suffix in known - {*written} and not out.is_dir():
        raise InputError(f"--out '{out}' ends in {suffix}, and resample writes {', '.join(written)} or a folder.")


def _choose_device(device: str) -> str:
    """Return the device; auto is cpu, because one recording is too small to gain from a GPU."""
    if device in ("auto", "cpu"):
        return "cpu"
    from ridgeline.machine import resolve_device

    return resolve_device(device)


def _check_span(span: str) -> Any:
    from ridgeline.trajectory import SPANS

    if span not in SPANS:
        raise unknown("span", span, SPANS)
    return span


def _parse_seconds(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} '{text}' is no number of seconds.") from None
