"""Host memory that a GPU's copy engine can reach by itself.

The pages are our own, mapped when they are asked for and then registered with the driver: they lie where the
calling thread stands *now*. torch's pinned allocator would hand out a block that another placement left behind,
and rounds sizes up to a power of two.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

PORTABLE = 1  # cudaHostRegisterPortable: pinned for every GPU of this process
HUGE = 2 << 20
_OWN: set[int] = set()  # where registered pages begin


def pinned(shape: Sequence[int], dtype: Any = None) -> Any:
    """An empty host tensor in pinned memory; plain memory where there is no GPU.

    >>> pinned((2, 3)).shape
    torch.Size([2, 3])
    """
    import torch

    dtype = dtype or torch.float32
    size = math.prod(shape) * dtype.itemsize
    if not size or not torch.cuda.is_available():
        return torch.empty(tuple(shape), dtype=dtype)
    pages = _Pages(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tensor = torch.frombuffer(pages, dtype=dtype).view(tuple(shape))
    if size >= HUGE:
        with suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)  # fewer pages to pin
    if int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), size, PORTABLE)) != 0:
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)  # some sandboxes allow only the driver's own
    pages.registered = tensor.data_ptr()
    _OWN.add(pages.registered)
    return tensor


def is_ready(tensor: Any) -> bool:
    """Can the copy engine take it from where it lies? Of our own pages this is known without asking the driver."""
    if not tensor.is_contiguous():
        return False
    return tensor.untyped_storage().data_ptr() in _OWN or bool(tensor.is_pinned())


class _Pages(mmap.mmap):
    """Pages that tell the driver before they go; the tensors over them keep them alive."""

    registered: int | None = None

    def __del__(self) -> None:
        if self.registered is not None:
            _OWN.discard(self.registered)
            with suppress(Exception):  # at the interpreter's end there may be no driver any more
                import torch

                torch.cuda.cudart().cudaHostUnregister(self.registered)


class Slot:
    """One place of the ring: pinned room by name, kept from batch to batch, grown when a batch is larger."""

    def __init__(self) -> None:
        self._rooms: dict[tuple[str, str], Any] = {}
        self._shown: dict[tuple[str, str], Any] = {}  # what was handed out last, mostly what is asked for next
        self.recording: Any = None  # of the fn that went through here (recording.py)

    def room(self, side: str, name: str, shape: Sequence[int], dtype: Any) -> Any:
        """A pinned tensor of this shape; what was in it is overwritten."""
        key = (side, name)
        shown = self._shown.get(key)
        if shown is not None and shown.shape == shape and shown.dtype is dtype and shown.is_contiguous():
            return shown
        import torch

        size = math.prod(shape) * dtype.itemsize
        room = self._rooms.get(key)
        if room is None or room.numel() < size:
            shown = room = None  # the old pages go before new ones come
            self._shown.pop(key, None)
            self._rooms.pop(key, None)
            room = self._rooms[key] = pinned((size,), torch.uint8)
        shown = self._shown[key] = room[:size].view(dtype).view(tuple(shape))
        return shown


class Staging:
    """A ring of slots that outlives the stream, so that the next one need not pin its memory again."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.lock = threading.Lock()


@contextmanager
def borrowed(staging: Staging | None, count: int) -> Iterator[list[Slot]]:
    """The kept slots, or fresh ones if there are none or another stream has them."""
    if staging is None or not staging.lock.acquire(blocking=False):
        yield [Slot() for _ in range(count)]
        return
    try:
        staging.slots.extend(Slot() for _ in range(count - len(staging.slots)))
        yield staging.slots[:count]
    finally:
        staging.lock.release()
