"""HDF5 in robomimic's layout: data/demo_i/{obs/*, actions, …}, each demo an episode (h5py).

Demos without a dataset `timestamps` get even stamps; the rate comes from `--fps` or from the environment's
`control_freq`. A file without `data/` (ALOHA: observations/*, action) is one episode.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.trajectory.columns import group_columns
from ridgeline.trajectory.readers.streams import (
    ReadOptions,
    build_streams,
    choose_columns,
    read_head,
    report_skipped,
    to_numeric,
)
from ridgeline.trajectory.stream import Array, Stream, build_grid, to_stamps

MAGIC = b"\x89HDF\r\n\x1a\n"
STAMPS = ("timestamps", "timestamp", "time", "times", "obs/timestamps", "obs/timestamp", "obs/time")
_MAX_DIMENSIONS = 3  # a dataset with more is images


def sniff(path: Path) -> bool:
    return read_head(path, len(MAGIC)) == MAGIC


def read(path: Path, topics: Sequence[str] | None = None, options: ReadOptions | None = None) -> list[Stream]:
    options = options or ReadOptions()
    try:
        import h5py
    except ImportError:
        raise MissingExtra("reading HDF5 files", "robot") from None
    streams: list[Stream] = []
    with h5py.File(path, "r") as file:
        data = file.get("data")
        demos = data if isinstance(data, h5py.Group) else None
        names = sorted(demos, key=_number) if demos is not None else [""]
        rate = options.fps or _control_freq(demos)
        skipped: dict[str, None] = {}
        for name in names:
            group = demos[name] if demos is not None else file
            if isinstance(group, h5py.Group):
                streams += _demo(group, name, topics, options, rate, path, skipped)
        report_skipped(options, "", list(skipped))
    return streams


def _demo(
    group: Any,
    episode: str,
    topics: Sequence[str] | None,
    options: ReadOptions,
    rate: float | None,
    path: Path,
    skipped: dict[str, None],
) -> list[Stream]:
    sets: dict[str, Any] = {}
    group.visititems(lambda name, item: sets.update({name: item}) if hasattr(item, "shape") else None)
    clock = next((n for n in STAMPS if n in sets), None)
    names = [n for n in sets if n != clock]
    for word in topics or ():
        if not choose_columns(names, [word]):
            raise unknown(f"topic in '{path}'", word, [title for title, _ in group_columns(names)])
    chosen = choose_columns(names, topics)
    fields: dict[str, Array] = {}
    for name in sets:
        if name in chosen:
            shape = sets[name].shape
            values = to_numeric(sets[name][()]) if 1 <= len(shape) <= _MAX_DIMENSIONS else None
            if values is None:
                skipped[name] = None
            elif not name.startswith("next_obs/"):  # equals obs, one step later
                fields[name] = values
    if not fields:
        return []
    lengths = {n: len(v) for n, v in fields.items()}
    steps = len(sets[clock]) if clock else max(lengths.values())
    mismatched = [n for n, length in lengths.items() if length != steps]
    for name in mismatched:
        skipped[name] = None
        del fields[name]
    times = _read_clock(sets[clock][()], steps, episode) if clock else _even_times(rate, steps, path)
    return build_streams("", times, fields, episode)


def _read_clock(data: Any, steps: int, episode: str) -> Array:
    from ridgeline.trajectory.readers.streams import guess_unit

    times = np.asarray(data).reshape(steps, -1)[:, 0]
    unit, _ = guess_unit(times, "timestamps")
    return to_stamps(f"{episode}/timestamps", times, unit)


def _even_times(rate: float | None, steps: int, path: Path) -> Array:
    if rate is None:
        raise InputError(f"'{path}' has no stamps and names no rate; give --fps (robomimic records at 20).")
    exact = Fraction(str(rate))
    end = -((1 - steps) * 10**9 * exact.denominator // exact.numerator)
    return build_grid(0, end, exact, integer_clock=True)[:steps]


def _control_freq(demos: Any) -> float | None:
    try:
        rate = json.loads(demos.attrs["env_args"])["env_kwargs"]["control_freq"]
        return float(rate)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _number(name: str) -> tuple[str, int]:
    head, _, tail = name.rpartition("_")
    return (head, int(tail)) if tail.isdigit() else (name, 0)
