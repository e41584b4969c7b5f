"""The target `lerobot` of `ridgeline.bulk.resample`: a LeRobot v3 dataset, written group by group from parts.

A worker keeps the frames of its episodes as NPZ and each camera as a file beside it. The driver joins parts into files
of the dataset, some at a time, so its memory and disk do not depend on the number of episodes. meta/info.json appears
last: until then no reader sees a dataset. If the driver dies, the last step starts again and writes the same files.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.bulk.parts import HASH_DIGITS, Task, write_rejects
from ridgeline.bulk.rows import Reject
from ridgeline.bulk.sources import HIDDEN
from ridgeline.bulk.storage import Storage
from ridgeline.bulk.target import Part

if TYPE_CHECKING:
    from ridgeline.trajectory import Aligned, EpisodeMedia
    from ridgeline.trajectory.writers import Contents

PARTS = f"{HIDDEN}/parts"
BUILDING = f"{HIDDEN}/building"  # emptied when the job ends
INFO = "meta/info.json"
GROUP_BYTES = 50_000_000  # of numbers that the driver holds at once
VIDEO_BYTES = 200_000_000  # of one camera in a group
THREADS = 16  # that read the heads of parts


@dataclass(frozen=True)
class Episode:
    """One episode as a worker made it."""

    source: str
    number: int  # in the job
    aligned: Aligned
    media: EpisodeMedia | None  # its cameras; None without any
    lost: Mapping[str, int]  # topic → frames that cannot be decoded


@dataclass(frozen=True)
class _Head:
    """What a part says about its episodes, without their frames."""

    name: str
    bytes: int
    sources: list[str]
    contents: Contents
    media: list[dict[str, Any]]  # of each episode: its cameras and their calibration
    video_bytes: Counter[str]  # by feature
    lost: Counter[str]  # by topic


def write_episodes(storage: Storage, task: Task, episodes: Sequence[Episode], rejects: Sequence[Reject]) -> Part:
    """Write the frames, the cameras and the rejects of a chunk."""
    from ridgeline.trajectory.writers import describe_contents, merge_contents, save_episodes

    reject_file = write_rejects(storage, task, rejects)
    if not episodes:
        return Part(task.chunk, None, 0, 0, "", len(rejects), reject_file, 0, task.key)
    places = [f"'{episode.source}'" for episode in episodes]
    each = [describe_contents([e.aligned], [e.media] if e.media else []) for e in episodes]
    contents = merge_contents(each, places)
    head = {
        "sources": [episode.source for episode in episodes],
        "contents": _encode_contents(contents),
        "media": [_write_media(storage, episode.media) for episode in episodes],
        "lost": dict(sum((Counter(episode.lost) for episode in episodes), Counter())),
    }
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        path = Path(folder, "part.npz")
        save_episodes(path, [episode.aligned for episode in episodes], head)
        data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    name = f"{PARTS}/part-{task.chunk:06}-{digest[:HASH_DIGITS]}.npz"
    storage.write(name, data)
    rows = sum(len(episode.aligned.times) for episode in episodes)
    return Part(task.chunk, name, rows, len(data), digest, len(rejects), reject_file, len(episodes), task.key)


def write_dataset(storage: Storage, parts: Sequence[Part]) -> dict[str, int]:
    """Write the dataset of all parts; return the frames that cannot be decoded, by topic."""
    from ridgeline.trajectory.writers import DatasetWriter, merge_contents

    with ThreadPoolExecutor(THREADS) as threads:
        heads = list(threads.map(lambda part: _read_head(storage, part), parts))
    contents = merge_contents([head.contents for head in heads], [f"'{head.sources[0]}'" for head in heads])
    writer = DatasetWriter(contents)
    with _open_workspace(storage) as folder:
        root, fetched = folder / "dataset", folder / "parts"
        for group in _group(heads):
            episodes, media = _load(storage, group, fetched)
            writer.add(root, episodes, media)
            _move_files(storage, root)
            for file in fetched.glob("*"):
                file.unlink()
        writer.finish(root)
        _move_files(storage, root)
    return dict(sum((head.lost for head in heads), Counter()))


def _encode_contents(contents: Contents) -> dict[str, Any]:
    features = {stream: asdict(feature) for stream, feature in contents.features.items()}
    return {"rate": contents.rate, "features": features, "cameras": contents.cameras, "robots": sorted(contents.robots)}


def _decode_contents(stored: Mapping[str, Any]) -> Contents:
    from ridgeline.trajectory.writers import Contents, Feature

    features = {}
    for stream, values in stored["features"].items():
        names = None if values["names"] is None else tuple(values["names"])
        features[stream] = Feature(**{**values, "labels": tuple(values["labels"]), "names": names})
    return Contents(stored["rate"], features, stored["cameras"], frozenset(stored["robots"]))


def _write_media(storage: Storage, media: EpisodeMedia | None) -> dict[str, Any]:
    """Write the cameras of an episode beside the parts, named by their bytes."""
    if media is None:
        return {}
    listed = []
    for camera in media.media:
        data = (media.folder / camera.file).read_bytes()
        digest = hashlib.sha256(data).hexdigest()[:HASH_DIGITS]
        name = f"media-{digest}{Path(camera.file).suffix}"
        storage.write(f"{PARTS}/{name}", data)
        listed.append({**asdict(replace(camera, file=name)), "bytes": len(data)})
    return {"cameras": listed, "calibration": media.calibration}


def _read_head(storage: Storage, part: Part) -> _Head:
    import numpy as np

    name = part.name or ""  # parts without a name were left out
    with storage.open(name) as stream, np.load(stream) as file:
        stored = json.loads(str(file["ridgeline"]))["meta"]
    video_bytes: Counter[str] = Counter()
    for media in stored["media"]:
        for camera in media.get("cameras", ()):
            video_bytes[camera["feature"]] += camera["bytes"]
    contents = _decode_contents(stored["contents"])
    return _Head(name, part.bytes, stored["sources"], contents, stored["media"], video_bytes, Counter(stored["lost"]))


def _group(heads: Sequence[_Head]) -> Iterator[list[_Head]]:
    """Yield parts together up to the size of a group; a part is never split."""
    group: list[_Head] = []
    size, videos = 0, Counter[str]()
    for head in heads:
        after = videos + head.video_bytes
        if group and (size + head.bytes > GROUP_BYTES or max(after.values(), default=0) > VIDEO_BYTES):
            yield group
            group, size, after = [], 0, head.video_bytes
        group.append(head)
        size, videos = size + head.bytes, after
    if group:
        yield group


def _load(storage: Storage, group: Sequence[_Head], folder: Path) -> tuple[list[Aligned], list[EpisodeMedia]]:
    """Return the episodes of some parts; files of cameras in an object store are copied to `folder`."""
    from ridgeline.trajectory import EpisodeMedia, Media
    from ridgeline.trajectory.writers import load_episodes

    episodes: list[Aligned] = []
    media: list[EpisodeMedia] = []
    folder.mkdir(parents=True, exist_ok=True)
    for head in group:
        if storage.local is not None:
            episodes += load_episodes(storage.local / head.name)
        else:
            path = folder / "part.npz"
            path.write_bytes(storage.read(head.name) or b"")
            episodes += load_episodes(path)
        for stored in head.media:
            if not stored:
                continue
            cameras = [Media(**{k: v for k, v in camera.items() if k != "bytes"}) for camera in stored["cameras"]]
            place = storage.local / PARTS if storage.local is not None else folder
            if storage.local is None:
                for camera in cameras:
                    (folder / camera.file).write_bytes(storage.read(f"{PARTS}/{camera.file}") or b"")
            media.append(EpisodeMedia(place, cameras, stored["calibration"]))
    return episodes, media


@contextmanager
def _open_workspace(storage: Storage) -> Iterator[Path]:
    """Yield an empty folder, on the disk of the target if that is on this machine."""
    parent = None
    if storage.local is not None:
        parent = storage.local / BUILDING
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ridgeline-", dir=parent) as folder:
        yield Path(folder)


def _move_files(storage: Storage, root: Path) -> None:
    """Bring written files to the target; meta/info.json comes last."""
    names = [str(file.relative_to(root)) for file in sorted(root.rglob("*")) if file.is_file()]
    for name in sorted(names, key=lambda name: (name == INFO, name)):
        storage.upload(name, root / name)
        os.unlink(root / name)
