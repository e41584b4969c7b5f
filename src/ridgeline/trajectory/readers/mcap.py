"""MCAP (mcap): ROS 2 messages, JSON, and Protobuf or ROS 1 where their decoders are installed.

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
from ridgeline.trajectory.readers.fields import Ask, chosen, opening, reason
from ridgeline.trajectory.readers.messages import Lost, Topic
from ridgeline.trajectory.stream import Stream

MAGIC = b"\x89MCAP0\r\n"
_DECODERS = {"cdr": "mcap_ros2", "protobuf": "mcap_protobuf", "ros1": "mcap_ros1"}


def sniff(path: Path) -> bool:
    return opening(path, len(MAGIC)) == MAGIC


def read(path: Path, topics: Sequence[str] | None = None, ask: Ask | None = None) -> list[Stream]:
    ask = ask or Ask()
    try:
        import mcap.reader
    except ImportError:
        raise MissingExtra("reading MCAP files", "robot") from None
    held: dict[str, Topic] = {}
    decoders: dict[int, Callable[[bytes], Any] | None] = {}
    silent: dict[str, str] = {}  # topics nobody can decode, and why
    lost = Lost()
    with path.open("rb") as file:
        wanted: set[str] | None = None
        summary = _summary(mcap.reader.make_reader(file))
        if summary is not None:
            wanted = chosen(dict.fromkeys(c.topic for c in summary.channels.values()), topics, path)
        for schema, channel, message in _messages(mcap.reader, file, summary, wanted, ask, path):
            if channel.id not in decoders:
                decoders[channel.id], why = _decoder(channel.message_encoding, schema)
                if why:
                    silent[channel.topic] = why
            decode = decoders[channel.id]
            if decode is None:
                continue
            try:
                decoded = decode(message.data)
            except Exception as error:  # each decoder has its own errors
                lost.note(channel.topic, error)
                continue
            held.setdefault(channel.topic, Topic(channel.topic)).add(decoded, message.log_time)
    for topic, why in silent.items():
        ask.say(f"{topic}: left out, {why}.")
    lost.tell(ask, held)
    chosen(dict.fromkeys([*held, *silent, *lost]), topics, path)
    return [s for topic in held.values() for s in topic.streams(ask)]


def _summary(reader: Any) -> Any:
    """The index at the end; None if the file was cut off before it."""
    from mcap.exceptions import McapError

    try:
        summary = reader.get_summary()
    except (McapError, ValueError, OSError, IndexError, KeyError, AssertionError):
        return None
    return summary if summary is not None and summary.channels else None


def _messages(
    library: Any, file: Any, summary: Any, wanted: set[str] | None, ask: Ask, path: Path
) -> Iterator[tuple[Any, Any, Any]]:
    import struct

    from mcap.exceptions import McapError

    file.seek(0)
    if summary is not None:
        yield from library.make_reader(file).iter_messages(topics=sorted(wanted or ()))
        return
    seen = 0
    try:
        for found in library.NonSeekingReader(file).iter_messages(log_time_order=False):
            seen += 1
            yield found
    except (McapError, struct.error, ValueError, OSError):
        if not seen:
            raise
        ask.say(f"'{path}' was cut off; the {seen} messages before that were read.")


def _decoder(encoding: str, schema: Any) -> tuple[Callable[[bytes], Any] | None, str]:
    if encoding == "json":
        return _objects, ""
    module = _DECODERS.get(encoding)
    if module is None:
        return None, f"messages encoded as '{encoding or 'unknown'}' cannot be decoded here"
    try:
        factory = import_module(f"{module}.decoder").DecoderFactory()
    except ImportError:
        package = "mcap-ros2-support" if module == "mcap_ros2" else f"{module.replace('_', '-')}-support"
        return None, f"its messages need a decoder: pip install {package}"
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # what it raises it prints as well
            found = factory.decoder_for(encoding, schema)
    except Exception as error:  # each decoder has its own errors
        return None, f"its schema '{schema.name}' cannot be read ({reason(error)})"
    if found is None:
        kind = schema.encoding if schema is not None else "no"
        return None, f"'{encoding}' with {kind} schema cannot be decoded here"
    return found, ""


def _objects(data: bytes) -> Any:
    found = json.loads(data)
    return found if isinstance(found, dict) else {"value": found}
