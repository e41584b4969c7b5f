"""The runner: every point in a process of its own, as many at once as seats allow, each recorded when it is done.

A point that crashes, hangs or answers wrong is a failed row with its reason; the others go on. Stopped, even by
kill -9, an experiment loses the points that were under way and no more.
"""

from __future__ import annotations

import json
import math
import select
import socket
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from ridgeline.lab.experiment import rows as making
from ridgeline.lab.experiment.folder import RESULTS, Folder, write_state
from ridgeline.lab.experiment.limits import Limits, Measure, device_of, raised
from ridgeline.lab.experiment.point import Point, distance
from ridgeline.lab.experiment.process import Running
from ridgeline.lab.experiment.seats import Hall, Seat
from ridgeline.lab.record import code, record
from ridgeline.lab.record.record import SCHEMA, Lane, Record
from ridgeline.machine import Topology, facts, weather
from ridgeline.store import lock, publish

LOOK_EVERY_S = 0.5  # a child can die while a process it forked holds its pipe open
WRITE_EVERY_S = 2.0  # results.json in between, or a twentieth of the time if it has grown large


@dataclass(frozen=True)
class Watcher:
    """Who wants to hear how it goes; every hook has a silent default."""

    start: Callable[[int, int], None] = lambda _points, _done: None
    begin: Callable[[Point], None] = lambda _point: None
    end: Callable[[Point, Mapping[str, Any]], None] = lambda _point, _row: None
    say: Callable[[str], None] = lambda _sentence: None


@dataclass(frozen=True)
class Manner:
    """How points are run."""

    workers: int = 1
    contention: bool = False
    shared: bool = False  # other processes run points of this folder too: a cluster's jobs
    command: str = ""
    measure: Measure | None = None  # how a device's ceilings are come by; None: nothing is held against any


def run(points: Sequence[Point], folder: Folder, here: Topology, manner: Manner, watcher: Watcher) -> None:
    """Measure what is not done yet; records.jsonl grows point by point."""
    known = {(r.machine["fingerprint"], r.plan.get("key")): r for r in folder.records()}
    machine, version = facts(here), code.version()
    todo = []
    for point in points:
        old = known.get((machine["fingerprint"], point.key))
        same = old is not None and old.code["tree"] == version["tree"] and old.code["libraries"] == version["libraries"]
        if old is None or not same or not making.done(old):
            todo.append(point)
    watcher.start(len(points), len(points) - len(todo))
    if len(todo) < len(points):
        words = f"{len(points) - len(todo)} of {len(points)} points are done already"
        folder.log(words)
        watcher.say(f"going on: {words}.")
    hall = Hall(points, here, manner.workers, manner.contention)
    limits = _limits(todo, folder, here, manner, watcher)
    with closing(_answers(todo, folder, hall, here, manner, watcher)) as answers:
        for running, seat, answer, before in answers:
            made = _record(running, seat, answer, before, here, machine, version, manner, limits)
            record.append(folder.path, made)
            told = making.row(made)
            folder.log(f"{told['run_id']} {'done' if told['success'] else 'FAILED: ' + str(told['error'])}")
            watcher.end(running.point, told)


def _limits(todo: Sequence[Point], folder: Folder, here: Topology, manner: Manner, watcher: Watcher) -> Limits:
    """The ceilings of all devices, before the first point and with nothing beside it."""
    limits = Limits(folder, here)
    if manner.measure is None:
        return limits
    for device, gpu in {device_of(point): point.gpu for point in todo}.items():
        with ExitStack() as held:
            if limits.missing(device):
                if manner.shared and not manner.contention:
                    _claim(held, folder, Seat(0, tuple(here.usable_cpus), gpu), here)
                folder.log(f"looks for the ceilings of {device}")
            limits.find(device, manner.measure, watcher.say)
    return limits


def _answers(
    todo: list[Point], folder: Folder, hall: Hall, here: Topology, manner: Manner, watcher: Watcher
) -> Generator[tuple[Running, Seat, dict[str, Any], dict[str, Any]], None, None]:
    """(child, seat, what it said, the weather before), as they come."""
    waiting = list(todo)
    folder.runs.mkdir(exist_ok=True)
    with ExitStack() as stack:
        under_way: dict[Running, tuple[Seat, dict[str, Any], ExitStack]] = {}
        while waiting or under_way:
            for point in list(waiting):
                seat = hall.take(point)
                if seat is None:
                    continue
                waiting.remove(point)
                held = stack.enter_context(ExitStack())
                if manner.shared and not manner.contention:
                    _claim(held, folder, seat, here)
                before = _weather(point, here)
                log = folder.runs / f"{point.run_id}.log"
                folder.log(f"{point.run_id} starts on CPUs {_span(seat.cpus)}, memory of node {point.node}")
                watcher.begin(point)
                running = Running(point, seat.cpus, log)
                held.callback(running.close)
                under_way[running] = (seat, before, held)
            patience = min([LOOK_EVERY_S, *(max(0.0, r.left_s) for r in under_way)])
            select.select([r.fd for r in under_way], [], [], patience)
            for running in list(under_way):
                answer = running.poll()
                if answer is not None:
                    seat, before, held = under_way.pop(running)
                    held.close()
                    hall.leave(seat)
                    _keep_files(folder, running.point, answer.pop("files", None) or {})
                    yield running, seat, answer, before


def _claim(held: ExitStack, folder: Folder, seat: Seat, here: Topology) -> None:
    """Wait until no other process of this machine has these CPUs or this GPU; taken in one order by all."""
    place = folder.path / ".seats"
    place.mkdir(exist_ok=True)
    names = [f"cpu{cpu:05}" for cpu in sorted(seat.cpus)]
    if seat.gpu is not None:
        names.append(f"gpu-{here.gpu(seat.gpu).uuid or seat.gpu}")
    for name in names:
        held.enter_context(lock(place / f"{socket.gethostname()}-{name}", timeout=None))


def _keep_files(folder: Folder, point: Point, files: Mapping[str, Any]) -> None:
    for name, content in files.items():
        with publish(folder.runs / f"{point.run_id}.{name}") as temporary:
            temporary.write_text(json.dumps(content))


def _weather(point: Point, here: Topology) -> dict[str, Any]:
    return weather(here.gpu(point.gpu).uuid if point.gpu is not None else None)


def _record(
    running: Running,
    seat: Seat,
    answer: Mapping[str, Any],
    before: dict[str, Any],
    here: Topology,
    machine: Mapping[str, Any],
    version: Mapping[str, Any],
    manner: Manner,
    limits: Limits,
) -> Record:
    point = running.point
    times = answer.get("samples_ns") or ()
    if not all(isinstance(ns, int | float) and 0 < ns < math.inf for ns in times):
        answer = {"failed": "gave a time that is none"}  # it would make the whole file unreadable
    work = {**asdict(point.work), "bytes": dict(point.work.bytes), **(answer.get("work") or {})}
    lane = Lane(
        "ridgeline",
        tuple(answer.get("samples_ns") or ()),
        settings=answer.get("settings") or {},
        placed=answer.get("placed") or {},
        extras=answer.get("extras") or {},
        check=answer.get("check"),
        failure=answer.get("failed"),
    )
    made = Record(
        schema=SCHEMA,
        id=uuid.uuid4().hex,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=point.experiment,
        case=point.case.to_json(),
        work=work,
        placement=({"node": point.node, "cpus": list(seat.cpus), "memory": "bind", "gpu": point.gpu},),
        machine=machine,
        code=version,
        plan={
            "key": point.key,
            "run_id": point.run_id,
            "stand": point.stand,
            "cpu_node": point.cpu_node,
            "device_node": point.cpu_node if point.gpu is None else here.gpu(point.gpu).node,
            "distance": distance(point, here),
            "facts": dict(point.facts),
            "timeout_s": point.timeout_s,
            "workers": manner.workers,
            "contention": manner.contention,
            "duration_s": round(running.seconds, 6),
        },
        race={"rounds": 1, "ended": "done" if lane.failure is None else "failed"},
        weather={"before": before, "after": _weather(point, here)},
        ceilings=limits.of(point, work),
        contenders=(lane,),
        command=manner.command,
    )
    return raised(made)


class Results:
    """results.json and the summary, kept up while points come in."""

    def __init__(self, folder: Folder, state: Mapping[str, Any]) -> None:
        self._folder, self._state = folder, dict(state)
        self._due = 0.0

    def update(self) -> None:
        if time.monotonic() >= self._due:
            self.write(finished=False)

    def write(self, *, finished: bool) -> list[dict[str, Any]]:
        began = time.monotonic()
        found = making.rows(self._folder.records())
        self._folder.write(RESULTS, json.dumps(found, indent=1) + "\n")
        ended = datetime.now(UTC).isoformat(timespec="seconds") if finished else None
        write_state(self._folder, {**self._state, "finished": ended, **making.summary(found)})
        now = time.monotonic()
        self._due = now + max(WRITE_EVERY_S, 20 * (now - began))
        return found


def _span(cpus: Sequence[int]) -> str:
    """Runs of numbers as people write them: 0-3,8."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
