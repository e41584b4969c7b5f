"""What a caller says beside the arrays, refused in one sentence where it is not what it should be."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from ridgeline.errors import InputError

SLACK = {"float64": 1e-9, "float32": 1e-5}  # of a gap, for stamps of that type
LONGEST = 2**63 - 1  # what an int64 clock can tell apart


def plain(name: str, given: Any) -> Any:
    """As an array in this machine's own order of bytes."""
    if isinstance(given, np.ma.MaskedArray) and np.any(given.mask):
        cure = "fill them with NaN" if name.endswith("values") else "leave them out"
        raise InputError(f"{name} is a masked array, and {np.sum(given.mask)} of it are masked; {cure}.")
    array = np.asarray(given)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def counts(name: str, given: Any) -> Any:
    """lengths, at_lengths or offsets as int64; floats if they are whole.

    >>> counts("lengths", [3, 4.0])
    array([3, 4])
    """
    if given is None:
        return None
    numbers = np.asarray(given)
    if numbers.dtype.kind == "f":
        odd = np.flatnonzero(numbers != np.trunc(numbers))
        if odd.size:
            raise InputError(f"{name}[{odd[0]}] is {numbers.reshape(-1)[odd[0]]}; give whole numbers.")
    elif numbers.dtype.kind not in "iu" and numbers.size:
        raise InputError(f"{name} are {numbers.dtype}; give whole numbers.")
    return np.ascontiguousarray(numbers, np.int64)


def gap(max_gap: Any, whole: bool, slack: float = 1e-9) -> Any:
    """max_gap as the clock counts, in whole numbers or not; None where there is none.

    What is no whole number has some slack, as a part of it: 0.3 - 0.2 is a little more than 0.1.

    >>> gap(0.5, whole=False), gap(1e9, whole=True)
    (0.5000000005, 1000000000)
    """
    if max_gap is None:
        return None
    try:
        length = max_gap if isinstance(max_gap, int | np.integer) else float(max_gap)
    except (TypeError, ValueError):
        length = -1
    if isinstance(max_gap, str | bytes) or not length >= 0:
        raise InputError(f"max_gap is {max_gap}; give a length of time, 0 or more.")
    return int(min(length, LONGEST)) if whole else float(length) * (1 + slack)


def room(out: Any, kind: type) -> None:
    """`out` is what the result would be, or none."""
    if out is not None and not isinstance(out, kind):
        raise InputError(f"out is a {type(out).__name__}; give a {kind.__module__}.{kind.__name__} like the result.")


def number(given: Any) -> bool:
    """Whether it is one, of Python's or numpy's."""
    return isinstance(given, Real)


def rate(hz: Any) -> None:
    """Ticks per second, or none."""
    if hz is not None and not (number(hz) and 0 < hz <= 1e9):
        raise InputError(f"hz={hz} is no rate; give a number above 0, like 50.")


def seconds(name: str, length: Any) -> None:
    """A length of time, or none."""
    if length is not None and not (number(length) and length >= 0):
        raise InputError(f"{name}={length} is no length of time; give seconds, 0 or more.")


def limit_ns(length: float) -> int:
    """A limit in seconds, however long, as an int64 clock has it.

    >>> limit_ns(0.1), limit_ns(float("inf")) == LONGEST
    (100000000, True)
    """
    return round(min(length * 1e9, LONGEST))
