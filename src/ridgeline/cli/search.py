"""`ridgeline search`: the nearest rows of an index, for texts or vectors."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.speak import Device, Json, Quiet, note, print_json, stderr, stdout, tell
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.search import Index

WIDEST = 60  # characters of a cell
OWN = ("id", "score")  # columns of the answer itself


def search(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `ridgeline index` wrote.")],
    text: Annotated[
        list[str] | None, typer.Option("--text", metavar="TEXT", help="What to look for; may be repeated.")
    ] = None,
    vectors: Annotated[
        Path | None, typer.Option("--vectors", metavar="FILE", help="Queries as .npy or .parquet.")
    ] = None,
    k: Annotated[int, typer.Option("-k", metavar="N", help="Neighbours of each query.")] = 10,
    where: Annotated[
        str | None, typer.Option(metavar="COND", help="Only rows like: year >= 90 and source == 'dbus'.")
    ] = None,
    recall: Annotated[
        float | None, typer.Option(metavar="SHARE", help="The quickest way that was measured to find so much.")
    ] = None,
    nprobe: Annotated[int | None, typer.Option(metavar="N", help="Lists to look at.")] = None,
    depth: Annotated[
        int | None, typer.Option(metavar="N", help="Times k candidates ranked again, with Refine.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="For --text: the model, if the index does not say.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Hold every file against its checksum first.")] = False,
    device: Device = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the nearest rows, best first.

    [dim]Examples:[/]

      ridgeline search movies.index --text "a robot learns to love" -k 5

      ridgeline search reviews.index --vectors q.npy --where "year >= 1990" --recall .95 --json
    """
    from ridgeline.search import Index

    if bool(text) == bool(vectors):
        raise InputError("give what to look for as --text or as --vectors, one of the two.")
    index = Index.load(folder, verify=verify, device=device)
    queries = _queries(index, text, vectors, model, folder)
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        # More than there are would only be answered with rows that are not there.
        scores, ids = index.search(
            queries, min(k, max(1, len(index))), nprobe=nprobe, depth=depth, recall=recall, where=where
        )
    seconds = time.perf_counter() - began
    notes = [str(w.message) for w in told]
    results = _results(index, scores, ids)
    if as_json:
        names: list[Any] = list(text) if text else list(range(len(results)))
        found = [{"query": name, "found": rows} for name, rows in zip(names, results, strict=True)]
        print_json({"index": index.stats(), "k": k, "seconds": seconds, "notes": notes, "results": found})
        return
    for sentence in notes:
        note(sentence)
    _show(results, text, index.metric)
    if not quiet:
        tell(f"{len(results)} queries over {len(index):,} rows in {seconds * 1e3:.1f} ms ({index.spec})", stderr())


def _queries(index: Index, text: list[str] | None, vectors: Path | None, model: str | None, folder: Path) -> Any:
    if vectors is not None:
        from ridgeline.search import read_vectors

        return read_vectors(vectors)[0]
    named = model or index.model
    if named is None:
        raise InputError(f"'{folder}' does not say which model made its vectors; give --model NAME.")
    import ridgeline

    with ridgeline.Embedder(named) as embedder:
        if index.dim is not None and embedder.dim != index.dim:
            raise InputError(
                f"'{named}' makes {embedder.dim} dimensions, the index has {index.dim}; give its own --model."
            )
        return embedder.encode(text or [])


def _results(index: Index, scores: Any, ids: Any) -> list[list[dict[str, Any]]]:
    """What was found, with its columns; one that is named like the answer's own becomes `meta.id` or `meta.score`."""
    table = index.meta
    if table is not None:
        table = table.rename_columns([f"meta.{name}" if name in OWN else name for name in table.column_names])
    found = []
    for best, names in zip(scores.tolist(), ids.tolist(), strict=True):
        there = [(score, name) for score, name in zip(best, names, strict=True) if name >= 0]
        columns: list[dict[str, Any]] = [{} for _ in there]
        if table is not None:
            columns = table.take(index.rows_of([name for _, name in there])).to_pylist()
        found.append([{"id": name, "score": score, **more} for (score, name), more in zip(there, columns, strict=True)])
    return found


def _show(results: list[list[dict[str, Any]]], text: list[str] | None, metric: str) -> None:
    from rich.table import Table

    for number, rows in enumerate(results):
        if len(results) > 1:
            tell(text[number] if text else f"query {number}")
        shown = Table(box=None, pad_edge=False)
        columns = list(rows[0]) if rows else list(OWN)
        for name in columns:
            label = "distance²" if name == "score" and metric == "l2" else _cell(name)
            shown.add_column(label, justify="right" if name in OWN else "left")
        for row in rows:
            shown.add_row(*(f"{row[c]:.4f}" if c == "score" else _cell(row[c]) for c in columns))
        stdout().print(shown)


def _cell(value: Any) -> str:
    from rich.markup import escape

    words = " ".join(str(value).split())
    return escape(words if len(words) <= WIDEST else words[: WIDEST - 1] + "…")
