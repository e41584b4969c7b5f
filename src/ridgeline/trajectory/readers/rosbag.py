"""ROS 1 and ROS 2 bags (rosbags, no ROS needed): a .bag file, or a folder with metadata.yaml.

ridgeline streams drive.bag
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.readers.messages import DecodeFailures, Topic, build_message_streams
from ridgeline.trajectory.readers.streams import ReadOptions, choose_topics, read_head, report_left_out
from ridgeline.trajectory.stream import Stream

MAGIC = b"#ROSBAG V"
SQLITE = b"SQLite format 3\0"
_METADATA = "metadata.yaml"


def sniff(path: Path) -> bool:
    if path.is_dir():
        return (path / _METADATA).is_file()
    begins = read_head(path, len(SQLITE))
    return begins.startswith(MAGIC) or (begins == SQLITE and path.suffix == ".db3")


def read(path: Path, topics: Sequence[str] | None = None, options: ReadOptions | None = None) -> list[Stream]:
    options = options or ReadOptions()
    try:
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_typestore
    except ImportError:
        raise MissingExtra("reading ROS bags", "robot") from None
    if path.is_file() and path.suffix != ".bag":
        if path.suffix != ".db3":
            raise InputError(f"'{path}' is a ROS 1 bag by its content; rename it to .bag.")
        if not (path.parent / _METADATA).is_file():
            raise InputError(f"'{path}' is part of a ROS 2 bag whose {_METADATA} is missing; give the complete folder.")
        path = path.parent
    by_topic: dict[str, Topic] = {}
    undefined_types: set[str] = set()
    failures = DecodeFailures()
    # Bags from before Iron have no message definitions; the standard messages did not change since.
    with AnyReader([path], default_typestore=get_typestore(Stores.ROS2_HUMBLE)) as bag:
        chosen_topics = choose_topics(dict.fromkeys(c.topic for c in bag.connections), topics, path)
        for connection, logged, raw in bag.messages([c for c in bag.connections if c.topic in chosen_topics]):
            if connection.msgtype in undefined_types:
                continue
            try:
                message = bag.deserialize(raw, connection.msgtype)
            except KeyError:
                undefined_types.add(connection.msgtype)
                report_left_out(
                    options, connection.topic, {"": f"the bag does not define its type {connection.msgtype}"}
                )
                continue
            except Exception as error:  # damaged bytes can raise any error
                failures.add(connection.topic, error)
                continue
            by_topic.setdefault(connection.topic, Topic(connection.topic)).add(message, logged)
    failures.report(options, by_topic)
    return build_message_streams(by_topic.values(), options, path)
