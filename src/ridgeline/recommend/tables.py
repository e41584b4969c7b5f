"""A delimited or Parquet file as columns of the types they must have; rows that do not fit are named, not guessed.

The quick way reads with the types at once. Only if that fails is the file read again as text, to find the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, MissingExtra
from ridgeline.recommend.data import Problems

WHOLE, REAL, TEXT = "int64", "float64", "string"
_LOOKS = {WHOLE: r"^\s*[+-]?\d{1,18}\s*$", REAL: r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"}
TOO_MANY = 0.05  # share of rows that cannot be read at which the file is not what it seems
SHOWN = 40  # characters of a bad value


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
    parsing = {"delimiter": delimiter, "quote_char": '"' if quoted else False}
    if not raw.strip() or (names is None and raw.count(b"\n") <= 1 and not raw.partition(b"\n")[2].strip()):
        if needed:
            raise InputError(f"{path} has no rows; extract the whole download again.")
        return {name: pa.array([], kinds[name]) for name in wanted}

    def parsed(types: Mapping[str, str], threads: bool, skip: Any = None) -> Any:
        return pc.read_csv(
            pa.BufferReader(raw),
            pc.ReadOptions(use_threads=threads, **reading),
            pc.ParseOptions(invalid_row_handler=skip, **parsing),
            pc.ConvertOptions(column_types=types, include_columns=wanted, strings_can_be_null=False),
        )

    try:
        table = parsed({name: kinds[name] for name in wanted}, True)
        if not any(table[name].null_count for name in wanted):
            return {name: table[name].combine_chunks() for name in wanted}
    except pa.ArrowInvalid:
        pass  # some row does not fit: find out which

    ragged: list[int] = []

    def skip(row: Any) -> str:
        ragged.append(row.number)
        problems.add("unreadable", f"{path.name} line {row.number}: {row.actual_columns} columns, not {len(columns)}")
        return "skip"

    return _sifted(parsed(dict.fromkeys(wanted, TEXT), False, skip), kinds, wanted, ragged, path, problems, names)


def _sifted(
    table: Any,
    kinds: Mapping[str, str],
    wanted: Sequence[str],
    ragged: Sequence[int],
    path: Path,
    problems: Problems,
    names: Sequence[str] | None,
) -> dict[str, Any]:
    import numpy as np
    import pyarrow.compute as pc

    good = np.ones(len(table), bool)
    lines = np.arange(1, len(table) + len(ragged) + 2)
    lines = lines[~np.isin(lines, ragged)][0 if names is not None else 1 :]
    for name in wanted:
        if kinds[name] == TEXT:
            continue
        fits = pc.match_substring_regex(table[name], _LOOKS[kinds[name]]).to_numpy()
        for row in np.flatnonzero(~fits & good):
            value = table[name][int(row)].as_py()
            shown = value if len(value) <= SHOWN else value[: SHOWN - 1] + "…"
            problems.add("unreadable", f"{path.name} line {lines[row]}: {name} is '{shown}', not a number")
        good &= fits
    bad = int((~good).sum()) + len(ragged)
    if bad > max(1, TOO_MANY * (len(table) + len(ragged))):
        raise InputError(
            f"{path}: {bad:,} of {len(table) + len(ragged):,} rows cannot be read ({problems.named['unreadable'][0]}); "
            "download it again."
        )
    table = table.filter(good)
    return {
        name: pc.utf8_trim_whitespace(table[name]).cast(kinds[name]).combine_chunks()
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
        try:
            keep = kinds[name] == TEXT and (pa.types.is_list(column.type) or pa.types.is_integer(column.type))
            found[name] = column if keep else column.cast(kinds[name])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise InputError(f"{path}: column '{name}' is {column.type}, not {kinds[name]}; convert it.") from None
    return found


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
