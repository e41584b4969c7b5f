"""torch.distributed over Ridgeline's engine, for CPU tensors on one host:

    import ridgeline.fabric.torch
    torch.distributed.init_process_group("ridgeline")

Ranks meet through torch's own store. Calls run one after the other in the order they are made, on a thread of their
own, so that gradients travel while the backward pass goes on.
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
from ridgeline.fabric import rendezvous as meeting
from ridgeline.fabric.communicator import Communicator
from ridgeline.fabric.config import from_environment

NAME = "ridgeline"
_REDUCTIONS = {"SUM": "sum", "AVG": "avg", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}


class RidgelineGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group whose collectives are a `Communicator`'s."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm

    def getBackendName(self) -> str:
        return NAME

    @property
    def group_name(self) -> str:
        return str(dist.distributed_c10d._world.pg_names[self])

    def allreduce(self, tensors: list[Any], opts: Any = None) -> Any:
        op = _reduction(opts)
        return self._later(lambda: [self._comm.all_reduce(t, op, timeout=_seconds(opts)) for t in tensors], tensors)

    def allreduce_coalesced(self, tensors: list[Any], opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Any], opts: Any = None) -> Any:
        root = int(getattr(opts, "rootRank", 0))
        return self._later(lambda: [self._comm.broadcast(t, root, timeout=_seconds(opts)) for t in tensors], tensors)

    def reduce(self, tensors: list[Any], opts: Any = None) -> Any:
        root, op = int(getattr(opts, "rootRank", 0)), _reduction(opts)
        return self._later(lambda: [self._comm.reduce(t, root, op, timeout=_seconds(opts)) for t in tensors], tensors)

    def allgather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Any:
        def work() -> None:
            for outs, given in zip(outputs, inputs, strict=True):
                for out, came in zip(outs, self._comm.all_gather(given, timeout=_seconds(opts)), strict=True):
                    out.copy_(came)

        return self._later(work, outputs)

    def _allgather_base(self, output: Any, given: Any, opts: Any = None) -> Any:
        return self._later(lambda: self._comm.all_gather(given, out=output, timeout=_seconds(opts)), output)

    def allgather_into_tensor_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Any:
        def work() -> None:
            for out, given in zip(outputs, inputs, strict=True):
                self._comm.all_gather(given, out=out, timeout=_seconds(opts))

        return self._later(work, outputs)

    def reduce_scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any = None) -> Any:
        op = _reduction(opts)

        def work() -> None:
            for out, given in zip(outputs, inputs, strict=True):
                self._comm.reduce_scatter(torch.stack(given), op, out=out, timeout=_seconds(opts))

        return self._later(work, outputs)

    def _reduce_scatter_base(self, output: Any, given: Any, opts: Any = None) -> Any:
        op = _reduction(opts)
        return self._later(lambda: self._scattered(output, given, op, opts), output)

    def reduce_scatter_tensor_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Any:
        op = _reduction(opts)

        def work() -> None:
            for out, given in zip(outputs, inputs, strict=True):
                self._scattered(out, given, op, opts)

        return self._later(work, outputs)

    def alltoall_base(
        self, output: Any, given: Any, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> Any:
        if len({*output_sizes, *input_sizes}) > 1:
            raise InputError("all_to_all takes equal parts here; pad the parts to one length.")
        return self._later(lambda: self._comm.all_to_all(given, out=output, timeout=_seconds(opts)), output)

    def send(self, tensors: list[Any], to: int, tag: int = 0) -> Any:
        def work() -> None:
            for tensor in tensors:
                self._comm.send(tensor, to)

        return self._later(work, tensors)

    def recv(self, tensors: list[Any], source: int, tag: int = 0) -> Any:
        return self._later(lambda: [self._comm.recv(t, source) for t in tensors], tensors)

    def barrier(self, opts: Any = None) -> Any:
        return self._later(lambda: self._comm.barrier(timeout=_seconds(opts)), [])

    # What torch 2.13 calls them.
    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def _scattered(self, out: Any, given: Any, op: str, opts: Any) -> None:
        whole = given.reshape(self._comm.size, -1)
        self._comm.reduce_scatter(whole, op, out=out, timeout=_seconds(opts))

    def _later(self, work: Callable[[], Any], result: Any) -> Any:
        """Done in the order of the calls; the work's future holds the tensors, or the error."""
        future = torch.futures.Future()

        def run() -> None:
            try:
                work()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._comm.in_order(run)
        return _create_work_from_future(future)

    def shutdown(self) -> None:
        self._comm.close()

    def abort(self) -> None:
        self._comm.close()


def _reduction(opts: Any) -> str:
    told = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
    found = next((ours for theirs, ours in _REDUCTIONS.items() if told == getattr(dist.ReduceOp, theirs)), None)
    if found is None:
        raise InputError(f"there is no reduction {told} here; there are: {', '.join(_REDUCTIONS)}.")
    return found


def _seconds(opts: Any) -> float | None:
    """A call's own timeout, where it has one."""
    told = getattr(opts, "timeout", None)
    seconds = told.total_seconds() if isinstance(told, timedelta) else -1.0
    return seconds if seconds > 0 else None


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> RidgelineGroup:
    """Called by torch once per process and group; rank 0 tells the others by the store where to meet."""
    config = replace(from_environment(), timeout=timeout.total_seconds())
    patience = min(timeout.total_seconds(), meeting.PATIENCE_S)
    host = None
    if rank == 0:
        name = f"ridgeline-fabric-{secrets.token_hex(16)}"
        host = meeting.Host(name, size, meeting.arena_size(config.arena_bytes), patience)
        store.set("ridgeline-meeting", name)
    else:
        name = store.get("ridgeline-meeting").decode()
    try:
        return RidgelineGroup(Communicator(meeting.join(name, rank, size, patience), config))
    except FabricError as error:
        raise FabricError(f"init_process_group: {error} Back end 'ridgeline' serves one host.") from error
    finally:
        if host is not None:
            host.close()


if NAME.upper() not in dir(dist.Backend):
    dist.Backend.register_backend(NAME, _create, devices=["cpu"])
