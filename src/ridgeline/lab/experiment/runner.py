"""The runner: every point in its own process, as many at once as slots allow, each recorded when it is done.

A point that crashes, exceeds its timeout or answers wrong is a failed row with its reason; the others continue. An
experiment that is stopped, even by kill -9, loses only the points that were running.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.lab.experiment.ceilings import DeviceCeilings, MeasureCeilings, raise_to_result
from ridgeline.lab.experiment.folder import ExperimentFolder
from ridgeline.lab.experiment.point import Point, get_distance
from ridgeline.lab.experiment.slots import Slot, Slots
from ridgeline.lab.record import SCHEMA, ContenderResult, Record, append_record, describe_code
from ridgeline.lab.study.rows import build_row, is_done
from ridgeline.machine import Topology, describe_machine, read_machine_state
from ridgeline.store import lock, publish

POLL_S = 0.5  # a child can die while a process that it forked holds its pipe open
LOG_TAIL = 64 << 10  # bytes of a log that are searched for the last line
READ_BYTES = 1 << 20
CHILD = "ridgeline.lab.experiment.child"
SLOT_LOCKS = ".seats"  # folder of lock files for CPUs and GPUs; older jobs of a cluster use this name too


@dataclass(frozen=True)
class ProgressHooks:
    """Functions that a run calls to report progress; each has a default that does nothing.

    on_start    (points, points that are done already)
    on_begin    a point starts
    on_end      a point is recorded, with its row
    on_message  a sentence for people
    """

    on_start: Callable[[int, int], None] = lambda _points, _done: None
    on_begin: Callable[[Point], None] = lambda _point: None
    on_end: Callable[[Point, Mapping[str, Any]], None] = lambda _point, _row: None
    on_message: Callable[[str], None] = lambda _sentence: None


@dataclass(frozen=True)
class RunOptions:
    """How points are run.

    workers           points at the same time, as far as slots allow
    contention        let points share GPUs and CPUs
    shared            other processes run points of this folder too: jobs of a cluster
    command           the command line, for the records
    measure_ceilings  measures the ceilings of a device; None: records have no ceilings
    """

    workers: int = 1
    contention: bool = False
    shared: bool = False
    command: str = ""
    measure_ceilings: MeasureCeilings | None = None


def run_points(
    points: Sequence[Point], folder: ExperimentFolder, machine: Topology, options: RunOptions, hooks: ProgressHooks
) -> None:
    """Measure the points that the folder does not have yet, and append a record for each to records.jsonl."""
    known = {(r.machine["fingerprint"], r.plan.get("key")): r for r in folder.records()}
    machine_facts, code = describe_machine(machine), describe_code()
    remaining = []
    for point in points:
        old = known.get((machine_facts["fingerprint"], point.key))
        same_code = old is not None and all(old.code[name] == code[name] for name in ("tree", "libraries"))
        if old is None or not same_code or not is_done(old):
            remaining.append(point)
    hooks.on_start(len(points), len(points) - len(remaining))
    if len(remaining) < len(points):
        message = f"{len(points) - len(remaining)} of {len(points)} points are done already"
        folder.log(message)
        hooks.on_message(f"resuming: {message}.")
    slots = Slots(points, machine, options.workers, options.contention)
    ceilings = _load_ceilings(remaining, folder, machine, options, hooks)
    context = _RunContext(machine, machine_facts, code, options, ceilings)
    with closing(_run_processes(remaining, folder, slots, machine, options, hooks)) as answers:
        for process, slot, answer, state_before in answers:
            record = _build_record(process, slot, answer, state_before, context)
            append_record(folder.path, record)
            row = build_row(record)
            folder.log(f"{row['run_id']} {'done' if row['success'] else 'FAILED: ' + str(row['error'])}")
            hooks.on_end(process.point, row)


class PointProcess:
    """The process of one point. `poll` returns its answer once there is one, or {"failed": reason}."""

    def __init__(self, point: Point, cpus: tuple[int, ...], log: Path) -> None:
        self.point, self.cpus, self.log = point, cpus, log
        self.start = time.monotonic()
        request = json.dumps({**point.to_json(), "cpus": cpus}).encode()
        self.fd, child_fd = os.pipe()
        lifeline, self._lifeline = os.pipe()
        try:
            with log.open("ab") as out:
                self._child = subprocess.Popen(
                    [sys.executable, "-m", CHILD, str(child_fd), str(lifeline), str(os.getpid())],
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=out,
                    pass_fds=(child_fd, lifeline),
                    start_new_session=True,  # the parent handles Ctrl-C, and can end the child's process group
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                )
        finally:
            os.close(child_fd)
            os.close(lifeline)
        os.set_blocking(self.fd, False)
        self._received = b""
        assert self._child.stdin is not None  # noqa: S101  stdin is a pipe
        with suppress(BrokenPipeError):  # the child is dead; poll returns the reason
            self._child.stdin.write(request)
            self._child.stdin.close()

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return time.monotonic() - self.start

    @property
    def left_s(self) -> float:
        """The time until the timeout."""
        return self.point.timeout_s - self.seconds

    def poll(self) -> dict[str, Any] | None:
        """Return the answer, or {"failed": reason}; None while the point is running."""
        exited = self._child.poll() is not None
        complete = self._receive()
        if complete or exited:
            with suppress(ValueError):
                answer = json.loads(self._received, parse_constant=lambda _: None)
                if isinstance(answer, dict):
                    return answer
            return {"failed": self._describe_exit()}
        if self.left_s <= 0:
            self._kill_group()
            return {"failed": f"gave no answer within {self.point.timeout_s:g} s and was stopped"}
        return None

    def close(self) -> None:
        """End the child and all processes it started; a second call does nothing."""
        if self._child.returncode is None:
            self._kill_group()
            self._child.wait()
        for fd in (self.fd, self._lifeline):
            with suppress(OSError):
                os.close(fd)
        self.fd = self._lifeline = -1

    def _receive(self) -> bool:
        """Read from the pipe; return True at its end."""
        with suppress(BlockingIOError):
            while piece := os.read(self.fd, READ_BYTES):
                self._received += piece
            return True
        return False

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def _describe_exit(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(5)
        code = self._child.returncode
        self._kill_group()  # ends processes that the child forked
        if code is None:
            exit_words = "closed its pipe"
        else:
            exit_words = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - LOG_TAIL))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        return f"{exit_words}: {lines[-1][:300]}" if lines else exit_words


@dataclass(frozen=True)
class _RunContext:
    """What all records of a run share."""

    machine: Topology
    machine_facts: Mapping[str, Any]
    code: Mapping[str, Any]
    options: RunOptions
    ceilings: DeviceCeilings


def _load_ceilings(
    points: Sequence[Point], folder: ExperimentFolder, machine: Topology, options: RunOptions, hooks: ProgressHooks
) -> DeviceCeilings:
    """Load the ceilings of all devices before the first point, while nothing else runs."""
    ceilings = DeviceCeilings(folder, machine)
    if options.measure_ceilings is None:
        return ceilings
    for device, gpus in {point.device_name: point.gpus[:1] for point in points}.items():
        with ExitStack() as locks:
            if ceilings.is_missing(device):
                if options.shared and not options.contention:
                    _lock_slot(locks, folder, Slot(0, tuple(machine.usable_cpus), gpus), machine)
                folder.log(f"looks for the ceilings of {device}")
            ceilings.load(device, options.measure_ceilings, hooks.on_message)
    return ceilings


def _run_processes(
    points: Sequence[Point],
    folder: ExperimentFolder,
    slots: Slots,
    machine: Topology,
    options: RunOptions,
    hooks: ProgressHooks,
) -> Generator[tuple[PointProcess, Slot, dict[str, Any], dict[str, Any]], None, None]:
    """Yield (process, slot, answer, state of the machine before), in the order of the answers."""
    waiting = list(points)
    folder.runs.mkdir(exist_ok=True)
    with ExitStack() as stack:
        running: dict[PointProcess, tuple[Slot, dict[str, Any], ExitStack]] = {}
        while waiting or running:
            for point in list(waiting):
                slot = slots.take(point)
                if slot is None:
                    continue
                waiting.remove(point)
                resources = stack.enter_context(ExitStack())
                if options.shared and not options.contention:
                    _lock_slot(resources, folder, slot, machine)
                state_before = _read_state(point, machine)
                log = folder.runs / f"{point.run_id}.log"
                folder.log(f"{point.run_id} starts on CPUs {_format_cpus(slot.cpus)}, memory of node {point.node}")
                hooks.on_begin(point)
                process = PointProcess(point, slot.cpus, log)
                resources.callback(process.close)
                running[process] = (slot, state_before, resources)
            timeout_s = min([POLL_S, *(max(0.0, process.left_s) for process in running)])
            select.select([process.fd for process in running], [], [], timeout_s)
            for process in list(running):
                answer = process.poll()
                if answer is not None:
                    slot, state_before, resources = running.pop(process)
                    resources.close()
                    slots.release(slot)
                    _save_files(folder, process.point, answer.pop("files", None) or {})
                    yield process, slot, answer, state_before


def _lock_slot(locks: ExitStack, folder: ExperimentFolder, slot: Slot, machine: Topology) -> None:
    """Wait until no other process of this machine uses these CPUs or GPUs. All processes lock in one order."""
    locks_folder = folder.path / SLOT_LOCKS
    locks_folder.mkdir(exist_ok=True)
    names = [f"cpu{cpu:05}" for cpu in sorted(slot.cpus)]
    names += [f"gpu-{machine.gpu(gpu).uuid or gpu}" for gpu in sorted(slot.gpus)]
    for name in names:
        locks.enter_context(lock(locks_folder / f"{socket.gethostname()}-{name}", timeout=None))


def _save_files(folder: ExperimentFolder, point: Point, files: Mapping[str, Any]) -> None:
    for name, content in files.items():
        with publish(folder.runs / f"{point.run_id}.{name}") as temporary:
            temporary.write_text(json.dumps(content))


def _read_state(point: Point, machine: Topology) -> dict[str, Any]:
    return read_machine_state(machine.gpu(point.gpu).uuid if point.gpu is not None else None)


def _build_record(
    process: PointProcess, slot: Slot, answer: Mapping[str, Any], state_before: dict[str, Any], context: _RunContext
) -> Record:
    point, machine, options = process.point, context.machine, context.options
    times = answer.get("samples_ns") or ()
    if not all(isinstance(ns, int | float) and 0 < ns < math.inf for ns in times):
        # A record with such a time would make the file unreadable.
        answer = {"failed": "returned a time that is not a positive number"}
    work = {**asdict(point.work), "bytes": dict(point.work.bytes), **(answer.get("work") or {})}
    result = ContenderResult(
        "ridgeline",
        tuple(answer.get("samples_ns") or ()),
        settings=answer.get("settings") or {},
        placed=answer.get("placed") or {},
        extras=answer.get("extras") or {},
        check=answer.get("check"),
        failure=answer.get("failed"),
    )
    record = Record(
        schema=SCHEMA,
        id=uuid.uuid4().hex,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=point.experiment,
        case=point.case.to_json(),
        work=work,
        placement=({"node": point.node, "cpus": list(slot.cpus), "memory": "bind", "gpu": point.gpu},),
        machine=context.machine_facts,
        code=context.code,
        plan={
            "key": point.key,
            "run_id": point.run_id,
            "placement": point.placement,
            "cpu_node": point.cpu_node,
            "device_node": point.cpu_node if point.gpu is None else machine.gpu(point.gpu).node,
            "distance": get_distance(point, machine),
            **({"gpu_ids": list(point.gpus)} if point.partners else {}),
            "facts": dict(point.facts),
            "timeout_s": point.timeout_s,
            "workers": options.workers,
            "contention": options.contention,
            "duration_s": round(process.seconds, 6),
        },
        race={"rounds": 1, "ended": "done" if result.failure is None else "failed"},
        conditions={"before": state_before, "after": _read_state(point, machine)},
        ceilings=context.ceilings.describe(point, work),
        contenders=(result,),
        command=options.command,
    )
    return raise_to_result(record)


def _format_cpus(cpus: Sequence[int]) -> str:
    """Return CPU numbers as ranges: 0-3,8."""
    ranges: list[list[int]] = []
    for cpu in cpus:
        if ranges and cpu == ranges[-1][-1] + 1:
            ranges[-1].append(cpu)
        else:
            ranges.append([cpu])
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ranges)
