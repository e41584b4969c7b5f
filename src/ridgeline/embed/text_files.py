"""Read texts from files: one per line (.txt), or a column of a table (.csv, .tsv, .jsonl, .parquet).

Rows are read one at a time. `TextRows.share` is the share of the file that was read. UTF-8 and UTF-16 are recognised by
their first bytes, and the delimiter of a .csv file by its header; `TextFormat` sets them.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

from ridgeline.errors import InputError, MissingExtra, unknown

DEFAULT_COLUMN = "text"  # the default
BATCH = 8_192  # rows of a Parquet file read at a time
BLOCK_BYTES = 1 << 16
DELIMITERS = (",", ";", "\t", "|")  # to recognise
# the longer mark first, because that of UTF-32 begins with that of UTF-16
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}

csv.field_size_limit(1 << 30)  # Python's limit of 128 KB is too short for texts


@dataclass(frozen=True)
class TextFormat:
    """How a file of texts is written; None: as the file shows."""

    encoding: str | None = None  # a name that Python knows, such as cp1252
    delimiter: str | None = None  # of .csv and .tsv
    comment: str | None = None  # .csv and .tsv: lines that start with it are skipped

    def __post_init__(self) -> None:
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise InputError(
                    f"there is no encoding '{self.encoding}'; give one that Python knows, such as cp1252."
                ) from None
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise InputError(f"the delimiter is {self.delimiter!r}; give one character, or 'tab'.")
        if self.comment == "":
            raise InputError("the comment is empty; give the characters that start a comment, such as '#'.")


AS_FILE_SHOWS = TextFormat()


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


def read_texts(path: Path, column: str | None = None, text_format: TextFormat = AS_FILE_SHOWS) -> TextRows:
    """Open a file of texts. An empty file, or one without the column, is an InputError."""
    check_file(path, text_format)
    if get_format(path) == "parquet":
        return _open_parquet(path, column)
    raw: IO[bytes] = path.open("rb")
    size = max(1, path.stat().st_size)
    reader = {"txt": _read_lines, "csv": _read_csv, "tsv": _read_csv, "jsonl": _read_jsonl}[get_format(path)]
    texts = reader(path, open_stream(path, raw), column, text_format)
    try:
        name = next(texts)  # a reader yields the name of its column first
    except BaseException:
        raw.close()
        raise
    return TextRows(texts, lambda: 1.0 if raw.closed else min(1.0, raw.tell() / size), name, raw)


def check_file(path: Path, text_format: TextFormat) -> None:
    """Raise InputError for a missing or empty file, and for a setting that its kind of file does not have."""
    kind = get_format(path)
    if not path.is_file():
        raise InputError(f"there is no file '{path}'; check the name.")
    if path.stat().st_size == 0:
        raise InputError(f"'{path}' is empty; there is nothing to embed.")
    known = {"parquet": (), "txt": ("encoding",), "jsonl": ("encoding",)}.get(
        kind, ("encoding", "delimiter", "comment")
    )
    for setting in fields(text_format):
        if getattr(text_format, setting.name) is not None and setting.name not in known:
            raise InputError(f"'{path}' has no {setting.name}; leave --{setting.name} out.")


def open_stream(path: Path, raw: IO[bytes]) -> Any:
    return gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw


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


def _read_lines(path: Path, stream: Any, column: str | None, text_format: TextFormat) -> Iterator[str]:
    if column is not None:
        raise InputError(f"'{path}' holds plain lines, so it has no column '{column}'; leave --column out.")
    yield DEFAULT_COLUMN
    yield from decode_lines(path, stream, text_format.encoding)


def _read_csv(path: Path, stream: Any, column: str | None, text_format: TextFormat) -> Iterator[str]:
    rows = read_csv_rows(path, stream, column, text_format)
    _, head = next(rows)
    name = choose_column(path, column, head)
    index = head.index(name)
    yield name
    for line, row in rows:
        if len(row) <= index:
            raise InputError(f"'{path}', line {line} has no column '{name}'; correct or remove it.")
        yield row[index]


def read_csv_rows(
    path: Path, stream: Any, column: str | None, text_format: TextFormat
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of the header and of every row; `column` helps to recognise the delimiter."""
    lines = decode_lines(path, stream, text_format.encoding, ends=True)
    if text_format.comment is not None:
        lines = _skip_comments(lines, text_format.comment)
    skipped, first = 0, next(lines, "")
    while first and not first.strip():
        skipped, first = skipped + 1, next(lines, "")
    delimiter = text_format.delimiter or ("\t" if get_format(path) == "tsv" else _find_delimiter(first, column))
    table = csv.reader(_chain(first, lines), delimiter=delimiter, strict=True)
    try:
        yield skipped + 1, next(table, [])
        for row in table:
            if row:  # a blank line is not a row
                yield skipped + table.line_num, row
    except csv.Error as error:
        line = skipped + table.line_num
        raise InputError(f"'{path}', line {line}: {error}; correct or remove that line.") from error


def choose_column(path: Path, column: str | None, names: list[str]) -> str:
    """Return the column of texts: the given one, the only one, or "text"."""
    name = column or (names[0] if len(names) == 1 else DEFAULT_COLUMN)
    if name not in names:
        raise unknown(f"column in '{path}'", name, names)
    return name


def _find_delimiter(header: str, column: str | None) -> str:
    """Return the delimiter with which the header has the column; a comma if none does."""
    for delimiter in DELIMITERS:
        if (column or DEFAULT_COLUMN) in next(csv.reader([header], delimiter=delimiter), []):
            return delimiter
    return ","


def _skip_comments(lines: Iterator[str], comment: str) -> Iterator[str]:
    """Replace comment lines by empty ones, so that line numbers stay. There are no comments inside a quoted value."""
    quoted = False
    for line in lines:
        is_comment = not quoted and line.startswith(comment)
        quoted ^= not is_comment and line.count('"') % 2 == 1
        yield "\n" if is_comment else line


def _chain(first: str, lines: Iterator[str]) -> Iterator[str]:
    if first:
        yield first
        yield from lines


def _read_jsonl(path: Path, stream: Any, column: str | None, text_format: TextFormat) -> Iterator[str]:
    name = column or DEFAULT_COLUMN
    yield name
    for number, row in read_json_rows(path, stream, text_format):
        text = row if isinstance(row, str) and column is None else row.get(name) if isinstance(row, dict) else None
        if not isinstance(text, str):
            if isinstance(row, dict) and name not in row:
                raise unknown(f"column in '{path}', line {number}:", name, row)
            raise InputError(f"'{path}', line {number}: '{name}' is {text!r:.60}; give strings.")
        yield text


def read_json_rows(path: Path, stream: Any, text_format: TextFormat) -> Iterator[tuple[int, Any]]:
    """Yield (line, value) of every line that is not blank."""
    for number, line in enumerate(decode_lines(path, stream, text_format.encoding), 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise InputError(f"'{path}', line {number} is no JSON: {error}.") from error
        except RecursionError:
            raise InputError(f"'{path}', line {number} is nested too deeply; correct or remove that line.") from None


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
    name = choose_column(path, column, names)
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


def decode_lines(path: Path, stream: Any, encoding: str | None, *, ends: bool = False) -> Iterator[str]:
    """Yield lines; with their ends for readers that need them (a quoted field can contain some)."""
    number, encoding = 0, encoding or ""
    try:
        start = stream.peek(4)
        encoding = encoding or next((name for mark, name in MARKS.items() if start.startswith(mark)), "utf-8")
        wide = codecs.lookup(encoding).name.startswith(("utf-16", "utf-32"))
        lines = _decode_blocks(stream, encoding) if wide else _decode_each(stream, encoding)
        for text in lines:
            number += 1
            text = text.removeprefix("\ufeff") if number == 1 else text
            yield text if ends else text.rstrip("\r\n")
    except UnicodeError as error:
        label, reason = encoding.upper().removesuffix("-SIG"), getattr(error, "reason", error)
        raise InputError(
            f"'{path}', line {number + 1}: not {label} ({reason}); give its encoding, such as --encoding cp1252."
        ) from error
    except (OSError, EOFError) as error:
        raise InputError(f"'{path}' cannot be read: {error}.") from error


def _decode_each(stream: Any, encoding: str) -> Iterator[str]:
    """Decode line by line, so that an error is that of its line."""
    for line in stream:
        yield line.decode(encoding)


def _decode_blocks(stream: Any, encoding: str) -> Iterator[str]:
    """Decode block by block, for encodings in which the byte of a line end can be a part of another character."""
    decoder = codecs.getincrementaldecoder(encoding)()
    rest = ""
    for block in iter(lambda: stream.read(BLOCK_BYTES), b""):
        *lines, rest = (rest + decoder.decode(block)).split("\n")
        yield from (line + "\n" for line in lines)
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest
