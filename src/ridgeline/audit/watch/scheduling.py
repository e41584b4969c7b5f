"""Settings of the Python runtime that keep a watcher responsive: short thread switches, small garbage collections.

One thread scores without pause while others write events to the disk. Each system call of those threads (a write, a
sync, a lock) releases the interpreter, and getting it back takes up to one switch interval, 5 ms by default.

A full garbage collection would traverse everything that the watcher has learnt, and stop all threads meanwhile. What it
learns stays, so `ObjectFreezer` freezes it every second: collections traverse only the objects of the last second.
Frozen objects that became garbage in reference cycles are collected once per hour.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_S = 0.0005
FREEZE_S = 1.0  # between two freezes
FULL_S = 3_600.0  # between two collections of everything


@contextmanager
def short_switches() -> Iterator[None]:
    """Use a short switch interval for all threads of this process inside the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        gc.unfreeze()


def freeze_objects() -> None:
    """Collect garbage, then exclude all remaining objects from collections until `short_switches` ends."""
    gc.collect()
    gc.freeze()


class ObjectFreezer:
    """Freezes new objects about once per second; call `freeze_if_due` often."""

    def __init__(self) -> None:
        self._last = self._is_count = time.monotonic()

    def freeze_if_due(self) -> None:
        now = time.monotonic()
        if now - self._last < FREEZE_S:
            return
        if now - self._is_count >= FULL_S:
            gc.unfreeze()
            self._is_count = now
        freeze_objects()
        self._last = time.monotonic()
