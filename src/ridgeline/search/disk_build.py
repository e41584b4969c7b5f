"""Build a saved index over vectors that do not fit into memory.

The vectors are read a block at a time and written to the folder; only their codes, a few bits or a byte per dimension,
stay in memory until they can be written list by list. A search maps the folder: it reads the codes of the probed lists,
and of the vectors only the rows that are ranked again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ridgeline import store
from ridgeline.errors import InputError
from ridgeline.search.arrays import Array, Integers
from ridgeline.search.cpu import CpuBackend, CpuEngine
from ridgeline.search.engine import EngineConfig
from ridgeline.search.index_files import ARRAYS, IDS, describe_index
from ridgeline.search.inverted_lists import InvertedLists, Segment
from ridgeline.search.metric import compute_norms
from ridgeline.search.rows import make_empty_rows
from ridgeline.search.spec import Spec
from ridgeline.search.vector_files import read_vectors

ROWS_PER_BLOCK = 65_536
SAMPLE_PER_LIST = 64  # training vectors, at least
MAX_SAMPLE = 262_144


def build_on_disk(
    path: str | os.PathLike[str], vectors: Any, spec: Spec, metric: str, ids: Any, model: str | None, seed: int
) -> None:
    """Write the folder of an index over vectors [n, dim]: an array, mapped or not, or the path of an .npy file."""
    if spec.refine != "Flat" or spec.codec not in ("SQ8", "PQ", "RaBitQ") or (spec.codec == "SQ8" and not spec.lists):
        raise InputError(
            f"'{spec}' cannot be built on disk; keep codes and rank the vectors again, as in "
            "IVF4096,RaBitQ2,Refine(Flat) or IVF4096,SQ8,Refine(Flat)."
        )
    values: Any = read_vectors(Path(vectors))[0] if isinstance(vectors, str | os.PathLike) else np.asarray(vectors)
    if values.ndim != 2 or not len(values):
        raise InputError(f"the vectors have shape {values.shape}; give [n, dim] with one row or more.")
    count, dim = values.shape
    backend, config = CpuBackend(), EngineConfig(spec, metric, dim, "float32")
    sample_size = min(count, MAX_SAMPLE, max(MAX_SAMPLE // 4, SAMPLE_PER_LIST * (spec.lists or 1)))
    chosen = np.sort(np.random.default_rng(seed).choice(count, sample_size, replace=False))
    engine = backend.train_engine(config, _prepare(backend, values[chosen], metric, chosen), seed)
    assert isinstance(engine, CpuEngine)  # noqa: S101  # for the type checker
    empty = engine.row_scorer
    assert isinstance(empty, InvertedLists)  # noqa: S101
    rows = make_empty_rows().append(count, ids, None)
    meta = describe_index(config, count, rows, model, None)
    with store.publish_dir(path, meta) as folder:
        arrays = folder / ARRAYS
        arrays.mkdir()
        segments, longest = [], 0.0
        with (arrays / "refine_codes.npy").open("wb") as file:
            _write_header(file, (count, dim), np.dtype("<f4"))
            for at in range(0, count, ROWS_PER_BLOCK):
                block = np.asarray(values[at : at + ROWS_PER_BLOCK])
                prepared = _prepare(backend, block, metric, np.arange(at, at + len(block)))
                prepared.tofile(file)
                extended = empty.append(prepared)
                segments.append(extended.segments[0])
                longest = max(longest, extended.longest)
        _write_lists(arrays, segments, empty.codec.empty())
        trained = {**empty.codec.arrays(), "centres": empty.centres, "longest": np.array([longest])}
        for name, array in trained.items():
            np.save(arrays / f"{name}.npy", array, allow_pickle=False)
        np.save(folder / IDS, rows.ids.rows, allow_pickle=False)


def _prepare(backend: CpuBackend, block: Any, metric: str, numbers: Integers) -> Any:
    """Prepare some vectors; an error names the row among all of them."""
    norms = compute_norms(np.asarray(block, np.float32)) if block.dtype.kind in "biuf" else None
    if norms is not None and not np.isfinite(norms).all():
        row = int(np.flatnonzero(~np.isfinite(norms))[0])
        column = int(np.flatnonzero(~np.isfinite(block[row].astype(np.float32)))[:1].sum())
        raise InputError(
            f"row {numbers[row]} of the vectors holds {block[row][column]} in column {column}; remove or correct it."
        )
    return np.ascontiguousarray(backend.prepare_vectors(block, None, metric, "vectors"))


def _write_lists(arrays: Path, segments: list[Segment], empty_codes: Array) -> None:
    """Write codes, rows and biases list by list, in a list in the order of the rows."""
    sizes = np.sum([np.diff(segment.offsets) for segment in segments], axis=0)
    count, lists = int(sizes.sum()), len(sizes)
    np.save(arrays / "offsets.npy", np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), allow_pickle=False)
    firsts = np.concatenate([[0], np.cumsum([segment.count for segment in segments])])
    has_biases = segments[0].biases is not None
    with (
        (arrays / "codes.npy").open("wb") as codes,
        (arrays / "rows.npy").open("wb") as rows,
        (arrays / "biases.npy").open("wb") as biases,
    ):
        _write_header(codes, (count, *empty_codes.shape[1:]), empty_codes.dtype)
        _write_header(rows, (count,), np.dtype("<i8"))
        if has_biases:
            _write_header(biases, (count,), np.dtype("<f4"))
        for number in range(lists):
            for segment, first in zip(segments, firsts, strict=False):
                part = slice(int(segment.offsets[number]), int(segment.offsets[number + 1]))
                segment.codes[part].tofile(codes)
                (segment.rows[part] + first).tofile(rows)
                if segment.biases is not None:
                    segment.biases[part].tofile(biases)
    if not has_biases:
        (arrays / "biases.npy").unlink()


def _write_header(file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    file.flush()
