"""Work on what stands still: a forked copy of this process does it, while this one goes on and changes.

    saving = Aside(lambda: write(everything))
    while saving.running: go on
    saving.result()                    # what the work gave back

A watcher's mind takes seconds to write down when it knows many templates, and nothing could be scored meanwhile. The
copy sees it as it was at one moment, at the price of the pages that are changed. It may use no thread, no model and no
GPU of ours: Python, NumPy and files only. It dies when we do.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.pipeline import die_with_parent


class Aside:
    """`work` in a copy of this process; what it gives back must be JSON."""

    def __init__(self, work: Callable[[], Any]) -> None:
        """OSError where no process can be had."""
        alive, self._lifeline = os.pipe()
        self._answer, told = os.pipe()
        us = os.getpid()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: see above
                self._pid = os.fork()
        except OSError:
            for fd in (alive, self._lifeline, self._answer, told):
                os.close(fd)
            raise
        if not self._pid:
            _copy(work, us, alive, told)  # never returns
        os.close(alive)
        os.close(told)

    @property
    def running(self) -> bool:
        return self._answer >= 0 and not select.select([self._answer], [], [], 0)[0]

    def result(self) -> Any:
        """What the work gave back, waited for; RidgelineError if it did not end well."""
        said = b""
        while piece := os.read(self._answer, 1 << 16):
            said += piece
        os.close(self._answer)
        self._answer = -1
        os.close(self._lifeline)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        words = json.loads(said) if said else {"failed": "it ended without a word"}
        if "failed" in words:
            raise RidgelineError(f"saving aside failed ({words['failed']}).")
        return words["done"]


def _copy(work: Callable[[], Any], parent: int, alive: int, told: int) -> None:
    """The copy's whole life."""
    words: dict[str, Any] = {"failed": "it was stopped"}
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the watcher's, which waits for us
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        gc.disable()  # a collection would touch, and so copy, every page
        for fd in _open_files():
            if fd > 2 and fd not in (alive, told):  # above all the lock on the log, which must not outlive the watcher
                with suppress(OSError):
                    os.close(fd)
        die_with_parent(alive, parent)
        with suppress(OSError):  # what is scored goes first: only a CPU that nobody wants
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        words = {"done": work()}
    except BaseException as error:
        words = {"failed": f"{type(error).__name__}: {error}"}
    finally:
        with suppress(BaseException):
            os.write(told, json.dumps(words).encode())
        os._exit(0)


def _open_files() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]
