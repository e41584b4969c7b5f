"""HDF5 as robomimic lays it out: data/demo_i/{obs/*, actions, …}, each demo an episode (h5py).

Demos have no stamps of their own unless there is a dataset `timestamps`; the rate then comes from `--fps` or from
the environment's `control_freq`. A file without `data/` (ALOHA: observations/*, action) is one episode.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.trajectory.guess import groups
from ridgeline.trajectory.readers.fields import Ask, chosen_columns, numeric, opening, said, streams_of
from ridgeline.trajectory.stream import Stream, stamps
from ridgeline.trajectory.timeline import Array, grid

MAGIC = b"\x89HDF\r\n\x1a\n"
STAMPS = ("timestamps", "timestamp", "time", "times", "obs/timestamps", "obs/timestamp", "obs/time")
_WIDEST_IMAGE = 3  # dimensions; a dataset with more per step is a picture


def sniff(path: Path) -> bool:
    return opening(path, len(MAGIC)) == MAGIC


def read(path: Path, topics: Sequence[str] | None = None, ask: Ask | None = None) -> list[Stream]:
    ask = ask or Ask()
    try:
        import h5py
    except ImportError:
        raise MissingExtra("reading HDF5 files", "robot") from None
    found: list[Stream] = []
    with h5py.File(path, "r") as file:
        data = file.get("data")
        demos = data if isinstance(data, h5py.Group) else None
        names = sorted(demos, key=_number) if demos is not None else [""]
        rate = ask.fps or _control_freq(demos)
        left: dict[str, None] = {}
        for name in names:
            group = demos[name] if demos is not None else file
            if isinstance(group, h5py.Group):
                found += _demo(group, name, topics, ask, rate, path, left)
        said(ask, "", list(left))
    return found


def _demo(
    group: Any,
    episode: str,
    topics: Sequence[str] | None,
    ask: Ask,
    rate: float | None,
    path: Path,
    left: dict[str, None],
) -> list[Stream]:
    sets: dict[str, Any] = {}
    group.visititems(lambda name, item: sets.update({name: item}) if hasattr(item, "shape") else None)
    clock = next((n for n in STAMPS if n in sets), None)
    names = [n for n in sets if n != clock]
    for word in topics or ():
        if not chosen_columns(names, [word]):
            raise unknown(f"topic in '{path}'", word, [title for title, _ in groups(names)])
    wanted = chosen_columns(names, topics)
    fields: dict[str, Array] = {}
    for name in sets:
        if name in wanted:
            shape = sets[name].shape
            values = numeric(sets[name][()]) if 1 <= len(shape) <= _WIDEST_IMAGE else None
            if values is None:
                left[name] = None
            elif not name.startswith("next_obs/"):  # obs, one step later
                fields[name] = values
    if not fields:
        return []
    lengths = {n: len(v) for n, v in fields.items()}
    steps = len(sets[clock]) if clock else max(lengths.values())
    odd = [n for n, length in lengths.items() if length != steps]
    for name in odd:
        left[name] = None
        del fields[name]
    times = _clock(sets[clock][()], steps, episode) if clock else _even(rate, steps, path)
    return streams_of("", times, fields, episode)


def _clock(given: Any, steps: int, episode: str) -> Array:
    from ridgeline.trajectory.readers.tabular import unit_of

    times = np.asarray(given).reshape(steps, -1)[:, 0]
    unit, _ = unit_of(times, "timestamps")
    return stamps(f"{episode}/timestamps", times, unit)


def _even(rate: float | None, steps: int, path: Path) -> Array:
    if rate is None:
        raise InputError(f"'{path}' has no stamps and names no rate; give --fps (robomimic records at 20).")
    exact = Fraction(str(rate))
    end = -((1 - steps) * 10**9 * exact.denominator // exact.numerator)
    return grid(0, end, exact, whole=True)[:steps]


def _control_freq(demos: Any) -> float | None:
    try:
        found = json.loads(demos.attrs["env_args"])["env_kwargs"]["control_freq"]
        return float(found)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _number(name: str) -> tuple[str, int]:
    head, _, tail = name.rpartition("_")
    return (head, int(tail)) if tail.isdigit() else (name, 0)
