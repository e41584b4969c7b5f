"""Tensors on GPUs: the same calls, done by NCCL through torch.

The ranks of a communicator make a separate process group at the first such call; the default group of torch is not
used. As always with NCCL, each rank has a separate GPU, and results are ordered on its current stream.
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

MakeGroup = Callable[[Any, int, int, timedelta], Any]  # store, rank, size, timeout → a process group of torch
_TORCH_OPS = dict(zip(REDUCTIONS, ("SUM", "PRODUCT", "MIN", "MAX", "AVG"), strict=True))


def is_on_device(array: Any) -> bool:
    return is_tensor(array) and array.device.type != "cpu"


def make_nccl_group(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_nccl_available():
        raise InputError("tensors on a GPU need a torch that was built with NCCL; this one was not.")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


class DeviceHandle:
    """A call in progress on a device; do not use its tensors until `wait` returns."""

    def __init__(self, work: Any, finish: Callable[[], Any], wrap_errors: Callable[[], Any]) -> None:
        self._work, self._finish, self._wrap_errors = work, finish, wrap_errors

    def wait(self) -> Any:
        """Wait for the call on the current stream; return its result or raise its error."""
        with self._wrap_errors():
            self._work.wait()
        return self._finish()

    def done(self) -> bool:
        return bool(self._work.is_completed())


class DeviceGroup:
    """A process group of torch among the ranks of a communicator; `make` creates it."""

    def __init__(self, comm: Communicator, make: MakeGroup = make_nccl_group) -> None:
        import torch.distributed as dist

        self._dist, self._rank = dist, comm.rank
        self.counts: dict[str, list[int]] = {}  # operation → calls, bytes
        timeout = timedelta(seconds=comm.config.timeout)
        with self._wrap_errors("the first call of GPU tensors"):
            self._group = make(self._open_store(comm, timeout), comm.rank, comm.size, timeout)

    def _open_store(self, comm: Communicator, timeout: timedelta) -> Any:
        """Rank 0 listens on loopback and sends its port to the others with the communicator."""
        port, server = np.zeros(1, np.int64), None
        if comm.rank == 0:
            server = self._dist.TCPStore("127.0.0.1", 0, comm.size, True, timeout, wait_for_workers=False)
            port[0] = server.port
        comm.broadcast(port)
        return server or self._dist.TCPStore("127.0.0.1", int(port[0]), comm.size, False, timeout)

    def reduce(
        self, name: str, tensor: Any, out: Any, op: str, *, root: int = 0, timeout: float | None, async_op: bool
    ) -> Any:
        """Run all_reduce, reduce or reduce_scatter."""
        if op not in _TORCH_OPS:
            raise InputError(f"{name}: there is no reduction '{op}'; there are: {', '.join(REDUCTIONS)}.")
        row, reduction = _flatten(out), getattr(self._dist.ReduceOp, _TORCH_OPS[op])
        if name == "reduce_scatter":
            opts = self._make_options("ReduceScatterOptions", timeout, reduceOp=reduction)
            start = partial(self._group._reduce_scatter_base, row, _flatten(tensor), opts)
            return self._run(name, start, out, row, async_op)
        if out is not tensor:
            row.copy_(tensor.detach().reshape(-1))
        if name == "all_reduce":
            opts = self._make_options("AllreduceOptions", timeout, reduceOp=reduction)
            return self._run(name, partial(self._group.allreduce, [row], opts), out, row, async_op)
        original = row if self._rank == root else row.clone()  # a back end may overwrite the rows of other ranks
        opts = self._make_options("ReduceOptions", timeout, reduceOp=reduction, rootRank=root)
        return self._run(name, partial(self._group.reduce, [row], opts), out, original, async_op)

    def move(self, name: str, tensor: Any, out: Any, *, root: int = 0, timeout: float | None, async_op: bool) -> Any:
        """Run all_gather, all_to_all or broadcast."""
        row = _flatten(out)
        if name == "broadcast":
            opts = self._make_options("BroadcastOptions", timeout, rootRank=root)
            start = partial(self._group.broadcast, [row], opts)
        elif name == "all_gather":
            opts = self._make_options("AllgatherOptions", timeout)
            start = partial(self._group._allgather_base, row, _flatten(tensor), opts)
        else:
            opts = self._make_options("AllToAllOptions", timeout)
            start = partial(self._group.alltoall_base, row, _flatten(tensor), [], [], opts)
        return self._run(name, start, out, row, async_op)

    def send(self, tensor: Any, to: int) -> None:
        row = _flatten(tensor)
        self._run("send", partial(self._group.send, [row], to, 0), tensor, row, async_op=False)

    def recv(self, tensor: Any, source: int) -> Any:
        row = _flatten(tensor)
        return self._run("recv", partial(self._group.recv, [row], source, 0), tensor, row, async_op=False)

    def _make_options(self, kind: str, timeout: float | None, **fields: Any) -> Any:
        options = getattr(self._dist.distributed_c10d, kind)()
        for name, value in fields.items():
            setattr(options, name, value)
        if timeout is not None:
            options.timeout = timedelta(seconds=timeout)
        return options

    def _run(self, name: str, start: Callable[[], Any], out: Any, row: Any, async_op: bool) -> Any:
        with self._wrap_errors(name):
            handle = DeviceHandle(start(), partial(_write_back, out, row), partial(self._wrap_errors, name))
        calls = self.counts.setdefault(name, [0, 0])
        calls[0] += 1
        calls[1] += out.numel() * out.element_size()
        return handle if async_op else handle.wait()

    @contextmanager
    def _wrap_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # the errors of torch name neither call nor rank
            raise FabricError(f"{name} on rank {self._rank}: {error}") from error


def _flatten(tensor: Any) -> Any:
    """The elements of a tensor in one row: its memory if it is contiguous, else a copy."""
    return tensor.detach().contiguous().view(-1)


def _write_back(out: Any, row: Any) -> Any:
    if row.data_ptr() != out.data_ptr():
        out.detach().copy_(row.view(out.shape))
    return out
