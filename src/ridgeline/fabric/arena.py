"""Registered buffers: arrays that lie in the ranks' shared memory, so that nothing has to be copied to be seen."""

from __future__ import annotations

import ctypes
import math
import os
import threading
import weakref
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ridgeline.errors import FabricError, InputError
from ridgeline.native import Collective

PAGE = 4096
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
REMOVE, POPULATE_WRITE = 9, 23  # MADV_REMOVE gives the pages back; MADV_POPULATE_WRITE takes them at once


class Arena:
    """Hands out pages of a rank's arena; first free run that is long enough."""

    def __init__(self, engine: Collective, size: int) -> None:
        self._engine, self._base, self._size = engine, engine.arena, size
        self._free = [(0, size)]
        self._lock = threading.Lock()

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        kind = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if kind.hasobject or any(n < 0 for n in shape):
            raise InputError(
                f"fabric.empty: {shape} of {kind} cannot be shared memory; give numbers and lengths of 0 or more."
            )
        wanted = max(PAGE, -(-math.prod(shape) * kind.itemsize // PAGE) * PAGE)
        at = self._take(wanted)
        if _libc.madvise(self._base + at, wanted, POPULATE_WRITE) and ctypes.get_errno() in (12, 14):  # ENOMEM, EFAULT
            self._give(at, wanted)
            raise FabricError(f"fabric.empty: {wanted:,} bytes are more than this machine has free; ask for less.")
        memory = (ctypes.c_ubyte * wanted).from_address(self._base + at)
        memory._engine = self._engine  # type: ignore[attr-defined]  # keeps the map
        weakref.finalize(memory, self._give, at, wanted).atexit = False
        return np.ndarray(shape, kind, memory)  # type: ignore[arg-type]  # a ctypes array is a buffer

    def _take(self, wanted: int) -> int:
        with self._lock:
            for k, (at, size) in enumerate(self._free):
                if size >= wanted:
                    self._free[k : k + 1] = [(at + wanted, size - wanted)] if size > wanted else []
                    return at
        free = max((size for _, size in self._free), default=0)
        raise FabricError(
            f"fabric.empty: {wanted:,} bytes asked for, {free:,} of {self._size:,} are free in this rank's arena; "
            f"free some, or set RIDGELINE_FABRIC_ARENA_BYTES."
        )

    def _give(self, at: int, size: int) -> None:
        _libc.madvise(self._base + at, size, REMOVE)
        with self._lock:
            merged: list[tuple[int, int]] = []
            for start, length in sorted([*self._free, (at, size)]):
                if merged and merged[-1][0] + merged[-1][1] == start:
                    merged[-1] = (merged[-1][0], merged[-1][1] + length)
                else:
                    merged.append((start, length))
            self._free = merged


_current: list[Arena] = []


def use(arena: Arena | None) -> None:
    """The arena of this process's first communicator."""
    _current[:] = [arena] if arena is not None else []


def empty(shape: int | tuple[int, ...], dtype: DTypeLike = "float32") -> NDArray[Any]:
    """An array in this rank's shared memory: collectives on it copy nothing. Freed with its last view."""
    if not _current:
        raise FabricError("fabric.empty needs ranks: call it inside fabric.spawn, or after fabric.init().")
    return _current[0].empty(shape, dtype)


def _after_fork() -> None:
    _current.clear()  # a forked child is no rank


os.register_at_fork(after_in_child=_after_fork)
