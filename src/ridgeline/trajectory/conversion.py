"""Convert recordings to files on one clock: the work of `ridgeline resample`.

An output stores the key of its inputs and settings (name, size, time of change), so a second run skips it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, RidgelineError, StoreError
from ridgeline.store import ChunkSet, discard_dir, publish_dir
from ridgeline.trajectory import readers, writers
from ridgeline.trajectory.cameras import Camera
from ridgeline.trajectory.columns import check_kind, match_names
from ridgeline.trajectory.episodes import Bounds, drop_short, find_bounds, parse_cut, slice_streams
from ridgeline.trajectory.features import (
    Mapped,
    add_valid,
    align_with_cameras,
    check_camera_names,
    choose_cameras,
    fill_unknown,
    map_numbers,
    parse_fill,
)
from ridgeline.trajectory.media import EpisodeMedia, Written, load_media, save_media, write_media
from ridgeline.trajectory.readers import ReadOptions
from ridgeline.trajectory.readers.calibration import Calibration
from ridgeline.trajectory.readers.lerobot import INFO
from ridgeline.trajectory.stream import Aligned, Array, Span, Stream, join_names
from ridgeline.trajectory.videos import CODECS, COPY, GOP, VideoSettings
from ridgeline.trajectory.writers import lerobot, npz

Report = Callable[[str], None]
CALIBRATION = "calibration.json"  # what the recording says about its cameras
MEDIA = "media.json"  # describes the videos of a recording
CHUNK_KEY = "episodes by what they are made of"  # of the chunk folder beside an unfinished LeRobot dataset


@dataclass(frozen=True)
class ConversionSettings:
    """The settings of a conversion; every one changes the output."""

    hz: float
    kinds: Mapping[str, str] = field(default_factory=dict)
    topics: tuple[str, ...] = ()
    max_gap: float | None = None
    tolerance: float | None = None
    shifts: Mapping[str, float] = field(default_factory=dict)
    span: Span = "auto"
    sort: bool = False
    fps: float | None = None
    clock: str | None = None
    unit: str | None = None
    stamps: str = "auto"
    encoding: str | None = None
    delimiter: str | None = None
    comment: str | None = None
    exclude: tuple[str, ...] = ()  # names or patterns of streams to leave out
    rename: Mapping[str, str] = field(default_factory=dict)  # stream or topic -> its name in the output
    cameras: Mapping[str, str] = field(default_factory=dict)  # name of a camera's feature -> its topic
    state: tuple[str, ...] = ()  # streams that form observation.state
    action: tuple[str, ...] = ()  # streams that form action
    task: str | None = None
    fill: str | None = None  # of unknown numbers: nan (None), hold, or a number
    # of encoded frames; None: h264, and packets of any codec are copied if they fit; copy: JPEG images, too
    codec: str | None = None
    crf: int | None = None
    gop: int = GOP
    cuts: tuple[str, ...] = ()  # rules that cut a recording into episodes; see `episodes`

    @property
    def video(self) -> VideoSettings:
        codec = "h264" if self.codec in (None, COPY) else self.codec
        return VideoSettings(codec, self.crf, self.gop, copy_jpeg=self.codec == COPY)

    @property
    def chooses_codec(self) -> bool:
        """Whether packets of other codecs must be encoded again."""
        return self.codec not in (None, COPY)

    @property
    def words(self) -> tuple[str, ...]:
        """What to read of a recording; empty: everything."""
        mapped = (*self.state, *self.action)
        return (*self.topics, *mapped, *self.cameras.values(), *self.cut_topics) if self.topics or mapped else ()

    @property
    def cut_topics(self) -> tuple[str, ...]:
        return tuple(topic for text in self.cuts if (topic := parse_cut(text).topic))

    def read_options(self, report: Report = lambda _: None) -> ReadOptions:
        """Return how to read a recording; raise InputError for options that do not fit."""
        return ReadOptions(
            self.fps,
            self.clock,
            self.unit,
            report,
            self.stamps,
            encoding=self.encoding,
            delimiter=self.delimiter,
            comment=self.comment,
        )


@dataclass(frozen=True)
class ConversionResult:
    """The result of converting one recording."""

    input: Path
    output: Path
    rows: int = 0
    columns: int = 0
    episodes: int = 0
    skipped: bool = False  # the output was up to date
    error: str | None = None
    notes: tuple[str, ...] = ()
    lost: Mapping[str, int] = field(default_factory=dict)  # topic of a camera -> frames that cannot be decoded


def align_recording(
    path: Path, settings: ConversionSettings, device: str = "cpu", report_note: Report | None = None
) -> list[Aligned]:
    """Read a recording and align each of its episodes, without cameras."""
    return [episode.aligned for episode in map_recording(path, settings, device, report_note)]


def map_recording(
    path: Path, settings: ConversionSettings, device: str, report_note: Report | None = None
) -> list[Mapped]:
    """Read a recording, align each of its episodes, and choose the pictures of its cameras."""
    recording = ReadRecording(path, settings, report_note)
    return [recording.map(number, device) for number in range(len(recording))]


class ReadRecording:
    """A recording that is in memory without its pictures; an episode is aligned when it is asked for.

    With `portion` and `number`, it is one episode of an RLDS folder.
    """

    def __init__(
        self,
        path: Path,
        settings: ConversionSettings,
        report_note: Report | None = None,
        portion: readers.Portion | None = None,
        number: int = 0,
    ) -> None:
        self._settings, self._report = settings, report_note or (lambda _: None)
        marks: dict[str, Array] = {}
        self._calibration = Calibration() if settings.cameras else None
        options = replace(
            settings.read_options(self._report),
            marks=frozenset(settings.cut_topics),
            add_marks=marks.__setitem__,
            calibration=self._calibration,
        )
        with_cameras = bool(settings.cameras)
        cameras: list[Camera] = []
        if portion is None:
            read, cameras = readers.read_recording(path, settings.words, options, with_cameras=with_cameras)
        else:
            options = replace(options, add_camera=cameras.append if with_cameras else None)
            read = readers.read_rlds_episode(path, portion, number, settings.words, options)
        streams = rename_streams(exclude_streams(read, settings, path, self._report) if read else [], settings)
        names = [s.name for s in streams]
        self._known = [*names, *settings.cameras, *(c.name for c in cameras)]
        kinds = {n: check_kind(kind) for word, kind in settings.kinds.items() for n in match_names(self._known, word)}
        self._streams: list[Stream] = [replace(s, kind=kinds.get(s.name, s.kind)) for s in streams]
        self._cameras = cameras
        self._parts = _cut_episodes(self._streams, cameras, marks, settings, self._report)

    def __len__(self) -> int:
        return len(self._parts)

    def map(self, number: int, device: str) -> Mapped:
        """Align an episode, and choose the pictures of its cameras."""
        settings = self._settings
        label, bounds, members = self._parts[number]
        chosen = choose_cameras([c for c in self._cameras if c.episode == label], settings.cameras, self._streams)
        mapped = align_with_cameras(
            members,
            chosen,
            kinds=settings.kinds,
            shifts={w: v for w, v in settings.shifts.items() if match_names(self._known, w)},
            episode=number,
            options={
                "hz": settings.hz,
                "tolerance": settings.tolerance,
                "span": settings.span,
                "max_gap": settings.max_gap,
                "sort": settings.sort,
                "device": device,
            },
            bounds=bounds,
        )
        for warning in mapped.aligned.warnings:
            self._report(warning)
        aligned = map_numbers(mapped.aligned, settings.state, settings.action, settings.topics)
        aligned = fill_unknown(aligned, settings.fill)
        if settings.task is not None:
            start = aligned.times[0].item() if len(aligned.times) else 0.0
            aligned = replace(aligned, info=replace(aligned.info, tasks=((start, settings.task),)))
        features = {r.feature: r.camera.name for r in mapped.requests}
        description = {} if self._calibration is None else self._calibration.describe(features)
        return Mapped(aligned, mapped.requests, description)


def _cut_episodes(
    streams: Sequence[Stream],
    cameras: Sequence[Camera],
    marks: Mapping[str, Array],
    settings: ConversionSettings,
    report: Report,
) -> list[tuple[str, Bounds | None, Sequence[Stream]]]:
    """Return (label of the episode in the recording, its time if it is a part of that, streams) of each episode."""
    grouped = readers.group_episodes(streams)
    labels = list(dict.fromkeys((*grouped, *(c.episode for c in cameras))))
    cuts = [parse_cut(text) for text in settings.cuts]
    if not cuts:
        return [(label, None, grouped.get(label, [])) for label in labels]
    out: list[tuple[str, Bounds | None, Sequence[Stream]]] = []
    needed = (*settings.state, *settings.action)
    for label in labels:
        members = grouped.get(label, [])
        bounds = find_bounds(cuts, members, marks, needed)
        sliced = [(b, slice_streams(members, b, f"{label}.{i}" if label else str(i))) for i, b in enumerate(bounds)]
        out += [(label, b, part) for b, part in drop_short(sliced, needed, report)]
    if not out:
        raise InputError(f"--cut {' --cut '.join(settings.cuts)} leaves no episode; check the values of its streams.")
    return out


def exclude_streams(
    streams: Sequence[Stream], settings: ConversionSettings, path: Path, report: Report
) -> list[Stream]:
    """Return the streams that no word of `settings.exclude` matches."""
    excluded: set[str] = set()
    for word in settings.exclude:
        names = readers.match_streams(streams, word)
        excluded |= names
        if not names:
            report(f"--exclude '{word}' matches no stream of '{path}'.")
    rest = [s for s in streams if s.name not in excluded]
    if not rest:
        raise InputError(f"--exclude leaves no stream of '{path}'; exclude fewer.")
    return rest


def rename_streams(streams: Sequence[Stream], settings: ConversionSettings) -> list[Stream]:
    """Return the streams with the names of `settings.rename`; the name of a topic renames all its streams."""
    out = []
    for stream in streams:
        for old, new in settings.rename.items():
            if stream.name == old or stream.name.startswith(f"{old}/"):
                columns = tuple(new + c.removeprefix(old) if c.startswith(old) else c for c in stream.columns)
                stream = replace(stream, name=new + stream.name.removeprefix(old), columns=columns)
                break
        out.append(stream)
    return out


def convert(
    path: Path,
    out: Path,
    form: str,
    settings: ConversionSettings,
    *,
    force: bool = False,
    device: str = "cpu",
    advance: Callable[[float], None] = lambda _: None,
) -> ConversionResult:
    """Convert one recording to one file; after an error an existing file is unchanged."""
    _check_outputs([path], [out])
    if settings.cameras and form not in writers.WITH_IMAGES:
        raise InputError(
            f"--camera writes images, which {form} does not hold; give --format lerobot, "
            f"{' or '.join(writers.WITH_IMAGES)}."
        )
    check_camera_names(settings.cameras)
    parse_fill(settings.fill)
    key = build_key([path], settings)
    if not force and out.exists() and writers.read_meta(out, form) == key:
        return ConversionResult(path, out, skipped=True)
    notes: list[str] = []
    mapped = map_recording(path, settings, device, notes.append)
    _create_folder(out.parent)
    if not settings.cameras:
        episodes = [m.aligned for m in mapped]
        writers.write(out, episodes, form, key)
        return _summarize(path, out, episodes, notes)
    episodes, lost = _write_with_images(mapped, out, form, settings, key, notes, advance)
    return replace(_summarize(path, out, episodes, notes), lost=lost)


def _write_with_images(
    mapped: Sequence[Mapped],
    out: Path,
    form: str,
    settings: ConversionSettings,
    key: dict[str, Any],
    notes: list[str],
    advance: Callable[[float], None],
) -> tuple[list[Aligned], dict[str, int]]:
    """Write a file and its images: in the file itself, or in a folder beside it (Parquet)."""
    folder = out.with_suffix(".images")
    with publish_dir(folder) as tmp:
        requests = [m.requests for m in mapped]
        written = write_media(requests, tmp, settings.hz, settings.video, as_files=True, advance=advance)
        episodes = [add_valid(m.aligned, w.valid) for m, w in zip(mapped, written, strict=True)]
        if form == "mcap":
            writers.write(out, episodes, form, key, [EpisodeMedia(tmp, w.media) for w in written])
    try:
        if form == "parquet":
            writers.write(out, episodes, form, key, [EpisodeMedia(folder, w.media) for w in written])
    except BaseException:
        discard_dir(folder)
        raise
    if form == "mcap":
        discard_dir(folder)
    lost, lines = _count_lost(mapped, written)
    notes += lines
    return episodes, lost


def _count_lost(mapped: Sequence[Mapped], written: Sequence[Written]) -> tuple[dict[str, int], list[str]]:
    """Return the lost frames by topic, and notes about them."""
    lost: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for m, w in zip(mapped, written, strict=True):
        lost.update(w.lost)
        totals.update({r.camera.name: r.pictures for r in m.requests})
    reasons = {name: why for w in written for name, why in w.reasons.items()}
    notes = [note for w in written for note in w.notes]
    notes += [
        f"{name}: {count} of {totals[name]} frames cannot be decoded ({reasons[name]}); the frame before each "
        "is held, and marked as not valid."
        for name, count in lost.items()
    ]
    return dict(lost), notes


def convert_many(
    paths: Sequence[Path],
    out: Path,
    form: str,
    settings: ConversionSettings,
    *,
    force: bool = False,
    device: str = "cpu",
    append: bool = False,
    each: Callable[[ConversionResult], None] = lambda _: None,
    advance: Callable[[float], None] = lambda _: None,
) -> list[ConversionResult]:
    """Convert recordings to one file each in the folder `out`, or to one LeRobot dataset. Failures do not stop it.

    `append` adds to an existing LeRobot dataset. `advance` takes the share of a recording's cameras that is read.
    """
    if form == "lerobot":
        return _convert_to_dataset(
            paths, out, settings, force=force, device=device, append=append, each=each, advance=advance
        )
    if append:
        raise InputError(f"--append adds to a LeRobot dataset, and this is {form}; give --format lerobot.")
    if out.exists() and not out.is_dir():
        raise InputError(f"'{out}' is a file, and {len(paths)} recordings need a folder; choose another name.")
    targets = [out / f"{name}{writers.FORMATS[form]}" for name in output_names(paths)]
    _check_outputs(paths, targets)
    results = []
    for path, target in zip(paths, targets, strict=True):
        try:
            result = convert(path, target, form, settings, force=force, device=device, advance=advance)
        except RidgelineError as error:
            result = ConversionResult(path, target, error=str(error))
        results.append(result)
        each(result)
    return results


def build_key(paths: Sequence[Path], settings: ConversionSettings) -> dict[str, Any]:
    """Return the key of an output: the state of its inputs, and the settings."""
    inputs = []
    for path in paths:
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else []
        stats = [f.stat() for f in files]
        changed = max((s.st_mtime_ns for s in stats), default=0)
        inputs.append({"name": path.name, "bytes": sum(s.st_size for s in stats), "changed_ns": changed})
    plain = asdict(settings)
    as_json = {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}
    return {"inputs": inputs, "settings": as_json}


def output_names(paths: Sequence[Path]) -> list[str]:
    """Return a name per input: its stem, with as many parent folders as make it unique.

    >>> output_names([Path("a/log.ulg"), Path("b/log.ulg"), Path("c.csv")])
    ['a-log', 'b-log', 'c']
    """
    stems = [p.with_suffix("") if p.suffix else p for p in paths]
    names = [s.name for s in stems]
    for depth in range(2, 8):
        twice = {n for n in names if names.count(n) > 1}
        if not twice:
            return names
        names = ["-".join(s.parts[-depth:]).strip("/") if n in twice else n for n, s in zip(names, stems, strict=True)]
    return [f"{n}-{i}" if names.count(n) > 1 else n for i, n in enumerate(names)]


def _convert_to_dataset(
    paths: Sequence[Path],
    out: Path,
    settings: ConversionSettings,
    *,
    force: bool,
    device: str,
    append: bool,
    each: Callable[[ConversionResult], None],
    advance: Callable[[float], None],
) -> list[ConversionResult]:
    """Write one LeRobot folder. Resampled inputs stay in chunks beside it until every input succeeded.

    The number of a chunk is a hash of its input and settings, so only new or changed inputs are read again.
    """
    _check_outputs(paths, [out])
    check_camera_names(settings.cameras)
    parse_fill(settings.fill)
    key = build_key(paths, settings)
    previous = None if force else writers.read_meta(out, "lerobot")
    known = [] if previous is None else [previous, *(previous.get("appended", []) if append else [])]
    finished = next((k for k in known if {n: k.get(n) for n in (*key, "failed")} == {**key, "failed": []}), None)
    if finished is not None:
        lost = finished.get("lost", {})
        results = [ConversionResult(path, out, skipped=True, lost=lost.get(str(path), {})) for path in paths]
        for result in results:
            each(result)
        return results
    if append and settings.codec is None:
        settings = replace(settings, codec=_find_codec(out, settings))
    store = out.parent / f".{out.name}.episodes"
    _create_folder(out.parent)
    results = []
    numbers = [_chunk_number(path, settings) for path in paths]
    with ChunkSet(store, key=CHUNK_KEY, suffix=".npz", start_over=force) as chunks:
        ready = set(chunks.done())
        for number, path in zip(numbers, paths, strict=True):
            skipped = ConversionResult(path, out, skipped=True)
            media = _media_folder(store, number)
            if number in ready and (not settings.cameras or (media / MEDIA).exists()):
                results.append(replace(skipped, lost=_sum_lost(media)) if settings.cameras else skipped)
            else:
                results.append(_write_chunk(chunks, number, path, out, settings, device, media, advance))
            each(results[-1])
        ready = set(chunks.done())
        usable = [(n, p) for n, p, r in zip(numbers, paths, results, strict=True) if n in ready and not r.error]
        loaded = [(path, npz.load_episodes(chunks.file(number))) for number, path in usable]
    episodes = [e for _, parts in loaded for e in parts]
    failed = [str(r.input) for r in results if r.error]
    lost = {str(r.input): dict(r.lost) for r in results if r.lost}
    try:
        if episodes:
            writers.check_columns(episodes, [f"'{path}'" for path, parts in loaded for _ in parts])
            results = [_add_missing(r, loaded) for r in results]
            cameras = [e for number, _ in usable for e in _load_episodes(_media_folder(store, number))]
            meta = {**key, "failed": failed, "lost": lost}
            lerobot.write(out, episodes, meta, media=cameras if settings.cameras else None, append=append)
    except InputError:
        discard_dir(store)  # these recordings cannot form a dataset; the chunks are useless
        raise
    if not failed or not episodes:
        discard_dir(store)
    return results


def _find_codec(path: Path, settings: ConversionSettings) -> str | None:
    """Return the codec that the videos of a dataset have, for episodes that are added to it."""
    try:
        features = json.loads((path / INFO).read_text())["features"]
    except (OSError, ValueError, KeyError):
        return None
    codecs = {lerobot.find_codec(features.get(f"observation.images.{name}", {})) for name in settings.cameras} - {""}
    if "mjpeg" in codecs:
        return COPY
    return codecs.pop() if len(codecs) == 1 and codecs <= {*CODECS} else None


def _add_missing(result: ConversionResult, loaded: Sequence[tuple[Path, Sequence[Aligned]]]) -> ConversionResult:
    """Add a note about the streams that other recordings have and this one lacks."""
    present = {name for path, parts in loaded if path == result.input for e in parts for name in e.columns}
    every = dict.fromkeys(name for _, parts in loaded for e in parts for name in e.columns)
    missing = [name for name in every if name not in present]
    if not missing or not present:
        return result
    lacks = f"'{result.input}' lacks {join_names(missing)}"
    return replace(result, notes=(*result.notes, f"{lacks}, which other recordings have; its rows are empty there."))


def _chunk_number(path: Path, settings: ConversionSettings) -> int:
    """Return the number of a recording's chunk: a hash of its path, state and settings."""
    text = json.dumps([str(path.resolve()), build_key([path], settings)], sort_keys=True)
    return int.from_bytes(sha256(text.encode()).digest()[:7], "big")


def _check_outputs(inputs: Sequence[Path], outputs: Sequence[Path]) -> None:
    """Refuse outputs that would overwrite an input or a folder that holds one."""
    input_paths = {path.resolve(): path for path in inputs}
    for out in outputs:
        target = out.resolve()
        overwritten = next(
            (path for full, path in input_paths.items() if target == full or target in full.parents), None
        )
        if overwritten is not None:
            raise InputError(f"'{out}' would overwrite the recording '{overwritten}'; choose another name or folder.")


def _create_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder '{folder}' cannot be created: {error.strerror}; choose another folder."
        ) from error


def _write_chunk(
    chunks: ChunkSet,
    number: int,
    path: Path,
    out: Path,
    settings: ConversionSettings,
    device: str,
    media: Path,
    advance: Callable[[float], None],
) -> ConversionResult:
    notes: list[str] = []
    lost: dict[str, int] = {}
    try:
        mapped = map_recording(path, settings, device, notes.append)
        episodes = [m.aligned for m in mapped]
        if settings.cameras:
            written = _write_cameras(mapped, settings, media, advance)
            episodes = [add_valid(a, w.valid) for a, w in zip(episodes, written, strict=True)]
            lost, lines = _count_lost(mapped, written)
            notes += lines
    except StoreError:
        raise
    except RidgelineError as error:
        return ConversionResult(path, out, error=str(error))
    with chunks.writing(number) as tmp:
        npz.save_episodes(tmp, episodes, {})
    return replace(_summarize(path, out, episodes, notes), lost=lost)


def _write_cameras(
    mapped: Sequence[Mapped], settings: ConversionSettings, folder: Path, advance: Callable[[float], None]
) -> list[Written]:
    """Write the cameras of all episodes of a recording into a folder that is complete or does not exist."""
    with publish_dir(folder) as tmp:
        out = write_media(
            [episode.requests for episode in mapped],
            tmp,
            settings.hz,
            settings.video,
            choose_codec=settings.chooses_codec,
            advance=advance,
        )
        save_media(tmp / MEDIA, out)
        (tmp / CALIBRATION).write_text(json.dumps([episode.calibration for episode in mapped]))
    return out


def _media_folder(store: Path, number: int) -> Path:
    return store / f"media-{number}"


def _load_episodes(folder: Path) -> list[EpisodeMedia]:
    if not (folder / MEDIA).exists():
        return []
    calibrations = json.loads((folder / CALIBRATION).read_text())
    return [EpisodeMedia(folder, w.media, c) for w, c in zip(load_media(folder / MEDIA), calibrations, strict=True)]


def _sum_lost(folder: Path) -> dict[str, int]:
    """Return the lost frames of a recording by topic, over all episodes."""
    lost: Counter[str] = Counter()
    for written in load_media(folder / MEDIA):
        lost.update(written.lost)
    return dict(lost)


def _summarize(path: Path, out: Path, episodes: Sequence[Aligned], notes: Sequence[str]) -> ConversionResult:
    return ConversionResult(
        path,
        out,
        rows=sum(len(e.times) for e in episodes),
        columns=max(sum(len(labels) for labels in e.labels.values()) for e in episodes),
        episodes=len(episodes),
        notes=tuple(dict.fromkeys(notes)),
    )
