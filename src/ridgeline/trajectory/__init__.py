"""Uneven, multi-rate sensor streams → tensors on one clock.

>>> import numpy as np
>>> from ridgeline.trajectory import resample
>>> resample(np.array([[0.0, 1.0], [10.0, 3.0]]), np.array([0, 10]), np.array([5]))
array([[5., 2.]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.trajectory.augment import Augment as Augment
    from ridgeline.trajectory.batch import Batch as Batch
    from ridgeline.trajectory.batch import collate as collate
    from ridgeline.trajectory.batch import on_device as on_device
    from ridgeline.trajectory.cameras import Camera as Camera
    from ridgeline.trajectory.cameras import describe_camera as describe_camera
    from ridgeline.trajectory.conversion import ConversionResult as ConversionResult
    from ridgeline.trajectory.conversion import ConversionSettings as ConversionSettings
    from ridgeline.trajectory.conversion import ReadRecording as ReadRecording
    from ridgeline.trajectory.conversion import convert as convert
    from ridgeline.trajectory.conversion import convert_many as convert_many
    from ridgeline.trajectory.dataset import Share as Share
    from ridgeline.trajectory.dataset import TrajectoryDataset as TrajectoryDataset
    from ridgeline.trajectory.features import add_valid as add_valid
    from ridgeline.trajectory.features import check_camera_names as check_camera_names
    from ridgeline.trajectory.features import parse_fill as parse_fill
    from ridgeline.trajectory.media import EpisodeMedia as EpisodeMedia
    from ridgeline.trajectory.media import Media as Media
    from ridgeline.trajectory.media import write_media as write_media
    from ridgeline.trajectory.rerun_file import write_rrd as write_rrd
    from ridgeline.trajectory.resampling import resample as resample
    from ridgeline.trajectory.sample import Sample as Sample
    from ridgeline.trajectory.stream import SPANS as SPANS
    from ridgeline.trajectory.stream import Aligned as Aligned
    from ridgeline.trajectory.stream import EpisodeInfo as EpisodeInfo
    from ridgeline.trajectory.stream import Stream as Stream
    from ridgeline.trajectory.stream import StreamStats as StreamStats
    from ridgeline.trajectory.stream import align as align
    from ridgeline.trajectory.stream import describe_stream as describe_stream
    from ridgeline.trajectory.videos import GOP as GOP
    from ridgeline.trajectory.view import build_view as build_view

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "augment": ["Augment"],
        "batch": ["Batch", "collate", "on_device"],
        "cameras": ["Camera", "describe_camera"],
        "conversion": ["ConversionResult", "ConversionSettings", "ReadRecording", "convert", "convert_many"],
        "dataset": ["Share", "TrajectoryDataset"],
        "features": ["add_valid", "check_camera_names", "parse_fill"],
        "media": ["EpisodeMedia", "Media", "write_media"],
        "rerun_file": ["write_rrd"],
        "resampling": ["resample"],
        "sample": ["Sample"],
        "stream": ["SPANS", "Aligned", "EpisodeInfo", "Stream", "StreamStats", "align", "describe_stream"],
        "videos": ["GOP"],
        "view": ["build_view"],
    },
)
