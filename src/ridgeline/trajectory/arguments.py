"""Checks of the arguments beside the arrays: counts, gaps, rates, lengths of time. An error is one sentence."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from ridgeline.errors import InputError

GAP_SLACK = {"float64": 1e-9, "float32": 1e-5}  # relative rounding error of a gap between stamps of this type
INT64_MAX = 2**63 - 1


def as_native_array(name: str, data: Any) -> Any:
    """Return `data` as an array in this machine's byte order; masked entries are an error."""
    if isinstance(data, np.ma.MaskedArray) and np.any(data.mask):
        cure = "fill them with NaN" if name.endswith("values") else "leave them out"
        raise InputError(f"{name} is a masked array with {np.sum(data.mask)} masked entries; {cure}.")
    array = np.asarray(data)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def as_counts(name: str, data: Any) -> Any:
    """Return lengths, at_lengths or offsets as int64. Floats must be whole numbers.

    >>> as_counts("lengths", [3, 4.0])
    array([3, 4])
    """
    if data is None:
        return None
    numbers = np.asarray(data)
    if numbers.dtype.kind == "f":
        fractional = np.flatnonzero(numbers != np.trunc(numbers))
        if fractional.size:
            raise InputError(f"{name}[{fractional[0]}] is {numbers.reshape(-1)[fractional[0]]}; give whole numbers.")
    elif numbers.dtype.kind not in "iu" and numbers.size:
        raise InputError(f"{name} are {numbers.dtype}; give whole numbers.")
    return np.ascontiguousarray(numbers, np.int64)


def as_clock_gap(max_gap: Any, integer: bool, slack: float = 1e-9) -> Any:
    """Return max_gap in the type of the clock (`integer` or float), or None.

    A float gap grows by the relative `slack`, because 0.3 - 0.2 is a little more than 0.1.

    >>> as_clock_gap(0.5, integer=False), as_clock_gap(1e9, integer=True)
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
    return int(min(length, INT64_MAX)) if integer else float(length) * (1 + slack)


def check_out(out: Any, kind: type) -> None:
    """Check that `out` is None or an array of the result's class."""
    if out is not None and not isinstance(out, kind):
        raise InputError(f"out is a {type(out).__name__}; give a {kind.__module__}.{kind.__name__} like the result.")


def is_number(value: Any) -> bool:
    """Whether `value` is a real number of Python or NumPy."""
    return isinstance(value, Real)


def check_rate(hz: Any) -> None:
    """Check that `hz` is None or a rate in ticks per second."""
    if hz is not None and not (is_number(hz) and 0 < hz <= 1e9):
        raise InputError(f"hz={hz} is no rate; give a number above 0, like 50.")


def check_seconds(name: str, length: Any) -> None:
    """Check that `length` is None or a length of time in seconds."""
    if length is not None and not (is_number(length) and length >= 0):
        raise InputError(f"{name}={length} is no length of time; give seconds, 0 or more.")


def to_limit_ns(length: float) -> int:
    """Convert a limit in seconds to int64 nanoseconds; a limit beyond int64 becomes its largest number.

    >>> to_limit_ns(0.1), to_limit_ns(float("inf")) == INT64_MAX
    (100000000, True)
    """
    return round(min(length * 1e9, INT64_MAX))
