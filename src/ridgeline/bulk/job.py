"""The driver of a job: plan → chunks → workers → commits → target, resumable at every point."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import ridgeline
from ridgeline.bulk import registry
from ridgeline.bulk.engines import Death
from ridgeline.bulk.parts import Outcome, Task
from ridgeline.bulk.rows import Reject
from ridgeline.bulk.sources import SourceFile, Span
from ridgeline.bulk.target import JobState, Part, Target, make_job_id
from ridgeline.errors import InputError, StoreError

FORMAT = 1  # of parts; a new one makes new parts
PROBES = 200  # of one chunk, to find the rows that end workers


class Engine(Protocol):
    """Workers that run tasks."""

    devices: list[str]

    def __enter__(self) -> Engine: ...
    def __exit__(self, *_: Any) -> None: ...
    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]: ...
    def busy_seconds(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class Chunk:
    """A piece of the job; the same source, range, code and model have the same key."""

    number: int
    spans: tuple[Span, ...]
    key: str

    @property
    def rows(self) -> int:
        return sum(span.rows for span in self.spans)


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    rows: int  # done now
    before: int  # done in earlier runs
    total: int
    seconds: float
    rejects: int
    busy: Mapping[str, float]  # seconds by worker


Report = Callable[[Progress], None]
Locate = Callable[[Task, list[int]], list[tuple[str, int]]]  # good rows of a chunk, by number → (source, row)


@dataclass
class Totals:
    """What this run has done so far."""

    rows: int = 0
    rejects: int = 0
    computed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    first_rejects: list[Reject] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)


def make_chunks(
    files: tuple[SourceFile, ...], spans: Iterable[tuple[Span, ...]], settings: Mapping[str, Any]
) -> list[Chunk]:
    """Number the chunks of a plan and give each its key."""
    base = json.dumps(settings, sort_keys=True, default=str)
    chunks = []
    for number, group in enumerate(spans):
        places = [
            (files[s.file].name, files[s.file].size, files[s.file].version, s.first, s.rows, s.offset) for s in group
        ]
        key = hashlib.sha256(f"{base}{places!r}".encode()).hexdigest()[:16]
        chunks.append(Chunk(number, group, key))
    return chunks


def add_code_version(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the version of the code: another version may give other bytes."""
    return {**settings, "code": f"{ridgeline.__version__}, format {FORMAT}"}


def fingerprint(chunks: Iterable[Chunk]) -> str:
    """Return a hash of the plan."""
    return hashlib.sha256("".join(chunk.key for chunk in chunks).encode()).hexdigest()[:16]


def check_job(target: Target, settings: Mapping[str, Any], chunks: list[Chunk], incremental: bool) -> JobState | None:
    """Return the state of a target; raises InputError if it belongs to another job or its source changed."""
    state = target.state()
    if state is None:
        return None
    if differences := _compare(state.job["settings"], settings):
        raise InputError(
            f"the target '{target.url}' belongs to another job ({'; '.join(differences)}); "
            "run it with the settings of that job, or choose another target."
        )
    if state.job["plan"] != fingerprint(chunks) and not incremental:
        raise InputError(
            f"the source of '{target.url}' changed since its job started; update the target with --incremental, "
            "or choose another one."
        )
    return state


def begin_job(
    target: Target,
    kind: str,
    settings: Mapping[str, Any],
    chunks: list[Chunk],
    call: Mapping[str, Any],
    generation: int,
    base: int = 0,
) -> dict[str, Any]:
    """Write the job file of a new generation and remember the job; return its content."""
    job_id = make_job_id(kind, target.url)
    job = {
        "id": job_id,
        "kind": kind,
        "settings": dict(settings),
        "plan": fingerprint(chunks),
        "chunks": len(chunks),
        "rows": sum(chunk.rows for chunk in chunks),
        "generation": generation,
        "base": base,  # the version of the table before
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    target.begin(job)
    registry.remember(job_id, kind, target.url, call, len(chunks))
    return job


def run_chunks(
    target: Target,
    make_engine: Callable[[], AbstractContextManager[Any]],
    tasks: list[Task],
    done: dict[int, Part],
    total_rows: int,
    rows_by_chunk: Mapping[int, int],
    max_rejects: int | None,
    report: Report,
    locate: Locate,
) -> Totals:
    """Run the tasks, commit each part when it is written, and add it to `done`."""
    totals = Totals(rejects=sum(part.rejects for part in done.values()))
    before = sum(rows_by_chunk[number] for number in done)
    _check_rejects(target, done, totals, max_rejects)
    if not tasks:
        return totals
    started = time.monotonic()
    report(Progress(0, before, total_rows, 0.0, totals.rejects, {}))
    with make_engine() as running:
        for task, outcome in _run_all(running, tasks, locate):
            part = outcome.part
            if part is None:
                raise StoreError(outcome.error or f"chunk {task.chunk} has no part.")
            target.commit([part])
            done[part.chunk] = part
            totals.rows += rows_by_chunk[task.chunk]
            totals.rejects += part.rejects
            totals.computed += part.computed
            totals.first_rejects += outcome.rejects[: max(0, 3 - len(totals.first_rejects))]
            for stage, seconds in outcome.seconds.items():
                totals.seconds[stage] = totals.seconds.get(stage, 0.0) + seconds
            _check_rejects(target, done, totals, max_rejects)
            elapsed = time.monotonic() - started
            totals.busy = running.busy_seconds()
            report(Progress(totals.rows, before, total_rows, elapsed, totals.rejects, totals.busy))
    totals.seconds["wall"] = time.monotonic() - started
    return totals


def _check_rejects(target: Target, done: Mapping[int, Part], totals: Totals, max_rejects: int | None) -> None:
    if max_rejects is None or totals.rejects <= max_rejects:
        return
    target.withdraw(done)
    first = totals.first_rejects[0] if totals.first_rejects else None
    example = f"; the first: {first.source}, row {first.row}: {first.reason}" if first else ""
    raise InputError(
        f"{totals.rejects} rejects are more than --max-rejects {max_rejects}{example}; correct the source, "
        "or run the same command with a higher limit: what is done is kept."
    )


def _run_all(engine: Any, tasks: list[Task], locate: Locate) -> Iterator[tuple[Task, Outcome]]:
    """Run tasks; a chunk that ends its workers runs again without the rows that do."""
    deaths: list[tuple[Task, Death]] = []
    for task, outcome in engine.run(tasks):
        if isinstance(outcome, Death):
            deaths.append((task, outcome))
        else:
            yield task, outcome
    for task, death in deaths:
        yield task, _run_without_poison(engine, task, death, locate)


def _run_without_poison(engine: Any, task: Task, death: Death, locate: Locate) -> Outcome:
    """Find the rows that end workers by halving, and compute the chunk without them."""
    poisoned: list[int] = []
    waiting = [(0, sum(span.rows for span in task.spans))]
    for _ in range(PROBES):
        if not waiting:
            break
        low, high = waiting.pop()
        ((_, outcome),) = engine.run([replace(task, probe=(low, high))])
        if not isinstance(outcome, Death):
            if outcome.error is not None:
                return Outcome(error=outcome.error)
            continue
        if high - low == 1:
            poisoned.append(low)
        else:
            middle = (low + high) // 2
            waiting += [(low, middle), (middle, high)]
    else:
        raise StoreError(f"chunk {task.chunk} ends its workers ({death.reason}), in too many rows to set them apart.")
    skip = tuple(Reject(label, row, death.reason) for label, row in locate(task, poisoned))
    ((_, outcome),) = engine.run([replace(task, skip=skip)])
    if isinstance(outcome, Death):
        raise StoreError(f"chunk {task.chunk} ends its workers ({outcome.reason}); look at its rows: {task.spans}.")
    return outcome  # type: ignore[no-any-return]


def _compare(existing: Mapping[str, Any], requested: Mapping[str, Any]) -> list[str]:
    plain = json.loads(json.dumps(requested, default=str))
    return [
        f"{name} is {json.dumps(existing.get(name))} there, {json.dumps(plain.get(name))} here"
        for name in sorted({*existing, *plain})
        if existing.get(name) != plain.get(name)
    ]
