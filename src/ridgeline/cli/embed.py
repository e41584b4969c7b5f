"""`ridgeline embed`: embed a file of texts into a file of vectors."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import Json, Quiet, print_json, print_line, print_note, stderr
from ridgeline.cli.placement import Place, stay_near
from ridgeline.errors import Exit, InputError

if TYPE_CHECKING:
    from ridgeline.embed import EmbedderPool, JobResult, Progress

LINE_S = 3.0  # between two lines of progress without a terminal
MIN_SHARE = 0.01  # of the file, from which the remaining time is estimated


def embed(
    file: Annotated[Path, typer.Argument(metavar="INPUT", help=".txt, .csv, .tsv, .jsonl (also .gz) or .parquet.")],
    out: Annotated[Path, typer.Option("--out", "-o", help=".npy, or .parquet with texts and vectors.")],
    column: Annotated[
        str | None,
        typer.Option("--column", metavar="NAME", help="The column of texts (default: 'text', or the only one)."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Parquet: other columns to keep, separated by commas; '' keeps none (default: all)."
        ),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Encoding of the file, such as cp1252 (default: UTF-8, or by its mark)."),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(metavar="C", help="Delimiter of .csv and .tsv: a character or 'tab' (default: by the header)."),
    ] = None,
    comment: Annotated[
        str | None,
        typer.Option(metavar="C", help="Skip lines of .csv and .tsv that start with C (default: skip none)."),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="A folder, or a name (ridgeline model ls).")
    ] = "all-MiniLM-L6-v2",
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Text before every input: the name of a prompt of the model, or the words."),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(metavar="TYPE", help="auto, float32, bfloat16, float16, or int8 on a CPU (default: auto)."),
    ] = "auto",
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Truncate texts to N tokens (default: the limit of the model).")
    ] = None,
    truncate_dim: Annotated[int | None, typer.Option(metavar="N", help="Keep the first N components.")] = None,
    normalize: Annotated[bool, typer.Option(help="Scale vectors to length 1.")] = True,
    batch_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens per batch; memory depends on it (default: by device).")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read the output and encode some rows again.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Discard the chunks of an earlier job.")] = False,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="auto, cpu, cuda, cuda:N; several as cuda:0,cuda:1; cuda:all uses every GPU of the machine.",
        ),
    ] = "auto",
    place: Place = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn texts into vectors, float32, one row per text.

    [dim]Examples:[/]

      ridgeline embed movies.csv --column title -o movies.npy

      ridgeline embed reviews.jsonl.gz -o reviews.parquet --verify

      ridgeline embed export.csv -o export.parquet --encoding cp1252 --delimiter ";" --keep id,year

    A job that was stopped resumes when it is started again. Exit 1 if --verify finds a difference.
    """
    from ridgeline.embed import OUTPUT_FORMATS, Embedder, TextFormat, embed_file, read_texts, verify_file
    from ridgeline.machine import parse_devices

    if out.suffix not in OUTPUT_FORMATS:
        raise InputError(f"--out '{out}' ends in neither of {', '.join(OUTPUT_FORMATS)}; choose one of them.")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder '{out.parent}'; create it first.")
    text_format = TextFormat(encoding, "\t" if delimiter in ("tab", "\\t") else delimiter, comment)
    with read_texts(file, column, text_format):
        pass  # raises for a wrong column before a model is loaded
    devices = parse_devices(device)
    settings: dict[str, Any] = {
        "dtype": dtype,
        "max_tokens": max_tokens,
        "normalize": normalize,
        "prompt": prompt,
        "truncate_dim": truncate_dim,
    }
    started = time.perf_counter()
    with (
        # The workers of a pool place themselves, each near its own GPU.
        stay_near(devices[0], place and len(devices) == 1, quiet) as location,
        _collect_warnings() as caught,
        Embedder(model, device=devices[0], **settings) as embedder,
        _start_pool(model, devices, settings) as pool,
    ):
        loaded = time.perf_counter()
        with _progress(quiet) as progress:
            result = embed_file(
                embedder,
                file,
                out,
                column=column,
                keep=None if keep is None else [name.strip() for name in keep.split(",") if name.strip()],
                text_format=text_format,
                pool=pool,
                settings={"normalize": normalize},
                batch_tokens="auto" if batch_tokens is None else batch_tokens,
                force=force,
                progress=progress,
                resume=lambda count: None if quiet else _print_resumed(count),
            )
        seconds = time.perf_counter() - loaded
        notes = _join_notes(caught)  # --verify encodes some texts again
        passed, sentence = verify_file(embedder, file, out, column, text_format) if verify else (True, "")
        cpus = sorted(os.sched_getaffinity(0))
    answer = {
        "out": str(out),
        "model": model,
        "device": embedder.device,
        "placement": {"devices": devices if pool else [embedder.device], "cpus": cpus, "location": location},
        "dtype": embedder.dtype,
        **asdict(result.quality),
        "resumed": result.resumed,
        "seconds": seconds,
        "load_seconds": loaded - started,
        "verified": passed if verify else None,
        "notes": notes,
    }
    if as_json:
        print_json(answer)
    else:
        _print_result(result, seconds, sentence, notes, quiet)
    if not passed or result.quality.not_finite:
        raise typer.Exit(Exit.FINDINGS)


def _start_pool(model: str, devices: list[str], settings: dict[str, Any]) -> EmbedderPool | nullcontext[None]:
    """Return a worker for each device, or no pool for a single one."""
    if len(devices) == 1:
        return nullcontext()
    from ridgeline.embed import EmbedderPool

    return EmbedderPool(model, devices=devices, **settings)


def _print_result(result: JobResult, seconds: float, verified: str, notes: list[str], quiet: bool) -> None:
    for note in notes:
        print_note(note)
    if not quiet:
        count = result.quality.count - result.resumed
        resumed = f" ({result.resumed:,} were done before)" if result.resumed else ""
        print_line(
            f"{count:,} texts in {seconds:.1f} s, {count / seconds:,.0f} texts/s{resumed} → {result.output}", stderr()
        )
    print_line(result.quality.format_line(), stderr())
    if verified:
        print_line(f"verify: {verified}", stderr())


@contextmanager
def _collect_warnings() -> Iterator[list[Warning | str]]:
    """Collect the warnings of the engine, to print them at the end."""
    caught: list[Warning | str] = []

    def keep(message: Warning | str, *_: Any, **__: Any) -> None:
        caught.append(message)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = keep
        yield caught


def _join_notes(caught: list[Warning | str]) -> list[str]:
    """Return each note once, and one that counts the truncated texts of the whole file."""
    from ridgeline.embed import TruncationWarning

    notes = [str(warning) for warning in caught if not isinstance(warning, TruncationWarning)]
    if truncated := [warning for warning in caught if isinstance(warning, TruncationWarning)]:
        first, limit = min(warning.first for warning in truncated), truncated[0].limit
        notes.append(str(TruncationWarning(sum(warning.count for warning in truncated), first, limit)))
    return [*dict.fromkeys(notes)]


def _print_resumed(count: int) -> None:
    print_line(f"resuming: {count:,} texts of an earlier run are kept", stderr())


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """Show texts per second and the remaining time: a bar on a terminal, else a line every few seconds."""
    console = stderr()
    started = time.perf_counter()
    if quiet:
        yield lambda *_: None
    elif not console.is_terminal:
        printed, first_share = started, -1.0

        def print_progress(done: int, before: int, share: float) -> None:
            nonlocal printed, first_share
            now = time.perf_counter()
            if first_share < 0:
                first_share = share
            if now - printed < LINE_S:
                return
            printed, rate = now, done / (now - started)
            left = (1 - share) * (now - started) / max(share - first_share, 1e-9)
            remaining = f", about {left:,.0f} s left" if share - first_share > MIN_SHARE else ""
            print_line(f"{before + done:,} texts, {rate:,.0f}/s, {share:.0%} of the file{remaining}", console)

        yield print_progress
    else:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("embedding", total=1.0)

            def advance(done: int, before: int, share: float) -> None:
                rate = done / max(time.perf_counter() - started, 1e-9)
                bar.update(task, completed=share, description=f"{before + done:,} texts, {rate:,.0f}/s")

            yield advance
