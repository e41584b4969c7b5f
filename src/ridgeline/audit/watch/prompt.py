"""A process whose threads wait for each other's turn, not for their work: what a watcher asks of Python.

One thread scores without pause while others bring events to the disk. Each of their steps outside (a write, a sync, a
lock) hands Python over, and to get it back takes up to a switch interval, 5 ms by default. And the objects of a loaded
model are looked through by every full collection, during which nobody does anything: they are set aside once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_S = 0.0005


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
    """What is here now is here to stay: collections pass it over until `prompt` ends."""
    gc.collect()
    gc.freeze()
