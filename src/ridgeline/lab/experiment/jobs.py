"""What a launcher started for us, ended with us: Hydra's submitit launchers wait for their jobs and let go of them.

    ridgeline run experiment=quick_test hydra/launcher=submitit_local        and Ctrl-C

Jobs on this machine ignore the terminal's Ctrl-C, which reaches every process in front of it: it is for the one that
started them to hear, to end them and to say one sentence. Jobs on a cluster are cancelled there.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any


@contextmanager
def ended_with_us() -> Iterator[None]:
    """Whatever submitit is given inside is ended if this is left by an interrupt."""
    try:
        import submitit
    except ImportError:  # another launcher
        yield
        return
    jobs: list[Any] = []

    class Noting(submitit.AutoExecutor):
        def map_array(self, *args: Any, **kwargs: Any) -> list[Any]:
            with _deaf() if self.cluster == "local" else nullcontext():
                jobs.extend(super().map_array(*args, **kwargs))
            return jobs

    plain = submitit.AutoExecutor
    submitit.AutoExecutor = Noting  # type: ignore[misc]  # the launcher asks for it by this name
    try:
        yield
    except Exception:
        raise  # the launcher's own words; jobs beside a failed one go on
    except BaseException:
        for job in jobs:
            _end(job)
        raise
    finally:
        submitit.AutoExecutor = plain  # type: ignore[misc]


@contextmanager
def _deaf() -> Iterator[None]:
    """What is started here ignores Ctrl-C; so does this process, for that moment."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)


def _end(job: Any) -> None:
    process = getattr(job, "_process", None)
    if process is None:
        with suppress(Exception):  # a cluster that does not answer must not hide why we stop
            job.cancel(check=False)
        return
    # First the one that watches over the others, which would start them again; what a point runs dies with its job.
    for pid in [process.pid, *_below(process.pid)] if process.poll() is None else []:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _below(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        own = parents.get(waiting.pop(), [])
        found += own
        waiting += own
    return found
