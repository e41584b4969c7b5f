"""How a GPU keeps vectors: the codecs of codecs.py as tensors, and the same bytes when they are saved.

SQ8 is kept as int8, code − 128, in rows of a multiple of 16 bytes: what the scan reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ridgeline.errors import InputError
from ridgeline.kernels.search import bytes as search_bytes
from ridgeline.kernels.search import kmeans as search_kmeans
from ridgeline.search.arrays import Array
from ridgeline.search.engine import Recipe

LEVELS = 255
AT_A_TIME = 1 << 18  # rows widened at once


@dataclass(frozen=True)
class FlatCodes:
    """Values as they are, in float32 or float16."""

    dtype: torch.dtype

    def encode(self, vectors: torch.Tensor) -> torch.Tensor:
        codes = vectors.to(self.dtype, copy=True)  # the caller's own may change
        if self.dtype == torch.float16 and not bool(torch.isfinite(codes).all()):
            row = int((~torch.isfinite(codes).all(1)).nonzero()[0])
            raise InputError(f"row {row} has values beyond float16 (65,504); use dtype='float32'.")
        return codes

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.float()

    def saved(self, codes: torch.Tensor) -> Array:
        return np.asarray(codes.cpu().numpy())

    def restored(self, codes: torch.Tensor) -> torch.Tensor:
        return codes

    def arrays(self) -> Mapping[str, Array]:
        return {}


@dataclass(frozen=True)
class ByteCodes:
    """base + step · code, a byte per dimension."""

    base: torch.Tensor  # float32 [D]
    step: torch.Tensor  # float32 [D]

    @cached_property
    def grid(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Step and middle, as the scan wants them; made once, since recorded searches go on reading them."""
        return self.step, self.base + 128 * self.step

    def encode(self, vectors: torch.Tensor) -> torch.Tensor:
        step = torch.where(self.step > 0, self.step, 1.0)
        return search_bytes.encode(vectors, step, self.base + 128 * step)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """In the words of codecs.py, so that both give the same float32."""
        return (codes[:, : len(self.base)].float() + 128) * self.step + self.base

    def saved(self, codes: torch.Tensor) -> Array:
        found: Array = (codes[:, : len(self.base)].cpu().numpy().astype(np.int16) + 128).astype(np.uint8)
        return found

    def restored(self, codes: torch.Tensor) -> torch.Tensor:
        out = codes.new_zeros((len(codes), -(-codes.shape[1] // 16) * 16), dtype=torch.int8)
        out[:, : codes.shape[1]] = (codes.short() - 128).to(torch.int8)
        return out

    def arrays(self) -> Mapping[str, Array]:
        return {"base": self.base.cpu().numpy(), "step": self.step.cpu().numpy()}


@dataclass(frozen=True)
class PartCodes:
    """PQ: for each part of a row the nearest of 256 words."""

    words: torch.Tensor  # float32 [parts, 256, D / parts]

    def encode(self, vectors: torch.Tensor) -> torch.Tensor:
        return search_kmeans.encode(vectors, self.words)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return search_kmeans.decode(codes, self.words)

    def saved(self, codes: torch.Tensor) -> Array:
        return np.asarray(codes.cpu().numpy())

    def restored(self, codes: torch.Tensor) -> torch.Tensor:
        return codes

    def arrays(self) -> Mapping[str, Array]:
        return {"words": self.words.cpu().numpy()}


Codes = FlatCodes | ByteCodes | PartCodes


def trained(recipe: Recipe, name: str, vectors: torch.Tensor, seed: int) -> Codes:
    if name == "SQ8":
        low, high = vectors.float().aminmax(dim=0)
        return ByteCodes(low, ((high.double() - low) / LEVELS).float())
    if name == "PQ":
        sample = search_kmeans.sample_of(vectors, search_kmeans.CODES, seed, 64)
        return PartCodes(search_kmeans.train_codes(sample, recipe.spec.parts or 1, seed=seed))
    return FlatCodes(getattr(torch, recipe.dtype))


def known(recipe: Recipe, name: str, arrays: Mapping[str, Array], prefix: str, device: Any) -> Codes:
    """From a file."""

    def tensor(key: str) -> torch.Tensor:
        return torch.from_numpy(np.array(arrays[prefix + key], np.float32)).to(device)

    if name == "SQ8":
        return ByteCodes(tensor("base"), tensor("step"))
    if name == "PQ":
        return PartCodes(tensor("words"))
    return FlatCodes(getattr(torch, recipe.dtype))
