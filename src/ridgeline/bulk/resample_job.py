"""`ridgeline.bulk.resample`: recordings of any number → frames on one clock, one part for each few recordings.

A row is a frame: episode_index, frame_index, timestamp (seconds), task, and a list of float32 for each stream. The
parts of a LeRobot target are joined at the end; see `lerobot_target`.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ridgeline.bulk.job import (
    Execution,
    Report,
    Totals,
    add_code_version,
    begin_job,
    check_job,
    finish_job,
    make_chunks,
    run_chunks,
)
from ridgeline.bulk.lerobot_target import Episode, write_dataset, write_episodes
from ridgeline.bulk.parts import Outcome, Task, find_place, write_part
from ridgeline.bulk.progress import Meter
from ridgeline.bulk.rows import Reject
from ridgeline.bulk.sources import (
    SourceFile,
    Span,
    is_pattern,
    matches_pattern,
    open_fixed_part,
    refuse_nested,
    require_arrow,
)
from ridgeline.bulk.storage import FileState, Storage, is_url, list_sources, make_absolute, open_storage
from ridgeline.bulk.target import Part, Target, read_summary, refuse_second_driver
from ridgeline.errors import InputError, RidgelineError, StoreError, unknown

FORMATS = ("parquet", "lerobot")
CHUNK_EPISODES = 16
INDEX = ("episode_index", "frame_index", "timestamp", "task")
THREADS = 16  # that read the columns of parts
COPY_BYTES = 4 << 20
RLDS_FILES = ("features.json", "dataset_info.json")
FOLDER_MARKS = ("features.json", "meta/info.json", "metadata.yaml")  # of RLDS, LeRobot, and bags of ROS 2
ONE_EPISODE = ("ulog", "mcap", "rosbag", "tum")  # formats with one episode for each file

Source = str | os.PathLike[str]


@dataclass(frozen=True)
class Recording:
    """One recording of a source: a file, a folder of RLDS or LeRobot, or some records of an RLDS shard."""

    url: str
    first: int  # its first episode in the target
    episodes: int
    portion: Any = None  # of an RLDS folder


@dataclass(frozen=True)
class ResampleFactory:
    """Makes the worker of a device; it is sent to each worker once."""

    recordings: tuple[Recording, ...]
    target: str
    format: str
    settings: Any  # trajectory.ConversionSettings

    def __call__(self, device: str) -> Callable[[Task], Outcome]:
        return ResampleWorker(self, device)


class ResampleWorker:
    """Reads recordings, brings their streams onto the clock, writes the part."""

    def __init__(self, factory: ResampleFactory, device: str) -> None:
        self._factory, self._device, self._storage = factory, device, open_storage(factory.target)

    def __call__(self, task: Task) -> Outcome:
        try:
            return self._run(task)
        except RidgelineError as error:
            return Outcome(error=str(error))

    def close(self) -> None:
        """Nothing is open between chunks."""

    def _run(self, task: Task) -> Outcome:
        started = time.perf_counter()
        rejects = list(task.skip)
        skipped = {(reject.source, reject.row) for reject in task.skip}
        low, high = task.probe or (0, sum(span.rows for span in task.spans))
        episodes: list[Episode] = []
        position = 0  # of the recording's first episode in the chunk
        with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
            for span in task.spans:
                recording = self._factory.recordings[span.file]
                inside = range(max(low - position, 0), min(high - position, recording.episodes))
                position += recording.episodes
                numbers = [n for n in inside if (recording.url, recording.first + n) not in skipped]
                for number, result in self._read(recording, numbers, Path(folder)):
                    if isinstance(result, Episode):
                        episodes.append(result)
                    else:
                        rejects.append(Reject(recording.url, recording.first + number, result))
            computed = time.perf_counter()
            if task.probe is not None:
                return Outcome()
            part = self._write(task, episodes, rejects)
        ended = time.perf_counter()
        seconds = {"compute": computed - started, "write": ended - computed}
        return Outcome(part, None, seconds, tuple(rejects[:3]), find_place(self._device))

    def _read(self, recording: Recording, numbers: Sequence[int], folder: Path) -> Iterator[tuple[int, Episode | str]]:
        """Yield the episodes of a recording, which is read once, or why one is a reject."""
        from ridgeline.trajectory import ReadRecording

        if not numbers:
            return
        settings = self._factory.settings
        only = None if recording.portion is None else (*RLDS_FILES, recording.portion.shard)
        with _fetch(recording.url, only) as path:
            read = None
            for number in numbers:
                try:
                    if recording.portion is not None:
                        yield (
                            number,
                            self._make_episode(
                                recording,
                                ReadRecording(path, settings, None, recording.portion, number),
                                number,
                                0,
                                folder,
                            ),
                        )
                        continue
                    read = read or ReadRecording(path, settings)
                    if len(read) != recording.episodes:
                        raise InputError(
                            f"'{recording.url}' has {len(read)} episodes now, and {recording.episodes} when the job "
                            "started; start anew with another target."
                        )
                    yield number, self._make_episode(recording, read, number, number, folder)
                except StoreError:
                    raise
                except RidgelineError as error:
                    yield number, str(error)

    def _make_episode(self, recording: Recording, read: Any, number: int, index: int, folder: Path) -> Episode:
        """Align one episode and write its cameras below `folder`."""
        from ridgeline.trajectory import EpisodeMedia, add_valid, write_media

        settings = self._factory.settings
        mapped = read.map(index, self._device)
        episode = recording.first + number
        if not mapped.requests:
            return Episode(recording.url, episode, mapped.aligned, None, {})
        place = folder / str(episode)
        place.mkdir()
        [written] = write_media(
            [mapped.requests], place, settings.hz, settings.video, choose_codec=settings.chooses_codec
        )
        media = EpisodeMedia(place, written.media, mapped.calibration)
        return Episode(recording.url, episode, add_valid(mapped.aligned, written.valid), media, written.lost)

    def _write(self, task: Task, episodes: Sequence[Episode], rejects: Sequence[Reject]) -> Part:
        import pyarrow as arrow

        if self._factory.format == "lerobot":
            return write_episodes(self._storage, task, episodes, rejects)
        tables = [_make_rows(e.aligned, e.number, self._factory.settings.hz) for e in episodes]
        rows = merge_tables(tables, [f"'{e.source}'" for e in episodes]) if tables else arrow.table({})
        return write_part(self._storage, task, "", rows, rejects, len(tables))


def _make_rows(aligned: Any, episode: int, hz: float) -> Any:
    import pyarrow as arrow

    from ridgeline.trajectory.writers import frame_tasks

    count = len(aligned.times)
    columns: dict[str, Any] = {
        "episode_index": arrow.array(np.full(count, episode, np.int64)),
        "frame_index": arrow.array(np.arange(count, dtype=np.int64)),
        "timestamp": arrow.array(np.arange(count) / hz),
        "task": arrow.array(frame_tasks(aligned) if aligned.info.tasks else [""] * count, arrow.string()),
    }
    labels = {}
    for name, values in aligned.columns.items():
        column = f"data/{name}" if name in INDEX else name
        flat = np.where(aligned.valid(name), values, np.nan).astype(np.float32).reshape(count, -1)
        columns[column] = arrow.FixedSizeListArray.from_arrays(arrow.array(flat.reshape(-1)), flat.shape[1])
        labels[column] = list(aligned.labels[name])
    return arrow.table(columns).replace_schema_metadata({"ridgeline": json.dumps({"hz": hz, "columns": labels})})


def merge_tables(tables: Sequence[Any], places: Sequence[str]) -> Any:
    """Return the rows of all episodes with the columns of all; one that an episode lacks is null there."""
    import pyarrow as arrow

    schema = merge_schemas([table.schema for table in tables], places)
    rows = arrow.concat_tables(tables, promote_options="default")
    return rows.select(schema.names).replace_schema_metadata(schema.metadata)


def merge_schemas(schemas: Sequence[Any], places: Sequence[str]) -> Any:
    """Return the columns of all; raise InputError if two differ in a column."""
    import pyarrow as arrow

    fields: dict[str, tuple[str, Any]] = {}
    labels: dict[str, tuple[str, list[str]]] = {}
    head: dict[str, Any] = {}
    for schema, place in zip(schemas, places, strict=True):
        head = head or json.loads(schema.metadata[b"ridgeline"])
        for name, names in json.loads(schema.metadata[b"ridgeline"])["columns"].items():
            known_place, known = labels.setdefault(name, (place, names))
            if known != names:
                raise InputError(
                    f"'{name}' has the columns {', '.join(known)} in {known_place} and {', '.join(names)} in {place}; "
                    f"leave it out with --exclude '{name}'."
                )
        for field in schema:
            fields.setdefault(field.name, (place, field))
    metadata = json.dumps({**head, "columns": {name: known for name, (_, known) in labels.items()}})
    return arrow.schema([field for _, field in fields.values()], {"ridgeline": metadata})


@contextmanager
def _fetch(url: str, only: Sequence[str] | None = None) -> Iterator[Path]:
    """Yield a recording as a local path; a remote one (of a folder: the files `only`) is copied while it is read."""
    if not is_url(url):
        yield Path(url)
        return
    storage = open_storage(url)
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        names = list(only) if only is not None else [file.name for file in storage.list()]
        target = Path(folder, url.rstrip("/").rpartition("/")[2])
        for name in names:
            data = storage.read(name)
            if data is not None:
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        if not names:
            with storage.open() as stream, target.open("wb") as file:
                shutil.copyfileobj(stream, file, COPY_BYTES)
        yield target


def resample(
    sources: Source | Sequence[Source],
    out: Source,
    *,
    hz: float,
    fps: float | None = None,
    format: str = "parquet",
    topics: Sequence[str] = (),
    exclude: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    cameras: Mapping[str, str] | None = None,
    state: Sequence[str] = (),
    action: Sequence[str] = (),
    task: str | None = None,
    rename: Mapping[str, str] | None = None,
    shifts: Mapping[str, float] | None = None,
    fill: str | None = None,
    stamps: str = "auto",
    codec: str | None = None,
    crf: int | None = None,
    gop: int | None = None,
    max_gap: float | None = None,
    tolerance: float | None = None,
    span: Any = "auto",
    sort: bool = False,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    chunk_episodes: int = CHUNK_EPISODES,
    chunk_timeout: float | None = None,
    max_rejects: int | None = None,
    device: str = "cpu",
    price: str | None = None,
    report: Report = lambda _: None,
) -> dict[str, Any]:
    """Resample recordings onto one clock of `hz`; a row of the target is a frame.

    sources         recordings of every format of `ridgeline resample`, RLDS folders, folders of these, URLs
    fps             the rate of recordings without stamps (RLDS)
    format          "parquet" or "lerobot" (a LeRobot v3 dataset)
    cameras         {name: topic}: the images of a topic become the video observation.images.NAME (lerobot only)
    chunk_episodes  episodes of a chunk
    the other options are those of `ridgeline resample` and of `ridgeline.bulk.embed`

    A recording that cannot be read goes to the rejects. The same call again resumes a job that was stopped.
    """
    from ridgeline.trajectory import GOP, SPANS, ConversionSettings, check_camera_names, parse_fill

    call = {**locals()}
    for name in ("report", "SPANS", "ConversionSettings", "check_camera_names", "parse_fill", "GOP"):
        del call[name]
    call["sources"], call["out"] = list_sources(sources), make_absolute(out)
    for name in ("topics", "exclude", "state", "action"):
        call[name] = list(call[name])
    for name in ("kinds", "cameras", "rename", "shifts"):
        call[name] = dict(call[name] or {})
    started = time.monotonic()
    if format not in FORMATS:
        raise unknown("format of a target", format, FORMATS)
    if chunk_episodes < 1:
        raise InputError(f"--chunk-episodes is {chunk_episodes}; give 1 or more.")
    if span not in SPANS:
        raise unknown("span", span, SPANS)
    if not hz > 0:
        raise InputError(f"--hz {hz} is no rate; give a number above 0.")
    execution = Execution(engine, address, workers, chunk_timeout, max_rejects, device, price, report).check()
    require_arrow()
    refuse_second_driver(call["out"])
    conversion = ConversionSettings(
        hz,
        kinds=call["kinds"],
        topics=tuple(topics),
        max_gap=max_gap,
        tolerance=tolerance,
        shifts=call["shifts"],
        span=span,
        sort=sort,
        fps=fps,
        stamps=stamps,
        exclude=tuple(exclude),
        rename=call["rename"],
        cameras=call["cameras"],
        state=tuple(state),
        action=tuple(action),
        task=task,
        fill=parse_fill(fill),
        codec=codec,
        crf=crf,
        gop=GOP if gop is None else gop,
    )
    conversion.read_options()  # raises for wrong options before a file is read
    conversion.video  # noqa: B018 (likewise)
    check_camera_names(conversion.cameras)
    if conversion.cameras and format != "lerobot":
        raise InputError(f"--camera writes videos, which {format} does not hold; give --format lerobot.")
    recordings, files = _find_recordings(call["sources"], chunk_episodes, conversion)
    for source in (*call["sources"], *(recording.url for recording in recordings)):
        refuse_nested(source, call["out"])
    spans = [(Span(number, r.first, r.episodes),) for number, r in enumerate(recordings)]
    settings = add_code_version(
        {"kind": "resample", "format": format, "chunk_episodes": chunk_episodes, "conversion": asdict(conversion)}
    )
    settings = json.loads(json.dumps(settings))
    with Target(call["out"]) as target:
        chunks = make_chunks(files, _merge_spans(spans, chunk_episodes), settings)
        former = check_job(target, settings, chunks, call, incremental=False)
        job = former.job if former else begin_job(target, "resample", settings, chunks, call, 1)
        done = former.parts if former else {}
        rows_done = sum(part.rows for part in done.values())
        totals = Totals(Meter(rows_done, rows_done, 0))
        lost: dict[str, int] = {}
        if former is not None and former.complete:
            lost = read_summary(target.storage).get("lost_frames", {})
            target.remove_unlisted(done, keep_parts=format != "lerobot")
        if former is None or not former.complete:
            target.restore()
            factory = ResampleFactory(recordings, target.url, format, conversion)
            counts = {chunk.number: chunk.rows for chunk in chunks}
            tasks = [Task(chunk.number, chunk.spans, chunk.key) for chunk in chunks if chunk.number not in done]
            locate = partial(_locate, recordings)
            totals = run_chunks(target, factory, execution, tasks, done, sum(counts.values()), counts, locate)
            lost = _publish(target, format, done, totals)
        rejects = sum(part.rejects for part in done.values())
        episodes = sum(recording.episodes for recording in recordings)
        answer = {
            "job": job["id"],
            "target": target.url,
            "rows": sum(part.rows for part in done.values()),
            "episodes": episodes - rejects,
            "computed": totals.computed,
            "reused": episodes - rejects - totals.computed,
            "removed": 0,
            "rejects": rejects,
            "lost_frames": lost,
            "chunks": len(chunks),
            "seconds": time.monotonic() - started,
            "stage_seconds": totals.seconds,
            "busy_seconds": totals.busy,
        }
        if totals.meter.rows:
            finish_job(target, job, answer, totals)
        return answer


def _publish(target: Target, form: str, done: Mapping[int, Part], totals: Totals) -> dict[str, int]:
    """Make the target whole; return the frames that cannot be decoded, by topic."""
    parts = [done[number] for number in sorted(done) if done[number].name is not None]
    if not parts:
        raise InputError(f"no episode could be read; '{target.url}/rejects' has the {totals.rejects} reasons.")
    lost: dict[str, int] = {}
    if form == "lerobot":
        lost = write_dataset(target.storage, parts)
    else:
        done = _give_same_columns(target.storage, done)
    summary = {
        "rows": sum(part.rows for part in done.values()),
        "rejects": totals.rejects,
        "seconds": totals.seconds,
        "busy": totals.busy,
        "lost_frames": lost,
    }
    target.finish(done, summary, keep_parts=form != "lerobot")
    return lost


def _give_same_columns(storage: Storage, done: Mapping[int, Part]) -> dict[int, Part]:
    """Return the parts, those that lack a column of others written anew: readers take the columns of one part."""
    import pyarrow.parquet as parquet

    numbers = [number for number, part in sorted(done.items()) if part.name is not None]

    def read_schema(number: int) -> Any:
        with storage.open(done[number].name or "") as stream:
            return parquet.read_schema(stream)

    with ThreadPoolExecutor(THREADS) as threads:
        schemas = list(threads.map(read_schema, numbers))
    schema = merge_schemas(schemas, [f"'{storage.label(done[number].name or '')}'" for number in numbers])
    out = dict(done)
    for number, part_schema in zip(numbers, schemas, strict=True):
        if part_schema.names == schema.names:
            continue
        part = done[number]
        with storage.open(part.name or "") as stream:
            rows = parquet.read_table(stream)
        empty = schema.empty_table().replace_schema_metadata(rows.schema.metadata)
        rows = merge_tables([rows, empty.replace_schema_metadata(schema.metadata)], ["", ""])
        new = write_part(storage, Task(number, (), part.key), "", rows, (), part.computed)
        out[number] = replace(new, rejects=part.rejects, reject_file=part.reject_file)
    return out


def _merge_spans(spans: Sequence[tuple[Span, ...]], episodes: int) -> Iterator[tuple[Span, ...]]:
    """Yield recordings together until they have `episodes` episodes."""
    group: list[Span] = []
    for (span,) in spans:
        if group and sum(s.rows for s in group) + span.rows > episodes:
            yield tuple(group)
            group = []
        group.append(span)
    if group:
        yield tuple(group)


def _locate(recordings: Sequence[Recording], task: Task, rows: list[int]) -> list[tuple[str, int]]:
    episodes = [(recordings[span.file].url, span.first + number) for span in task.spans for number in range(span.rows)]
    return [episodes[row] for row in rows]


def _find_recordings(
    sources: Sequence[str], chunk_episodes: int, settings: Any
) -> tuple[tuple[Recording, ...], tuple[SourceFile, ...]]:
    """Return the recordings of all sources with their episodes numbered, and the state of their files."""
    from ridgeline.trajectory.readers import detect_format, group_episodes, read, split_rlds

    recordings: list[Recording] = []
    files: list[SourceFile] = []
    first = 0
    for url, size, version in (item for source in sources for item in _walk(source)):
        name = url.rstrip("/").rpartition("/")[2]
        with _fetch(url) if is_url(url) else _stay(url) as path:
            kind = detect_format(path)
            if kind == "rlds":
                _check_fps(settings, url)
                for portion in split_rlds(path, chunk_episodes):
                    count = len(portion.records)
                    recordings.append(Recording(url, first, count, portion))
                    files.append(SourceFile(f"{url}/{portion.shard}", f"{name}/{portion.shard}", kind, size, version))
                    first += count
                continue
            count = 1
            if kind not in ONE_EPISODE:
                try:
                    count = len(group_episodes(read(path, settings.topics, settings.read_options())))
                except RidgelineError:
                    count = 1  # the worker rejects it
        recordings.append(Recording(url, first, count))
        files.append(SourceFile(url, name, kind, size, version))
        first += count
    if not recordings:
        raise InputError(f"there is no recording in '{sources[0]}'; check the name.")
    return tuple(recordings), tuple(files)


def _check_fps(settings: Any, url: str) -> None:
    """Raise InputError without the rate of recordings that have no stamps."""
    if not settings.fps:
        raise InputError(f"'{url}' is an RLDS folder, which has no time stamps; give the rate of its steps with --fps.")


@contextmanager
def _stay(url: str) -> Iterator[Path]:
    yield Path(url)


def _walk(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield (path or URL, size, version) of each recording of a source."""
    from ridgeline.trajectory.readers import FORMATS as READERS
    from ridgeline.trajectory.readers import detect_format

    suffixes = tuple(suffix for _, known in READERS.values() for suffix in known)
    if is_pattern(source):
        yield from _walk_pattern(source, suffixes)
        return
    storage = open_storage(source)
    if storage.local is None:
        files = storage.list()
        if not files:
            state = storage.state()
            if state is None:
                raise InputError(f"'{source}' is empty or not there; check the name.")
            yield source, state.size, state.version
            return
        for name, size, version in _group_objects(files, suffixes):
            yield storage.label(name), size, version
        return
    path = storage.local
    if not path.exists():
        raise InputError(f"there is no recording '{source}'; check the path.")
    if path.is_file() or _is_recording(path, detect_format):
        yield str(path), *_measure(path)
        return
    has_frames = False
    for child in sorted(path.iterdir()):
        is_file = child.is_file() and child.name.lower().endswith(suffixes)
        if not child.name.startswith((".", "_")) and (is_file or child.is_dir()):
            if is_file:
                yield str(child), *_measure(child)
                has_frames = True
            else:
                for item in _walk_quietly(str(child)):
                    has_frames = True
                    yield item
    if not has_frames:
        raise InputError(f"there is no recording in '{source}'; give files of {', '.join(sorted(suffixes))}.")


def _walk_pattern(pattern: str, suffixes: tuple[str, ...]) -> Iterator[tuple[str, int, str]]:
    """Yield the recordings that a glob matches: files, and those of folders."""
    walked: list[str] = []
    if not is_url(pattern):
        for path in sorted(match.rstrip("/") for match in glob.glob(pattern, recursive=True)):
            if path.startswith(tuple(f"{folder}/" for folder in walked)):
                continue  # "**" matches a folder and what is in it
            recordings = list(_walk_quietly(path))
            walked += [path] if recordings else []
            yield from recordings
    else:
        storage, within = open_fixed_part(pattern)
        for name, size, version in _group_objects(storage.list(), suffixes):
            parents = [str(parent) for parent in PurePosixPath(name).parents][:-1]
            if any(matches_pattern(place, within) for place in (name, *parents)):
                walked.append(name)
                yield storage.label(name), size, version
    if not walked:
        raise InputError(f"no recording matches '{pattern}'; check the pattern.")


def _group_objects(files: Sequence[FileState], suffixes: tuple[str, ...]) -> list[tuple[str, int, str]]:
    """Return (name, size, version) of each recording in an object store: a file, or a folder that its marker shows."""
    roots = {file.name[: -len(mark)].rstrip("/") for file in files for mark in FOLDER_MARKS if _has_name(file, mark)}
    groups: dict[str, list[FileState]] = {}
    for file in files:
        parents = [parent for parent in map(str, PurePosixPath(file.name).parents) if parent in roots]
        if "" in roots:
            groups.setdefault("", []).append(file)
        elif parents:
            groups.setdefault(parents[-1], []).append(file)
        elif file.name.lower().endswith(suffixes):
            groups[file.name] = [file]
    return [
        (name, sum(file.size for file in group), max(file.version for file in group)) for name, group in groups.items()
    ]


def _has_name(file: FileState, name: str) -> bool:
    """Whether a file has this name, in whatever folder."""
    return f"/{file.name}".endswith(f"/{name}")


def _walk_quietly(source: str) -> Iterator[tuple[str, int, str]]:
    try:
        yield from _walk(source)
    except InputError:
        return


def _is_recording(path: Path, detect: Callable[[Path], str]) -> bool:
    try:
        return bool(detect(path))
    except InputError:
        return False


def _measure(path: Path) -> tuple[int, str]:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    stats = [file.stat() for file in files]
    return sum(stat.st_size for stat in stats), str(max((stat.st_mtime_ns for stat in stats), default=0))
