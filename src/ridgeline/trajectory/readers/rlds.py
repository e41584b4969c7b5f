"""RLDS folders of tensorflow-datasets (Open X-Embodiment), read without TensorFlow.

A folder has features.json, dataset_info.json and shards like NAME-train.tfrecord-00000-of-00005. A record is one
episode: a tf.train.Example in protobuf's encoding, in which each feature of the steps is one flat list. Every record
carries CRC-32C checksums, which are verified. Images are cameras (RGB; 16-bit ones are depth); a text that stays the
same is the episode's task.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.trajectory.pictures import DEPTHS, Picture, name_codec
from ridgeline.trajectory.readers.images import ImageTopic
from ridgeline.trajectory.readers.messages import NO_CAMERAS
from ridgeline.trajectory.readers.streams import LeftOut, ReadOptions, choose_topics
from ridgeline.trajectory.stream import Array, EpisodeInfo, Stream

FEATURES, INFO = "features.json", "dataset_info.json"
STEPS = "steps/"
HEADER = 12  # bytes before a record: its length and the checksum of the length
FOOTER = 4
CASTAGNOLI = 0x82F63B78
LANES = 1024  # of a checksum computed side by side
SHORT = 1 << 14  # bytes; for fewer, lanes do not pay
SMALLEST = 8  # width and height of images in a tensor; smaller ones are numbers
TASKS = ("language_instruction", "natural_language_instruction", "instruction", "task")


@dataclass(frozen=True)
class Feature:
    """A feature of the steps: its shape within a step and its type."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # of numpy, "text", "image" or "other"


@dataclass(frozen=True)
class Record:
    """Where an episode lies in its shard."""

    offset: int
    length: int  # with header and footer


def sniff(path: Path) -> bool:
    return path.is_dir() and (path / FEATURES).is_file() and any(path.glob("*.tfrecord*"))


def read(path: Path, topics: Sequence[str] | None = None, options: ReadOptions | None = None) -> list[Stream]:
    streams: list[Stream] = []
    episode = 0
    for shard in list_shards(path):
        for record in list_records(shard):
            streams += read_episode(path, shard, record, episode, topics, options)
            episode += 1
    return streams


def list_shards(path: Path) -> list[Path]:
    """Return the shards of all splits, sorted by name; a shard that dataset_info.json counts must be there."""
    shards = sorted(file for file in path.glob("*.tfrecord*") if file.is_file())
    info = path / INFO
    if info.is_file():
        expected = sum(len(split.get("shardLengths", ())) for split in json.loads(info.read_text()).get("splits", ()))
        if expected > len(shards):
            raise InputError(f"'{path}' has {len(shards)} shards, {INFO} counts {expected}; copy the rest.")
    if not shards:
        raise InputError(f"'{path}' has no shard (*.tfrecord*); copy the dataset again.")
    return shards


def list_records(shard: Path) -> list[Record]:
    """Return the records of a shard by their headers; InputError if one is damaged or cut off."""
    records, offset, size = [], 0, shard.stat().st_size
    with shard.open("rb") as file:
        while offset < size:
            file.seek(offset)
            length = _read_length(shard, file.read(HEADER), offset)
            total = HEADER + length + FOOTER
            if offset + total > size:
                raise InputError(f"'{shard}' ends within the record at byte {offset}; copy the file again.")
            records.append(Record(offset, total))
            offset += total
    return records


def read_episode(
    path: Path,
    shard: Path,
    record: Record,
    episode: int,
    topics: Sequence[str] | None = None,
    options: ReadOptions | None = None,
) -> list[Stream]:
    """Return the streams of one record; a wrong checksum is an InputError that names the shard."""
    options = options or ReadOptions()
    if not options.fps:
        raise InputError(f"'{path}' has no time stamps; give the rate of its steps with --fps.")
    values = _parse_example(shard, record, _read_body(shard, record))
    return _build_streams(path, shard, record, values, episode, topics, options)


def _read_body(shard: Path, record: Record, *, verify: bool = True) -> bytes:
    """Return the content of a record; a wrong checksum is an InputError that names the shard."""
    with shard.open("rb") as file:
        file.seek(record.offset)
        data = file.read(record.length)
    length = _read_length(shard, data[:HEADER], record.offset)
    body, (expected,) = data[HEADER : HEADER + length], struct.unpack_from("<I", data, HEADER + length)
    if verify and mask_checksum(compute_crc32c(body)) != expected:
        raise InputError(f"'{shard}': the record at byte {record.offset} has a wrong checksum; copy the file again.")
    return body


def _build_streams(
    path: Path,
    shard: Path,
    record: Record,
    values: Mapping[str, Any],
    episode: int,
    topics: Sequence[str] | None,
    options: ReadOptions,
) -> list[Stream]:
    features = [feature for feature in _read_features(path) if feature.name in values]
    images = [f for f in features if f.dtype == "image" or (options.add_camera is not None and _name_encoding(f))]
    numeric = [f for f in features if f.dtype not in ("text", "image", "other") and f not in images]
    steps = {feature.name: _shape(shard, record, feature, values[feature.name]) for feature in numeric}
    counts = {len(array) for array in steps.values()}
    counts |= {len(values[f.name]) for f in images if f.dtype == "image"}
    if len(counts) != 1:
        raise InputError(f"'{shard}': the features of the record at byte {record.offset} differ in length.")
    frames = np.arange(counts.pop(), dtype=np.float64)
    times = np.rint(frames * (1e9 / float(options.fps or 1))).astype(np.int64)
    for feature in features:
        if feature.dtype == "other" or (feature.dtype == "image" and options.add_camera is None):
            reason = NO_CAMERAS if feature.dtype == "image" else "other is not numeric"
            options.leave_out(LeftOut(feature.name, reason))
    chosen = choose_topics([feature.name for feature in (*numeric, *images)], topics, path)
    if options.add_camera is not None:
        take = partial(_take_pictures, shard, record, {f.name: f for f in images})
        for feature in images:
            index = ImageTopic(feature.name)
            for picture in _read_pictures(feature, values[feature.name]):
                index.add_picture(picture)
            camera = index.build_camera(times, take, episode=str(episode), key=f"{episode}/{feature.name}")
            if camera is not None and feature.name in chosen:
                options.add_camera(camera)
    info = EpisodeInfo(_find_tasks(features, values))
    streams = []
    for feature in numeric:
        if feature.name not in chosen:
            continue
        array = steps[feature.name]
        flat = array.reshape(len(array), -1) if feature.shape else array.reshape(len(array))
        streams.append(Stream(feature.name, times, flat, episode=str(episode), info=info))
    return streams


def _take_pictures(
    shard: Path, record: Record, features: Mapping[str, Feature], sources: Collection[str]
) -> Iterator[tuple[str, int, Picture]]:
    """Iterate over (EPISODE/FEATURE, step, picture), the features in turn so that their threads work side by side."""
    values = _parse_example(shard, record, _read_body(shard, record, verify=False))  # `read_episode` verified it
    names = {source: source.partition("/")[2] for source in sources}
    readers = {source: list(_read_pictures(features[name], values[name])) for source, name in names.items()}
    for step in range(max(map(len, readers.values()), default=0)):
        for source, pictures in readers.items():
            if step < len(pictures):
                yield source, step, pictures[step]


def _read_pictures(feature: Feature, values: Any) -> Iterator[Picture]:
    """Iterate over the images of an episode: image files, or the pixels of a tensor."""
    if feature.dtype == "image":
        for data in values:
            yield Picture(name_codec("", data), data)
        return
    height, width = feature.shape[:2]
    encoding = _name_encoding(feature)
    for pixels in np.asarray(values).reshape(-1, int(np.prod(feature.shape))):
        plain = pixels.astype("<f4" if encoding == "32FC1" else np.dtype(DEPTHS.get(encoding, np.uint8)))
        yield Picture(encoding, plain.view(np.uint8), width, height)


def _name_encoding(feature: Feature) -> str:
    """Return the encoding of a tensor of pixels or depth; "" if it holds other numbers."""
    shape = feature.shape
    if len(shape) not in (2, 3) or min(shape[:2]) < SMALLEST or feature.dtype in ("text", "image", "other"):
        return ""
    channels = shape[2] if len(shape) == 3 else 1
    if feature.dtype == "uint8":
        return {1: "mono8", 3: "rgb8", 4: "rgba8"}.get(channels, "")
    if channels != 1 or "depth" not in feature.name.lower():
        return ""
    return {"uint16": "16UC1", "int16": "16SC1", "float32": "32FC1", "float64": "32FC1"}.get(feature.dtype, "")


def _shape(shard: Path, record: Record, feature: Feature, flat: Any) -> Array:
    width = int(np.prod(feature.shape)) if feature.shape else 1
    array = np.asarray(flat)
    if array.dtype == object or len(array) % width:
        raise InputError(
            f"'{shard}': '{feature.name}' of the record at byte {record.offset} does not have the shape in {FEATURES}."
        )
    kind = np.uint8 if feature.dtype == "bool" else np.dtype(feature.dtype)
    return array.astype(kind).reshape(-1, width)


def _find_tasks(features: Sequence[Feature], values: Mapping[str, Any]) -> tuple[tuple[float, str], ...]:
    for feature in features:
        if feature.dtype == "text" and feature.name.rpartition("/")[2] in TASKS:
            texts = [bytes(text).decode("utf-8", "replace") for text in values[feature.name]]
            if texts and texts[0]:
                return ((0, texts[0]),)
    return ()


@cache
def _read_features(path: Path) -> tuple[Feature, ...]:
    """Return the features of the steps, in the order of features.json."""
    try:
        tree = json.loads((path / FEATURES).read_text())
        top = tree["featuresDict"]["features"]
        steps = top["steps"]["sequence"]["feature"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"'{path / FEATURES}' describes no episodes of steps; give an RLDS dataset.") from error
    return tuple(_walk_features("", steps))


def _walk_features(name: str, node: Mapping[str, Any]) -> Iterator[Feature]:
    if "featuresDict" in node:
        for child, value in node["featuresDict"]["features"].items():
            yield from _walk_features(f"{name}/{child}" if name else child, value)
    elif "image" in node or "video" in node:
        yield Feature(name, (), "image")
    elif "text" in node:
        yield Feature(name, (), "text")
    elif "tensor" in node:
        tensor = node["tensor"]
        shape = tuple(int(size) for size in tensor.get("shape", {}).get("dimensions", ()))
        dtype, encoding = tensor.get("dtype", ""), tensor.get("encoding", "none").lower()
        if dtype == "string":
            yield Feature(name, shape, "text" if not shape else "other")
        elif encoding not in ("none", "") or any(size < 0 for size in shape):
            yield Feature(name, shape, "other")
        else:
            yield Feature(name, shape, _find_dtype(dtype))
    else:  # a sequence of varying length within a step, a label of a class, …
        yield Feature(name, (), "int64" if "classLabel" in node else "other")


def _find_dtype(name: str) -> str:
    try:
        return np.dtype(name).name
    except TypeError:
        return "float32" if name == "bfloat16" else "other"


def _parse_example(shard: Path, record: Record, body: bytes) -> dict[str, Any]:
    """Return the values of an Example by feature, without the prefix of the steps."""
    values: dict[str, Any] = {}
    try:
        view = memoryview(body)
        for _, features in _iterate_fields(view):
            for _, entry in _iterate_fields(features):
                fields = dict(_iterate_fields(entry))
                name = bytes(fields[1]).decode()
                if name.startswith(STEPS):
                    values[name.removeprefix(STEPS)] = _parse_feature(fields.get(2, view[:0]))
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise InputError(f"'{shard}': the record at byte {record.offset} is no tf.train.Example.") from error
    return values


def _parse_feature(data: memoryview) -> Any:
    """Return the list of a Feature: bytes, float32 or int64."""
    for kind, content in _iterate_fields(data):
        parts = [value for number, value in _iterate_fields(content) if number == 1]
        if kind == 1:
            return [bytes(part) for part in parts]
        if kind == 2:
            packed = [np.frombuffer(part, "<f4") for part in parts]
            return np.concatenate(packed) if packed else np.empty(0, np.float32)
        arrays = [_parse_varints(part) if isinstance(part, memoryview) else np.array([part]) for part in parts]
        return np.concatenate(arrays).astype(np.int64) if arrays else np.empty(0, np.int64)
    return []


def _iterate_fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of a message: a view of bytes, or a whole number."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        wire = tag & 7
        value: Any
        if wire == 0:
            value, position = _read_varint(data, position)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, position = data[position : position + size], position + size
        elif wire == 2:
            size, position = _read_varint(data, position)
            if position + size > len(data):
                raise ValueError("a field is cut off")
            value, position = data[position : position + size], position + size
        else:
            raise ValueError(f"wire type {wire}")
        yield tag >> 3, value


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def _parse_varints(data: memoryview) -> NDArray[np.int64]:
    """Return packed variable-length integers."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 128)
    if len(ends) == len(raw):  # each is one byte
        return raw.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    positions = np.arange(len(raw)) - np.repeat(starts, ends - starts + 1)
    if positions.max(initial=0) > 9:
        raise ValueError("a number is too long")
    shifted = (raw & 127).astype(np.uint64) << (7 * positions).astype(np.uint64)
    return np.add.reduceat(shifted, starts).view(np.int64)


def _read_length(shard: Path, header: bytes, offset: int) -> int:
    if len(header) < HEADER:
        raise InputError(f"'{shard}' ends within the record at byte {offset}; copy the file again.")
    length, checksum = struct.unpack("<QI", header)
    if mask_checksum(compute_crc32c(header[:8])) != checksum:
        raise InputError(f"'{shard}': the record at byte {offset} has a wrong checksum; copy the file again.")
    return int(length)


def mask_checksum(checksum: int) -> int:
    """Return the checksum as TFRecord stores it.

    >>> hex(mask_checksum(compute_crc32c(b"123456789")))
    '0xc78ab0e5'
    """
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def compute_crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes. Long data is cut into lanes, whose checksums are computed side by side and joined.

    >>> hex(compute_crc32c(b"123456789"))
    '0xe3069283'
    """
    table = _make_table()
    checksum, start = 0xFFFFFFFF, 0
    if len(data) >= SHORT:
        width = len(data) // LANES
        start = width * LANES
        lanes = np.frombuffer(data, np.uint8, start).reshape(LANES, width)
        sums = np.zeros(LANES, np.uint32)
        columns = np.ascontiguousarray(lanes.T)
        for column in columns:
            sums = table[(sums ^ column) & 255] ^ (sums >> 8)
        advance = _make_advance(width)
        for lane in sums.tolist():
            checksum = int(
                advance[0][checksum & 255]
                ^ advance[1][checksum >> 8 & 255]
                ^ advance[2][checksum >> 16 & 255]
                ^ advance[3][checksum >> 24]
            )
            checksum ^= lane
    plain = _list_table()
    for byte in data[start:]:
        checksum = plain[(checksum ^ byte) & 255] ^ checksum >> 8
    return checksum ^ 0xFFFFFFFF


@cache
def _list_table() -> list[int]:
    return [int(value) for value in _make_table()]


@cache
def _make_table() -> NDArray[np.uint32]:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, values >> 1 ^ np.uint32(CASTAGNOLI), values >> 1).astype(np.uint32)
    return values


@cache
def _make_advance(count: int) -> list[list[int]]:
    """Return tables that advance a checksum over `count` zero bytes, one for each of its bytes."""
    identity = [1 << bit for bit in range(32)]
    step = [_advance_byte(column) for column in identity]
    result = identity
    while count:
        if count & 1:
            result = [_multiply(step, column) for column in result]
        step = [_multiply(step, column) for column in step]
        count >>= 1
    return [[_multiply(result, value << 8 * place) for value in range(256)] for place in range(4)]


def _advance_byte(checksum: int) -> int:
    return _list_table()[checksum & 255] ^ checksum >> 8


def _multiply(columns: list[int], value: int) -> int:
    total, bit = 0, 0
    while value:
        if value & 1:
            total ^= columns[bit]
        value >>= 1
        bit += 1
    return total
