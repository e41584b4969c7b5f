"""The engine `ray`: one actor per worker, anywhere in a Ray cluster.

An actor reads its chunks from the source and writes its parts to the target, so the driver only hands out chunks and
commits. If an actor or its node dies, its chunks go to other actors, and a new actor starts as soon as the cluster has
room. Ray itself reads RAY_ADDRESS, RAY_AUTH_MODE and RAY_AUTH_TOKEN; the token stays out of all messages.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ridgeline.bulk.engines import TRIES, Death, Factory
from ridgeline.bulk.storage import is_url
from ridgeline.bulk.target import JOB
from ridgeline.errors import InputError, MissingExtra, StoreError, WorkerError

QUEUE = 2  # chunks of an actor: the one it computes, and the next
WAIT_S = 1.0
CONNECT_S = 10.0
START_S = 600.0  # for the first actor
MAX_ACTORS = 4096
# Of a cluster that this command starts. Ray runs its workers at niceness 15, so every other process of the machine,
# Ray's log monitor included, takes CPU time from them; processes of the engine `local` have the usual priority.
OWN_CLUSTER = {"worker_niceness": 0}


def require_ray() -> None:
    """Raise MissingExtra without Ray."""
    try:
        import ray as ray
    except ImportError:
        raise MissingExtra("--engine ray (the extra ridgeline[ray])", "ray") from None


def check_reachable(address: str | None) -> None:
    """Raise InputError if nothing listens at the address of a cluster; Ray itself tries for minutes."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto", or this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray cluster answers at '{address}': {error}; check the address.") from None


def check_token(address: str | None) -> None:
    """Raise InputError if the cluster at host:port refuses the token; `ray.init` repeats that for a minute or more."""
    if address is None or "://" in address or not address.rpartition(":")[2].isdecimal():
        return  # "auto", this machine, or Ray's client, which is another protocol
    from ray import _raylet

    # `ray.init` connects with it. It is not public: if it is missing or changed, `ray.init` says what is wrong.
    connect = getattr(_raylet, "GcsClient", None)
    try:
        if connect is not None:
            connect(address=address)
    except Exception as error:
        if type(error).__name__ == "AuthenticationError":
            raise InputError(
                f"the Ray cluster at '{address}' refuses the token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or "
                "RAY_AUTH_TOKEN_PATH to those of the cluster."
            ) from None


class Actor:
    """Runs in the cluster: makes the worker of its device and runs its chunks."""

    def __init__(self, factory: Factory, device: str, target: str) -> None:
        if not is_url(target) and not Path(target, JOB).is_file():
            raise StoreError(
                f"the target '{target}' is not on every machine of the cluster; give a shared folder or a URL."
            )
        self._run = factory(device)

    def ready(self) -> bool:
        """Answer when the worker is made."""
        return True

    def run(self, task: Any) -> tuple[Any, float]:
        """Run one chunk; return its outcome and the seconds it took."""
        started = time.perf_counter()
        outcome = self._run(task)
        return outcome, time.perf_counter() - started


@dataclass(eq=False)
class _Worker:
    """The driver's side of an actor."""

    number: int
    handle: Any
    starting: Any  # the reference that resolves when it is ready; None then
    tasks: deque[tuple[Any, Any]] = field(default_factory=deque)  # (reference, task), in the order they run
    since: float = 0.0  # of its last answer


class RayEngine(AbstractContextManager["RayEngine"]):
    """Actors of a Ray cluster."""

    def __init__(
        self, factory: Factory, device: str, workers: int | None, address: str | None, timeout: float | None
    ) -> None:
        require_ray()
        if workers is not None and not 1 <= workers <= MAX_ACTORS:
            raise InputError(f"--workers is {workers}; give 1 to {MAX_ACTORS}.")
        if device not in ("auto", "cpu", "cuda", "cuda:all"):
            raise InputError(f"--device '{device}': Ray chooses the GPUs of its nodes; give auto, cpu or cuda.")
        self._factory, self._device, self._count = factory, device, workers
        self._address, self._timeout = address, timeout
        self._workers: list[_Worker] = []
        self._busy: dict[str, float] = {}
        self._deaths: dict[int, int] = {}  # by the id of a task
        self._failed_starts = 0
        self.devices: list[str] = []
        self.units = 0

    def __enter__(self) -> Self:
        import ray

        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
        if self._address is None and not os.environ.get("RAY_ADDRESS"):
            settings |= {"address": "local", "include_dashboard": False, "_system_config": _choose_ray_settings()}
        elif self._address is not None:
            settings["address"] = self._address
        check_reachable(self._address or os.environ.get("RAY_ADDRESS"))
        check_token(self._address or os.environ.get("RAY_ADDRESS"))
        logger = logging.getLogger("ray")
        level = logger.level
        logger.setLevel(logging.ERROR)  # `logging_level` counts only after some warnings
        try:
            ray.init(**settings)
        except Exception as error:  # Ray raises errors of many kinds
            where = f"at '{self._address}'" if self._address else "on this machine"
            raise InputError(
                f"no Ray cluster answers {where}: {_hide_token(str(error))}; check the address and RAY_AUTH_TOKEN."
            ) from None
        finally:
            logger.setLevel(level)
        resources = ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
        on_gpu = self._device.startswith("cuda") or (self._device == "auto" and gpus > 0)
        if on_gpu and not gpus:
            ray.shutdown()
            raise InputError("no node of the Ray cluster has a GPU; use --device cpu.")
        count = self._count or (gpus if on_gpu else cpus)
        if not count:
            ray.shutdown()
            raise InputError("the Ray cluster has no free CPU for a worker; give its nodes --num-cpus.")
        self._options = {"num_gpus": 1, "num_cpus": 1} if on_gpu else {"num_cpus": 1}
        self._target = self._factory.target  # type: ignore[attr-defined]
        self.devices = ["cuda" if on_gpu else "cpu"] * count
        self.units = count if on_gpu else sum(bool(node["Alive"]) for node in ray.nodes())
        for number in range(count):
            self._workers.append(self._start(number))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        for worker in self._workers:
            with suppress(Exception):
                ray.kill(worker.handle)
        self._workers = []
        ray.shutdown()

    def busy_seconds(self) -> dict[str, float]:
        """Return the busy seconds of each worker."""
        return dict(self._busy)

    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield (task, outcome) for each task, as they end."""
        import ray

        source = iter(tasks)
        again: deque[Any] = deque()
        started = time.monotonic()
        while True:
            self._hand_out(source, again)
            waiting = {worker.starting: worker for worker in self._workers if worker.starting is not None}
            running = {worker.tasks[0][0]: worker for worker in self._workers if worker.tasks}
            if not running and not again and self._is_empty(source, again):
                return
            done, _ = ray.wait([*waiting, *running], num_returns=1, timeout=WAIT_S)
            for reference in done:
                worker = waiting.get(reference) or running[reference]
                try:
                    answer = ray.get(reference)
                except ray.exceptions.RayActorError as error:
                    yield from self._replace(worker, again, error)
                    continue
                except ray.exceptions.RayTaskError as error:
                    raise WorkerError(
                        f"a worker of the Ray cluster failed: {_hide_token(_find_cause(error))}"
                    ) from None
                worker.since = time.monotonic()
                if worker.starting is not None:
                    worker.starting, self._failed_starts = None, 0
                    self._busy.setdefault(f"{worker.number} {self.devices[0]}", 0.0)
                else:
                    _, task = worker.tasks.popleft()
                    outcome, seconds = answer
                    name = f"{worker.number} {self.devices[0]}"
                    self._busy[name] = self._busy.get(name, 0.0) + seconds
                    yield task, outcome
            self._end_slow()
            if not self._busy and time.monotonic() - started > START_S:
                raise WorkerError(f"no worker of the Ray cluster started within {START_S:.0f} s; look at `ray status`.")

    def _is_empty(self, source: Iterator[Any], again: deque[Any]) -> bool:
        task = next(source, None)
        if task is not None:
            again.append(task)
        return task is None

    def _hand_out(self, source: Iterator[Any], again: deque[Any]) -> None:
        for depth in range(QUEUE):  # every worker gets a first chunk before one gets a second
            for worker in self._workers:
                if worker.starting is not None or len(worker.tasks) > depth:
                    continue
                task = again.popleft() if again else next(source, None)
                if task is None:
                    return
                if not worker.tasks:
                    worker.since = time.monotonic()
                worker.tasks.append((worker.handle.run.remote(task), task))

    def _start(self, number: int) -> _Worker:
        import ray

        make = ray.remote(max_restarts=0, max_task_retries=0, **self._options)(Actor)
        handle = make.remote(self._factory, self.devices[number], self._target)
        return _Worker(number, handle, handle.ready.remote())

    def _replace(self, worker: _Worker, again: deque[Any], error: Exception) -> Iterator[tuple[Any, Any]]:
        """Start an actor in the place of a dead one; its chunks run again, unless the first one ended too many."""
        text = _hide_token(_find_cause(error))
        node_died = "node" in text.lower()
        if worker.starting is not None and not node_died:
            self._failed_starts += 1
            if self._failed_starts >= TRIES:
                raise WorkerError(f"a worker of the Ray cluster could not start: {text}")
        for index, (_, task) in enumerate(worker.tasks):
            if index == 0 and not node_died:
                self._deaths[id(task)] = self._deaths.get(id(task), 0) + 1
                if self._deaths[id(task)] >= TRIES:
                    yield task, Death(f"its worker died {TRIES} times, last: {text}")
                    continue
            again.append(task)
        self._workers[worker.number] = self._start(worker.number)

    def _end_slow(self) -> None:
        """End actors whose chunk takes longer than the limit."""
        import ray

        if self._timeout is None:
            return
        for worker in self._workers:
            if worker.tasks and worker.starting is None and time.monotonic() - worker.since > self._timeout:
                ray.kill(worker.handle)
                worker.since = time.monotonic()


def _choose_ray_settings() -> dict[str, Any]:
    """Return the settings of a cluster that this command starts, without those that the environment makes."""
    return {name: value for name, value in OWN_CLUSTER.items() if f"RAY_{name}" not in os.environ}


def _find_cause(error: Exception) -> str:
    """Return the sentence of an error of the worker, not Ray's report around it."""
    cause = getattr(error, "cause", None)
    text = str(cause) if cause is not None else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if "ridgeline.errors." in line]
    return raised[-1].partition(": ")[2] if raised else " ".join(lines)[:500]


def _hide_token(text: str) -> str:
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    return " ".join((text.replace(token, "…") if token else text).split())
