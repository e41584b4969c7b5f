"""Decoded messages → streams, for MCAP and ROS bags: fields, missing values, joints, transforms and stamps.

A field that a message lacks, or that has another type or length there, is missing in that message; its type stays.

Joints (`name` beside `position`, `velocity`, `effort`) go by name: one stream for each set of names, so that two
publishers of one topic are never mixed. Transforms (`/tf`) become one topic for each pair of frames.

Stamps are those of the header (`header.stamp`, `timestamp`, `stamp`) or the times of logging; `build_message_streams`
documents the choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.trajectory.readers.streams import (
    WIDEST,
    Column,
    ReadOptions,
    build_masked_streams,
    describe_error,
    explain_unusable,
    report_left_out,
    to_numeric,
)
from ridgeline.trajectory.stream import Array, Stream

if TYPE_CHECKING:
    from ridgeline.trajectory.cameras import Take
    from ridgeline.trajectory.readers.images import ImageTopic

NO_CAMERAS = "images (--camera NAME=TOPIC takes them into a LeRobot dataset)"
SAME_CLOCK_S = 60.0  # with a larger distance, header stamp and log time are of different clocks
_STAMPS = (("header", "stamp"), ("timestamp",), ("stamp",))
_JOINT_NAMES = ("name", "names", "joint_names")
_TRANSFORMS = "transforms"
_FRAMES = ("child_frame_id", "parent_frame_id")
MOST_NAME_SETS = 64  # with more, the names are no joints: detections, for example
_SCALARS = frozenset({bool, int, float, str})
_ABSENT = (KeyError, AttributeError, TypeError, IndexError)  # what a getter raises for a field that is not there


class Topic:
    """Collects the messages of one topic, in one part, or in a part for each set of joints or pair of frames."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._count = 0
        self._parts: dict[Any, MessageColumns] = {}
        self._split: Callable[[Any], Iterable[tuple[Any, Any, Sequence[str]]]] | None = None

    def add(self, message: Any, logged_ns: int) -> None:
        if not self._count:
            self._split = _find_split(message)
            if self._split is None:
                self._parts[None] = MessageColumns()
        self._count += 1
        if self._split is None:
            self._parts[None].add(message, logged_ns)
            return
        for key, part, names in self._split(message):
            if key not in self._parts:
                self._parts[key] = MessageColumns(names, used=_FRAMES if isinstance(key, str) else _JOINT_NAMES)
            self._parts[key].add(part, logged_ns, names)

    def __len__(self) -> int:
        return self._count

    @property
    def name_sets(self) -> int:
        """The number of different sets of joint names."""
        return sum(isinstance(key, frozenset) for key in self._parts)

    def parts(self) -> Iterator[tuple[str, MessageColumns]]:
        """Iterate over (name, messages): the topic itself, or a name below it for each part."""
        titles: dict[str, int] = {}
        for key, part in self._parts.items():
            title = key if isinstance(key, str) else _common_name(part.names) if len(self._parts) > 1 else ""
            titles[title] = titles.get(title, 0) + 1
            again = f".{titles[title] - 1}" if titles[title] > 1 else ""
            yield f"{self.name}/{title}{again}" if title else self.name, part


class MessageColumns:
    """Collects the fields of messages of one kind, column by column.

    `names` are those of the joints, if any; `used` are fields that became names of streams or columns.
    """

    def __init__(self, names: Sequence[str] = (), used: Sequence[str] = ()) -> None:
        self.names = tuple(names)
        self._used = used
        self._log_times: list[int] = []
        self._stamps: list[int | None] = []
        self._getters: dict[str, Callable[[Any], Any]] = {}
        self._columns: dict[str, list[Any]] = {}
        self._keys: dict[tuple[str, ...], frozenset[str]] = {}  # of each mapping in the messages, by its path
        self._incomplete: set[str] = set()  # paths of fields that are missing in some message
        self._get_stamp: Callable[[Any], int] | None = None
        self._orders: dict[tuple[str, ...], list[int]] = {}

    def add(self, message: Any, logged_ns: int, names: Sequence[str] = ()) -> None:
        # Searching every message for fields would cost more than decoding it, and only mappings (JSON) can differ.
        if not self._log_times or any(_has_more_keys(message, path, keys) for path, keys in self._keys.items()):
            self._find_fields(message)
        self._log_times.append(logged_ns)
        if self._get_stamp is not None:
            self._stamps.append(get_or(self._get_stamp, message, None))
        order = self._find_order(names)
        for path, get in self._getters.items():
            try:
                value = get(message)
            except _ABSENT:
                value = None
            if value is None:
                self._incomplete.add(path)
            elif type(value) not in _SCALARS and (isinstance(value, bytes) or _is_list(value)):
                if len(value) > WIDEST:
                    value = TooWide(len(value))  # images would fill the memory
                elif order is not None and len(value) == len(order):
                    value = [value[i] for i in order]
            self._columns[path].append(value)

    def __len__(self) -> int:
        return len(self._log_times)

    @property
    def logged(self) -> Array:
        return np.asarray(self._log_times, np.int64)

    @property
    def stamped(self) -> Array | None:
        """The header stamps; None if a message has no stamp. Only the first one may be 0, the start of a simulation."""
        if not self._stamps or len(self._stamps) != len(self) or None in self._stamps:
            return None
        stamps = np.asarray(self._stamps, np.int64)
        return None if (stamps[1:] == 0).any() or (len(stamps) == 1 and stamps[0] == 0) else stamps

    def build_columns(self, topic: str, options: ReadOptions) -> dict[str, Column]:
        """Return the numeric fields; report those that are left out or miss values."""
        columns: dict[str, Column] = {}
        left_out: dict[str, str] = {}
        missing: dict[str, int] = {}
        for path, values in self._columns.items():
            column = _build_column(values, path in self._incomplete)
            if isinstance(column, str):
                left_out[path] = column
            else:
                columns[path] = column
                if column[1] is not None:
                    missing[path] = int(np.count_nonzero(~column[1]))
        report_left_out(options, topic, left_out)
        if missing:
            listed = ", ".join(f"{path} in {count}" for path, count in [*missing.items()][:5])
            rest = f" and {len(missing) - 5} more fields" if len(missing) > 5 else ""
            options.report(f"{topic}: missing, or of another type or length, of {len(self)} messages: {listed}{rest}.")
        return columns

    def build_streams(self, topic: str, times: Array, columns: Mapping[str, Column]) -> list[Stream]:
        joints = {
            path: self.names
            for path, (values, _) in columns.items()
            if self.names and values.ndim == 2 and values.shape[1] == len(self.names)
        }
        return build_masked_streams(topic, times, columns, labels=joints)

    def _find_fields(self, message: Any) -> None:
        """Add the fields of a message; those that are new were missing in the messages before."""
        for path in _paths(message):
            label = ".".join(path)
            if label not in self._getters and not _is_header(label) and path[-1] not in self._used:
                self._getters[label] = _getter(message, path)
                self._columns[label] = [None] * len(self)
                if len(self):
                    self._incomplete.add(label)
        for path, keys in _mappings(message):
            self._keys[path] = self._keys.get(path, frozenset()) | keys
        if not len(self):
            self._get_stamp = find_stamp(message)

    def _find_order(self, names: Sequence[str]) -> list[int] | None:
        """Return the positions of this part's joints in a message whose joints have another order."""
        if not self.names or tuple(names) == self.names:
            return None
        key = tuple(names)
        if key not in self._orders:
            self._orders[key] = [key.index(name) for name in self.names]
        return self._orders[key]


@dataclass(frozen=True)
class TooWide:
    """Stands for a value that is too wide for a stream."""

    width: int


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
                reason = f"its messages cannot be decoded ({self._reasons[topic]})"
                report_left_out(options, topic, {"": reason})


def build_message_streams(
    topics: Iterable[Topic],
    options: ReadOptions,
    path: object,
    images: Mapping[str, ImageTopic] | None = None,
    take: Take | None = None,
) -> list[Stream]:
    """Return the streams of all topics, with the stamps that `options.stamps` chooses.

    Topics with images become cameras, for `options.add_camera`; `take` reads their pictures again.

    header  the stamps of the headers; topics without them are left out
    log     the times of logging
    auto    header stamps of topics whose headers have the clock of the log; if headers have another clock (simulated
            time) and all topics share it, that clock; times of logging otherwise
    """
    parts: dict[str, MessageColumns] = {}
    columns: dict[str, dict[str, Column]] = {}
    for topic in topics:
        if topic.name_sets > MOST_NAME_SETS:
            report_left_out(options, topic.name, {"": f"its names change all the time ({topic.name_sets} sets)"})
            continue
        for name, part in topic.parts():
            fields = part.build_columns(name, options)
            if fields or name in options.marks:
                parts[name], columns[name] = part, fields
    cameras = dict(images or {})
    if options.add_camera is None:
        for name in cameras:
            report_left_out(options, name, {"": NO_CAMERAS})
        cameras = {}
    times = _choose_times({**parts, **cameras}, options)
    if (parts or cameras) and not times:
        raise InputError(f"no topic in '{path}' has header stamps; --stamps log uses the times of logging.")
    for name in [name for name in cameras if name in times]:
        camera = cameras[name].build_camera(times.pop(name), take) if take is not None else None
        if camera is None:
            report_left_out(options, name, {"": f"none of its {len(cameras[name])} messages holds a picture"})
        elif options.add_camera is not None:
            options.add_camera(camera)
            if camera.repeated:
                options.report(f"{name}: {camera.repeated} of its packets were recorded twice; one of each is read.")
            if camera.moved:
                options.report(
                    f"{name}: {camera.moved} of its packets were recorded in another order than they "
                    "were sent; they are read in the order of their stamps."
                )
    for name in options.marks & times.keys():
        options.add_marks(name, times[name])
    return [s for name, clock in times.items() for s in parts[name].build_streams(name, clock, columns[name])]


def _choose_times(parts: Mapping[str, MessageColumns | ImageTopic], options: ReadOptions) -> dict[str, Array]:
    """Return the stamps of each part; parts without the requested stamps are left out."""
    logged = {name: part.logged for name, part in parts.items()}
    if options.stamps == "log":
        return logged
    stamped = {name: stamps for name, part in parts.items() if (stamps := part.stamped) is not None}
    if options.stamps == "header":
        for name in parts:
            if name not in stamped:
                report_left_out(options, name, {"": "no header stamps (--stamps log uses the times of logging)"})
        return stamped
    offsets = {name: float(np.median(stamps - logged[name])) / 1e9 for name, stamps in stamped.items()}
    far = [name for name, offset in offsets.items() if abs(offset) > SAME_CLOCK_S]
    moving = [name for name, times in logged.items() if len(times) > 1]
    if far and all(name in stamped for name in moving) and _share_clock(logged, offsets):
        options.report("all topics share the clock of their headers, which is not the clock of the log; it is used.")
        return {name: stamped.get(name, times) for name, times in logged.items()}
    for name in far:
        options.report(
            f"{name}: its stamps are of another clock; the time of logging is used (--stamps header uses its stamps)."
        )
    return {name: times if name in far else stamped.get(name, times) for name, times in logged.items()}


def _share_clock(logged: Mapping[str, Array], offsets: Mapping[str, float]) -> bool:
    """Whether headers have one clock: two clocks of one kind differ by less than the topics are apart in the log.

    A simulation may run slower or faster than the log, so that the offset of a clock changes with time.
    """
    middles = {name: float(np.median(logged[name])) / 1e9 for name in offsets}
    first = max(offsets, key=lambda name: len(logged[name]))
    return all(
        abs(offset - offsets[first]) <= SAME_CLOCK_S + abs(middles[name] - middles[first])
        for name, offset in offsets.items()
    )


def _build_column(values: list[Any], incomplete: bool) -> Column | str:
    """Return (values [S] or [S, D], mask), or why there are none. What differs from most messages is missing."""
    present = np.array([v is not None for v in values]) if incomplete else np.ones(len(values), bool)
    samples = [v for v in values if v is not None] if incomplete else values
    try:
        array = np.asarray(samples)
    except ValueError:  # rows of different lengths
        array = np.empty(0, object)
    if samples and array.dtype.kind in "OUST":
        shapes = [_numeric_shape(v) for v in samples]
        shape, count = Counter(shapes).most_common(1)[0]
        if shape is None and isinstance(samples[0], TooWide):
            return explain_unusable(np.dtype(np.uint8), (len(samples), samples[0].width))
        if shape is None:
            return "a list of messages" if _members(_first(samples[0])) is not None else "text, not numeric"
        if 2 * count < len(samples):
            sizes = sorted(int(np.prod(s)) for s in shapes if s is not None)
            return f"its length changes from message to message ({sizes[0]} to {sizes[-1]})"
        usual = np.array([s == shape for s in shapes])
        present[present] = usual
        samples = [v for v, same in zip(samples, usual, strict=True) if same]
        array = np.asarray(samples)
        if array.dtype.kind == "O":  # null inside an array, or an integer beyond int64
            array = np.asarray(samples, np.float64)
    if not samples:
        return "no message has a value"
    numbers = to_numeric(array)
    if isinstance(numbers, str) or present.all():
        return numbers if isinstance(numbers, str) else (numbers, None)
    padded = np.zeros((len(values), *numbers.shape[1:]), numbers.dtype)
    padded[present] = numbers
    return padded, present


def _numeric_shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of numbers; None for text, messages, lists of unequal lists and what is too wide."""
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return ()
    if isinstance(value, TooWide):
        return None
    try:
        array = np.asarray(value)
    except ValueError:
        return None
    if array.dtype.kind == "O":
        return array.shape if all(isinstance(v, int | float | None) for v in array.reshape(-1)) else None
    return array.shape if array.dtype.kind in "fiub" else None


def _find_split(message: Any) -> Callable[[Any], Iterable[tuple[Any, Any, Sequence[str]]]] | None:
    """Return a function that splits a message into (key, part of the message, joint names); None for plain messages."""
    members, transforms = _members(message) or [], get_path(message, _TRANSFORMS)
    if _are_transforms(transforms) and (len(transforms) or members == [_TRANSFORMS]):
        return _split_transforms
    for path in _paths(message):
        get = _getter(message, path)
        if path[-1] in _JOINT_NAMES and _is_name_list(get(message)):

            def split_joints(message: Any, get: Callable[[Any], Any] = get) -> Iterator[tuple[Any, Any, Sequence[str]]]:
                names = get_or(get, message, ())
                joints = tuple(names) if _is_name_list(names) else ()
                yield frozenset(joints), message, joints

            return split_joints
    return None


def _split_transforms(message: Any) -> Iterator[tuple[str, Any, Sequence[str]]]:
    transforms = get_path(message, _TRANSFORMS)
    for transform in transforms if _are_transforms(transforms) else ():
        parent = get_path(transform, "header", "frame_id") or get_path(transform, "parent_frame_id") or ""
        child = get_path(transform, "child_frame_id") or ""
        yield "/".join(str(frame).strip("/") for frame in (parent, child) if frame), transform, ()


def _are_transforms(items: Any) -> bool:
    """Whether a list holds transforms; an empty list may."""
    return _is_list(items) and all("child_frame_id" in (_members(item) or ()) for item in items)


def _is_name_list(value: Any) -> bool:
    return (
        _is_list(value)
        and len(value) > 0
        and all(isinstance(name, str) and name for name in value)
        and len(set(value)) == len(value)
    )


def _is_list(value: Any) -> bool:
    """Whether a value is a list of any library: list, array.array, NumPy's array, a repeated field of Protobuf."""
    if isinstance(value, str | bytes | Mapping):
        return False
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


def _common_name(names: Sequence[str]) -> str:
    """Return what joints have in common.

    >>> _common_name(["left_arm_1", "left_arm_2"]), _common_name(["base", "tool"])
    ('left_arm', 'base+tool')
    """
    if not names:
        return "unnamed"
    first, last = min(names), max(names)  # in the order of text, so all others lie between
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    prefix = first[:shared].rstrip("_-./ ")
    return (prefix or "+".join(names)[:60]).replace("/", ".")


def _members(message: Any) -> list[str] | None:
    """Return the names of a message's fields; None for a leaf."""
    if isinstance(message, Mapping):
        return [str(k) for k in message]
    if hasattr(message, "DESCRIPTOR"):
        return [f.name for f in message.DESCRIPTOR.fields]
    if hasattr(message, "__dataclass_fields__"):
        # Constants of ROS messages are class variables, annotated by text that dataclasses do not understand.
        return [f.name for f in fields(message) if not str(f.type).startswith("ClassVar")]
    slots = getattr(type(message), "__slots__", None)
    return list(slots) if slots and hasattr(message, "_type") else None


def _paths(message: Any, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the path of every field that has a value; a null of JSON has no type yet."""
    out: list[tuple[str, ...]] = []
    for name in _members(message) or ():
        inner = message[name] if isinstance(message, Mapping) else getattr(message, name)
        if inner is not None:
            path = (*prefix, name)
            out += _paths(inner, path) if _members(inner) is not None else [path]
    return out


def _mappings(message: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], frozenset[str]]]:
    """Iterate over (path, keys with a value) of a mapping and of the mappings in it."""
    if isinstance(message, Mapping):
        yield prefix, frozenset(name for name, inner in message.items() if inner is not None)
        for name, inner in message.items():
            yield from _mappings(inner, (*prefix, name))


def _has_more_keys(message: Any, path: tuple[str, ...], keys: frozenset[str]) -> bool:
    for name in path:
        message = message.get(name) if isinstance(message, dict) else None
    return isinstance(message, dict) and not message.keys() <= keys


def _is_header(label: str) -> bool:
    return label.startswith(("header.", "timestamp.", "stamp."))


def _getter(message: Any, path: Sequence[str]) -> Callable[[Any], Any]:
    if not isinstance(message, Mapping):
        return attrgetter(".".join(path))
    keys = tuple(path)

    def get(value: Any) -> Any:
        for key in keys:
            value = value[key]
        return value

    return get


def get_path(message: Any, *path: str) -> Any:
    """Return a field of a message by its path; None if it has none."""
    return get_or(_getter(message, path), message, None)


def _first(value: Any) -> Any:
    return value[0] if _is_list(value) and len(value) else value


def find_stamp(message: Any) -> Callable[[Any], int] | None:
    for path in _STAMPS:
        get = _getter(message, path)
        stamp = get_or(get, message, None)
        names = _members(stamp) if stamp is not None else None
        if names and names[0] in ("sec", "seconds", "secs"):
            seconds, fraction = _getter(stamp, names[:1]), _getter(stamp, names[1:2])

            def nanoseconds(
                message: Any, get: Any = get, seconds: Any = seconds, fraction: Any = fraction
            ) -> int:  # bind the loop's variables
                header = get(message)
                return int(seconds(header)) * 10**9 + int(fraction(header))

            return nanoseconds
    return None


def get_or(get: Callable[[Any], Any], message: Any, missing: Any) -> Any:
    try:
        return get(message)
    except _ABSENT:
        return missing
