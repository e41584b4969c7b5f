"""Tokens into batches: sorted by length, cut by a budget of tokens, nothing padded, every text once.

A `Window` is some thousands of texts, packed anew in order of length. Its batches are slices of it, so they cost
nothing to make and nothing to cut smaller. Equal lengths lie side by side, which is what attention wants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed.tokens import Tokens
from ridgeline.native import sort_by_length

Run = tuple[int, int, int]  # first token, texts, tokens each


@dataclass(frozen=True)
class Window:
    """Texts by rising length: row k of it was row `rows[k]` of the input."""

    tokens: Tokens
    rows: NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Texts `first` to `last` of a window."""

    window: Window
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def ids(self) -> NDArray[np.int32]:
        offsets = self.window.tokens.offsets
        return self.window.tokens.ids[offsets[self.first] : offsets[self.last]]

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where its texts begin in `ids` [n + 1]."""
        part = self.window.tokens.offsets[self.first : self.last + 1]
        begun: NDArray[np.int64] = part - part[0]
        return begun

    @property
    def rows(self) -> NDArray[np.int64]:
        return self.window.rows[self.first : self.last]

    @property
    def runs(self) -> tuple[Run, ...]:
        return runs_of(self.offsets)


def window_of(tokens: Tokens, first_row: int = 0) -> Window:
    """Sort texts by length and pack them in that order; texts of one length keep theirs."""
    begin, end = tokens.offsets[0], tokens.offsets[-1]
    ids = np.ascontiguousarray(tokens.ids[begin:end], np.int32)
    offsets = np.ascontiguousarray(tokens.offsets - begin, np.int64)
    packed, starts, order = np.empty_like(ids), np.empty_like(offsets), np.empty(len(tokens), np.int64)
    sort_by_length(ids, offsets, packed, starts, order)
    order += first_row
    return Window(Tokens(packed, starts), order)


def batches_of(window: Window, budget: int) -> Iterator[Batch]:
    """Slices of at most `budget` tokens; a text longer than that goes alone. The longest come first.

    Longest first, so that a device too small says so at once, and the last batches, which nothing overlaps, are short.
    """
    yield from cut(Batch(window, 0, len(window.rows)), budget)


def cut(batch: Batch, budget: int) -> Iterator[Batch]:
    """A batch in slices of at most `budget` tokens, from its end to its beginning."""
    offsets, last = batch.window.tokens.offsets, batch.last
    while last > batch.first:
        first = int(np.searchsorted(offsets, offsets[last] - budget, side="left"))
        first = max(batch.first, min(first, last - 1))
        yield Batch(batch.window, first, last)
        last = first


def runs_of(offsets: NDArray[np.int64]) -> tuple[Run, ...]:
    """Neighbours of equal length.

    >>> runs_of(np.array([0, 2, 4, 7]))
    ((0, 2, 2), (4, 1, 3))
    """
    lengths = np.diff(offsets)
    heads = np.flatnonzero(np.diff(lengths, prepend=-1))
    counts = np.diff(heads, append=len(lengths))
    return tuple(zip(offsets[heads].tolist(), counts.tolist(), lengths[heads].tolist(), strict=True))
