"""ROS 1 and ROS 2 bags (rosbags, no ROS needed): a .bag file, or a folder with metadata.yaml.

ridgeline streams drive.bag
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.readers.fields import Ask, chosen, opening
from ridgeline.trajectory.readers.messages import Lost, Topic
from ridgeline.trajectory.stream import Stream

MAGIC = b"#ROSBAG V"
SQLITE = b"SQLite format 3\0"
_METADATA = "metadata.yaml"


def sniff(path: Path) -> bool:
    if path.is_dir():
        return (path / _METADATA).is_file()
    begins = opening(path, len(SQLITE))
    return begins.startswith(MAGIC) or (begins == SQLITE and path.suffix == ".db3")


def read(path: Path, topics: Sequence[str] | None = None, ask: Ask | None = None) -> list[Stream]:
    ask = ask or Ask()
    try:
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_typestore
    except ImportError:
        raise MissingExtra("reading ROS bags", "robot") from None
    if path.is_file() and path.suffix != ".bag":
        if path.suffix != ".db3":
            raise InputError(f"'{path}' is a ROS 1 bag by its content; call it .bag.")
        if not (path.parent / _METADATA).is_file():
            raise InputError(
                f"'{path}' is part of a ROS 2 bag whose {_METADATA} is not beside it; give the whole folder."
            )
        path = path.parent
    held: dict[str, Topic] = {}
    silent: set[str] = set()
    lost = Lost()
    # Bags from before Iron carry no message definitions; the standard messages did not change since.
    with AnyReader([path], default_typestore=get_typestore(Stores.ROS2_HUMBLE)) as bag:
        wanted = chosen(dict.fromkeys(c.topic for c in bag.connections), topics, path)
        for connection, logged, raw in bag.messages([c for c in bag.connections if c.topic in wanted]):
            if connection.msgtype in silent:
                continue
            try:
                message = bag.deserialize(raw, connection.msgtype)
            except KeyError:
                silent.add(connection.msgtype)
                ask.say(f"{connection.topic}: left out, the bag does not define its type {connection.msgtype}.")
                continue
            except Exception as error:  # whatever a few bytes that were changed lead to
                lost.note(connection.topic, error)
                continue
            held.setdefault(connection.topic, Topic(connection.topic)).add(message, logged)
    lost.tell(ask, held)
    return [s for topic in held.values() for s in topic.streams(ask)]
