"""What an append gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from ridgeline.audit.ledger.merkle import HASH


@dataclass(frozen=True)
class Receipt:
    """What one event became; every checkpoint of at least `checkpoint_size` entries covers it."""

    index: int
    leaf_hash: bytes
    checkpoint_size: int


class Receipts(Sequence[Receipt]):
    """The receipts of one append, made when they are looked at."""

    def __init__(self, first: int, hashes: bytes, checkpoint_size: int) -> None:
        self.first, self.hashes, self.checkpoint_size = first, hashes, checkpoint_size

    def __len__(self) -> int:
        return len(self.hashes) // HASH

    @overload
    def __getitem__(self, at: int) -> Receipt: ...
    @overload
    def __getitem__(self, at: slice) -> list[Receipt]: ...
    def __getitem__(self, at: int | slice) -> Receipt | list[Receipt]:
        if isinstance(at, slice):
            return [self[k] for k in range(*at.indices(len(self)))]
        k = range(len(self))[at]
        return Receipt(self.first + k, self.hashes[k * HASH : (k + 1) * HASH], self.checkpoint_size)
