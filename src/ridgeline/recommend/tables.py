"""Read a delimited or Parquet file as typed columns; report rows that do not fit and leave them out.

The first attempt reads with the types. If it fails, the file is read again as text to find the bad rows. A quoted value
may span several lines; an unclosed quote would swallow every line after it and is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, MissingExtra
from ridgeline.recommend.data import Problems

INTEGER, FLOAT, TEXT = "int64", "float64", "string"
# Plain types in a delimited file; in Parquet an id may be an integer, words a list, a moment a timestamp or a date.
ID, WORDS, MOMENT = "id", "words", "moment"
_PLAIN = {ID: TEXT, WORDS: TEXT, MOMENT: INTEGER}
_PATTERNS = {INTEGER: r"^\s*[+-]?[0-8]?\d{1,18}\s*$", FLOAT: r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"}
_NULL = r"^\s*(|NA|N/A|#N/A|nan|NaN|NULL|null|None)\s*$"  # an empty value, as pyarrow and pandas write it
MAX_BAD_SHARE = 0.05  # a larger share of bad rows means that the file is of another kind
MAX_VALUE_CHARS = 40  # characters of a bad value in a message
MAX_BLOCK_BYTES = 2**31 - 1  # limit of the parser


@dataclass(frozen=True)
class _RowLines:
    """The first line of each row of a file, and the number of its lines."""

    first: NDArray[np.int64]
    count: NDArray[np.int64]


def read_columns(
    path: Path,
    kinds: Mapping[str, str],
    problems: Problems,
    *,
    delimiter: str = ",",
    names: Sequence[str] | None = None,
    encoding: str = "utf8",
    quoted: bool = True,
    optional: Sequence[str] = (),
    nullable: Sequence[str] = (),
    required: bool = True,
) -> dict[str, Any]:
    """Return columns by name, as pyarrow arrays.

    `kinds` maps column names to types. `names` are the columns of a file without a header. `optional` columns may be
    missing, and values of `nullable` columns may be empty (null in the result). A `required` file must have rows. Bad
    rows go to `problems`; too many of them raise InputError.
    """
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.csv as pc
    except ImportError:
        raise MissingExtra("reading ratings", "recommend") from None
    if path.suffix == ".parquet":
        return _read_parquet(path, kinds, optional, nullable)
    ids = [name for name, kind in kinds.items() if kind == ID]
    kinds = {name: _PLAIN.get(kind, kind) for name, kind in kinds.items()}
    raw = _read_bytes(path, encoding)
    if len(delimiter) > 1:  # 1M and 10M use '::', parsers need one character; no title has this one
        raw, delimiter = raw.replace(delimiter.encode(), b"\x1f"), "\x1f"
    header = [] if names is not None else _read_header(raw, delimiter)
    columns = list(names) if names is not None else [name.split(":")[0] for name in header]
    missing = [name for name in kinds if name not in columns and name not in optional]
    if missing:
        raise InputError(f"{path} has no column '{missing[0]}'; it has: {', '.join(columns) or 'none'}.")
    present = [name for name in kinds if name in columns]
    twice = [name for name in present if columns.count(name) > 1]
    if twice:
        raise InputError(f"{path} has the column '{twice[0]}' more than once; keep one of them.")
    read_options: dict[str, Any] = {"column_names": columns, "skip_rows": 0 if names is not None else 1}
    quotes = quoted and b'"' in raw
    parse_options = {"delimiter": delimiter, "quote_char": '"' if quoted else False, "newlines_in_values": quotes}
    if not raw.strip() or (names is None and raw.count(b"\n") <= 1 and not raw.partition(b"\n")[2].strip()):
        if required:
            raise InputError(f"{path} has no rows; extract the whole download again.")
        return {name: pa.array([], kinds[name]) for name in present}

    def parse(types: Mapping[str, str], threads: bool, skip: Any = None, block: int | None = None) -> Any:
        return pc.read_csv(
            pa.BufferReader(raw),
            pc.ReadOptions(use_threads=threads, block_size=block, **read_options),
            pc.ParseOptions(invalid_row_handler=skip, **parse_options),
            pc.ConvertOptions(column_types=types, include_columns=present, strings_can_be_null=False),
        )

    try:
        table = parse({name: kinds[name] for name in present}, True)
        if quotes and len(table) + read_options["skip_rows"] != raw.count(b"\n") + (not raw.endswith(b"\n")):
            _find_multiline_values(raw, delimiter, path)  # raises for an unclosed quote
        is_id_missing = any(pa.compute.index(table[name], "").as_py() >= 0 for name in ids)
        if not is_id_missing and not any(table[name].null_count for name in present if name not in nullable):
            return {name: table[name].combine_chunks() for name in present}
    except pa.ArrowInvalid:
        pass  # find the bad row below

    head = read_options["skip_rows"]
    normalized = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")  # the parser's line ends
    multiline = _find_multiline_values(normalized, delimiter, path) if quotes else []
    text, ragged = _read_as_text(lambda skip, block: parse(dict.fromkeys(present, TEXT), False, skip, block), raw, path)
    lines = _locate_rows(normalized, multiline, head, len(text) + len(ragged))
    bad_rows = {row - head: why for row, why in ragged.items()}
    return _filter_rows(text, kinds, present, nullable, ids, bad_rows, lines, path, problems)


def read_names(path: Path, delimiter: str) -> list[str]:
    """Return the names of a file's columns."""
    if path.suffix != ".parquet":
        with path.open("rb") as file:
            return _read_header(file.readline().removeprefix(b"\xef\xbb\xbf").strip(b"\r\n"), delimiter)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} is no complete Parquet file ({error}); write it again.") from None


def _read_as_text(parse: Callable[[Any, int | None], Any], raw: bytes, path: Path) -> tuple[Any, dict[int, str]]:
    """Return (rows as text, {row from 0, header included: why the row is left out})."""
    import pyarrow as pa

    for block in (None, min(len(raw) + 1, MAX_BLOCK_BYTES)):  # a row larger than a block needs a larger block
        ragged: dict[int, str] = {}

        def skip(row: Any, ragged: dict[int, str] = ragged) -> str:
            ragged[row.number - 1] = f"{row.actual_columns} columns, not {row.expected_columns}"
            return "skip"

        try:
            return parse(skip, block), ragged
        except pa.ArrowInvalid as error:
            why = str(error)
    raise InputError(f"{path} cannot be read as a table ({why}); write it again.")


def _find_multiline_values(raw: bytes, delimiter: str, path: Path) -> list[tuple[int, int]]:
    """Return (line, number of line breaks) of each quoted value that spans lines; a new value must follow it.

    >>> _find_multiline_values(b'item,title\\n1,"Toy\\nStory"\\n', ",", Path("items.csv"))
    [(2, 1)]
    """
    after = (b"", b"\r", b"\n", delimiter.encode())
    # A quote opens a value only at its start; inside, a doubled quote means one quote.
    field = re.compile(rb'"(?<![^\r\n%s]")(?:[^"]++|"")*+("?)' % re.escape(delimiter.encode()))
    multiline, line, last = [], 1, 0
    for value in field.finditer(raw):
        breaks = value[0].count(b"\n")
        if value[1] and not breaks:
            continue
        line += raw.count(b"\n", last, value.start())
        last = value.start()
        if not value[1] or raw[value.end() : value.end() + 1] not in after:
            raise InputError(
                f"{path} line {line}: the quote that opens a value is not closed in its row; remove or close it."
            )
        multiline.append((line, breaks))
    return multiline


def _locate_rows(raw: bytes, multiline: Sequence[tuple[int, int]], header_lines: int, rows: int) -> _RowLines:
    count = raw.count(b"\n") + (not raw.endswith(b"\n"))
    begins = np.ones(count, bool)
    if raw.startswith(b"\n") or b"\n\n" in raw:  # the parser skips empty lines
        ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == ord("\n"))
        begins[: len(ends)] = np.diff(ends, prepend=-1) > 1
    for line, breaks in multiline:
        begins[line : line + breaks] = False
    first = np.flatnonzero(begins) + 1
    if len(first) != header_lines + rows:
        return _RowLines(np.arange(1 + header_lines, 1 + header_lines + rows), np.ones(rows, np.int64))
    line_counts = np.ones(len(first), np.int64)
    for line, breaks in multiline:
        line_counts[np.searchsorted(first, line, "right") - 1] += breaks
    return _RowLines(first[header_lines:], line_counts[header_lines:])


def _filter_rows(
    table: Any,
    kinds: Mapping[str, str],
    columns: Sequence[str],
    nullable: Sequence[str],
    ids: Sequence[str],
    ragged: Mapping[int, str],
    lines: _RowLines,
    path: Path,
    problems: Problems,
) -> dict[str, Any]:
    """Return the good rows. A bad row counts as its number of lines, because a quote may have joined several rows."""
    import pyarrow.compute as pc

    rejected_lines = 0

    def reject(row: int, why: str) -> None:
        nonlocal rejected_lines
        rejected_lines += int(lines.count[row])
        problems.add("unreadable", f"{path.name} line {lines.first[row]}: {why}", int(lines.count[row]))

    for row, why in ragged.items():
        reject(row, why)
    good = np.ones(len(table), bool)
    rows = np.delete(np.arange(len(lines.first)), np.array(list(ragged), np.int64))
    for name in columns:
        if name in ids:
            empty = pc.equal(table[name], "").to_numpy()
            for at in np.flatnonzero(empty & good):
                reject(rows[at], f"{name} is empty")
            good &= ~empty
        if kinds[name] == TEXT:
            continue
        fits = pc.match_substring_regex(table[name], _PATTERNS[kinds[name]]).to_numpy()
        if name in nullable:
            fits = fits | pc.match_substring_regex(table[name], _NULL).to_numpy()
        for at in np.flatnonzero(~fits & good):
            value = table[name][int(at)].as_py()
            short = value if len(value) <= MAX_VALUE_CHARS else value[: MAX_VALUE_CHARS - 1] + "…"
            reject(rows[at], f"{name} is '{short}', not a number")
        good &= fits
    count = int(lines.count.sum())
    if rejected_lines > max(1, MAX_BAD_SHARE * count):
        raise InputError(
            f"{path}: {rejected_lines:,} of {count:,} rows cannot be read "
            f"({problems.examples['unreadable'][0]}); download it again."
        )
    table = table.filter(good)

    def convert(name: str) -> Any:
        if kinds[name] == TEXT:
            return table[name].combine_chunks()
        column = pc.utf8_ltrim(pc.utf8_trim_whitespace(table[name]), "+")
        if name in nullable:
            column = pc.if_else(pc.match_substring_regex(column, _NULL), None, column)
        return column.cast(kinds[name]).combine_chunks()

    return {name: convert(name) for name in columns}


def _read_parquet(
    path: Path, kinds: Mapping[str, str], optional: Sequence[str], nullable: Sequence[str]
) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        known = [name for name in pq.read_schema(path).names if name in kinds]
        table = pq.read_table(path, columns=known)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} is no complete Parquet file ({error}); write it again.") from None
    missing = [name for name in kinds if name not in table.column_names and name not in optional]
    if missing:
        raise InputError(f"{path} has no column '{missing[0]}'; it has: {', '.join(read_names(path, ''))}.")
    columns = {}
    for name in (n for n in kinds if n in table.column_names):
        column = table[name].combine_chunks()
        table = table.drop_columns([name])  # the chunks, now that they are copied
        if column.null_count and name not in nullable:
            raise InputError(
                f"{path}: column '{name}' has {column.null_count:,} empty values; fill or drop those rows."
            )
        converted = _convert_column(column, kinds[name])
        if converted is None:
            plain = _PLAIN.get(kinds[name], kinds[name])
            raise InputError(f"{path}: column '{name}' is {column.type}, not {plain}; convert it.")
        if (
            kinds[name] == ID
            and pa.types.is_string(converted.type)
            and (empty := pc.sum(pc.equal(converted, "")).as_py())
        ):
            raise InputError(f"{path}: column '{name}' has {empty:,} empty values; fill or drop those rows.")
        columns[name] = converted
    return columns


def _convert_column(column: Any, kind: str) -> Any | None:
    """Convert a Parquet column to `kind`; a moment becomes seconds since 1970. None if it is of another kind."""
    import pyarrow as pa

    column_type, is_ = column.type, pa.types
    if (kind == ID and is_.is_integer(column_type)) or (
        kind == WORDS and (is_.is_list(column_type) or is_.is_large_list(column_type))
    ):
        return column
    if kind == MOMENT and (is_.is_timestamp(column_type) or is_.is_date(column_type)):
        return column.cast(pa.timestamp("s", getattr(column_type, "tz", None)), safe=False).cast(INTEGER)
    if is_.is_temporal(column_type) and kind in (INTEGER, FLOAT, MOMENT):
        return None  # a number would be days or an unknown unit
    try:
        return column.cast(_PLAIN.get(kind, kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _read_bytes(path: Path, encoding: str) -> bytes:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no {path.name} in {path.parent}; extract the whole download again.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        raw.decode("utf8")
    except UnicodeDecodeError as error:
        if encoding == "utf8":
            line = raw.count(b"\n", 0, error.start) + 1
            raise InputError(f"{path} line {line} is not UTF-8; convert the file (iconv -t utf8).") from None
        return raw.decode(encoding).encode()
    return raw


def _read_header(raw: bytes, delimiter: str) -> list[str]:
    first = raw.partition(b"\n")[0].decode(errors="replace").strip("\r")
    return [word.strip().strip('"') for word in first.split(delimiter)] if first else []
