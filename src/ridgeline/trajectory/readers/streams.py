"""File contents → streams, for all readers: options, fields of a topic, and tables with a time column.

A missing value is no sample: a stream has only the rows where it has values, and its type does not change. So a table
that merges sensors of several rates becomes separate streams again.
"""

from __future__ import annotations

import codecs
import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory.columns import group_columns
from ridgeline.trajectory.stream import NS, Array, Stream, number_columns, to_stamps

if TYPE_CHECKING:
    from ridgeline.trajectory.cameras import Camera
    from ridgeline.trajectory.readers.calibration import Calibration

WIDEST = 256  # columns of one field; images and point clouds are wider
MAX_DIMENSIONS = 3  # of a field with its samples; images have more
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
_MEASURED_STAMPS = 100_000  # more do not change the median step
_LONGEST_STEP_NS = 86_400 * 10**9  # a day
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+(?:[eE][+-]?\d+)?\s*")


STAMPS = ("auto", "header", "log")
Column = tuple[Array, Array | None]  # values [S] or [S, D], mask [S] of the rows with values; None: all rows


def _ignore(_: Any) -> None:
    pass


def _ignore_marks(topic: str, times: Array) -> None:
    pass


@dataclass(frozen=True)
class LeftOut:
    """A field, topic or column that a reader leaves out, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class ReadOptions:
    """Information that a file may lack, and what receives notes."""

    fps: float | None = None  # rate of recordings without stamps
    clock: str | None = None  # name of a table's time column
    unit: str | None = None  # unit of the time column: ns, us, ms, s
    report: Callable[[str], None] = field(default=_ignore, compare=False)  # receives notes
    stamps: str = "auto"  # of messages: header, log, or auto (header if the topics share its clock)
    leave_out: Callable[[LeftOut], None] = field(default=_ignore, compare=False)  # receives what is left out
    encoding: str | None = None  # of a text table; None: UTF-8, or UTF-16 by its first bytes
    delimiter: str | None = None  # of a text table; None: guessed from its header
    comment: str | None = None  # lines of a text table that begin with this are skipped
    add_camera: Callable[[Camera], None] | None = field(default=None, compare=False)  # receives cameras; None: no one
    calibration: Calibration | None = field(default=None, compare=False)  # takes what is said about cameras
    marks: frozenset[str] = frozenset()  # topics whose stamps count, even if their messages hold no numbers
    add_marks: Callable[[str, Array], None] = field(default=_ignore_marks, compare=False)  # receives their stamps

    def __post_init__(self) -> None:
        if self.stamps not in STAMPS:
            raise unknown("choice of stamps", self.stamps, STAMPS)
        if self.unit is not None and self.unit not in NS:
            raise unknown("unit of time", self.unit, NS)
        if self.delimiter == "\\t":
            object.__setattr__(self, "delimiter", "\t")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise InputError(f"the delimiter '{self.delimiter}' is not one character; give one, like ; or |.")
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError:
            raise InputError(f"there is no encoding '{self.encoding}'; cp1252 and utf-16 are some.") from None
        if self.comment == "":
            raise InputError("the prefix of comment lines is empty; give one, like #.")


def build_streams(
    topic: str,
    times: Array,
    fields: Mapping[str, Array],
    episode: str = "",
    labels: Mapping[str, Sequence[str]] | None = None,
) -> list[Stream]:
    """Return one stream per quantity of a topic; `fields` maps field names to arrays [S] or [S, D].

    `labels` names the D columns of a field, for example by joint.
    """
    streams = []
    for name, members in group_columns(fields):
        parts = [fields[m] for m in members]
        bundles = [(name, members)] if len(parts) == 1 or _can_stack(parts) else [(m, (m,)) for m in members]
        for title, names in bundles:
            values = fields[names[0]] if len(names) == 1 else np.stack([fields[n] for n in names], axis=1)
            columns: tuple[str, ...] = ()
            if len(names) > 1:
                columns = tuple(_join(topic, n) for n in names)
            elif labels and names[0] in labels:
                columns = tuple(f"{_join(topic, title)}.{n}" for n in labels[names[0]])
            elif values.ndim == 2:
                columns = number_columns(_join(topic, title), values.shape[1])
            streams.append(Stream(_join(topic, title), times, values, columns=columns, episode=episode))
    return streams


def build_masked_streams(
    topic: str,
    times: Array,
    columns: Mapping[str, Column],
    episode: str = "",
    labels: Mapping[str, Sequence[str]] | None = None,
) -> list[Stream]:
    """Return the streams of columns with missing rows; columns with the same missing rows share their stamps."""
    bundles: dict[bytes, dict[str, Array]] = {}
    masks: dict[bytes, Array | None] = {}
    for members in _share_masks(columns):
        for name, (values, mask) in members.items():
            key = b"" if mask is None or mask.all() else mask.tobytes()
            bundles.setdefault(key, {})[name] = values
            masks[key] = mask if key else None
    streams: list[Stream] = []
    for key, fields in bundles.items():
        mask = masks[key]
        stamps = times if mask is None else times[mask]
        present = fields if mask is None else {n: v[mask] for n, v in fields.items()}
        streams += build_streams(topic, stamps, present, episode, labels)
    order = {_join(topic, name): i for i, name in enumerate(columns)}
    return sorted(streams, key=lambda s: order.get(s.columns[0], order.get(s.name, 0)))


def _share_masks(columns: Mapping[str, Column]) -> Iterable[dict[str, Column]]:
    """Give the columns of a quantity one mask: a quaternion without its w is no sample.

    Columns that rarely have values in the same rows are separate sensors and keep their own masks.
    """
    for _, members in group_columns(columns):
        parts = {m: columns[m] for m in members}
        masks = [mask for _, mask in parts.values() if mask is not None]
        if len(parts) > 1 and masks:
            every = np.logical_and.reduce(masks)
            counts = [len(values) if mask is None else np.count_nonzero(mask) for values, mask in parts.values()]
            if 2 * np.count_nonzero(every) >= max(counts):
                parts = {m: (values, every) for m, (values, _) in parts.items()}
        yield parts


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
    return {s.name for s in streams if any(match_any(word, label) for label in (s.name, *s.columns))}


def to_numeric(values: Sequence[Any] | Array) -> Array | str:
    """Return the values of one field as [S] or [S, D] numbers, or the reason why they are none."""
    array = np.asarray(values)
    why = explain_unusable(array.dtype, array.shape)
    return why or flatten_samples(array)


def flatten_samples(array: Array) -> Array:
    """Return [S] or [S, D] of an array with more dimensions."""
    return array.reshape(len(array), -1) if array.ndim > 1 else array


def explain_unusable(dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    """Return why an array of this type and shape cannot be a stream; empty if it can."""
    if dtype.kind not in "fiub":
        return "text, not numeric" if dtype.kind in "SUTO" else f"type {dtype}, not numeric"
    if not 1 <= len(shape) <= MAX_DIMENSIONS:
        return f"{len(shape)} dimensions; images and clouds are not read" if shape else "one value without samples"
    width = int(np.prod(shape[1:]))
    if not width:
        return "empty in every sample"
    return f"too wide: {width} columns, and at most {WIDEST} are read" if width > WIDEST else ""


def report_left_out(options: ReadOptions, topic: str, reasons: Mapping[str, str]) -> None:
    """Report the fields that are left out, by name and reason: one note for each reason."""
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        options.leave_out(LeftOut(_join(topic, name) if name else topic, reason))
        names_by_reason.setdefault(reason, []).append(name)
    for reason, names in names_by_reason.items():
        rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
        where = f"{topic}: " if topic else ""
        listed = f": {', '.join(names[:5])}{rest}" if any(names) else ""
        options.report(f"{where}left out, {reason}{listed}.")


def _can_stack(parts: Sequence[Array]) -> bool:
    """Whether arrays have one type, or floats and integers (a text column of 0 and 1 reads as integers)."""
    kinds = {p.dtype for p in parts}
    type_kinds = {k.kind for k in kinds}
    return all(p.ndim == 1 for p in parts) and (len(kinds) == 1 or ("f" in type_kinds and "b" not in type_kinds))


def match_any(word: str, name: str) -> bool:
    """Whether a word names a stream: its name, a topic above it, or a pattern."""
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
    text = str(error)
    if type(error).__module__.startswith("av."):  # without the number of FFmpeg's error and the name of its function
        text = str(getattr(error, "strerror", "") or text)
    return (text.strip() or type(error).__name__).splitlines()[0].rstrip(".")[:160]


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
    columns, left_out = read_columns(table, [name for name in table.column_names if name not in (clock, labels)])
    report_left_out(options, "", left_out)
    chosen = choose_columns(columns, topics)
    streams = _episodes(times, {n: c for n, c in columns.items() if n in chosen}, episode)
    if all(match_streams(streams, word) for word in topics or ()):
        return streams
    return _episodes(times, columns, episode)  # for the error about a word without a match: it lists all streams


def read_columns(table: Any, names: Iterable[str]) -> tuple[dict[str, Column], dict[str, str]]:
    """Return the columns that are numbers, and why each other one is left out."""
    cells = {name: read_column(table.column(name)) for name in names}
    left_out = {name: column for name, column in cells.items() if isinstance(column, str)}
    return {name: column for name, column in cells.items() if not isinstance(column, str)}, left_out


def read_column(chunked: Any) -> Column | str:
    """Return (values [S] or [S, D], mask of valid cells or None if all are), or the reason why they are no numbers."""
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
        if lengths.size > 1:
            return f"lists of different length ({lengths[0]} to {lengths[-1]})"
        width = int(lengths[0]) if lengths.size else 0
        if inner.null_count:
            return "null values inside its lists"
        flat = np.asarray(inner)
        if why := explain_unusable(flat.dtype, (len(valid), width)):
            return why
        values = flat.reshape(-1, width)
        if mask is None:
            return values, None
        padded = np.zeros((len(array), width), values.dtype)
        padded[mask] = values
        return padded, mask
    return "empty" if arrow.types.is_null(kind) else f"type {kind}, not numeric"


def guess_unit(times: Array, name: str) -> tuple[str, str]:
    """Return (unit, source of the guess): the name, the size of epoch stamps, or the step between stamps."""
    match = _CLOCK.fullmatch(name.strip("#% "))
    if match and match[1]:
        return _UNITS[match[1].lower()], "by its name"
    largest = float(np.abs(times.astype(np.float64)).max()) if times.size else 0.0
    steps = np.diff(np.unique(times[:_MEASURED_STAMPS])).astype(np.float64)
    step = float(np.median(steps)) if steps.size else 1.0
    for unit in ("ns", "us", "ms", "s"):
        if largest >= _EPOCH[unit]:
            if unit == "s" and times.dtype.kind in "iu" and len(np.unique(times)) < len(times) // 2:
                break  # a clock in seconds does not repeat that often
            if step * NS[unit] > _LONGEST_STEP_NS:
                break  # no stamps since 1970, but a clock that starts near 0, in a smaller unit
            return unit, "by its magnitude"
    if times.dtype.kind == "f" and 1e-5 <= step <= 60:
        return "s", "by its step"
    unit = min(NS, key=lambda u: abs(np.log(step * NS[u] / 1e9 * _LIKELY_HZ)))
    return unit, "by its step"


def _episodes(times: Array, columns: dict[str, Column], episode: Array | None) -> list[Stream]:
    if episode is None:
        return build_masked_streams("", times, columns)
    streams: list[Stream] = []
    for label in dict.fromkeys(episode.tolist()):
        rows = episode == label
        part = {n: (v[rows], None if m is None else m[rows]) for n, (v, m) in columns.items()}
        streams += build_masked_streams("", times[rows], part, str(label))
    return streams


def _clock_column(names: Sequence[str], requested: str | None, path: object) -> str:
    if requested is not None:
        if requested not in names:
            raise unknown(f"time column in '{path}'", requested, names)
        return requested
    likely = [n for n in names if is_clock_name(n)]
    if not likely:
        raise InputError(
            f"'{path}' has no time column (its columns are {', '.join(map(repr, names[:8]))}); "
            "give its name with --time-column (or rename it to 'time')."
        )
    # Prefer time and timestamp to gps_time and t: the plainest name is the table's clock.
    return min(likely, key=lambda n: (rank_clock_name(n), names.index(n)))


def is_clock_name(name: str) -> bool:
    """Whether a column may be a clock by its name: time, t, stamp_ns, gps_time."""
    return _CLOCK.fullmatch(name.strip("#% ")) is not None


def rank_clock_name(name: str) -> int:
    """Return 0 for the plainest names of a clock, 1 for others."""
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
