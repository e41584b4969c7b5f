"""Vectors → nearest vectors: exact at the speed of memory, honest where it approximates.

>>> import numpy as np
>>> from ridgeline.search import Index
>>> index = Index("Flat", metric="ip", device="cpu")
>>> index.add(np.array([[1.0, 0.0], [0.0, 1.0]]), ids=[10, 20])
>>> index.search(np.array([[0.2, 0.9]]), 3)[1].tolist()
[[20, 10, -1]]
"""

from __future__ import annotations

from ridgeline.search.index import Index
from ridgeline.search.recall import Curve, Point
from ridgeline.search.sharded import ShardedIndex
from ridgeline.search.where import rows_where

__all__ = ["Curve", "Index", "Point", "ShardedIndex", "rows_where"]
