"""Tensors on GPUs: the same calls, carried by NCCL through torch.

The ranks of a communicator make a process group of their own at the first such call; torch's default group is left
alone. As with NCCL everywhere, each rank has a GPU of its own, and results are ordered on its current stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.errors import FabricError, InputError
from ridgeline.fabric.arrays import REDUCTIONS, is_tensor

if TYPE_CHECKING:
    from ridgeline.fabric.communicator import Communicator

Maker = Callable[[Any, int, int, timedelta], Any]  # store, rank, size, timeout → a process group of torch
_TORCH_OPS = dict(zip(REDUCTIONS, ("SUM", "PRODUCT", "MIN", "MAX", "AVG"), strict=True))


def on_device(array: Any) -> bool:
    return is_tensor(array) and array.device.type != "cpu"


def nccl(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_nccl_available():
        raise InputError("tensors on a GPU need a torch that was built with NCCL; this one was not.")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


class DeviceHandle:
    """A call under way on a device; the tensors belong to it until `wait` returns."""

    def __init__(self, work: Any, finish: Callable[[], Any], named: Callable[[], Any]) -> None:
        self._work, self._finish, self._named = work, finish, named

    def wait(self) -> Any:
        """The call's result, ordered on the current stream, or its error."""
        with self._named():
            self._work.wait()
        return self._finish()

    def done(self) -> bool:
        return bool(self._work.is_completed())


class DeviceGroup:
    """A process group of torch among the ranks of a communicator; `make` decides which kind."""

    def __init__(self, comm: Communicator, make: Maker = nccl) -> None:
        import torch.distributed as dist

        self._dist, self._rank = dist, comm.rank
        self.counts: dict[str, list[int]] = {}  # operation → calls, bytes
        timeout = timedelta(seconds=comm.config.timeout)
        with self._named("the first call of GPU tensors"):
            self._group = make(self._store(comm, timeout), comm.rank, comm.size, timeout)

    def _store(self, comm: Communicator, timeout: timedelta) -> Any:
        """Rank 0 listens on loopback and tells the others its port by the communicator itself."""
        port, first = np.zeros(1, np.int64), None
        if comm.rank == 0:
            first = self._dist.TCPStore("127.0.0.1", 0, comm.size, True, timeout, wait_for_workers=False)
            port[0] = first.port
        comm.broadcast(port)
        return first or self._dist.TCPStore("127.0.0.1", int(port[0]), comm.size, False, timeout)

    def reducing(
        self, name: str, tensor: Any, out: Any, op: str, *, root: int = 0, timeout: float | None, later: bool
    ) -> Any:
        """all_reduce, reduce, reduce_scatter."""
        if op not in _TORCH_OPS:
            raise InputError(f"{name}: there is no reduction '{op}'; there are: {', '.join(REDUCTIONS)}.")
        taken, how = _row_of(out), getattr(self._dist.ReduceOp, _TORCH_OPS[op])
        if name == "reduce_scatter":
            opts = self._opts("ReduceScatterOptions", timeout, reduceOp=how)
            start = partial(self._group._reduce_scatter_base, taken, _row_of(tensor), opts)
            return self._run(name, start, out, taken, later)
        if out is not tensor:
            taken.copy_(tensor.detach().reshape(-1))
        if name == "all_reduce":
            opts = self._opts("AllreduceOptions", timeout, reduceOp=how)
            return self._run(name, partial(self._group.allreduce, [taken], opts), out, taken, later)
        kept = taken if self._rank == root else taken.clone()  # back ends may use the others' rows to add in
        opts = self._opts("ReduceOptions", timeout, reduceOp=how, rootRank=root)
        return self._run(name, partial(self._group.reduce, [taken], opts), out, kept, later)

    def moving(self, name: str, tensor: Any, out: Any, *, root: int = 0, timeout: float | None, later: bool) -> Any:
        """all_gather, all_to_all, broadcast."""
        taken = _row_of(out)
        if name == "broadcast":
            opts = self._opts("BroadcastOptions", timeout, rootRank=root)
            start = partial(self._group.broadcast, [taken], opts)
        elif name == "all_gather":
            opts = self._opts("AllgatherOptions", timeout)
            start = partial(self._group._allgather_base, taken, _row_of(tensor), opts)
        else:
            opts = self._opts("AllToAllOptions", timeout)
            start = partial(self._group.alltoall_base, taken, _row_of(tensor), [], [], opts)
        return self._run(name, start, out, taken, later)

    def send(self, tensor: Any, to: int) -> None:
        row = _row_of(tensor)
        self._run("send", partial(self._group.send, [row], to, 0), tensor, row, later=False)

    def recv(self, tensor: Any, source: int) -> Any:
        row = _row_of(tensor)
        return self._run("recv", partial(self._group.recv, [row], source, 0), tensor, row, later=False)

    def _opts(self, kind: str, timeout: float | None, **words: Any) -> Any:
        made = getattr(self._dist.distributed_c10d, kind)()
        for word, value in words.items():
            setattr(made, word, value)
        if timeout is not None:
            made.timeout = timedelta(seconds=timeout)
        return made

    def _run(self, name: str, start: Callable[[], Any], out: Any, taken: Any, later: bool) -> Any:
        with self._named(name):
            handle = DeviceHandle(start(), partial(_put_back, out, taken), partial(self._named, name))
        calls = self.counts.setdefault(name, [0, 0])
        calls[0] += 1
        calls[1] += out.numel() * out.element_size()
        return handle if later else handle.wait()

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch's errors name neither
            raise FabricError(f"{what} on rank {self._rank}: {error}") from error


def _row_of(tensor: Any) -> Any:
    """Its elements in one row: its own memory where that is contiguous, else a copy."""
    return tensor.detach().contiguous().view(-1)


def _put_back(out: Any, taken: Any) -> Any:
    if taken.data_ptr() != out.data_ptr():
        out.detach().copy_(taken.view(out.shape))
    return out
