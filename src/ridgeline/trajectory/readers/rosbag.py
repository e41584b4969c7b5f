"""ROS 1 and ROS 2 bags (rosbags, no ROS needed): a .bag file, or a folder with metadata.yaml.

ridgeline streams drive.bag
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.pictures import Picture
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
    images: dict[str, ImageTopic] = {}
    undefined_types: set[str] = set()
    failures = DecodeFailures()
    calibration = options.calibration
    # Bags from before Iron have no message definitions; the standard messages did not change since.
    with AnyReader([path], default_typestore=get_typestore(Stores.ROS2_HUMBLE)) as bag:
        chosen_topics = choose_topics(dict.fromkeys(c.topic for c in bag.connections), topics, path)
        calibration_topics = [
            c for c in bag.connections if calibration is not None and calibration.wants(c.topic, c.msgtype)
        ]
        extra = {c.topic for c in calibration_topics} - chosen_topics
        read_topics = chosen_topics | extra
        for connection, logged, raw in bag.messages([c for c in bag.connections if c.topic in read_topics]):
            if connection.msgtype in undefined_types:
                continue
            if calibration is not None and connection in calibration_topics:
                if calibration.needs(connection.topic, connection.msgtype):
                    with contextlib.suppress(Exception):  # damaged, as below
                        message = bag.deserialize(raw, connection.msgtype)
                        calibration.add(connection.topic, connection.msgtype, message)
                if connection.topic in extra:
                    continue
            is_image = holds_images(connection.msgtype)
            if is_image and options.add_camera is None and connection.topic in images:
                continue  # one message is enough to say that they are left out
            try:
                message = bag.deserialize(raw, connection.msgtype)
            except KeyError:
                undefined_types.add(connection.msgtype)
                report_left_out(
                    options, connection.topic, {"": f"the bag does not define its type {connection.msgtype}"}
                )
                continue
            except Exception as error:  # damaged bytes can raise any error
                if is_image:
                    images.setdefault(connection.topic, ImageTopic(connection.topic)).add_failure(
                        logged, describe_error(error)
                    )
                else:
                    failures.add(connection.topic, error)
                continue
            if is_image:
                images.setdefault(connection.topic, ImageTopic(connection.topic)).add(message, logged)
                continue
            by_topic.setdefault(connection.topic, Topic(connection.topic)).add(message, logged)
    failures.report(options, by_topic)
    return build_message_streams(by_topic.values(), options, path, images, partial(_take_pictures, path))


def _take_pictures(path: Path, topics: Collection[str]) -> Iterator[tuple[str, int, Picture]]:
    """Iterate over (topic, number, picture) of camera topics, numbered as `read` counts them."""
    from rosbags.highlevel import AnyReader
    from rosbags.typesys import Stores, get_typestore

    counts = dict.fromkeys(topics, -1)
    with AnyReader([path], default_typestore=get_typestore(Stores.ROS2_HUMBLE)) as bag:
        chosen = [c for c in bag.connections if c.topic in counts and holds_images(c.msgtype)]
        for connection, _, raw in bag.messages(chosen):
            try:
                message = bag.deserialize(raw, connection.msgtype)
            except Exception:  # `read` counted it as faulty
                counts[connection.topic] += 1
                continue
            counts[connection.topic] += 1
            try:
                picture = read_picture(message)
            except (AttributeError, KeyError, TypeError, ValueError):
                continue
            yield connection.topic, counts[connection.topic], picture
