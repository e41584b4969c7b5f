"""`ridgeline search`: find the nearest rows of an index for texts or vectors."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import Device, Json, Quiet, print_json, print_line, print_note, stderr, stdout
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.search import Index, ShardedIndex

MAX_CELL = 60  # characters
RESULT_COLUMNS = ("id", "score")


def search(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of `ridgeline index` or `bulk index`.")],
    text: Annotated[list[str] | None, typer.Option("--text", metavar="TEXT", help="A query; can be repeated.")] = None,
    vectors: Annotated[
        Path | None, typer.Option("--vectors", metavar="FILE", help="Queries as .npy or .parquet.")
    ] = None,
    k: Annotated[int, typer.Option("-k", metavar="N", help="Results per query (default: 10).")] = 10,
    where: Annotated[
        str | None, typer.Option(metavar="COND", help="Only rows with: year >= 90 and source == 'dbus'.")
    ] = None,
    recall: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Use the fastest measured setting with this recall, like 0.95."),
    ] = None,
    nprobe: Annotated[
        int | None, typer.Option(metavar="N", help="Lists to read (default: the square root of their number).")
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(metavar="N", help="With Refine: rank N · k candidates again (default: 2 for SQ8, 8 for PQ)."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="For --text: the model (default: the model of the index).")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every file with its checksum first.")] = False,
    device: Device = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find the nearest rows, best first.

    [dim]Examples:[/]

      ridgeline search movies.index --text "a robot learns to love" -k 5

      ridgeline search reviews.index --vectors q.npy --where "year >= 1990" --recall .95 --json
    """
    from ridgeline.search import load_index

    if bool(text) == bool(vectors):
        raise InputError("give queries as --text or as --vectors, one of the two.")
    index = load_index(folder, verify=verify, device=device)
    queries = _prepare_queries(index, text, vectors, model, folder)
    start_s = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        # More results than rows would only be padding.
        scores, ids = index.search(
            queries, min(k, max(1, len(index))), nprobe=nprobe, depth=depth, recall=recall, where=where
        )
    seconds = time.perf_counter() - start_s
    notes = [str(w.message) for w in caught]
    results = _collect_results(index, scores, ids)
    if as_json:
        names: list[Any] = list(text) if text else list(range(len(results)))
        answers = [{"query": name, "found": rows} for name, rows in zip(names, results, strict=True)]
        print_json({"index": index.stats(), "k": k, "seconds": seconds, "notes": notes, "results": answers})
        return
    for sentence in notes:
        print_note(sentence)
    _print_tables(results, text, index.metric)
    if not quiet:
        print_line(
            f"{len(results)} queries over {len(index):,} rows in {seconds * 1e3:.1f} ms ({index.spec})", stderr()
        )


def _prepare_queries(
    index: Index | ShardedIndex, text: list[str] | None, vectors: Path | None, model: str | None, folder: Path
) -> Any:
    if vectors is not None:
        from ridgeline.search import read_vectors

        return read_vectors(vectors)[0]
    model_name = model or index.model
    if model_name is None:
        raise InputError(f"'{folder}' does not say which model made its vectors; give --model NAME.")
    import ridgeline

    with ridgeline.Embedder(model_name) as embedder:
        if index.dim is not None and embedder.dim != index.dim:
            raise InputError(
                f"'{model_name}' makes {embedder.dim} dimensions, the index has {index.dim}; give its model as --model."
            )
        return embedder.encode(text or [])


def _collect_results(index: Index | ShardedIndex, scores: Any, ids: Any) -> list[list[dict[str, Any]]]:
    """Return the results with their columns; a column `id` or `score` becomes `meta.id` or `meta.score`."""
    table = index.meta
    if table is not None:
        table = table.rename_columns(
            [f"meta.{name}" if name in RESULT_COLUMNS else name for name in table.column_names]
        )
    results = []
    for best, names in zip(scores.tolist(), ids.tolist(), strict=True):
        matches = [(score, name) for score, name in zip(best, names, strict=True) if name >= 0]
        columns: list[dict[str, Any]] = [{} for _ in matches]
        if table is not None:
            columns = table.take(index.find_rows([name for _, name in matches])).to_pylist()
        results.append(
            [{"id": name, "score": score, **values} for (score, name), values in zip(matches, columns, strict=True)]
        )
    return results


def _print_tables(results: list[list[dict[str, Any]]], text: list[str] | None, metric: str) -> None:
    from rich.table import Table

    for number, rows in enumerate(results):
        if len(results) > 1:
            print_line(text[number] if text else f"query {number}")
        table = Table(box=None, pad_edge=False)
        columns = list(rows[0]) if rows else list(RESULT_COLUMNS)
        for name in columns:
            label = "distance²" if name == "score" and metric == "l2" else _format_cell(name)
            table.add_column(label, justify="right" if name in RESULT_COLUMNS else "left")
        for row in rows:
            table.add_row(*(f"{row[c]:.4f}" if c == "score" else _format_cell(row[c]) for c in columns))
        stdout().print(table)


def _format_cell(value: Any) -> str:
    from rich.markup import escape

    words = " ".join(str(value).split())
    return escape(words if len(words) <= MAX_CELL else words[: MAX_CELL - 1] + "…")
