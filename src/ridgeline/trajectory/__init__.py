"""Uneven, multi-rate sensor streams → tensors on one clock.

>>> import numpy as np
>>> resample(np.array([[0.0, 1.0], [10.0, 3.0]]), np.array([0, 10]), np.array([5]))
array([[5., 2.]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.trajectory.batch import Batch as Batch
    from ridgeline.trajectory.collation import collate as collate
    from ridgeline.trajectory.convert import Done as Done
    from ridgeline.trajectory.dataset import TrajectoryDataset as TrajectoryDataset
    from ridgeline.trajectory.guess import pair as pair
    from ridgeline.trajectory.prefetch import on_device as on_device
    from ridgeline.trajectory.resampling import resample as resample
    from ridgeline.trajectory.sample import Sample as Sample
    from ridgeline.trajectory.share import Share as Share
    from ridgeline.trajectory.stream import Aligned as Aligned
    from ridgeline.trajectory.stream import Stream as Stream
    from ridgeline.trajectory.stream import align as align
    from ridgeline.trajectory.surveying import Survey as Survey
    from ridgeline.trajectory.surveying import survey as survey
    from ridgeline.trajectory.timeline import SPANS as SPANS

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "batch": ["Batch"],
        "collation": ["collate"],
        "convert": ["Done"],
        "dataset": ["TrajectoryDataset"],
        "guess": ["pair"],
        "prefetch": ["on_device"],
        "resampling": ["resample"],
        "sample": ["Sample"],
        "share": ["Share"],
        "stream": ["Aligned", "Stream", "align"],
        "surveying": ["Survey", "survey"],
        "timeline": ["SPANS"],
    },
)
