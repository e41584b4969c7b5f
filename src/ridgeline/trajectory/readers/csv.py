"""CSV, TSV and similar tables with a header, also EuRoC's `#timestamp [ns],…`.

If the delimiter is not a comma, `0,1` is a number, unless the table also has numbers like `0.1`.

ridgeline resample imu.csv --hz 100 -o imu.parquet
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import re
from collections.abc import Iterable, Sequence
from io import BytesIO, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.readers.streams import DECIMAL_COMMA, ReadOptions, build_table_streams, read_head
from ridgeline.trajectory.stream import Stream

SUFFIXES = (".csv", ".tsv", ".txt")
_UNIT = re.compile(r"\s*\[[^\]\d]*\]$|\s*\[[^\]]*[a-zA-Z^][^\]]*\]$")  # [m s^-1], but not the index [0]
_TIME_UNIT = re.compile(r"\[(ns|us|ms|s|nsec|sec)\]$")  # a time column keeps its unit in its name
_QUOTED = re.compile(r'"[^"]*"')
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*")  # or a decimal comma: ambiguous
_SNIFFED_BYTES = 65536
_SNIFFED_LINES = 200  # lines to search for decimal commas: the first rows may be whole numbers


def sniff(path: Path) -> bool:
    """Whether the file has a header with a delimiter and numbers below it."""
    lines = head(path)
    if len(lines) < 2:
        return path.suffix.lower() in SUFFIXES and (bool(lines) or _has_other_encoding(path))
    delimiter = _delimiter(lines[0])
    if delimiter is None:
        return path.suffix.lower() in SUFFIXES
    names, first = _cells(lines[0], delimiter), _cells(lines[1], delimiter)
    numbers = [c for c in first if is_number(c) or DECIMAL_COMMA.fullmatch(c)]
    return len(names) == len(first) and len(numbers) * 2 >= len(first) and not is_number(names[0])


def read(path: Path, topics: Sequence[str] | None = None, options: ReadOptions | None = None) -> list[Stream]:
    options = options or ReadOptions()
    lines = _numbered_lines(path, _SNIFFED_LINES, options)
    if not lines:
        _refuse_encoding(path, options)
        raise InputError(f"'{path}' has no line with text; give a table with a header.")
    at, header = next(iter(lines.items()))
    delimiter = options.delimiter or _delimiter(header)
    if delimiter is None:
        raise InputError(f"'{path}' has no columns (its first line is {header[:40]!r}); give a table with a header.")
    names = _cells(header, delimiter)
    if is_number(names[0]):
        raise InputError(f"'{path}' has no header (its first line is {header[:40]!r}); add one with a time column.")
    del lines[at]
    decimal = "."
    if delimiter != "," and (comma := _decimal_comma(lines.values(), delimiter)):
        decimal = ","
        options.report(f"'{path}' is read with decimal commas, like {comma}.")
    skip = min(lines, default=at + 1) - 1  # also skip blank lines before the first row
    return read_named(path, [clean(n) for n in names], delimiter, skip, topics, options, decimal)


def read_named(
    path: Path,
    names: list[str],
    delimiter: str,
    skip: int,
    topics: Sequence[str] | None,
    options: ReadOptions,
    decimal: str = ".",
) -> list[Stream]:
    """Read a delimited text with columns `names`, after `skip` lines."""
    try:
        import pyarrow.csv as arrow_csv
        from pyarrow import ArrowInvalid
    except ImportError:
        raise MissingExtra("reading CSV files", "robot") from None
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise InputError(f"'{path}' has two columns called '{twice}'; rename one.")

    def read_table(source: Any) -> Any:
        def parse(empty: Iterable[str] = ()) -> Any:
            known = arrow_csv.ConvertOptions().null_values
            return arrow_csv.read_csv(
                source,
                read_options=arrow_csv.ReadOptions(column_names=names, skip_rows=skip),
                parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
                convert_options=arrow_csv.ConvertOptions(decimal_point=decimal, null_values=[*known, *empty]),
            )

        table = parse()
        blanks = _find_blank_cells(table)
        if blanks:  # they made text of a column of numbers
            if hasattr(source, "seek"):
                source.seek(0)
            table = parse(blanks)
        return table

    text = _decode(path, options)
    try:
        try:
            table = read_table(path if text is None else BytesIO(text))
        except ArrowInvalid:
            raw = path.read_bytes() if text is None else text
            if not (unfinished := len(raw.rpartition(b"\n")[2])):
                raise
            table = read_table(BytesIO(raw[:-unfinished]))
            options.report(f"'{path}' was cut off within its last line; that line is left out.")
    except ArrowInvalid as error:
        where = (
            _find_bad_row(path if text is None else BytesIO(text), len(names), delimiter, skip)
            or "is no clean table: " + str(error).splitlines()[0][:120]
        )
        raise InputError(f"'{path}' {where}; mend or drop that row.") from error
    if not table.num_rows:
        raise InputError(f"'{path}' has a header and no rows; record or export it again.")
    return build_table_streams(table, topics, options, path, row=lambda i: f"line {i + skip + 1}")


def _find_blank_cells(table: Any) -> list[str]:
    """Return the different cells that consist of blanks."""
    import pyarrow as arrow
    from pyarrow import compute

    blanks: dict[str, None] = {}
    for column in table.columns:
        if arrow.types.is_string(column.type):
            cells = compute.unique(column.filter(compute.utf8_is_space(column)))
            blanks |= dict.fromkeys(cells.to_pylist())
    return list(blanks)


def head(path: Path, count: int = 2) -> list[str]:
    """Return the first lines of a table that are not blank; an empty list if the file is not text."""
    return list(_numbered_lines(path, count, ReadOptions()).values())


def _numbered_lines(path: Path, count: int, options: ReadOptions) -> dict[int, str]:
    """Return {line number from 1: line} of the first lines that are not blank, with pyarrow's line ends.

    Comments before the header are left out; a line with # is the header if the next line has numbers (EuRoC).
    """
    raw = read_head(path, _SNIFFED_BYTES)
    encoding = _choose_encoding(raw, options)
    if b"\0" in raw and encoding == "utf-8-sig":
        return {}
    text = codecs.getincrementaldecoder(encoding)("replace").decode(raw, final=len(raw) < _SNIFFED_BYTES)
    lines = [(i, line) for i, line in enumerate(re.split(r"\r\n|\n|\r", text), 1) if line.strip()]
    if options.comment is not None:
        lines = [(i, line) for i, line in lines if not line.startswith(options.comment)]
    while len(lines) > 1 and lines[0][1].startswith(("#", "%")) and not _has_numbers(lines[1][1], options):
        del lines[0]
    numbered = dict(lines[:count])
    return {} if any("\ufffd" in line for line in islice(numbered.values(), 2)) else numbered


def _has_numbers(line: str, options: ReadOptions) -> bool:
    delimiter = options.delimiter or _delimiter(line)
    return is_number(line.split(delimiter)[0] if delimiter else line)


def _choose_encoding(raw: bytes, options: ReadOptions) -> str:
    if options.encoding is not None:
        return options.encoding
    return "utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"


def _decode(path: Path, options: ReadOptions) -> bytes | None:
    """Return the text in UTF-8 with comment lines blank; None if the file is that already."""
    encoding = _choose_encoding(read_head(path, 2), options)
    if encoding == "utf-8-sig" and options.comment is None:
        return None
    try:
        text = path.read_bytes().decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(
            f"'{path}' is no text in {encoding} (byte {error.start} is {error.object[error.start]:#04x}); "
            "give another --encoding."
        ) from None
    if options.comment is not None:
        text = re.sub(rf"(?m)^{re.escape(options.comment)}.*$", "", text)
    return text.encode()


def _refuse_encoding(path: Path, options: ReadOptions) -> None:
    """Raise InputError if the first lines are not text in the encoding of the file."""
    raw = read_head(path, _SNIFFED_BYTES)
    encoding = _choose_encoding(raw, options)
    try:
        codecs.getincrementaldecoder(encoding)().decode(raw, final=len(raw) < _SNIFFED_BYTES)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(
            f"'{path}' is no text in {encoding.removesuffix('-sig').upper()} (line {line} has the byte "
            f"{error.object[error.start]:#04x}); give its encoding, for example --encoding cp1252."
        ) from None
    if b"\0" in raw and encoding == "utf-8-sig":
        raise InputError(f"'{path}' has zero bytes and is no text in UTF-8; give its encoding (--encoding utf-16-le).")


def _has_other_encoding(path: Path) -> bool:
    """Whether the file looks like text in another encoding: a UTF-16 mark, or no zero bytes."""
    raw = read_head(path, _SNIFFED_BYTES)
    return raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" not in raw


def is_number(cell: str) -> bool:
    try:
        float(cell.strip().strip('"'))
    except ValueError:
        return False
    return True


def clean(name: str) -> str:
    """Remove quotes, EuRoC's # and the unit in brackets from a header cell.

    >>> clean("#timestamp [ns]"), clean('"q[0]"'), clean("w_RS_S_x [rad s^-1]")
    ('timestamp [ns]', 'q[0]', 'w_RS_S_x')
    """
    plain = name.strip().strip('"').lstrip("#% ").strip()
    return plain if _TIME_UNIT.search(plain) else _UNIT.sub("", plain) or plain


def _find_bad_row(source: Path | BytesIO, columns: int, delimiter: str, skip: int) -> str | None:
    """Describe the first row whose number of columns differs from the header."""
    with source.open("rb") if isinstance(source, Path) else source as binary:
        file = TextIOWrapper(binary, encoding="utf-8-sig", errors="replace", newline="")
        rows, row_line = csv.reader(file, delimiter=delimiter), 1
        with contextlib.suppress(csv.Error):
            for row in rows:
                if row and row_line > skip and len(row) != columns:
                    begins = delimiter.join(row).splitlines()[0][:40] if any(row) else ""
                    cure = f" (--comment '{begins[0]}' skips such lines)" if begins.startswith(("#", "%")) else ""
                    return f"has {len(row)} columns in line {row_line} ({begins!r}) and {columns} in its header{cure}"
                row_line = rows.line_num + 1
    return None


def _cells(line: str, delimiter: str) -> list[str]:
    """Split a line into cells; with an unclosed quote, split at every delimiter.

    >>> _cells('0.0,"hello, world",1.5', ","), _cells('0.1,"2,2', ",")
    (['0.0', 'hello, world', '1.5'], ['0.1', '"2', '2'])
    """
    return line.split(delimiter) if line.count('"') % 2 else next(csv.reader([line], delimiter=delimiter))


def _decimal_comma(lines: Iterable[str], delimiter: str) -> str | None:
    """Return the first number with a decimal comma, or None if another number has a decimal point.

    >>> _decimal_comma(["0;1,000", "0,1;2,5"], ";"), _decimal_comma(["0;1,000"], ";"), _decimal_comma(["0.1;1,5"], ";")
    ('0,1', None, None)
    """
    cells = [cell for line in lines for cell in _cells(line, delimiter)]
    if any("." in c and is_number(c) for c in cells):
        return None
    return next((c.strip() for c in cells if DECIMAL_COMMA.fullmatch(c) and not _THOUSANDS.fullmatch(c)), None)


def _delimiter(line: str) -> str | None:
    """Return the most frequent delimiter outside quotes, or None.

    >>> _delimiter('time;"pos, x";"pos, y, z"')
    ';'
    """
    bare = _QUOTED.sub("", line)
    counts = {d: bare.count(d) for d in (",", "\t", ";", "|")}
    best = max(counts, key=lambda d: counts[d])
    return best if counts[best] else None
