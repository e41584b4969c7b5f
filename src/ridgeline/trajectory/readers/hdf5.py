"""HDF5 (h5py): robomimic's layout (data/demo_i/{obs/*, actions, …}, each demo an episode), ALOHA's, and plain groups.

The clock of a dataset is the time column (`time`, `t`, `timestamps`, …) of its length in its own group, else in the
groups above, else in `obs`. Datasets without one get even stamps; the rate comes from `--fps` or from the environment's
`control_freq`. A file without `data/` is one episode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
    explain_unusable,
    flatten_samples,
    guess_unit,
    is_clock_name,
    rank_clock_name,
    read_head,
    report_left_out,
)
from ridgeline.trajectory.stream import Array, Stream, build_grid, to_stamps

MAGIC = b"\x89HDF\r\n\x1a\n"
OBSERVATIONS = ("obs", "observations")  # their clock also counts for the datasets beside them
SHIFTED = "next_obs/"  # equals obs, one step later


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
        demos = data if isinstance(data, h5py.Group) and any(isinstance(g, h5py.Group) for g in data.values()) else None
        names = sorted(demos, key=_number) if demos is not None else [""]
        rate = options.fps or _control_freq(demos)
        left_out: dict[str, str] = {}
        for name in names:
            group = demos[name] if demos is not None else file
            if isinstance(group, h5py.Group):
                streams += _read_episode(group, name, topics, options, rate, path, left_out)
        report_left_out(options, "", left_out)
    return streams


def _read_episode(
    group: Any,
    episode: str,
    topics: Sequence[str] | None,
    options: ReadOptions,
    rate: float | None,
    path: Path,
    left_out: dict[str, str],
) -> list[Stream]:
    sets: dict[str, Any] = {}
    group.visititems(lambda name, item: sets.update({name: item}) if hasattr(item, "shape") else None)
    sets = {name: item for name, item in sets.items() if not name.startswith(SHIFTED)}
    stamps = _find_clocks(sets, options, path)
    clocks = {name: _choose_clock(name, len(item), stamps) for name, item in sets.items() if item.shape}
    used = {clock for name, clock in clocks.items() if clock is not None and name not in stamps}
    names = [n for n in sets if n not in used and not (n in stamps and rank_clock_name(_base(n)) == 0)]
    for word in topics or ():
        if not choose_columns(names, [word]):
            raise unknown(f"topic in '{path}'", word, [title for title, _ in group_columns(names)])
    chosen = choose_columns(names, topics)
    usable: dict[str | None, list[str]] = {}  # names of datasets by their clock
    for name in names:
        if name in chosen:
            why = explain_unusable(sets[name].dtype, sets[name].shape)
            clock = clocks.get(name)
            above = _clocks_above(name, stamps)
            if not why and clock is None and above:
                why = f"its length is {len(sets[name])}, and that of its clock {above[0]} is {len(stamps[above[0]])}"
            elif not why and clock is None and rate is None and stamps:
                why = "its group has no time column (--fps gives it even stamps)"
            if why:
                left_out.setdefault(name, why)
            else:
                usable.setdefault(clock, []).append(name)
    if even := usable.get(None):
        steps = max(len(sets[name]) for name in even)
        for name in [n for n in even if len(sets[n]) != steps]:
            left_out.setdefault(name, f"its length is {len(sets[name])}, and that of the others is {steps}")
            even.remove(name)
    streams: list[Stream] = []
    for clock, members in usable.items():
        fields = {name: flatten_samples(sets[name][()]) for name in members}
        times = stamps[clock] if clock else _even_times(rate, len(fields[members[0]]), path)
        streams += build_streams("", times, fields, episode)
    order = {title: i for i, (title, _) in enumerate(group_columns(names))}
    return sorted(streams, key=lambda s: order.get(s.name, len(order)))


def _find_clocks(sets: Mapping[str, Any], options: ReadOptions, path: Path) -> dict[str, Array]:
    """Return the stamps of every dataset that can be a clock, by name.

    A clock has a name of time and never goes back. A dataset with the plainest names (`time`, `timestamps`), or the one
    that the user names, is a clock anyway: its damage is an error, which --sort mends.
    """
    stamps: dict[str, Array] = {}
    for name, item in sets.items():
        base = _base(name)
        named = options.clock is not None and options.clock in (name, base)
        if not named and (options.clock is not None or not is_clock_name(base)):
            continue
        if item.dtype.kind not in "fiu" or not item.shape or item.size != len(item):
            continue
        times = np.asarray(item[()]).reshape(-1)
        plain = named or base.lower() in ("time", "times", "timestamp", "timestamps")
        if plain or (len(times) > 1 and times[0] < times[-1] and bool((times[1:] >= times[:-1]).all())):
            unit = options.unit or guess_unit(times, base)[0]
            stamps[name] = to_stamps(name, times, unit)
    if options.clock is not None and not stamps:
        raise unknown(f"time column in '{path}'", options.clock, [n for n in sets if is_clock_name(_base(n))])
    return stamps


def _choose_clock(name: str, length: int, stamps: Mapping[str, Array]) -> str | None:
    """Return the clock of a dataset: the nearest time column of the same length."""
    for candidates in (_clocks_above(name, stamps), [c for c in stamps if c.partition("/")[0] in OBSERVATIONS]):
        equal = [c for c in candidates if c != name and len(stamps[c]) == length]
        if equal:
            group = equal[0].rpartition("/")[0]
            return min(
                (c for c in equal if c.rpartition("/")[0] == group),
                key=lambda c: (not _base(name).startswith(_base(c).split("_")[0] + "_"), rank_clock_name(_base(c))),
            )
    return None


def _clocks_above(name: str, stamps: Mapping[str, Array]) -> list[str]:
    """Return the clocks in a dataset's group and in the groups above, the nearest first."""
    group = name.rpartition("/")[0]
    above = [c for c in stamps if c != name and f"{group}/".startswith(_prefix(c))]
    return sorted(above, key=lambda c: (-len(_prefix(c)), rank_clock_name(_base(c))))


def _prefix(name: str) -> str:
    group = name.rpartition("/")[0]
    return f"{group}/" if group else ""


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _even_times(rate: float | None, steps: int, path: Path) -> Array:
    if rate is None:
        raise InputError(
            f"'{path}' has no time column and names no rate; give --fps (robomimic records at 20) or --time-column."
        )
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
