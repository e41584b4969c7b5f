"""Read texts from files: one per line (.txt), or a column of a table (.csv, .tsv, .jsonl, .parquet).

Rows are read one at a time. `TextRows.share` is the share of the file that was read.
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

DEFAULT_COLUMN = "text"  # the default
BATCH = 8_192  # rows of a Parquet file read at a time

csv.field_size_limit(1 << 30)  # Python's limit of 128 KB is too short for texts


@dataclass(frozen=True)
class TextRows:
    """The texts of one file, in order; the file is open until the end of the `with` block."""

    texts: Iterator[str]
    share: Callable[[], float]  # 0 … 1 of the file that was read
    column: str  # its name; "text" for plain lines
    file: Any

    def __enter__(self) -> TextRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def read_texts(path: Path, column: str | None = None) -> TextRows:
    """Open a file of texts. An empty file, or one without the column, is an InputError."""
    form = get_format(path)
    if not path.is_file():
        raise InputError(f"there is no file '{path}'; check the name.")
    if path.stat().st_size == 0:
        raise InputError(f"'{path}' is empty; there is nothing to embed.")
    if form == "parquet":
        return _open_parquet(path, column)
    raw: IO[bytes] = path.open("rb")
    size = max(1, path.stat().st_size)
    reader = {"txt": _read_lines, "csv": _read_csv, "tsv": _read_csv, "jsonl": _read_jsonl}[form]
    texts = reader(path, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw, column)
    try:
        name = next(texts)  # a reader yields the name of its column first
    except BaseException:
        raw.close()
        raise
    return TextRows(texts, lambda: 1.0 if raw.closed else min(1.0, raw.tell() / size), name, raw)


def get_format(path: Path) -> str:
    """The format by the suffix before .gz.

    >>> get_format(Path("reviews.jsonl.gz"))
    'jsonl'
    """
    formats = {
        ".txt": "txt",
        ".csv": "csv",
        ".tsv": "tsv",
        ".jsonl": "jsonl",
        ".ndjson": "jsonl",
        ".parquet": "parquet",
    }
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix not in formats or (path.suffix == ".gz" and suffix == ".parquet"):
        raise unknown(f"reader for '{path.name}': suffix", suffix, formats)
    return formats[suffix]


def _read_lines(path: Path, stream: Any, column: str | None) -> Iterator[str]:
    if column is not None:
        raise InputError(f"'{path}' holds plain lines, so it has no column '{column}'; leave --column out.")
    yield DEFAULT_COLUMN
    for number, line in enumerate(_decode_lines(path, stream)):
        yield line if number else line.removeprefix("\ufeff")


def _read_csv(path: Path, stream: Any, column: str | None) -> Iterator[str]:
    table = csv.reader(
        _decode_lines(path, stream, ends=True), delimiter="\t" if get_format(path) == "tsv" else ",", strict=True
    )
    try:
        head = next(table, [])
        if head:
            head[0] = head[0].removeprefix("\ufeff")
        name = column or (head[0] if len(head) == 1 else DEFAULT_COLUMN)
        if name not in head:
            raise unknown(f"column in '{path}'", name, head)
        index = head.index(name)
        yield name
        for row in table:
            if not row:
                continue  # a blank line is not a row
            if len(row) <= index:
                raise InputError(f"'{path}', line {table.line_num} has no column '{name}'; correct or remove it.")
            yield row[index]
    except csv.Error as error:
        raise InputError(f"'{path}', line {table.line_num}: {error}; correct or remove that line.") from error


def _read_jsonl(path: Path, stream: Any, column: str | None) -> Iterator[str]:
    name = column or DEFAULT_COLUMN
    yield name
    for number, line in enumerate(_decode_lines(path, stream), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.removeprefix("\ufeff") if number == 1 else line)
        except ValueError as error:
            raise InputError(f"'{path}', line {number} is no JSON: {error}.") from error
        except RecursionError:
            raise InputError(f"'{path}', line {number} is nested too deeply; correct or remove that line.") from None
        text = row if isinstance(row, str) and column is None else row.get(name) if isinstance(row, dict) else None
        if not isinstance(text, str):
            if isinstance(row, dict) and name not in row:
                raise unknown(f"column in '{path}', line {number}:", name, row)
            raise InputError(f"'{path}', line {number}: '{name}' is {text!r:.60}; give strings.")
        yield text


def _open_parquet(path: Path, column: str | None) -> TextRows:
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
    name = column or (names[0] if len(names) == 1 else DEFAULT_COLUMN)
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

    return TextRows(texts(), lambda: done[0] / total, name, file)


def _decode_lines(path: Path, stream: Any, *, ends: bool = False) -> Iterator[str]:
    """Lines of UTF-8; with their ends for readers that need them (a quoted field can contain some)."""
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
