"""What a column is, from its name and its values: how to interpolate it, and which columns belong together.

>>> import numpy as np
>>> guess_kind("gear", ("gear",), np.array([1, 2]))
'previous'
>>> guess_kind("base/yaw", ("base/yaw",), np.array([3.1, -3.1]))
'angle'
>>> [name for name, _ in groups(["q[0]", "q[1]", "q[2]", "q[3]", "speed"])]
['q', 'speed']
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory.channels import KINDS

_ANGLES = frozenset({"yaw", "roll", "pitch", "heading", "theta", "angle", "bearing", "azimuth", "psi"})
# A yaw rate wraps at nothing; a reset, a variance or an error of an angle is no angle either.
_NO_ANGLES = frozenset(
    {
        "rate",
        "rates",
        "speed",
        "vel",
        "velocity",
        "acc",
        "accel",
        "acceleration",
        "var",
        "variance",
        "std",
        "covariance",
    }
    | {"test", "ratio", "innov", "innovation", "integral", "integ", "reset", "counter", "trim", "offset", "bias"}
    | {"delta", "gain", "limit", "max", "min", "torque", "effort", "valid", "deg", "degrees"}
)
_UNIT_NORM = 0.02  # quaternions are logged as float32, sometimes as int16
_SUFFIX = re.compile(r"(.*?)(?:[._\s]?)(q?[xyzw])$", re.IGNORECASE)
_INDEX = re.compile(r"(.+?)\[(\d+)\]$")
_QUATERNION = frozenset({"wxyz", "xyzw"})
_QUATERNION_NAME = re.compile(
    r"(^|[/._])(q|quat|quaternion|orientation|rotation|q_[a-z0-9_]+)(\[\d\])?$", re.IGNORECASE
)


def guess_kind(name: str, columns: Sequence[str], values: np.ndarray[Any, Any]) -> str:
    """How to interpolate `values` [S] or [S, D]: previous, slerp, angle or linear."""
    if values.dtype.kind in "iub":
        return "previous"
    if values.ndim == 2 and values.shape[1] == 4 and _quaternion(name, columns) and _unit(values):
        return "slerp"
    if all(_angle(c) for c in columns) and _within_pi(values):
        return "angle"
    return "linear"


def groups(fields: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Fields that are one quantity, under one name: `q[0]`…`q[3]`, `p.x`…`p.z`, `qx`…`qw`; in order of arrival."""
    found: dict[str, list[str]] = {}
    for field in fields:
        found.setdefault(_stem(field), []).append(field)
    out: list[tuple[str, tuple[str, ...]]] = []
    for stem, members in found.items():
        if len(members) > 1 and _together(members):
            out.append((stem, tuple(members)))
        else:
            out += [(m, (m,)) for m in members]
    return out


def matching(names: Iterable[str], word: str, what: str = "stream") -> list[str]:
    """The names that `word` means: itself, everything below it (`imu` is `imu/gyro`), or a pattern (`imu/*`)."""
    known = list(dict.fromkeys(names))
    found = [n for n in known if n == word or n.startswith(f"{word}/") or fnmatch.fnmatchcase(n, word)]
    if not found:
        raise unknown(what, word, known if len(known) <= 40 else sorted({n.rpartition("/")[0] or n for n in known}))
    return found


def check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    return kind


def _stem(field: str) -> str:
    indexed = _INDEX.match(field)
    if indexed:
        return indexed[1]
    lettered = _SUFFIX.match(field)
    if lettered is None:
        return field
    if lettered[2][0] in "qQ" and len(lettered[2]) == 2:  # qx, tool_qw
        return lettered[1] + ("_q" if lettered[1] else "q")
    # Words that merely end in x (max, index) stay whole: the letter must stand alone or be all there is.
    alone = field[len(lettered[1])] in "._ " if lettered[1] else True
    return lettered[1] if alone and lettered[1] else field


def _together(members: Sequence[str]) -> bool:
    if _INDEX.match(members[0]):
        return [int(i[2]) for m in members if (i := _INDEX.match(m))] == list(range(len(members)))
    letters = "".join(m[-1].lower() for m in members)
    return letters in {"xy", "xyz", "xyzw", "wxyz"}


def _quaternion(name: str, columns: Sequence[str]) -> bool:
    letters = "".join(c.rstrip("]")[-1:].lower() for c in columns)
    return letters in _QUATERNION or bool(_QUATERNION_NAME.search(name))


def _unit(values: np.ndarray[Any, Any]) -> bool:
    with np.errstate(over="ignore"):  # of numbers that no rotation has
        norms = np.linalg.norm(values[np.isfinite(values).all(axis=1)].astype(np.float64), axis=1)
    # Estimators write zeros before they have converged; those say nothing about the rest.
    norms = norms[norms > 0]
    return bool(norms.size) and bool(np.median(np.abs(norms - 1)) < _UNIT_NORM)


def _angle(column: str) -> bool:
    words = set(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column.rpartition("/")[2]).lower()))
    return bool(words & _ANGLES) and not words & _NO_ANGLES


def _within_pi(values: np.ndarray[Any, Any]) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size) and bool(np.abs(finite).max() <= np.pi + 1e-3)


def pair(text: str, option: str) -> tuple[str, str]:
    """`name=value` as typed; the last `=` parts them, for names may hold one.

    >>> pair("vehicle_attitude/q=slerp", "--kind")
    ('vehicle_attitude/q', 'slerp')
    """
    name, equals, value = text.rpartition("=")
    if not equals or not name or not value:
        raise InputError(f"{option} '{text}' is not of the form NAME=VALUE.")
    return name, value
