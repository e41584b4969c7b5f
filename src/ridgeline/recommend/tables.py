"""A delimited or Parquet file as columns of the types they must have; rows that do not fit are named, not guessed.

The quick way reads with the types at once. Only if that fails is the file read again as text, to find the rows. A
quoted value may go over several lines; a quote that is never closed would take every line after it, and is refused.
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

WHOLE, REAL, TEXT = "int64", "float64", "string"
# Plain in a delimited file; in Parquet an id may be whole, words may be a list, a moment may be a timestamp or a date.
ID, WORDS, MOMENT = "id", "words", "moment"
_PLAIN = {ID: TEXT, WORDS: TEXT, MOMENT: WHOLE}
_LOOKS = {WHOLE: r"^\s*[+-]?[0-8]?\d{1,18}\s*$", REAL: r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"}
TOO_MANY = 0.05  # share of rows that cannot be read at which the file is not what it seems
SHOWN = 40  # characters of a bad value
MOST_BLOCK = 2**31 - 1  # bytes that the parser takes at a time


@dataclass(frozen=True)
class _Lines:
    """Where the rows of a file stand: the line each begins in, and how many lines it takes."""

    first: NDArray[np.int64]
    taken: NDArray[np.int64]


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
    needed: bool = True,
) -> dict[str, Any]:
    """Columns by name, as pyarrow arrays. `names` for files without a header; `optional` columns may be missing.

    A file that is `needed` must have rows.
    """
    try:
        import pyarrow as pa
        import pyarrow.csv as pc
    except ImportError:
        raise MissingExtra("reading ratings", "recommend") from None
    if path.suffix == ".parquet":
        return _parquet(path, kinds, optional)
    kinds = {name: _PLAIN.get(kind, kind) for name, kind in kinds.items()}
    raw = _bytes(path, encoding)
    if len(delimiter) > 1:  # 1M and 10M part by '::', and no parser takes two characters; this one is in no title
        raw, delimiter = raw.replace(delimiter.encode(), b"\x1f"), "\x1f"
    header = [] if names is not None else _header(raw, delimiter)
    columns = list(names) if names is not None else [name.split(":")[0] for name in header]
    missing = [name for name in kinds if name not in columns and name not in optional]
    if missing:
        raise InputError(f"{path} has no column '{missing[0]}'; it has: {', '.join(columns) or 'none'}.")
    wanted = [name for name in kinds if name in columns]
    reading: dict[str, Any] = {"column_names": columns, "skip_rows": 0 if names is not None else 1}
    quotes = quoted and b'"' in raw
    parsing = {"delimiter": delimiter, "quote_char": '"' if quoted else False, "newlines_in_values": quotes}
    if not raw.strip() or (names is None and raw.count(b"\n") <= 1 and not raw.partition(b"\n")[2].strip()):
        if needed:
            raise InputError(f"{path} has no rows; extract the whole download again.")
        return {name: pa.array([], kinds[name]) for name in wanted}

    def parsed(types: Mapping[str, str], threads: bool, skip: Any = None, block: int | None = None) -> Any:
        return pc.read_csv(
            pa.BufferReader(raw),
            pc.ReadOptions(use_threads=threads, block_size=block, **reading),
            pc.ParseOptions(invalid_row_handler=skip, **parsing),
            pc.ConvertOptions(column_types=types, include_columns=wanted, strings_can_be_null=False),
        )

    try:
        table = parsed({name: kinds[name] for name in wanted}, True)
        if quotes and len(table) + reading["skip_rows"] != raw.count(b"\n") + (not raw.endswith(b"\n")):
            _folds(raw, delimiter, path)  # lines are no rows where a value goes over several of them
        if not any(table[name].null_count for name in wanted):
            return {name: table[name].combine_chunks() for name in wanted}
    except pa.ArrowInvalid:
        pass  # some row does not fit: find out which

    head = reading["skip_rows"]
    ends = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")  # lines as the parser sees them
    folds = _folds(ends, delimiter, path) if quotes else []
    text, ragged = _as_text(lambda skip, block: parsed(dict.fromkeys(wanted, TEXT), False, skip, block), raw, path)
    lines = _lines(ends, folds, head, len(text) + len(ragged))
    return _sifted(text, kinds, wanted, {row - head: why for row, why in ragged.items()}, lines, path, problems)


def _as_text(parsed: Callable[[Any, int | None], Any], raw: bytes, path: Path) -> tuple[Any, dict[int, str]]:
    """(the rows as text, those left out for their columns: row from 0, a header counted → why)."""
    import pyarrow as pa

    for block in (None, min(len(raw) + 1, MOST_BLOCK)):  # a row that is larger than a block needs one of its own
        ragged: dict[int, str] = {}

        def skip(row: Any, ragged: dict[int, str] = ragged) -> str:
            ragged[row.number - 1] = f"{row.actual_columns} columns, not {row.expected_columns}"
            return "skip"

        try:
            return parsed(skip, block), ragged
        except pa.ArrowInvalid as error:
            why = str(error)
    raise InputError(f"{path} cannot be read as a table ({why}); write it again.")


def _folds(raw: bytes, delimiter: str, path: Path) -> list[tuple[int, int]]:
    """(line, line breaks in it) of each quoted value that goes over several lines; what follows it must be a new value.

    >>> _folds(b'item,title\\n1,"Toy\\nStory"\\n', ",", Path("items.csv"))
    [(2, 1)]
    """
    after = (b"", b"\r", b"\n", delimiter.encode())
    # A quote opens a value only where a value begins; in it a doubled quote stands for one.
    field = re.compile(rb'"(?<![^\r\n%s]")(?:[^"]++|"")*+("?)' % re.escape(delimiter.encode()))
    found, line, last = [], 1, 0
    for value in field.finditer(raw):
        breaks = value[0].count(b"\n")
        if value[1] and not breaks:
            continue
        line += raw.count(b"\n", last, value.start())
        last = value.start()
        if not value[1] or raw[value.end() : value.end() + 1] not in after:
            raise InputError(
                f"{path} line {line}: the quote that opens a value here is not closed in its row; remove or close it."
            )
        found.append((line, breaks))
    return found


def _lines(raw: bytes, folds: Sequence[tuple[int, int]], head: int, rows: int) -> _Lines:
    count = raw.count(b"\n") + (not raw.endswith(b"\n"))
    begins = np.ones(count, bool)
    if raw.startswith(b"\n") or b"\n\n" in raw:  # the parser passes over empty lines
        ends = np.flatnonzero(np.frombuffer(raw, np.uint8) == ord("\n"))
        begins[: len(ends)] = np.diff(ends, prepend=-1) > 1
    for line, breaks in folds:
        begins[line : line + breaks] = False
    first = np.flatnonzero(begins) + 1
    if len(first) != head + rows:
        return _Lines(np.arange(1 + head, 1 + head + rows), np.ones(rows, np.int64))
    taken = np.ones(len(first), np.int64)
    for line, breaks in folds:
        taken[np.searchsorted(first, line, "right") - 1] += breaks
    return _Lines(first[head:], taken[head:])


def _sifted(
    table: Any,
    kinds: Mapping[str, str],
    wanted: Sequence[str],
    ragged: Mapping[int, str],
    lines: _Lines,
    path: Path,
    problems: Problems,
) -> dict[str, Any]:
    """The rows that fit. One that does not counts as many as the lines it takes: a quote may have made one of them."""
    import pyarrow.compute as pc

    bad = 0

    def leave(row: int, why: str) -> None:
        nonlocal bad
        bad += int(lines.taken[row])
        problems.add("unreadable", f"{path.name} line {lines.first[row]}: {why}", int(lines.taken[row]))

    for row, why in ragged.items():
        leave(row, why)
    good = np.ones(len(table), bool)
    rows = np.delete(np.arange(len(lines.first)), np.array(list(ragged), np.int64))
    for name in wanted:
        if kinds[name] == TEXT:
            continue
        fits = pc.match_substring_regex(table[name], _LOOKS[kinds[name]]).to_numpy()
        for at in np.flatnonzero(~fits & good):
            value = table[name][int(at)].as_py()
            shown = value if len(value) <= SHOWN else value[: SHOWN - 1] + "…"
            leave(rows[at], f"{name} is '{shown}', not a number")
        good &= fits
    count = int(lines.taken.sum())
    if bad > max(1, TOO_MANY * count):
        raise InputError(
            f"{path}: {bad:,} of {count:,} rows cannot be read ({problems.named['unreadable'][0]}); download it again."
        )
    table = table.filter(good)
    return {
        name: pc.utf8_ltrim(pc.utf8_trim_whitespace(table[name]), "+").cast(kinds[name]).combine_chunks()
        if kinds[name] != TEXT
        else table[name].combine_chunks()
        for name in wanted
    }


def _parquet(path: Path, kinds: Mapping[str, str], optional: Sequence[str]) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} is no whole Parquet file ({error}); write it again.") from None
    missing = [name for name in kinds if name not in table.column_names and name not in optional]
    if missing:
        raise InputError(f"{path} has no column '{missing[0]}'; it has: {', '.join(table.column_names)}.")
    found = {}
    for name in (n for n in kinds if n in table.column_names):
        column = table[name].combine_chunks()
        if column.null_count:
            raise InputError(
                f"{path}: column '{name}' has {column.null_count:,} empty values; fill or drop those rows."
            )
        made = _as_kind(column, kinds[name])
        if made is None:
            plain = _PLAIN.get(kinds[name], kinds[name])
            raise InputError(f"{path}: column '{name}' is {column.type}, not {plain}; convert it.")
        found[name] = made
    return found


def _as_kind(column: Any, kind: str) -> Any | None:
    """A moment becomes whole seconds since 1970. None where a column is not of that kind."""
    import pyarrow as pa

    held, is_ = column.type, pa.types
    if (kind == ID and is_.is_integer(held)) or (kind == WORDS and (is_.is_list(held) or is_.is_large_list(held))):
        return column
    if kind == MOMENT and (is_.is_timestamp(held) or is_.is_date(held)):
        return column.cast(pa.timestamp("s", getattr(held, "tz", None)), safe=False).cast(WHOLE)
    if is_.is_temporal(held) and kind in (WHOLE, REAL, MOMENT):
        return None  # a number would be one of days, or of a unit that nobody named
    try:
        return column.cast(_PLAIN.get(kind, kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _bytes(path: Path, encoding: str) -> bytes:
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


def _header(raw: bytes, delimiter: str) -> list[str]:
    first = raw.partition(b"\n")[0].decode().strip("\r")
    return [word.strip().strip('"') for word in first.split(delimiter)] if first else []
