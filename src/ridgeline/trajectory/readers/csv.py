"""CSV, TSV and the like with a header, EuRoC's `#timestamp [ns],…` among them.

ridgeline resample imu.csv --hz 100 -o imu.parquet
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.readers.fields import Ask, opening
from ridgeline.trajectory.readers.tabular import streams_of_table
from ridgeline.trajectory.stream import Stream

SUFFIXES = (".csv", ".tsv", ".txt")
_UNIT = re.compile(r"\s*\[[^\]\d]*\]$|\s*\[[^\]]*[a-zA-Z^][^\]]*\]$")  # [m s^-1], but not the index [0]
_KEEPS = re.compile(r"\[(ns|us|ms|s|nsec|sec)\]$")  # the unit of a time column is part of its name


def sniff(path: Path) -> bool:
    """A header with a delimiter and numbers under it."""
    lines = head(path)
    if len(lines) < 2:
        return path.suffix.lower() in SUFFIXES and (bool(lines) or _foreign(path))
    delimiter = _delimiter(lines[0])
    if delimiter is None:
        return path.suffix.lower() in SUFFIXES
    names, first = lines[0].split(delimiter), lines[1].split(delimiter)
    return len(names) == len(first) and sum(map(is_number, first)) * 2 >= len(first) and not is_number(names[0])


def read(path: Path, topics: Sequence[str] | None = None, ask: Ask | None = None) -> list[Stream]:
    lines = head(path)
    if not lines:
        raise InputError(f"'{path}' is no text in UTF-8; save it as UTF-8.")
    delimiter = _delimiter(lines[0])
    if delimiter is None:
        raise InputError(f"'{path}' has no columns (its first line is {lines[0][:40]!r}); give a table with a header.")
    if is_number(lines[0].split(delimiter)[0].strip()):
        raise InputError(f"'{path}' has no header (its first line is {lines[0][:40]!r}); add one with a time column.")
    names = [clean(n) for n in lines[0].split(delimiter)]
    return read_named(path, names, delimiter, 1, topics, ask or Ask())


def read_named(
    path: Path, names: list[str], delimiter: str, skip: int, topics: Sequence[str] | None, ask: Ask
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
    raw = opening(path, 65536)
    if b"\0" in raw:
        return []
    text = codecs.getincrementaldecoder("utf-8-sig")("replace").decode(raw, final=len(raw) < 65536)
    lines = [line for line in text.splitlines() if line.strip()][:count]
    return [] if any("\ufffd" in line for line in lines) else lines


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


def _delimiter(line: str) -> str | None:
    counts = {d: line.count(d) for d in (",", "\t", ";")}
    best = max(counts, key=lambda d: counts[d])
    return best if counts[best] else None
