"""`ridgeline.bulk.resample`: recordings of any number → frames on one clock, one part for each few recordings.

A row is a frame: episode_index, frame_index, timestamp (seconds), task, and a list of float32 for each stream. A
LeRobot target is written from the parts at the end.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
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
from ridgeline.bulk.parts import Outcome, Task, find_place, write_part
from ridgeline.bulk.progress import Meter
from ridgeline.bulk.rows import Reject
from ridgeline.bulk.sources import HIDDEN, SourceFile, Span, require_arrow
from ridgeline.bulk.storage import Storage, is_url, list_sources, make_absolute, open_storage
from ridgeline.bulk.target import Part, Target, refuse_second_driver
from ridgeline.errors import InputError, RidgelineError, unknown

FORMATS = ("parquet", "lerobot")
CHUNK_EPISODES = 16
INDEX = ("episode_index", "frame_index", "timestamp", "task")
PARTS = f"{HIDDEN}/parts/"

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
    folder: str
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
        import pyarrow as arrow

        started = time.perf_counter()
        tables, rejects = [], list(task.skip)
        skipped = {(reject.source, reject.row) for reject in task.skip}
        for span in task.spans:
            recording = self._factory.recordings[span.file]
            numbers = range(recording.episodes)
            low, high = task.probe or (0, len(numbers))
            for number in list(numbers)[low:high]:
                if (recording.url, recording.first + number) in skipped:
                    continue
                try:
                    tables.append(self._make_table(recording, number))
                except RidgelineError as error:
                    rejects.append(Reject(recording.url, recording.first + number, str(error)))
        computed = time.perf_counter()
        if task.probe is not None:
            return Outcome()
        rows = arrow.concat_tables(tables, promote_options="default") if tables else arrow.table({})
        part = write_part(self._storage, task, self._factory.folder, rows, rejects, len(tables))
        ended = time.perf_counter()
        seconds = {"compute": computed - started, "write": ended - computed}
        return Outcome(part, None, seconds, tuple(rejects[:3]), find_place(self._device))

    def _make_table(self, recording: Recording, number: int) -> Any:
        """Return the frames of one episode."""
        from ridgeline.trajectory import Stream, align
        from ridgeline.trajectory.readers import group_episodes, match_streams, read, read_rlds_episode

        settings = self._factory.settings
        options = settings.read_options()
        with _fetch(recording.url) as path:
            if recording.portion is not None:
                streams: Sequence[Stream] = read_rlds_episode(path, recording.portion, number, settings.topics, options)
            else:
                groups = list(group_episodes(read(path, settings.topics, options)).values())
                streams = groups[number]
        for word in settings.exclude:
            excluded = match_streams(streams, word)
            streams = [stream for stream in streams if stream.name not in excluded]
        kinds = {name: kind for word, kind in settings.kinds.items() for name in match_streams(streams, word)}
        streams = [
            Stream(s.name, s.times, s.values, kinds.get(s.name, s.kind), s.unit, s.columns, s.episode, s.info)
            for s in streams
        ]
        aligned = align(
            streams,
            hz=settings.hz,
            tolerance=settings.tolerance,
            span=settings.span,
            max_gap=settings.max_gap,
            sort=settings.sort,
            device=self._device,
        )
        return _make_rows(aligned, recording.first + number, settings.hz)


def _make_rows(aligned: Any, episode: int, hz: float) -> Any:
    import pyarrow as arrow

    count = len(aligned.times)
    tasks = aligned.info.tasks
    starts = np.array([start for start, _ in tasks], aligned.times.dtype)
    texts = (
        [tasks[i][1] for i in (np.searchsorted(starts, aligned.times, "right").clip(1) - 1)] if tasks else [""] * count
    )
    columns: dict[str, Any] = {
        "episode_index": arrow.array(np.full(count, episode, np.int64)),
        "frame_index": arrow.array(np.arange(count, dtype=np.int64)),
        "timestamp": arrow.array(np.arange(count) / hz),
        "task": arrow.array(texts, arrow.string()),
    }
    for name, values in aligned.columns.items():
        known = aligned.valid(name)
        flat = np.where(known, values, np.nan).astype(np.float32).reshape(count, -1)
        column = arrow.FixedSizeListArray.from_arrays(arrow.array(flat.reshape(-1)), flat.shape[1])
        columns[name] = column
    rows = arrow.table(columns)
    labels = {name: list(aligned.labels[name]) for name in aligned.columns}
    return rows.replace_schema_metadata({"ridgeline": json.dumps({"hz": hz, "columns": labels})})


@contextmanager
def _fetch(url: str) -> Iterator[Path]:
    """Yield a recording as a local path; a remote one is copied for as long as it is read."""
    if not is_url(url):
        yield Path(url)
        return
    storage = open_storage(url)
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        files = storage.list()
        target = Path(folder, url.rstrip("/").rpartition("/")[2])
        if files:
            for file in files:
                path = target / file.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(storage.read(file.name) or b"")
        else:
            with storage.open() as stream:
                target.write_bytes(stream.read())
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
    format          "parquet" or "lerobot" (a LeRobot v3 dataset, assembled in memory at the end)
    chunk_episodes  episodes of a chunk
    the other options are those of `ridgeline resample` and of `ridgeline.bulk.embed`

    A recording that cannot be read goes to the rejects. The same call again resumes a job that was stopped.
    """
    from ridgeline.trajectory import SPANS, ConversionSettings

    call = {**locals()}
    for name in ("report", "SPANS", "ConversionSettings"):
        del call[name]
    call["sources"], call["out"] = list_sources(sources), make_absolute(out)
    call["topics"], call["exclude"], call["kinds"] = list(topics), list(exclude), dict(kinds or {})
    started = time.monotonic()
    if format not in FORMATS:
        raise unknown("format of a target", format, FORMATS)
    if chunk_episodes < 1:
        raise InputError(f"--chunk-episodes is {chunk_episodes}; give 1 or more.")
    if span not in SPANS:
        raise unknown("span", span, SPANS)
    if not hz > 0:
        raise InputError(f"--hz {hz} is no rate; give a number above 0.")
    execution = Execution(engine, address, workers, chunk_timeout, max_rejects, device, price, report)
    execution.check()
    require_arrow()
    refuse_second_driver(call["out"])
    conversion = ConversionSettings(
        hz,
        dict(kinds or {}),
        tuple(topics),
        max_gap,
        tolerance,
        {},
        span,
        sort,
        fps,
        exclude=tuple(exclude),
    )
    recordings, files = _find_recordings(call["sources"], chunk_episodes, conversion)
    spans = [(Span(number, r.first, r.episodes),) for number, r in enumerate(recordings)]
    settings = add_code_version(
        {"kind": "resample", "format": format, "chunk_episodes": chunk_episodes, "conversion": asdict(conversion)}
    )
    settings = json.loads(json.dumps(settings))
    with Target(call["out"]) as target:
        chunks = make_chunks(files, _merge_spans(spans, chunk_episodes), settings)
        state = check_job(target, settings, chunks, incremental=False)
        job = state.job if state else begin_job(target, "resample", settings, chunks, call, 1)
        done = state.parts if state else {}
        rows_done = sum(part.rows for part in done.values())
        totals = Totals(Meter(rows_done, rows_done, 0))
        if state is not None and state.complete:
            target.remove_unlisted(done, keep_parts=format != "lerobot")
        if state is None or not state.complete:
            target.restore()
            factory = ResampleFactory(recordings, target.url, PARTS if format == "lerobot" else "", conversion)
            counts = {chunk.number: chunk.rows for chunk in chunks}
            tasks = [Task(chunk.number, chunk.spans, chunk.key) for chunk in chunks if chunk.number not in done]
            locate = partial(_locate, recordings)
            totals = run_chunks(target, factory, execution, tasks, done, sum(counts.values()), counts, locate)
            _publish(target, format, done, totals, recordings, conversion.hz)
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
            "chunks": len(chunks),
            "seconds": time.monotonic() - started,
            "stage_seconds": totals.seconds,
            "busy_seconds": totals.busy,
        }
        if totals.meter.rows:
            finish_job(target, job, answer, totals)
        return answer


def _publish(
    target: Target, form: str, done: Mapping[int, Part], totals: Totals, recordings: Sequence[Recording], hz: float
) -> None:
    names = [done[number].name for number in sorted(done)]
    parts = [name for name in names if name is not None]
    if not parts:
        raise InputError(f"no episode could be read; '{target.url}/rejects' has the {totals.rejects} reasons.")
    if form == "lerobot":
        _write_lerobot(target.storage, parts, hz)
    summary = {
        "rows": sum(part.rows for part in done.values()),
        "rejects": totals.rejects,
        "seconds": totals.seconds,
        "busy": totals.busy,
    }
    target.finish(done, summary, keep_parts=form != "lerobot")


def _write_lerobot(storage: Storage, parts: Sequence[str], hz: float) -> None:
    """Write the frames of all parts as a LeRobot v3 dataset beside the folder of the job."""
    import pyarrow.parquet as parquet

    from ridgeline.trajectory import Aligned, EpisodeInfo
    from ridgeline.trajectory.writers import write

    episodes = []
    for name in parts:
        with storage.open(name) as stream:
            rows = parquet.read_table(stream)
        labels = json.loads(rows.schema.metadata[b"ridgeline"])["columns"]
        indexes = np.asarray(rows["episode_index"])
        for episode in np.unique(indexes):
            part = rows.filter(_to_arrow(indexes == episode))
            times = np.asarray(part["timestamp"])
            columns, masks, texts = {}, {}, part["task"].to_pylist()
            for stream_name in part.column_names:
                if stream_name in INDEX or stream_name not in labels or part[stream_name].null_count == len(part):
                    continue
                lists = part[stream_name].combine_chunks()
                values = lists.flatten().to_numpy(zero_copy_only=False).reshape(len(part), -1)
                columns[stream_name] = values[:, 0] if len(labels[stream_name]) == 1 else values
                masks[stream_name] = np.isfinite(values).all(axis=1)
            changes = [0, *(i for i in range(1, len(texts)) if texts[i] != texts[i - 1])]
            info = EpisodeInfo(tuple((float(times[i]), texts[i]) for i in changes)) if any(texts) else EpisodeInfo()
            known = {key: tuple(labels[key]) for key in columns}
            episodes.append(Aligned(times, columns, masks, known, hz=hz, info=info))
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        write(Path(folder, "dataset"), episodes, "lerobot")
        for file in sorted(Path(folder, "dataset").rglob("*")):
            if file.is_file() and not file.name.startswith("."):
                storage.write(str(file.relative_to(Path(folder, "dataset"))), file.read_bytes())


def _to_arrow(mask: Any) -> Any:
    import pyarrow as arrow

    return arrow.array(mask)


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
    return tuple(recordings), tuple(files)


ONE_EPISODE = ("ulog", "mcap", "rosbag", "tum")  # formats with one episode for each file


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
    storage = open_storage(source)
    if storage.local is None:
        files = storage.list()
        if not files:
            state = storage.state()
            if state is None:
                raise InputError(f"'{source}' is empty or not there; check the name.")
            yield source, state.size, state.version
            return
        names = {file.name for file in files}
        if "features.json" in names or "meta/info.json" in names:
            yield source, sum(file.size for file in files), max(file.version for file in files)
            return
        for file in files:
            if file.name.lower().endswith(suffixes):
                yield storage.label(file.name), file.size, file.version
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
