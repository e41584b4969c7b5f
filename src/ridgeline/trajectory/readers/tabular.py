"""A table with a time column: which column that is, its unit, and the streams beside it. CSV and Parquet share this.

A cell without a value is no sample: a stream keeps only the rows where it has one, so tables that merge sensors of
several rates come apart again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory.readers.fields import WIDEST, Ask, chosen_columns, meant, numeric, said, streams_of
from ridgeline.trajectory.stream import NS, Stream, stamps
from ridgeline.trajectory.timeline import Array

EPISODES = ("episode_index", "episode", "episode_id")
_UNITS = {
    "ns": "ns", "nsec": "ns", "nsecs": "ns", "nanosec": "ns", "nanoseconds": "ns",
    "us": "us", "usec": "us", "usecs": "us", "µs": "us", "micros": "us", "microseconds": "us",
    "ms": "ms", "msec": "ms", "millis": "ms", "milliseconds": "ms",
    "s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s",
}  # fmt: skip
_NAMES = (
    r"(?:\w+_)?(?:time_?stamps?|times?|stamp|ts|datetime|clock)|t|sec|secs|seconds|elapsed|rosbagtimestamp"
    r"|(?:.*[./])?header[./_]stamp"
)
_CLOCK = re.compile(rf"(?:{_NAMES})(?:[\s_]*[\[(]?\s*({'|'.join(_UNITS)})\s*[\])]?)?", re.IGNORECASE)
_EPOCH = {"s": 1e8, "ms": 1e11, "us": 1e14, "ns": 1e17}  # from 1973 on, each a thousand times the one before
_LIKELY_HZ = 100.0
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+(?:[eE][+-]?\d+)?\s*")


def streams_of_table(
    table: Any, topics: Sequence[str] | None, ask: Ask, path: object, row: Callable[[int], str] = lambda i: f"row {i}"
) -> list[Stream]:
    """The streams of an Arrow table that `topics` may mean, or all; `row` says where a row stands in the file."""
    table = _flat(table)
    clock = _clock_column(table.column_names, ask.clock, path)
    times = _times(table.column(clock), clock, ask, path, row)
    labels = next((n for n in EPISODES if n in table.column_names), None)
    episode = np.asarray(table.column(labels)) if labels else None
    columns: dict[str, tuple[Array, Array | None]] = {}
    left: list[str] = []
    for name in table.column_names:
        if name not in (clock, labels):
            got = column(table.column(name))
            if got is None:
                left.append(name)
            else:
                columns[name] = got
    said(ask, "", left)
    wanted = chosen_columns(columns, topics)
    found = _episodes(times, {n: c for n, c in columns.items() if n in wanted}, episode)
    if all(meant(found, word) for word in topics or ()):
        return found
    return _episodes(times, columns, episode)  # a word that means none: the sentence about it lists them all


def column(chunked: Any) -> tuple[Array, Array | None] | None:
    """(values [S] or [S, D], mask of the cells that have one or None for all); None if they are no numbers."""
    import pyarrow as arrow
    from pyarrow import compute

    kind = chunked.type
    array = chunked.combine_chunks()
    mask = np.asarray(array.is_valid()) if array.null_count else None
    if arrow.types.is_boolean(kind) or arrow.types.is_integer(kind) or arrow.types.is_floating(kind):
        if mask is not None:
            array = array.fill_null(False if arrow.types.is_boolean(kind) else 0)
        return np.asarray(array), mask
    if arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind):
        kept = array.drop_null()
        lengths = np.unique(np.asarray(compute.list_value_length(kept)))
        inner = kept.flatten()
        if lengths.size != 1 or not 0 < lengths[0] <= WIDEST or inner.null_count:
            return None
        values = numeric(np.asarray(inner))
        if values is None:
            return None
        values = values.reshape(-1, int(lengths[0]))
        if mask is None:
            return values, None
        whole = np.zeros((len(array), values.shape[1]), values.dtype)
        whole[mask] = values
        return whole, mask
    return None


def unit_of(times: Array, name: str) -> tuple[str, str]:
    """(unit, how it was found): by the name, by the size of epoch stamps, or by the step between stamps."""
    named = _CLOCK.fullmatch(name.strip("#% "))
    if named and named[1]:
        return _UNITS[named[1].lower()], "by its name"
    largest = float(np.abs(times.astype(np.float64)).max()) if times.size else 0.0
    for unit in ("ns", "us", "ms", "s"):
        if largest >= _EPOCH[unit]:
            if unit == "s" and times.dtype.kind in "iu" and len(np.unique(times)) < len(times) // 2:
                break  # no clock of seconds repeats itself that often
            return unit, "by its magnitude"
    steps = np.diff(np.unique(times)).astype(np.float64)
    step = float(np.median(steps)) if steps.size else 1.0
    if times.dtype.kind == "f" and 1e-5 <= step <= 60:
        return "s", "by its step"
    unit = min(NS, key=lambda u: abs(np.log(step * NS[u] / 1e9 * _LIKELY_HZ)))
    return unit, "by its step"


def _episodes(times: Array, columns: dict[str, tuple[Array, Array | None]], episode: Array | None) -> list[Stream]:
    if episode is None:
        return _streams(times, columns, "")
    found: list[Stream] = []
    for label in dict.fromkeys(episode.tolist()):
        rows = episode == label
        part = {n: (v[rows], None if m is None else m[rows]) for n, (v, m) in columns.items()}
        found += _streams(times[rows], part, str(label))
    return found


def _streams(times: Array, columns: dict[str, tuple[Array, Array | None]], episode: str) -> list[Stream]:
    """Columns with the same empty cells share their stamps."""
    bundles: dict[bytes, dict[str, Array]] = {}
    masks: dict[bytes, Array | None] = {}
    for name, (values, mask) in columns.items():
        key = b"" if mask is None or mask.all() else mask.tobytes()
        bundles.setdefault(key, {})[name] = values
        masks[key] = mask if key else None
    found: list[Stream] = []
    for key, fields in bundles.items():
        mask = masks[key]
        stamps = times if mask is None else times[mask]
        found += streams_of("", stamps, fields if mask is None else {n: v[mask] for n, v in fields.items()}, episode)
    order = {name: i for i, name in enumerate(columns)}
    return sorted(found, key=lambda s: order.get(s.columns[0], order.get(s.name, 0)))


def _clock_column(names: Sequence[str], asked: str | None, path: object) -> str:
    if asked is not None:
        if asked not in names:
            raise unknown(f"time column in '{path}'", asked, names)
        return asked
    likely = [n for n in names if _CLOCK.fullmatch(n.strip("#% "))]
    if not likely:
        raise InputError(
            f"'{path}' has no time column (its columns are {', '.join(map(repr, names[:8]))}); "
            "name it with --time-column (or call it 'time')."
        )
    # time and timestamp before gps_time and t: the plainest name is the table's own clock.
    return min(likely, key=lambda n: (_rank(n), names.index(n)))


def _rank(name: str) -> int:
    plain = _CLOCK.sub(lambda m: m[0], name.strip("#% ").lower())
    return 0 if re.match(r"(time_?stamp|time|t|stamp|ts)\b|(time|timestamp)_(ns|us|ms|s)$", plain) else 1


def _times(chunked: Any, name: str, ask: Ask, path: object, row: Callable[[int], str]) -> Array:
    import pyarrow as arrow

    array = chunked.combine_chunks()
    if arrow.types.is_string(array.type) or arrow.types.is_large_string(array.type):
        array = _parsed(array, name, path, row)
    if array.null_count:
        first = int(np.flatnonzero(~np.asarray(array.is_valid()))[0])
        raise InputError(f"'{path}', {row(first)}: the time column '{name}' is empty; fill it or drop that row.")
    if arrow.types.is_timestamp(array.type):
        return np.asarray(array.cast(arrow.timestamp("ns")).cast(arrow.int64()))
    if not (arrow.types.is_integer(array.type) or arrow.types.is_floating(array.type)):
        raise InputError(f"'{path}': the time column '{name}' holds {array.type}; give numbers or dates.")
    times = np.asarray(array)
    bad = np.flatnonzero(~np.isfinite(times)) if times.dtype.kind == "f" else np.array([], int)
    if bad.size:
        raise InputError(f"'{path}', {row(int(bad[0]))}: the stamp in '{name}' is {times[bad[0]]}; drop that row.")
    unit, how = (ask.unit, "as told") if ask.unit else unit_of(times, name)
    if how not in ("by its name", "as told"):
        ask.say(f"time column '{name}' read as {unit} ({how}); --time-unit says otherwise.")
    return stamps(name, times, unit)


def _parsed(array: Any, name: str, path: object, row: Callable[[int], str]) -> Any:
    """A text column as numbers, or the first row that is none."""
    import pyarrow as arrow

    commas: list[tuple[int, str]] = []
    for i, cell in enumerate(array.to_pylist()):
        try:
            float(cell)
        except (TypeError, ValueError):
            if not DECIMAL_COMMA.fullmatch(cell or ""):
                where = f"'{path}', {row(i)}: the stamp in '{name}' is {cell!r}"
                raise InputError(f"{where}; mend or drop that row.") from None
            commas.append((i, cell))
    if commas:
        where = f"'{path}', {row(commas[0][0])}: the stamp in '{name}' is {commas[0][1]!r}"
        raise InputError(f"{where}, with a decimal comma; write decimals with a point.")
    return array.cast(arrow.float64())


def _flat(table: Any) -> Any:
    import pyarrow as arrow

    while any(arrow.types.is_struct(t) for t in table.schema.types):
        table = table.flatten()
    return table
