"""The back end "ridgeline" of torch.distributed, for CPU tensors on one host:

    import ridgeline.fabric.torch  # or: fabric.register_torch_backend()
    torch.distributed.init_process_group("ridgeline")

Ranks find each other through the store of torch. Calls run one after the other, in order, on a separate thread, so that
gradients are exchanged while the backward pass runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Any

try:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
except ImportError as error:
    from ridgeline.errors import MissingExtra

    raise MissingExtra("the torch back end of fabric", "torch") from error

from dataclasses import replace

from ridgeline.errors import FabricError, InputError
from ridgeline.fabric.communicator import Communicator
from ridgeline.fabric.config import read_config
from ridgeline.fabric.rendezvous import TIMEOUT_S, RendezvousServer, choose_arena_bytes, join_world

NAME = "ridgeline"
_REDUCTIONS = {"SUM": "sum", "AVG": "avg", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}


class RidgelineGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group that calls a `Communicator`."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm

    def getBackendName(self) -> str:
        return NAME

    @property
    def group_name(self) -> str:
        return str(dist.distributed_c10d._world.pg_names[self])

    def allreduce(self, tensors: list[Any], opts: Any = None) -> Any:
        op = _get_reduction(opts)
        return self._submit(
            lambda: [self._comm.all_reduce(t, op, timeout=_get_timeout(opts)) for t in tensors], tensors
        )

    def allreduce_coalesced(self, tensors: list[Any], opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Any], opts: Any = None) -> Any:
        root = int(getattr(opts, "rootRank", 0))
        return self._submit(
            lambda: [self._comm.broadcast(t, root, timeout=_get_timeout(opts)) for t in tensors], tensors
        )

    def reduce(self, tensors: list[Any], opts: Any = None) -> Any:
        root, op = int(getattr(opts, "rootRank", 0)), _get_reduction(opts)
        return self._submit(
            lambda: [self._comm.reduce(t, root, op, timeout=_get_timeout(opts)) for t in tensors], tensors
        )

    def allgather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Any:
        def work() -> None:
            for outs, tensor in zip(outputs, inputs, strict=True):
                for out, part in zip(outs, self._comm.all_gather(tensor, timeout=_get_timeout(opts)), strict=True):
                    out.copy_(part)

        return self._submit(work, outputs)

    def _allgather_base(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        return self._submit(lambda: self._comm.all_gather(tensor, out=output, timeout=_get_timeout(opts)), output)

    def allgather_into_tensor_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Any:
        def work() -> None:
            for out, tensor in zip(outputs, inputs, strict=True):
                self._comm.all_gather(tensor, out=out, timeout=_get_timeout(opts))

        return self._submit(work, outputs)

    def reduce_scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any = None) -> Any:
        op = _get_reduction(opts)

        def work() -> None:
            for out, tensor in zip(outputs, inputs, strict=True):
                self._comm.reduce_scatter(torch.stack(tensor), op, out=out, timeout=_get_timeout(opts))

        return self._submit(work, outputs)

    def _reduce_scatter_base(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        op = _get_reduction(opts)
        return self._submit(lambda: self._reduce_scatter(output, tensor, op, opts), output)

    def reduce_scatter_tensor_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Any:
        op = _get_reduction(opts)

        def work() -> None:
            for out, tensor in zip(outputs, inputs, strict=True):
                self._reduce_scatter(out, tensor, op, opts)

        return self._submit(work, outputs)

    def alltoall_base(
        self, output: Any, tensor: Any, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> Any:
        if len({*output_sizes, *input_sizes}) > 1:
            raise InputError("all_to_all takes equal parts; pad the parts to one length.")
        return self._submit(lambda: self._comm.all_to_all(tensor, out=output, timeout=_get_timeout(opts)), output)

    def send(self, tensors: list[Any], to: int, tag: int = 0) -> Any:
        def work() -> None:
            for tensor in tensors:
                self._comm.send(tensor, to)

        return self._submit(work, tensors)

    def recv(self, tensors: list[Any], source: int, tag: int = 0) -> Any:
        return self._submit(lambda: [self._comm.recv(t, source) for t in tensors], tensors)

    def barrier(self, opts: Any = None) -> Any:
        return self._submit(lambda: self._comm.barrier(timeout=_get_timeout(opts)), [])

    # The names in torch 2.13.
    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def _reduce_scatter(self, out: Any, tensor: Any, op: str, opts: Any) -> None:
        rows = tensor.reshape(self._comm.size, -1)
        self._comm.reduce_scatter(rows, op, out=out, timeout=_get_timeout(opts))

    def _submit(self, work: Callable[[], Any], result: Any) -> Any:
        """Run in the order of the calls; the future of the work holds the tensors, or the error."""
        future = torch.futures.Future()

        def run() -> None:
            try:
                work()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._comm.run_in_order(run)
        return _create_work_from_future(future)

    def shutdown(self) -> None:
        self._comm.close()

    def abort(self) -> None:
        self._comm.close()


def _get_reduction(opts: Any) -> str:
    op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
    for torch_name, name in _REDUCTIONS.items():
        if op == getattr(dist.ReduceOp, torch_name):
            return name
    raise InputError(f"there is no reduction {op}; there are: {', '.join(_REDUCTIONS)}.")


def _get_timeout(opts: Any) -> float | None:
    """The timeout of a call in seconds, if it has one."""
    timeout = getattr(opts, "timeout", None)
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else -1.0
    return seconds if seconds > 0 else None


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> RidgelineGroup:
    """torch calls it once per process and group; rank 0 writes the name of the rendezvous to the store."""
    config = replace(read_config(), timeout=timeout.total_seconds())
    join_timeout = min(timeout.total_seconds(), TIMEOUT_S)
    server = None
    if rank == 0:
        name = f"ridgeline-fabric-{secrets.token_hex(16)}"
        server = RendezvousServer(name, size, choose_arena_bytes(config.arena_bytes), join_timeout)
        store.set("ridgeline-rendezvous", name)
    else:
        name = store.get("ridgeline-rendezvous").decode()
    try:
        return RidgelineGroup(Communicator(join_world(name, rank, size, join_timeout), config))
    except FabricError as error:
        raise FabricError(f"init_process_group: {error} Back end 'ridgeline' serves one host.") from error
    finally:
        if server is not None:
            server.close()


def register_torch_backend() -> None:
    """Register the back end "ridgeline" with torch.distributed; safe to call twice."""
    if NAME.upper() not in dir(dist.Backend):
        dist.Backend.register_backend(NAME, _create, devices=["cpu"])
