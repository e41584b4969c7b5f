"""`ridgeline index`: build a searchable folder from a file of vectors."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.output import Device, Json, Quiet, print_json, print_line, print_note, status, stderr
from ridgeline.errors import InputError, unknown


def index(
    file: Annotated[Path, typer.Argument(metavar="VECTORS", help=".npy, or .parquet with a column of vectors.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write.")],
    spec: Annotated[
        str, typer.Option("--spec", metavar="SPEC", help="Flat, SQ8, IVF1024,Flat, … or Auto (default: Auto).")
    ] = "Auto",
    metric: Annotated[str, typer.Option(metavar="NAME", help="cosine, ip or l2 (default: cosine).")] = "cosine",
    column: Annotated[
        str, typer.Option(metavar="NAME", help="Parquet: the column of vectors (default: vector).")
    ] = "vector",
    ids: Annotated[
        str | None, typer.Option(metavar="NAME", help="Parquet: a column of ids (default: count rows from 0).")
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="Type of Flat values: auto, float32 or float16 (default: auto).")
    ] = "auto",
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The model of the vectors, for `search --text` (default: as `ridgeline embed` wrote it).",
        ),
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Measure the recall of an approximate index with N rows; 0: do not measure (default: 500).",
        ),
    ] = 500,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Build an index: a folder that `ridgeline search` reads.

    [dim]Examples:[/]

      ridgeline index movies.npy -o movies.index --model all-MiniLM-L6-v2

      ridgeline index reviews.parquet -o reviews.index --spec IVF1024,SQ8 --ids review

    A search can filter by the other columns of a Parquet file: search --where "year >= 1990".
    """
    from ridgeline.search import Index, read_model_name, read_vectors

    if not out.parent.is_dir():
        raise InputError(f"there is no folder '{out.parent}'; create it first.")
    if sample < 0:
        raise InputError(f"--sample is {sample}; give 0 or more.")
    new_index = Index(spec, metric=metric, device=device, dtype=dtype, model=model)
    vectors, table = read_vectors(file, column)
    new_index.model = model or read_model_name(file)
    id_values = _read_ids(file, table, ids)
    if ids is not None:
        table = table.drop_columns([ids])
        table = table if table.column_names else None
    start_s = time.perf_counter()
    with status("index") as report:
        if not new_index.trained:
            report("training")
            new_index.train(vectors)
        report("adding")
        new_index.add(vectors, id_values, table)
        build_s = time.perf_counter() - start_s
        curve = None
        if sample and len(new_index) and not new_index.exact:
            report("measuring recall")
            curve = new_index.measure_recall(sample)
        report("saving")
        new_index.save(out)
    if as_json:
        print_json({"out": str(out), "build_seconds": build_s, **new_index.stats()})
        return
    if not quiet:
        rate = len(new_index) / build_s
        print_line(
            f"{len(new_index):,} vectors of {new_index.dim} dimensions in {build_s:.2f} s, {rate:,.0f}/s → {out}",
            stderr(),
        )
    print_line(
        f"{new_index.spec}, {new_index.metric}: "
        + ("exact" if new_index.exact else str(curve or "recall was not measured"))
    )
    if curve is not None and curve.truth == "codes":
        print_note("recall was measured against the codes; Refine(Flat) measures it against the vectors.")


def _read_ids(file: Path, table: Any, column: str | None) -> Any:
    if column is None:
        return None
    if table is None:
        raise InputError(f"--ids {column}: '{file}' has no columns; ids can be read from Parquet only.")
    if column not in table.column_names:
        raise unknown(f"column in '{file.name}' named", column, table.column_names)
    values = table[column].combine_chunks()
    if values.null_count:
        raise InputError(f"--ids {column}: the column of '{file}' has rows without an id; give every row one.")
    return values.to_numpy(zero_copy_only=False)
