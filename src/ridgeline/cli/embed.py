"""`ridgeline embed`: a file of texts to a file of vectors."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.speak import Device, Json, Quiet, note, print_json, stderr, tell
from ridgeline.errors import Exit, InputError

if TYPE_CHECKING:
    from ridgeline.embed import Done, Progress


def embed(
    file: Annotated[Path, typer.Argument(metavar="INPUT", help=".txt, .csv, .tsv, .jsonl (also .gz) or .parquet.")],
    out: Annotated[Path, typer.Option("--out", "-o", help=".npy, or .parquet with the texts beside the vectors.")],
    column: Annotated[
        str | None, typer.Option("--column", metavar="NAME", help="The column of texts; 'text', or the only one.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="A folder, or a name (ridgeline model ls).")
    ] = "all-MiniLM-L6-v2",
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Put before every text: a name from the model's, or words.")
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="TYPE", help="auto, float32, bfloat16 or float16.")] = "auto",
    max_tokens: Annotated[int | None, typer.Option(metavar="N", help="Cut texts here.")] = None,
    truncate_dim: Annotated[int | None, typer.Option(metavar="N", help="Keep the first N components.")] = None,
    normalize: Annotated[bool, typer.Option(help="Vectors of unit length.")] = True,
    batch_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens computed at a time; memory follows it.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read the output back and encode some rows anew.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Forget what an earlier run of another job left.")] = False,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn texts into vectors, float32, one row per text.

    [dim]Examples:[/]

      ridgeline embed movies.csv --column title -o movies.npy

      ridgeline embed reviews.jsonl.gz -o reviews.parquet --verify

    A run that was stopped goes on where it stood when it is started again. Exit 1 if --verify finds a difference.
    """
    from ridgeline.embed import FORMS, Embedder, embed_file, read_texts, verify_file

    if out.suffix not in FORMS:
        raise InputError(f"--out '{out}' ends in neither of {', '.join(FORMS)}; choose one of them.")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder '{out.parent}'; create it first.")
    with read_texts(file, column):
        pass  # a wrong column is said before a model is loaded
    started = time.perf_counter()
    with (
        _noted() as notes,
        Embedder(
            model,
            device=device,
            dtype=dtype,
            max_tokens=max_tokens,
            normalize=normalize,
            prompt=prompt,
            truncate_dim=truncate_dim,
        ) as embedder,
    ):
        loaded = time.perf_counter()
        with _progress(quiet or as_json) as progress:
            done = embed_file(
                embedder,
                file,
                out,
                column=column,
                settings={"normalize": normalize},
                batch_tokens="auto" if batch_tokens is None else batch_tokens,
                force=force,
                progress=progress,
            )
        seconds = time.perf_counter() - loaded
        good, words = verify_file(embedder, file, out, column) if verify else (True, "")
    answer = {
        "out": str(out),
        "model": model,
        "device": embedder.device,
        "dtype": embedder.dtype,
        **asdict(done.quality),
        "resumed": done.resumed,
        "seconds": seconds,
        "load_seconds": loaded - started,
        "verified": good if verify else None,
        "notes": [*dict.fromkeys(notes)],
    }
    if as_json:
        print_json(answer)
    else:
        _tell(done, seconds, words, notes, quiet)
    if not good or done.quality.not_finite:
        raise typer.Exit(Exit.FINDINGS)


def _tell(done: Done, seconds: float, verified: str, notes: list[str], quiet: bool) -> None:
    for sentence in dict.fromkeys(notes):
        note(sentence)
    if not quiet:
        fresh = done.quality.count - done.resumed
        again = f" ({done.resumed:,} were done before)" if done.resumed else ""
        tell(f"{fresh:,} texts in {seconds:.1f} s, {fresh / seconds:,.0f} texts/s{again} → {done.output}", stderr())
    tell(done.quality.line(), stderr())
    if verified:
        tell(f"verify: {verified}", stderr())


@contextmanager
def _noted() -> Iterator[list[str]]:
    """What the engine warns of, as sentences for the end."""
    notes: list[str] = []

    def keep(message: Warning | str, *_: Any, **__: Any) -> None:
        notes.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = keep
        yield notes


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """Texts per second and the time that is left, on a terminal."""
    console = stderr()
    if quiet or not console.is_terminal:
        yield lambda *_: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    started = time.perf_counter()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("embedding", total=1.0)

        def advance(done: int, before: int, share: float) -> None:
            rate = done / max(time.perf_counter() - started, 1e-9)
            bar.update(task, completed=share, description=f"{before + done:,} texts, {rate:,.0f}/s")

        yield advance
