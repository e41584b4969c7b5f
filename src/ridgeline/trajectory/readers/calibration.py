"""What a recording says about its cameras: CameraInfo (or foxglove's CameraCalibration) and static transforms.

The first message of each topic counts: these messages repeat what they say. `Calibration.describe` gives JSON for the
cameras of a dataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ridgeline.trajectory.readers.messages import get_path

INFOS = ("CameraInfo", "CameraCalibration")
TRANSFORMS = ("TFMessage", "FrameTransforms", "FrameTransform")
STATIC = "tf_static"


@dataclass
class Calibration:
    """The camera infos by topic, and the static transforms by (parent, child)."""

    infos: dict[str, dict[str, Any]] = field(default_factory=dict)
    transforms: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def wants(self, topic: str, schema: str) -> bool:
        """Whether messages of a topic say something about cameras."""
        kind = schema.replace(".", "/").rpartition("/")[2]
        return kind in INFOS or (kind in TRANSFORMS and topic.rstrip("/").endswith(STATIC))

    def needs(self, topic: str, schema: str) -> bool:
        """Whether another message of a topic can say something new."""
        kind = schema.replace(".", "/").rpartition("/")[2]
        return kind not in INFOS or topic not in self.infos

    def add(self, topic: str, schema: str, message: Any) -> None:
        """Add a decoded message; one without the expected fields says nothing."""
        kind = schema.replace(".", "/").rpartition("/")[2]
        if kind in INFOS:
            if (info := _read_info(message)) is not None:
                self.infos[topic] = info
            return
        transforms = get_path(message, "transforms")
        for transform in [message] if transforms is None else transforms:
            if (read := _read_transform(transform)) is not None:
                self.transforms[read["parent"], read["child"]] = read

    def describe(self, cameras: Mapping[str, str]) -> dict[str, Any]:
        """Return the calibration of cameras {feature: topic} as JSON; {} if nothing is known."""
        infos = {feature: info for feature, topic in cameras.items() if (info := self.find_info(topic)) is not None}
        out: dict[str, Any] = {"cameras": infos} if infos else {}
        return {**out, "transforms": list(self.transforms.values())} if self.transforms else out

    def find_info(self, topic: str) -> dict[str, Any] | None:
        """Return the info of a camera: of the topic `camera_info` beside its images, or in a folder above."""
        parts = topic.rstrip("/").split("/")
        for depth in range(len(parts) - 1, 0, -1):
            prefix = "/".join(parts[:depth])
            beside = [t for t in self.infos if t.rpartition("/")[0] == prefix]
            named = [t for t in beside if t.rpartition("/")[2] in ("camera_info", "calibration")]
            if len(named or beside) == 1:
                chosen = (named or beside)[0]
                return {"topic": chosen, **self.infos[chosen]}
        return None


def _read_info(message: Any) -> dict[str, Any] | None:
    matrix = _read_numbers(message, "k", "K")
    width, height = get_path(message, "width"), get_path(message, "height")
    if matrix is None or len(matrix) != 9 or width is None or height is None:
        return None
    return {
        "frame_id": str(get_path(message, "header", "frame_id") or get_path(message, "frame_id") or ""),
        "width": int(width),
        "height": int(height),
        "distortion_model": str(get_path(message, "distortion_model") or ""),
        "d": _read_numbers(message, "d", "D") or [],
        "k": matrix,
        "r": _read_numbers(message, "r", "R") or [],
        "p": _read_numbers(message, "p", "P") or [],
    }


def _read_numbers(message: Any, *names: str) -> list[float] | None:
    for name in names:
        value = get_path(message, name)
        if value is not None:
            return [float(v) for v in np.asarray(value, np.float64).ravel()]
    return None


def _read_transform(message: Any) -> dict[str, Any] | None:
    parent = get_path(message, "header", "frame_id") or get_path(message, "parent_frame_id")
    child = get_path(message, "child_frame_id")
    body = get_path(message, "transform") or message
    parts = [
        [get_path(body, part, axis) for axis in axes] for part, axes in (("translation", "xyz"), ("rotation", "xyzw"))
    ]
    if not parent or not child or any(v is None for values in parts for v in values):
        return None
    translation, rotation = ([float(v) for v in values] for values in parts)
    return {"parent": str(parent), "child": str(child), "translation": translation, "rotation": rotation}
