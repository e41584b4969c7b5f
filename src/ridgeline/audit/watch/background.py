"""Run work in a forked copy of this process, on a snapshot of its memory, while this process continues.

    saving = BackgroundProcess(lambda: write(everything))
    while saving.running: ...          # continue
    saving.result()                    # the return value of the work

Saving a watcher that knows many templates takes seconds, and nothing could be scored meanwhile. The copy sees the
memory of one moment; it costs only the pages that change. It must not use threads, models or the GPU of the parent:
only Python, NumPy and files. It ends when the parent ends.
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


class BackgroundProcess:
    """Runs `work` in a copy of this process; its return value must be JSON."""

    def __init__(self, work: Callable[[], Any]) -> None:
        """Raises OSError if the process cannot be created."""
        alive, self._lifeline = os.pipe()
        self._answer, write_end = os.pipe()
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # it warns of forks beside threads: see above
                self._pid = os.fork()
        except OSError:
            for fd in (alive, self._lifeline, self._answer, write_end):
                os.close(fd)
            raise
        if not self._pid:
            _run_copy(work, parent, alive, write_end)  # never returns
        os.close(alive)
        os.close(write_end)

    @property
    def running(self) -> bool:
        return self._answer >= 0 and not select.select([self._answer], [], [], 0)[0]

    def result(self) -> Any:
        """Wait for the work and return its value; raise RidgelineError if it failed."""
        answer = b""
        while piece := os.read(self._answer, 1 << 16):
            answer += piece
        os.close(self._answer)
        self._answer = -1
        os.close(self._lifeline)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        outcome = json.loads(answer) if answer else {"failed": "it ended without a result"}
        if "failed" in outcome:
            raise RidgelineError(f"saving in the background failed ({outcome['failed']}).")
        return outcome["done"]


def _run_copy(work: Callable[[], Any], parent: int, alive: int, write_end: int) -> None:
    """Run `work` in the copy, send the result to the parent, and exit."""
    outcome: dict[str, Any] = {"failed": "it was stopped"}
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the watcher handles Ctrl-C, and waits for this process
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        gc.disable()  # a collection would write to, and so copy, every page
        for fd in _open_files():
            if fd > 2 and fd not in (
                alive,
                write_end,
            ):  # most of all the lock of the log, which must not outlive the watcher
                with suppress(OSError):
                    os.close(fd)
        die_with_parent(alive, parent)
        with suppress(OSError):  # scoring goes first: use only idle CPUs
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        outcome = {"done": work()}
    except BaseException as error:
        outcome = {"failed": f"{type(error).__name__}: {error}"}
    finally:
        with suppress(BaseException):
            os.write(write_end, json.dumps(outcome).encode())
        os._exit(0)


def _open_files() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]
