"""MCAP (mcap): ROS 2 messages, JSON, and Protobuf or ROS 1 if their decoders are installed.

ridgeline streams run.mcap
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ridgeline.errors import MissingExtra
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
    decoders: dict[int, Callable[[bytes], Any] | None] = {}
    undecodable: dict[str, str] = {}  # topics without a decoder, and why
    failures = DecodeFailures()
    with path.open("rb") as file:
        chosen_topics: set[str] | None = None
        summary = _summary(mcap.reader.make_reader(file))
        if summary is not None:
            chosen_topics = choose_topics(dict.fromkeys(c.topic for c in summary.channels.values()), topics, path)
        for schema, channel, message in _messages(mcap.reader, file, summary, chosen_topics, options, path):
            if channel.id not in decoders:
                decoders[channel.id], why = _find_decoder(channel.message_encoding, schema)
                if why:
                    undecodable[channel.topic] = why
            decode = decoders[channel.id]
            if decode is None:
                continue
            try:
                decoded = decode(message.data)
            except Exception as error:  # each decoder has its own errors
                failures.add(channel.topic, error)
                continue
            by_topic.setdefault(channel.topic, Topic(channel.topic)).add(decoded, message.log_time)
    for topic, why in undecodable.items():
        report_left_out(options, topic, {"": why})
    failures.report(options, by_topic)
    choose_topics(dict.fromkeys([*by_topic, *undecodable, *failures]), topics, path)
    return build_message_streams(by_topic.values(), options, path)


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
    if summary is not None:
        yield from library.make_reader(file).iter_messages(topics=sorted(chosen_topics or ()))
        return
    count = 0
    try:
        for item in library.NonSeekingReader(file).iter_messages(log_time_order=False):
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
