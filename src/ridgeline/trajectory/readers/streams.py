"""File contents → streams, for all readers: fields of a topic, decoded messages, and tables with a time column.

Messages (MCAP, ROS bags): a stream has the message's stamps (`header.stamp`, `timestamp`) if every message of the topic
has one from the recorder's clock, else the times of logging.

Tables (CSV, Parquet): a cell without a value is no sample. A stream has only the rows where it has values, so a table
that merges sensors of several rates becomes separate streams again.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory.columns import group_columns
from ridgeline.trajectory.stream import NS, Array, Stream, number_columns, to_stamps

WIDEST = 256  # columns of one field; images and point clouds are wider
SAME_CLOCK_S = 60.0  # with a larger distance, stamp and log time are of different clocks
_STAMPS = ("header.stamp", "timestamp", "stamp")
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
_EPOCH = {"s": 1e8, "ms": 1e11, "us": 1e14, "ns": 1e17}  # from 1973 on, each unit a thousand times the one before
_LIKELY_HZ = 100.0
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+(?:[eE][+-]?\d+)?\s*")


def _ignore(_: str) -> None:
    pass


@dataclass(frozen=True)
class ReadOptions:
    """Information that a file may lack."""

    fps: float | None = None  # rate of recordings without stamps
    clock: str | None = None  # name of a table's time column
    unit: str | None = None  # unit of the time column: ns, us, ms, s
    report: Callable[[str], None] = field(default=_ignore, compare=False)  # receives notes


def build_streams(topic: str, times: Array, fields: Mapping[str, Array], episode: str = "") -> list[Stream]:
    """Return one stream per quantity of a topic; `fields` maps field names to arrays [S] or [S, D]."""
    streams = []
    for name, members in group_columns(fields):
        parts = [fields[m] for m in members]
        bundles = [(name, members)] if len(parts) == 1 or _can_stack(parts) else [(m, (m,)) for m in members]
        for title, names in bundles:
            values = fields[names[0]] if len(names) == 1 else np.stack([fields[n] for n in names], axis=1)
            labels = names if values.ndim == 2 and len(names) > 1 else ()
            streams.append(
                Stream(
                    _join(topic, title),
                    times,
                    values,
                    columns=tuple(_join(topic, n) for n in labels)
                    or (number_columns(_join(topic, title), values.shape[1]) if values.ndim == 2 else ()),
                    episode=episode,
                )
            )
    return streams


def read_head(path: Path, count: int) -> bytes:
    """Return the first bytes of a file; b"" for a folder."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(count)


def choose_topics(known: Iterable[str], words: Sequence[str] | None, path: object) -> set[str]:
    """Return the topics that `words` may match; a word without a match raises InputError."""
    topics = list(known)
    if not words:
        return set(topics)
    out: set[str] = set()
    for word in words:
        hits = {t for t in topics if _may_match(word, t)}
        if not hits:
            raise unknown(f"topic in '{path}'", word, topics)
        out |= hits
    return out


def choose_columns(known: Iterable[str], words: Sequence[str] | None) -> set[str]:
    """Return the columns that `words` may match, always all columns of a quantity.

    >>> sorted(choose_columns(["pos_x", "pos_y", "b"], ["pos"])), sorted(choose_columns(["a[0]", "a[1]"], ["a[1]"]))
    (['pos_x', 'pos_y'], ['a[0]', 'a[1]'])
    """
    names = list(known)
    if not words:
        return set(names)
    parts = [m for n, m in group_columns(names) if any(_may_match(word, label) for word in words for label in (n, *m))]
    return {name for members in parts for name in members}


def match_streams(streams: Iterable[Stream], word: str) -> set[str]:
    """Return the names of the streams that `word` matches, by stream name or by column name; may be empty."""
    return {s.name for s in streams if any(_matches(word, label) for label in (s.name, *s.columns))}


def to_numeric(values: Sequence[Any] | Array) -> Array | None:
    """Return the values of one field as [S] or [S, D] numbers; None if they are no numbers or change shape."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return None
    if array.dtype.kind not in "fiub" or array.ndim > 3 or (array.ndim > 1 and not array.size):
        return None
    flat: Array = array.reshape(len(array), -1) if array.ndim > 1 else array
    return None if flat.ndim == 2 and flat.shape[1] > WIDEST else flat


def report_skipped(options: ReadOptions, topic: str, names: Sequence[str]) -> None:
    """Report the fields that are left out."""
    if names:
        rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
        where = f"{topic}: " if topic else ""
        options.report(f"{where}left out, not numeric or too wide: {', '.join(names[:5])}{rest}.")


def _can_stack(parts: Sequence[Array]) -> bool:
    """Whether arrays have one type, or floats and integers (a text column of 0 and 1 reads as integers)."""
    kinds = {p.dtype for p in parts}
    type_kinds = {k.kind for k in kinds}
    return all(p.ndim == 1 for p in parts) and (len(kinds) == 1 or ("f" in type_kinds and "b" not in type_kinds))


def _matches(word: str, name: str) -> bool:
    return name == word or name.startswith(f"{word}/") or fnmatch.fnmatchcase(name, word)


def _may_match(word: str, topic: str) -> bool:
    return (
        word == topic or word.startswith(f"{topic}/") or topic.startswith(f"{word}/") or _pattern_matches(word, topic)
    )


def _pattern_matches(word: str, topic: str) -> bool:
    """Whether a pattern matches the topic or may match a stream below it."""
    if not any(c in word for c in "*?["):
        return False
    depth = topic.count("/") + 1
    return fnmatch.fnmatchcase(topic, word) or fnmatch.fnmatchcase(topic, "/".join(word.split("/")[:depth]))


def _join(topic: str, name: str) -> str:
    return f"{topic}/{name}" if topic else name


def describe_error(error: Exception) -> str:
    """Return the message of a library's error in one line, or its class if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")[:160]


class Topic:
    """Collects the columns of one topic, message by message."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._log_times: list[int] = []
        self._stamps: list[int] = []
        self._getters: dict[str, Callable[[Any], Any]] = {}
        self._columns: dict[str, list[Any]] = {}
        self._get_stamp: Callable[[Any], int] | None = None

    def add(self, message: Any, logged_ns: int) -> None:
        if not self._log_times:
            # Take the fields from the first message; searching every message would cost more than decoding it.
            self._getters = {p: _getter(message, p) for p in _paths(message) if not _is_header(p)}
            self._columns = {path: [] for path in self._getters}
            self._get_stamp = _find_stamp(message)
        self._log_times.append(logged_ns)
        if self._get_stamp is not None:
            self._stamps.append(_get_or(self._get_stamp, message, 0))
        for path, get in self._getters.items():
            self._columns[path].append(_get_or(get, message, float("nan")))

    def __len__(self) -> int:
        return len(self._log_times)

    def streams(self, options: ReadOptions) -> list[Stream]:
        fields: dict[str, Array] = {}
        skipped: list[str] = []
        for path, values in self._columns.items():
            array = to_numeric(values)
            if array is None:
                skipped.append(path)
            else:
                fields[path] = array
        report_skipped(options, self.name, skipped)
        return build_streams(self.name, self._times(options), fields)

    def _times(self, options: ReadOptions) -> Array:
        logged = np.asarray(self._log_times, np.int64)
        stamped = np.asarray(self._stamps, np.int64)
        if len(stamped) != len(logged) or (stamped == 0).any():
            return logged
        if float(np.median(np.abs(stamped - logged))) > SAME_CLOCK_S * 1e9:
            options.report(f"{self.name}: its stamps are of another clock; the time of logging is used.")
            return logged
        return stamped


class DecodeFailures:
    """Counts by topic the messages that cannot be decoded."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._reasons: dict[str, str] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def add(self, topic: str, error: Exception) -> None:
        self._counts[topic] = self._counts.get(topic, 0) + 1
        self._reasons.setdefault(topic, describe_error(error))

    def report(self, options: ReadOptions, by_topic: Mapping[str, Topic]) -> None:
        for topic, count in self._counts.items():
            if topic in by_topic:
                total = count + len(by_topic[topic])
                options.report(
                    f"{topic}: {count} of {total} messages cannot be decoded ({self._reasons[topic]}), left out."
                )
            else:
                options.report(f"{topic}: left out, its messages cannot be decoded ({self._reasons[topic]}).")


def _members(message: Any) -> list[str] | None:
    """Return the names of a message's fields; None for a leaf."""
    if isinstance(message, Mapping):
        return [str(k) for k in message]
    if hasattr(message, "DESCRIPTOR"):
        return [f.name for f in message.DESCRIPTOR.fields]
    if hasattr(message, "__dataclass_fields__"):
        return [n for n in message.__dataclass_fields__ if not n.startswith("__")]
    slots = getattr(type(message), "__slots__", None)
    return list(slots) if slots and hasattr(message, "_type") else None


def _paths(message: Any, prefix: str = "") -> list[str]:
    out: list[str] = []
    for name in _members(message) or ():
        inner = message[name] if isinstance(message, Mapping) else getattr(message, name)
        path = f"{prefix}{name}"
        out += _paths(inner, f"{path}.") if _members(inner) is not None else [path]
    return out


def _is_header(path: str) -> bool:
    return path.startswith(("header.", "timestamp.", "stamp."))


def _getter(message: Any, path: str) -> Callable[[Any], Any]:
    if not isinstance(message, Mapping):
        return attrgetter(path)
    keys = path.split(".")

    def get(value: Any) -> Any:
        for key in keys:
            value = value[key]
        return value

    return get


def _find_stamp(message: Any) -> Callable[[Any], int] | None:
    for path in _STAMPS:
        get = _getter(message, path)
        stamp = _get_or(get, message, None)
        names = _members(stamp) if stamp is not None else None
        if names and names[0] in ("sec", "seconds", "secs"):
            seconds, fraction = _getter(stamp, names[0]), _getter(stamp, names[1])

            def nanoseconds(
                message: Any, get: Any = get, seconds: Any = seconds, fraction: Any = fraction
            ) -> int:  # bind the loop's variables
                header = get(message)
                return int(seconds(header)) * 10**9 + int(fraction(header))

            return nanoseconds
    return None


def _get_or(get: Callable[[Any], Any], message: Any, missing: Any) -> Any:
    try:
        return get(message)
    except (KeyError, AttributeError, TypeError):
        return missing


def build_table_streams(
    table: Any,
    topics: Sequence[str] | None,
    options: ReadOptions,
    path: object,
    row: Callable[[int], str] = lambda i: f"row {i}",
) -> list[Stream]:
    """Return the streams of an Arrow table that `topics` may match; `row` names a row in error messages."""
    table = _flat(table)
    clock = _clock_column(table.column_names, options.clock, path)
    times = _read_times(table.column(clock), clock, options, path, row)
    labels = next((n for n in EPISODES if n in table.column_names), None)
    episode = np.asarray(table.column(labels)) if labels else None
    columns: dict[str, tuple[Array, Array | None]] = {}
    skipped: list[str] = []
    for name in table.column_names:
        if name not in (clock, labels):
            values_and_mask = read_column(table.column(name))
            if values_and_mask is None:
                skipped.append(name)
            else:
                columns[name] = values_and_mask
    report_skipped(options, "", skipped)
    chosen = choose_columns(columns, topics)
    streams = _episodes(times, {n: c for n, c in columns.items() if n in chosen}, episode)
    if all(match_streams(streams, word) for word in topics or ()):
        return streams
    return _episodes(times, columns, episode)  # for the error about a word without a match: it lists all streams


def read_column(chunked: Any) -> tuple[Array, Array | None] | None:
    """Return (values [S] or [S, D], mask of valid cells or None if all are); None if the cells are no numbers."""
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
        valid = array.drop_null()
        lengths = np.unique(np.asarray(compute.list_value_length(valid)))
        inner = valid.flatten()
        if lengths.size != 1 or not 0 < lengths[0] <= WIDEST or inner.null_count:
            return None
        values = to_numeric(np.asarray(inner))
        if values is None:
            return None
        values = values.reshape(-1, int(lengths[0]))
        if mask is None:
            return values, None
        padded = np.zeros((len(array), values.shape[1]), values.dtype)
        padded[mask] = values
        return padded, mask
    return None


def guess_unit(times: Array, name: str) -> tuple[str, str]:
    """Return (unit, source of the guess): the name, the size of epoch stamps, or the step between stamps."""
    match = _CLOCK.fullmatch(name.strip("#% "))
    if match and match[1]:
        return _UNITS[match[1].lower()], "by its name"
    largest = float(np.abs(times.astype(np.float64)).max()) if times.size else 0.0
    for unit in ("ns", "us", "ms", "s"):
        if largest >= _EPOCH[unit]:
            if unit == "s" and times.dtype.kind in "iu" and len(np.unique(times)) < len(times) // 2:
                break  # a clock in seconds does not repeat that often
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
    streams: list[Stream] = []
    for label in dict.fromkeys(episode.tolist()):
        rows = episode == label
        part = {n: (v[rows], None if m is None else m[rows]) for n, (v, m) in columns.items()}
        streams += _streams(times[rows], part, str(label))
    return streams


def _streams(times: Array, columns: dict[str, tuple[Array, Array | None]], episode: str) -> list[Stream]:
    """Build streams; columns with the same empty cells share their stamps."""
    bundles: dict[bytes, dict[str, Array]] = {}
    masks: dict[bytes, Array | None] = {}
    for name, (values, mask) in columns.items():
        key = b"" if mask is None or mask.all() else mask.tobytes()
        bundles.setdefault(key, {})[name] = values
        masks[key] = mask if key else None
    streams: list[Stream] = []
    for key, fields in bundles.items():
        mask = masks[key]
        stamps = times if mask is None else times[mask]
        streams += build_streams(
            "", stamps, fields if mask is None else {n: v[mask] for n, v in fields.items()}, episode
        )
    order = {name: i for i, name in enumerate(columns)}
    return sorted(streams, key=lambda s: order.get(s.columns[0], order.get(s.name, 0)))


def _clock_column(names: Sequence[str], requested: str | None, path: object) -> str:
    if requested is not None:
        if requested not in names:
            raise unknown(f"time column in '{path}'", requested, names)
        return requested
    likely = [n for n in names if _CLOCK.fullmatch(n.strip("#% "))]
    if not likely:
        raise InputError(
            f"'{path}' has no time column (its columns are {', '.join(map(repr, names[:8]))}); "
            "give its name with --time-column (or rename it to 'time')."
        )
    # Prefer time and timestamp to gps_time and t: the plainest name is the table's clock.
    return min(likely, key=lambda n: (_rank(n), names.index(n)))


def _rank(name: str) -> int:
    plain = _CLOCK.sub(lambda m: m[0], name.strip("#% ").lower())
    return 0 if re.match(r"(time_?stamp|time|t|stamp|ts)\b|(time|timestamp)_(ns|us|ms|s)$", plain) else 1


def _read_times(chunked: Any, name: str, options: ReadOptions, path: object, row: Callable[[int], str]) -> Array:
    import pyarrow as arrow

    array = chunked.combine_chunks()
    if arrow.types.is_string(array.type) or arrow.types.is_large_string(array.type):
        array = _parse_times(array, name, path, row)
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
    unit, source = (options.unit, "as told") if options.unit else guess_unit(times, name)
    if source not in ("by its name", "as told"):
        options.report(f"time column '{name}' read as {unit} ({source}); --time-unit overrides it.")
    return to_stamps(name, times, unit)


def _parse_times(array: Any, name: str, path: object, row: Callable[[int], str]) -> Any:
    """Return a text column as numbers; the error names the first row that is no number."""
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
