"""Convert recordings to files on one clock: the work of `ridgeline resample`.

An output stores the key of its inputs and settings (name, size, time of change), so a second run skips it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, RidgelineError, StoreError
from ridgeline.store import ChunkSet, discard_dir
from ridgeline.trajectory import readers, writers
from ridgeline.trajectory.columns import check_kind, match_names
from ridgeline.trajectory.readers import ReadOptions
from ridgeline.trajectory.stream import Aligned, Span, Stream, align, join_names
from ridgeline.trajectory.writers import npz

Report = Callable[[str], None]
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


def align_recording(
    path: Path, settings: ConversionSettings, device: str = "cpu", report_note: Report | None = None
) -> list[Aligned]:
    """Read a recording and align each of its episodes."""
    report = report_note or (lambda _: None)
    options = settings.read_options(report)
    streams = rename_streams(
        exclude_streams(readers.read(path, settings.topics, options), settings, path, report), settings
    )
    names = [s.name for s in streams]
    kinds = {n: check_kind(kind) for word, kind in settings.kinds.items() for n in match_names(names, word)}
    chosen: list[Stream] = [replace(s, kind=kinds.get(s.name, s.kind)) for s in streams]
    episodes = []
    for episode in readers.group_episodes(chosen).values():
        aligned_episode = align(
            episode,
            hz=settings.hz,
            tolerance=settings.tolerance,
            shifts={w: v for w, v in settings.shifts.items() if match_names(names, w)},
            span=settings.span,
            max_gap=settings.max_gap,
            sort=settings.sort,
            device=device,
        )
        for warning in aligned_episode.warnings:
            report(warning)
        episodes.append(aligned_episode)
    return episodes


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
    path: Path, out: Path, form: str, settings: ConversionSettings, *, force: bool = False, device: str = "cpu"
) -> ConversionResult:
    """Convert one recording to one file; after an error an existing file is unchanged."""
    _check_outputs([path], [out])
    key = build_key([path], settings)
    if not force and out.exists() and writers.read_meta(out, form) == key:
        return ConversionResult(path, out, skipped=True)
    notes: list[str] = []
    episodes = align_recording(path, settings, device, notes.append)
    _create_folder(out.parent)
    writers.write(out, episodes, form, key)
    return _summarize(path, out, episodes, notes)


def convert_many(
    paths: Sequence[Path],
    out: Path,
    form: str,
    settings: ConversionSettings,
    *,
    force: bool = False,
    device: str = "cpu",
    each: Callable[[ConversionResult], None] = lambda _: None,
) -> list[ConversionResult]:
    """Convert recordings to one file each in the folder `out`, or to one LeRobot dataset. Failures do not stop it."""
    if form == "lerobot":
        return _convert_to_dataset(paths, out, settings, force=force, device=device, each=each)
    if out.exists() and not out.is_dir():
        raise InputError(f"'{out}' is a file, and {len(paths)} recordings need a folder; choose another name.")
    targets = [out / f"{name}{writers.FORMATS[form]}" for name in output_names(paths)]
    _check_outputs(paths, targets)
    results = []
    for path, target in zip(paths, targets, strict=True):
        try:
            result = convert(path, target, form, settings, force=force, device=device)
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
    return {"inputs": inputs, "settings": {**plain, "topics": list(settings.topics), "exclude": list(settings.exclude)}}


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
    each: Callable[[ConversionResult], None],
) -> list[ConversionResult]:
    """Write one LeRobot folder. Resampled inputs stay in chunks beside it until every input succeeded.

    The number of a chunk is a hash of its input and settings, so only new or changed inputs are read again.
    """
    _check_outputs(paths, [out])
    key = build_key(paths, settings)
    previous_key = None if force else writers.read_meta(out, "lerobot")
    if previous_key == {**key, "failed": []}:
        results = [ConversionResult(path, out, skipped=True) for path in paths]
        for result in results:
            each(result)
        return results
    store = out.parent / f".{out.name}.episodes"
    _create_folder(out.parent)
    results = []
    numbers = [_chunk_number(path, settings) for path in paths]
    with ChunkSet(store, key=CHUNK_KEY, suffix=".npz", start_over=force) as chunks:
        ready = set(chunks.done())
        for number, path in zip(numbers, paths, strict=True):
            skipped = ConversionResult(path, out, skipped=True)
            results.append(skipped if number in ready else _write_chunk(chunks, number, path, out, settings, device))
            each(results[-1])
        ready = set(chunks.done())
        loaded = [
            (path, npz.load(chunks.file(number)))
            for number, path in zip(numbers, paths, strict=True)
            if number in ready
        ]
    episodes = [e for _, parts in loaded for e in parts]
    failed = [str(r.input) for r in results if r.error]
    try:
        if episodes:
            writers.check_columns(episodes, [f"'{path}'" for path, parts in loaded for _ in parts])
            results = [_add_missing(r, loaded) for r in results]
            writers.write(out, episodes, "lerobot", {**key, "failed": failed})
    except InputError:
        discard_dir(store)  # these recordings cannot form a dataset; the chunks are useless
        raise
    if not failed or not episodes:
        discard_dir(store)
    return results


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
    chunks: ChunkSet, number: int, path: Path, out: Path, settings: ConversionSettings, device: str
) -> ConversionResult:
    notes: list[str] = []
    try:
        episodes = align_recording(path, settings, device, notes.append)
    except RidgelineError as error:
        return ConversionResult(path, out, error=str(error))
    with chunks.writing(number) as tmp:
        npz.save(tmp, episodes, {})
    return _summarize(path, out, episodes, notes)


def _summarize(path: Path, out: Path, episodes: Sequence[Aligned], notes: Sequence[str]) -> ConversionResult:
    return ConversionResult(
        path,
        out,
        rows=sum(len(e.times) for e in episodes),
        columns=max(sum(len(labels) for labels in e.labels.values()) for e in episodes),
        episodes=len(episodes),
        notes=tuple(dict.fromkeys(notes)),
    )
