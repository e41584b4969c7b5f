"""Trajectories as text: TUM (`t tx ty tz qx qy qz qw`, seconds) and EuRoC without a header (ns, p, q w-first, …)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ridgeline.errors import InputError
from ridgeline.trajectory.readers.csv import is_number, read_named
from ridgeline.trajectory.readers.streams import ReadOptions, build_streams, read_head
from ridgeline.trajectory.stream import Stream

_TUM = ("position.x", "position.y", "position.z", "orientation.x", "orientation.y", "orientation.z", "orientation.w")
_EUROC = ("p_x", "p_y", "p_z", "q_w", "q_x", "q_y", "q_z", "v_x", "v_y", "v_z", "b_w_x", "b_w_y", "b_w_z", "b_a_x")
_EUROC_ALL = ("timestamp_ns", *_EUROC, "b_a_y", "b_a_z")


def sniff(path: Path) -> bool:
    line = _first(path)
    return _is_tum(line) or _is_euroc(line)


def read(path: Path, topics: Sequence[str] | None = None, options: ReadOptions | None = None) -> list[Stream]:
    line = _first(path)
    if _is_euroc(line):
        return read_named(path, list(_EUROC_ALL[: line.count(",") + 1]), ",", 0, topics, options or ReadOptions())
    try:
        rows = np.loadtxt(path, ndmin=2)
    except ValueError as error:
        raise InputError(f"'{path}' is no clean TUM trajectory: {str(error).rstrip('.')}; mend that row.") from error
    bad = np.flatnonzero(~np.isfinite(rows[:, 0]))
    if bad.size:
        raise InputError(f"'{path}', row {bad[0] + 1}: the stamp is {rows[bad[0], 0]}; drop that row.")
    fields = {name: np.ascontiguousarray(rows[:, i + 1]) for i, name in enumerate(_TUM)}
    return build_streams("", rows[:, 0].copy(), fields)


def _first(path: Path) -> str:
    lines = read_head(path, 65536).decode("ascii", errors="replace").splitlines()
    if lines and lines[0].startswith("#") and "," in lines[0]:
        return ""  # EuRoC with a header is a CSV table
    return next((line for line in lines if line.strip() and not line.startswith("#")), "")


def _is_tum(line: str) -> bool:
    cells = line.split()
    return len(cells) == 8 and all(map(is_number, cells))


def _is_euroc(line: str) -> bool:
    cells = line.split(",")
    has_ns_stamp = cells[0].strip().isdigit() and len(cells[0].strip()) >= 16
    return has_ns_stamp and len(cells) in (8, 17) and all(map(is_number, cells))
