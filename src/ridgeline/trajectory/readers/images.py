"""Images in messages, for MCAP and ROS bags: which messages hold one, and an index of each camera topic.

The index has stamps and sizes, never pixels; `iter_images` of a reader gives the pictures again, in the same order.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from typing import Any

import numpy as np

from ridgeline.trajectory.cameras import Camera, Take
from ridgeline.trajectory.packets import (
    NumberReader,
    PictureNumber,
    are_regular,
    find_breaks,
    find_missing,
    sort_packets,
)
from ridgeline.trajectory.pictures import VIDEO_CODECS, Opening, Picture, inspect, name_codec, open_video_topic
from ridgeline.trajectory.readers.messages import find_stamp, get_or
from ridgeline.trajectory.stream import Array

SCHEMAS = ("Image", "CompressedImage", "RawImage", "CompressedVideo", "FFMPEGPacket")
_DAMAGE_SHARE = 0.01  # a share of pictures of another size that is damage; more is a camera that changed


def holds_images(schema: str) -> bool:
    """Whether messages of a type are images.

    >>> holds_images("sensor_msgs/msg/Image"), holds_images("foxglove.RawImage"), holds_images("sensor_msgs/msg/Imu")
    (True, True, False)
    """
    return schema.replace(".", "/").rpartition("/")[2] in SCHEMAS


def read_picture(message: Any) -> Picture:
    """Return the picture of a decoded message; raise AttributeError, KeyError or ValueError if it is none."""
    data = _get(message, "data")
    if isinstance(data, str):  # JSON
        data = base64.b64decode(data, validate=True)
    if not hasattr(data, "__len__"):
        raise ValueError("its data are no bytes")
    if _has(message, "encoding") and _has(message, "step"):
        width, height, step = (int(_get(message, name)) for name in ("width", "height", "step"))
        encoding = str(_get(message, "encoding"))
        return Picture(encoding, data, width, height, step, bool(_get(message, "is_bigendian", 0)))
    text = str(_get(message, "format", "") or _get(message, "encoding", ""))
    # A compressedDepth image of integers has values as they are, whatever stands in the head of its data.
    return Picture(name_codec(text, data), data, inverse=not text.strip().startswith(("16UC1", "mono16")))


class ImageTopic:
    """The index of one camera topic: a stamp, a size and a fault for each message."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._log_times: list[int] = []
        self._stamps: list[int | None] = []
        self._sizes: list[tuple[int, int]] = []
        self._faults: dict[int, str] = {}
        self._keys: list[bool] = []
        self._parameters: list[bool] = []
        self._numbers: list[tuple[PictureNumber, ...]] = []  # of the pictures of H.264
        self._number_reader = NumberReader()
        self._hashes: list[int] = []  # of the packets of a video; 0 of others
        self._first: Picture | None = None  # the first one with which a decoder of a video can start
        self._codecs: Counter[str] = Counter()
        self._depths = 0
        self._bytes = 0
        self._get_stamp: Callable[[Any], int] | None = None

    def add(self, message: Any, logged_ns: int) -> None:
        """Add a message; one that holds no picture counts as a faulty one."""
        number = len(self._log_times)
        if self._get_stamp is None:
            self._get_stamp = find_stamp(message)
        self._log_times.append(logged_ns)
        self._stamps.append(get_or(self._get_stamp, message, None) if self._get_stamp is not None else None)
        try:
            picture = read_picture(message)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            self.add_fault(number, f"it holds no picture ({error})")
            return
        self._look_at(number, picture)

    def add_picture(self, picture: Picture) -> None:
        """Add a picture of a source whose stamps are known elsewhere."""
        self._log_times.append(0)
        self._stamps.append(None)
        self._look_at(len(self._log_times) - 1, picture)

    def _look_at(self, number: int, picture: Picture) -> None:
        """Take the headers of a picture into the index."""
        try:
            look = inspect(picture)
        except (AttributeError, TypeError, ValueError, IndexError) as error:
            self.add_fault(number, f"it holds no picture ({error})")
            return
        self._sizes.append((look.width, look.height))
        self._keys.append(look.key)
        self._parameters.append(look.parameters)
        self._codecs[picture.codec] += 1
        data = bytes(picture.data) if picture.codec in VIDEO_CODECS else b""
        self._numbers.append(self._number_reader.read(data) if picture.codec == "h264" else ())
        self._hashes.append(hash(data) if data else 0)
        if data and self._first is None and look.key and look.parameters:
            self._first = replace(picture, data=data)
        self._depths += look.depth
        self._bytes += len(picture.data)
        if look.fault:
            self._faults[number] = look.fault

    def add_failure(self, logged_ns: int, reason: str) -> None:
        """Add a message that cannot be decoded."""
        self._log_times.append(logged_ns)
        self._stamps.append(None)
        self.add_fault(len(self._log_times) - 1, reason)

    def add_fault(self, number: int, fault: str) -> None:
        self._sizes.append((0, 0))
        self._keys.append(False)
        self._parameters.append(False)
        self._numbers.append(())
        self._hashes.append(0)
        self._faults[number] = fault

    def __len__(self) -> int:
        return len(self._log_times)

    @property
    def logged(self) -> Array:
        return np.asarray(self._log_times, np.int64)

    @property
    def stamped(self) -> Array | None:
        """The header stamps; a message without one gets its time of logging, moved by the usual offset."""
        known = np.array([s is not None for s in self._stamps])
        if 2 * np.count_nonzero(known) <= len(known):
            return None
        logged = self.logged
        stamps = np.array([s or 0 for s in self._stamps], np.int64)
        if (stamps[known][1:] == 0).any():
            return None
        offset = int(np.median(stamps[known] - logged[known]))
        return np.where(known, stamps, logged + offset)

    def build_camera(self, times: Array, take: Take, *, episode: str = "", key: str = "") -> Camera | None:
        """Return the camera; None if no message holds a picture."""
        if not self._codecs:
            return None
        codec = self._codecs.most_common(1)[0][0]
        sizes = Counter(s for i, s in enumerate(self._sizes) if i not in self._faults and s != (0, 0))
        size = sizes.most_common(1)[0][0] if sizes else (0, 0)
        faults = dict(self._faults)
        odd = [i for i, s in enumerate(self._sizes) if i not in faults and s not in (size, (0, 0))]
        changed = len(odd) > max(2, _DAMAGE_SHARE * len(self))
        for i in odd:
            faults[i] = f"its size is {self._sizes[i][0]} × {self._sizes[i][1]}, and not {size[0]} × {size[1]}"
        first = self._sizes[min((i for i, s in enumerate(self._sizes) if s != (0, 0)), default=0)]
        other = next((self._sizes[i] for i in odd if self._sizes[i] != first), size) if changed else None
        camera = Camera(
            name=self.name,
            times=times,
            codec=codec,
            width=first[0] if changed else size[0],
            height=first[1] if changed else size[1],
            depth=2 * self._depths > len(self),
            faults=faults,
            keys=np.asarray(self._keys, bool),
            starts=np.logical_and(self._keys, self._parameters),
            bytes=self._bytes,
            changes_to=other,
            take=take,
            episode=episode,
            key=key,
        )
        if not camera.is_video:
            return camera
        fits = self._first is not None and self._first.codec == codec
        opening = open_video_topic(self._first, self.name) if self._first is not None and fits else Opening()
        return self._order_packets(replace(camera, width=opening.width, height=opening.height), opening.reorders)

    def _order_packets(self, camera: Camera, reorders: bool) -> Camera:
        """Return a camera with its packets in the order in which they were sent, and the places where some are missing.

        A recorder may write packets in another order than they were sent, or twice. Their stamps tell the order, unless
        they are those of the pictures of a video with B-frames, or the clock was set back.
        """
        order = self._find_order(camera.codec, reorders)
        moved = int(np.count_nonzero(order != np.arange(len(order))))
        times = np.sort(camera.times) if moved else camera.times
        first_copies = self._find_first_copies(order)
        order, times = order[first_copies], times[first_copies]
        numbers = [self._numbers[i] for i in order]
        ranks = {int(number): rank for rank, number in enumerate(order)}
        keys = camera.keys[order]
        return replace(
            camera,
            times=times,
            faults={ranks[i]: fault for i, fault in camera.faults.items() if i in ranks},
            keys=keys,
            starts=camera.starts[order],
            breaks=find_missing(camera.codec, numbers, times),
            fresh=keys | np.array([any(picture.is_fresh for picture in pictures) for pictures in numbers], bool),
            moved=moved,
            repeated=int(np.count_nonzero(~first_copies)),
            take=camera.take if not moved and first_copies.all() else partial(_take_in_order, camera.take, order),
        )

    def _find_order(self, codec: str, reorders: bool) -> Array:
        """Return the packets in the order in which they were sent."""
        recorded, stamps, numbers = np.arange(len(self)), self.stamped, self._numbers
        order = sort_packets(stamps) if stamps is not None else None
        if order is None or stamps is None:
            return recorded
        if any(numbers):
            ordered = [numbers[i] for i in order]
            is_sent = int(find_breaks(ordered).sum()) < int(find_breaks(numbers).sum())
        elif codec in ("h264", "h265"):
            is_sent = not reorders
        else:  # each packet shows one picture
            is_sent = are_regular(stamps[order])
        return order if is_sent else recorded

    def _find_first_copies(self, order: Array) -> Array:
        """Return which packets, in their order, are not the packet before once more."""
        stamps = self.stamped
        if stamps is None:
            return np.ones(len(order), bool)
        hashes = np.array(self._hashes, np.int64)[order]
        same = (np.diff(stamps[order]) == 0) & (np.diff(hashes) == 0) & (hashes[1:] != 0)
        return np.concatenate([np.ones(1, bool), ~same])


def _take_in_order(take: Take, order: Array, topics: Collection[str]) -> Iterator[tuple[str, int, Picture]]:
    """Iterate over packets of one camera in an order; those that come too early wait, others are left out."""
    ranks = {int(number): rank for rank, number in enumerate(order)}
    needed = np.maximum.accumulate(order)
    waiting: list[tuple[int, str, Picture]] = []
    for source, number, picture in take(topics):
        if number in ranks:
            heappush(waiting, (ranks[number], source, picture))
        while waiting and needed[waiting[0][0]] <= number:  # all that come before it were read
            rank, name, first = heappop(waiting)
            yield name, rank, first
    while waiting:
        rank, name, first = heappop(waiting)
        yield name, rank, first


def _get(message: Any, name: str, *default: Any) -> Any:
    if isinstance(message, dict):
        return message.get(name, *default) if default else message[name]
    return getattr(message, name, *default)


def _has(message: Any, name: str) -> bool:
    return name in message if isinstance(message, dict) else hasattr(message, name)
