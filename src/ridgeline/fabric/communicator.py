"""The communicator of a rank: collectives over shared memory and between hosts; NCCL for tensors on GPUs.

def work(comm):
    x = np.full(1000, comm.rank, "f4")
    comm.all_reduce(x)  # in place

fabric.spawn(work, 4)
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ridgeline.errors import FabricError, InputError, RidgelineError
from ridgeline.fabric.arrays import (
    REDUCTION_CODES,
    TYPE_CODES,
    FlatArray,
    check_kind,
    flatten,
    get_reduction_code,
    is_array,
    make_empty_like,
)
from ridgeline.fabric.config import FabricConfig
from ridgeline.fabric.device import DeviceGroup, is_on_device
from ridgeline.fabric.failure_messages import DEAD, GARBLED, LATE
from ridgeline.fabric.group import OP_CODES, Group, is_integer
from ridgeline.fabric.membership import grow_membership, make_local_membership, make_world, shrink_membership
from ridgeline.fabric.network_rendezvous import Membership, NetworkWorld
from ridgeline.fabric.rendezvous import World
from ridgeline.fabric.schedule_types import Schedule
from ridgeline.fabric.shared_buffers import set_current_arena
from ridgeline.fabric.telemetry import publish_metrics, withdraw_metrics
from ridgeline.native import FABRIC_CONTEXTS, Collective, NetworkCollective

MAGIC = 0x7269646765  # the value that other ranks read to test whether they may read memory


class Communicator(Group):
    """Collectives among `size` ranks; this process is `rank`. All ranks make the same calls in the same order.

    Arrays are NumPy arrays or torch tensors; `out` may overlap the array. `timeout` is in seconds (default: that of the
    settings); `async_op=True` returns a handle with `wait`; `algorithm` is the name of a schedule or a `Schedule`.

    A refused argument raises RidgelineError, ranks that call different things FabricError, both on all ranks and before
    data moves; the communicator stays usable. After a dead or late rank every call raises FabricError.
    """

    def __init__(
        self, world: World | NetworkWorld, config: FabricConfig, *, context: int = 0, members: tuple[int, ...] = ()
    ) -> None:
        super().__init__(world, config, context=context, members=members)
        self._device_group: DeviceGroup | None = None
        if isinstance(self._engine, Collective):
            self._engine.crowded = self.size > self._count_cpus()
            # All ranks must use one method: with another threshold, a rank would wait for a synchronization for ever.
            self._engine.full_reduce_bytes = int(
                self.all_reduce(np.array([self._thresholds.whole_bytes], np.int64), "min")[0]
            )
            self._engine.foreign = config.foreign and self._may_read_all(self._engine)

    def all_reduce(
        self,
        array: Any,
        op: str = "sum",
        *,
        out: Any = None,
        algorithm: str | Schedule | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Every rank gets the sum (prod, min, max, avg) of all arrays, in place or in `out`; returns that array."""
        if (
            out is None
            and algorithm is None
            and not async_op
            and "all_reduce" in self._direct_ops
            and getattr(array, "nbytes", 1 << 63) <= self._choice.native_up_to
        ):
            try:
                code = self._engine.all_reduce(
                    array, REDUCTION_CODES[op], self._timeout if timeout is None else timeout
                )
            except (TypeError, KeyError):  # of an argument: the general path names it
                code = -1
            if code == 0:
                return array
            if code > 0:
                self._raise(code, "all_reduce", timeout)
        return self._reduce_arrays("all_reduce", array, out, op, algorithm, timeout, async_op)

    def reduce_scatter(
        self,
        array: Any,
        op: str = "sum",
        *,
        out: Any = None,
        algorithm: str | Schedule | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Rank r gets the rows r · n … of the sum of array [size · n, …] over all ranks; returns [n, …]."""
        return self._reduce_arrays("reduce_scatter", array, out, op, algorithm, timeout, async_op)

    def reduce(
        self,
        array: Any,
        root: int = 0,
        op: str = "sum",
        *,
        out: Any = None,
        algorithm: str | Schedule | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """The root gets the sum of all arrays, in place or in `out`; the arrays of other ranks do not change."""
        return self._reduce_arrays("reduce", array, out, op, algorithm, timeout, async_op, root)

    def all_gather(
        self,
        array: Any,
        *,
        out: Any = None,
        algorithm: str | Schedule | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Every rank gets the arrays [n, …] of all ranks: returns [size, n, …], or `out` with as many elements."""
        if algorithm is None and not async_op and "all_gather" in self._direct_ops:
            if out is None and is_array(array):
                out = make_empty_like(array, (self.size, *array.shape))
            try:
                code = self._engine.all_gather(array, out, self.size, self._timeout if timeout is None else timeout)
            except TypeError:
                code = -1
            if code == 0:
                return out
            if code > 0:
                self._raise(code, "all_gather", timeout)
        return self._move_arrays("all_gather", array, out, algorithm, timeout, async_op)

    def all_to_all(self, array: Any, *, out: Any = None, timeout: float | None = None, async_op: bool = False) -> Any:
        """Block k of array [size · n, …] goes to rank k; block k of the result comes from rank k."""
        return self._move_arrays("all_to_all", array, out, None, timeout, async_op)

    def broadcast(
        self,
        array: Any,
        root: int = 0,
        *,
        algorithm: str | Schedule | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Copy the array of the root into the arrays of all ranks; returns the array."""
        if algorithm is None and not async_op and "broadcast" in self._direct_ops:
            try:
                code = self._engine.broadcast(array, root, self._timeout if timeout is None else timeout)
            except TypeError:
                code = -1
            if code == 0:
                return array
            if code > 0:
                self._raise(code, "broadcast", timeout)
        return self._move_arrays("broadcast", array, array, algorithm, timeout, async_op, root)

    def run(
        self,
        schedule: Schedule,
        array: Any,
        op: str = "sum",
        *,
        out: Any = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Run a schedule on the arrays of all ranks; returns what its collective returns.

        op   the reduction, if the collective has one
        out  the array for the result; a broadcast has none

        Raises RidgelineError on every rank, before data moves, unless `fabric.prove` proves the schedule and it is made
        for as many ranks.
        """
        try:
            self._choice.prove_own(schedule, self.rank)
            if schedule.op == "broadcast" and out is not None:
                raise InputError("run: a broadcast has no out; it writes into the array.")
        except RidgelineError:
            self._refuse("barrier")
            raise
        options: dict[str, Any] = {"algorithm": schedule, "timeout": timeout, "async_op": async_op}
        if schedule.op == "broadcast":
            return self.broadcast(array, schedule.root, **options)
        if schedule.op == "all_gather":
            return self.all_gather(array, out=out, **options)
        if schedule.op == "reduce":
            return self.reduce(array, schedule.root, op, out=out, **options)
        collective = self.all_reduce if schedule.op == "all_reduce" else self.reduce_scatter
        return collective(array, op, out=out, **options)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Wait until all ranks have called it."""
        try:
            self._check_timeout(timeout, "barrier")
        except InputError:
            self._refuse("barrier")
            raise
        run = partial(self._engine.run, OP_CODES["barrier"], 0, 0, 0, TYPE_CODES["uint8"], 0, 0)
        self._run(run, "barrier", timeout)

    def send(self, array: Any, to: int, *, timeout: float | None = None) -> None:
        """Send an array to one rank; may return before the rank has received it."""
        if "send" in self._direct_ops:
            try:
                code = self._engine.send_array(array, to, self._timeout if timeout is None else timeout)
            except TypeError:
                code = -1
            if code == 0:
                return
            if code > 0:
                self._raise(code, "send", timeout)
        self._check_peer(to, "send")
        self._check_timeout(timeout, "send")
        if is_on_device(array):
            self._check_usable("send")
            self._get_device_group().send(array, to)
            return
        source = flatten(array, "send", written=False)
        # A closure over the arguments would cost the direct path above some 50 ns.
        run = partial(self._engine.send, source.address, source.nbytes, source.type, to, source.name)
        self._run(run, "send", timeout)

    def recv(self, array: Any, source: int, *, timeout: float | None = None) -> Any:
        """Receive an array from one rank, into `array`; returns it."""
        if "recv" in self._direct_ops:
            try:
                code = self._engine.recv_array(array, source, self._timeout if timeout is None else timeout)
            except TypeError:
                code = -1
            if code == 0:
                return array
            if code > 0:
                self._raise(code, "recv", timeout)
        self._check_peer(source, "recv")
        self._check_timeout(timeout, "recv")
        if is_on_device(array):
            self._check_usable("recv")
            return self._get_device_group().recv(array, source)
        target = flatten(array, "recv", written=True)
        run = partial(self._engine.recv, target.address, target.nbytes, target.type, source, target.name)
        self._run(run, "recv", timeout)
        target.finish()
        return array

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Return a communicator of the ranks with the same color, in the order of (key, rank); None if `color` is None.

        color, key  whole numbers, the color 0 or more

        Raises FabricError if too many communicators were made.
        """
        if not (color is None or (is_integer(color) and 0 <= color < 1 << 63)):
            self._refuse("all_gather")
            raise InputError(f"split: color is {color!r}; give a whole number from 0 on, or None to be in no part.")
        if not (is_integer(key) and -(1 << 63) <= key < 1 << 63):
            self._refuse("all_gather")
            raise InputError(f"split: key is {key!r}; give a whole number.")
        contexts = self._next_context
        row = np.array([-1 if color is None else color, key, contexts[0]], np.int64)
        rows = self.all_gather(row)
        context = int(rows[:, 2].max())
        if context >= FABRIC_CONTEXTS and not self._is_network:
            raise FabricError(
                f"split: {FABRIC_CONTEXTS - 1} communicators have been made already; keep and reuse them."
            )
        contexts[0] = context + 1
        if color is None:
            return None
        group = sorted((int(row[1]), r) for r, row in enumerate(rows) if row[0] == color)
        members = tuple(self._world_ranks[r] for _, r in group)
        world = self._world
        if isinstance(world, NetworkWorld):
            world = replace(world, deadline=time.monotonic() + self._timeout)
        comm = Communicator(world, self.config, context=context, members=members)
        comm._next_context = contexts
        return comm

    @property
    def address(self) -> str:
        """Where new ranks find rank 0, for `fabric.join`; raises InputError if the ranks met without a network."""
        membership = self._world.membership
        if membership is None or membership.members[0].address.startswith("@"):
            raise InputError("new ranks need an address: start these with RIDGELINE_FABRIC_RENDEZVOUS=host:port.")
        return membership.members[self._world_ranks[0]].address

    def shrink(self, *, timeout: float = 30.0) -> Communicator:
        """Go on without the ranks that ended or fell silent: returns a communicator of those that call this.

        timeout  seconds until the survivors must agree (default: 30); a rank that never comes and is not known to have
                 ended costs most of them

        Ranks keep their order. This communicator ends on all its ranks. Raises FabricError if fewer than two are left.
        """
        self._check_timeout(timeout, "shrink")
        deadline = time.monotonic() + timeout
        failure = self._engine.first_failure
        ended = {self._members.index(r) for r in self._world.find_ended(self._members)}
        if failure is None:
            self._engine.abort()
        elif failure[0] in (DEAD, LATE, GARBLED) and failure[1] in self._members:
            ended.add(self._members.index(failure[1]))
        if isinstance(self._engine, NetworkCollective):
            ended |= {r for r in self._ranks if r != self.rank and self._engine.is_gone(r)}
        return self._go_on(shrink_membership(self._make_membership(), sorted(ended), timeout), deadline)

    def grow(self, count: int, *, timeout: float = 120.0) -> Communicator:
        """Take `count` new ranks in, which call `fabric.join(address)`: returns a communicator of all.

        timeout  seconds until they must have come (default: 120)

        All ranks call it. The new ranks get the numbers after those of the old ones. This communicator stays as it is.
        """
        if not is_integer(count) or count < 1:
            raise InputError(f"grow: count is {count!r}; give 1 or more.")
        self._check_timeout(timeout, "grow")
        _ = self.address
        deadline = time.monotonic() + timeout
        return self._go_on(grow_membership(self._make_membership(), count, timeout), deadline, ends=False)

    def _make_membership(self) -> Membership:
        membership = self._world.membership
        if membership is None:
            assert isinstance(self._world, World)  # noqa: S101
            membership = make_local_membership(self._world, self.config)
        return membership.choose(self._world_ranks, self._context)

    def _go_on(self, membership: Membership, deadline: float, ends: bool = True) -> Communicator:
        self._owns_listener = False
        if ends:
            super().close()
        comm = Communicator(make_world(membership, deadline), self.config)
        set_current_arena(comm.arena)
        publish_metrics(comm)
        return comm

    def close(self) -> None:
        """End the threads and connections; shared memory is freed with its last array."""
        withdraw_metrics(self)
        super().close()

    def _reduce_arrays(
        self,
        name: str,
        array: Any,
        out: Any,
        op: str,
        algorithm: str | Schedule | None,
        timeout: float | None,
        async_op: bool,
        root: int = 0,
    ) -> Any:
        on_device, parts = is_on_device(array), self.size if name == "reduce_scatter" else 1
        try:
            self._check_root(root, name)
            self._check_timeout(timeout, name)
            if name == "reduce_scatter":
                rows = self._cut(array, name)
                out = make_empty_like(array, (rows, *array.shape[1:])) if out is None else out
            out = array if out is None else out
            if on_device:
                self._check_usable(name)
                _check_tensors(name, array, out, parts, 1)
            else:
                target = flatten(out, name, written=True)
                source = target if out is array else flatten(array, name, written=False)
                code = get_reduction_code(source, op, name)
                if name != "reduce" or self.rank == root:
                    _check_arrays(name, source, target, parts, 1)
                program = self._get_program(name, algorithm, source, root)
        except RidgelineError:
            if not on_device:
                self._refuse(name)
            raise
        if on_device:
            group = self._get_device_group()
            array = _separate(array, out, self.rank)
            return group.reduce(name, array, out, op, root=root, timeout=timeout, async_op=async_op)
        return self._call(name, source, target, source.count // parts, code, program, timeout, async_op, root, out)

    def _move_arrays(
        self,
        name: str,
        array: Any,
        out: Any,
        algorithm: str | Schedule | None,
        timeout: float | None,
        async_op: bool,
        root: int = 0,
    ) -> Any:
        on_device, parts_in = is_on_device(array), self.size if name == "all_to_all" else 1
        parts_out = 1 if name == "broadcast" else self.size
        try:
            self._check_root(root, name)
            self._check_timeout(timeout, name)
            if name == "all_to_all":
                self._cut(array, name)
            if out is None:
                shape = _get_shape(array, name)
                out = make_empty_like(array, shape if name == "all_to_all" else (self.size, *shape))
            if on_device:
                self._check_usable(name)
                _check_tensors(name, array, out, parts_in, parts_out)
            else:
                target = flatten(out, name, written=name != "broadcast" or self.rank != root)
                source = target if name == "broadcast" else flatten(array, name, written=False)
                _check_arrays(name, source, target, parts_in, parts_out)
                program = self._get_program(name, algorithm, source, root)
        except RidgelineError:
            if not on_device:
                self._refuse(name)
            raise
        if on_device:
            group = self._get_device_group()
            array = _separate(array, out, self.rank)
            return group.move(name, array, out, root=root, timeout=timeout, async_op=async_op)
        return self._call(name, source, target, source.count // parts_in, 0, program, timeout, async_op, root, out)

    def _cut(self, array: Any, name: str) -> int:
        """The rows of each rank's part of an array."""
        shape = _get_shape(array, name)
        if not shape or shape[0] % self.size:
            raise InputError(f"{name}: {shape} cannot be cut into {self.size} equal parts.")
        return int(shape[0] // self.size)

    def stats(self) -> dict[str, Any]:
        """As `Group.stats`; calls with tensors on a device are listed separately, without times."""
        counts = self._device_group.counts if self._device_group is not None else {}
        return {**super().stats(), "device_ops": {op: {"calls": c, "bytes": b} for op, (c, b) in counts.items()}}

    def _get_device_group(self) -> DeviceGroup:
        if self._device_group is None:
            self._device_group = DeviceGroup(self)
        return self._device_group

    def _count_cpus(self) -> int:
        """Count the CPUs that the ranks may use together: each may be bound to one, or all to the same CPUs."""
        cpus = os.sched_getaffinity(0)
        most = np.array([max(cpus) + 1], np.int64)
        self.all_reduce(most, "max")
        usable = np.zeros(int(most[0]), np.uint8)
        usable[sorted(cpus)] = 1
        self.all_reduce(usable, "max")
        return int(usable.sum())

    def _may_read_all(self, engine: Collective) -> bool:
        """Whether every rank may read the memory of every other (CMA): containers often forbid it."""
        mark = np.array([MAGIC], np.uint64)
        address = np.array([mark.__array_interface__["data"][0]], np.int64)
        addresses = self.all_gather(address)
        ok = all(engine.can_read(r, int(addresses[r, 0]), MAGIC) for r in range(self.size) if r != self.rank)
        answer = np.array([ok], np.int8)
        self.all_reduce(answer, "min")  # also keeps `mark` alive until all ranks have read it
        return bool(answer[0])


def _get_shape(array: Any, name: str) -> tuple[int, ...]:
    check_kind(array, name)
    return tuple(array.shape)


def _check_arrays(name: str, source: FlatArray, target: FlatArray, parts_in: int, parts_out: int) -> None:
    if source.type != target.type or source.name != target.name:
        raise InputError(f"{name}: out is {target.name}, the array {source.name}; give both one type.")
    if target.count * parts_in != source.count * parts_out:
        needed = source.count * parts_out // parts_in
        raise InputError(f"{name}: out has {target.count} elements where {needed} are needed.")


def _separate(source: Any, target: Any, rank: int) -> Any:
    """A copy of a tensor that overlaps `out` on a device, unless one is the other or this rank's part of it."""
    start, out = source.data_ptr(), target.data_ptr()
    if source is target or start >= out + target.nbytes or out >= start + source.nbytes:
        return source
    is_part = (
        start == out + rank * source.nbytes if source.nbytes < target.nbytes else out == start + rank * target.nbytes
    )
    return source if is_part and source.nbytes != target.nbytes else source.clone()


def _check_tensors(name: str, source: Any, target: Any, parts_in: int, parts_out: int) -> None:
    """The same check for tensors on a device."""
    if not is_on_device(target) or source.dtype != target.dtype or source.device != target.device:
        raise InputError(f"{name}: out must be a tensor of {source.dtype} on {source.device}, as the given one is.")
    if target.numel() * parts_in != source.numel() * parts_out:
        needed = source.numel() * parts_out // parts_in
        raise InputError(f"{name}: out has {target.numel()} elements where {needed} are needed.")
