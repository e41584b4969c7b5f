"""Texts from files: one per line (.txt), a column of a table (.csv, .tsv, .jsonl, .parquet).

Rows are read one after the other and never all at once. `Rows.share` says how far the reading is.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ridgeline.errors import InputError, MissingExtra, unknown

COLUMN = "text"  # unless told otherwise
BATCH = 8_192  # rows of a Parquet file read at a time

csv.field_size_limit(1 << 30)  # a text may be longer than the 128 KB Python stops at


@dataclass(frozen=True)
class Rows:
    """The texts of one file, in order; open until the end of its `with`."""

    texts: Iterator[str]
    share: Callable[[], float]  # 0 … 1 of the file that was read
    column: str  # what it is called; "text" for plain lines
    file: Any

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def read_texts(path: Path, column: str | None = None) -> Rows:
    """Open a file; an empty one, or one without the column, is refused at once."""
    form = format_of(path)
    if not path.is_file():
        raise InputError(f"there is no file '{path}'; check the name.")
    if path.stat().st_size == 0:
        raise InputError(f"'{path}' is empty; there is nothing to embed.")
    if form == "parquet":
        return _parquet(path, column)
    raw: IO[bytes] = path.open("rb")
    size = max(1, path.stat().st_size)
    reader = {"txt": _lines, "csv": _csv, "tsv": _csv, "jsonl": _jsonl}[form]
    texts = reader(path, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw, column)
    try:
        name = next(texts)  # the first thing a reader gives is the name of its column
    except BaseException:
        raw.close()
        raise
    return Rows(texts, lambda: 1.0 if raw.closed else min(1.0, raw.tell() / size), name, raw)


def format_of(path: Path) -> str:
    """By the suffix, before .gz.

    >>> format_of(Path("reviews.jsonl.gz"))
    'jsonl'
    """
    known = {".txt": "txt", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix not in known or (path.suffix == ".gz" and suffix == ".parquet"):
        raise unknown(f"reader for '{path.name}': suffix", suffix, known)
    return known[suffix]


def _lines(path: Path, stream: Any, column: str | None) -> Iterator[str]:
    if column is not None:
        raise InputError(f"'{path}' holds plain lines, so it has no column '{column}'; leave --column out.")
    yield COLUMN
    for number, line in enumerate(_decoded(path, stream)):
        yield line if number else line.removeprefix("\ufeff")


def _csv(path: Path, stream: Any, column: str | None) -> Iterator[str]:
    table = csv.reader(
        _decoded(path, stream, ends=True), delimiter="\t" if format_of(path) == "tsv" else ",", strict=True
    )
    try:
        head = next(table, [])
        if head:
            head[0] = head[0].removeprefix("\ufeff")
        name = column or (head[0] if len(head) == 1 else COLUMN)
        if name not in head:
            raise unknown(f"column in '{path}'", name, head)
        place = head.index(name)
        yield name
        for row in table:
            if not row:
                continue  # a blank line is no row
            if len(row) <= place:
                raise InputError(f"'{path}', line {table.line_num}: no column '{name}' there; mend or drop that line.")
            yield row[place]
    except csv.Error as error:
        raise InputError(f"'{path}', line {table.line_num}: {error}; mend or drop that line.") from error


def _jsonl(path: Path, stream: Any, column: str | None) -> Iterator[str]:
    name = column or COLUMN
    yield name
    for number, line in enumerate(_decoded(path, stream), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.removeprefix("\ufeff") if number == 1 else line)
        except ValueError as error:
            raise InputError(f"'{path}', line {number} is no JSON: {error}.") from error
        except RecursionError:
            raise InputError(f"'{path}', line {number} is nested too deeply; mend or drop that line.") from None
        text = row if isinstance(row, str) and column is None else row.get(name) if isinstance(row, dict) else None
        if not isinstance(text, str):
            if isinstance(row, dict) and name not in row:
                raise unknown(f"column in '{path}', line {number}:", name, row)
            raise InputError(f"'{path}', line {number}: '{name}' is {text!r:.60}; give strings.")
        yield text


def _parquet(path: Path, column: str | None) -> Rows:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtra("reading Parquet", "parquet") from None
    try:
        file = parquet.ParquetFile(path)
    except (OSError, arrow.ArrowInvalid) as error:
        raise InputError(f"'{path}' is no Parquet file: {error}.") from error
    names, total = file.schema_arrow.names, file.metadata.num_rows
    name = column or (names[0] if len(names) == 1 else COLUMN)
    if name not in names:
        raise unknown(f"column in '{path}'", name, names)
    if not total:
        raise InputError(f"'{path}' has no rows; there is nothing to embed.")
    done = [0]

    def texts() -> Iterator[str]:
        for batch in file.iter_batches(BATCH, columns=[name]):
            for text in batch.column(0).to_pylist():
                if not isinstance(text, str):
                    raise InputError(f"'{path}', row {done[0]}: '{name}' is {text!r:.60}; give strings.")
                done[0] += 1
                yield text

    return Rows(texts(), lambda: done[0] / total, name, file)


def _decoded(path: Path, stream: Any, *, ends: bool = False) -> Iterator[str]:
    """Lines of UTF-8; with their ends for readers that need them (a quoted field may hold some)."""
    number = 0
    try:
        for line in stream:
            number += 1
            text = line.decode("utf-8")
            yield text if ends else text.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"'{path}', line {number}: not UTF-8 ({error.reason}); convert the file.") from error
    except (OSError, EOFError) as error:
        raise InputError(f"'{path}' cannot be read: {error}.") from error
