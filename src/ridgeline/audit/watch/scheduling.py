"""A process whose threads wait for each other's turn, not for their work: what a watcher asks of Python.

One thread scores without pause while others bring events to the disk. Each of their steps outside (a write, a sync, a
lock) hands Python over, and to get it back takes up to a switch interval, 5 ms by default.

And everything a watcher knows would be looked through by every full collection, during which nobody does anything. What
it learns stays, so it is set aside as it comes: collections look at the last second only. What was set aside and has
become a ring of garbage since is found once in an hour.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_S = 0.0005
TIDY_S = 1.0  # between two looks at what is new
WHOLE_S = 3_600.0  # between two looks at everything


@contextmanager
def prompt() -> Iterator[None]:
    """Short turns for all threads of this process, for the time being."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()


def set_aside() -> None:
    """What is here now is here to stay: collections pass it over until `prompt` ends. What is garbage goes."""
    gc.collect()
    gc.freeze()


class Tidy:
    """Sets aside what was learnt, a little at a time; ask often."""

    def __init__(self) -> None:
        self._last = self._whole = time.monotonic()

    def now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._last < TIDY_S:
            return
        if now - self._whole >= WHOLE_S:
            gc.unfreeze()
            self._whole = now
        set_aside()
        self._last = time.monotonic()
