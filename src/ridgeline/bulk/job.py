"""The driver of a job: plan → chunks → workers → commits → target, resumable at every point."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self

import ridgeline
from ridgeline.bulk import registry
from ridgeline.bulk.engines import Death, LocalEngine, choose_devices, spread_workers
from ridgeline.bulk.parts import Outcome, Task
from ridgeline.bulk.progress import Meter, Progress, check_price, find_hourly_cost
from ridgeline.bulk.rows import Reject
from ridgeline.bulk.sources import SourceFile, Span
from ridgeline.bulk.summary import write_summary
from ridgeline.bulk.target import RUNS, JobState, Part, Target, make_job_id
from ridgeline.errors import InputError, RidgelineError, StoreError, unknown

ENGINES = ("local", "ray")
FORMAT = 2  # of parts; a new one makes new parts
PROBES = 200  # of one chunk, to find the rows that end workers
SHOWN_REJECTS = 3
SLOW_CHUNK_S = 0.5  # between two chunks: longer than a commit takes
SAVE_S = 10.0  # between two notes of a run's numbers in the target


class Engine(Protocol):
    """Workers that run tasks."""

    devices: list[str]  # of each worker
    units: int  # machines or GPUs, which is what a price counts

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


Report = Callable[[Progress], None]
Locate = Callable[[Task, list[int]], list[tuple[str, int]]]  # good rows of a chunk, by number → (source, row)


@dataclass(frozen=True)
class Execution:
    """Where and how a job runs; nothing of it changes the rows."""

    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    chunk_timeout: float | None = None
    max_rejects: int | None = None
    device: str = "auto"
    price: str | None = None  # an entry of the price book (default: that of this machine)
    report: Report = lambda _: None
    devices: tuple[str, ...] = ()  # of this machine, or the name of those of the cluster; `check` sets it

    def check(self) -> Self:
        """Return the execution with its devices; raises InputError."""
        if self.engine not in ENGINES:
            raise unknown("engine", self.engine, ENGINES)
        if self.address is not None and self.engine != "ray":
            raise InputError(f"--address '{self.address}' is that of a Ray cluster; add --engine ray.")
        if self.workers is not None and self.workers < 1:
            raise InputError(f"--workers is {self.workers}; give 1 or more.")
        if self.max_rejects is not None and self.max_rejects < 0:
            raise InputError(f"--max-rejects is {self.max_rejects}; give 0 or more.")
        check_price(self.price, self.device)
        if self.engine == "ray":
            from ridgeline.bulk.ray_engine import require_ray

            require_ray()
            return replace(self, devices=(self.device,))
        return replace(self, devices=tuple(choose_devices(self.device)))

    def open(self, factory: Any) -> Any:
        """Return the engine, not started."""
        if self.engine == "ray":
            from ridgeline.bulk.ray_engine import RayEngine

            return RayEngine(factory, self.device, self.workers, self.address, self.chunk_timeout)
        return LocalEngine(factory, spread_workers([*self.devices], self.workers), self.chunk_timeout)


@dataclass
class Totals:
    """What this run has done so far."""

    meter: Meter = field(default_factory=lambda: Meter(0, 0, 0))
    computed: int = 0
    truncated: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    first_rejects: list[Reject] = field(default_factory=list)

    @property
    def rejects(self) -> int:
        return self.meter.rejects

    @property
    def busy(self) -> dict[str, float]:
        return self.meter.busy


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
    if not chunks:
        raise InputError(f"the source has no rows: '{files[0].label}' is empty, and so is every other file.")
    return chunks


def add_code_version(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with the version of the code: another version may give other bytes."""
    return {**settings, "code": f"{ridgeline.__version__}, format {FORMAT}"}


def fingerprint(chunks: Iterable[Chunk]) -> str:
    """Return a hash of the plan."""
    return hashlib.sha256("".join(chunk.key for chunk in chunks).encode()).hexdigest()[:16]


def check_job(
    target: Target, settings: Mapping[str, Any], chunks: list[Chunk], call: Mapping[str, Any], incremental: bool
) -> JobState | None:
    """Return the state of a target; `jobs resume` repeats the last call that went on with it.

    Raises InputError if it belongs to another job, its source changed, or it is complete with too many rejects.
    """
    state = target.state()
    if state is None:
        return None
    if differences := _compare(state.job["settings"], settings):
        raise InputError(
            f"the target '{target.url}' belongs to another job ({'; '.join(differences)}); "
            "run it with the settings of that job, or choose another target."
        )
    if state.job["plan"] != fingerprint(chunks) and not incremental:
        update = "" if settings["kind"] == "resample" else "update the target with --incremental, or "
        raise InputError(f"the source of '{target.url}' changed since its job started; {update}choose another target.")
    max_rejects = call["max_rejects"]
    if not state.complete:
        registry.remember(state.job["id"], settings["kind"], target.url, call, len(chunks))
    elif state.job["plan"] == fingerprint(chunks) and max_rejects is not None:
        rejects = sum(part.rejects for part in state.parts.values())
        if rejects > max_rejects:
            raise InputError(
                f"'{target.url}' is complete with {rejects} rejects, more than --max-rejects {max_rejects}; it stays "
                f"as it is. Their reasons are in '{target.url}/rejects'; correct the source, or give a higher limit."
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
    factory: Any,
    execution: Execution,
    tasks: list[Task],
    done: dict[int, Part],
    total_rows: int,
    rows_by_chunk: Mapping[int, int],
    locate: Locate,
) -> Totals:
    """Run the tasks, commit each part when it is written, and add it to `done`."""
    before = sum(rows_by_chunk[number] for number in done)
    earlier = _read_runs(target)
    totals = Totals(Meter(total_rows, before, sum(part.rejects for part in done.values()), earlier))
    meter, limit = totals.meter, execution.max_rejects
    try:
        _check_rejects(totals, limit)
    except _TooManyRejects:
        target.withdraw(done)
        raise
    if not tasks:
        meter.stop()
        return totals
    execution.report(meter.get_progress())
    saved = last = 0.0
    committer = Committer(target)

    def count(listed: list[tuple[Task, Outcome]]) -> None:
        """Count parts that are listed in the manifest."""
        nonlocal saved
        for task, outcome in listed:
            part = outcome.part
            if part is None:
                continue
            done[part.chunk] = part
            meter.add(outcome, rows_by_chunk[task.chunk])
            totals.computed += part.computed
            totals.truncated += outcome.truncated
            totals.first_rejects += outcome.rejects[: max(0, SHOWN_REJECTS - len(totals.first_rejects))]
            for stage, seconds in outcome.seconds.items():
                totals.seconds[stage] = totals.seconds.get(stage, 0.0) + seconds
            _check_rejects(totals, limit)
            execution.report(meter.get_progress())
        if listed and meter.seconds - saved > SAVE_S:
            saved = meter.seconds
            _save_runs(target, meter)

    try:
        with execution.open(factory) as running:
            meter.workers = len(running.devices)
            meter.cost = find_hourly_cost(execution.price, running.devices, running.units, execution.engine == "local")
            try:
                with committer:
                    for task, outcome in _run_all(running, tasks, locate):
                        if outcome.part is None:
                            raise StoreError(outcome.error or f"chunk {task.chunk} has no part.")
                        meter.busy = running.busy_seconds()
                        committer.add(task, outcome)
                        now = meter.seconds
                        count(committer.take_listed(wait=now - last > SLOW_CHUNK_S))  # a slow job reports at once
                        last = now
                    count(committer.take_listed(wait=True))
            finally:
                for task, outcome in committer.listed:  # since an error ended the run
                    meter.add(outcome, rows_by_chunk[task.chunk])
                    if outcome.part is not None:
                        done[task.chunk] = outcome.part
                meter.stop()
                with suppress(RidgelineError, OSError):  # the numbers must not hide why a run ended
                    _save_runs(target, meter)
    except _TooManyRejects:
        target.withdraw(done)  # the workers have ended: nothing is written any more
        raise
    totals.seconds["wall"] = meter.seconds
    return totals


class Committer(AbstractContextManager["Committer"]):
    """Lists finished parts in the manifest from a thread of its own, as many in one commit as have arrived.

    A commit waits for the disk or the store (milliseconds here, a tenth of a second there), and many GPUs finish chunks
    faster than that. When the block ends, also by an error, everything that was added is listed.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._waiting: list[tuple[Task, Outcome]] = []
        self.listed: list[tuple[Task, Outcome]] = []  # and not yet taken
        self._error: BaseException | None = None
        self._busy = self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="commits", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def add(self, task: Task, outcome: Outcome) -> None:
        """Let a part be listed; raises the error of an earlier commit."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._waiting.append((task, outcome))
            self._changed.notify_all()

    def take_listed(self, wait: bool) -> list[tuple[Task, Outcome]]:
        """Return what is listed since the last call; `wait`: once all that was added is."""
        with self._changed:
            while wait and (self._waiting or self._busy) and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error
            listed, self.listed = self.listed, []
            return listed

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._ended:
                    self._changed.wait()
                if not self._waiting:
                    return
                group, self._waiting, self._busy = self._waiting, [], True
            error: BaseException | None = None
            try:
                self._target.commit([outcome.part for _, outcome in group if outcome.part is not None])
            except BaseException as problem:  # the driver's thread raises it
                error = problem
            with self._changed:
                self._busy, self._error = False, error
                if error is None:
                    self.listed += group
                self._changed.notify_all()
                if error is not None:
                    return


def finish_job(target: Target, job: Mapping[str, Any], answer: Mapping[str, Any], totals: Totals) -> None:
    """Write the page and the record of a job; its rows are safe, so an error here is no error of the job."""
    with suppress(RidgelineError, OSError):
        write_summary(target.storage, job, answer, totals.meter, totals.first_rejects)


def _read_runs(target: Target) -> list[dict[str, Any]]:
    """Return what earlier runs of this job did."""
    saved = target.read_json(RUNS) or {}
    return list(saved["runs"]) if saved.get("generation") == target.generation else []


def _save_runs(target: Target, meter: Meter) -> None:
    runs = [*meter.earlier, {**meter.describe(), "total": meter.total, "before": meter.before}]
    target.write_json(RUNS, {"generation": target.generation, "runs": runs})


class _TooManyRejects(InputError):
    """The limit of --max-rejects is exceeded."""


def _check_rejects(totals: Totals, max_rejects: int | None) -> None:
    if max_rejects is None or totals.rejects <= max_rejects:
        return
    first = totals.first_rejects[0] if totals.first_rejects else None
    example = f"; the first: {first.source}, row {first.row}: {first.reason}" if first else ""
    raise _TooManyRejects(
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
