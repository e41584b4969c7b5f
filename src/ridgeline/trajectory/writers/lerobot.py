"""A LeRobot v3.0 dataset: meta/{info.json, stats.json, tasks.parquet, episodes/}, data/chunk-000/file-000.parquet,
videos/FEATURE/chunk-000/file-000.mp4.

Each stream is a feature: `actions` becomes `action`, all others `observation.NAME`; features of a LeRobot dataset keep
their names, tasks and type of robot. Features cannot be null, so masked
values are NaN (integers with masked values become float32).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra
from ridgeline.store import MANIFEST, publish_dir, read_manifest, write_manifest
from ridgeline.trajectory.media import EpisodeMedia, Media
from ridgeline.trajectory.readers.lerobot import read_tasks
from ridgeline.trajectory.stream import Aligned, Array
from ridgeline.trajectory.videos import DEPTH_ROWS, QUANTILES, join_videos, link_file
from ridgeline.trajectory.writers import table

VERSION = "v3.0"
CHUNK = 1000  # files in a folder
DATA_MB = 100  # of a data file; an episode is never split
VIDEO_MB = 200
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
CALIBRATION = "meta/calibration.json"
TASK = "resampled"


def write(
    path: Path,
    episodes: Sequence[Aligned],
    meta: dict[str, Any],
    *,
    media: Sequence[EpisodeMedia] | None = None,
    append: bool = False,
) -> None:
    """Write the episodes with their cameras; with `append`, add them to the dataset at `path`."""
    before = read_existing(path) if append and path.exists() else NOTHING
    contents = describe_contents(episodes, media or [])
    writer = DatasetWriter(contents, before)
    check_same_features(path, before.info, writer.info)
    if before.info is not None and not (path / MANIFEST).exists():  # written by another program
        write_manifest(path)
    with publish_dir(path, {**meta, "appended": [*before.keys, meta]} if append else meta) as tmp:
        if before.info is not None:
            _link_tree(path, tmp)
        writer.add(tmp, episodes, media or [])
        writer.finish(tmp)


@dataclass(frozen=True)
class Feature:
    """A stream of numbers as a feature of a dataset."""

    name: str
    labels: tuple[str, ...]  # of its columns in the streams
    names: tuple[str, ...] | None  # of its columns in the dataset
    dtype: str
    width: int
    scalar: bool  # a value of a frame is a number, not a list of one


@dataclass(frozen=True)
class Contents:
    """What episodes hold: known of all before the first is written, because all files have the same columns."""

    rate: float
    features: Mapping[str, Feature]  # by stream
    cameras: Mapping[str, Any] = field(default_factory=dict)  # by feature, as info.json describes them
    robots: frozenset[str] = frozenset()


def describe_contents(episodes: Sequence[Aligned], media: Sequence[EpisodeMedia]) -> Contents:
    """Return what these episodes hold; raise InputError if they cannot be in one dataset."""
    rates = {e.hz for e in episodes}
    rate = rates.pop() if len(rates) == 1 else None
    if rate is None:
        raise InputError("a LeRobot dataset has one fps; align every episode with the same hz.")
    known = {name: names for e in episodes for name, names in e.info.features}
    labels = table.merge_labels(episodes)
    features = {
        stream: Feature(
            name,
            labels[stream],
            None if (names := _column_names(stream, labels[stream], known)) is None else tuple(names),
            values.dtype.name,
            values.shape[1] if values.ndim == 2 else 1,
            values.ndim == 1,
        )
        for name, (stream, values) in _features(episodes, known).items()
    }
    robots = frozenset(e.info.robot_type for e in episodes)
    return Contents(rate, features, _describe_cameras(media, len(episodes), _to_fps(rate)), robots)


def merge_contents(parts: Sequence[Contents], places: Sequence[str]) -> Contents:
    """Return what all parts hold together; `places` names them for the InputError if they differ too much."""
    first: dict[str, tuple[str, Feature]] = {}
    by_feature: dict[str, str] = {}
    cameras: dict[str, tuple[str, Any]] = {}
    for part, place in zip(parts, places, strict=True):
        for stream, feature in part.features.items():
            known_place, known = first.setdefault(stream, (place, feature))
            if set(known.labels) != set(feature.labels):
                raise InputError(
                    f"'{stream}' has the columns {', '.join(known.labels)} in {known_place} and "
                    f"{', '.join(feature.labels)} in {place}; leave it out with --exclude '{stream}'."
                )
            if by_feature.setdefault(feature.name, stream) != stream:
                raise InputError(
                    f"streams '{by_feature[feature.name]}' and '{stream}' would both be '{feature.name}'; "
                    "leave one out."
                )
            if known.dtype != feature.dtype:
                first[stream] = known_place, (known := replace(known, dtype="float32"))
            if known.scalar != feature.scalar:
                first[stream] = known_place, replace(known, scalar=True)
        for name, camera in part.cameras.items():
            known_place, known_camera = cameras.setdefault(name, (place, camera))
            if (known_camera["dtype"], known_camera["shape"]) != (camera["dtype"], camera["shape"]):
                raise InputError(
                    f"{name} is {known_camera['dtype']} {known_camera['shape']} in {known_place} and "
                    f"{camera['dtype']} {camera['shape']} in {place}; write recordings of other cameras to another "
                    "dataset."
                )
            _check_codec(name, known_camera, known_place, camera, place)
    for part, place in zip(parts, places, strict=True):
        if missing := sorted(set(cameras) - set(part.cameras)):
            raise InputError(f"{place} has no {missing[0]}, which others have; leave one of them out.")
        for stream in first.keys() - part.features.keys():
            known_place, known = first[stream]
            first[stream] = (known_place, replace(known, dtype="float32"))  # empty rows are NaN
    rates = {part.rate for part in parts}
    if len(rates) != 1:
        raise InputError("a LeRobot dataset has one fps; align every episode with the same hz.")
    robots = frozenset(robot for part in parts for robot in part.robots)
    features = {stream: feature for stream, (_, feature) in first.items()}
    return Contents(rates.pop(), features, {name: camera for name, (_, camera) in cameras.items()}, robots)


def _to_fps(rate: float) -> float:
    return int(rate) if float(rate).is_integer() else rate


class DatasetWriter:
    """Writes a dataset by groups of episodes, so that memory does not depend on its size.

    Each group becomes data files, videos and one file of meta/episodes; `finish` writes what describes all groups. A
    group may be written to another folder than the one before: the caller brings the files together.
    """

    def __init__(self, contents: Contents, before: Existing | None = None) -> None:
        try:
            import pyarrow as arrow
            import pyarrow.parquet as parquet
        except ImportError:
            raise MissingExtra("writing LeRobot datasets", "robot") from None
        self._arrow, self._parquet = arrow, parquet
        before = before or NOTHING
        self._contents, self._state, self._fps = contents, before, _to_fps(contents.rate)
        self._texts = {text: number for number, text in enumerate(before.tasks)}
        self._new_stats: dict[str, list[Mapping[str, Any]]] = {}
        self._calibration = [dict(entry) for entry in before.calibration]
        robot = next(iter(contents.robots)) or None if len(contents.robots) == 1 else None
        self._robot = robot if before.info is None else before.info.get("robot_type")

    @property
    def info(self) -> dict[str, Any]:
        """What meta/info.json says after the groups so far."""
        state, contents = self._state, self._contents
        counts = _bookkeeping([1], self._fps, np.zeros(1, np.int64), state)
        return {
            "codebase_version": VERSION,
            "robot_type": self._robot,
            "total_episodes": state.episodes,
            "total_frames": state.frames,
            "total_tasks": len(self._texts),
            "chunks_size": CHUNK,
            "data_files_size_in_mb": DATA_MB,
            "video_files_size_in_mb": VIDEO_MB,
            "fps": self._fps,
            "splits": {"train": f"0:{state.episodes}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": VIDEO_PATH if any(c["dtype"] == "video" for c in contents.cameras.values()) else None,
            "features": {
                **{
                    f.name: {"dtype": f.dtype, "shape": [f.width], "names": list(f.names) if f.names else None}
                    for f in contents.features.values()
                },
                **contents.cameras,
                **{name: {"dtype": v.dtype.name, "shape": [1], "names": None} for name, v in counts.items()},
            },
        }

    def add(self, root: Path, episodes: Sequence[Aligned], media: Sequence[EpisodeMedia] = ()) -> None:
        """Write the files of these episodes below `root`."""
        arrow, before = self._arrow, self._state
        lengths = [len(e.times) for e in episodes]
        tasks = [frame_tasks(e) for e in episodes]
        for text in dict.fromkeys(text for frames in tasks for text in frames):
            self._texts.setdefault(text, len(self._texts))
        if not self._texts:  # no episode has a frame
            self._texts[TASK] = 0
        task_index = np.array([self._texts[text] for frames in tasks for text in frames], np.int64)
        counts = _bookkeeping(lengths, self._fps, task_index, before)
        columns = {**self._build_columns(episodes), **counts}
        arrow_columns = {name: _arrow(arrow, v) for name, v in columns.items()}
        places = _write_data(root, arrow, self._parquet, arrow_columns, lengths, media or None, before)
        rows = _episodes(lengths, [list(dict.fromkeys(frames)) for frames in tasks], columns, before)
        rows |= {"data/chunk_index": [p // CHUNK for p in places], "data/file_index": [p % CHUNK for p in places]}
        videos = _write_videos(root, media, self._fps, before)
        rows |= videos
        new = {name: compute_stats(v) for name, v in columns.items() if not is_valid_mask(name)}
        for name in self._contents.cameras:
            parts = [_find_media(e, name).statistics for e in media]
            rows |= {f"stats/{name}/{what}": [part[what] for part in parts] for what in parts[0]}
            new[name] = merge_stats(parts)
        for name, stats in new.items():
            self._new_stats[name] = [merge_stats([*self._new_stats.get(name, []), stats])]
        target = root / f"meta/episodes/{_name_file(before.next_meta)}"
        target.parent.mkdir(parents=True, exist_ok=True)
        self._parquet.write_table(arrow.table(rows), target)
        self._add_calibration(media, before.episodes)
        suffix = "/file_index"
        last = {
            name.removeprefix("videos/").removesuffix(suffix): videos[name.removesuffix(suffix) + "/chunk_index"][-1]
            * CHUNK
            + files[-1]
            for name, files in videos.items()
            if name.endswith(suffix)
        }
        self._state = replace(
            before,
            episodes=before.episodes + len(episodes),
            frames=before.frames + sum(lengths),
            next_data=max(places, default=before.next_data - 1) + 1,
            next_meta=before.next_meta + 1,
            next_video={**before.next_video, **{name: number + 1 for name, number in last.items()}},
        )

    def finish(self, root: Path) -> None:
        """Write what describes the dataset; a reader looks for meta/info.json, so it must appear last."""
        arrow, parquet, state = self._arrow, self._parquet, self._state
        texts = list(self._texts)
        _replace(root / "meta/tasks.parquet", lambda file: parquet.write_table(_tasks(arrow, texts), file))
        new = {name: parts[0] for name, parts in self._new_stats.items()}
        stats = {name: merge_stats([state.stats[name], s]) if name in state.stats else s for name, s in new.items()}
        if self._calibration:
            _replace(root / CALIBRATION, lambda file: file.write_text(json.dumps(self._calibration, indent=1)))
        _replace(root / "meta/stats.json", lambda file: file.write_text(json.dumps(stats, indent=4)))
        _replace(root / "meta/info.json", lambda file: file.write_text(json.dumps(self.info, indent=4)))

    def _build_columns(self, episodes: Sequence[Aligned]) -> dict[str, Array]:
        """Return the values of each feature, those of a stream that these episodes lack as NaN."""
        known = {name: names for e in episodes for name, names in e.info.features}
        present = dict(_features(episodes, known).values())
        labels = table.merge_labels(episodes)
        rows = sum(len(e.times) for e in episodes)
        out: dict[str, Array] = {}
        for stream, feature in self._contents.features.items():
            values = present.get(stream)
            if values is None:
                values = np.full((rows, feature.width), np.nan, np.float32)
            elif labels[stream] != feature.labels:
                values = values[:, [labels[stream].index(label) for label in feature.labels]]
            shape = (rows,) if feature.scalar else (rows, feature.width)
            out[feature.name] = values.reshape(shape).astype(feature.dtype, copy=False)
        return out

    def _add_calibration(self, media: Sequence[EpisodeMedia], first: int) -> None:
        """Add what recordings say about their cameras, once for all episodes that say the same."""
        for number, episode in enumerate(media, first):
            if not episode.calibration:
                continue
            description = json.loads(json.dumps(episode.calibration))
            entries = self._calibration
            same = next((e for e in entries if {k: v for k, v in e.items() if k != "episodes"} == description), None)
            if same is None:
                entries.append({"episodes": [number], **description})
            else:
                same["episodes"].append(number)


@dataclass(frozen=True)
class Existing:
    """What a dataset holds before episodes are added."""

    info: Mapping[str, Any] | None = None
    tasks: tuple[str, ...] = ()
    episodes: int = 0
    frames: int = 0
    next_data: int = 0  # number of the next file: chunk * CHUNK + file
    next_meta: int = 0
    next_video: Mapping[str, int] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[Mapping[str, Any], ...] = ()  # the meta of what was written and added
    calibration: tuple[Mapping[str, Any], ...] = ()  # as meta/calibration.json has it


NOTHING = Existing()


def read_existing(path: Path) -> Existing:
    """Read what a LeRobot v3 dataset holds; raise InputError for anything else."""
    try:
        info = json.loads((path / "meta/info.json").read_text())
        version, size = str(info["codebase_version"]), int(info.get("chunks_size", CHUNK))
        episodes, frames = int(info["total_episodes"]), int(info["total_frames"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"'{path}' is no LeRobot dataset, so nothing can be added to it; leave --append out."
        ) from error
    if not version.startswith("v3") or size != CHUNK:
        raise InputError(f"'{path}' is a LeRobot dataset of version {version}; --append adds to version 3 only.")
    videos = {p.name: _count_files(p, "mp4") for p in sorted((path / "videos").glob("*")) if p.is_dir()}
    stats_file, calibration = path / "meta/stats.json", path / CALIBRATION
    meta = read_meta(path) if (path / MANIFEST).exists() else None
    return Existing(
        info=info,
        tasks=tuple(text for _, text in sorted(read_tasks(path).items())),
        episodes=episodes,
        frames=frames,
        next_data=_count_files(path / "data", "parquet"),
        next_meta=_count_files(path / "meta/episodes", "parquet"),
        next_video=videos,
        stats=json.loads(stats_file.read_text()) if stats_file.exists() else {},
        keys=tuple((meta or {}).get("appended", [meta] if meta else [])),
        calibration=tuple(json.loads(calibration.read_text())) if calibration.exists() else (),
    )


def check_same_features(path: Path, before: Mapping[str, Any] | None, info: Mapping[str, Any]) -> None:
    """Refuse to add episodes with another rate or other features."""
    if before is None:
        return
    if float(before["fps"]) != float(info["fps"]):
        raise InputError(
            f"'{path}' has {before['fps']} Hz, and the new episodes have {info['fps']}; give --hz {before['fps']}."
        )
    old, new = before["features"], info["features"]
    for name in dict.fromkeys((*old, *new)):
        if name not in new or name not in old:
            text = (
                f"'{path}' has no feature '{name}'"
                if name not in old
                else f"the new episodes lack '{name}' of '{path}'"
            )
            raise InputError(f"{text}; choose the same --camera, --state, --action and --topics as before.")
        a, b = ((f["dtype"], list(f["shape"])) for f in (old[name], new[name]))
        if a != b:
            raise InputError(
                f"'{name}' is {a[0]} {a[1]} in '{path}' and {b[0]} {b[1]} in the new episodes; resample alike."
            )
        _check_codec(name, old[name], f"'{path}'", new[name], "the new episodes")


def find_codec(feature: Mapping[str, Any]) -> str:
    """Return the codec that info.json names for a video; "" if it names none."""
    about = feature.get("info") or feature.get("video_info") or {}
    return str(about.get("video.codec") or "")


def _check_codec(name: str, a: Mapping[str, Any], place_a: str, b: Mapping[str, Any], place_b: str) -> None:
    """Refuse videos of two codecs: info.json names one codec for a feature."""
    codec_a, codec_b = find_codec(a), find_codec(b)
    if codec_a and codec_b and codec_a != codec_b:
        raise InputError(
            f"{name} is {codec_a} in {place_a} and {codec_b} in {place_b}, and a LeRobot dataset names one codec for a "
            "feature; give all of them the same --codec, or write them to another dataset."
        )


def _count_files(folder: Path, suffix: str) -> int:
    """Return the number after that of the last file."""
    last = -1
    for file in folder.rglob(f"*.{suffix}"):
        chunk, _, number = f"{file.parent.name}/{file.stem}".partition("/")
        try:
            last = max(last, int(chunk.rpartition("-")[2]) * CHUNK + int(number.rpartition("-")[2]))
        except ValueError:
            continue
    return last + 1


def _name_file(number: int, suffix: str = "parquet") -> str:
    return f"chunk-{number // CHUNK:03d}/file-{number % CHUNK:03d}.{suffix}"


def _link_tree(source: Path, target: Path) -> None:
    """Give the files of a dataset second names in another folder, so that nothing is copied."""
    for file in sorted(source.rglob("*")):
        name = file.relative_to(source)
        if file.is_dir():
            (target / name).mkdir(parents=True, exist_ok=True)
        elif str(name) != MANIFEST:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            link_file(file, target / name)


def _replace(file: Path, write: Callable[[Path], object]) -> None:
    """Write a file anew: the old one may be linked to the dataset that is still there."""
    file.unlink(missing_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file)


def _describe_cameras(media: Sequence[EpisodeMedia], episodes: int, fps: float) -> dict[str, Any]:
    """Return the features of cameras; raise InputError if episodes differ in them."""
    if not media:
        return {}
    out: dict[str, Any] = {}
    for number, episode in enumerate(media):
        for m in episode.media:
            feature = _camera_feature(m, fps)
            known = out.setdefault(m.feature, feature)
            if known["shape"] != feature["shape"] or known["dtype"] != feature["dtype"]:
                raise InputError(
                    f"{m.feature} is {known['dtype']} {known['shape']} in episode 0 and {feature['dtype']} "
                    f"{feature['shape']} in episode {number}; write recordings of other cameras to another dataset."
                )
            _check_codec(m.feature, known, "episode 0", feature, f"episode {number}")
    for number, episode in enumerate(media):
        if missing := sorted(set(out) - {m.feature for m in episode.media}):
            raise InputError(f"episode {number} has no {missing[0]}, which others have; leave one of them out.")
    return out


def _camera_feature(m: Media, fps: float) -> dict[str, Any]:
    if m.kind == "depth":
        return {"dtype": m.codec, "shape": [m.height, m.width], "names": ["height", "width"]}
    info = {
        "video.height": m.height,
        "video.width": m.width,
        "video.codec": "hevc" if m.codec == "h265" else m.codec,
        "video.pix_fmt": m.pixels,
        "video.is_depth_map": False,
        "video.fps": fps,
        "video.channels": 3,
        "has_audio": False,
    }
    return {"dtype": "video", "shape": [m.height, m.width, 3], "names": ["height", "width", "channels"], "info": info}


def _find_media(episode: EpisodeMedia, feature: str) -> Media:
    return next(m for m in episode.media if m.feature == feature)


def _write_data(
    root: Path,
    arrow: Any,
    parquet: Any,
    columns: Mapping[str, Any],
    lengths: Sequence[int],
    media: Sequence[EpisodeMedia] | None,
    before: Existing,
) -> list[int]:
    """Write the rows of all episodes into files of about DATA_MB; return the number of each episode's file."""
    table = arrow.table(dict(columns))
    places: list[int] = []
    number, start = before.next_data - 1, 0
    writer: Any = None
    with ExitStack() as stack:
        file: Any = None
        for episode, length in enumerate(lengths):
            depths = [m for m in media[episode].media if m.kind == "depth"] if media else []
            for rows in _add_depth(arrow, parquet, table.slice(start, length), depths, media, episode):
                if writer is None or (file.tell() > DATA_MB * 1_000_000 and len(places) == episode):
                    if writer is not None:
                        writer.close()
                    number += 1
                    path = root / "data" / _name_file(number)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    file = stack.enter_context(path.open("wb"))
                    writer = stack.enter_context(parquet.ParquetWriter(file, rows.schema, compression="zstd"))
                if len(places) == episode:
                    places.append(number)
                writer.write_table(rows)
            start += length
    return places


def _add_depth(
    arrow: Any, parquet: Any, rows: Any, depths: Sequence[Media], media: Sequence[EpisodeMedia] | None, episode: int
) -> Iterator[Any]:
    """Iterate over parts of an episode's rows with the columns of its depth cameras, a few images at a time."""
    if not depths or media is None:
        yield rows
        return
    parts = [parquet.ParquetFile(media[episode].folder / m.file).iter_batches(batch_size=DEPTH_ROWS) for m in depths]
    start = 0
    for batches in zip(*parts, strict=True):
        part = rows.slice(start, len(batches[0]))
        for m, batch in zip(depths, batches, strict=True):
            part = part.append_column(m.feature, batch.column(0))
        start += len(batches[0])
        yield part


def _write_videos(root: Path, media: Sequence[EpisodeMedia], fps: float, before: Existing) -> dict[str, list[Any]]:
    """Join the videos of each camera; return the columns of the episodes' table that say where they lie."""
    rows: dict[str, list[Any]] = {}
    if not media:
        return rows
    for name in [m.feature for m in media[0].media if m.kind == "video"]:
        first = before.next_video.get(name, 0)
        sources = [(e.folder / _find_media(e, name).file, _find_media(e, name).frames) for e in media]
        joined = join_videos(
            sources,
            Fraction(str(fps)),
            VIDEO_MB * 1_000_000,
            lambda number, name=name, first=first: root / f"videos/{name}" / _name_file(first + number, "mp4"),
        )
        rows |= {
            f"videos/{name}/chunk_index": [(first + j.file) // CHUNK for j in joined],
            f"videos/{name}/file_index": [(first + j.file) % CHUNK for j in joined],
            f"videos/{name}/from_timestamp": [j.start_s for j in joined],
            f"videos/{name}/to_timestamp": [j.end_s for j in joined],
        }
    return rows


def is_valid_mask(feature: str) -> bool:
    """Whether a feature says which frames of a camera are real. LeRobot takes all statistics under "image" for colours.

    So such a feature has none.
    """
    return feature.endswith(".valid") and feature.startswith(("observation.images.", "observation.depth."))


def merge_stats(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine statistics of parts, as LeRobot does: exactly, but for quantiles, which are means by count."""
    if len(parts) == 1:
        return dict(parts[0])
    arrays = [{k: np.asarray(v, np.float64) for k, v in part.items()} for part in parts]
    weights = np.array([float(a["count"].ravel()[0]) for a in arrays])
    total = max(1.0, float(weights.sum()))

    def average(values: Sequence[Array]) -> Array:
        stacked = np.stack(values)
        w = np.where(np.isnan(stacked), 0.0, weights.reshape(-1, *[1] * (stacked.ndim - 1)))
        with np.errstate(invalid="ignore"):
            out: Array = np.nansum(stacked * w, axis=0) / w.sum(axis=0)
        return out

    mean = average([a["mean"] for a in arrays])
    spread = average([a["std"] ** 2 + (a["mean"] - mean) ** 2 for a in arrays])
    out: dict[str, Array] = {
        "min": np.fmin.reduce([a["min"] for a in arrays]),
        "max": np.fmax.reduce([a["max"] for a in arrays]),
        "mean": mean,
        "std": np.sqrt(spread),
        **{n: average([a[n] for a in arrays]) for n in QUANTILES if all(n in a for a in arrays)},
    }
    plain = {name: np.where(np.isnan(v), None, v).tolist() for name, v in out.items()}  # type: ignore[call-overload]
    return {**plain, "count": [int(total)]}


def frame_tasks(episode: Aligned) -> list[str]:
    """Return the task of every frame: the text that the recording says, or a placeholder."""
    if not episode.info.tasks:
        return [TASK] * len(episode.times)
    starts = np.array([start for start, _ in episode.info.tasks])
    if episode.times.dtype.kind == "i" and starts.dtype.kind == "f":
        starts = np.rint(starts * 1e9).astype(np.int64)
    rows = np.searchsorted(starts, episode.times, "right").clip(1) - 1
    return [episode.info.tasks[i][1] for i in rows]


def _tasks(arrow: Any, texts: Sequence[str]) -> Any:
    """Return the table of the tasks. LeRobot reads it with pandas; the index is the task's text."""
    columns: list[dict[str, Any]] = [
        {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"},
        {"name": None, "field_name": "__index_level_0__", "pandas_type": "unicode", "numpy_type": "object"},
    ]
    pandas_metadata = {
        "index_columns": ["__index_level_0__"],
        "column_indexes": [],
        "columns": [{**column, "metadata": None} for column in columns],
        "pandas_version": "2.0.0",
    }
    table = arrow.table({"task_index": np.arange(len(texts)), "__index_level_0__": list(texts)})
    return table.replace_schema_metadata({b"pandas": json.dumps(pandas_metadata).encode()})


def read_meta(path: Path) -> dict[str, Any] | None:
    return dict(read_manifest(path).meta) if path.is_dir() else None


def compute_stats(values: Array) -> dict[str, list[float | None]]:
    """Return min, max, mean, std, count and quantiles per channel without NaN; null for a channel of only NaN."""
    wide = values.reshape(len(values), -1).astype(np.float64)
    out: dict[str, list[float | None]] = {name: [] for name in ("min", "max", "mean", "std", *QUANTILES)}
    for channel in wide.T:
        known = channel[np.isfinite(channel)]
        statistics = (
            [known.min(), known.max(), known.mean(), known.std(), *np.quantile(known, list(QUANTILES.values()))]
            if known.size
            else [None] * len(out)
        )
        for name, value in zip(out, statistics, strict=True):
            out[name].append(None if value is None else float(value))
    return {**out, "count": [len(values)]}


def feature_name(stream: str) -> str:
    """Return a LeRobot feature name, which has no slash.

    >>> feature_name("actions"), feature_name("obs/joint_pos"), feature_name("/imu/gyro")
    ('action', 'observation.joint_pos', 'observation.imu.gyro')
    """
    plain = stream.strip("/").replace("/", ".")
    if plain in ("action", "actions"):
        return "action"
    if plain.startswith(("action.", "observation.", "next.")) or plain == "observation":
        return plain
    return f"observation.{plain.removeprefix('obs.')}"


def _features(episodes: Sequence[Aligned], known: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, Array]]:
    """Return (stream, values) by feature; two streams with the same feature name raise InputError."""
    features: dict[str, tuple[str, Array]] = {}
    for stream, (values, mask) in table.stack_episodes(episodes).items():
        name = stream if stream in known else feature_name(stream)
        if name in features:
            raise InputError(f"streams '{features[name][0]}' and '{stream}' would both be '{name}'; leave one out.")
        if values.dtype.kind in "iub" and not mask.all():
            values = np.where(mask.reshape(-1, *[1] * (values.ndim - 1)), values, np.nan).astype(np.float32)
        plain = np.int64 if values.dtype.kind in "iu" else values.dtype
        with np.errstate(over="ignore"):  # damaged numbers beyond float32 become infinite
            features[name] = (stream, values.astype(np.float32 if values.dtype.kind == "f" else plain, copy=False))
    return features


def _bookkeeping(lengths: Sequence[int], fps: float, task_index: Array, before: Existing) -> dict[str, Array]:
    frames = np.concatenate([np.arange(n, dtype=np.int64) for n in lengths])
    return {
        "timestamp": (frames / fps).astype(np.float32),
        "frame_index": frames,
        "episode_index": before.episodes + np.repeat(np.arange(len(lengths), dtype=np.int64), lengths),
        "index": before.frames + np.arange(len(frames), dtype=np.int64),
        "task_index": task_index,
    }


def _episodes(
    lengths: Sequence[int], tasks: Sequence[Sequence[str]], columns: dict[str, Array], before: Existing
) -> dict[str, Any]:
    ends = np.cumsum(lengths)
    starts = ends - lengths
    same = np.ones(len(lengths), np.int64)
    rows: dict[str, Any] = {
        "episode_index": before.episodes + np.arange(len(lengths)),
        "tasks": list(tasks),
        "length": np.asarray(lengths, np.int64),
        "data/chunk_index": same,  # replaced when the files are written
        "data/file_index": same,
        "dataset_from_index": before.frames + starts,
        "dataset_to_index": before.frames + ends,
        "meta/episodes/chunk_index": same * (before.next_meta // CHUNK),
        "meta/episodes/file_index": same * (before.next_meta % CHUNK),
    }
    for name, values in columns.items():
        if is_valid_mask(name):
            continue
        stats = [compute_stats(values[a:b]) for a, b in zip(starts, ends, strict=True)]
        rows |= {f"stats/{name}/{what}": [s[what] for s in stats] for what in stats[0]}
    return rows


def _column_names(stream: str, labels: Sequence[str], known: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Return the names of a feature's columns: those that it has in the dataset it comes from, or short labels."""
    return known[stream] if stream in known else [label.rpartition("/")[2] for label in labels]


def _arrow(arrow: Any, values: Array) -> Any:
    if values.ndim == 1:
        return arrow.array(values)
    flat = arrow.array(np.ascontiguousarray(values).reshape(-1))
    return arrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
