"""Tensors that grow without disturbing those who read them: `arrays.Grown`, on a GPU. And arrays as tensors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

LEAST_ROOM = 1024  # rows


def seen(array: NDArray[Any]) -> torch.Tensor:
    """The array's own memory, to be read: of a file that is mapped torch warns that it must not be written."""
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


@dataclass(frozen=True)
class Grown:
    """The first `count` rows of a buffer that may be longer; rows are only ever written behind `count`."""

    buffer: torch.Tensor
    count: int

    @property
    def rows(self) -> torch.Tensor:
        return self.buffer[: self.count]

    def appended(self, more: torch.Tensor) -> Grown:
        """With `more` behind. The first rows are taken as they are: memory on a GPU is dear, and many add only once."""
        if not self.count:
            return Grown(more, len(more))
        count, buffer = self.count + len(more), self.buffer
        if count > len(buffer):
            room = max(count, self.count + self.count // 2, LEAST_ROOM)
            buffer = buffer.new_empty((room, *buffer.shape[1:]))
            buffer[: self.count] = self.rows
        buffer[self.count : count] = more
        return Grown(buffer, count)
