"""Refuse an `out` that shares memory with the inputs: the loops read values while they write the first results.

>>> import numpy as np
>>> both = np.zeros((4, 6))
>>> memory_overlaps(both[:, :3], both[:, 3:]), memory_overlaps(both[:, :4], both[:, 3:])
(False, True)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ridgeline.errors import InputError

__all__ = ["memory_overlaps", "refuse_shared"]

MAX_WORK: Any = 100_000  # steps of numpy's search for an overlap; usual views need a few


class _Memory:
    """The addresses of a tensor's items on any device, as numpy's array interface; its data is never read."""

    def __init__(self, tensor: Any) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(size * step for step in tensor.stride()),
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), False),
        }


def _view(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else np.asarray(_Memory(array))


def memory_overlaps(one: Any, other: Any) -> bool:
    """Whether two arrays, or two tensors of one device, share an item."""
    if 0 in (*one.shape, *other.shape):
        return False
    try:
        return bool(np.shares_memory(_view(one), _view(other), max_work=MAX_WORK))
    except np.exceptions.TooHardError:
        return True  # numpy gave up; assume the worst


def refuse_shared(out: Any, **inputs: Any) -> None:
    """Raise InputError if `out` overlaps itself or an input; inputs may be None."""
    if 0 in out.shape:
        return
    view = _view(out)
    if any(size > 1 and step == 0 for size, step in zip(view.shape, view.strides, strict=True)):
        raise InputError("several items of out share one address, as expand() makes them; give out separate memory.")
    for name, array in inputs.items():
        if array is not None and memory_overlaps(view, array):
            raise InputError(
                f"out shares memory with {name}, which is read while out is written; give out separate memory."
            )
