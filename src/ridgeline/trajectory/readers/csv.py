"""CSV, TSV and the like with a header, EuRoC's `#timestamp [ns],…` among them.

ridgeline resample imu.csv --hz 100 -o imu.parquet
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
        return path.suffix.lower() in SUFFIXES and bool(lines)
    delimiter = _delimiter(lines[0])
    if delimiter is None:
        return path.suffix.lower() in SUFFIXES
    names, first = lines[0].split(delimiter), lines[1].split(delimiter)
    return len(names) == len(first) and sum(map(is_number, first)) * 2 >= len(first) and not is_number(names[0])


def read(path: Path, topics: Sequence[str] | None = None, ask: Ask | None = None) -> list[Stream]:
    lines = head(path)
    delimiter = _delimiter(lines[0]) if lines else None
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
    end = _torn_end(path)

    def torn(row: Any) -> str:
        if end is None or row.text != end:
            return "error"
        ask.say(f"'{path}' was cut off within its last line; that line is left out.")
        return "skip"

    try:
        table = arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(column_names=names, skip_rows=skip),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, invalid_row_handler=torn),
        )
    except ArrowInvalid as error:
        raise InputError(
            f"'{path}' is no clean table: {str(error)[:120].rstrip('.')}; mend or drop that row."
        ) from error
    if not table.num_rows:
        raise InputError(f"'{path}' has a header and no rows; record or export it again.")
    return streams_of_table(table, topics, ask, path, row=lambda i: f"line {i + skip + 1}")


def head(path: Path, count: int = 2) -> list[str]:
    """The first lines of a text file that are not blank; none if it is not text."""
    raw = opening(path, 65536)
    if b"\0" in raw:
        return []
    try:
        text = raw.decode("utf-8-sig", errors="strict" if len(raw) < 65536 else "ignore")
    except UnicodeDecodeError:
        return []
    return [line for line in text.splitlines() if line.strip()][:count]


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


def _torn_end(path: Path) -> str | None:
    """The last line, where it does not end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 65536))
        tail = file.read()
    return None if tail.endswith(b"\n") else tail.rpartition(b"\n")[2].decode("utf-8", errors="replace")


def _delimiter(line: str) -> str | None:
    counts = {d: line.count(d) for d in (",", "\t", ";")}
    best = max(counts, key=lambda d: counts[d])
    return best if counts[best] else None
