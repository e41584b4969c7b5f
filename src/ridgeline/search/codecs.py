"""Codecs: how a vector is stored. Flat keeps the values, SQ8 a byte per dimension, PQ a byte per part, RaBitQ one to
four bits per dimension.

The *stored values* of a row are `decode(codes)` in float32. Exact search, reconstruction and refinement use them on
every device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from ridgeline.errors import InputError
from ridgeline.native import Rabitq
from ridgeline.search.arrays import Array, Floats, count_threads
from ridgeline.search.kmeans import find_nearest_centres, train_centres

LEVELS = 255  # steps between the lowest and the highest value of a dimension
CODEBOOK_SIZE = 256  # codewords of a PQ part
PQ_SAMPLE = 64 * CODEBOOK_SIZE
PQ_ROUNDS = 12
OPQ_SAMPLE, OPQ_ROUNDS, OPQ_PQ_ROUNDS = 16_384, 10, 4  # of the rotation


class Codec(Protocol):
    """Encode vectors as codes and decode them."""

    @property
    def name(self) -> str: ...

    def encode(self, vectors: Floats) -> Array: ...
    def decode(self, codes: Array) -> Floats: ...
    def empty(self) -> Array:
        """Codes without rows: their width and type."""

    def arrays(self) -> Mapping[str, Array]:
        """The trained arrays, by the names of their files."""


@dataclass(frozen=True)
class FlatCodec:
    """The values themselves, in float32 or float16."""

    dim: int
    dtype: str = "float32"  # or float16
    name: str = "Flat"

    def encode(self, vectors: Floats) -> Array:
        if self.dtype == "float32":
            return vectors
        with np.errstate(over="ignore"):
            codes = vectors.astype(self.dtype)
        if not np.isfinite(codes).all():
            row = int(np.flatnonzero(~np.isfinite(codes).all(1))[0])
            raise InputError(f"row {row} has values beyond float16 (65,504); use dtype='float32'.")
        return codes

    def decode(self, codes: Array) -> Floats:
        return codes.astype(np.float32, copy=False)

    def empty(self) -> Array:
        return np.empty((0, self.dim), self.dtype)

    def arrays(self) -> Mapping[str, Array]:
        return {}


@dataclass(frozen=True)
class ByteCodec:
    """SQ8: a byte per dimension, 255 even steps between the lowest and the highest value of the training vectors."""

    base: Floats  # [d] the value of code 0
    step: Floats  # [d]
    residual: bool = False  # in lists: codes are of differences to the centre, which vary less, so steps are finer
    name: str = "SQ8"

    def encode(self, vectors: Floats) -> Array:
        step = np.where(self.step > 0, self.step, 1)
        codes = np.empty(vectors.shape, np.uint8)
        for at in range(0, len(vectors), 8192):
            levels = np.rint((vectors[at : at + 8192] - self.base) / step)
            codes[at : at + 8192] = np.clip(levels, 0, LEVELS)
        return codes

    def decode(self, codes: Array) -> Floats:
        values: Floats = codes.astype(np.float32)
        values *= self.step
        values += self.base
        return values

    def empty(self) -> Array:
        return np.empty((0, len(self.base)), np.uint8)

    def arrays(self) -> Mapping[str, Array]:
        arrays: dict[str, Array] = {"base": self.base, "step": self.step}
        return arrays | {"residual": np.ones(1, np.uint8)} if self.residual else arrays


def train_byte_codec(vectors: Floats) -> ByteCodec:
    """Train SQ8 from vectors [n, d]."""
    low, high = vectors.min(0), vectors.max(0)
    return ByteCodec(low.astype(np.float32), ((high.astype(np.float64) - low) / LEVELS).astype(np.float32))


def encode_whole_vectors(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays of lists of SQ8 with codes of vectors instead of codes of differences to the centres.

    It rounds a second time, so it is for devices whose loops have no such codes.
    """
    old = ByteCodec(arrays["base"], arrays["step"])
    list_ids = np.repeat(np.arange(len(arrays["centres"])), np.diff(arrays["offsets"]))
    values = old.decode(arrays["codes"]) + arrays["centres"][list_ids]
    new = train_byte_codec(values) if len(values) else old
    out = {name: array for name, array in arrays.items() if name != "residual"} | dict(new.arrays())
    out["codes"] = new.encode(values)
    decoded = new.decode(out["codes"]).astype(np.float64)
    squares = np.einsum("ij,ij->i", decoded, decoded)
    if "biases" in out:
        out["biases"] = (-squares / 2).astype(np.float32)
    out["longest"] = np.array([np.sqrt(squares.max(initial=0.0))])
    return out


@dataclass(frozen=True)
class ProductCodec:
    """PQ: each of `parts` equal slices is replaced by the nearest of 256 codewords; with OPQ of the rotated vector."""

    words: Floats  # [parts, 256, d / parts]
    rotation: Floats | None = None  # [d, d]: OPQ
    name: str = "PQ"

    @property
    def parts(self) -> int:
        return int(self.words.shape[0])

    def encode(self, vectors: Floats) -> Array:
        codes = np.empty((len(vectors), self.parts), np.uint8)
        vectors = vectors if self.rotation is None else vectors @ self.rotation
        width = self.words.shape[2]
        for part in range(self.parts):
            slices = np.ascontiguousarray(vectors[:, part * width : (part + 1) * width])
            codes[:, part] = find_nearest_centres(slices, self.words[part])
        return codes

    def decode(self, codes: Array) -> Floats:
        width = self.parts * self.words.shape[2]  # explicit, because there may be no codes
        values: Floats = self.words[np.arange(self.parts), codes].reshape(len(codes), width)
        return values if self.rotation is None else np.ascontiguousarray(values @ self.rotation.T)

    def tables(self, queries: Floats) -> Floats:
        """The product of each query with every codeword, [queries, parts, 256]."""
        rotated = queries if self.rotation is None else queries @ self.rotation
        slices = rotated.reshape(len(queries), self.parts, -1)
        return np.ascontiguousarray(np.einsum("qps,pws->qpw", slices, self.words, optimize=True), np.float32)

    def empty(self) -> Array:
        return np.empty((0, self.parts), np.uint8)

    def arrays(self) -> Mapping[str, Array]:
        return {"words": self.words} if self.rotation is None else {"words": self.words, "rotation": self.rotation}


ROTATION_ROUNDS = 4  # of native/search/rabitq.hpp


@dataclass(frozen=True)
class RabitqCodec:
    """RaBitQ: a random rotation, then `bits` per dimension and a bound on the error (native/search/rabitq.hpp). Codes
    are of differences to the centre of the list; nothing else is learnt.
    """

    signs: Array  # uint8 [4, d]: the rotation
    bits: int
    refined: bool  # the bounds are for products with the vectors, which are kept, too
    name: str = "RaBitQ"

    @cached_property
    def native(self) -> Rabitq:
        return Rabitq(np.ascontiguousarray(self.signs, np.uint8), self.bits)

    def encode(self, vectors: Floats) -> Array:
        codes = np.empty((len(vectors), self.native.stride), np.uint8)
        self.native.encode(np.ascontiguousarray(vectors, np.float32), codes, count_threads())
        return codes

    def decode(self, codes: Array) -> Floats:
        values = np.empty((len(codes), self.signs.shape[1]), np.float32)
        self.native.decode(np.ascontiguousarray(codes), values, count_threads())
        return values

    def bound(self, query: Floats, codes: Array) -> Floats:
        """[n] the estimated products of a query [d] with codes; of refined rows the largest possible ones."""
        products, errors = np.empty(len(codes), np.float32), np.empty(len(codes), np.float32)
        self.native.estimate(query, codes, products, errors)
        return products + errors * np.float32(np.linalg.norm(query)) if self.refined else products

    def empty(self) -> Array:
        return np.empty((0, self.native.stride), np.uint8)

    def arrays(self) -> Mapping[str, Array]:
        return {"signs": self.signs}


def make_rabitq_codec(dim: int, bits: int, refined: bool, seed: int) -> RabitqCodec:
    signs = np.random.default_rng(seed).integers(0, 2, (ROTATION_ROUNDS, dim), np.uint8)
    return RabitqCodec(signs, bits, refined)


def train_product_codec(vectors: Floats, parts: int, seed: int, rounds: int = PQ_ROUNDS) -> ProductCodec:
    """Train the codewords from a sample; with fewer vectors than codewords, some repeat."""
    width = vectors.shape[1] // parts
    if len(vectors) > PQ_SAMPLE:
        vectors = vectors[np.random.default_rng(seed).choice(len(vectors), PQ_SAMPLE, replace=False)]
    words = np.empty((parts, CODEBOOK_SIZE, width), np.float32)
    for part in range(parts):
        slices = np.ascontiguousarray(vectors[:, part * width : (part + 1) * width])
        learnt = train_centres(slices, min(CODEBOOK_SIZE, len(slices)), seed=seed + part, rounds=rounds)
        words[part] = np.resize(learnt, (CODEBOOK_SIZE, width))
    return ProductCodec(words)


def train_rotated_codec(vectors: Floats, parts: int, seed: int) -> ProductCodec:
    """OPQ (Ge et al., arXiv 1311.4055): PQ after the rotation that loses least.

    The rotation begins with the principal axes, shared out so that the parts have equal products of variances. Then
    codewords and rotation are learnt in turn: the best rotation for given codes is that of a singular value
    decomposition.
    """
    sample = vectors
    if len(sample) > OPQ_SAMPLE:
        sample = sample[np.random.default_rng(seed).choice(len(sample), OPQ_SAMPLE, replace=False)]
    rotation = _share_out_axes(sample, parts)
    for _ in range(OPQ_ROUNDS):
        rotated = sample @ rotation
        codec = train_product_codec(rotated, parts, seed, OPQ_PQ_ROUNDS)
        left, _, right = np.linalg.svd(sample.T.astype(np.float64) @ codec.decode(codec.encode(rotated)))
        rotation = np.ascontiguousarray(left @ right, np.float32)
    return ProductCodec(train_product_codec(vectors @ rotation, parts, seed).words, rotation)


def _share_out_axes(vectors: Floats, parts: int) -> Floats:
    """[d, d] the principal axes of vectors, as columns: each part gets the next axis if its product is the smallest."""
    dim = vectors.shape[1]
    values, axes = np.linalg.eigh(vectors.T.astype(np.float64) @ vectors)
    sizes = np.log(np.maximum(values, values.max() * 1e-12 + np.finfo(np.float64).tiny))
    products = np.zeros(parts)
    columns: list[list[int]] = [[] for _ in range(parts)]
    for axis in np.argsort(-values):
        free = [part for part in range(parts) if len(columns[part]) < dim // parts]
        part = min(free, key=lambda p: products[p])
        products[part] += sizes[axis] - sizes.min()
        columns[part].append(int(axis))
    return np.ascontiguousarray(axes[:, np.concatenate(columns)], np.float32)
