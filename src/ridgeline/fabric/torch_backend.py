"""The back end "ridgeline" of torch.distributed, for CPU tensors:

    import ridgeline.fabric.torch  # or: fabric.register_torch_backend()
    torch.distributed.init_process_group("ridgeline")

Ranks find each other through the store of torch; those of several hosts then connect by TCP. Collectives run one after
the other, in order, on a separate thread, so that gradients are exchanged while the backward pass runs. Messages (send,
recv) have another thread, so that their order does not matter. An operation that the engine does not have (gather,
uneven parts, bits, sparse tensors) is made of those it has; before its data moves, the ranks compare their calls.

A failure raises in `wait()`. After a missed deadline or a dead rank the group has ended: every later call raises. After
a refusal (other shapes, a type without a reduction) the group works as before.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from functools import partial, wraps
from queue import SimpleQueue
from typing import Any

import numpy as np

try:
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import Work
except ImportError as error:
    from ridgeline.errors import MissingExtra

    raise MissingExtra("the torch back end of fabric", "torch") from error

from ridgeline.errors import FabricError, InputError, RidgelineError
from ridgeline.fabric.arrays import TYPES, check_written
from ridgeline.fabric.communicator import Communicator
from ridgeline.fabric.config import OVER_NETWORK, FabricConfig, read_config
from ridgeline.fabric.handshake import read_secret
from ridgeline.fabric.hosts import Address, choose_host, get_host_identity, parse_address, parse_ports
from ridgeline.fabric.network_rendezvous import Listener, Membership, NetworkWorld, meet
from ridgeline.fabric.rendezvous import TIMEOUT_S, RendezvousServer, World, choose_arena_bytes, join_world
from ridgeline.fabric.tagged_messages import Messenger

NAME = "ridgeline"
_REDUCTIONS = {"SUM": "sum", "AVG": "avg", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}
_BIT_REDUCTIONS = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}
_BOOL_REDUCTIONS = {"SUM": "max", "MAX": "max", "BOR": "max", "PRODUCT": "min", "MIN": "min", "BAND": "min"}
# Reductions of types that the engine does not have: one rank after the other, in NumPy.
_SLOW_REDUCTIONS = {"SUM": np.add, "PRODUCT": np.multiply, "MIN": np.minimum, "MAX": np.maximum}
_UNSIGNED = ("uint16", "uint32", "uint64")
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_NUMPY_TYPES = frozenset(getattr(torch, name) for name in TYPES if name not in ("bfloat16", "bytes"))
_SLOW_BYTES = 4 << 20  # of one rank, in one step of a reduction in NumPy
_TEXT_BYTES = 160  # of the description of a call, which the ranks compare
_Reduce = Callable[[Any, int | None], None]  # a tensor in place, on the root or (None) on all ranks


class RidgelineWork(Work):
    """A call in progress. Its outcome is in a future of Python; the future of torch is made on demand, for DDP."""

    def __init__(self, name: str, future: Future[Any], tensors: Any, queue: _CallQueue | None) -> None:
        super().__init__()
        self._name, self._future, self._tensors, self._queue = name, future, tensors, queue

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the call, at most for `timeout`; raises its error. A late wait does not end the call."""
        if self._queue is not None:
            self._queue.help(self._future)
        seconds = timeout.total_seconds() if timeout else None  # torch gives 0 for no timeout
        try:
            self._future.result(seconds)
        except TimeoutError:
            if self._future.done():
                raise
            raise FabricError(f"{self._name} was not done within {seconds:g} s; it goes on.") from None
        return True

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and self._future.exception() is None

    def exception(self) -> BaseException | None:
        return self._future.exception() if self._future.done() else None

    def result(self) -> Any:
        self.wait()
        return self._tensors

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        """The sender, of a receive from any source."""
        return int(self._future.result())

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A future that holds the tensors, or the error.

        `set_exception` of such a future stores the exception as a value, which code in C++ (DDP) takes for tensors. An
        exception that is raised in `then` is an error for both.
        """
        done = torch.futures.Future()

        def get_tensors(_: Any) -> Any:
            self._future.result()
            return self._tensors

        result = done.then(get_tensors)
        self._future.add_done_callback(lambda _: done.set_result(None))
        return result


class _CallQueue:
    """Runs calls one after the other: in a thread, or at once in the thread of a caller that waits for its call."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # of `_queued` and `_closed`
        self._queued = 0  # calls of the thread that have not ended
        self._closed = False
        self._running = threading.RLock()  # of the call that runs
        self._in_call = False  # of the thread that has `_running`: what it runs besides is a signal handler

    def submit(self, work: Callable[[], Any], at_once: bool = False) -> Future[Any]:
        """Run `work` after all earlier calls; `at_once`: the caller waits for it in any case.

        If the thread has no call, a call at once runs in the thread of the caller. Waking another thread, which first
        has to get the GIL, takes half as long as a small call (`benchmarks/fabric_torch.py`).
        """
        if at_once:
            with self._running:
                if self._in_call:
                    raise FabricError(
                        "a signal handler cannot make a synchronous call while it interrupts one; "
                        "let it set a flag, and make the call in the training loop."
                    )
                if self._is_idle():
                    self._in_call = True
                    try:
                        return _run_now(work)
                    finally:
                        self._in_call = False
        return self._put(work)

    def _is_idle(self) -> bool:
        """Whether all calls of the thread have ended."""
        with self._lock:
            if self._closed:
                raise FabricError("this group was destroyed; make a new one.")
            return self._queued == 0

    def _put(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def call() -> None:
            with self._running:
                done = _run_now(work)
            with self._lock:
                self._queued -= 1  # before the outcome is known: then the caller's next call can run at once
            error = done.exception()
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)

        with self._lock:
            if self._closed:
                raise FabricError("this group was destroyed; make a new one.")
            self._queued += 1
            self._calls.put(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="fabric-torch")
                self._thread.start()
        return future

    def help(self, future: Future[Any]) -> None:
        """A call that waits for a later call (in a callback) would block the thread: run the later calls here."""
        while threading.current_thread() is self._thread and not future.done():
            call = self._calls.get()
            if call is None:
                self._calls.put(None)
                return
            call()

    def close(self, wait: bool = True) -> bool:
        """End the thread after all calls. Return whether all calls have ended: a signal handler cannot wait for the
        call that it interrupts."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._calls.put(None)
        if not wait:
            return False
        with self._running:
            if self._in_call:
                return False
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        return True

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # it holds tensors


def _announce_refusals(op: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let the other ranks know of a refused call, so that they need not wait for this rank until their deadline."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(self: RidgelineGroup, *arguments: Any, **options: Any) -> Any:
            try:
                return method(self, *arguments, **options)
            except InputError:
                if self._error is None:
                    self._calls.submit(lambda: self._comm._refuse(op))
                raise

        return call

    return decorate


class RidgelineGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group that calls a `Communicator`, and a `Messenger` for send and recv."""

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        timeout: float,
        arena: int | None,
        make_membership: Callable[[], Membership] | None = None,
    ) -> None:
        """Join the other ranks; on one host rank 0 gives the size of arenas, else `make_membership` finds the ranks."""
        super().__init__(rank, size)
        self._set_up(rank, size)
        config = replace(read_config(), timeout=timeout)
        join_timeout = min(timeout, TIMEOUT_S)
        if make_membership is not None:
            deadline = time.monotonic() + join_timeout
            membership = make_membership()
            self._world: World | NetworkWorld = NetworkWorld(membership, deadline)
            self._comm = Communicator(self._world, config)
            self._messenger = Messenger(name, rank, size, timeout, self._end, membership.connect_messages(deadline))
            atexit.register(self.shutdown)
            return
        server = RendezvousServer(name, size, arena, join_timeout) if arena is not None else None
        self._messenger = Messenger(name, rank, size, timeout, self._end)
        try:
            world = join_world(name, rank, size, join_timeout)
            self._world, self._comm = world, Communicator(world, config)
        except BaseException:
            self._messenger.close()
            raise
        finally:
            if server is not None:
                server.close()
        self._messenger.pids = world.pids
        # Daemon threads must not run while the interpreter ends; atexit functions run before that.
        atexit.register(self.shutdown)

    def _set_up(self, rank: int, size: int) -> None:
        self._rank, self._count, self._process = rank, size, os.getpid()
        self._error: FabricError | None = None  # of a group that has ended
        self._group_name = self._group_description = ""
        self._closed = False
        self._calls = _CallQueue()

    @classmethod
    def of_communicator(cls, comm: Communicator) -> RidgelineGroup:
        """A group that makes its collectives through an existing communicator, which it closes at its end."""
        group = cls.__new__(cls)
        dist.ProcessGroup.__init__(group, comm.rank, comm.size)
        group._set_up(comm.rank, comm.size)
        timeout, world = comm.config.timeout, comm._world
        group._world, group._comm = world, comm
        if isinstance(world, NetworkWorld):
            links = world.membership.connect_messages(time.monotonic() + timeout)
            group._messenger = Messenger("", comm.rank, comm.size, timeout, group._end, links)
        else:
            group._messenger = Messenger(f"{world.name}-torch", comm.rank, comm.size, timeout, group._end)
            group._messenger.pids = world.pids
            comm.barrier()  # all listen now
        atexit.register(group.shutdown)
        return group

    def getBackendName(self) -> str:
        return NAME

    # torch keeps names in back ends of C++, which this group does not have.

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        self._group_description = description

    def getGroupDesc(self) -> str:
        return self._group_description

    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    # Collectives of the engine.

    @_announce_refusals("all_reduce")
    def allreduce(self, tensors: list[Any], opts: Any = None) -> Any:
        if any(tensor.is_sparse for tensor in tensors):
            return self._allreduce_sparse(tensors, opts)
        reduces = [self._choose_reduction("all_reduce", tensor, opts) for tensor in tensors]

        def work() -> None:
            for reduce, tensor in zip(reduces, tensors, strict=True):
                reduce(tensor, None)

        return self._submit("all_reduce", work, tensors, opts)

    def allreduce_coalesced(self, tensors: list[Any], opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    @_announce_refusals("reduce")
    def reduce(self, tensors: list[Any], opts: Any = None) -> Any:
        root, (tensor,) = self._get_root("reduce", opts), tensors
        reduce = self._choose_reduction("reduce", tensor, opts)
        return self._submit("reduce", lambda: reduce(tensor, root), tensors, opts)

    @_announce_refusals("broadcast")
    def broadcast(self, tensors: list[Any], opts: Any = None) -> Any:
        root, timeout = self._get_root("broadcast", opts), _get_timeout(opts)
        _check("broadcast", *((tensors, []) if root == self._rank else ([], tensors)))

        def work() -> None:
            for tensor in tensors:
                self._comm.broadcast(_get_array(tensor), root, timeout=timeout)

        return self._submit("broadcast", work, tensors, opts)

    def _allgather_base(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        return self.allgather_into_tensor_coalesced([output], [tensor], opts)

    @_announce_refusals("all_gather")
    def allgather_into_tensor_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Any:
        for out, tensor in zip(outputs, inputs, strict=True):
            _check("all_gather", [tensor], [out])
        timeout = _get_timeout(opts)

        def work() -> None:
            for out, tensor in zip(outputs, inputs, strict=True):
                self._comm.all_gather(_get_array(tensor), out=_get_array(out), timeout=timeout)

        return self._submit("all_gather", work, outputs, opts)

    def _reduce_scatter_base(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    @_announce_refusals("reduce_scatter")
    def reduce_scatter_tensor_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Any:
        for out, tensor in zip(outputs, inputs, strict=True):
            _check("reduce_scatter", [tensor], [out])
            if out.numel() * self._count != tensor.numel():
                raise InputError(
                    f"reduce_scatter: the input has {tensor.numel()} elements, the output {out.numel()}; "
                    f"{self._count} ranks need {out.numel() * self._count}."
                )
        rows = [tensor.detach().reshape(self._count, -1) for tensor in inputs]
        return self._reduce_scatter_rows(outputs, rows, opts)

    def barrier(self, opts: Any = None) -> Any:
        return self._submit("barrier", lambda: self._comm.barrier(timeout=_get_timeout(opts)), [], opts)

    # Lists of tensors: equal parts go through the engine, others are made of its calls.

    @_announce_refusals("all_gather")
    def allgather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Any:
        timeout = _get_timeout(opts)
        for parts, tensor in zip(outputs, inputs, strict=True):
            _check("all_gather", [tensor], parts)
            if len(parts) != self._count or parts[self._rank].numel() != tensor.numel():
                raise InputError(
                    f"all_gather: {_list_sizes(parts)} elements in the outputs do not fit {self._count} ranks, "
                    f"of which rank {self._rank} gives {tensor.numel()}."
                )

        def work() -> None:
            for parts, tensor in zip(outputs, inputs, strict=True):
                if len({part.numel() for part in parts}) == 1:
                    gathered = self._comm.all_gather(tensor.detach().reshape(-1), timeout=timeout)
                    for part, values in zip(parts, gathered, strict=True):
                        part.detach().copy_(values.view(part.shape))
                    continue
                self._agree(f"all_gather of {_list_sizes(parts)} {_get_type(tensor)}", timeout)
                parts[self._rank].detach().copy_(tensor.detach().reshape(parts[self._rank].shape))
                for root, part in enumerate(parts):
                    self._comm.broadcast(part, root, timeout=timeout)

        return self._submit("all_gather", work, outputs, opts)

    def allgather_coalesced(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Any:
        """Part r of `outputs` holds the tensors of rank r."""
        work = self.allgather([list(parts) for parts in zip(*outputs, strict=True)], inputs, opts)
        work._tensors = outputs
        return work

    @_announce_refusals("reduce_scatter")
    def reduce_scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any = None) -> Any:
        for out, parts in zip(outputs, inputs, strict=True):
            _check("reduce_scatter", parts, [out])
            if len(parts) != self._count or parts[self._rank].numel() != out.numel():
                raise InputError(
                    f"reduce_scatter: {_list_sizes(parts)} elements in the inputs do not fit {self._count} ranks, "
                    f"of which rank {self._rank} takes {out.numel()}."
                )
        return self._reduce_scatter_rows(outputs, inputs, opts)

    def _reduce_scatter_rows(self, outputs: list[Any], inputs: Sequence[Any], opts: Any) -> Any:
        """Each of `inputs` has a row or a tensor for each rank."""
        timeout, op = _get_timeout(opts), _get_reduction(opts)
        reduces = [self._choose_reduction("reduce_scatter", out, opts) for out in outputs]

        def work() -> None:
            for reduce, out, parts in zip(reduces, outputs, inputs, strict=True):
                kind = _get_type(out)
                if kind in TYPES and op in _REDUCTIONS and len({part.numel() for part in parts}) == 1:
                    rows = (
                        parts
                        if isinstance(parts, torch.Tensor)
                        else torch.stack([p.detach().reshape(-1) for p in parts])
                    )
                    self._comm.reduce_scatter(rows, _REDUCTIONS[op], out=out, timeout=timeout)
                    continue
                self._agree(f"reduce_scatter of {_list_sizes(parts)} {kind} ({op})", timeout)
                reduced = [part.detach().clone() for part in parts]  # `out` may be a part
                for root, part in enumerate(reduced):
                    reduce(part, root)
                out.detach().copy_(reduced[self._rank].view(out.shape))

        return self._submit("reduce_scatter", work, outputs, opts)

    @_announce_refusals("all_to_all")
    def alltoall_base(
        self, output: Any, tensor: Any, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> Any:
        _check("all_to_all", [tensor], [output])
        if output_sizes or input_sizes:
            received = self._split("output", output.detach(), output_sizes)
            sent = self._split("input", tensor.detach(), input_sizes)
            return self._exchange(received, sent, [output], opts)
        timeout = _get_timeout(opts)
        return self._submit(
            "all_to_all", lambda: self._comm.all_to_all(tensor, out=output, timeout=timeout), [output], opts
        )

    @_announce_refusals("all_to_all")
    def alltoall(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Any:
        _check("all_to_all", inputs, outputs)
        if not len(outputs) == len(inputs) == self._count:
            raise InputError(
                f"all_to_all: {len(inputs)} inputs and {len(outputs)} outputs were given to {self._count} ranks."
            )
        return self._exchange(outputs, inputs, outputs, opts)

    def _exchange(self, outputs: list[Any], inputs: list[Any], result: list[Any], opts: Any) -> Any:
        """Part k of the inputs goes to rank k, part k of the outputs comes from it."""
        timeout = _get_timeout(opts)

        def work() -> None:
            self._agree(f"all_to_all of {_get_type(inputs[0])}", timeout)
            sizes = np.array([[t.numel() for t in inputs], [t.numel() for t in outputs]], np.int64)
            table = self._comm.all_gather(sizes, timeout=timeout)  # [rank, sent or received, peer]
            wrong = np.argwhere(table[:, 0] != table[:, 1].T)
            if len(wrong):
                a, b = wrong[0]
                raise FabricError(
                    f"all_to_all: rank {a} sends {table[a, 0, b]} elements to rank {b}, "
                    f"but rank {b} receives {table[b, 1, a]} from it."
                )
            sent = [tensor.detach().clone() for tensor in inputs] if _share_memory(inputs, outputs) else inputs
            outputs[self._rank].detach().copy_(sent[self._rank].detach().reshape(outputs[self._rank].shape))
            # In round k the ranks whose sum is k exchange their parts, so each rank has one peer at a time.
            for k in range(self._count):
                peer = (k - self._rank) % self._count
                if peer < self._rank:
                    self._receive(outputs[peer], peer, timeout)
                if peer != self._rank:
                    self._send(sent[peer], peer, timeout)
                if peer > self._rank:
                    self._receive(outputs[peer], peer, timeout)

        return self._submit("all_to_all", work, result, opts)

    def _split(self, which: str, tensor: Any, sizes: list[int]) -> list[Any]:
        rows = tensor.shape[0] if tensor.dim() else 0
        sizes = list(sizes) or [rows // self._count] * self._count
        if len(sizes) != self._count or sum(sizes) != rows or min(sizes) < 0:
            raise InputError(f"all_to_all: {sizes} do not cut the {rows} rows of the {which} into {self._count} parts.")
        return list(tensor.split(sizes))

    @_announce_refusals("all_gather")
    def gather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Any:
        root, timeout, (tensor,) = self._get_root("gather", opts), _get_timeout(opts), inputs
        parts = self._check_parts("gather", outputs, tensor, root)
        _check("gather", inputs, parts)

        def work() -> None:
            self._agree(f"gather of {tensor.numel()} {_get_type(tensor)} to rank {root}", timeout)
            for rank, part in enumerate(parts):
                if rank == root:
                    part.detach().copy_(tensor.detach().reshape(part.shape))
                else:
                    self._receive(part, rank, timeout)
            if self._rank != root:
                self._send(tensor, root, timeout)

        return self._submit("gather", work, parts, opts)

    @_announce_refusals("all_gather")
    def scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any = None) -> Any:
        root, timeout, (tensor,) = self._get_root("scatter", opts), _get_timeout(opts), outputs
        parts = self._check_parts("scatter", inputs, tensor, root)
        _check("scatter", parts, outputs)

        def work() -> None:
            self._agree(f"scatter of {tensor.numel()} {_get_type(tensor)} from rank {root}", timeout)
            for rank, part in enumerate(parts):
                if rank == root:
                    tensor.detach().copy_(part.detach().reshape(tensor.shape))
                else:
                    self._send(part, rank, timeout)
            if self._rank != root:
                self._receive(tensor, root, timeout)

        return self._submit("scatter", work, outputs, opts)

    # Messages.

    def send(self, tensors: list[Any], to: int, tag: int = 0) -> Any:
        (tensor,) = tensors
        _check("send", tensors)
        self._check_state("send")
        source = tensor.detach().contiguous()
        future = self._messenger.send(_get_bytes(source), _get_type(tensor), to, tag)
        return RidgelineWork(f"send to rank {to}", future, tensors, None)

    def recv(self, tensors: list[Any], source: int, tag: int = 0) -> Any:
        return self._recv(tensors, source, tag)

    def recv_anysource(self, tensors: list[Any], tag: int = 0) -> Any:
        return self._recv(tensors, None, tag)

    def _recv(self, tensors: list[Any], source: int | None, tag: int) -> Any:
        (tensor,) = tensors
        _check("recv", [], tensors)
        self._check_state("recv")
        target = tensor.detach().contiguous()
        future = self._messenger.recv(_get_bytes(target), _get_type(tensor), source, tag)
        if target.data_ptr() != tensor.data_ptr():
            future = _chain(future, lambda: tensor.detach().copy_(target))
        name = "recv from any rank" if source is None else f"recv from rank {source}"
        return RidgelineWork(name, future, tensors, None)

    # The names in torch 2.13.
    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def shutdown(self) -> None:
        """End the group after the calls in progress."""
        if self._closed or os.getpid() != self._process:  # a forked child must not end the group of its parent
            return
        self._closed = True
        have_ended = self._calls.close()
        self._end(FabricError(f"rank {self._rank} has destroyed it."))
        self._messenger.close()
        if have_ended:
            self._comm.close()
            if isinstance(self._world, World):
                os.close(self._world.fd)
            del self._comm  # torch may keep this object until the process ends, but it needs no memory then
        atexit.unregister(self.shutdown)

    def abort(self) -> None:
        """End the group; calls in progress fail."""
        if self._closed or os.getpid() != self._process:
            return
        self._end(FabricError(f"rank {self._rank} has aborted it."))
        self._comm.abort()
        self._calls.close(wait=False)
        self._messenger.close()

    # Helpers.

    def _submit(self, name: str, work: Callable[[], Any], result: Any, opts: Any) -> Any:
        """Run `work` in order. A synchronous call of torch.distributed has `asyncOp` False in its options."""
        self._check_state(name)

        def run() -> None:
            self._check_state(name)
            comm = self._comm
            try:
                work()
            except RidgelineError as error:
                if comm.has_failed:
                    self._end(error if isinstance(error, FabricError) else FabricError(str(error)))
                raise
            except BaseException as error:  # the other ranks may be in the middle of this call
                comm.abort()
                self._end(FabricError(f"{name} of rank {self._rank} was interrupted by {type(error).__name__}."))
                raise

        future = self._calls.submit(run, at_once=not getattr(opts, "asyncOp", True))
        return RidgelineWork(f"{name} of rank {self._rank}", future, result, self._calls)

    def _check_state(self, name: str) -> None:
        if os.getpid() != self._process:
            raise FabricError(f"{name}: a forked process cannot use the group of its parent; make a new group in it.")
        if self._error is not None:
            raise FabricError(f"{name} of rank {self._rank}: this group has ended: {self._error}")

    def _end(self, error: FabricError) -> None:
        self._error = self._error or error
        self._messenger.end(error)

    def _agree(self, call: str, timeout: float | None) -> None:
        """Compare the descriptions of a call; raise on all ranks if two differ. No data has moved then."""
        text = call.encode()
        if len(text) > _TEXT_BYTES:
            text = text[: _TEXT_BYTES - 12] + f" … {zlib.crc32(text):08x}".encode()
        row = np.frombuffer(text[:_TEXT_BYTES].ljust(_TEXT_BYTES), np.uint8).copy()
        try:
            rows = self._comm.all_gather(row, timeout=timeout)
        except FabricError as error:  # it names the all_gather of this line
            raise FabricError(f"{call}: {error}") from error
        calls = [bytes(other).decode(errors="replace").rstrip() for other in rows]
        for rank, other in enumerate(calls):
            if other != calls[0]:
                raise FabricError(
                    f"rank 0 calls {calls[0]}, rank {rank} calls {other}: all ranks must make the same call."
                )

    def _send(self, tensor: Any, to: int, timeout: float | None) -> None:
        if tensor.numel():
            self._comm.send(tensor, to, timeout=timeout)

    def _receive(self, tensor: Any, source: int, timeout: float | None) -> None:
        if tensor.numel():
            self._comm.recv(tensor, source, timeout=timeout)

    def _get_root(self, name: str, opts: Any) -> int:
        root = int(getattr(opts, "rootRank", 0))
        if not 0 <= root < self._count:
            raise InputError(f"{name}: root is {root}; it must be one of the ranks 0 to {self._count - 1}.")
        return root

    def _check_parts(self, name: str, lists: list[list[Any]], tensor: Any, root: int) -> list[Any]:
        """The list of the root of gather or scatter: a part for each rank, all of one size."""
        parts = lists[0] if lists and self._rank == root else []
        if self._rank == root and (len(parts) != self._count or {p.numel() for p in parts} != {tensor.numel()}):
            raise InputError(
                f"{name}: the list of the root has {_list_sizes(parts)} elements; "
                f"it needs {self._count} tensors of {tensor.numel()}."
            )
        return parts

    def _choose_reduction(self, name: str, tensor: Any, opts: Any) -> _Reduce:
        """Return the function that reduces a tensor of this type; refuse a type or reduction that has none."""
        _check(name, [], [tensor])
        op, timeout, kind = _get_reduction(opts), _get_timeout(opts), _get_type(tensor)
        if kind == "bool" and op in _BOOL_REDUCTIONS:
            return lambda tensor, root: self._reduce(tensor.view(torch.uint8), _BOOL_REDUCTIONS[op], root, timeout)
        if kind in TYPES and op in _REDUCTIONS:
            return lambda tensor, root: self._reduce(tensor, _REDUCTIONS[op], root, timeout)
        has_bits = kind == "bool" or (kind.startswith(("int", "uint")) and (kind in TYPES or kind in _UNSIGNED))
        if has_bits and op in _BIT_REDUCTIONS:
            return lambda tensor, root: self._reduce_slowly(name, tensor, op, _BIT_REDUCTIONS[op], root, timeout)
        if kind in (*_UNSIGNED, *_FLOAT8) and op in _SLOW_REDUCTIONS:
            return lambda tensor, root: self._reduce_slowly(name, tensor, op, _SLOW_REDUCTIONS[op], root, timeout)
        raise InputError(f"{name}: {kind} has no reduction {op}; convert the tensor to another type.")

    def _reduce(self, tensor: Any, op: str, root: int | None, timeout: float | None) -> None:
        if root is None:
            self._comm.all_reduce(_get_array(tensor), op, timeout=timeout)
        else:
            self._comm.reduce(_get_array(tensor), root, op, timeout=timeout)

    def _reduce_slowly(
        self, name: str, tensor: Any, op: str, function: np.ufunc, root: int | None, timeout: float | None
    ) -> None:
        """Gather the values of all ranks, piece by piece, and reduce them in NumPy; float8 is rounded at the end."""
        kind, to = _get_type(tensor), "" if root is None else f" with root {root}"
        self._agree(f"{name} of {tensor.numel()} {kind} ({op}){to}", timeout)
        values = tensor.detach().contiguous().view(-1)
        for piece in values.split(max(1, _SLOW_BYTES // tensor.element_size())):
            rows = self._comm.all_gather(piece.view(torch.uint8), timeout=timeout).view(tensor.dtype)
            rows = rows.float() if kind in _FLOAT8 else rows
            reduced = function.reduce(rows.numpy(), axis=0, dtype=rows.numpy().dtype)
            if root in (None, self._rank):
                piece.copy_(torch.from_numpy(reduced).to(tensor.dtype))
        if values.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(values.view(tensor.shape))

    def _allreduce_sparse(self, tensors: list[Any], opts: Any) -> Any:
        op, timeout = _get_reduction(opts), _get_timeout(opts)
        if op != "SUM" or not all(tensor.is_sparse for tensor in tensors):
            raise InputError(
                f"all_reduce: sparse tensors have the reduction SUM only, not {op}, and no dense ones beside."
            )

        def work() -> None:
            for tensor in tensors:
                coalesced = tensor.detach().coalesce()
                shape, kind = tuple(tensor.shape), _get_type(tensor)
                self._agree(f"all_reduce of sparse {shape} {kind}, {coalesced.sparse_dim()} sparse dimensions", timeout)
                counts = self._comm.all_gather(np.array([coalesced._nnz()], np.int64), timeout=timeout)[:, 0]
                indices, values = coalesced.indices().contiguous(), coalesced.values().contiguous()
                all_indices, all_values = [], []
                for root, count in enumerate(int(c) for c in counts):
                    mine = root == self._rank
                    some = indices if mine else indices.new_empty((indices.shape[0], count))
                    more = values if mine else values.new_empty((count, *values.shape[1:]))
                    all_indices.append(self._comm.broadcast(some, root, timeout=timeout) if count else some)
                    all_values.append(self._comm.broadcast(more, root, timeout=timeout) if count else more)
                total = torch.sparse_coo_tensor(
                    torch.cat(all_indices, 1), torch.cat(all_values), shape, check_invariants=False
                )
                with torch.no_grad():
                    tensor.copy_(total.coalesce())

        return self._submit("all_reduce", work, tensors, opts)


def _check(name: str, inputs: Sequence[Any], outputs: Sequence[Any] = ()) -> None:
    """Refuse tensors that the back end cannot read, and outputs that it cannot write."""
    tensors = (*inputs, *outputs)
    for tensor in tensors:
        if tensor.layout != torch.strided:
            raise InputError(f"{name}: sparse tensors are not supported; give dense ones ({tensor.layout} was given).")
        if tensor.device.type != "cpu":
            raise InputError(f"{name}: back end 'ridgeline' takes CPU tensors, not one on {tensor.device}.")
        if tensor.is_neg() or tensor.is_conj():
            raise InputError(
                f"{name}: this tensor is a lazy negation or conjugate; give x.resolve_neg().resolve_conj()."
            )
        if tensor.dtype != tensors[0].dtype:
            raise InputError(f"{name}: inputs and outputs are {tensors[0].dtype} and {tensor.dtype}; give one type.")
    for tensor in outputs:
        check_written(name, tensor.is_contiguous(), tensor.shape, tensor.stride())


def _get_reduction(opts: Any) -> str:
    op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
    for name in (*_REDUCTIONS, *_BIT_REDUCTIONS):
        if op == getattr(dist.ReduceOp, name):
            return name
    raise InputError(f"there is no reduction {op}; there are: {', '.join((*_REDUCTIONS, *_BIT_REDUCTIONS))}.")


def _get_timeout(opts: Any) -> float | None:
    """The timeout of a call in seconds, if it has one."""
    timeout = getattr(opts, "timeout", None)
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else -1.0
    return seconds if seconds > 0 else None


def _get_type(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _get_array(tensor: Any) -> Any:
    """The same memory as a NumPy array, if NumPy has the type: the engine reads that without code in Python."""
    return tensor.detach().numpy() if tensor.dtype in _NUMPY_TYPES else tensor


def _get_bytes(tensor: Any) -> memoryview:
    """The memory of a contiguous tensor."""
    return memoryview(tensor.view(-1).view(torch.uint8).numpy())


def _share_memory(tensors: Sequence[Any], others: Sequence[Any]) -> bool:
    first, second = ({tensor.untyped_storage().data_ptr() for tensor in some} for some in (tensors, others))
    return bool(first & second)


def _list_sizes(tensors: Sequence[Any]) -> str:
    return " + ".join(str(tensor.numel()) for tensor in tensors)


def _run_now(work: Callable[[], Any]) -> Future[Any]:
    """The outcome of `work`."""
    done: Future[Any] = Future()
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)
    return done


def _chain(future: Future[Any], finish: Callable[[], Any]) -> Future[Any]:
    """A future with the same outcome, after `finish`."""
    chained: Future[Any] = Future()

    def end(done: Future[Any]) -> None:
        try:
            result = done.result()
            finish()
        except BaseException as error:
            chained.set_exception(error)
        else:
            chained.set_result(result)

    future.add_done_callback(end)
    return chained


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> RidgelineGroup:
    """torch calls it once per process and group. Ranks of one host get the name of a rendezvous from the store."""
    config, seconds = read_config(), timeout.total_seconds()
    store.set(f"ridgeline-host-{rank}", get_host_identity())
    hosts = {store.get(f"ridgeline-host-{r}") for r in range(size)}
    arena, make_membership, name = None, None, ""
    if len(hosts) > 1 or config.transport in OVER_NETWORK:
        make_membership = partial(_meet_by_store, store, rank, size, config, min(seconds, TIMEOUT_S))
    elif rank == 0:
        name, arena = f"ridgeline-fabric-{secrets.token_hex(16)}", choose_arena_bytes(config.arena_bytes)
        store.set("ridgeline-rendezvous", name)
    else:
        name = store.get("ridgeline-rendezvous").decode()
    try:
        return RidgelineGroup(name, rank, size, seconds, arena, make_membership)
    except FabricError as error:
        raise FabricError(f"init_process_group: {error}") from error


def _meet_by_store(store: Any, rank: int, size: int, config: FabricConfig, timeout: float) -> Membership:
    """Rank 0 writes an address and, if the environment has no secret, a new one into the store of torch."""
    has_secret = any(os.environ.get(f"RIDGELINE_FABRIC_{name}") for name in ("SECRET", "SECRET_FILE"))
    master = Address(os.environ.get("MASTER_ADDR", "127.0.0.1"), 1)
    if rank:
        rendezvous = parse_address(store.get("ridgeline-rendezvous").decode(), "the address of rank 0")
        secret = read_secret() if has_secret else store.get("ridgeline-secret")
        # Listen on the address that leads to rank 0, unless an interface is named.
        return meet(rank, size, rendezvous, secret, config, timeout)
    secret = read_secret() if has_secret else secrets.token_bytes(32).hex().encode()
    server = Listener(secret, [Address(choose_host(config.interface, master), 0)], parse_ports(config.ports))
    if not has_secret:
        store.set("ridgeline-secret", secret)
    store.set("ridgeline-rendezvous", str(server.addresses[0]))
    return meet(0, size, server.addresses[0], secret, config, timeout, server)


def make_torch_group(comm: Communicator) -> RidgelineGroup:
    """A process group over all ranks of a communicator: `DistributedDataParallel(model, process_group=…)`.

    All ranks call it. After a failure, make a new one over `comm.shrink()`. A part of a split communicator is refused.
    """
    if comm._context:
        raise InputError("make_torch_group: this communicator is a part of a split one; give the one that was split.")
    return RidgelineGroup.of_communicator(comm)


def register_torch_backend() -> None:
    """Register the back end "ridgeline" with torch.distributed; safe to call twice."""
    if NAME.upper() not in dir(dist.Backend):
        dist.Backend.register_backend(NAME, _create, devices=["cpu"])
