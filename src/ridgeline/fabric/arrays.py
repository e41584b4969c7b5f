"""Arrays in the form of the engine: an address, a number of elements, a type. NumPy arrays and torch CPU tensors.

An array that is not contiguous is sent as a contiguous copy, and results are written back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.errors import InputError

TYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bytes")
TYPE_CODES = {name: code for code, name in enumerate(TYPES)}
REDUCTIONS = ("sum", "prod", "min", "max", "avg")
REDUCTION_CODES = {name: code for code, name in enumerate(REDUCTIONS)}
BYTES = TYPE_CODES["bytes"]


@dataclass(eq=False)
class FlatArray:
    """The contiguous memory of one array."""

    address: int
    count: int
    type: int  # BYTES for types without a reduction: then `count` is in bytes
    name: str  # of the type
    shape: tuple[int, ...]
    owner: Any  # keeps the memory alive
    write_back: Callable[[], None] | None = None  # copies the values to the array of the caller

    @property
    def nbytes(self) -> int:
        return self.count * SIZES[self.type]

    def finish(self) -> None:
        if self.write_back is not None:
            self.write_back()


SIZES = (2, 2, 4, 8, 1, 2, 4, 8, 1, 1)


def is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_array(array: Any) -> bool:
    return isinstance(array, np.ndarray) or is_tensor(array)


def check_kind(array: Any, op: str) -> None:
    if not is_array(array):
        raise InputError(f"{op} takes NumPy arrays or torch tensors, not {type(array).__name__}.")


def check_written(op: str, is_contiguous: bool, shape: Sequence[int], strides: Sequence[int], width: int = 1) -> None:
    """Refuse an array whose elements share memory (`expand`, `as_strided`): it cannot hold a result. Strides and the
    width of an element have one unit."""
    if is_contiguous:
        return
    end = width - 1  # of the elements along the dimensions so far
    for stride, length in sorted((abs(stride), length) for stride, length in zip(strides, shape, strict=True)):
        if length > 1 and stride <= end and 0 not in shape:
            raise InputError(f"{op}: elements of this array share memory, so it cannot be written to; give a copy.")
        end += stride * (length - 1)


def flatten(array: Any, op: str, *, written: bool) -> FlatArray:
    """Return the memory of an array; `written`: the call writes results into it."""
    check_kind(array, op)
    if is_tensor(array):
        return _flatten_tensor(array, op, written)
    if written and not array.flags.writeable:
        raise InputError(f"{op}: this array cannot be written to; give a copy of it.")
    if written:
        check_written(op, array.flags.c_contiguous, array.shape, array.strides, array.itemsize)
    if array.dtype.hasobject:
        raise InputError(f"{op}: an array of Python objects cannot be shared; give one of numbers.")
    plain = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    write_back = None
    if written and plain is not array:

        def write_back() -> None:
            array[...] = plain

    name = array.dtype.name if array.dtype.isnative else array.dtype.str  # ">f4": the other byte order
    if array.dtype.names is not None:
        name = str(array.dtype)  # its fields: ranks compare the name
    code = TYPE_CODES.get(name, BYTES)
    count = plain.size if code != BYTES else plain.nbytes
    address = plain.__array_interface__["data"][0]
    return FlatArray(address, count, code, name, array.shape, plain, write_back)


def _flatten_tensor(tensor: Any, op: str, written: bool) -> FlatArray:
    if tensor.device.type != "cpu":
        raise InputError(f"{op}: one tensor is on {tensor.device}, another on the CPU; move them to one device.")
    if written:
        check_written(op, tensor.is_contiguous(), tensor.shape, tensor.stride())
    plain = tensor.detach()
    plain = plain if plain.is_contiguous() else plain.contiguous()
    write_back = None
    if written and not tensor.is_contiguous():

        def write_back() -> None:
            tensor.detach().copy_(plain)

    name = str(tensor.dtype).removeprefix("torch.")
    code = TYPE_CODES.get(name, BYTES)
    count = plain.numel() if code != BYTES else plain.numel() * plain.element_size()
    return FlatArray(plain.data_ptr(), count, code, name, tuple(tensor.shape), plain, write_back)


def get_reduction_code(array: FlatArray, reduction: str, op: str) -> int:
    """Return the code of a reduction; raises InputError if the type has none."""
    if not isinstance(reduction, str) or reduction not in REDUCTION_CODES:
        raise InputError(f"{op}: there is no reduction '{reduction}'; there are: {', '.join(REDUCTIONS)}.")
    if array.type == BYTES:
        raise InputError(f"{op}: {array.name} has no reduction; convert to one of {', '.join(TYPES[:-1])}.")
    return REDUCTION_CODES[reduction]


def make_empty_like(array: Any, shape: tuple[int, ...]) -> Any:
    """Return a new array of the same kind and type."""
    return array.new_empty(shape) if is_tensor(array) else np.empty(shape, array.dtype)
