"""Vectors → nearest vectors: exact at the speed of memory, and with measured recall where it approximates.

>>> import numpy as np
>>> from ridgeline.search import Index
>>> index = Index("Flat", metric="ip", device="cpu")
>>> index.add(np.array([[1.0, 0.0], [0.0, 1.0]]), ids=[10, 20])
>>> index.search(np.array([[0.2, 0.9]]), 3)[1].tolist()
[[20, 10, -1]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.search.hybrid import HybridIndex as HybridIndex
    from ridgeline.search.index import Index as Index
    from ridgeline.search.index import ShardedIndex as ShardedIndex
    from ridgeline.search.index import load_index as load_index
    from ridgeline.search.index_files import SHARDS as SHARDS
    from ridgeline.search.index_files import format_shard_list as format_shard_list
    from ridgeline.search.multi import MultiIndex as MultiIndex
    from ridgeline.search.recall import Curve as Curve
    from ridgeline.search.recall import Point as Point
    from ridgeline.search.recall import RecallWarning as RecallWarning
    from ridgeline.search.sparse import SparseIndex as SparseIndex
    from ridgeline.search.spec import choose_spec as choose_spec
    from ridgeline.search.spec import parse_spec as parse_spec
    from ridgeline.search.tensors import view_as_tensor as view_as_tensor
    from ridgeline.search.vector_files import read_model_name as read_model_name
    from ridgeline.search.vector_files import read_vectors as read_vectors
    from ridgeline.search.where import rows_where as rows_where

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "hybrid": ["HybridIndex"],
        "index": ["Index", "ShardedIndex", "load_index"],
        "index_files": ["SHARDS", "format_shard_list"],
        "multi": ["MultiIndex"],
        "recall": ["Curve", "Point", "RecallWarning"],
        "sparse": ["SparseIndex"],
        "spec": ["choose_spec", "parse_spec"],
        "tensors": ["view_as_tensor"],
        "vector_files": ["read_model_name", "read_vectors"],
        "where": ["rows_where"],
    },
)
