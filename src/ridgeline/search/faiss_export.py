"""Export an index as a FAISS file with the same codes, lists and ids; no vector is encoded again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline import store
from ridgeline.errors import InputError, MissingExtra
from ridgeline.search.arrays import Array, Floats, Integers
from ridgeline.search.codecs import ByteCodec, Codec, FlatCodec, ProductCodec
from ridgeline.search.cpu import CpuBackend, CpuEngine
from ridgeline.search.engine import Engine
from ridgeline.search.graph import BUILD_EFFORT, GraphEngine
from ridgeline.search.inverted_lists import InvertedLists

if TYPE_CHECKING:
    from ridgeline.search.snapshot import Snapshot


def export_faiss(snapshot: Snapshot, path: str | os.PathLike[str], nprobe: int, depth: int, ef: int) -> None:
    """Write the index as a FAISS file that searches as many lists (nprobe), candidates (k_factor = depth) and rows of
    a graph (efSearch = ef).

    Cosine becomes inner product over unit vectors: give FAISS queries of length 1.
    """
    try:
        import faiss
    except ImportError:
        raise MissingExtra("export_faiss", "faiss") from None
    if snapshot.engine is None:
        raise InputError("the index holds nothing yet; train it or add vectors first.")
    links, engine = snapshot.engine.config.spec.links, _move_to_cpu(snapshot.engine)
    config, ids = engine.config, snapshot.rows.ids.rows
    if config.spec.bits:
        raise InputError(f"'{config.spec}' has codes that FAISS does not have; export an index with SQ8 or Flat.")
    metric = faiss.METRIC_L2 if config.metric == "l2" else faiss.METRIC_INNER_PRODUCT
    ids_are_rows = bool((ids == np.arange(len(ids))).all())
    # Inside a refiner FAISS needs rows, not ids; an outer map gives the ids.
    inner_ids = np.arange(len(ids)) if engine.refiner is not None or ids_are_rows else ids
    if isinstance(engine.row_scorer, InvertedLists):
        faiss_index = _export_lists(faiss, engine.row_scorer, inner_ids, config.dim, metric)
        faiss_index.nprobe = nprobe
        if isinstance(engine.row_scorer.codec, ProductCodec) and engine.row_scorer.codec.rotation is not None:
            rotation = engine.row_scorer.codec.rotation
            transform = faiss.OPQMatrix(config.dim, engine.row_scorer.codec.parts)
            faiss.copy_array_to_vector(np.ascontiguousarray(rotation.T).ravel(), transform.A)
            transform.is_trained = transform.is_orthonormal = True
            faiss_index = faiss.IndexPreTransform(transform, faiss_index)  # Python keeps both parts alive
    else:
        faiss_index = _export_codes(faiss, engine.row_scorer.codec, engine.row_scorer.codes.rows, config.dim, metric)
    if links:  # FAISS builds its own graph of the same vectors
        faiss_index = faiss.IndexHNSWFlat(config.dim, links, metric)
        faiss_index.hnsw.efConstruction = max(BUILD_EFFORT, 2 * links)
        faiss_index.hnsw.efSearch = ef
        faiss_index.add(np.ascontiguousarray(engine.vectors(np.arange(engine.count))))
    parts: list[Any] = []  # FAISS does not own the parts of an index: keep them alive until it is written
    if engine.refiner is not None:
        refine_index = _export_codes(faiss, engine.refiner.codec, engine.refiner.codes.rows, config.dim, metric)
        parts += [faiss_index, refine_index]
        faiss_index = faiss.IndexRefine(faiss_index, refine_index)
        faiss_index.k_factor = depth
    if not ids_are_rows and (engine.refiner is not None or not isinstance(engine.row_scorer, InvertedLists)):
        parts.append(faiss_index)
        faiss_index = faiss.IndexIDMap2(faiss.IndexFlat(config.dim, metric))  # its constructor needs an empty index
        faiss_index.index, faiss_index.ntotal = parts[-1], parts[-1].ntotal
        faiss.copy_array_to_vector(np.ascontiguousarray(ids), faiss_index.id_map)
        faiss_index.construct_rev_map()
    with store.publish(path) as tmp:
        faiss.write_index(faiss_index, str(tmp))


def _move_to_cpu(engine: Engine) -> CpuEngine:
    if not isinstance(engine, CpuEngine):
        engine = CpuBackend().restore_engine(engine.config, engine.arrays())
    flat = engine.flat if isinstance(engine, GraphEngine) else engine
    if not isinstance(flat, CpuEngine):
        raise InputError(f"'{engine.config.spec}' cannot be exported; build a Flat or IVFn index and export it.")
    return flat


def _export_codes(faiss: Any, codec: Codec, codes: Array, dim: int, metric: int) -> Any:
    if isinstance(codec, ByteCodec):
        faiss_index = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, metric)
        _set_byte_codec(faiss, faiss_index.sq, codec)
    elif isinstance(codec, FlatCodec) and codec.dtype == "float16":
        faiss_index = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, metric)
    else:
        faiss_index = faiss.IndexFlat(dim, metric)
    faiss_index.is_trained = True
    faiss.copy_array_to_vector(_view_bytes(codes).ravel(), faiss_index.codes)
    faiss_index.ntotal = len(codes)
    return faiss_index


def _export_lists(faiss: Any, row_scorer: InvertedLists, ids: Integers, dim: int, metric: int) -> Any:
    lists = len(row_scorer.centres)
    coarse = faiss.IndexFlat(dim, metric)
    codec = row_scorer.codec
    rotation = codec.rotation if isinstance(codec, ProductCodec) else None
    coarse.add(np.ascontiguousarray(row_scorer.centres if rotation is None else row_scorer.centres @ rotation))
    coarse.this.disown()  # the index below owns it
    if isinstance(codec, ProductCodec):
        faiss_index = faiss.IndexIVFPQ(coarse, dim, lists, codec.parts, 8, metric)
        faiss.copy_array_to_vector(np.ascontiguousarray(codec.words).ravel(), faiss_index.pq.centroids)
        faiss_index.by_residual = True
    elif isinstance(codec, ByteCodec):
        faiss_index = faiss.IndexIVFScalarQuantizer(coarse, dim, lists, faiss.ScalarQuantizer.QT_8bit, metric, False)
        _set_byte_codec(faiss, faiss_index.sq, codec)
        faiss_index.by_residual = codec.residual
    elif isinstance(codec, FlatCodec) and codec.dtype == "float16":
        faiss_index = faiss.IndexIVFScalarQuantizer(coarse, dim, lists, faiss.ScalarQuantizer.QT_fp16, metric, False)
    else:
        faiss_index = faiss.IndexIVFFlat(coarse, dim, lists, metric)
    faiss_index.is_trained = faiss_index.own_fields = True
    for segment in row_scorer.segments:
        for list_id in range(lists):
            low, high = int(segment.offsets[list_id]), int(segment.offsets[list_id + 1])
            if low == high:
                continue
            codes = _view_bytes(segment.codes[low:high])
            list_ids = np.ascontiguousarray(ids[segment.rows[low:high]])
            faiss_index.invlists.add_entries(list_id, high - low, faiss.swig_ptr(list_ids), faiss.swig_ptr(codes))
        faiss_index.ntotal += segment.count
    if isinstance(codec, ProductCodec):
        faiss_index.use_precomputed_table = 0
        faiss_index.precompute_table()
    return faiss_index


def _set_byte_codec(faiss: Any, quantizer: Any, codec: ByteCodec) -> None:
    """FAISS reads a code as vmin + (code + ½)/255 · vdiff, ridgeline as base + code · step."""
    step: Floats = codec.step
    ranges = np.concatenate([codec.base - step / 2, step * 255]).astype(np.float32)
    faiss.copy_array_to_vector(ranges, quantizer.trained)


def _view_bytes(codes: Array) -> Array:
    return np.ascontiguousarray(codes).view(np.uint8).reshape(len(codes), -1)
