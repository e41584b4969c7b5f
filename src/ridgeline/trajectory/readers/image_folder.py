"""Folders of image files: each folder that holds images is a camera, and each table beside them has streams.

The stamp of an image comes from an index, else from its name, else from `--fps`:

index  a table of stamps and file names: `data.csv` beside or above the images (EuRoC), `rgb.txt` beside the folder
       `rgb` (TUM), or `timestamps.txt` with one stamp for each image in the order of names (KITTI)
name   `1700000000123456789.png`, `1700000000.123.jpg`

ridgeline streams rgbd_dataset_freiburg1_desk
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np

from ridgeline.errors import InputError, RidgelineError
from ridgeline.trajectory.pictures import Picture, name_codec
from ridgeline.trajectory.readers.images import ImageTopic
from ridgeline.trajectory.readers.messages import NO_CAMERAS
from ridgeline.trajectory.readers.streams import (
    ReadOptions,
    choose_topics,
    describe_error,
    guess_unit,
    report_left_out,
)
from ridgeline.trajectory.stream import Array, Stream, build_grid, to_stamps

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
TABLES = (".csv", ".tsv", ".txt", ".tum", ".parquet", ".pq")
DEPTH = 4  # of folders below the one that is given
INDEXES = ("data.csv", "timestamps.txt", "times.txt", "timestamps.csv", "times.csv", "index.csv")
_STAMP = re.compile(r"(?:.*[^0-9.])?(\d{9,}(?:\.\d+)?)")  # the stamp at the end of a name; fewer digits count images
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?")


def sniff(path: Path) -> bool:
    return path.is_dir() and next(_find_folders(path), None) is not None


def read(path: Path, topics: Sequence[str] | None = None, options: ReadOptions | None = None) -> list[Stream]:
    options = options or ReadOptions()
    folders = {_name_camera(path, folder): folder for folder in _find_folders(path)}
    indexes: set[Path] = set()
    files = {name: _list_images(folder, options, indexes) for name, folder in folders.items()}
    tables = _read_tables(path, indexes, options)
    chosen = choose_topics([*files, *(s.name for s in tables)], topics, path)
    if options.add_camera is None:
        report_left_out(options, "", dict.fromkeys(files, NO_CAMERAS))
        return tables
    take = partial(_take_pictures, {name: tuple(images) for name, (images, _) in files.items()})
    for name, (images, times) in files.items():
        if name not in chosen:
            continue
        topic = ImageTopic(name)
        for image in images:
            topic.add_picture(_read_picture(image))
        if camera := topic.build_camera(times, take):
            options.add_camera(camera)
        else:
            report_left_out(options, name, {"": f"none of its {len(images)} images can be read"})
    return tables


def _find_folders(path: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Iterate over the folders that hold images, in the order of names."""
    entries = sorted(path.iterdir())
    if any(entry.suffix.lower() in IMAGES for entry in entries):
        yield path
    for entry in entries:
        if depth and entry.is_dir() and not entry.name.startswith("."):
            yield from _find_folders(entry, depth - 1)


def _name_camera(root: Path, folder: Path) -> str:
    """Return the name of a camera: its folder, without `data` at the end."""
    parts = folder.relative_to(root).parts
    while len(parts) > 1 and parts[-1] in ("data", "images"):
        parts = parts[:-1]
    return "/".join(parts) or "images"


def _list_images(folder: Path, options: ReadOptions, indexes: set[Path]) -> tuple[list[Path], Array]:
    """Return the image files of a folder and their stamps; add the index that has the stamps to `indexes`."""
    images = sorted(p for p in folder.iterdir() if p.suffix.lower() in IMAGES and p.is_file())
    beside = [folder.parent / f"{folder.name}{suffix}" for suffix in (".txt", ".csv")]
    for index in (*(folder / n for n in INDEXES), *beside, *(folder.parent / n for n in INDEXES)):
        if index.is_file() and (rows := _read_index(index)):
            listed = _match_index(rows, folder, images)
            if listed is not None:
                indexes.add(index)
                return listed[0], _convert_stamps(listed[1], index, options)
    matches = [_STAMP.fullmatch(p.stem) for p in images]
    texts = [match[1] for match in matches if match]
    if len(texts) == len(images):
        times = _convert_stamps(texts, folder, options)
        order = np.argsort(times, kind="stable")
        return [images[i] for i in order.tolist()], times[order]
    images.sort(key=lambda p: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", p.name)])
    if options.fps is None:
        raise InputError(
            f"'{folder}' has no index of stamps (such as data.csv or timestamps.txt), and its images are not named by "
            "stamps; give --fps."
        )
    exact = Fraction(str(options.fps))
    end = -((1 - len(images)) * 10**9 * exact.denominator // exact.numerator)
    return images, build_grid(0, end, exact, integer_clock=True)[: len(images)]


def _read_index(index: Path) -> list[list[str]]:
    """Return the cells of a table of stamps, without comments and headers."""
    try:
        lines = index.read_text(errors="replace").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        date = _DATE.match(line)
        cells = [line.strip()] if date else [c for c in re.split(r"[,;\s]+", line.strip()) if c]
        if cells and (date or re.fullmatch(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", cells[0])):
            rows.append(cells)
    return rows


def _match_index(
    rows: Sequence[Sequence[str]], folder: Path, images: Sequence[Path]
) -> tuple[list[Path], list[str]] | None:
    """Return the images of an index with their stamps; None if it is an index of other files."""
    by_name = {p.name: p for p in images}
    named = [(by_name[Path(r[1]).name], r[0]) for r in rows if len(r) > 1 and Path(r[1]).name in by_name]
    if 2 * len(named) >= len(images):
        return [p for p, _ in named], [text for _, text in named]
    if len(rows) == len(images) and all(len(r) == 1 for r in rows):
        return list(images), [r[0] for r in rows]
    return None


def _convert_stamps(texts: Sequence[str], where: Path, options: ReadOptions) -> Array:
    """Return stamps as int64 nanoseconds or float64 seconds; texts with decimals stay exact."""
    if dates := [m for text in texts if (m := _DATE.match(text))]:
        return np.array([_read_date(m) for m in dates], np.int64)
    if all(text.isdigit() for text in texts):
        stamps = np.array([int(text) for text in texts], np.int64)
        return to_stamps(str(where), stamps, options.unit or guess_unit(stamps, "")[0])
    seconds = np.array([float(text) for text in texts])
    if (options.unit or guess_unit(seconds, "")[0]) == "s":
        return np.array([round(Fraction(text) * 10**9) for text in texts], np.int64)
    return to_stamps(str(where), seconds, options.unit or guess_unit(seconds, "")[0])


def _read_date(match: re.Match[str]) -> int:
    moment = datetime.fromisoformat(f"{match[1]}T{match[2]}").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 + int((match[3] or "0").ljust(9, "0"))


def _read_tables(path: Path, indexes: Collection[Path], options: ReadOptions) -> list[Stream]:
    """Return the streams of the tables in the folder and up to two below, named by their files."""
    from ridgeline.trajectory import readers

    streams: list[Stream] = []
    for table in sorted(p for depth in ("*", "*/*", "*/*/*") for p in path.glob(depth) if p.suffix.lower() in TABLES):
        if table in indexes or not table.is_file():
            continue
        parts = table.relative_to(path).with_suffix("").parts
        prefix = "/".join(parts[:-1] if len(parts) > 1 and parts[-1] == "data" else parts)
        try:
            streams_of_table = readers.read(table, None, replace(options, add_camera=None))
        except RidgelineError as error:
            report_left_out(options, prefix, {"": describe_error(error)})
            continue
        for stream in streams_of_table:
            columns = tuple(f"{prefix}/{c}" for c in stream.columns)
            streams.append(replace(stream, name=f"{prefix}/{stream.name}", columns=columns))
    return streams


def _take_pictures(files: Mapping[str, Sequence[Path]], sources: Collection[str]) -> Iterator[tuple[str, int, Picture]]:
    """Iterate over (camera, number, picture), the cameras in turn so that their threads work side by side."""
    for number in range(max(len(files[source]) for source in sources)):
        for source in sources:
            if number < len(files[source]):
                yield source, number, _read_picture(files[source][number])


def _read_picture(file: Path) -> Picture:
    try:
        data = file.read_bytes()
    except OSError:
        data = b""
    suffix = file.suffix[1:].lower()
    return Picture(name_codec("tiff" if suffix == "tif" else suffix, data), data)
