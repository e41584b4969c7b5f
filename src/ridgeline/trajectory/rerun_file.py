"""A recording as a file of rerun (.rrd): every stream as scalars, every camera as images, on one timeline.

JPEG and PNG images are stored as recorded, other colours as JPEG, depth exactly. Needs `pip install rerun-sdk`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory import readers
from ridgeline.trajectory.cameras import Camera
from ridgeline.trajectory.image_files import SUFFIXES, encode_jpeg
from ridgeline.trajectory.media import PictureDecoder
from ridgeline.trajectory.pictures import VIDEO_CODECS, check_codec
from ridgeline.trajectory.readers import ReadOptions
from ridgeline.trajectory.readers.streams import describe_error
from ridgeline.trajectory.stream import Array

TIMELINE = "time"


def write_rrd(
    path: str | Path,
    out: str | Path,
    *,
    topics: Sequence[str] | None = None,
    options: ReadOptions | None = None,
    episode: str | None = None,
) -> int:
    """Write a recording, or one episode of a dataset (default: the first), to a file; return the number of images."""
    try:
        import rerun
    except ImportError as error:
        raise InputError(f"--rrd needs rerun ({describe_error(error)}): pip install rerun-sdk.") from None
    streams, cameras = readers.read_recording(path, topics, options)
    episodes = list(dict.fromkeys([*(s.episode for s in streams), *(c.episode for c in cameras)]))
    if episode is not None and episode not in episodes:
        raise unknown(f"episode in '{path}'", episode, episodes)
    chosen = episodes[0] if episode is None else episode
    recording = rerun.RecordingStream("ridgeline")
    recording.save(str(out))
    for stream in streams:
        if stream.episode != chosen or not len(stream):
            continue
        values = stream.values.astype(np.float64).reshape(len(stream), -1)
        recording.log(stream.name, rerun.SeriesLines(names=list(stream.columns)), static=True)
        recording.send_columns(
            stream.name, indexes=[_build_index(rerun, stream.times)], columns=rerun.Scalars.columns(scalars=values)
        )
    count = 0
    for camera in cameras:
        if camera.episode == chosen:
            count += _log_camera(rerun, recording, camera)
    recording.flush()
    return count


def _build_index(rerun: Any, times: Array) -> Any:
    """Return stamps as rerun's timeline: a date for stamps since 1970, a duration for others."""
    if times.dtype != np.int64:
        return rerun.TimeColumn(TIMELINE, duration=times)
    stamps = times.astype("datetime64[ns]")
    return (
        rerun.TimeColumn(TIMELINE, timestamp=stamps)
        if len(times) and times[0] > 10**17
        else rerun.TimeColumn(TIMELINE, duration=times.astype("timedelta64[ns]"))
    )


def _log_camera(rerun: Any, recording: Any, camera: Camera) -> int:
    if not camera.decoded:
        check_codec(camera.codec, camera.name)
    decoder, count = PictureDecoder(camera), 0
    for _, number, picture in camera.take([camera.source]):
        if number in camera.faults and (picture.codec not in VIDEO_CODECS or not len(picture.data)):
            continue
        try:
            decoded = decoder.decode(number, picture)
        except MemoryError:
            raise
        except Exception:  # noqa: S112 (damaged data; each decoder has its own errors)
            continue
        for frame, value in decoded:
            stamp = camera.times[frame]
            is_date = camera.times.dtype == np.int64 and camera.times[0] > 10**17
            seconds = stamp / 1e9 if camera.times.dtype == np.int64 else float(stamp)
            recording.set_time(
                TIMELINE, **({"timestamp": np.datetime64(int(stamp), "ns")} if is_date else {"duration": seconds})
            )
            if isinstance(value, np.ndarray):
                item = rerun.DepthImage(value)
            elif picture.codec in SUFFIXES:
                item = rerun.EncodedImage(contents=bytes(picture.data), media_type=f"image/{picture.codec}")
            else:
                item = rerun.EncodedImage(contents=encode_jpeg(value), media_type="image/jpeg")
            recording.log(camera.name, item)
            count += 1
    return count
