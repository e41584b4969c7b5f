"""What a communicator stands on: its engine, its thread for calls that are waited for later, its counts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, NoReturn, Self

from ridgeline.errors import FabricError, InputError
from ridgeline.fabric.arena import Arena
from ridgeline.fabric.arrays import Flat
from ridgeline.fabric.choice import Choice
from ridgeline.fabric.config import FabricConfig
from ridgeline.fabric.faults import OPS, sentence
from ridgeline.fabric.rendezvous import World
from ridgeline.fabric.ways import ways
from ridgeline.native import Collective

CODE = {name: code for code, name in enumerate(OPS)}


class Handle:
    """A call under way; the arrays belong to it until `wait` returns."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def wait(self) -> Any:
        """The call's result, or its error."""
        return self._future.result()

    def done(self) -> bool:
        return self._future.done()


class Group:
    """The members, and one rank's way to call them."""

    def __init__(self, world: World, config: FabricConfig, *, context: int = 0, members: tuple[int, ...] = ()) -> None:
        self._world, self.config, self._context = world, config, context
        self._members = members or tuple(range(world.size))
        self.rank, self.size = self._members.index(world.rank), len(self._members)
        self._choice = Choice(config, self.size)
        self._next_context = [1] if context == 0 else []
        watched = [_watch(pid) if r != world.rank and r in self._members else -1 for r, pid in enumerate(world.pids)]
        self._engine = Collective(
            world.fd, world.size, context, world.arena_bytes, self._members, self.rank, world.pids, watched, True
        )
        self._engine.small, self._engine.slice = config.small_bytes, config.slice_bytes
        self._ways = ways(config, self.size)
        self._engine.foreign_from, self._engine.foreign_moves_from = (
            self._ways.foreign_bytes,
            self._ways.foreign_move_bytes,
        )
        self._timeout = config.timeout
        self._queue: ThreadPoolExecutor | None = None
        self._inside = threading.local()  # .yes on the thread that works the queue off
        self._algorithms: dict[str, dict[str, int]] = {}
        self._closed = False
        # Operations whose plain arrays go straight into the engine: nothing to choose, nothing under way.
        self._straight = frozenset(self._choice.plain)
        self.arena = Arena(self._engine, world.arena_bytes) if context == 0 else None

    def algorithm(self, op: str, nbytes: int) -> str:
        """Which way a call on so many bytes takes that names none; `direct` is the engine's own."""
        return self._choice.name(op, None, nbytes)

    def stats(self) -> dict[str, Any]:
        """What was done so far: per operation calls, bytes and seconds; whom this rank has waited for."""
        ops: dict[str, dict[str, Any]] = {}
        for name, code in CODE.items():
            calls, moved, ns = self._engine.usage(code)
            if calls:
                by = dict(self._algorithms.get(name, {}))
                by["direct"] = calls - sum(by.values())
                ops[name] = {
                    "calls": calls,
                    "bytes": moved,
                    "seconds": ns / 1e9,
                    "algorithms": {k: v for k, v in by.items() if v},
                }
        waited = [self._engine.waited_ns[m] / 1e9 for m in self._members]
        whole = sum(one["seconds"] for one in ops.values())
        shares = {r: w / whole for r, w in enumerate(waited) if whole and r != self.rank}
        slowest = max(shares, key=lambda r: shares[r], default=None)
        return {"rank": self.rank, "ops": ops, "wait_share": shares, "straggler": slowest}

    def close(self) -> None:
        """Let go of threads; the memory goes when nothing looks at it any more."""
        if not self._closed:
            self._closed, self._straight = True, frozenset()
            if self._queue is not None:
                self._queue.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, size={self.size})"

    def _call(
        self,
        name: str,
        source: Flat,
        target: Flat,
        count: int,
        how: int,
        algorithm: str | None,
        timeout: float | None,
        later: bool,
        root: int,
        out: Any,
    ) -> Any:
        steps = self._choice.steps(name, algorithm, self.rank, root, source.nbytes)
        words = (CODE[name], source.address, target.address, count, source.type, how, root)

        def run(seconds: float) -> int:
            if steps is None:
                return self._engine.run(*words, seconds)
            used = self._algorithms.setdefault(name, {})
            used[steps.name] = used.get(steps.name, 0) + 1
            return self._engine.run_steps(*words, seconds, steps.rows, steps.chunks, steps.widest, steps.code)

        def finish() -> Any:
            _ = source.holds
            target.finish()
            return out

        if later:
            return Handle(self._later().submit(lambda: self._do(run, name, timeout, finish, queued=True)))
        return self._do(run, name, timeout, finish)

    def _do(
        self,
        run: Callable[[float], int],
        name: str,
        timeout: float | None,
        finish: Callable[[], Any] = lambda: None,
        queued: bool = False,
    ) -> Any:
        if self._closed:
            raise FabricError(f"{name}: this communicator is closed.")
        if (
            self._queue is not None and not queued and not getattr(self._inside, "yes", False)
        ):  # calls keep their order: behind those that are under way
            return self._queue.submit(lambda: self._do(run, name, timeout, finish, queued=True)).result()
        code = run(timeout or self._timeout)
        if code:
            self._raise(code, name, timeout)
        return finish()

    def in_order(self, work: Callable[[], Any]) -> Future[Any]:
        """Run `work`, which makes calls, after all calls so far and before all to come, on this group's thread."""

        def run() -> Any:
            self._inside.yes = True
            return work()

        return self._later().submit(run)

    def _later(self) -> ThreadPoolExecutor:
        if self._queue is None:
            self._straight = frozenset()
            self._queue = ThreadPoolExecutor(1, thread_name_prefix="fabric")
        return self._queue

    def _raise(self, code: int, name: str, timeout: float | None) -> NoReturn:
        raise FabricError(
            sentence(
                self._engine, code, name, self.rank, self._members, self._world.pids, timeout or self.config.timeout
            )
        )

    def _one_of_us(self, root: int, what: str) -> None:
        if not 0 <= root < self.size:
            raise InputError(f"{what}: root is {root}; it must be one of the ranks 0 to {self.size - 1}.")

    def _other(self, peer: int, what: str) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise InputError(f"{what}: rank {peer} is no other rank of {self.size}.")


def _watch(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1  # an old kernel: then only the deadline tells
