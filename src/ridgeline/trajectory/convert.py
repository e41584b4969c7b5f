"""Recordings to files on one clock, one at a time or many: what `ridgeline resample` does.

An output carries the key of what made it (input, size, time of change, settings), so a second run skips what is done.
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
from ridgeline.trajectory.guess import check_kind, matching
from ridgeline.trajectory.readers import Ask
from ridgeline.trajectory.stream import Aligned, Span, Stream, align
from ridgeline.trajectory.writers import npz

Say = Callable[[str], None]
EPISODES = "episodes by what they are made of"  # whose chunks lie beside a LeRobot dataset that is not done


@dataclass(frozen=True)
class Settings:
    """Everything that decides what comes out."""

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


@dataclass(frozen=True)
class Done:
    """What became of one input."""

    input: Path
    output: Path
    rows: int = 0
    columns: int = 0
    episodes: int = 0
    skipped: bool = False  # it was there already
    error: str | None = None
    notes: tuple[str, ...] = ()


def aligned(path: Path, settings: Settings, device: str = "cpu", say: Say | None = None) -> list[Aligned]:
    """The episodes of one recording on their clocks."""
    notes = say or (lambda _: None)
    ask = Ask(settings.fps, settings.clock, settings.unit, notes)
    streams = readers.read(path, settings.topics, ask)
    names = [s.name for s in streams]
    kinds = {n: check_kind(kind) for word, kind in settings.kinds.items() for n in matching(names, word)}
    told: list[Stream] = [replace(s, kind=kinds.get(s.name, s.kind)) for s in streams]
    found = []
    for episode in readers.episodes(told).values():
        one = align(
            episode,
            hz=settings.hz,
            tolerance=settings.tolerance,
            shifts={w: v for w, v in settings.shifts.items() if matching(names, w)},
            span=settings.span,
            max_gap=settings.max_gap,
            sort=settings.sort,
            device=device,
        )
        for warning in one.warnings:
            notes(warning)
        found.append(one)
    return found


def convert(path: Path, out: Path, form: str, settings: Settings, *, force: bool = False, device: str = "cpu") -> Done:
    """One recording to one file; an error leaves what was there."""
    _apart([path], [out])
    key = key_of([path], settings)
    if not force and out.exists() and writers.meta(out, form) == key:
        return Done(path, out, skipped=True)
    notes: list[str] = []
    episodes = aligned(path, settings, device, notes.append)
    _make(out.parent)
    writers.write(out, episodes, form, key)
    return _done(path, out, episodes, notes)


def convert_many(
    paths: Sequence[Path],
    out: Path,
    form: str,
    settings: Settings,
    *,
    force: bool = False,
    device: str = "cpu",
    each: Callable[[Done], None] = lambda _: None,
) -> list[Done]:
    """Many recordings: a file each below the folder `out`, or one LeRobot dataset; a failed one stops no other."""
    if form == "lerobot":
        return _dataset(paths, out, settings, force=force, device=device, each=each)
    if out.exists() and not out.is_dir():
        raise InputError(f"'{out}' is a file, and {len(paths)} recordings need a folder; choose another name.")
    targets = [out / f"{name}{writers.FORMATS[form]}" for name in output_names(paths)]
    _apart(paths, targets)
    results = []
    for path, target in zip(paths, targets, strict=True):
        try:
            done = convert(path, target, form, settings, force=force, device=device)
        except RidgelineError as error:
            done = Done(path, target, error=str(error))
        results.append(done)
        each(done)
    return results


def key_of(paths: Sequence[Path], settings: Settings) -> dict[str, Any]:
    """What an output is made of: inputs as they are now, and the settings."""
    inputs = []
    for path in paths:
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else []
        stats = [f.stat() for f in files]
        changed = max((s.st_mtime_ns for s in stats), default=0)
        inputs.append({"name": path.name, "bytes": sum(s.st_size for s in stats), "changed_ns": changed})
    plain = asdict(settings)
    return {"inputs": inputs, "settings": {**plain, "topics": list(settings.topics)}}


def output_names(paths: Sequence[Path]) -> list[str]:
    """A name per input, by its stem; where two are alike, by as much of the path as tells them apart.

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


def _dataset(
    paths: Sequence[Path], out: Path, settings: Settings, *, force: bool, device: str, each: Callable[[Done], None]
) -> list[Done]:
    """One LeRobot folder. What is resampled is kept in chunks beside it until every input has succeeded.

    A chunk is numbered by what it is made of, so that only inputs that are new or have changed are read again.
    """
    _apart(paths, [out])
    key = key_of(paths, settings)
    had = None if force else writers.meta(out, "lerobot")
    if had == {**key, "failed": []}:
        results = [Done(path, out, skipped=True) for path in paths]
        for done in results:
            each(done)
        return results
    store = out.parent / f".{out.name}.episodes"
    _make(out.parent)
    results = []
    numbers = [_number(path, settings) for path in paths]
    with ChunkSet(store, key=EPISODES, suffix=".npz", anew=force) as chunks:
        ready = set(chunks.done())
        for number, path in zip(numbers, paths, strict=True):
            there = Done(path, out, skipped=True)
            results.append(there if number in ready else _chunk(chunks, number, path, out, settings, device))
            each(results[-1])
        ready = set(chunks.done())
        good = [number for number in numbers if number in ready]
        episodes = [e for number in good for e in npz.load(chunks.file(number))]
    failed = [str(r.input) for r in results if r.error]
    try:
        if good:
            writers.write(out, episodes, "lerobot", {**key, "failed": failed})
    except InputError:
        discard_dir(store)  # these recordings make no dataset, so their chunks are of no more use
        raise
    if not failed or not good:
        discard_dir(store)
    return results


def _number(path: Path, settings: Settings) -> int:
    """A chunk's: by the recording and the settings, as they are now."""
    told = json.dumps([str(path.resolve()), key_of([path], settings)], sort_keys=True)
    return int.from_bytes(sha256(told.encode()).digest()[:7], "big")


def _apart(inputs: Sequence[Path], outputs: Sequence[Path]) -> None:
    """What is read is not written over, nor a folder that holds it."""
    read = {path.resolve(): path for path in inputs}
    for out in outputs:
        there = out.resolve()
        lost = next((path for full, path in read.items() if there == full or there in full.parents), None)
        if lost is not None:
            raise InputError(f"'{out}' would take the place of the recording '{lost}'; choose another name or folder.")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"the folder '{folder}' cannot be made: {error.strerror}; choose another place.") from error


def _chunk(chunks: ChunkSet, number: int, path: Path, out: Path, settings: Settings, device: str) -> Done:
    notes: list[str] = []
    try:
        episodes = aligned(path, settings, device, notes.append)
    except RidgelineError as error:
        return Done(path, out, error=str(error))
    with chunks.writing(number) as tmp:
        npz.save(tmp, episodes, {})
    return _done(path, out, episodes, notes)


def _done(path: Path, out: Path, episodes: Sequence[Aligned], notes: Sequence[str]) -> Done:
    return Done(
        path,
        out,
        rows=sum(len(e.times) for e in episodes),
        columns=max(sum(len(labels) for labels in e.labels.values()) for e in episodes),
        episodes=len(episodes),
        notes=tuple(dict.fromkeys(notes)),
    )
