"""An MCAP file of ROS 2 messages on one clock, which Foxglove, rerun and `ridgeline` read.

Streams are `ridgeline_msgs/msg/Values` (a header, names and float64 values; unknown values are NaN), cameras are
`sensor_msgs/msg/CompressedImage`, depth is `sensor_msgs/msg/Image`. A tick at which a camera has no real image has no
message of it. With several episodes, topics begin with `/episode_N`.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import MissingExtra
from ridgeline.store import publish
from ridgeline.trajectory.media import EpisodeMedia, Media
from ridgeline.trajectory.stream import Aligned, Array

NAME = "ridgeline"  # of the metadata record
_LINE = "\n" + "=" * 80 + "\n"
_HEADER = (
    f"{_LINE}MSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id"
    f"{_LINE}MSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec"
)
SCHEMAS = {
    "values": ("ridgeline_msgs/msg/Values", f"std_msgs/Header header\nstring[] name\nfloat64[] value{_HEADER}"),
    "image": ("sensor_msgs/msg/CompressedImage", f"std_msgs/Header header\nstring format\nuint8[] data{_HEADER}"),
    "depth": (
        "sensor_msgs/msg/Image",
        "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
        f"uint8[] data{_HEADER}",
    ),
}
_ENCODINGS = {"uint16": "16UC1", "int16": "16SC1", "float32": "32FC1"}
_FORMATS = {".jpg": "jpeg", ".png": "png"}


def write(
    path: Path, episodes: Sequence[Aligned], meta: dict[str, Any], *, media: Sequence[EpisodeMedia] | None = None
) -> None:
    try:
        from mcap_ros2.writer import Writer
    except ImportError:
        raise MissingExtra("writing MCAP files", "robot") from None
    with publish(path) as tmp, tmp.open("wb") as file:
        writer = Writer(file)
        schemas = {kind: writer.register_msgdef(name, text) for kind, (name, text) in SCHEMAS.items()}
        for number, episode in enumerate(episodes):
            prefix = f"/episode_{number}" if len(episodes) > 1 else ""
            episode_media = EpisodeMedia(path) if media is None else media[number]
            masks = {f"{m.feature}.valid" for m in episode_media.media}  # what is not valid has no message
            sources = [_iterate_rows(prefix, episode, masks)]
            sources += [_iterate_images(prefix, episode, episode_media.folder, m) for m in episode_media.media]
            for stamp, topic, kind, fields in heapq.merge(*sources, key=lambda message: message[0]):
                seconds, nanoseconds = divmod(stamp, 10**9)
                header = {"stamp": {"sec": seconds, "nanosec": nanoseconds}, "frame_id": topic.strip("/")}
                message = {"header": header, **fields}
                writer.write_message(topic, schemas[kind], message, log_time=stamp, publish_time=stamp)
        writer._writer.add_metadata(NAME, {"meta": json.dumps(meta)})
        writer.finish()


def read_meta(path: Path) -> dict[str, Any] | None:
    from mcap.reader import make_reader

    with path.open("rb") as file:
        for record in make_reader(file).iter_metadata():
            if record.name == NAME:
                meta: dict[str, Any] = json.loads(record.metadata["meta"])
                return meta
    return None


def _list_stamps(episode: Aligned) -> list[int]:
    times = episode.times
    nanoseconds = times if times.dtype == np.int64 else np.rint(times * 1e9).astype(np.int64)
    return [int(t) for t in nanoseconds]


def _iterate_rows(
    prefix: str, episode: Aligned, left_out: Collection[str]
) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """Iterate over the messages of the streams; a row without one known value has no message."""
    streams = []
    for name, values in episode.columns.items():
        if name in left_out:
            continue
        known: Array = episode.valid(name).reshape(len(values), -1)
        wide = np.where(known, values.reshape(len(values), -1).astype(np.float64), np.nan)
        labels = [label.removeprefix(f"{name}.") for label in episode.labels[name]]
        streams.append((f"{prefix}/{name.strip('/')}", labels, wide, np.asarray(known.any(axis=1))))
    for row, stamp in enumerate(_list_stamps(episode)):
        for topic, labels, wide, known in streams:
            if known[row]:
                yield stamp, topic, "values", {"name": labels, "value": wide[row].tolist()}


def _iterate_images(
    prefix: str, episode: Aligned, folder: Path, media: Media
) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """Iterate over the images of a camera, without those that are held."""
    topic = f"{prefix}/{media.feature.replace('.', '/')}"
    valid = episode.columns[f"{media.feature}.valid"].astype(bool)
    for row, stamp in enumerate(_list_stamps(episode)):
        if not valid[row]:
            continue
        file = folder / media.file / media.names[row]
        if media.kind == "depth":
            values = _read_depth(file)
            yield stamp, topic, "depth", {
                "height": values.shape[0], "width": values.shape[1], "encoding": _ENCODINGS[values.dtype.name],
                "is_bigendian": 0, "step": values.shape[1] * values.itemsize, "data": values.tobytes(),
            }  # fmt: skip
        else:
            yield stamp, topic, "image", {"format": _FORMATS[file.suffix], "data": file.read_bytes()}


def _read_depth(file: Path) -> Any:
    if file.suffix == ".npy":
        return np.load(file)
    from ridgeline.trajectory.pictures import import_av

    av = import_av("reading images")
    with av.open(str(file)) as container:
        return next(container.decode(video=0)).to_ndarray(format="gray16le")
