"""`arrays.GrowableArray` for torch tensors, and NumPy arrays as tensors without a copy."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

MIN_CAPACITY = 1024  # rows


def view_as_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the memory of `array`, for reading only.

    torch warns about arrays that are not writable, such as mapped files; the warning is suppressed.
    """
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


@dataclass(frozen=True)
class GrowableTensor:
    """The first `count` rows of a buffer that can be longer; new rows are written only after `count`."""

    buffer: torch.Tensor
    count: int

    @property
    def rows(self) -> torch.Tensor:
        return self.buffer[: self.count]

    def append(self, more: torch.Tensor) -> GrowableTensor:
        """Return the rows followed by `more`.

        The first rows are used without a copy: GPU memory is scarce, and many callers add only once.
        """
        if not self.count:
            return GrowableTensor(more, len(more))
        count, buffer = self.count + len(more), self.buffer
        if count > len(buffer):
            capacity = max(count, self.count + self.count // 2, MIN_CAPACITY)
            buffer = buffer.new_empty((capacity, *buffer.shape[1:]))
            buffer[: self.count] = self.rows
        buffer[self.count : count] = more
        return GrowableTensor(buffer, count)
