"""CSV, TSV and the like with a header, EuRoC's `#timestamp [ns],…` among them.

Where no comma parts the cells, `0,1` is a number; a table with `0.1` beside it has decimal points only.

ridgeline resample imu.csv --hz 100 -o imu.parquet
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import re
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.readers.fields import Ask, opening
from ridgeline.trajectory.readers.tabular import DECIMAL_COMMA, streams_of_table
from ridgeline.trajectory.stream import Stream

SUFFIXES = (".csv", ".tsv", ".txt")
_UNIT = re.compile(r"\s*\[[^\]\d]*\]$|\s*\[[^\]]*[a-zA-Z^][^\]]*\]$")  # [m s^-1], but not the index [0]
_KEEPS = re.compile(r"\[(ns|us|ms|s|nsec|sec)\]$")  # the unit of a time column is part of its name
_QUOTED = re.compile(r'"[^"]*"')
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*")  # or a decimal comma: nobody can tell
_LOOKED_AT = 200  # lines, for decimal commas: the first rows may be whole numbers


def sniff(path: Path) -> bool:
    """A header with a delimiter and numbers under it."""
    lines = head(path)
    if len(lines) < 2:
        return path.suffix.lower() in SUFFIXES and (bool(lines) or _foreign(path))
    delimiter = _delimiter(lines[0])
    if delimiter is None:
        return path.suffix.lower() in SUFFIXES
    names, first = _cells(lines[0], delimiter), _cells(lines[1], delimiter)
    numbers = [c for c in first if is_number(c) or DECIMAL_COMMA.fullmatch(c)]
    return len(names) == len(first) and len(numbers) * 2 >= len(first) and not is_number(names[0])


def read(path: Path, topics: Sequence[str] | None = None, ask: Ask | None = None) -> list[Stream]:
    ask = ask or Ask()
    lines = _numbered(path, _LOOKED_AT)
    if not lines:
        raise InputError(f"'{path}' is no text in UTF-8; save it as UTF-8.")
    at, header = next(iter(lines.items()))
    delimiter = _delimiter(header)
    if delimiter is None:
        raise InputError(f"'{path}' has no columns (its first line is {header[:40]!r}); give a table with a header.")
    names = _cells(header, delimiter)
    if is_number(names[0]):
        raise InputError(f"'{path}' has no header (its first line is {header[:40]!r}); add one with a time column.")
    del lines[at]
    decimal = "."
    if delimiter != "," and (comma := _decimal_comma(lines.values(), delimiter)):
        decimal = ","
        ask.say(f"'{path}' is read with decimal commas, like {comma}.")
    skip = min(lines, default=at + 1) - 1  # blank lines before the first row, too
    return read_named(path, [clean(n) for n in names], delimiter, skip, topics, ask, decimal)


def read_named(
    path: Path,
    names: list[str],
    delimiter: str,
    skip: int,
    topics: Sequence[str] | None,
    ask: Ask,
    decimal: str = ".",
) -> list[Stream]:
    """A delimited text whose columns are `names`, after `skip` lines."""
    try:
        import pyarrow.csv as arrow_csv
        from pyarrow import ArrowInvalid
    except ImportError:
        raise MissingExtra("reading CSV files", "robot") from None
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise InputError(f"'{path}' has two columns called '{twice}'; rename one.")

    def table_of(source: Any) -> Any:
        return arrow_csv.read_csv(
            source,
            read_options=arrow_csv.ReadOptions(column_names=names, skip_rows=skip),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
            convert_options=arrow_csv.ConvertOptions(decimal_point=decimal),
        )

    try:
        try:
            table = table_of(path)
        except ArrowInvalid:
            if not (torn := _torn_end(path)):
                raise
            table = table_of(BytesIO(path.read_bytes()[:-torn]))
            ask.say(f"'{path}' was cut off within its last line; that line is left out.")
    except ArrowInvalid as error:
        where = (
            _first_wrong(path, len(names), delimiter, skip) or "is no clean table: " + str(error).splitlines()[0][:120]
        )
        raise InputError(f"'{path}' {where}; mend or drop that row.") from error
    if not table.num_rows:
        raise InputError(f"'{path}' has a header and no rows; record or export it again.")
    return streams_of_table(table, topics, ask, path, row=lambda i: f"line {i + skip + 1}")


def head(path: Path, count: int = 2) -> list[str]:
    """The first lines of a text file that are not blank; none if it is not text."""
    return list(_numbered(path, count).values())


def _numbered(path: Path, count: int) -> dict[int, str]:
    """The lines of `head` under their numbers, from 1; lines end where pyarrow has them end."""
    raw = opening(path, 65536)
    if b"\0" in raw:
        return {}
    text = codecs.getincrementaldecoder("utf-8-sig")("replace").decode(raw, final=len(raw) < 65536)
    lines = ((i, line) for i, line in enumerate(re.split(r"\r\n|\n|\r", text), 1) if line.strip())
    found = dict(islice(lines, count))
    return {} if any("\ufffd" in line for line in islice(found.values(), 2)) else found


def _foreign(path: Path) -> bool:
    """Text, as it seems, in another encoding: UTF-16 says so, those of one byte have no zeros."""
    raw = opening(path, 65536)
    return raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" not in raw


def is_number(cell: str) -> bool:
    try:
        float(cell.strip().strip('"'))
    except ValueError:
        return False
    return True


def clean(name: str) -> str:
    """A header's cell without quotes, EuRoC's # and the unit in brackets.

    >>> clean("#timestamp [ns]"), clean('"q[0]"'), clean("w_RS_S_x [rad s^-1]")
    ('timestamp [ns]', 'q[0]', 'w_RS_S_x')
    """
    plain = name.strip().strip('"').lstrip("#% ").strip()
    return plain if _KEEPS.search(plain) else _UNIT.sub("", plain) or plain


def _first_wrong(path: Path, columns: int, delimiter: str, skip: int) -> str | None:
    """The first row that has more columns than its header, or fewer, and where it is."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows, begin = csv.reader(file, delimiter=delimiter), 1
        with contextlib.suppress(csv.Error):
            for row in rows:
                if row and begin > skip and len(row) != columns:
                    begins = delimiter.join(row).splitlines()[0][:40] if any(row) else ""
                    return f"has {len(row)} columns in line {begin} ({begins!r}) and {columns} in its header"
                begin = rows.line_num + 1
    return None


def _torn_end(path: Path) -> int:
    """How many bytes the last line has, if it does not end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 65536))
        return len(file.read().rpartition(b"\n")[2])


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of a line; if a quote is not closed in it, as they stand.

    >>> _cells('0.0,"hello, world",1.5', ","), _cells('0.1,"2,2', ",")
    (['0.0', 'hello, world', '1.5'], ['0.1', '"2', '2'])
    """
    return line.split(delimiter) if line.count('"') % 2 else next(csv.reader([line], delimiter=delimiter))


def _decimal_comma(lines: Iterable[str], delimiter: str) -> str | None:
    """The first number with a decimal comma and no thousands, unless another has a point.

    >>> _decimal_comma(["0;1,000", "0,1;2,5"], ";"), _decimal_comma(["0;1,000"], ";"), _decimal_comma(["0.1;1,5"], ";")
    ('0,1', None, None)
    """
    cells = [cell for line in lines for cell in _cells(line, delimiter)]
    if any("." in c and is_number(c) for c in cells):
        return None
    return next((c.strip() for c in cells if DECIMAL_COMMA.fullmatch(c) and not _THOUSANDS.fullmatch(c)), None)


def _delimiter(line: str) -> str | None:
    """What parts most cells; what stands in quotes parts none.

    >>> _delimiter('time;"pos, x";"pos, y, z"')
    ';'
    """
    bare = _QUOTED.sub("", line)
    counts = {d: bare.count(d) for d in (",", "\t", ";")}
    best = max(counts, key=lambda d: counts[d])
    return best if counts[best] else None
