"""Guess from names and values how to interpolate a column, and which columns form one quantity.

>>> import numpy as np
>>> guess_kind("gear", ("gear",), np.array([1, 2]))
'previous'
>>> guess_kind("base/yaw", ("base/yaw",), np.array([3.1, -3.1]))
'angle'
>>> [name for name, _ in group_columns(["q[0]", "q[1]", "q[2]", "q[3]", "speed"])]
['q', 'speed']
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ridgeline.errors import unknown
from ridgeline.trajectory.channels import KINDS

_COMPASS = frozenset({"heading", "bearing", "azimuth", "course", "cog"})  # often in degrees, from north
_ANGLES = _COMPASS | {"yaw", "roll", "pitch", "theta", "angle", "psi"}
_DEGREES = frozenset({"deg", "degree", "degrees"})
# A yaw rate does not wrap; a reset, a variance or an error of an angle is no angle either.
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
    | {"delta", "gain", "limit", "max", "min", "torque", "effort", "valid"}
)
_UNIT_NORM = 0.02  # quaternions are logged as float32, sometimes as int16
_SUFFIX = re.compile(r"(.*?)(?:[._\s]?)(q?[xyzw])$", re.IGNORECASE)
_INDEX = re.compile(r"(.+?)\[(\d+)\]$")
_QUATERNION = frozenset({"wxyz", "xyzw"})
_QUATERNION_NAME = re.compile(
    r"(^|[/._])(q|quat|quaternion|orientation|rotation|q_[a-z0-9_]+)(\[\d\])?$", re.IGNORECASE
)


def guess_kind(name: str, columns: Sequence[str], values: np.ndarray[Any, Any]) -> str:
    """Guess how to interpolate `values` [S] or [S, D]: previous, slerp, a kind of angle, or linear."""
    if values.dtype.kind in "iub":
        return "previous"
    if values.ndim == 2 and values.shape[1] == 4 and _quaternion(name, columns) and _unit(values):
        return "slerp"
    words = [_split_words(c) for c in columns]
    if all(w & _ANGLES and not w & _NO_ANGLES for w in words):
        return _guess_angle(values, all(w & _DEGREES for w in words), all(w & _COMPASS for w in words))
    return "linear"


def group_columns(fields: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Group fields that form one quantity: `q[0]`…`q[3]`, `p.x`…`p.z`, `qx`…`qw`; the order stays."""
    members_by_stem: dict[str, list[str]] = {}
    for field in fields:
        members_by_stem.setdefault(_stem(field), []).append(field)
    out: list[tuple[str, tuple[str, ...]]] = []
    for stem, members in members_by_stem.items():
        if len(members) > 1 and _together(members):
            out.append((stem, tuple(members)))
        else:
            out += [(m, (m,)) for m in members]
    return out


def match_names(names: Iterable[str], pattern: str, what: str = "stream") -> list[str]:
    """Return the names that equal `pattern`, lie below it (`imu` matches `imu/gyro`), or match it (`imu/*`)."""
    known = list(dict.fromkeys(names))
    matches = [n for n in known if n == pattern or n.startswith(f"{pattern}/") or fnmatch.fnmatchcase(n, pattern)]
    if not matches:
        raise unknown(what, pattern, known if len(known) <= 40 else sorted({n.rpartition("/")[0] or n for n in known}))
    return matches


def check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise unknown("kind", kind, KINDS)
    return kind


def _stem(field: str) -> str:
    index = _INDEX.match(field)
    if index:
        return index[1]
    suffix = _SUFFIX.match(field)
    if suffix is None:
        return field
    if suffix[2][0] in "qQ" and len(suffix[2]) == 2:  # qx, tool_qw
        return suffix[1] + ("_q" if suffix[1] else "q")
    # Words that only end in x (max, index) are no suffix: a separator must come before the letter.
    alone = field[len(suffix[1])] in "._ " if suffix[1] else True
    return suffix[1] if alone and suffix[1] else field


def _together(members: Sequence[str]) -> bool:
    if _INDEX.match(members[0]):
        return [int(i[2]) for m in members if (i := _INDEX.match(m))] == list(range(len(members)))
    letters = "".join(m[-1].lower() for m in members)
    return letters in {"xy", "xyz", "xyzw", "wxyz"}


def _quaternion(name: str, columns: Sequence[str]) -> bool:
    letters = "".join(c.rstrip("]")[-1:].lower() for c in columns)
    return letters in _QUATERNION or bool(_QUATERNION_NAME.search(name))


def _unit(values: np.ndarray[Any, Any]) -> bool:
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(values[np.isfinite(values).all(axis=1)].astype(np.float64), axis=1)
    # Estimators write zeros before they converge; ignore those.
    norms = norms[norms > 0]
    return bool(norms.size) and bool(np.median(np.abs(norms - 1)) < _UNIT_NORM)


def _split_words(column: str) -> set[str]:
    return set(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column.rpartition("/")[2]).lower()))


def _guess_angle(values: np.ndarray[Any, Any], degrees: bool, compass: bool) -> str:
    """Guess the unit and range of an angle from its values; linear if they are beyond one turn."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "linear"
    low, high = float(finite.min()), float(finite.max())
    if not degrees:
        slack = 1e-3
        if -np.pi - slack <= low and high <= np.pi + slack:
            return "angle"
        if -slack <= low and high <= 2 * np.pi + slack:
            return "angle_2pi"
    # Without a unit in its name, an angle beyond 2π is in degrees if it is a compass course, or if it jumps by more
    # than half a turn. Otherwise it may be radians that count turns.
    with np.errstate(invalid="ignore"):
        jumps = degrees or compass or bool((np.abs(np.diff(values, axis=0)) > 180).any())
    slack = 0.05
    if jumps and -slack <= low and high <= 360 + slack and (compass or high > 180 + slack):
        return "degrees_360"
    return "degrees" if jumps and -180 - slack <= low and high <= 180 + slack else "linear"
