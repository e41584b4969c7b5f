"""Show the progress of a benchmark on stderr: a live display on a terminal, lines into a pipe.

Into a pipe or a file it writes a line when a case or a phase starts, and at least every few seconds what runs now, so
that a log shows that the benchmark is alive.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ridgeline.cli.output import print_line

if TYPE_CHECKING:
    from ridgeline.lab.race import Point, ProgressHooks
    from ridgeline.lab.record import Record

MIN_GAP_S = 2.0  # between two lines about the same case
MAX_GAP_S = 6.0  # a pipe gets a line at least this often


@contextmanager
def show_progress(console: Console, *, live: bool, quiet: bool = False) -> Iterator[BenchProgress]:
    """Show progress until the block ends. `live`: draw a display that changes. `quiet`: show messages only."""
    if quiet:
        yield BenchProgress(console)
    elif live:
        columns = (
            BarColumn(24),
            TextColumn("{task.completed:.0f} of {task.total:.0f} cases ·", markup=False),
            TimeElapsedColumn(),
            TextColumn("· {task.description}", markup=False, table_column=None),
        )
        with Progress(*columns, console=console, transient=True, expand=False) as progress:
            yield _LiveProgress(console, progress, progress.add_task("starting", total=1))
    else:
        lines = _LineProgress(console)
        try:
            yield lines
        finally:
            lines.close()


class BenchProgress:
    """Counts cases and knows what runs now. This class shows messages only; subclasses show the progress."""

    def __init__(self, console: Console) -> None:
        self.total_s = math.inf  # the time limit of all races, for the estimate of the time left
        self._console = console
        self._done, self._total, self._skipped = 0, 0, 0
        self._start = time.monotonic()
        self._case = ""

    @property
    def hooks(self) -> ProgressHooks:
        """The functions for `run_benchmark`."""
        from ridgeline.lab.race import ProgressHooks

        return ProgressHooks(
            on_start=self._on_start,
            on_ceiling=lambda name: self.show_activity(f"measuring ceilings: {name}"),
            on_case=self._on_case,
            on_prepare=lambda contender: self.show_activity(f"preparing {contender}"),
            on_progress=self._on_progress,
            on_record=self._on_record,
            on_message=self.show_message,
        )

    def show_activity(self, activity: str) -> None:
        """Show what runs now."""

    def _on_start(self, points: list[Point], skipped: int) -> None:
        self._done, self._total, self._skipped = skipped, len(points), skipped
        self._start = time.monotonic()

    def _on_case(self, point: Point) -> None:
        self._case = point.label

    def _on_progress(self, share: float, activity: str) -> None: ...

    def _on_record(self, record: Record) -> None:
        self._done += 1
        self._case = ""

    def show_message(self, sentence: str) -> None:
        """Show a sentence that stays."""
        self._console.print(sentence, style="dim", markup=False, highlight=False)


class _LiveProgress(BenchProgress):
    """A bar; the case that runs counts by the share of its time that is used."""

    def __init__(self, console: Console, progress: Progress, task: TaskID) -> None:
        super().__init__(console)
        self._progress, self._task = progress, task

    def show_activity(self, activity: str) -> None:
        description = f"{self._case}: {activity}" if self._case else activity
        self._progress.update(self._task, description=description)

    def _on_start(self, points: list[Point], skipped: int) -> None:
        super()._on_start(points, skipped)
        self._progress.update(self._task, total=len(points), completed=skipped)

    def _on_case(self, point: Point) -> None:
        super()._on_case(point)
        self._progress.update(self._task, description=point.label, refresh=True)

    def _on_progress(self, share: float, activity: str) -> None:
        self._progress.update(self._task, completed=self._done + 0.99 * share, description=self._case)

    def _on_record(self, record: Record) -> None:
        super()._on_record(record)
        self._progress.update(self._task, completed=self._done)


class _LineProgress(BenchProgress):
    """Lines; a thread repeats what runs now if nothing else was written for MAX_GAP_S."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._last_finish = time.monotonic()
        self._activity, self._activity_start = "starting", time.monotonic()
        self._last_line = 0.0
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="bench-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def show_activity(self, activity: str) -> None:
        with self._lock:
            self._activity, self._activity_start = activity, time.monotonic()
            if time.monotonic() - self._last_line >= MIN_GAP_S:
                self._write_line()

    def _on_case(self, point: Point) -> None:
        with self._lock:
            super()._on_case(point)
            self._activity, self._activity_start = "starting", time.monotonic()
            self._write_line()

    def _on_progress(self, share: float, activity: str) -> None:
        with self._lock:
            self._activity = f"racing, {activity}, {share:.0%} of its time"
            self._activity_start = time.monotonic()

    def _on_start(self, points: list[Point], skipped: int) -> None:
        super()._on_start(points, skipped)
        self._last_finish = self._start

    def _on_record(self, record: Record) -> None:
        with self._lock:
            super()._on_record(record)
            self._last_finish = time.monotonic()

    def show_message(self, sentence: str) -> None:
        with self._lock:
            super().show_message(sentence)
            self._last_line = time.monotonic()

    def _repeat(self) -> None:
        while not self._closed.wait(0.5):
            with self._lock:
                if time.monotonic() - self._last_line >= MAX_GAP_S:
                    self._write_line()

    def _write_line(self) -> None:
        now = time.monotonic()
        seconds = now - self._activity_start
        activity = self._activity + (f" ({seconds:.0f} s)" if seconds >= 1 else "")
        case = f"case {min(self._done + 1, self._total)} of {self._total}: {self._case}: " if self._case else ""
        print_line(f"{case}{activity}{self._format_eta(now)}", self._console)
        self._last_line = now

    def _format_eta(self, now: float) -> str:
        """Estimate the time left from the finished cases and the time limit of all races."""
        measured = self._done - self._skipped
        if not measured or self._done >= self._total:
            return ""
        mean_s = (self._last_finish - self._start) / measured
        limit_s = max(0.0, self._start + self.total_s - now)
        left_s = mean_s * (self._total - self._done) - (now - self._last_finish)
        left_s = min(left_s, limit_s) if left_s > 0 else limit_s
        if not math.isfinite(left_s):
            return ""
        return f"; about {left_s:.0f} s left" if left_s < 120 else f"; about {left_s / 60:.0f} min left"
