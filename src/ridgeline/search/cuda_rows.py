"""Rows on a GPU: one after the other (Flat, SQ8), or list by list (IVF)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ridgeline.kernels.search import kmeans as search_kmeans
from ridgeline.search.cuda_codes import AT_A_TIME, ByteCodes, Codes, PartCodes
from ridgeline.search.tensors import Grown


@dataclass(frozen=True)
class Inverted:
    """Where the lists lie. Rows stand list by list, within a list as they came."""

    centres: torch.Tensor  # float32 [C, D]
    near: torch.Tensor  # int32 [N]: the list of each stored row, rising
    places: torch.Tensor  # int64 [N]: which row it is
    starts: torch.Tensor  # int32 [C + 1]
    longest: int = 0  # rows in the longest list


@dataclass(frozen=True)
class Stored:
    """Codes in the order of their rows, or of the lists."""

    codec: Codes
    codes: Grown
    bias: Grown | None  # −‖x‖² float32, for l2
    longest: torch.Tensor  # float32 [1]: no row's norm is larger (of SQ8: as codes)
    lists: Inverted | None = None
    by: str = "ip"  # how rows find their list

    @property
    def count(self) -> int:
        return self.codes.count

    def added(self, vectors: torch.Tensor) -> Stored:
        """A sort of all rows where there are lists: milliseconds for millions, so add many at a time."""
        near = None
        if self.lists is not None:
            near = _nearest(vectors, self.lists.centres, self.by)
        codes = self.codec.encode(self._less_centre(vectors, near))
        more = self._measured(codes, near)
        grown = replace(self, codes=self.codes.appended(codes), longest=torch.maximum(self.longest, more[0]))
        if self.bias is not None:
            grown = replace(grown, bias=self.bias.appended(more[1]))
        if self.lists is None or near is None:
            return grown
        places = torch.arange(self.count, grown.count, device=codes.device)
        every = torch.cat([self.lists.places, places])
        return grown._grouped(self.lists, torch.cat([self.lists.near, near]), every)

    def taken(self, rows: torch.Tensor) -> Stored:
        at = self.at(rows)
        part = replace(self, codes=Grown(self.codes.rows[at], len(at)))
        if self.bias is not None:
            part = replace(part, bias=Grown(self.bias.rows[at], len(at)))
        if self.lists is None:
            return part
        return part._grouped(self.lists, self.lists.near[at], torch.arange(len(at), device=at.device))

    def at(self, rows: torch.Tensor) -> torch.Tensor:
        """Where these rows are stored."""
        if self.lists is None:
            return rows
        where = torch.empty_like(self.lists.places)
        where[self.lists.places] = torch.arange(len(where), device=where.device)
        return where[rows]

    def values(self, at: torch.Tensor) -> torch.Tensor:
        """float32 [n, D]: what is stored there."""
        found = self.codec.decode(self.codes.rows[at])
        if isinstance(self.codec, PartCodes) and self.lists is not None:
            found += self.lists.centres[self.lists.near[at].long()]
        return found

    def tensors(self) -> list[torch.Tensor]:
        lists = () if self.lists is None else (self.lists.centres, self.lists.near, self.lists.places)
        return [self.codes.rows, *lists] + ([] if self.bias is None else [self.bias.rows])

    def _less_centre(self, vectors: torch.Tensor, near: torch.Tensor | None) -> torch.Tensor:
        if near is None or self.lists is None or not isinstance(self.codec, PartCodes):
            return vectors
        return vectors - self.lists.centres[near.long()]

    def _measured(self, codes: torch.Tensor, near: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The longest norm [1] and −‖x‖² [n] of rows, piece by piece: in float64 they would be many times larger."""
        longest = torch.zeros(1, device=codes.device)
        bias = torch.empty(len(codes), device=codes.device)
        if self.bias is None and isinstance(self.codec, PartCodes):
            return longest, bias  # nobody asks
        for at in range(0, len(codes), AT_A_TIME):
            part = codes[at : at + AT_A_TIME]
            values = self.codec.decode(part)
            if isinstance(self.codec, PartCodes) and near is not None and self.lists is not None:
                values += self.lists.centres[near[at : at + AT_A_TIME].long()]
            squares = values.double().square().sum(1)
            bias[at : at + AT_A_TIME] = -squares
            if isinstance(self.codec, ByteCodes):
                squares = part.double().square().sum(1)
            longest = torch.maximum(longest, squares.max().sqrt().float() * (1 + 1e-6))
        return longest, bias

    def _grouped(self, lists: Inverted, near: torch.Tensor, places: torch.Tensor) -> Stored:
        """All of it sorted by list; `near` and `places` are in the order in which the codes stand."""
        near, order, starts = search_kmeans.grouped(near, len(lists.centres))
        longest = int(starts.diff().max()) if len(near) else 0
        lists = Inverted(lists.centres, near, places[order], starts, longest)
        bias = None if self.bias is None else Grown(self.bias.rows[order], len(order))
        return replace(self, codes=Grown(self.codes.rows[order], len(order)), bias=bias, lists=lists)


def _nearest(vectors: torch.Tensor, centres: torch.Tensor, by: str) -> torch.Tensor:
    """In float16 for vectors of unit length: a row between two lists may go to either."""
    given = vectors.half() if by == "ip" and vectors.is_cuda else vectors
    return search_kmeans.assign(given, centres, metric=by)[0]


def no_lists(centres: torch.Tensor) -> Inverted:
    """Lists without rows."""
    device = centres.device
    return Inverted(
        centres,
        torch.empty(0, dtype=torch.int32, device=device),
        torch.empty(0, dtype=torch.int64, device=device),
        torch.zeros(len(centres) + 1, dtype=torch.int32, device=device),
    )
