"""Whether the memory that an answer goes to is its own: values are still read while the first answers are written.

>>> import numpy as np
>>> both = np.zeros((4, 6))
>>> overlaps(both[:, :3], both[:, 3:]), overlaps(both[:, :4], both[:, 3:])
(False, True)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ridgeline.errors import InputError

__all__ = ["overlaps", "refuse_shared"]

WORK: Any = 100_000  # steps that numpy may take to tell views of one memory apart; usual ones take a few


class _Memory:
    """Where a tensor's items lie, on any device, as numpy asks for it; nobody reads them."""

    def __init__(self, tensor: Any) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(size * step for step in tensor.stride()),
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), False),
        }


def _seen(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else np.asarray(_Memory(array))


def overlaps(one: Any, other: Any) -> bool:
    """Whether some item of one lies on some item of the other: arrays or tensors of one device."""
    if 0 in (*one.shape, *other.shape):
        return False
    try:
        return bool(np.shares_memory(_seen(one), _seen(other), max_work=WORK))
    except np.exceptions.TooHardError:
        return True  # nobody knows


def refuse_shared(out: Any, **inputs: Any) -> None:
    """`out` was not spread over a dimension, and lies on none of the inputs; those that are None are none."""
    if 0 in out.shape:
        return
    seen = _seen(out)
    if any(size > 1 and step == 0 for size, step in zip(seen.shape, seen.strides, strict=True)):
        raise InputError(
            "several items of out lie at one place in memory, as expand() makes them; give it memory of its own."
        )
    for name, array in inputs.items():
        if array is not None and overlaps(seen, array):
            raise InputError(
                f"out shares memory with {name}, which is read while out is written; give it memory of its own."
            )
