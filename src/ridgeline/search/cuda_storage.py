"""Rows on a GPU: the codecs of codecs.py as tensors, in the order of the rows (Flat, SQ8) or list by list (IVF).

A saved index has the same bytes as on a CPU. SQ8 codes are stored as int8, code − 128, in rows of a multiple of 16
bytes, as the scan reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ridgeline.errors import InputError
from ridgeline.kernels.search import (
    CODEBOOK_SIZE,
    assign_centres,
    decode_product,
    encode_product,
    encode_scalar,
    group_by_list,
    sample_rows,
    train_codebooks,
)
from ridgeline.search.arrays import Array
from ridgeline.search.engine import EngineConfig
from ridgeline.search.tensors import GrowableTensor

LEVELS = 255
ROWS_PER_STEP = 1 << 18  # decoded at a time


@dataclass(frozen=True)
class FlatCodes:
    """Values in float32 or float16."""

    dtype: torch.dtype

    def encode(self, vectors: torch.Tensor) -> torch.Tensor:
        codes = vectors.to(self.dtype, copy=True)  # the caller may change its tensor
        if self.dtype == torch.float16 and not bool(torch.isfinite(codes).all()):
            row = int((~torch.isfinite(codes).all(1)).nonzero()[0])
            raise InputError(f"row {row} has values beyond float16 (65,504); use dtype='float32'.")
        return codes

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.float()

    def export_codes(self, codes: torch.Tensor) -> Array:
        return np.asarray(codes.cpu().numpy())

    def import_codes(self, codes: torch.Tensor) -> torch.Tensor:
        return codes

    def arrays(self) -> Mapping[str, Array]:
        return {}


@dataclass(frozen=True)
class ByteCodes:
    """SQ8: base + step · code, a byte per dimension."""

    base: torch.Tensor  # float32 [D]
    step: torch.Tensor  # float32 [D]

    @cached_property
    def grid(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Step and middle for the scan; computed once, because recorded searches read these tensors."""
        return self.step, self.base + 128 * self.step

    def encode(self, vectors: torch.Tensor) -> torch.Tensor:
        step = torch.where(self.step > 0, self.step, 1.0)
        return encode_scalar(vectors, step, self.base + 128 * step)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """The formula of codecs.py, so that both give the same float32."""
        return (codes[:, : len(self.base)].float() + 128) * self.step + self.base

    def export_codes(self, codes: torch.Tensor) -> Array:
        array: Array = (codes[:, : len(self.base)].cpu().numpy().astype(np.int16) + 128).astype(np.uint8)
        return array

    def import_codes(self, codes: torch.Tensor) -> torch.Tensor:
        out = codes.new_zeros((len(codes), -(-codes.shape[1] // 16) * 16), dtype=torch.int8)
        out[:, : codes.shape[1]] = (codes.short() - 128).to(torch.int8)
        return out

    def arrays(self) -> Mapping[str, Array]:
        return {"base": self.base.cpu().numpy(), "step": self.step.cpu().numpy()}


@dataclass(frozen=True)
class ProductCodes:
    """PQ: the nearest of 256 codewords for each part of a row."""

    words: torch.Tensor  # float32 [parts, 256, D / parts]

    def encode(self, vectors: torch.Tensor) -> torch.Tensor:
        return encode_product(vectors, self.words)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return decode_product(codes, self.words)

    def export_codes(self, codes: torch.Tensor) -> Array:
        return np.asarray(codes.cpu().numpy())

    def import_codes(self, codes: torch.Tensor) -> torch.Tensor:
        return codes

    def arrays(self) -> Mapping[str, Array]:
        return {"words": self.words.cpu().numpy()}


Codes = FlatCodes | ByteCodes | ProductCodes


def train_codes(config: EngineConfig, name: str, vectors: torch.Tensor, seed: int) -> Codes:
    """Train the codec `name` (Flat, SQ8 or PQ) from vectors."""
    if name == "SQ8":
        low, high = vectors.float().aminmax(dim=0)
        return ByteCodes(low, ((high.double() - low) / LEVELS).float())
    if name == "PQ":
        sample = sample_rows(vectors, CODEBOOK_SIZE, seed, 64)
        return ProductCodes(train_codebooks(sample, config.spec.parts or 1, seed=seed))
    return FlatCodes(getattr(torch, config.dtype))


def restore_codes(config: EngineConfig, name: str, arrays: Mapping[str, Array], prefix: str, device: Any) -> Codes:
    """Restore the codec `name` from saved arrays."""

    def tensor(key: str) -> torch.Tensor:
        return torch.from_numpy(np.array(arrays[prefix + key], np.float32)).to(device)

    if name == "SQ8":
        return ByteCodes(tensor("base"), tensor("step"))
    if name == "PQ":
        return ProductCodes(tensor("words"))
    return FlatCodes(getattr(torch, config.dtype))


@dataclass(frozen=True)
class ListLayout:
    """The lists: rows are stored list by list, within a list in the order they were added."""

    centres: torch.Tensor  # float32 [C, D]
    list_ids: torch.Tensor  # int32 [N]: the list of each stored row, ascending
    row_ids: torch.Tensor  # int64 [N]: the row at each position
    starts: torch.Tensor  # int32 [C + 1]
    longest: int = 0  # rows in the longest list


@dataclass(frozen=True)
class StoredRows:
    """Codes in the order of the rows, or of the lists."""

    codec: Codes
    codes: GrowableTensor
    bias: GrowableTensor | None  # −‖x‖² float32, for l2
    longest: torch.Tensor  # float32 [1]: the largest norm of a row (of SQ8: of its codes)
    lists: ListLayout | None = None
    list_metric: str = "ip"  # assigns rows to lists

    @property
    def count(self) -> int:
        return self.codes.count

    def append(self, vectors: torch.Tensor) -> StoredRows:
        """Add vectors. With lists this sorts all rows, which takes milliseconds for millions: add many at a time."""
        list_ids = None
        if self.lists is not None:
            list_ids = _assign_lists(vectors, self.lists.centres, self.list_metric)
        codes = self.codec.encode(self._subtract_centres(vectors, list_ids))
        measured = self._measure_norms(codes, list_ids)
        extended = replace(self, codes=self.codes.append(codes), longest=torch.maximum(self.longest, measured[0]))
        if self.bias is not None:
            extended = replace(extended, bias=self.bias.append(measured[1]))
        if self.lists is None or list_ids is None:
            return extended
        new_row_ids = torch.arange(self.count, extended.count, device=codes.device)
        row_ids = torch.cat([self.lists.row_ids, new_row_ids])
        return extended._sort_by_list(self.lists, torch.cat([self.lists.list_ids, list_ids]), row_ids)

    def select_rows(self, rows: torch.Tensor) -> StoredRows:
        positions = self.locate(rows)
        part = replace(self, codes=GrowableTensor(self.codes.rows[positions], len(positions)))
        if self.bias is not None:
            part = replace(part, bias=GrowableTensor(self.bias.rows[positions], len(positions)))
        if self.lists is None:
            return part
        return part._sort_by_list(
            self.lists, self.lists.list_ids[positions], torch.arange(len(positions), device=positions.device)
        )

    def locate(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the positions of these rows."""
        if self.lists is None:
            return rows
        positions = torch.empty_like(self.lists.row_ids)
        positions[self.lists.row_ids] = torch.arange(len(positions), device=positions.device)
        return positions[rows]

    def decode(self, positions: torch.Tensor) -> torch.Tensor:
        """float32 [n, D]: the stored values at these positions."""
        values = self.codec.decode(self.codes.rows[positions])
        if isinstance(self.codec, ProductCodes) and self.lists is not None:
            values += self.lists.centres[self.lists.list_ids[positions].long()]
        return values

    def tensors(self) -> list[torch.Tensor]:
        lists = () if self.lists is None else (self.lists.centres, self.lists.list_ids, self.lists.row_ids)
        return [self.codes.rows, *lists] + ([] if self.bias is None else [self.bias.rows])

    def _subtract_centres(self, vectors: torch.Tensor, list_ids: torch.Tensor | None) -> torch.Tensor:
        if list_ids is None or self.lists is None or not isinstance(self.codec, ProductCodes):
            return vectors
        return vectors - self.lists.centres[list_ids.long()]

    def _measure_norms(self, codes: torch.Tensor, list_ids: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest norm [1] and −‖x‖² [n] of rows, in parts, because float64 copies are large."""
        longest = torch.zeros(1, device=codes.device)
        bias = torch.empty(len(codes), device=codes.device)
        if self.bias is None and isinstance(self.codec, ProductCodes):
            return longest, bias  # not used
        for at in range(0, len(codes), ROWS_PER_STEP):
            part = codes[at : at + ROWS_PER_STEP]
            values = self.codec.decode(part)
            if isinstance(self.codec, ProductCodes) and list_ids is not None and self.lists is not None:
                values += self.lists.centres[list_ids[at : at + ROWS_PER_STEP].long()]
            squares = values.double().square().sum(1)
            bias[at : at + ROWS_PER_STEP] = -squares
            if isinstance(self.codec, ByteCodes):
                squares = part.double().square().sum(1)
            longest = torch.maximum(longest, squares.max().sqrt().float() * (1 + 1e-6))
        return longest, bias

    def _sort_by_list(self, lists: ListLayout, list_ids: torch.Tensor, row_ids: torch.Tensor) -> StoredRows:
        """Sort all rows by list; `list_ids` and `row_ids` are in the order of the codes."""
        list_ids, order, starts = group_by_list(list_ids, len(lists.centres))
        longest = int(starts.diff().max()) if len(list_ids) else 0
        lists = ListLayout(lists.centres, list_ids, row_ids[order], starts, longest)
        bias = None if self.bias is None else GrowableTensor(self.bias.rows[order], len(order))
        return replace(self, codes=GrowableTensor(self.codes.rows[order], len(order)), bias=bias, lists=lists)


def _assign_lists(vectors: torch.Tensor, centres: torch.Tensor, metric: str) -> torch.Tensor:
    """In float16 for vectors of unit length: a row between two lists can go to either."""
    values = vectors.half() if metric == "ip" and vectors.is_cuda else vectors
    return assign_centres(values, centres, metric=metric)[0]


def make_empty_lists(centres: torch.Tensor) -> ListLayout:
    """Lists without rows."""
    device = centres.device
    return ListLayout(
        centres,
        torch.empty(0, dtype=torch.int32, device=device),
        torch.empty(0, dtype=torch.int64, device=device),
        torch.zeros(len(centres) + 1, dtype=torch.int32, device=device),
    )
