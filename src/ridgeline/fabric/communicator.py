"""A rank's end of a group: the collectives, over memory that the ranks share; for tensors on GPUs by NCCL.

def work(comm):
    x = np.full(1000, comm.rank, "f4")
    comm.all_reduce(x)  # in place

fabric.spawn(work, 4)
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np

from ridgeline.errors import FabricError, InputError
from ridgeline.fabric.arrays import CODES, HOW, Flat, flat, like, reducible
from ridgeline.fabric.config import FabricConfig
from ridgeline.fabric.device import DeviceGroup, on_device
from ridgeline.fabric.group import CODE, Group
from ridgeline.fabric.meeting import World
from ridgeline.native import FABRIC_CONTEXTS

MAGIC = 0x7269646765  # what a rank lets the others read, to see whether they may


class Communicator(Group):
    """Collectives among `size` ranks, of which this process is `rank`. All ranks make the same calls in one order."""

    def __init__(self, world: World, config: FabricConfig, *, context: int = 0, members: tuple[int, ...] = ()) -> None:
        super().__init__(world, config, context=context, members=members)
        self._on_device: DeviceGroup | None = None
        self._engine.crowded = self.size > self._cpus_of_all()
        # All must go one way: whoever has another table must not wait for a meeting to which nobody comes.
        self._engine.full_reduce_bytes = int(self.all_reduce(np.array([self._ways.whole_bytes], np.int64), "min")[0])
        self._engine.foreign = config.foreign and self._all_may_look()

    def all_reduce(
        self,
        array: Any,
        op: str = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Every rank gets the sum (prod, min, max, avg) of all; in place, or into `out`."""
        if (
            out is None
            and algorithm is None
            and not async_op
            and "all_reduce" in self._straight
            and op in HOW
            and getattr(array, "nbytes", 1 << 63) <= self._choice.plain_up_to
        ):
            code = self._engine.all_reduce(array, HOW[op], timeout or self._timeout)
            if code == 0:
                return array
            if code > 0:
                self._raise(code, "all_reduce", timeout)
        target = array if out is None else out
        return self._reducing("all_reduce", array, target, op, algorithm, timeout, async_op)

    def reduce_scatter(
        self,
        array: Any,
        op: str = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """Of array [size · n, …], rank r gets rows r · n … of the sum over all ranks."""
        if array.ndim == 0 or array.shape[0] % self.size:
            raise InputError(f"reduce_scatter: {tuple(array.shape)} cannot be cut into {self.size} equal parts.")
        target = like(array, (array.shape[0] // self.size, *array.shape[1:])) if out is None else out
        return self._reducing("reduce_scatter", array, target, op, algorithm, timeout, async_op)

    def reduce(
        self,
        array: Any,
        root: int = 0,
        op: str = "sum",
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """The root gets the sum of all, in place or into `out`; the others' arrays stay as they are."""
        self._one_of_us(root, "reduce")
        target = array if out is None else out
        return self._reducing("reduce", array, target, op, algorithm, timeout, async_op, root)

    def all_gather(
        self,
        array: Any,
        *,
        out: Any = None,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """All ranks' arrays [n, …] one after the other: [size, n, …], or into `out` of as many elements."""
        target = like(array, (self.size, *array.shape)) if out is None else out
        if algorithm is None and not async_op and "all_gather" in self._straight:
            code = self._engine.all_gather(array, target, self.size, timeout or self._timeout)
            if code == 0:
                return target
            if code > 0:
                self._raise(code, "all_gather", timeout)
        return self._moving("all_gather", array, target, 1, self.size, algorithm, timeout, async_op)

    def all_to_all(self, array: Any, *, out: Any = None, timeout: float | None = None, async_op: bool = False) -> Any:
        """Block k of array [size · n, …] goes to rank k; block k of the answer came from rank k."""
        if array.ndim == 0 or array.shape[0] % self.size:
            raise InputError(f"all_to_all: {tuple(array.shape)} cannot be cut into {self.size} equal parts.")
        target = like(array, tuple(array.shape)) if out is None else out
        return self._moving("all_to_all", array, target, self.size, self.size, None, timeout, async_op)

    def broadcast(
        self,
        array: Any,
        root: int = 0,
        *,
        algorithm: str | None = None,
        timeout: float | None = None,
        async_op: bool = False,
    ) -> Any:
        """The root's array, into everyone's."""
        self._one_of_us(root, "broadcast")
        if algorithm is None and not async_op and "broadcast" in self._straight:
            code = self._engine.broadcast(array, root, timeout or self._timeout)
            if code == 0:
                return array
            if code > 0:
                self._raise(code, "broadcast", timeout)
        return self._moving("broadcast", array, array, 1, 1, algorithm, timeout, async_op, root)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Until all ranks have come here."""
        self._do(partial(self._engine.run, CODE["barrier"], 0, 0, 0, CODES["bytes"], 0, 0), "barrier", timeout)

    def send(self, array: Any, to: int, *, timeout: float | None = None) -> None:
        """To one rank; may return before it was received."""
        if "send" in self._straight:
            code = self._engine.send_array(array, to, timeout or self._timeout)
            if code == 0:
                return
            if code > 0:
                self._raise(code, "send", timeout)
        self._other(to, "send")
        if on_device(array):
            self._device().send(array, to)
            return
        one = flat(array, "send", written=False)
        self._do(partial(self._engine.send, one.address, one.nbytes, one.type, to), "send", timeout)

    def recv(self, array: Any, source: int, *, timeout: float | None = None) -> Any:
        """From one rank, into `array`."""
        if "recv" in self._straight:
            code = self._engine.recv_array(array, source, timeout or self._timeout)
            if code == 0:
                return array
            if code > 0:
                self._raise(code, "recv", timeout)
        self._other(source, "recv")
        if on_device(array):
            return self._device().recv(array, source)
        one = flat(array, "recv", written=True)
        self._do(partial(self._engine.recv, one.address, one.nbytes, one.type, source), "recv", timeout)
        one.finish()
        return array

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator for each colour, its ranks in the order of (key, rank); None for who gives no colour."""
        contexts = self._next_context
        mine = np.array([-1 if color is None else color, key, contexts[0]], np.int64)
        told = self.all_gather(mine)
        context = int(told[:, 2].max())
        if context >= FABRIC_CONTEXTS:
            raise FabricError(
                f"split: {FABRIC_CONTEXTS - 1} communicators have been made already; keep and reuse them."
            )
        contexts[0] = context + 1
        if color is None:
            return None
        group = sorted((int(row[1]), r) for r, row in enumerate(told) if row[0] == color)
        members = tuple(self._members[r] for _, r in group)
        made = Communicator(self._world, self.config, context=context, members=members)
        made._next_context = contexts
        return made

    def _reducing(
        self,
        name: str,
        array: Any,
        out: Any,
        op: str,
        algorithm: str | None,
        timeout: float | None,
        later: bool,
        root: int = 0,
    ) -> Any:
        if on_device(array):
            _same_kind(name, array, out, self.size if name == "reduce_scatter" else 1, 1)
            return self._device().reducing(name, array, out, op, root=root, timeout=timeout, later=later)
        target = flat(out, name, written=True)
        source = target if out is array else flat(array, name, written=False)
        how = reducible(source, op, name)
        parts = self.size if name == "reduce_scatter" else 1
        if name != "reduce" or self.rank == root:
            _fits(name, source, target, parts, 1)
        return self._call(name, source, target, source.count // parts, how, algorithm, timeout, later, root, out)

    def _moving(
        self,
        name: str,
        array: Any,
        out: Any,
        given: int,
        gets: int,
        algorithm: str | None,
        timeout: float | None,
        later: bool,
        root: int = 0,
    ) -> Any:
        if on_device(array):
            _same_kind(name, array, out, given, gets)
            return self._device().moving(name, array, out, root=root, timeout=timeout, later=later)
        target = flat(out, name, written=name != "broadcast" or self.rank != root)
        source = target if out is array and name == "broadcast" else flat(array, name, written=False)
        _fits(name, source, target, given, gets)
        return self._call(name, source, target, source.count // given, 0, algorithm, timeout, later, root, out)

    def stats(self) -> dict[str, Any]:
        """As `Group.stats`; calls of tensors on a device stand apart, without times: those are the device's."""
        counts = self._on_device.counts if self._on_device is not None else {}
        return {**super().stats(), "device_ops": {op: {"calls": c, "bytes": b} for op, (c, b) in counts.items()}}

    def _device(self) -> DeviceGroup:
        if self._on_device is None:
            self._on_device = DeviceGroup(self)
        return self._on_device

    def _cpus_of_all(self) -> int:
        """How many CPUs the ranks may use between them: each may be bound to one, or all to the same few."""
        cpus = os.sched_getaffinity(0)
        most = np.array([max(cpus) + 1], np.int64)
        self.all_reduce(most, "max")
        mine = np.zeros(int(most[0]), np.uint8)
        mine[sorted(cpus)] = 1
        self.all_reduce(mine, "max")
        return int(mine.sum())

    def _all_may_look(self) -> bool:
        """Whether every rank may read every other's memory (CMA): containers often forbid it."""
        mark = np.array([MAGIC], np.uint64)
        where = np.array([mark.__array_interface__["data"][0]], np.int64)
        told = self.all_gather(where)
        ok = all(self._engine.can_read(r, int(told[r, 0]), MAGIC) for r in range(self.size) if r != self.rank)
        answer = np.array([ok], np.int8)
        self.all_reduce(answer, "min")  # also keeps `mark` alive until all have looked
        return bool(answer[0])


def _fits(name: str, source: Flat, target: Flat, given: int, gets: int) -> None:
    if source.type != target.type or source.name != target.name:
        raise InputError(f"{name}: out is {target.name}, the array {source.name}; give both one type.")
    if target.count * given != source.count * gets:
        wanted = source.count * gets // given
        raise InputError(f"{name}: out has {target.count} elements where {wanted} are needed.")


def _same_kind(name: str, source: Any, target: Any, given: int, gets: int) -> None:
    """What `_fits` asks of arrays, of tensors on a device."""
    if not on_device(target) or source.dtype != target.dtype or source.device != target.device:
        raise InputError(f"{name}: out must be a tensor of {source.dtype} on {source.device}, as the given one is.")
    if target.numel() * given != source.numel() * gets:
        wanted = source.numel() * gets // given
        raise InputError(f"{name}: out has {target.numel()} elements where {wanted} are needed.")
