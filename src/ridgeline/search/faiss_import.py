"""Read a FAISS index: the same codes, lists and ids as arrays of an engine; no vector is encoded again."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra
from ridgeline.search.arrays import Array, Doubles, Floats, Integers
from ridgeline.search.codecs import ByteCodec, Codec, FlatCodec, ProductCodec
from ridgeline.search.engine import EngineConfig
from ridgeline.search.flat import compute_biases
from ridgeline.search.metric import compute_norms
from ridgeline.search.spec import MAX_LINKS, MAX_LISTS, MIN_LINKS, Spec

FORMS = (
    "IndexFlat, IndexScalarQuantizer (8 bits, fp16), IndexIVFFlat, IndexIVFScalarQuantizer, IndexIVFPQ (8 bits), "
    "the last one after OPQ, too, each alone, refined by Flat or SQ8, or with an id map, and IndexHNSWFlat"
)
DECODED_AT_ONCE = 65_536  # rows


@dataclass(frozen=True)
class ImportedIndex:
    """The content of a FAISS index: `arrays` as `Backend.restore_engine` takes them, ids [n] in the order of rows.

    Of HNSW only the vectors ("codes") are taken: the graph is built here.
    """

    config: EngineConfig
    arrays: dict[str, Array]
    ids: Integers
    nprobe: int | None
    depth: int | None
    ef: int | None


@dataclass(frozen=True)
class _Codes:
    """Codes of rows in one order, and how they are decoded."""

    codec: Codec
    codes: Array
    dtype: str = "float32"
    centres: Floats | None = None  # added to what is decoded, by list
    list_ids: Integers | None = None

    def compute_norms(self) -> Doubles:
        """‖x‖ of each stored row."""
        out = np.empty(len(self.codes))
        for at in range(0, len(self.codes), DECODED_AT_ONCE):
            part = slice(at, at + DECODED_AT_ONCE)
            values = self.codec.decode(self.codes[part])
            if self.centres is not None and self.list_ids is not None:
                values = values + self.centres[self.list_ids[part]]
            out[part] = compute_norms(values)
        return out


def import_faiss(source: Any) -> ImportedIndex:
    """Read a FAISS index, given as an object of the library or as the path of a file.

    Raises InputError that names the type if there is none like it here.
    """
    try:
        import faiss
    except ImportError:
        raise MissingExtra("from_faiss", "faiss") from None
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        if not os.path.isfile(path):
            raise InputError(f"there is no file '{path}'; give the file that faiss.write_index wrote.")
        try:
            outer = faiss.read_index(str(path))
        except RuntimeError as error:
            reason = str(error).splitlines()[0][:200]
            raise InputError(f"'{path}' cannot be read as a FAISS index: {reason}.") from None
    elif isinstance(source, faiss.Index):
        outer = source
    else:
        raise InputError(f"from_faiss takes a path or an index of FAISS, not {type(source).__name__}.")
    return _import_index(faiss, outer)


def _import_index(faiss: Any, outer: Any) -> ImportedIndex:
    index, outer_ids, unit = faiss.downcast_index(outer), None, False
    if isinstance(index, faiss.IndexPreTransform) and _only_normalizes(faiss, index):
        index, unit = faiss.downcast_index(index.index), True
    if isinstance(index, faiss.IndexIDMap):
        outer_ids = faiss.vector_to_array(index.id_map).astype(np.int64)
        index = faiss.downcast_index(index.index)
    metric = _find_metric(faiss, index, unit)
    if not index.is_trained:
        raise InputError("the FAISS index is not trained; train it, or make an Index and train that.")
    refine, depth = None, None
    if isinstance(index, faiss.IndexRefine):
        depth = max(1, round(index.k_factor))
        refine, index = faiss.downcast_index(index.refine_index), faiss.downcast_index(index.base_index)
    rotation = None
    if isinstance(index, faiss.IndexPreTransform) and (rotation := _read_rotation(faiss, index)) is not None:
        index = faiss.downcast_index(index.index)
    dim = int(index.d)
    nprobe, links, ef = None, None, None
    if isinstance(index, faiss.IndexHNSWFlat):
        links = min(MAX_LINKS, max(MIN_LINKS, int(index.hnsw.nb_neighbors(1))))
        ef = int(index.hnsw.efSearch)
        index = faiss.downcast_index(index.storage)
    if isinstance(index, faiss.IndexIVF):
        arrays, codes, inner_ids, parts = _read_lists(faiss, index, dim, rotation)
        nprobe, lists = int(index.nprobe), int(index.nlist)
        needs_rows = outer_ids is not None or refine is not None
        if needs_rows and not np.array_equal(inner_ids, np.arange(len(inner_ids))):
            raise InputError("rows were removed below the id map or the refiner of the FAISS index; build it anew.")
    elif rotation is not None:
        raise InputError(f"the FAISS index rotates the vectors of a {type(index).__name__}; there is OPQm,IVFn,PQm.")
    else:
        codes = _read_codes(faiss, index, dim)
        arrays, inner_ids, lists, parts = {"codes": codes.codes}, np.arange(len(codes.codes)), None, None
    arrays |= codes.codec.arrays()
    norms = codes.compute_norms()
    if metric == "l2":
        arrays["biases"] = compute_biases(norms)
    arrays["longest"] = np.array([norms.max(initial=0.0)])
    dtype, refine_name = codes.dtype, None
    if refine is not None:
        fine = _read_codes(faiss, refine, dim)
        if codes.codec.name == "Flat" and fine.codec.name == "Flat" and fine.dtype != dtype:
            raise InputError("the FAISS index has float16 values refined by float32; give the float32 ones alone.")
        refine_name, dtype = fine.codec.name, fine.dtype if fine.codec.name == "Flat" else dtype
        arrays["refine_codes"] = fine.codes
        arrays |= {f"refine_{name}": array for name, array in fine.codec.arrays().items()}
    ids = inner_ids if outer_ids is None else outer_ids
    _check_ids(ids)
    if links is not None and refine is not None:
        raise InputError("the FAISS index refines HNSW by the same vectors; give the HNSW index alone.")
    spec = Spec(codes.codec.name, lists, parts, refine_name, links, rotated=rotation is not None)
    return ImportedIndex(EngineConfig(spec, metric, dim, dtype), arrays, ids, nprobe, depth, ef)


def _only_normalizes(faiss: Any, index: Any) -> bool:
    if index.chain.size() != 1:
        return False
    transform = faiss.downcast_VectorTransform(index.chain.at(0))
    return isinstance(transform, faiss.NormalizationTransform) and transform.norm == 2


def _read_rotation(faiss: Any, index: Any) -> Floats | None:
    """The matrix [d, d] of OPQ, with which vectors are multiplied from the right; None if it is another transform."""
    if index.chain.size() != 1:
        return None
    transform = faiss.downcast_VectorTransform(index.chain.at(0))
    if not isinstance(transform, faiss.LinearTransform) or transform.d_in != transform.d_out or transform.have_bias:
        return None
    matrix: Floats = faiss.vector_to_array(transform.A).reshape(transform.d_out, transform.d_in).T
    is_rotation = np.allclose(matrix.T @ matrix, np.eye(len(matrix)), atol=1e-3)
    return np.ascontiguousarray(matrix) if is_rotation else None


def _find_metric(faiss: Any, index: Any, unit: bool) -> str:
    if index.metric_type == faiss.METRIC_INNER_PRODUCT:
        return "cosine" if unit else "ip"
    if index.metric_type != faiss.METRIC_L2 or unit:
        what = "vectors of length 1 with METRIC_L2" if unit else f"metric {index.metric_type}"
        raise InputError(f"the FAISS index has {what}; there are METRIC_INNER_PRODUCT and METRIC_L2.")
    return "l2"


def _read_codes(faiss: Any, index: Any, dim: int) -> _Codes:
    """Read an index that scans all its codes."""
    if isinstance(index, faiss.IndexFlat):
        values = faiss.vector_to_array(index.codes).view(np.float32).reshape(-1, dim)
        return _Codes(FlatCodec(dim), values)
    if isinstance(index, faiss.IndexScalarQuantizer):
        codes = faiss.vector_to_array(index.codes).reshape(-1, int(index.sq.code_size))
        return _read_scalar_codes(faiss, index.sq, codes, dim)
    raise InputError(f"the FAISS index is of type {type(index).__name__}, which has no counterpart; there are {FORMS}.")


def _read_scalar_codes(faiss: Any, quantizer: Any, codes: Array, dim: int) -> _Codes:
    """FAISS reads a code as vmin + (code + ½)/255 · vdiff, ridgeline as base + code · step."""
    kind, kinds = quantizer.qtype, faiss.ScalarQuantizer
    if kind == kinds.QT_fp16:
        return _Codes(FlatCodec(dim, "float16"), np.ascontiguousarray(codes).view(np.float16), "float16")
    if kind not in (kinds.QT_8bit, kinds.QT_8bit_uniform):
        raise InputError(f"the FAISS index has scalar codes of type {kind}; there are QT_8bit and QT_fp16.")
    trained = faiss.vector_to_array(quantizer.trained)
    if kind == kinds.QT_8bit_uniform:
        trained = np.repeat(trained, dim)
    low, span = trained[:dim].astype(np.float64), trained[dim:].astype(np.float64)
    codec = ByteCodec((low + span / 510).astype(np.float32), (span / 255).astype(np.float32))
    return _Codes(codec, np.ascontiguousarray(codes))


def _read_lists(
    faiss: Any, index: Any, dim: int, rotation: Floats | None
) -> tuple[dict[str, Array], _Codes, Integers, int | None]:
    """Return (arrays of the lists, codes by position, ids in the order of rows, parts of PQ).

    FAISS rotates whole vectors; here centres are not rotated, only what PQ codes.
    """
    is_product = type(index) is faiss.IndexIVFPQ and index.pq.nbits == 8
    if not is_product and not isinstance(index, faiss.IndexIVFFlat | faiss.IndexIVFScalarQuantizer):
        bits = f" with {index.pq.nbits} bits" if isinstance(index, faiss.IndexIVFPQ) else ""
        raise InputError(
            f"the FAISS index is of type {type(index).__name__}{bits}, which has no counterpart; there are {FORMS}."
        )
    if rotation is not None and not is_product:
        raise InputError(f"the FAISS index rotates the vectors of a {type(index).__name__}; there is OPQm,IVFn,PQm.")
    if is_product and not index.by_residual:
        raise InputError("the FAISS index has PQ codes of whole vectors; there are those of residuals only.")
    lists, size = int(index.nlist), int(index.code_size)
    if lists > MAX_LISTS:
        raise InputError(f"the FAISS index has {lists} lists; an index has up to {MAX_LISTS}.")
    sizes = np.array([index.invlists.list_size(number) for number in range(lists)], np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    codes, ids = np.empty((offsets[-1], size), np.uint8), np.empty(offsets[-1], np.int64)
    for number in np.flatnonzero(sizes).tolist():
        low, high = int(offsets[number]), int(offsets[number + 1])
        invlists = index.invlists
        code_pointer, id_pointer = invlists.get_codes(number), invlists.get_ids(number)
        codes[low:high] = faiss.rev_swig_ptr(code_pointer, (high - low) * size).reshape(-1, size)
        ids[low:high] = faiss.rev_swig_ptr(id_pointer, high - low)
        invlists.release_codes(number, code_pointer)
        invlists.release_ids(number, id_pointer)
    centres = np.ascontiguousarray(index.quantizer.reconstruct_n(0, lists), np.float32)
    if rotation is not None:
        centres = np.ascontiguousarray(centres @ rotation.T)
    list_ids = np.repeat(np.arange(lists), sizes)
    parts, residual = None, False
    if isinstance(index, faiss.IndexIVFFlat):
        stored = _Codes(FlatCodec(dim), codes.view(np.float32))
    elif isinstance(index, faiss.IndexIVFScalarQuantizer):
        stored, residual = _read_scalar_codes(faiss, index.sq, codes, dim), bool(index.by_residual)
    else:
        parts, residual = int(index.pq.M), True
        words = faiss.vector_to_array(index.pq.centroids).reshape(parts, 256, dim // parts)
        stored = _Codes(ProductCodec(words, rotation), codes)
    rows, ids_by_row = np.empty(len(ids), np.int64), np.sort(ids)
    rows[np.argsort(ids, kind="stable")] = np.arange(len(ids))
    if residual and isinstance(stored.codec, FlatCodec):
        stored = _add_centres(stored, centres, list_ids)
    elif residual:
        codec = replace(stored.codec, residual=True) if isinstance(stored.codec, ByteCodec) else stored.codec
        stored = _Codes(codec, stored.codes, stored.dtype, centres, list_ids)
    order = np.argsort(list_ids * max(1, len(rows)) + rows, kind="stable")  # in a list by row, as `add` stores them
    arrays: dict[str, Array] = {"rows": rows[order], "offsets": offsets, "centres": centres}
    arrays["codes"] = np.ascontiguousarray(stored.codes[order])
    return (
        arrays,
        _Codes(stored.codec, arrays["codes"], stored.dtype, stored.centres, stored.list_ids),
        ids_by_row,
        parts,
    )


def _add_centres(stored: _Codes, centres: Floats, list_ids: Integers) -> _Codes:
    """Values of float16 are those of whole vectors here."""
    values = (stored.codec.decode(stored.codes) + centres[list_ids]).astype(np.float16)
    return _Codes(FlatCodec(values.shape[1], "float16"), values, "float16")


def _check_ids(ids: Integers) -> None:
    if not len(ids):
        return
    ordered = np.sort(ids)
    if ordered[0] < 0:
        raise InputError(f"the FAISS index has id {ordered[0]}; ids are 0 or more, and -1 means 'none'.")
    duplicates = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(duplicates):
        raise InputError(f"the FAISS index has id {duplicates[0]} twice; every id must be its own, give new ones.")
