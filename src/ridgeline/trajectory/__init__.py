"""Uneven, multi-rate sensor streams → tensors on one clock.

>>> import numpy as np
>>> resample(np.array([[0.0, 1.0], [10.0, 3.0]]), np.array([0, 10]), np.array([5]))
array([[5., 2.]])
"""

from ridgeline.trajectory.batch import Batch
from ridgeline.trajectory.collate import collate
from ridgeline.trajectory.dataset import TrajectoryDataset
from ridgeline.trajectory.prefetch import on_device
from ridgeline.trajectory.resample import resample
from ridgeline.trajectory.sample import Sample
from ridgeline.trajectory.share import Share
from ridgeline.trajectory.stream import Aligned, Stream, align

__all__ = [
    "Aligned",
    "Batch",
    "Sample",
    "Share",
    "Stream",
    "TrajectoryDataset",
    "align",
    "collate",
    "on_device",
    "resample",
]
