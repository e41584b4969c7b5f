"""Codes of the vectors of a MultiIndex: bytes, and RaBitQ with four bits per dimension.

RaBitQ (Gao et al., "Practical and Asymptotically Optimal Quantization of High-Dimensional Vectors in Euclidean Space
for Approximate Nearest Neighbor Search", SIGMOD 2025) turns vectors by a random rotation, after which no dimension is
special, and rounds each to the grid point of the most similar direction. The stored value is that point, scaled so that
its inner product with the vector is the vector's squared length: inner products with it have no bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.errors import StoreError
from ridgeline.search.arrays import Array, Floats
from ridgeline.search.codecs import ByteCodec, Codec, FlatCodec, train_byte_codec

MIN_TRAINING = 4096  # vectors
LEVELS = 16  # four bits
SCALES = np.linspace(0.55, 1.05, 11)  # of the largest component: where the grid ends
BLOCK = 8192  # vectors


@dataclass(frozen=True)
class RotatedCodec:
    """RaBitQ: per vector four bits per dimension and a float32 factor; nothing is learnt."""

    rotation: Floats  # [d, d], orthogonal
    name: str = "RaBitQ"

    @property
    def dim(self) -> int:
        return len(self.rotation)

    def encode(self, vectors: Floats) -> Array:
        codes = np.empty((len(vectors), self.empty().shape[1]), np.uint8)
        for at in range(0, len(vectors), BLOCK):
            codes[at : at + BLOCK] = self._encode_block(vectors[at : at + BLOCK].astype(np.float64))
        return codes

    def decode(self, codes: Array) -> Floats:
        values: Floats = self.decode_rotated(codes) @ self.rotation
        return values

    def decode_rotated(self, codes: Array) -> Floats:
        """Return the stored values before they are turned back."""
        packed, factors = codes[:, :-4], np.ascontiguousarray(codes[:, -4:]).view("<f4")
        values = np.empty((len(codes), 2 * packed.shape[1]), np.float32)
        values[:, 0::2], values[:, 1::2] = packed & (LEVELS - 1), packed >> 4
        values -= np.float32((LEVELS - 1) / 2)
        values *= factors
        return np.ascontiguousarray(values[:, : self.dim])

    def rotate(self, vectors: Floats) -> Floats:
        """Turn queries, to multiply them with `decode_rotated`."""
        turned: Floats = vectors @ self.rotation.T
        return turned

    def empty(self) -> Array:
        return np.empty((0, -(-self.dim // 2) + 4), np.uint8)

    def arrays(self) -> Mapping[str, Array]:
        return {"rotation": self.rotation}

    def _encode_block(self, vectors: Array) -> Array:
        turned = vectors @ self.rotation.T.astype(np.float64)
        largest = np.abs(turned).max(1, initial=0.0)[:, None]
        largest[largest == 0] = 1
        best = np.full(len(vectors), -np.inf)
        levels: Array = np.zeros_like(turned)
        middle = (LEVELS - 1) / 2
        for scale in SCALES:
            tried = np.clip(np.rint(turned / (largest * scale) * (middle + 0.5) + middle), 0, LEVELS - 1)
            grid = tried - middle
            cosine = np.einsum("ij,ij->i", grid, turned) / np.sqrt(np.einsum("ij,ij->i", grid, grid))
            better = cosine > best
            best[better], levels[better] = cosine[better], tried[better]
        products = np.einsum("ij,ij->i", levels - middle, turned)
        squares = np.einsum("ij,ij->i", turned, turned)
        with np.errstate(over="ignore"):
            factors = np.where(products > 0, squares / np.where(products > 0, products, 1), 0).astype("<f4")
        if levels.shape[1] % 2:
            levels = np.concatenate([levels, np.zeros((len(levels), 1))], 1)
        packed = levels[:, 0::2].astype(np.uint8) | (levels[:, 1::2].astype(np.uint8) << 4)
        return np.concatenate([packed, np.frombuffer(factors.tobytes(), np.uint8).reshape(-1, 4)], 1)


def make_token_codec(codes: str, dtype: str, vectors: Floats) -> Codec:
    """Return a codec; SQ8 learns the range of values from `vectors`."""
    dim = vectors.shape[1]
    if codes == "SQ8":
        return _train_bytes(vectors)
    if codes == "RaBitQ":
        random = np.random.default_rng(dim).standard_normal((dim, dim))
        return RotatedCodec(np.ascontiguousarray(np.linalg.qr(random)[0], np.float32))
    return FlatCodec(dim, dtype)


def restore_token_codec(codes: str, dtype: str, arrays: Mapping[str, Array]) -> Codec:
    """Return the codec whose arrays were saved."""
    try:
        if codes == "SQ8":
            return ByteCodec(np.array(arrays["base"]), np.array(arrays["step"]))
        if codes == "RaBitQ":
            return RotatedCodec(np.array(arrays["rotation"]))
        return FlatCodec(arrays["codes"].shape[1], dtype)
    except KeyError as missing:
        raise StoreError(f"the saved index lacks the array {missing}; build the index again.") from None


def _train_bytes(vectors: Floats) -> ByteCodec:
    """Learn the range of each dimension; few vectors do not show it, so then all have that of the largest value."""
    if len(vectors) >= MIN_TRAINING:
        return train_byte_codec(vectors)
    largest = np.full((1, vectors.shape[1]), np.abs(vectors).max(initial=0.0), np.float32)
    return train_byte_codec(np.concatenate([-largest, largest]))
