"""`ridgeline bulk`: jobs over datasets larger than a machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import Json, Quiet, print_json, print_line, print_note, stderr
from ridgeline.cli.progress import INTERVAL_S, format_left
from ridgeline.cli.read_options import Stamps
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
from ridgeline.errors import Exit

if TYPE_CHECKING:
    from ridgeline.bulk import Progress

bulk = typer.Typer(no_args_is_help=True, help="Jobs over datasets larger than a machine: exactly once, resumable.")

Sources = Annotated[list[str], typer.Argument(metavar="SOURCE…", help="Files, folders, globs or URLs (s3://…).")]
Out = Annotated[str, typer.Option("--out", "-o", metavar="TARGET", help="A folder or a URL that the job makes.")]
Key = Annotated[
    str | None, typer.Option("--key", metavar="NAME", help="The column that identifies a row; --incremental needs it.")
]
EngineName = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="local: processes of this machine; ray: a Ray cluster.")
]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Ray: the cluster, or auto (default: start Ray on this machine)."),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", help="Workers (default: two per GPU; one per NUMA node without a GPU)."),
]
ChunkTimeout = Annotated[
    float | None,
    typer.Option(metavar="S", help="Seconds for a chunk; then its rows are tried separately (default: no limit)."),
]
TableFormat = Annotated[str, typer.Option("--format", metavar="NAME", help="parquet, delta or lance.")]
Incremental = Annotated[
    bool, typer.Option("--incremental", help="Update a finished target: compute only new and changed rows.")
]
MaxRejects = Annotated[
    int | None, typer.Option(metavar="N", help="Stop, exit 2, if more rows are rejected (default: no limit).")
]
PriceName = Annotated[
    str | None,
    typer.Option(
        "--price",
        metavar="NAME",
        help="Show the cost by this price (ridgeline cost --show-prices; default: that of this machine, if any).",
    ),
]
Devices = Annotated[
    str,
    typer.Option(
        "--device", help="auto (every GPU, else the CPU), cpu, cuda:N; several as cuda:0,cuda:1; cuda:all is every GPU."
    ),
]


@bulk.command("embed")
def embed(
    sources: Sources,
    out: Out,
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column of texts (default: 'text', or the only one).")
    ] = None,
    key: Key = None,
    form: TableFormat = "parquet",
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    chunk_rows: Annotated[
        int, typer.Option(metavar="N", help="Rows of a chunk and of a part (default: 16384).")
    ] = 16_384,
    chunk_timeout: ChunkTimeout = None,
    incremental: Incremental = False,
    max_rejects: MaxRejects = None,
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="A folder, or a name (ridgeline model ls).")
    ] = "all-MiniLM-L6-v2",
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Text before every input: the name of a prompt of the model, or the words."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="auto, float32, bfloat16, float16 or int8: the type of the computation.")
    ] = "auto",
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Truncate texts to N tokens (default: the limit of the model).")
    ] = None,
    truncate_dim: Annotated[int | None, typer.Option(metavar="N", help="Keep the first N components.")] = None,
    normalize: Annotated[bool, typer.Option(help="Scale vectors to length 1.")] = True,
    vectors: Annotated[
        str, typer.Option(metavar="TYPE", help="float32 or float16: the type of the stored vectors.")
    ] = "float32",
    device: Devices = "auto",
    price: PriceName = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Embed a column of texts; the target gets the columns of the source and `vector`.

    [dim]Examples:[/]

      ridgeline bulk embed titles/ -o vectors --column title --key id

      ridgeline bulk embed s3://bucket/titles -o s3://bucket/vectors --column title --key id --format delta

      ridgeline bulk embed titles/ -o vectors --column title --key id --format delta --incremental

    The same command resumes a job that was stopped. Rows that cannot be embedded go to TARGET/rejects with a reason;
    the exit code is 1 then.
    """
    from ridgeline import bulk as jobs

    with show_rows(quiet) as report:
        answer = jobs.embed(
            sources,
            out,
            column=column,
            key=key,
            format=form,
            engine=engine,
            address=address,
            workers=workers,
            chunk_rows=chunk_rows,
            chunk_timeout=chunk_timeout,
            incremental=incremental,
            max_rejects=max_rejects,
            device=device,
            dtype=dtype,
            model=model,
            max_tokens=max_tokens,
            prompt=prompt,
            truncate_dim=truncate_dim,
            normalize=normalize,
            vectors=vectors,
            price=price,
            report=report,
        )
    finish(answer, as_json, quiet)


def finish(answer: dict[str, Any], as_json: bool, quiet: bool) -> None:
    """Print the answer of a job; exit 1 if rows were rejected."""
    if as_json:
        print_json(answer)
    elif not quiet:
        print_line(_format_answer(answer), stderr())
        if answer.get("truncated"):
            texts = "text reaches" if answer["truncated"] == 1 else "texts reach"
            print_note(f"{answer['truncated']:,} {texts} the limit of tokens; what lies beyond is not in the vector.")
    if answer["rejects"]:
        if not as_json:
            print_line(f"{answer['rejects']:,} rejects: their reasons are in {answer['target']}/rejects", stderr())
        raise typer.Exit(Exit.FINDINGS)


def _format_answer(answer: dict[str, Any]) -> str:
    computed, seconds = answer["computed"], answer["seconds"]
    reused = f", {answer['reused']:,} kept" if answer["reused"] else ""
    removed = f", {answer['removed']:,} removed" if answer["removed"] else ""
    return (
        f"{answer['job']}: {answer['rows']:,} rows, {computed:,} computed in {seconds:.1f} s "
        f"({computed / max(seconds, 1e-9):,.0f}/s){reused}{removed} → {answer['target']}"
    )


@contextmanager
def show_rows(quiet: bool, unit: str = "rows") -> Iterator[Callable[[Progress], None]]:
    """Show rows, rows/s, how busy the devices are, cost and time left: a bar on a terminal, else lines."""
    from ridgeline.bulk import describe_progress

    console = stderr()
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(), TextColumn("{task.description}"))
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting workers", total=1.0)

            def show(progress: Progress) -> None:
                share = (progress.rows + progress.before) / max(1, progress.total)
                bar.update(
                    task, completed=share, description=describe_progress(progress, unit) + _format_rest(progress)
                )

            yield show
    else:
        printed = time.monotonic()

        def print_progress(progress: Progress) -> None:
            nonlocal printed
            now = time.monotonic()
            if now - printed >= INTERVAL_S:
                printed = now
                print_line(describe_progress(progress, unit) + _format_rest(progress), console)

        yield print_progress


def _format_rest(progress: Progress) -> str:
    """Return the time that is left."""
    left = progress.left_s
    return f", about {format_left(left)} left" if left else ""


@bulk.command("resample")
def resample(
    sources: Sources,
    hz: Annotated[float, typer.Option("--hz", help="Rate of the clock, in Hz.")],
    out: Out,
    fps: Annotated[float | None, typer.Option(help="Rate of recordings without stamps (RLDS), in Hz.")] = None,
    form: Annotated[str, typer.Option("--format", metavar="NAME", help="parquet or lerobot.")] = "parquet",
    topics: Annotated[
        list[str] | None, typer.Option("--topics", metavar="NAME,…", help="Read only these topics; patterns work.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="NAME,…", help="Leave these streams out; patterns work.")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", metavar="STREAM=KIND", help="Interpolate STREAM by KIND.")
    ] = None,
    camera: Camera = None,
    state: State = None,
    action: Action = None,
    task: TaskText = None,
    rename: Annotated[
        list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="Give a stream another name.")
    ] = None,
    shift: Shift = None,
    fill: Fill = None,
    stamps: Stamps = "auto",
    codec: Codec = None,
    crf: Crf = None,
    gop: Gop = 2,
    max_gap: MaxGap = None,
    tolerance: Tolerance = None,
    span: Annotated[str, typer.Option(metavar="RULE", help="Span of the clock: auto, intersection or union.")] = "auto",
    sort: Annotated[
        bool, typer.Option("--sort", help="Sort stamps that go back; without it they are rejects.")
    ] = False,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    chunk_episodes: Annotated[int, typer.Option(metavar="N", help="Episodes of a chunk (default: 16).")] = 16,
    chunk_timeout: ChunkTimeout = None,
    max_rejects: MaxRejects = None,
    device: Devices = "cpu",
    price: PriceName = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Resample recordings onto one clock; a row of the target is a frame, a column a stream.

    [dim]Examples:[/]

      ridgeline bulk resample logs/ --hz 50 -o frames

      ridgeline bulk resample s3://bucket/mcap --hz 30 -o dataset --format lerobot --camera front=/camera/front

      ridgeline bulk resample bridge/1.0.0 --fps 5 --hz 10 -o frames

    A recording that cannot be read goes to TARGET/rejects; the exit code is 1 then.
    """
    from ridgeline import bulk as jobs
    from ridgeline.cli.resample import parse_assignment, parse_cameras, parse_shifts, split_names

    with show_rows(quiet, "episodes") as report:
        answer = jobs.resample(
            sources,
            out,
            hz=hz,
            fps=fps,
            format=form,
            topics=split_names(topics),
            exclude=split_names(exclude),
            kinds=dict(parse_assignment(text, "--kind") for text in kind or ()),
            cameras=parse_cameras(camera or ()),
            state=split_names(state),
            action=split_names(action),
            task=task,
            rename=dict(parse_assignment(text, "--rename") for text in rename or ()),
            shifts=parse_shifts(shift or ()),
            fill=fill,
            stamps=stamps,
            codec=codec,
            crf=crf,
            gop=gop,
            max_gap=max_gap,
            tolerance=tolerance,
            span=span,
            sort=sort,
            engine=engine,
            address=address,
            workers=workers,
            chunk_episodes=chunk_episodes,
            chunk_timeout=chunk_timeout,
            max_rejects=max_rejects,
            device=device,
            price=price,
            report=report,
        )
    if not as_json:
        for topic, count in answer["lost_frames"].items():
            print_line(f"{topic}: {count:,} frames cannot be decoded; the one before each is held.", stderr())
    finish(answer, as_json, quiet)


@bulk.command("index")
def index(
    sources: Sources,
    out: Out,
    column: Annotated[str, typer.Option(metavar="NAME", help="The column of vectors (default: vector).")] = "vector",
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="NAME", help="A column of whole numbers, the ids (default: count rows from 0)."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Other columns to store, with commas; '' stores none (default: all)."),
    ] = None,
    spec: Annotated[
        str, typer.Option("--spec", metavar="SPEC", help="Flat, SQ8, IVF1024,Flat, … or Auto (default: Auto).")
    ] = "Auto",
    metric: Annotated[str, typer.Option(metavar="NAME", help="cosine, ip or l2 (default: cosine).")] = "cosine",
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="Type of Flat values: auto, float32 or float16 (default: auto).")
    ] = "auto",
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The model of the vectors (default: as `bulk embed` wrote it)."),
    ] = None,
    sample: Annotated[
        int, typer.Option(metavar="N", help="Measure the recall of each shard with N rows; 0: do not (default: 500).")
    ] = 500,
    shard_rows: Annotated[
        int, typer.Option(metavar="N", help="Rows of a shard, which a worker holds in memory (default: 524288).")
    ] = 1 << 19,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    chunk_timeout: ChunkTimeout = None,
    incremental: Annotated[
        bool,
        typer.Option("--incremental", help="Update a finished target: keep shards whose source did not change."),
    ] = False,
    max_rejects: MaxRejects = None,
    device: Devices = "auto",
    price: PriceName = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Build an index in shards from vectors; `ridgeline search TARGET` and `ShardedIndex.load` open it.

    [dim]Examples:[/]

      ridgeline bulk index vectors -o vectors.index --key id

      ridgeline bulk index s3://bucket/vectors -o vectors.index --key id --keep title,year --spec IVF4096,SQ8

    Rows without a usable vector go to TARGET/rejects with a reason; the exit code is 1 then.
    """
    from ridgeline import bulk as jobs

    with show_rows(quiet) as report:
        answer = jobs.index(
            sources,
            out,
            column=column,
            key=key,
            keep=None if keep is None else [name.strip() for name in keep.split(",") if name.strip()],
            spec=spec,
            metric=metric,
            dtype=dtype,
            model=model,
            sample=sample,
            shard_rows=shard_rows,
            engine=engine,
            address=address,
            workers=workers,
            chunk_timeout=chunk_timeout,
            incremental=incremental,
            max_rejects=max_rejects,
            device=device,
            price=price,
            report=report,
        )
    finish(answer, as_json, quiet)


@bulk.command("recommend")
def recommend(
    sources: Sources,
    out: Out,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="The folder that `recommend fit` wrote.")
    ],
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column of users (default: 'user', or the only one).")
    ] = None,
    k: Annotated[int, typer.Option("-k", metavar="N", help="Items per user (default: 10).")] = 10,
    form: TableFormat = "parquet",
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    chunk_rows: Annotated[
        int, typer.Option(metavar="N", help="Users of a chunk and of a part (default: 16384).")
    ] = 16_384,
    chunk_timeout: ChunkTimeout = None,
    incremental: Incremental = False,
    max_rejects: MaxRejects = None,
    device: Devices = "cpu",
    price: PriceName = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rank items for each user of a source; the target gets its columns and `items`, `scores` and `basis`.

    [dim]Example:[/]

      ridgeline bulk recommend users/ --model movies.model -o recommendations -k 20

    A user whom the model does not know goes to TARGET/rejects; the exit code is 1 then.
    """
    from ridgeline import bulk as jobs

    with show_rows(quiet, "users") as report:
        answer = jobs.recommend(
            sources,
            out,
            model=model,
            column=column,
            k=k,
            format=form,
            engine=engine,
            address=address,
            workers=workers,
            chunk_rows=chunk_rows,
            chunk_timeout=chunk_timeout,
            incremental=incremental,
            max_rejects=max_rejects,
            device=device,
            price=price,
            report=report,
        )
    finish(answer, as_json, quiet)
