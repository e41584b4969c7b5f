"""Pinned host memory, which the copy engine of a GPU can read and write by itself.

The pages are mapped here and then registered with the driver, so they lie on the node where the calling thread runs
*now*. torch's pinned allocator may return a block from another node, and it rounds sizes up to a power of two.
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
_REGISTERED: set[int] = set()  # start addresses of the pages registered here


def allocate_pinned(shape: Sequence[int], dtype: Any = None) -> Any:
    """Return an empty host tensor in pinned memory (in ordinary memory without a GPU).

    shape  its lengths
    dtype  a torch type (default: float32)

    >>> allocate_pinned((2, 3)).shape
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
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)  # some sandboxes forbid registration
    pages.registered = tensor.data_ptr()
    _REGISTERED.add(pages.registered)
    return tensor


def is_pinned(tensor: Any) -> bool:
    """Whether the copy engine can read the tensor in place; pages from here are recognised without the driver."""
    if not tensor.is_contiguous():
        return False
    return tensor.untyped_storage().data_ptr() in _REGISTERED or bool(tensor.is_pinned())


class _Pages(mmap.mmap):
    """Pages that are unregistered before they are freed; the tensors that use them keep them alive."""

    registered: int | None = None

    def __del__(self) -> None:
        if self.registered is not None:
            _REGISTERED.discard(self.registered)
            with suppress(Exception):  # at the end of the interpreter the driver may be gone
                import torch

                torch.cuda.cudart().cudaHostUnregister(self.registered)


class Slot:
    """One place of the ring: pinned buffers by name, reused from batch to batch, enlarged for a larger batch."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], Any] = {}
        self._views: dict[tuple[str, str], Any] = {}  # the last view of each buffer: usually the next one too
        self.recording: Any = None  # of the fn that ran in this slot (cuda_graph.py)

    def get_buffer(self, side: str, name: str, shape: Sequence[int], dtype: Any) -> Any:
        """Return a pinned tensor of this shape; its old content is overwritten."""
        key = (side, name)
        view = self._views.get(key)
        if view is not None and view.shape == shape and view.dtype is dtype and view.is_contiguous():
            return view
        import torch

        size = math.prod(shape) * dtype.itemsize
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            view = buffer = None  # frees the old pages before new ones are allocated
            self._views.pop(key, None)
            self._buffers.pop(key, None)
            buffer = self._buffers[key] = allocate_pinned((size,), torch.uint8)
        view = self._views[key] = buffer[:size].view(dtype).view(tuple(shape))
        return view


class Staging:
    """A ring of slots that outlives its stream, so that the next stream does not pin memory again."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.lock = threading.Lock()


@contextmanager
def borrow_slots(staging: Staging | None, count: int) -> Iterator[list[Slot]]:
    """The slots of `staging`, or new ones if it is None or another stream uses it."""
    if staging is None or not staging.lock.acquire(blocking=False):
        yield [Slot() for _ in range(count)]
        return
    try:
        staging.slots.extend(Slot() for _ in range(count - len(staging.slots)))
        yield staging.slots[:count]
    finally:
        staging.lock.release()
