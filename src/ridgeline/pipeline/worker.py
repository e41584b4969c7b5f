"""A worker's own process: stands where it was told, makes its function, then computes chunk after chunk.

Started by `pipeline.post`; it leaves when the line closes, and the kernel ends it when its parent is gone.
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
from ridgeline.pipeline.shared import Parcel, pack, receive, send

LONGEST = 16 << 10  # characters of a traceback that are sent home

importing_main = False  # while the user's script is imported for what it defines, it may not start pools itself


def main(line_fd: int, lifeline: int, parent: int) -> None:
    die_with_parent(lifeline, parent)
    faulthandler.enable()
    line = socket.socket(fileno=line_fd)
    for fd in (line_fd, lifeline):
        os.set_inheritable(fd, False)
    with ExitStack() as stack:
        try:
            _, parcel = receive(line)
            placement, device, home, factory = parcel.open(own=True)
            parcel.close()
            # First the place, then the libraries: threads and memory they make while loading stay near too.
            where = stack.enter_context(placed(placement)) if placement else None
            load = Loader(home)
            _use(device)
            fn = load(memoryview(factory), ())(device)
        except EOFError:
            return
        except BaseException as error:  # whatever it is, the parent must hear it
            send(line, ("refused", *_words(error)))
            return
        send(line, ("ready", where))
        _serve(line, fn, load)


class Loader:
    """Unpickles; imports the parent's script if something is defined there, and only then."""

    def __init__(self, home: dict[str, Any]) -> None:
        self._home: dict[str, Any] | None = home

    def __call__(self, head: memoryview, buffers: Sequence[memoryview]) -> Any:
        loader = self

        class Unpickler(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> Any:
                if module == "__main__":
                    loader.import_main()
                return super().find_class(module, name)

        return Unpickler(BytesIO(head), buffers=buffers).load()

    def import_main(self) -> None:
        global importing_main
        home, self._home = self._home, None
        if home:
            from multiprocessing import spawn

            importing_main = True
            try:
                spawn.prepare(home)
            finally:
                importing_main = False


def _serve(line: socket.socket, fn: Callable[[Any], Any], load: Loader) -> None:
    inbox: deque[tuple[int, Parcel]] = deque()
    while True:
        try:
            # Orders may overtake chunks that wait here.
            while not inbox or select.select([line], [], [], 0)[0]:
                (what, ticket), parcel = receive(line)
                if what == "chunk":
                    inbox.append((ticket, parcel))
                else:
                    _drop(line, inbox, ticket)
            _answer(line, *inbox.popleft(), fn, load)
        except (EOFError, ConnectionError):
            return


def _answer(line: socket.socket, ticket: int, parcel: Parcel, fn: Callable[[Any], Any], load: Loader) -> None:
    began = time.monotonic()
    try:
        chunk = parcel.open(own=False, load=load)
        parcel.close()
        answer = pack(fn(chunk))
    except BaseException as error:
        send(line, ("failed", ticket, began, time.monotonic(), *_words(error)))
        return
    try:
        send(line, ("done", ticket, began, time.monotonic()), answer)
    finally:
        answer.close()


def _drop(line: socket.socket, inbox: deque[tuple[int, Parcel]], ticket: int) -> None:
    for waiting in list(inbox):
        if waiting[0] == ticket:
            inbox.remove(waiting)
            waiting[1].close()
            send(line, ("dropped", ticket))


def _words(error: BaseException) -> tuple[str, str, str]:
    """(type, message, traceback), as text: an exception of any library may not survive the journey itself."""
    text = "".join(traceback.format_exception(error))
    return type(error).__name__, str(error)[:LONGEST], text[-LONGEST:]


def _use(device: str) -> None:
    """Make the worker's GPU the current one: what names none (a kernel's launch, a graph) would go to GPU 0."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.set_device(device)


def die_with_parent(lifeline: int, parent: int) -> None:
    """Have the kernel kill this process when the parent's end of the pipe closes, whatever runs here then.

    A thread that watches would need the interpreter's lock, which a library can hold for hours. PR_SET_PDEATHSIG
    looks at the parent's *thread*, which may end while the pool lives on.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if os.getppid() != parent:  # it was gone before we asked
        sys.exit(1)
