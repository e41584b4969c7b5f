"""MCAP (mcap): ROS 2 messages, JSON, and Protobuf or ROS 1 if their decoders are installed.

ridgeline streams run.mcap
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
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
    decoders: dict[int, Callable[[bytes], Any] | None] = {}
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
        for schema, channel, message in _messages(mcap.reader, file, summary, read_topics, options, path):
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
                        calibration.add(channel.topic, schema.name, decode(message.data))
                if channel.topic in extra and channel.topic not in (chosen_topics or ()):
                    continue
            is_image = schema is not None and holds_images(schema.name)
            if is_image and options.add_camera is None and channel.topic in images:
                continue  # one message is enough to say that they are left out
            try:
                decoded = decode(message.data)
            except Exception as error:  # each decoder has its own errors
                if is_image:
                    images.setdefault(channel.topic, ImageTopic(channel.topic)).add_failure(
                        message.log_time, describe_error(error)
                    )
                else:
                    failures.add(channel.topic, error)
                continue
            if is_image:
                images.setdefault(channel.topic, ImageTopic(channel.topic)).add(decoded, message.log_time)
                continue
            by_topic.setdefault(channel.topic, Topic(channel.topic)).add(decoded, message.log_time)
    for topic, why in undecodable.items():
        report_left_out(options, topic, {"": why})
    failures.report(options, by_topic)
    choose_topics(dict.fromkeys([*by_topic, *images, *undecodable, *failures]), topics, path)
    return build_message_streams(by_topic.values(), options, path, images, partial(_take_pictures, path))


def _take_pictures(path: Path, topics: Collection[str]) -> Iterator[tuple[str, int, Picture]]:
    """Iterate over (topic, number, picture) of camera topics, numbered as `read` counts them."""
    import mcap.reader

    counts = dict.fromkeys(topics, -1)
    decoders: dict[int, Callable[[bytes], Any] | None] = {}
    with path.open("rb") as file:
        summary = _summary(mcap.reader.make_reader(file))
        for schema, channel, message in _messages(mcap.reader, file, summary, set(topics), ReadOptions(), path):
            if channel.topic not in counts or schema is None or not holds_images(schema.name):
                continue
            if channel.id not in decoders:
                decoders[channel.id], _ = _find_decoder(channel.message_encoding, schema)
            decode = decoders[channel.id]
            if decode is None:
                continue
            counts[channel.topic] += 1
            try:
                picture = read_picture(decode(message.data))
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
) -> Iterator[tuple[Any, Any, Any]]:
    import struct

    from mcap.exceptions import McapError

    file.seek(0)
    if summary is not None and summary.chunk_indexes:  # without chunks, sorting would load the whole file
        yield from library.make_reader(file).iter_messages(topics=sorted(chosen_topics or ()))
        return
    count = 0
    try:
        topics = None if chosen_topics is None else sorted(chosen_topics)
        for item in library.NonSeekingReader(file).iter_messages(topics=topics, log_time_order=False):
            count += 1
            yield item
    except (McapError, struct.error, ValueError, OSError):
        if not count:
            raise
        options.report(f"'{path}' was cut off; the {count} messages before that were read.")


def _find_decoder(encoding: str, schema: Any) -> tuple[Callable[[bytes], Any] | None, str]:
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
