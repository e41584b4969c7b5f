"""Run the chunks of a job on workers: processes of this machine, or actors of a Ray cluster.

Both engines take the same factory, call it once in each worker with the device, and give back (task, outcome) pairs. A
worker that dies costs the chunk it had, which runs again; a chunk that ends several workers comes back as `Death`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from ridgeline.errors import ChunkError, InputError
from ridgeline.machine import has_cuda_build, parse_devices, topology
from ridgeline.pipeline import pool

CORES_PER_WORKER = 2  # of a GPU: its workers read, tokenize, hash and write while others of them compute
MIN_WORKERS, MAX_WORKERS = 2, 8  # for each GPU
TRIES = 2  # workers that a chunk may end

Factory = Callable[[str], Callable[[Any], Any]]


@dataclass(frozen=True)
class Death:
    """A chunk ended its workers; `reason` says how."""

    reason: str


class LocalEngine(AbstractContextManager["LocalEngine"]):
    """One or more processes per device of this machine, each placed near its device."""

    def __init__(self, factory: Factory, devices: list[str], timeout: float | None = None) -> None:
        self.devices = devices
        self.units = len(set(devices))
        self._pool: Any = pool(factory, devices, timeout=timeout, tries=TRIES)

    def __enter__(self) -> Self:
        self._pool.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.__exit__(kind, error, trace)

    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield (task, outcome) for each task."""
        source = iter(tasks)
        again: deque[Any] = deque()  # tasks that were given out when a map ended with an error
        while True:
            given: deque[Any] = deque()

            def give(given: deque[Any] = given) -> Iterator[Any]:
                while again or (task := next(source, None)) is not None:
                    given.append(again.popleft() if again else task)
                    yield given[-1]

            done = 0
            try:
                for outcome in self._pool.map(give()):
                    done += 1
                    yield given.popleft(), outcome
                return
            except ChunkError as error:
                position = error.index - done
                if error.kind or not 0 <= position < len(given):
                    raise
                failed = given[position]
                again.extend(task for index, task in enumerate(given) if index != position)
                yield failed, Death(str(error).partition(": ")[2].rstrip("."))

    def busy_seconds(self) -> dict[str, float]:
        """Return the busy seconds of each worker."""
        return {f"{stats.worker} {stats.device}": stats.busy_s for stats in self._pool.stats()}


def choose_devices(text: str) -> list[str]:
    """Return the devices of "auto" (every GPU, or the CPU), "cpu", "cuda:0,cuda:1" or "cuda:all"."""
    gpus = [f"cuda:{gpu.index}" for gpu in topology().gpus] if has_cuda_build() else []
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["auto"]:
        return gpus or ["cpu"]
    if words == ["cuda:all"] and gpus:
        return gpus
    known = {"cpu", "cuda", *gpus} if gpus else {"cpu"}
    # The driver needs no torch; where a name is not known, its rules and its messages count.
    devices = words if words and known.issuperset(words) else parse_devices(text)
    if len(set(devices)) != len(devices):
        raise InputError(f"--device '{text}' names a device twice; name each once, and give --workers.")
    return devices


def spread_workers(devices: list[str], workers: int | None) -> list[str]:
    """Return the device of each worker: by default two to eight for each GPU, one for each NUMA node of a CPU."""
    if workers is not None and workers < 1:
        raise InputError(f"--workers is {workers}; give 1 or more.")
    if devices == ["cpu"]:
        nodes = {cpu.node for cpu in topology().cpus if cpu.usable}
        return ["cpu"] * (workers or len(nodes))
    cores = sum(cpu.usable for cpu in topology().cpus) // len(devices)
    count = workers or len(devices) * min(MAX_WORKERS, max(MIN_WORKERS, cores // CORES_PER_WORKER))
    return [devices[number % len(devices)] for number in range(count)]
