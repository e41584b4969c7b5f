"""Arrays as the engine wants them: an address, a number of elements, a type. NumPy arrays and torch CPU tensors.

An array that is not contiguous travels as a contiguous copy, and what came is written back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.errors import InputError

TYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bytes")
CODES = {name: code for code, name in enumerate(TYPES)}
REDUCTIONS = ("sum", "prod", "min", "max", "avg")
HOW = {name: code for code, name in enumerate(REDUCTIONS)}
BYTES = CODES["bytes"]


@dataclass(eq=False)
class Flat:
    """Contiguous memory of one array."""

    address: int
    count: int
    type: int  # BYTES for types that have no reduction: then `count` is bytes
    name: str  # of the type
    shape: tuple[int, ...]
    holds: Any  # keeps the memory
    back: Callable[[], None] | None = None  # writes a copy's values where they belong

    @property
    def nbytes(self) -> int:
        return self.count * SIZES[self.type]

    def finish(self) -> None:
        if self.back is not None:
            self.back()


SIZES = (2, 2, 4, 8, 1, 2, 4, 8, 1, 1)


def is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def flat(array: Any, what: str, *, written: bool) -> Flat:
    """An array's memory; `written`: results go into it."""
    if is_tensor(array):
        return _of_tensor(array, what, written)
    if not isinstance(array, np.ndarray):
        raise InputError(f"{what} takes NumPy arrays or torch tensors, not {type(array).__name__}.")
    if written and not array.flags.writeable:
        raise InputError(f"{what}: this array cannot be written to; give a copy of it.")
    if array.dtype.hasobject:
        raise InputError(f"{what}: an array of Python objects cannot be shared; give one of numbers.")
    plain = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    back = None
    if written and plain is not array:

        def back() -> None:
            array[...] = plain

    name = array.dtype.name if array.dtype.isnative else array.dtype.str  # ">f4": the other byte order
    code = CODES.get(name, BYTES)
    count = plain.size if code != BYTES else plain.nbytes
    address = plain.__array_interface__["data"][0]
    return Flat(address, count, code, name, array.shape, plain, back)


def _of_tensor(tensor: Any, what: str, written: bool) -> Flat:
    if tensor.device.type != "cpu":
        raise InputError(f"{what}: one tensor is on {tensor.device}, another on the CPU; bring them to one place.")
    plain = tensor.detach()
    plain = plain if plain.is_contiguous() else plain.contiguous()
    back = None
    if written and not tensor.is_contiguous():

        def back() -> None:
            tensor.detach().copy_(plain)

    name = str(tensor.dtype).removeprefix("torch.")
    code = CODES.get(name, BYTES)
    count = plain.numel() if code != BYTES else plain.numel() * plain.element_size()
    return Flat(plain.data_ptr(), count, code, name, tuple(tensor.shape), plain, back)


def reducible(one: Flat, op: str, what: str) -> int:
    """The code of a reduction; an error where the type has none."""
    if op not in HOW:
        raise InputError(f"{what}: there is no reduction '{op}'; there are: {', '.join(REDUCTIONS)}.")
    if one.type == BYTES:
        raise InputError(f"{what}: {one.name} has no reduction; convert to one of {', '.join(TYPES[:-1])}.")
    return HOW[op]


def like(array: Any, shape: tuple[int, ...]) -> Any:
    """A fresh array of the same kind and type."""
    return array.new_empty(shape) if is_tensor(array) else np.empty(shape, array.dtype)
