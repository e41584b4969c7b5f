"""The worker process: it binds itself to its placement, makes its function, then computes chunk after chunk.

`worker_process.py` starts it. It ends when its connection closes, and the kernel kills it when its parent is gone.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from io import BytesIO
from typing import Any

from ridgeline.machine import placed
from ridgeline.pipeline.shared_memory import Payload, pack, receive, send

MAX_TRACEBACK = 16 << 10  # characters of a traceback that are sent to the parent

_importing_main = False


def is_importing_main() -> bool:
    """Whether this process is a worker that is importing the user's script: it must not start processes then."""
    return _importing_main


def main(connection_fd: int, lifeline: int, parent: int) -> None:
    die_with_parent(lifeline, parent)
    faulthandler.enable()
    connection = socket.socket(fileno=connection_fd)
    for fd in (connection_fd, lifeline):
        os.set_inheritable(fd, False)
    with ExitStack() as stack:
        try:
            _, payload = receive(connection)
            placement, device, script, factory = payload.unpack(exclusive=True)
            payload.close()
            # The placement comes before the libraries: threads and memory of their import are then placed as well.
            where = stack.enter_context(placed(placement)) if placement else None
            loader = Loader(script)
            _select_device(device)
            fn = loader(memoryview(factory), ())(device)
        except EOFError:
            return
        except BaseException as error:  # every error goes to the parent
            send(connection, ("refused", *_describe_error(error)))
            return
        send(connection, ("ready", where))
        _serve(connection, fn, loader)


class Loader:
    """Unpickles objects; imports the parent's script only if an object is defined there."""

    def __init__(self, script: dict[str, Any]) -> None:
        self._script: dict[str, Any] | None = script

    def __call__(self, head: memoryview, buffers: Sequence[memoryview]) -> Any:
        loader = self

        class Unpickler(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> Any:
                if module == "__main__":
                    loader.import_main()
                return super().find_class(module, name)

        return Unpickler(BytesIO(head), buffers=buffers).load()

    def import_main(self) -> None:
        global _importing_main
        script, self._script = self._script, None
        if script:
            from multiprocessing import spawn

            _importing_main = True
            try:
                spawn.prepare(script)
            finally:
                _importing_main = False


def _serve(connection: socket.socket, fn: Callable[[Any], Any], loader: Loader) -> None:
    queue: deque[tuple[int, Payload]] = deque()
    while True:
        try:
            # A "drop" message may arrive after the chunk that it names, so read all messages first.
            while not queue or select.select([connection], [], [], 0)[0]:
                (kind, ticket), payload = receive(connection)
                if kind == "chunk":
                    queue.append((ticket, payload))
                else:
                    _drop_chunk(connection, queue, ticket)
            _compute_chunk(connection, *queue.popleft(), fn, loader)
        except (EOFError, ConnectionError):
            return


def _compute_chunk(
    connection: socket.socket, ticket: int, payload: Payload, fn: Callable[[Any], Any], loader: Loader
) -> None:
    start = time.monotonic()
    try:
        chunk = payload.unpack(exclusive=False, load=loader)
        payload.close()
        result = pack(fn(chunk))
    except BaseException as error:
        send(connection, ("failed", ticket, start, time.monotonic(), *_describe_error(error)))
        return
    try:
        send(connection, ("done", ticket, start, time.monotonic()), result)
    finally:
        result.close()


def _drop_chunk(connection: socket.socket, queue: deque[tuple[int, Payload]], ticket: int) -> None:
    for entry in list(queue):
        if entry[0] == ticket:
            queue.remove(entry)
            entry[1].close()
            send(connection, ("dropped", ticket))


def _describe_error(error: BaseException) -> tuple[str, str, str]:
    """(type, message, traceback) as text: the exception object of a library may not survive pickling."""
    text = "".join(traceback.format_exception(error))
    return type(error).__name__, str(error)[:MAX_TRACEBACK], text[-MAX_TRACEBACK:]


def _select_device(device: str) -> None:
    """Make the GPU of the worker the current one: kernels and graphs without a device would use GPU 0."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.set_device(device)


def die_with_parent(lifeline: int, parent: int) -> None:
    """Let the kernel kill this process when the parent's end of a pipe closes, whatever runs here then.

    lifeline  the read end of a pipe; the parent holds the write end
    parent    the process id of the parent; if it is gone already, this process exits with code 1

    A watching thread would need the interpreter lock, which a library can hold for hours. PR_SET_PDEATHSIG follows the
    parent's *thread*, which may end while the pool lives on.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if os.getppid() != parent:  # the parent ended before the calls above
        sys.exit(1)
