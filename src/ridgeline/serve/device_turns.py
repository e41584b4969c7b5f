"""Turns on a GPU: one thread of this process computes at a time.

A model that is being replaced, the new one, other models and indexes have a thread each. A GPU that has work for one of
them has little to gain from another one's, and CUDA graphs are recorded on streams that all threads share: work of
another thread, or memory that it releases, can end a recording or become a part of it.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class Turns:
    """A lock that threads get in the order in which they asked."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._taken = False

    def __enter__(self) -> None:
        with self._mutex:
            if not self._taken:
                self._taken = True
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        gate.acquire()  # the thread before passes its turn on

    def __exit__(self, *error: object) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


_turns: defaultdict[str, Turns] = defaultdict(Turns)  # by the number of the GPU


def take_turn(device: str) -> AbstractContextManager[Any]:
    """Return a context in which no other thread that asks for a turn uses the device; CPUs are shared."""
    if not device.startswith("cuda"):
        return nullcontext()
    return _turns[device.removeprefix("cuda").removeprefix(":") or "0"]
