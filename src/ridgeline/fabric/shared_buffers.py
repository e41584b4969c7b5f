"""Registered buffers: arrays in the shared memory of the ranks, which other ranks can read without a copy."""

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
REMOVE, POPULATE_WRITE = 9, 23  # MADV_REMOVE frees the pages; MADV_POPULATE_WRITE allocates them at once


class Arena:
    """Allocates pages of the arena of a rank: the first free range that is long enough."""

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
        if self._engine.is_forked:
            raise FabricError("fabric.empty: this process was forked from a rank and is none; call it in the rank.")
        size = max(PAGE, -(-math.prod(shape) * kind.itemsize // PAGE) * PAGE)
        start = self._allocate(size)
        if _libc.madvise(self._base + start, size, POPULATE_WRITE) and ctypes.get_errno() in (12, 14):  # ENOMEM, EFAULT
            self._free_range(start, size)
            raise FabricError(f"fabric.empty: {size:,} bytes are more than this machine has free; ask for less.")
        memory = (ctypes.c_ubyte * size).from_address(self._base + start)
        memory._engine = self._engine  # type: ignore[attr-defined]  # keeps the memory mapped
        weakref.finalize(memory, self._free_range, start, size).atexit = False
        return np.ndarray(shape, kind, memory)  # type: ignore[arg-type]  # a ctypes array is a buffer

    def _allocate(self, size: int) -> int:
        with self._lock:
            for k, (start, length) in enumerate(self._free):
                if length >= size:
                    self._free[k : k + 1] = [(start + size, length - size)] if length > size else []
                    return start
        free = max((length for _, length in self._free), default=0)
        raise FabricError(
            f"fabric.empty: {size:,} bytes requested, {free:,} of {self._size:,} are free in the arena of this rank; "
            f"free some, or set RIDGELINE_FABRIC_ARENA_BYTES."
        )

    def _free_range(self, start: int, size: int) -> None:
        if self._engine.is_forked:
            return  # the array still belongs to the rank
        _libc.madvise(self._base + start, size, REMOVE)
        with self._lock:
            merged: list[tuple[int, int]] = []
            for first, length in sorted([*self._free, (start, size)]):
                if merged and merged[-1][0] + merged[-1][1] == first:
                    merged[-1] = (merged[-1][0], merged[-1][1] + length)
                else:
                    merged.append((first, length))
            self._free = merged


class PrivateArena:
    """Allocates private memory, for ranks that do not share any."""

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        return np.empty(shape, dtype)


def make_arena(engine: Any, size: int) -> Arena | PrivateArena:
    return Arena(engine, size) if isinstance(engine, Collective) else PrivateArena()


_current: list[Arena | PrivateArena] = []


def set_current_arena(arena: Arena | PrivateArena | None) -> None:
    """Set the arena that `empty` uses: that of the first communicator of this process."""
    _current[:] = [arena] if arena is not None else []


def forget_arena(arena: Arena | PrivateArena | None) -> None:
    """After the end of its communicator: `empty` no longer uses this arena."""
    if _current and _current[0] is arena:
        _current.clear()


def empty(shape: int | tuple[int, ...], dtype: DTypeLike = "float32") -> NDArray[Any]:
    """Return an array in the shared memory of this rank: collectives on it need no copy.

    The memory is freed with the last view of the array. Between hosts it is private memory. Raises FabricError outside
    a rank or if the memory is full.
    """
    if not _current:
        raise FabricError("fabric.empty needs ranks: call it inside fabric.spawn, or after fabric.init().")
    return _current[0].empty(shape, dtype)


def _after_fork() -> None:
    _current.clear()  # a forked child is not a rank


os.register_at_fork(after_in_child=_after_fork)
