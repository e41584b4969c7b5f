"""Write a camera as one file for each image: JPEG and PNG as recorded, other colours as JPEG, depth exactly.

A held image has no file of its own: the ticks name the file before. So a gap costs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.trajectory.pictures import import_av
from ridgeline.trajectory.stream import Array
from ridgeline.trajectory.videos import BT601, FULL_RANGE, Recorded, find_matrix, find_range

SUFFIXES = {"jpeg": "jpg", "png": "png"}
QUALITY = (2, 4)  # of JPEG, FFmpeg's scale: 2 is the best


class NoStatistics:
    """Image files have no statistics of their own."""

    def summarize(self) -> dict[str, Any]:
        return {}


class ImageWriter:
    """Writes images into a folder, named by the number of their first tick."""

    def __init__(self, folder: Path, width: int, height: int, codec: str) -> None:
        self.width, self.height, self.codec, self.pixels = width, height, codec, ""
        self.statistics = NoStatistics()
        self.names: list[str] = []  # the file of each tick
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def frames(self) -> int:
        return len(self.names)

    def write(self, value: Any, times: int) -> None:
        """Write an image for this number of ticks."""
        if isinstance(value, np.ndarray):
            suffix, data = ("png", _encode_png(value)) if value.dtype == np.uint16 else ("npy", b"")
        elif isinstance(value, Recorded):
            suffix, data = SUFFIXES[value.codec], value.data
        else:
            suffix, data = "jpg", encode_jpeg(value)
        name = f"{len(self.names):06d}.{suffix}"
        path = self._folder / name
        if suffix == "npy":
            np.save(path, value)
        else:
            path.write_bytes(data)
        self.names += [name] * times

    def repeat(self, times: int) -> None:
        """Hold the last image."""
        self.names += [self.names[-1]] * times

    def close(self) -> None:
        """Nothing is open."""

    def abort(self) -> None:
        """Nothing is open."""


def encode_jpeg(frame: Any) -> bytes:
    """Return a frame as a JPEG file of high quality."""
    av = import_av("writing images")
    encoder = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = frame.width, frame.height, "yuv420p", 1
    encoder.color_range = FULL_RANGE
    encoder.options = {"strict": "unofficial", "qmin": str(QUALITY[0]), "qmax": str(QUALITY[1])}
    plain = frame.reformat(
        format="yuv420p",
        src_color_range=find_range(frame),
        src_colorspace=find_matrix(frame),
        dst_color_range=FULL_RANGE,
        dst_colorspace=BT601,
    )
    plain.pts = 0
    return b"".join(bytes(p) for p in [*encoder.encode(plain), *encoder.encode(None)])


def _encode_png(values: Array) -> bytes:
    """Return depth of 16 bits as a PNG file."""
    av = import_av("writing images")
    encoder = av.CodecContext.create("png", "w")
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = values.shape[1], values.shape[0], "gray16be", 1
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(values), format="gray16le").reformat(format="gray16be")
    frame.pts = 0
    return b"".join(bytes(p) for p in [*encoder.encode(frame), *encoder.encode(None)])
