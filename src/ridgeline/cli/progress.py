"""Progress of a long command on stderr: what is done, of how much, and how long the rest takes.

On a terminal it is a bar. Elsewhere (a file, a pipe, a log of a job) it is a line every few seconds, so that a long
job is never silent and a short one prints nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ridgeline.cli.output import print_line, stderr

INTERVAL_S = 5.0  # between two lines
Report = Callable[[int, float], None]  # items done, share of the work done in [0, 1]


@contextmanager
def show_progress(title: str, total: int, unit: str, quiet: bool = False) -> Iterator[Report]:
    """Show progress until the block ends; the function that it yields takes what is done.

    `share` is the part of the work that is done, measured by what costs time (bytes, tokens): items may differ in size.
    The share of the first call with 0 items counts as done before this run.
    """
    console = stderr()
    if quiet:
        yield lambda _done, _share: None
    elif console.is_terminal:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(title, total=1.0, count=f"0/{total} {unit}")
            yield lambda done, share: bar.update(task, completed=share, count=f"{done}/{total} {unit}")
    else:
        with _Lines(title, total, unit) as lines:
            yield lines.report


def format_left(seconds: float) -> str:
    """Return a time span in words, as precise as an estimate is.

    >>> format_left(8.2), format_left(100), format_left(7500)
    ('8 s', '2 min', '2.1 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class _Lines:
    """Writes a line every few seconds from a thread of its own, also while one item takes long."""

    def __init__(self, title: str, total: int, unit: str) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._done, self._share, self._share_before = 0, 0.0, 0.0
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_lines, name="progress", daemon=True)

    def __enter__(self) -> _Lines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def report(self, done: int, share: float) -> None:
        if not done:
            self._share_before = share
        self._done, self._share = done, share

    def _write_lines(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            print_line(f"{self._title}: {self._done} of {self._total} {self._unit}, {self._format_time()}", stderr())

    def _format_time(self) -> str:
        seconds = time.monotonic() - self._started
        gained = self._share - self._share_before
        if gained <= 0:
            return f"{format_left(seconds)} so far"
        return f"about {format_left(seconds * (1 - self._share) / gained)} left"
