"""Read the vectors and ids of files of hnswlib and usearch; neither library is needed.

Only rows are taken, not the graph: an index here searches them exactly, or as its own spec says.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.search.arrays import Array, Floats, Integers
from ridgeline.search.metric import check_metric

HNSWLIB_HEADER = struct.Struct("<QQQQQQiIQQQdQ")
HNSWLIB_DELETED = 1  # in the third byte of an element's links
USEARCH_MAGIC = b"usearch"
USEARCH_HEAD = 64  # bytes
USEARCH_GRAPH_HEAD = struct.Struct("<QQQQQ")  # size, connectivity, that of the lowest level, highest level, entry
USEARCH_METRICS = {ord("i"): "ip", ord("c"): "cosine", ord("e"): "l2"}
USEARCH_TYPES: dict[int, tuple[str, int]] = {10: ("f64", 8), 11: ("f32", 4), 12: ("f16", 2), 4: ("bf16", 2)}
USEARCH_KEYS = {14: 8}  # u64
USEARCH_SLOTS = {15: 4}  # u32
NO_KEY = np.iinfo(np.uint64).max  # of a removed row


@dataclass(frozen=True)
class ForeignRows:
    """Rows of a file: vectors float32 [n, dim], ids int64 [n]."""

    vectors: Floats
    ids: Integers
    metric: str


def read_hnswlib(path: str | os.PathLike[str], dim: int, metric: str) -> ForeignRows:
    """Read a file of `hnswlib.Index.save_index`, which holds neither the dimension nor the metric."""
    check_metric(metric)
    if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
        raise InputError(f"dim is {dim!r}; give the number of a vector's components, as hnswlib was given.")
    data = _read_bytes(path)
    if len(data) < HNSWLIB_HEADER.size:
        raise InputError(f"'{path}' has {len(data)} bytes, which is no file of hnswlib.")
    _, largest, count, size, label_at, vector_at, *_ = HNSWLIB_HEADER.unpack_from(data)
    end = HNSWLIB_HEADER.size + count * size
    if count > largest or not 0 < vector_at < label_at <= size - 8 or end > len(data):
        raise InputError(f"'{path}' is no file of hnswlib, or was cut.")
    if label_at - vector_at != 4 * dim:
        raise InputError(
            f"'{path}' has vectors of {(label_at - vector_at) // 4} dimensions and dim is {dim}; give the same."
        )
    rows = np.frombuffer(data, np.uint8, count * size, HNSWLIB_HEADER.size).reshape(count, size)
    rows = rows[(rows[:, 2] & HNSWLIB_DELETED) == 0]
    vectors = np.ascontiguousarray(rows[:, vector_at:label_at]).view("<f4").astype(np.float32)
    labels = np.ascontiguousarray(rows[:, label_at : label_at + 8]).view("<u8")[:, 0]
    return ForeignRows(vectors.reshape(len(rows), dim), _check_labels(labels, path), metric)


def read_usearch(path: str | os.PathLike[str]) -> ForeignRows:
    """Read a file of `usearch.Index.save`: vectors of f64, f32, f16 or bf16, with cos, ip or l2sq."""
    data = _read_bytes(path)
    for width, form in ((4, "<II"), (8, "<QQ")):  # rows and bytes of a row, then the rows
        if len(data) < 2 * width:
            continue
        count, size = struct.unpack_from(form, data)
        head = 2 * width + count * size
        if data[head : head + len(USEARCH_MAGIC)] == USEARCH_MAGIC:
            break
    else:
        has_graph = data[: len(USEARCH_MAGIC)] == USEARCH_MAGIC
        reason = "has no vectors; save it with them" if has_graph else "is no file of usearch, or was cut"
        raise InputError(f"'{path}' {reason}.")
    kinds = struct.unpack_from("<BBBB", data, head + 13)
    _, _, dim, multi = struct.unpack_from("<QQQB", data, head + 17)
    metric_kind, scalar_kind, key_kind, slot_kind = kinds
    metric, scalar = USEARCH_METRICS.get(metric_kind), USEARCH_TYPES.get(scalar_kind)
    if metric is None or scalar is None or key_kind not in USEARCH_KEYS or slot_kind not in USEARCH_SLOTS:
        raise InputError(
            f"'{path}' has metric {metric_kind}, values {scalar_kind}, keys {key_kind}, slots {slot_kind} of usearch; "
            "there are cos, ip and l2sq over f64, f32, f16 and bf16, with keys of 64 bits."
        )
    if size != dim * scalar[1]:
        raise InputError(f"'{path}' has rows of {size} bytes for {dim} dimensions of {scalar[0]}; it was damaged.")
    keys = _read_usearch_keys(data, head + USEARCH_HEAD, count, path)
    vectors = _decode_values(np.frombuffer(data, np.uint8, count * size, 2 * width).reshape(count, size), scalar[0])
    live = keys != NO_KEY
    if multi and len(np.unique(keys[live])) < live.sum():
        raise InputError(f"'{path}' has several vectors for one key; a MultiIndex takes those.")
    return ForeignRows(np.ascontiguousarray(vectors[live]), _check_labels(keys[live], path), metric)


def _read_usearch_keys(data: bytes, at: int, count: int, path: Any) -> Array:
    """The key of each slot: the nodes follow each other, each as long as its levels need."""
    try:
        size, connectivity, base, _, _ = USEARCH_GRAPH_HEAD.unpack_from(data, at)
        at += USEARCH_GRAPH_HEAD.size
        levels = np.frombuffer(data, "<i2", size, at).astype(np.int64)
        at += 2 * size
        lengths = 10 + (4 + 4 * base) + (4 + 4 * connectivity) * levels
        starts = at + np.concatenate([[0], np.cumsum(lengths)])
        if size != count or starts[-1] > len(data):
            raise ValueError
        places = starts[:-1, None] + np.arange(8)
        return np.ascontiguousarray(np.frombuffer(data, np.uint8)[places]).view("<u8")[:, 0]
    except (ValueError, struct.error):
        raise InputError(f"'{path}' was cut, or is of a version of usearch that is not known here.") from None


def _decode_values(rows: Array, scalar: str) -> Floats:
    if scalar == "bf16":
        return (np.ascontiguousarray(rows).view("<u2").astype(np.uint32) << 16).view(np.float32)
    kind = {"f64": "<f8", "f32": "<f4", "f16": "<f2"}[scalar]
    return np.asarray(np.ascontiguousarray(rows).view(kind).astype(np.float32))


def _check_labels(labels: Array, path: Any) -> Integers:
    if len(labels) and labels.max() > np.iinfo(np.int64).max:
        raise InputError(f"'{path}' has key {labels.max()}; the largest id here is {np.iinfo(np.int64).max}.")
    return labels.astype(np.int64)


def _read_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}; give the file that was saved.") from None
