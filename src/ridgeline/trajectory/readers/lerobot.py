"""LeRobot datasets, v2 and v3: a folder with meta/info.json and data/**/*.parquet, read episode by episode.

Videos and stored images become cameras. The tasks, the type of the robot and the names of the features are
kept for a LeRobot dataset that is written from these streams.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.cameras import Camera, Take
from ridgeline.trajectory.pictures import DECODED, Picture, name_codec
from ridgeline.trajectory.readers.images import ImageTopic
from ridgeline.trajectory.readers.streams import ReadOptions, choose_topics, read_column, read_columns, report_left_out
from ridgeline.trajectory.stream import Array, EpisodeInfo, Stream
from ridgeline.trajectory.videos import VideoReader

V2_VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
INFO = "meta/info.json"
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
ROWS = 32  # stored images that are in memory at once
GRID_S = 1e-4  # LeRobot's tolerance: a stamp closer than this to frame / fps counts as frame / fps


def sniff(path: Path) -> bool:
    return path.is_dir() and (path / INFO).is_file()


def read(path: Path, topics: Sequence[str] | None = None, options: ReadOptions | None = None) -> list[Stream]:
    options = options or ReadOptions()
    try:
        import pyarrow as arrow
    except ImportError:
        raise MissingExtra("reading LeRobot datasets", "robot") from None
    info = json.loads((path / INFO).read_text())
    files = sorted((path / "data").rglob("*.parquet"))
    if not files:
        raise InputError(f"'{path}' is a LeRobot dataset without data/**/*.parquet; download it again.")
    known = info.get("features", {})
    stored = [n for n, f in known.items() if f.get("dtype") == "image"]
    table = arrow.concat_tables([_read_numbers(f, stored) for f in files], promote_options="default")
    for name in ("timestamp", "episode_index"):
        if name not in table.column_names:
            raise InputError(f"'{path}' has no column '{name}' in {files[0].name}; it is no LeRobot dataset.")
    features = [n for n in table.column_names if n not in BOOKKEEPING]
    videos = [n for n, f in known.items() if f.get("dtype") == "video"]
    chosen_features = choose_topics([*features, *videos, *stored], topics, path)
    columns, left_out = read_columns(table, [name for name in features if name in chosen_features])
    if options.add_camera is None:
        left_out = dict.fromkeys((*videos, *stored), "images (--camera NAME=FEATURE takes them along)") | left_out
    report_left_out(options, "", left_out)
    episodes = np.asarray(table.column("episode_index"))
    stamps = np.asarray(table.column("timestamp")).astype(np.float64)
    frames = np.asarray(table.column("frame_index")) if "frame_index" in table.column_names else None
    texts = read_tasks(path)
    tasks = np.asarray(table.column("task_index")) if "task_index" in table.column_names and texts else None
    robot_type = str(info.get("robot_type") or "")
    names = {name: _column_names(name, values, info.get("features", {})) for name, (values, _) in columns.items()}
    streams = []
    lengths = {int(e): int(n) for e, n in zip(*np.unique(episodes, return_counts=True), strict=True)}
    take = partial(_take_pictures, path, info, lengths)
    chosen_images = [n for n in stored if n in chosen_features] if options.add_camera is not None else []
    images = _index_images(path, files, chosen_images)
    take_images = partial(_take_images, path, files)
    filled = _read_filled(table, [*videos, *stored])
    for episode in np.unique(episodes).tolist():
        rows = np.flatnonzero(episodes == episode)
        times = _exact_times(stamps[rows], None if frames is None else frames[rows], info.get("fps"))
        episode_tasks = () if tasks is None else _find_tasks(times, tasks[rows], texts)
        about = EpisodeInfo(episode_tasks, robot_type, tuple(names.items()))
        for name, (values, mask) in columns.items():
            valid_rows = rows if mask is None else rows[mask[rows]]
            clock = times if mask is None else times[mask[rows]]
            labels = tuple(f"{name}.{n}" for n in names[name]) if values.ndim == 2 else ()
            streams.append(Stream(name, clock, values[valid_rows], columns=labels, episode=str(episode), info=about))
        if options.add_camera is not None:
            for name in videos:
                if name in chosen_features:
                    options.add_camera(_build_camera(name, known[name], times, str(episode), take, filled[name][rows]))
            for name in chosen_images:
                key = f"{episode}/{name}"
                camera = images[key].build_camera(times, take_images, episode=str(episode), key=key)
                if camera is not None:
                    options.add_camera(replace(camera, filled=filled[name][rows]))
    return streams


def _read_filled(table: Any, names: Sequence[str]) -> dict[str, Array]:
    """Return the rows of each camera whose frame is not one of that moment, as `NAME.valid` says."""
    out = {name: np.zeros(table.num_rows, bool) for name in names}
    for name in names:
        column = read_column(table.column(f"{name}.valid")) if f"{name}.valid" in table.column_names else ""
        if not isinstance(column, str) and column[0].size == table.num_rows:
            values, known = column
            out[name] = ~values.reshape(-1).astype(bool) & (True if known is None else known)
    return out


def _build_camera(
    name: str, feature: Mapping[str, Any], times: Array, episode: str, take: Take, filled: Array
) -> Camera:
    shape = [int(n) for n in feature.get("shape", (0, 0, 0))]
    names = feature.get("names") or ()
    height, width = (shape[1], shape[2]) if list(names)[:1] == ["channels"] else (shape[0], shape[1])
    about = feature.get("info") or feature.get("video_info") or {}
    return Camera(
        name, times, str(about.get("video.codec", "video")), width, height, episode=episode, take=take,
        key=f"{episode}/{name}", decoded=True, filled=filled,
    )  # fmt: skip


def _take_pictures(
    path: Path, info: Mapping[str, Any], lengths: Mapping[int, int], sources: Collection[str]
) -> Iterator[tuple[str, int, Picture]]:
    """Decode the videos of episodes, one episode after the other: (EPISODE/FEATURE, frame, picture)."""
    places = find_videos(path, info, list(lengths))
    by_episode: dict[int, dict[str, str]] = {}
    for source in sources:
        episode, _, name = source.partition("/")
        by_episode.setdefault(int(episode), {})[source] = name
    for number, names in by_episode.items():
        with contextlib.ExitStack() as files:
            frames = {}
            for source, name in names.items():
                file, first = places[number][name]
                reader = files.enter_context(contextlib.closing(VideoReader(file, float(info["fps"]))))
                frames[source] = reader.iterate(first, lengths[number])
            for frame in range(lengths[number]):  # the cameras in turn, so that their threads work side by side
                for source, pictures in frames.items():
                    yield source, frame, Picture(DECODED, next(pictures))


def _read_numbers(file: Path, stored: Collection[str]) -> Any:
    """Return the table of a data file without its images."""
    from pyarrow.parquet import read_schema, read_table

    return read_table(file, columns=[n for n in read_schema(file).names if n not in stored], partitioning=None)


def _index_images(root: Path, files: Sequence[Path], names: Sequence[str]) -> dict[str, ImageTopic]:
    """Return the index of the stored images by EPISODE/FEATURE."""
    out: dict[str, ImageTopic] = {}
    for episode, name, picture in _iterate_images(root, files, names) if names else ():
        out.setdefault(f"{episode}/{name}", ImageTopic(name)).add_picture(picture)
    return out


def _take_images(root: Path, files: Sequence[Path], sources: Collection[str]) -> Iterator[tuple[str, int, Picture]]:
    """Iterate over stored images: (EPISODE/FEATURE, frame, picture)."""
    names = list(dict.fromkeys(source.partition("/")[2] for source in sources))
    counts = dict.fromkeys(sources, 0)
    for episode, name, picture in _iterate_images(root, files, names):
        source = f"{episode}/{name}"
        if source in counts:
            yield source, counts[source], picture
            counts[source] += 1


def _iterate_images(root: Path, files: Sequence[Path], names: Sequence[str]) -> Iterator[tuple[int, str, Picture]]:
    """Iterate over (episode, feature, picture), row by row."""
    from pyarrow.parquet import ParquetFile

    for file in files:
        with ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(ROWS, columns=["episode_index", *names]):
                episodes = batch.column("episode_index").to_pylist()
                cells = [batch.column(batch.schema.get_field_index(n)).to_pylist() for n in names]
                for row, episode in enumerate(episodes):
                    for name, column in zip(names, cells, strict=True):
                        yield episode, name, read_stored_image(root, column[row])


def read_stored_image(root: Path, cell: Any) -> Picture:
    """Return the image of a cell of a data file: its bytes, or the file that it names."""
    data = cell.get("bytes") if isinstance(cell, Mapping) else cell
    if not data and isinstance(cell, Mapping) and cell.get("path"):
        file = root / str(cell["path"])
        data = file.read_bytes() if file.is_file() else b""
    return Picture(name_codec("", data or b""), data or b"")


def find_videos(root: Path, info: Mapping[str, Any], episodes: Sequence[int]) -> dict[int, dict[str, tuple[Path, int]]]:
    """Return for each episode and camera the video, and the number of the episode's first frame in it."""
    names = [n for n, f in info["features"].items() if f.get("dtype") == "video"]
    if not names:
        return {episode: {} for episode in episodes}
    if not str(info["codebase_version"]).startswith("v3"):
        template, size = info.get("video_path") or V2_VIDEO, int(info.get("chunks_size", 1000))

        def name_file(episode: int, name: str) -> Path:
            return root / template.format(episode_chunk=episode // size, video_key=name, episode_index=episode)

        return {e: {n: (name_file(e, n), 0) for n in names} for e in episodes}
    places = _read_places(root)
    if missing := [e for e in episodes if e not in places]:
        raise InputError(f"'{root}': meta/episodes does not say where the videos of episode {missing[0]} lie.")
    out: dict[int, dict[str, tuple[Path, int]]] = {}
    for episode in episodes:
        place, out[episode] = places[episode], {}
        for name in names:
            chunk, file, start = (place[f"videos/{name}/{n}"] for n in ("chunk_index", "file_index", "from_timestamp"))
            path = root / info["video_path"].format(video_key=name, chunk_index=chunk, file_index=file)
            out[episode][name] = (path, round(start * float(info["fps"])))
    return out


def _read_places(root: Path) -> dict[int, dict[str, Any]]:
    """Return where the videos of each episode lie, by the episode's number (v3)."""
    from pyarrow.parquet import read_schema, read_table

    out: dict[int, dict[str, Any]] = {}
    for file in sorted((root / "meta/episodes").rglob("*.parquet")):
        names = [n for n in read_schema(file).names if n == "episode_index" or n.startswith("videos/")]
        for row in read_table(file, columns=names, partitioning=None).to_pylist():
            out[int(row["episode_index"])] = row
    return out


def _exact_times(stamps: Array, frames: Array | None, fps: float | None) -> Array:
    """Replace float32 stamps by frame / fps in exact nanoseconds, if they agree."""
    if frames is None or not fps or np.abs(stamps - frames / fps).max() > GRID_S:
        return stamps
    exact = Fraction(str(fps))
    ticks = (frames.astype(np.int64) * (2 * 10**9 * exact.denominator) + exact.numerator) // (2 * exact.numerator)
    return np.asarray(ticks, np.int64)


def read_tasks(path: Path) -> dict[int, str]:
    """Return the texts of the tasks by index, from meta/tasks.parquet (v3) or meta/tasks.jsonl (v2)."""
    table_file, lines_file = path / "meta/tasks.parquet", path / "meta/tasks.jsonl"
    if table_file.is_file():
        from pyarrow.parquet import read_table

        table = read_table(table_file)
        texts = next((n for n in table.column_names if n != "task_index"), None)
        if texts is None or "task_index" not in table.column_names:
            return {}
        return {
            int(i): str(t) for i, t in zip(*(table.column(n).to_pylist() for n in ("task_index", texts)), strict=True)
        }
    if lines_file.is_file():
        lines = [json.loads(line) for line in lines_file.read_text().splitlines() if line.strip()]
        return {int(line["task_index"]): str(line["task"]) for line in lines}
    return {}


def _find_tasks(times: Array, tasks: Array, texts: Mapping[int, str]) -> tuple[tuple[float, str], ...]:
    """Return (stamp from which it holds, text) of each task of an episode."""
    starts = [0, *(np.flatnonzero(tasks[1:] != tasks[:-1]) + 1).tolist()]
    return tuple((times[i].item(), texts.get(int(tasks[i]), "")) for i in starts)


def _column_names(name: str, values: Array, features: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a feature's columns; empty if it has none, or not one for each column."""
    names = features.get(name, {}).get("names")
    if isinstance(names, dict):
        names = next((n for n in names.values() if isinstance(n, list)), None)
    width = values.shape[1] if values.ndim == 2 else 1
    plain = isinstance(names, list) and len(names) == width == len(set(map(str, names)))
    return tuple(map(str, names)) if plain else ()
