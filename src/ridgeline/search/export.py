"""An index as a file for FAISS, with the same codes, lists and ids: no vector is encoded again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline import store
from ridgeline.errors import InputError, MissingExtra
from ridgeline.search.arrays import Array, Floats, Whole
from ridgeline.search.codecs import ByteCodec, Codec, FlatCodec, PartCodec
from ridgeline.search.cpu import Cpu, CpuEngine
from ridgeline.search.engine import Engine
from ridgeline.search.lists import Lists

if TYPE_CHECKING:
    from ridgeline.search.state import State


def export_faiss(state: State, path: str | os.PathLike[str]) -> None:
    """Cosine becomes inner product over unit vectors: give FAISS queries of length 1."""
    try:
        import faiss
    except ImportError:
        raise MissingExtra("export_faiss", "faiss") from None
    if state.engine is None:
        raise InputError("the index holds nothing yet; train it or add vectors first.")
    engine = _on_cpu(state.engine)
    recipe, ids = engine.recipe, state.rows.ids.rows
    metric = faiss.METRIC_L2 if recipe.metric == "l2" else faiss.METRIC_INNER_PRODUCT
    plain = bool((ids == np.arange(len(ids))).all())
    # Behind a refiner FAISS wants rows, not ids; an outer map then gives the ids.
    inner = np.arange(len(ids)) if engine.refiner is not None or plain else ids
    if isinstance(engine.family, Lists):
        made = _lists(faiss, engine.family, inner, recipe.dim, metric)
    else:
        made = _codes(faiss, engine.family.codec, engine.family.codes.rows, recipe.dim, metric)
    parts: list[Any] = []  # FAISS's indexes do not own what they are made of: it must live until they are written
    if engine.refiner is not None:
        finer = _codes(faiss, engine.refiner.codec, engine.refiner.codes.rows, recipe.dim, metric)
        parts += [made, finer]
        made = faiss.IndexRefine(made, finer)
    if not plain and (engine.refiner is not None or not isinstance(engine.family, Lists)):
        parts.append(made)
        made = faiss.IndexIDMap2(faiss.IndexFlat(recipe.dim, metric))  # it wants to be made around an empty one
        made.index, made.ntotal = parts[-1], parts[-1].ntotal
        faiss.copy_array_to_vector(np.ascontiguousarray(ids), made.id_map)
        made.construct_rev_map()
    with store.publish(path) as tmp:
        faiss.write_index(made, str(tmp))


def _on_cpu(engine: Engine) -> CpuEngine:
    return engine if isinstance(engine, CpuEngine) else Cpu().restored(engine.recipe, engine.arrays())


def _codes(faiss: Any, codec: Codec, codes: Array, dim: int, metric: int) -> Any:
    if isinstance(codec, ByteCodec):
        made = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, metric)
        _set_bytes(faiss, made.sq, codec)
    elif isinstance(codec, FlatCodec) and codec.dtype == "float16":
        made = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16, metric)
    else:
        made = faiss.IndexFlat(dim, metric)
    made.is_trained = True
    faiss.copy_array_to_vector(_bytes(codes).ravel(), made.codes)
    made.ntotal = len(codes)
    return made


def _lists(faiss: Any, family: Lists, ids: Whole, dim: int, metric: int) -> Any:
    lists = len(family.centres)
    coarse = faiss.IndexFlat(dim, metric)
    coarse.add(np.ascontiguousarray(family.centres))
    coarse.this.disown()  # the index made below owns it
    codec = family.codec
    if isinstance(codec, PartCodec):
        made = faiss.IndexIVFPQ(coarse, dim, lists, codec.parts, 8, metric)
        faiss.copy_array_to_vector(np.ascontiguousarray(codec.words).ravel(), made.pq.centroids)
        made.by_residual = True
    elif isinstance(codec, ByteCodec):
        made = faiss.IndexIVFScalarQuantizer(coarse, dim, lists, faiss.ScalarQuantizer.QT_8bit, metric, False)
        _set_bytes(faiss, made.sq, codec)
    elif isinstance(codec, FlatCodec) and codec.dtype == "float16":
        made = faiss.IndexIVFScalarQuantizer(coarse, dim, lists, faiss.ScalarQuantizer.QT_fp16, metric, False)
    else:
        made = faiss.IndexIVFFlat(coarse, dim, lists, metric)
    made.is_trained = made.own_fields = True
    for segment in family.segments:
        for number in range(lists):
            low, high = int(segment.offsets[number]), int(segment.offsets[number + 1])
            if low == high:
                continue
            codes = _bytes(segment.codes[low:high])
            owned = np.ascontiguousarray(ids[segment.rows[low:high]])
            made.invlists.add_entries(number, high - low, faiss.swig_ptr(owned), faiss.swig_ptr(codes))
        made.ntotal += segment.count
    if isinstance(codec, PartCodec):
        made.use_precomputed_table = 0
        made.precompute_table()
    return made


def _set_bytes(faiss: Any, quantizer: Any, codec: ByteCodec) -> None:
    """FAISS reads a code as vmin + (code + ½)/255 · vdiff; ours as base + code · step."""
    step: Floats = codec.step
    learnt = np.concatenate([codec.base - step / 2, step * 255]).astype(np.float32)
    faiss.copy_array_to_vector(learnt, quantizer.trained)


def _bytes(codes: Array) -> Array:
    return np.ascontiguousarray(codes).view(np.uint8).reshape(len(codes), -1)
