"""One display for a whole bench, on stderr: how far it is, what is raced, the time that has gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ridgeline.lab.race import Point, Watcher
from ridgeline.lab.record import Record


@contextmanager
def watcher(console: Console, *, live: bool) -> Iterator[Watcher]:
    """Someone for the bench to tell; sentences are always said, the rest only where it can be drawn."""

    def say(sentence: str) -> None:
        console.print(sentence, style="dim", markup=False, highlight=False)

    if not live:
        yield Watcher(say=say)
        return
    columns = (
        BarColumn(24),
        TextColumn("{task.completed:.0f} of {task.total:.0f} cases ·", markup=False),
        TimeElapsedColumn(),
        TextColumn("· {task.description}", markup=False, table_column=None),
    )
    with Progress(*columns, console=console, transient=True, expand=False) as progress:
        yield _Display(progress, progress.add_task("starting", total=1)).watcher(say)


class _Display:
    """Counts races; the one that runs counts by the share of its time that is spent."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task, self._done = progress, task, 0

    def watcher(self, say: Callable[[str], None]) -> Watcher:
        return Watcher(self._start, self._ceiling, self._case, self._share, self._one, say)

    def _start(self, points: list[Point], skipped: int) -> None:
        self._done = skipped
        self._progress.update(self._task, total=len(points), completed=skipped)

    def _ceiling(self, what: str) -> None:
        self._progress.update(self._task, description=f"ceilings: {what}")

    def _case(self, point: Point) -> None:
        self._progress.update(self._task, description=point.label)

    def _share(self, share: float, what: str) -> None:
        self._progress.update(self._task, completed=self._done + 0.99 * share)

    def _one(self, record: Record) -> None:
        self._done += 1
        self._progress.update(self._task, completed=self._done)
