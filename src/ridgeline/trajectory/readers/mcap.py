"""MCAP (mcap): ROS 2 messages, JSON, and Protobuf or ROS 1 if their decoders are installed.

ridgeline streams run.mcap
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from importlib import import_module
from pathlib import Path
from typing import Any

from ridgeline.errors import MissingExtra
from ridgeline.trajectory.pictures import Picture
from ridgeline.trajectory.readers.calibration import Calibration
from ridgeline.trajectory.readers.images import ImageTopic, holds_images, read_picture
from ridgeline.trajectory.readers.messages import DecodeFailures, Topic, build_message_streams
from ridgeline.trajectory.readers.streams import (
    ReadOptions,
    choose_topics,
    describe_error,
    read_head,
    report_left_out,
)
from ridgeline.trajectory.stream import Stream

MAGIC = b"\x89MCAP0\r\n"
_DECODERS = {"cdr": "mcap_ros2", "protobuf": "mcap_protobuf", "ros1": "mcap_ros1"}


def sniff(path: Path) -> bool:
    return read_head(path, len(MAGIC)) == MAGIC


def read(path: Path, topics: Sequence[str] | None = None, options: ReadOptions | None = None) -> list[Stream]:
    options = options or ReadOptions()
    try:
        import mcap.reader
    except ImportError:
        raise MissingExtra("reading MCAP files", "robot") from None
    by_topic: dict[str, Topic] = {}
    images: dict[str, ImageTopic] = {}
    decoders: dict[int, Callable[[memoryview], Any] | None] = {}
    undecodable: dict[str, str] = {}  # topics without a decoder, and why
    failures = DecodeFailures()
    calibration = options.calibration
    with path.open("rb") as file:
        chosen_topics: set[str] | None = None
        extra: set[str] = set()  # topics that only say something about cameras
        summary = _summary(mcap.reader.make_reader(file))
        if summary is not None:
            chosen_topics = choose_topics(dict.fromkeys(c.topic for c in summary.channels.values()), topics, path)
            if calibration is not None:
                extra = _find_calibration_topics(summary, calibration)
        read_topics = None if chosen_topics is None else chosen_topics | extra
        for schema, channel, log_time, data in _messages(mcap.reader, file, summary, read_topics, options, path):
            if channel.id not in decoders:
                decoders[channel.id], why = _find_decoder(channel.message_encoding, schema)
                if why:
                    undecodable[channel.topic] = why
            decode = decoders[channel.id]
            if decode is None:
                continue
            if calibration is not None and schema is not None and calibration.wants(channel.topic, schema.name):
                if calibration.needs(channel.topic, schema.name):
                    with contextlib.suppress(Exception):  # damaged, as below
                        calibration.add(channel.topic, schema.name, decode(data))
                if channel.topic in extra and channel.topic not in (chosen_topics or ()):
                    continue
            is_image = schema is not None and holds_images(schema.name)
            if is_image and options.add_camera is None and channel.topic in images:
                continue  # one message is enough to say that they are left out
            try:
                decoded = decode(data)
            except Exception as error:  # each decoder has its own errors
                if is_image:
                    images.setdefault(channel.topic, ImageTopic(channel.topic)).add_failure(
                        log_time, describe_error(error)
                    )
                else:
                    failures.add(channel.topic, error)
                continue
            if is_image:
                images.setdefault(channel.topic, ImageTopic(channel.topic)).add(decoded, log_time)
                continue
            by_topic.setdefault(channel.topic, Topic(channel.topic)).add(decoded, log_time)
    for topic, why in undecodable.items():
        report_left_out(options, topic, {"": why})
    failures.report(options, by_topic)
    choose_topics(dict.fromkeys([*by_topic, *images, *undecodable, *failures]), topics, path)
    return build_message_streams(by_topic.values(), options, path, images, partial(_take_pictures, path))


def _take_pictures(path: Path, topics: Collection[str]) -> Iterator[tuple[str, int, Picture]]:
    """Iterate over (topic, number, picture) of camera topics, numbered as `read` counts them."""
    import mcap.reader

    counts = dict.fromkeys(topics, -1)
    decoders: dict[int, Callable[[memoryview], Any] | None] = {}
    with path.open("rb") as file:
        summary = _summary(mcap.reader.make_reader(file))
        for schema, channel, _, data in _messages(mcap.reader, file, summary, set(topics), ReadOptions(), path):
            if channel.topic not in counts or schema is None or not holds_images(schema.name):
                continue
            if channel.id not in decoders:
                decoders[channel.id], _ = _find_decoder(channel.message_encoding, schema)
            decode = decoders[channel.id]
            if decode is None:
                continue
            counts[channel.topic] += 1
            try:
                picture = read_picture(decode(data))
            except Exception:  # noqa: S112 (`read` counted it as faulty)
                continue
            yield channel.topic, counts[channel.topic], picture


def _find_calibration_topics(summary: Any, calibration: Calibration) -> set[str]:
    """Return the topics that say something about cameras."""
    return {
        channel.topic
        for channel in summary.channels.values()
        if (schema := summary.schemas.get(channel.schema_id)) and calibration.wants(channel.topic, schema.name)
    }


def _summary(reader: Any) -> Any:
    """Return the index at the end of the file; None if the file was cut off before it."""
    from mcap.exceptions import McapError

    try:
        summary = reader.get_summary()
    except (McapError, ValueError, OSError, IndexError, KeyError, AssertionError):
        return None
    return summary if summary is not None and summary.channels else None


def _messages(
    library: Any, file: Any, summary: Any, chosen_topics: set[str] | None, options: ReadOptions, path: Path
) -> Iterator[tuple[Any, Any, int, memoryview]]:
    """Iterate over (schema, channel, log time, data) of the messages."""
    from mcap.exceptions import McapError

    file.seek(0)
    if summary is not None and summary.chunk_indexes:  # without chunks, sorting would load the whole file
        yield from _read_in_order(file, summary, chosen_topics or set())
        return
    count = 0
    try:
        topics = None if chosen_topics is None else sorted(chosen_topics)
        messages = library.NonSeekingReader(file).iter_messages(topics=topics, log_time_order=False)
        for schema, channel, message in messages:
            count += 1
            yield schema, channel, message.log_time, memoryview(message.data)
    except (McapError, struct.error, ValueError, OSError):
        if not count:
            raise
        options.report(f"'{path}' was cut off; the {count} messages before that were read.")


def _read_in_order(file: Any, summary: Any, topics: set[str]) -> Iterator[tuple[Any, Any, int, memoryview]]:
    """Iterate over the messages of some topics in the order of their log times, as the library's own reader does.

    That one copies each message and compares times in Python, which takes as long as decoding the header of an image.
    """
    channels = {number: c for number, c in summary.channels.items() if c.topic in topics}
    waiting: list[tuple[int, int, int, int, Any]] = [
        (index.message_start_time, index.chunk_start_offset, -1, number, index)
        for number, index in enumerate(summary.chunk_indexes)
        if not index.message_index_offsets or channels.keys() & index.message_index_offsets.keys()
    ]
    heapify(waiting)
    count = len(summary.chunk_indexes)  # ends ties between damaged indexes
    while waiting:
        log_time, start, place, _, item = heappop(waiting)
        if place >= 0:
            channel, data = item
            yield summary.schemas[channel.schema_id] if channel.schema_id else None, channel, log_time, data
            continue
        file.seek(start + 1 + 8)
        for number, (channel_id, log_time, data) in enumerate(_split_chunk(file)):
            count += 1
            if channel_id in channels:
                heappush(waiting, (log_time, start, number, count, (channels[channel_id], data)))
            elif channel_id not in summary.channels:
                raise ValueError(f"channel {channel_id} is not in the index")


_RECORD = struct.Struct("<BQ")  # opcode, length
_MESSAGE = struct.Struct("<HIQQ")  # channel, sequence, log time, publish time
_MESSAGE_OPCODE = 5


def _split_chunk(file: Any) -> Iterator[tuple[int, int, memoryview]]:
    """Iterate over (channel, log time, data) of the chunk at the position of the file; nothing is copied."""
    from mcap.data_stream import ReadDataStream
    from mcap.records import Chunk
    from mcap.stream_reader import get_chunk_data_stream

    chunk = Chunk.read(ReadDataStream(file))
    if chunk.compression:
        stream, size = get_chunk_data_stream(chunk)
        content = memoryview(stream.read(size) if size else b"")
    else:
        content = memoryview(chunk.data)
    at = 0
    while at < len(content):
        opcode, length = _RECORD.unpack_from(content, at)
        at += _RECORD.size
        if opcode == _MESSAGE_OPCODE:
            channel_id, _, log_time, _ = _MESSAGE.unpack_from(content, at)
            yield channel_id, log_time, content[at + _MESSAGE.size : at + length]
        at += length


_IMAGE_FIELDS = (
    "std_msgs/Header header",
    "uint32 height",
    "uint32 width",
    "string encoding",
    "uint8 is_bigendian",
    "uint32 step",
    "uint8[] data",
)
_COMPRESSED_FIELDS = ("std_msgs/Header header", "string format", "uint8[] data")


def _read_fields(schema: Any) -> tuple[str, ...]:
    """Return the fields of a message definition, without comments and the types below."""
    text = schema.data.decode("utf-8", "replace").partition("\n===")[0]
    lines = (" ".join(line.partition("#")[0].split()) for line in text.splitlines())
    return tuple(line for line in lines if line)


def decode_ros2_image(data: memoryview, is_compressed: bool) -> dict[str, Any]:
    """Return the fields of sensor_msgs/CompressedImage or Image in little-endian CDR without copying the pixels."""
    seconds, nanoseconds = struct.unpack_from("<iI", data, 4)
    header = {"stamp": {"sec": seconds, "nanosec": nanoseconds}}
    _, at = _read_text(data, 12)
    if is_compressed:
        text, at = _read_text(data, at)
        return {"header": header, "format": text, "data": _read_bytes(data, at)}
    height, width = struct.unpack_from("<II", data, _align(at))
    encoding, at = _read_text(data, _align(at) + 8)
    (big_endian,) = struct.unpack_from("<B", data, at)
    (step,) = struct.unpack_from("<I", data, _align(at + 1))
    pixels = _read_bytes(data, _align(at + 1) + 4)
    size = {"height": height, "width": width, "step": step}
    return {"header": header, **size, "encoding": encoding, "is_bigendian": big_endian, "data": pixels}


def _align(at: int) -> int:
    return at + -at % 4


def _read_text(data: memoryview, at: int) -> tuple[str, int]:
    content = _read_bytes(data, at)
    return bytes(content).rstrip(b"\0").decode(), _align(at) + 4 + len(content)


def _read_bytes(data: memoryview, at: int) -> memoryview:
    at = _align(at)
    (length,) = struct.unpack_from("<I", data, at)
    return data[at + 4 : at + 4 + length]


def _find_decoder(encoding: str, schema: Any) -> tuple[Callable[[memoryview], Any] | None, str]:
    """Return what decodes the messages of a channel, or why nothing does."""
    decode, why = _find_library_decoder(encoding, schema)
    if decode is None:
        return None, why
    from_bytes = decode

    def decode_message(data: memoryview) -> Any:
        return from_bytes(bytes(data))

    fields = _read_fields(schema) if encoding == "cdr" and schema is not None else ()
    if fields not in (_IMAGE_FIELDS, _COMPRESSED_FIELDS):
        return decode_message, ""

    def decode_image(data: memoryview) -> Any:
        if bytes(data[:2]) == b"\0\1":
            return decode_ros2_image(data, fields == _COMPRESSED_FIELDS)
        return decode_message(data)

    return decode_image, ""


def _find_library_decoder(encoding: str, schema: Any) -> tuple[Callable[[bytes], Any] | None, str]:
    if encoding == "json":
        return _decode_json, ""
    module = _DECODERS.get(encoding)
    if module is None:
        return None, f"messages encoded as '{encoding or 'unknown'}' cannot be decoded here"
    try:
        factory = import_module(f"{module}.decoder").DecoderFactory()
    except ImportError:
        package = "mcap-ros2-support" if module == "mcap_ros2" else f"{module.replace('_', '-')}-support"
        return None, f"its messages need a decoder: pip install {package}"
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # it also prints the error that it raises
            decode = factory.decoder_for(encoding, schema)
    except Exception as error:  # each decoder has its own errors
        return None, f"its schema '{schema.name}' cannot be read ({describe_error(error)})"
    if decode is None:
        kind = schema.encoding if schema is not None else "no"
        return None, f"'{encoding}' with {kind} schema cannot be decoded here"
    return decode, ""


def _decode_json(data: bytes) -> Any:
    value = json.loads(data)
    return value if isinstance(value, dict) else {"value": value}
