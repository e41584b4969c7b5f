"""Uneven, multi-rate sensor streams → tensors on one clock.

>>> import numpy as np
>>> resample(np.array([[0.0, 1.0], [10.0, 3.0]]), np.array([0, 10]), np.array([5]))
array([[5., 2.]])
"""

from ridgeline.trajectory.resample import resample
from ridgeline.trajectory.stream import Aligned, Stream, align

__all__ = ["Aligned", "Stream", "align", "resample"]
