"""The base of a communicator: its engine, its thread for asynchronous calls, its statistics."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np

from ridgeline.errors import FabricError, InputError
from ridgeline.fabric.arrays import SIZES, FlatArray
from ridgeline.fabric.config import FabricConfig
from ridgeline.fabric.failure_messages import FAILED_BEFORE, FORKED, OPS, describe_failure
from ridgeline.fabric.network_rendezvous import NetworkWorld
from ridgeline.fabric.rendezvous import World
from ridgeline.fabric.schedule_types import Schedule
from ridgeline.fabric.selection import AlgorithmChoice, RankProgram, choose_thresholds
from ridgeline.fabric.shared_buffers import forget_arena, make_arena
from ridgeline.fabric.telemetry import Trace
from ridgeline.native import FABRIC_FRAGMENT_BYTES, Collective, NetworkCollective

OP_CODES = {name: code for code, name in enumerate(OPS)}


class Handle:
    """A call in progress; do not use its arrays until `wait` returns."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def wait(self) -> Any:
        """Wait for the call; return its result or raise its error."""
        return self._future.result()

    def done(self) -> bool:
        """Whether the call has ended."""
        return self._future.done()


class Group:
    """The members of a group, and the calls of one rank."""

    def __init__(
        self, world: World | NetworkWorld, config: FabricConfig, *, context: int = 0, members: tuple[int, ...] = ()
    ) -> None:
        self._world, self.config, self._context = world, config, context
        self._members = members or tuple(range(world.size))
        self._world_ranks = self._members
        self.rank, self.size = self._members.index(world.rank), len(self._members)
        self._ranks = range(self.size)
        self._next_context = [1] if context == 0 else []
        engine: Any = world.make_engine(config, context, self._members)  # of one of two classes
        self._engine = engine
        if isinstance(world, NetworkWorld):
            part = world.membership.choose(self._world_ranks, 0)
            self._choice = AlgorithmChoice(config, self.size, [member.host for member in part.members], part.choice)
        else:
            self._choice = AlgorithmChoice(config, self.size)
        self._thresholds = choose_thresholds(config, self.size)
        if isinstance(engine, Collective):
            engine.small, engine.slice = config.small_bytes, config.slice_bytes
            engine.foreign_from = self._thresholds.foreign_bytes
            engine.foreign_moves_from = self._thresholds.foreign_move_bytes
        elif context:
            self._members = tuple(range(self.size))  # the engine of a part numbers its own ranks
        self._is_network = isinstance(world, NetworkWorld)
        if isinstance(world, NetworkWorld):
            self._transports = [world.membership.get_transport(r) for r in self._world_ranks]
        self._timeout = config.timeout
        self._queue: ThreadPoolExecutor | None = None
        self._thread_state = threading.local()  # .in_queue is True on the thread of the queue
        self._algorithms: dict[str, dict[str, int]] = {}
        self._closed = False
        self._close_hooks: list[Callable[[], None]] = []
        self._owns_listener = context == 0
        # Operations that call the engine directly: there is no choice of algorithm and no call in progress.
        self._trace = Trace(config.trace, world.rank) if config.trace and context == 0 else None
        self._direct_ops = frozenset(self._choice.native_ops if self._trace is None else ())
        self.arena = make_arena(engine, world.arena_bytes) if context == 0 else None

    def algorithm(self, op: str, nbytes: int) -> str:
        """Return the algorithm of a call on `nbytes` bytes that names no algorithm; `direct` is the native one."""
        return self._choice.get_name(op, None, nbytes)

    @property
    def has_failed(self) -> bool:
        """Whether a dead or late rank has ended this communicator; then every call raises FabricError."""
        return self._engine.first_failure is not None

    def stats(self) -> dict[str, Any]:
        """Return calls, bytes and seconds per operation, and the share of time that this rank waited for each other."""
        ops: dict[str, dict[str, Any]] = {}
        for name, code in OP_CODES.items():
            calls, nbytes, ns = self._engine.usage(code)
            if calls:
                by_name = dict(self._algorithms.get(name, {}))
                by_name["direct"] = calls - sum(by_name.values())
                ops[name] = {
                    "calls": calls,
                    "bytes": nbytes,
                    "seconds": ns / 1e9,
                    "algorithms": {k: v for k, v in by_name.items() if v},
                }
        waited = [self._engine.waited_ns[m] / 1e9 for m in self._members]
        total = sum(usage["seconds"] for usage in ops.values())
        shares = {r: w / total for r, w in enumerate(waited) if total and r != self.rank}
        slowest = max(shares, key=lambda r: shares[r], default=None)
        return {
            "rank": self.rank,
            "ops": ops,
            "wait_share": shares,
            "straggler": slowest,
            "peers": {r: self._describe_peer(r) for r in self._ranks if r != self.rank},
            "strangers": sum(self._world.list_strangers().values()) + self._count_strange_packets(),
        }

    def _count_strange_packets(self) -> int:
        if isinstance(self._engine, Collective):
            return 0
        return sum(self._engine.link_state(r)[2] for r in self._ranks if r != self.rank)

    def _describe_peer(self, rank: int) -> dict[str, Any]:
        """What this rank exchanged with another one (over shared memory, which all ranks read: what it gave)."""
        engine, waited = self._engine, self._engine.waited_ns[self._members[rank]] / 1e9
        if isinstance(engine, Collective):
            usages = [engine.usage(code) for code in OP_CODES.values()]
            nbytes, seconds = sum(u[1] for u in usages), sum(u[2] for u in usages) / 1e9
            row: dict[str, Any] = {"transport": "shm", "streams": 1, "bytes": nbytes, "seconds": seconds}
            ops = {
                name: {"calls": u[0], "sent": u[1], "received": 0, "seconds": u[2] / 1e9}
                for name, u in zip(OP_CODES, usages, strict=True)
                if u[0]
            }
            return row | {"waiting": waited, "retransmissions": 0, "rtt": None, "ops": ops}
        rows = {name: engine.peer_usage(rank, code) for name, code in OP_CODES.items()}
        rtt_ns, retransmissions, _ = engine.link_state(rank)
        return {
            "transport": self._transports[rank],
            "streams": self.config.streams,
            "bytes": sum(row[1] + row[2] for row in rows.values()),
            "seconds": sum(row[3] for row in rows.values()) / 1e9,
            "waiting": waited,
            "retransmissions": retransmissions,
            "rtt": rtt_ns / 1e9 if rtt_ns else None,
            "ops": {
                name: {"calls": calls, "sent": sent, "received": received, "seconds": ns / 1e9}
                for name, (calls, sent, received, ns) in rows.items()
                if calls
            },
        }

    def close(self) -> None:
        """End the threads; the memory is freed with its last array."""
        if not self._closed:
            self._closed, self._direct_ops = True, frozenset()
            if self.arena is not None:
                forget_arena(self.arena)
            for hook in self._close_hooks:
                hook()
            if self._queue is not None:
                self._queue.shutdown(wait=True)
            if isinstance(self._engine, NetworkCollective):
                self._engine.end()
            if self._trace is not None:
                self._trace.close()
            if self._owns_listener and self._world.membership is not None:
                self._world.membership.listener.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def lend_engine(
        self, register: Callable[[Any, Callable[[int, str], str]], None], forget: Callable[[], None]
    ) -> None:
        """Give the engine, and a function that describes its errors, to another caller until `close`, which calls
        `forget`."""
        register(self._engine, lambda code, name: self._describe(code, name, None))
        self._close_hooks.append(forget)

    def abort(self) -> None:
        """End this communicator on all ranks: calls in progress and all later ones raise FabricError. Any thread may
        call it."""
        self._engine.abort()

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
        source: FlatArray,
        target: FlatArray,
        count: int,
        reduction: int,
        program: RankProgram | None,
        timeout: float | None,
        async_op: bool,
        root: int,
        out: Any,
    ) -> Any:
        """Run a call whose arguments are checked; `program` is None for the native algorithm."""
        arguments = (OP_CODES[name], source.address, target.address, count, source.type, reduction, root)

        def run(seconds: float) -> int:
            if program is None:
                return int(self._engine.run(*arguments, seconds, source.name))
            used = self._algorithms.setdefault(name, {})
            used[program.name] = used.get(program.name, 0) + 1
            code: int = self._engine.run_steps(
                *arguments,
                seconds,
                source.name,
                program.rows,
                program.chunks,
                program.widest,
                program.code,
                program.schedule_hash,
            )
            return code

        def finish() -> Any:
            _ = source.owner  # alive until here
            target.finish()
            return out

        if async_op:
            self._check_usable(name)
            return Handle(self._get_queue().submit(lambda: self._run(run, name, timeout, finish, queued=True)))
        return self._run(run, name, timeout, finish)

    def _run(
        self,
        run: Callable[[float], int],
        name: str,
        timeout: float | None,
        finish: Callable[[], Any] = lambda: None,
        queued: bool = False,
    ) -> Any:
        if self._closed:
            raise FabricError(f"{name}: this communicator is closed.")
        if self._queue is not None and not queued and not getattr(self._thread_state, "in_queue", False):
            self._check_usable(name)
            # Calls keep their order: this one runs after those in progress.
            return self._queue.submit(lambda: self._run(run, name, timeout, finish, queued=True)).result()
        seconds = self._timeout if timeout is None else float(timeout)
        code = (
            run(seconds)
            if self._trace is None
            else self._trace.measure(name, self._read_progress, lambda: run(seconds))
        )
        if code:
            self._raise(code, name, timeout)
        return finish()

    def _read_progress(self) -> tuple[int, int]:
        """Bytes of all calls and nanoseconds of waiting so far."""
        return sum(self._engine.usage(code)[1] for code in OP_CODES.values()), sum(self._engine.waited_ns)

    def _check_usable(self, name: str) -> None:
        """Raise FabricError if no call can succeed; the engine checks it again when a call starts."""
        if self._closed:
            raise FabricError(f"{name}: this communicator is closed.")
        if self._engine.is_forked:  # the thread of the queue exists in the parent only
            self._raise(FORKED, name, None)
        if self._engine.first_failure is not None:
            self._raise(FAILED_BEFORE, name, None)

    def _refuse(self, name: str) -> None:
        """Count a call whose arguments this rank refuses: the other ranks get an error in it, and all can go on."""
        self._check_usable(name)

        def announce() -> None:
            code = self._engine.refuse(OP_CODES[name], self._timeout)
            if code:
                self._raise(code, name, None)

        if self._queue is not None and not getattr(self._thread_state, "in_queue", False):
            self._queue.submit(announce)  # after the calls in progress, for which the caller need not wait
        else:
            announce()

    def _get_program(
        self, name: str, algorithm: str | Schedule | None, source: FlatArray, root: int
    ) -> RankProgram | None:
        program = self._choice.get_program(name, algorithm, self.rank, root, source.nbytes)
        most = FABRIC_FRAGMENT_BYTES // SIZES[source.type]
        if program is not None and program.widest > most:
            raise InputError(f"{name}: a step moves {program.widest:,} chunks; {source.name} allows {most:,}.")
        return program

    def run_in_order(self, work: Callable[[], Any]) -> Future[Any]:
        """Run `work`, which makes calls, on the thread of this group, after all earlier and before all later calls."""

        if self._engine.is_forked:
            self._raise(FORKED, "a call", None)

        def run() -> Any:
            self._thread_state.in_queue = True
            return work()

        return self._get_queue().submit(run)

    def _get_queue(self) -> ThreadPoolExecutor:
        if self._queue is None:
            self._direct_ops = frozenset()
            self._queue = ThreadPoolExecutor(1, thread_name_prefix="fabric")
        return self._queue

    def _raise(self, code: int, name: str, timeout: float | None) -> NoReturn:
        raise FabricError(self._describe(code, name, timeout))

    def _describe(self, code: int, name: str, timeout: float | None) -> str:
        return describe_failure(
            self._engine,
            code,
            name,
            self.rank,
            self._members,
            self._describe_process,
            timeout or self.config.timeout,
        )

    def _describe_process(self, rank: int) -> str:
        return self._world.describe_process(self._world_ranks[rank] if self._is_network else rank)

    def _check_root(self, root: int, op: str) -> None:
        if not is_integer(root) or root not in self._ranks:
            raise InputError(f"{op}: root is {root!r}; it must be one of the ranks 0 to {self.size - 1}.")

    def _check_peer(self, peer: int, op: str) -> None:
        if not is_integer(peer) or peer not in self._ranks or peer == self.rank:
            raise InputError(f"{op}: {peer!r} is no other rank of {self.size}.")

    def _check_timeout(self, timeout: float | None, op: str) -> None:
        is_number = isinstance(timeout, int | float | np.number) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and timeout > 0):
            raise InputError(f"{op}: timeout is {timeout!r}; give seconds above 0, or None for that of the settings.")


def is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
