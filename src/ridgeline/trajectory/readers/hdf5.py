"""HDF5 (h5py): robomimic's layout (data/demo_i/{obs/*, actions, …}, each demo an episode), ALOHA's, and plain groups.

The clock of a dataset is the time column (`time`, `t`, `timestamps`, …) of its length in its own group, else in the
groups above, else in `obs`. Datasets without one get even stamps; the rate comes from `--fps` or from the environment's
`control_freq`. A file without `data/` is one episode.

Datasets of images are cameras: uint8 pixels [T, H, W, 3] (or [T, 3, H, W], RGB), depth [T, H, W], and JPEG or PNG files
as rows of bytes, padded with zeros (ALOHA) or of their own length.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.trajectory.cameras import Camera
from ridgeline.trajectory.columns import group_columns
from ridgeline.trajectory.pictures import DEPTHS, IMAGE_CODECS, Picture, name_codec
from ridgeline.trajectory.readers.images import ImageTopic
from ridgeline.trajectory.readers.messages import NO_CAMERAS
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
BLOCK = 8  # images that are read at once
BLOCK_BYTES = 1 << 26  # of images that are read at once
SMALLEST = 8  # width and height of images; smaller arrays are numbers


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
    images = {name: layout for name in names if name in chosen and (layout := _find_layout(name, sets[name]))}
    _add_cameras(images, sets, clocks, stamps, episode, options, rate, path, left_out)
    usable: dict[str | None, list[str]] = {}  # names of datasets by their clock
    for name in names:
        if name in chosen and name not in images:
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


@dataclass(frozen=True)
class _Layout:
    """How a dataset holds images: an encoding of raw pixels, or "" for image files."""

    encoding: str
    width: int = 0
    height: int = 0
    channels_first: bool = False


def _find_layout(name: str, item: Any) -> _Layout | None:
    """Return how a dataset holds images; None if it holds numbers."""
    shape, kind = item.shape, item.dtype
    if not shape or not len(item):
        return None
    if kind.kind in "OSV" or (kind == np.uint8 and len(shape) == 2):
        first = next((data for i in range(min(len(item), BLOCK)) if (data := _to_bytes(item[i]))), b"")
        return _Layout("") if name_codec("", first) in IMAGE_CODECS else None
    channels_first = len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3] not in (1, 3, 4)
    if len(shape) == 4:
        height, width, channels = (shape[2], shape[3], shape[1]) if channels_first else shape[1:]
    elif len(shape) == 3:
        height, width, channels = shape[1], shape[2], 1
    else:
        return None
    encoding = {
        ("uint8", 1): "mono8", ("uint8", 3): "rgb8", ("uint8", 4): "rgba8", ("uint16", 1): "16UC1",
        ("int16", 1): "16SC1", ("float32", 1): "32FC1", ("float64", 1): "32FC1",
    }.get((kind.name, channels))  # fmt: skip
    too_small = min(height, width) < SMALLEST or (len(shape) == 3 and not explain_unusable(kind, shape))
    if encoding is None or too_small or (kind.kind == "f" and "depth" not in name.lower()):
        return None
    return _Layout(encoding, width, height, channels_first)


def _add_cameras(
    images: Mapping[str, _Layout],
    sets: Mapping[str, Any],
    clocks: Mapping[str, str | None],
    stamps: Mapping[str, Array],
    episode: str,
    options: ReadOptions,
    rate: float | None,
    path: Path,
    left_out: dict[str, str],
) -> None:
    """Give the cameras of an episode to `options.add_camera`, or say that they are left out."""
    if options.add_camera is None:
        left_out.update(dict.fromkeys(images, NO_CAMERAS))
        return
    take = partial(_take_pictures, path, {sets[name].name: layout for name, layout in images.items()})
    for name, layout in images.items():
        item, clock = sets[name], clocks.get(name)
        times = stamps[clock] if clock else _even_times(rate, len(item), path)
        camera: Camera | None
        if layout.encoding:  # all images have one size, so that none needs to be read
            camera = Camera(
                name, times, layout.encoding, layout.width, layout.height, depth=layout.encoding in DEPTHS,
                keys=np.ones(len(times), bool), bytes=item.id.get_storage_size(), episode=episode, take=take,
                key=item.name,
            )  # fmt: skip
        else:
            index = ImageTopic(name)
            for picture in _read_pictures(item, layout):
                index.add_picture(picture)
            camera = index.build_camera(times, take, episode=episode, key=item.name)
        if camera is not None:
            options.add_camera(camera)


def _take_pictures(
    path: Path, layouts: Mapping[str, _Layout], sources: Collection[str]
) -> Iterator[tuple[str, int, Picture]]:
    """Iterate over (dataset, number, picture), the datasets in turn so that their threads work side by side."""
    import h5py

    with h5py.File(path, "r") as file:
        readers = {source: _read_pictures(file[source], layouts[source]) for source in sources}
        number = 0
        while readers:
            for source in list(readers):
                picture = next(readers[source], None)
                if picture is None:
                    del readers[source]
                else:
                    yield source, number, picture
            number += 1


def _read_pictures(item: Any, layout: _Layout) -> Iterator[Picture]:
    """Iterate over the images of a dataset, a few in memory at a time; those of a damaged part are empty."""
    size = max(1, int(np.prod(item.shape[1:])) * item.dtype.itemsize)
    block = max(1, min(max(BLOCK, (item.chunks or (1,))[0]), BLOCK_BYTES // size))
    for start in range(0, len(item), block):
        try:
            images = item[start : start + block]
        except OSError:  # a part that its filter cannot unpack
            images = [None] * min(block, len(item) - start)
        for image in images:
            yield _build_picture(image, layout)


def _build_picture(image: Any, layout: _Layout) -> Picture:
    if not layout.encoding:
        data = b"" if image is None else _to_bytes(image)
        return Picture(name_codec("", data), data)
    if image is None:
        return Picture(layout.encoding, b"", layout.width, layout.height)
    pixels = image.transpose(1, 2, 0) if layout.channels_first else image
    if pixels.dtype == np.float64:
        pixels = pixels.astype(np.float32)
    return Picture(
        layout.encoding, np.ascontiguousarray(pixels).reshape(-1).view(np.uint8), layout.width, layout.height
    )


def _to_bytes(value: Any) -> bytes:
    """Return the bytes of an image file without the zeros that pad it."""
    data = value.tobytes() if hasattr(value, "tobytes") else bytes(value) if isinstance(value, bytes) else b""
    return data.rstrip(b"\0")


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
