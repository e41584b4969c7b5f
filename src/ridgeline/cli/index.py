"""`ridgeline index`: a file of vectors to a folder that can be searched."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.speak import Device, Json, Quiet, note, print_json, status, stderr, tell
from ridgeline.errors import InputError, unknown


def index(
    file: Annotated[Path, typer.Argument(metavar="VECTORS", help=".npy, or .parquet with a column of vectors.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write.")],
    spec: Annotated[str, typer.Option("--spec", metavar="SPEC", help="Flat, SQ8, IVF1024,Flat, … or Auto.")] = "Auto",
    metric: Annotated[str, typer.Option(metavar="NAME", help="cosine, ip or l2.")] = "cosine",
    column: Annotated[str, typer.Option(metavar="NAME", help="Parquet: the column of vectors.")] = "vector",
    ids: Annotated[
        str | None, typer.Option(metavar="NAME", help="Parquet: a column of ids; else rows are counted.")
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="TYPE", help="Of Flat values: auto, float32 or float16.")] = "auto",
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model that made the vectors; `search --text` uses it.")
    ] = None,
    sample: Annotated[
        int, typer.Option(metavar="N", help="Measure recall with so many rows, where it can be below 1; 0: do not.")
    ] = 500,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Build an index: vectors in, a folder out that `ridgeline search` reads.

    [dim]Examples:[/]

      ridgeline index movies.npy -o movies.index --model all-MiniLM-L6-v2

      ridgeline index reviews.parquet -o reviews.index --spec IVF1024,SQ8 --ids review

    The other columns of a Parquet file can be filtered by: search --where "year >= 1990".
    """
    from ridgeline.search import Index, read_vectors

    if not out.parent.is_dir():
        raise InputError(f"there is no folder '{out.parent}'; create it first.")
    if sample < 0:
        raise InputError(f"--sample is {sample}; give 0 or more.")
    made = Index(spec, metric=metric, device=device, dtype=dtype, model=model)
    vectors, table = read_vectors(file, column)
    names = _ids(file, table, ids)
    if ids is not None:
        table = table.drop_columns([ids])
        table = table if table.column_names else None
    began = time.perf_counter()
    with status("index") as say:
        if not made.trained:
            say("training")
            made.train(vectors)
        say("adding")
        made.add(vectors, names, table)
        built = time.perf_counter() - began
        curve = None
        if sample and len(made) and not made.exact:
            say("measuring recall")
            curve = made.measure_recall(sample)
        say("saving")
        made.save(out)
    if as_json:
        print_json({"out": str(out), "build_seconds": built, **made.stats()})
        return
    if not quiet:
        rate = len(made) / built
        tell(f"{len(made):,} vectors of {made.dim} dimensions in {built:.2f} s, {rate:,.0f}/s → {out}", stderr())
    tell(f"{made.spec}, {made.metric}: " + ("exact" if made.exact else str(curve or "recall was not measured")))
    if curve is not None and curve.truth == "codes":
        note("the codes were the truth; what they lost of the vectors shows only with Refine(Flat).")


def _ids(file: Path, table: Any, column: str | None) -> Any:
    if column is None:
        return None
    if table is None:
        raise InputError(f"--ids {column}: '{file}' has no columns; ids can be read from Parquet only.")
    if column not in table.column_names:
        raise unknown(f"column in '{file.name}' named", column, table.column_names)
    found = table[column].combine_chunks()
    if found.null_count:
        raise InputError(f"--ids {column}: the column of '{file}' has rows without an id; give every row one.")
    return found.to_numpy(zero_copy_only=False)
