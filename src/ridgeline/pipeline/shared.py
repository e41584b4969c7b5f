"""Objects between two processes of one machine: small ones inside a message, large ones in memory without a name.

A large object is written once, into a memfd; the other side maps the very pages. A memfd has no name in /dev/shm and
no size limit of a container's /dev/shm: the kernel takes it back with the last process that holds it, however that
one ends. Messages are packets: they come whole or not at all, also from a sender that is killed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import socket
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

INLINE = 64 << 10  # up to here a message is faster: 56 µs against 137 for 64 KiB; larger packets do not fit twice
PACKET = 4 * INLINE  # room for one: its words, and what is inline
ALIGN = 64  # arrays begin on a cache line
POPULATE = 0x8000  # MAP_POPULATE: one call instead of a fault for every page

Load = Callable[[memoryview, Sequence[memoryview]], Any]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def load(head: memoryview, buffers: Sequence[memoryview]) -> Any:
    return pickle.loads(head, buffers=buffers)  # noqa: S301  from our own child or parent


@dataclass(eq=False)
class Parcel:
    """An object ready to travel, any number of times: its pickle, then the arrays it is made of."""

    lengths: tuple[int, ...]
    inline: bytes
    fd: int = -1  # a memfd, where the pieces are too large for a message

    def open(self, own: bool, load: Load = load) -> Any:
        """The object again. own: nobody else will open it, so its pages may be written; else a write makes a copy."""
        whole = memoryview(bytearray(self.inline)) if self.fd < 0 else _mapped(self.fd, _size(self.lengths), own)
        pieces, at = [], 0
        for length in self.lengths:
            pieces.append(whole[at : at + length])
            at = _aligned(at + length)
        return load(pieces[0], pieces[1:])

    def close(self) -> None:
        """Let go of the memory; an object that was opened keeps its own hold."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def pack(thing: Any) -> Parcel:
    """Pickle; contiguous arrays are not copied into the pickle but laid behind it."""
    buffers: list[pickle.PickleBuffer] = []
    stream = BytesIO()
    pickle.Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(thing)
    pieces = [stream.getbuffer(), *(b.raw() for b in buffers)]
    lengths = tuple(p.nbytes for p in pieces)
    if _size(lengths) <= INLINE:
        padded = (bytes(p) + bytes(_aligned(p.nbytes) - p.nbytes) for p in pieces)
        return Parcel(lengths, b"".join(padded))
    parcel = Parcel(lengths, b"", os.memfd_create("ridgeline-parcel"))
    try:
        os.ftruncate(parcel.fd, _size(lengths))
        at = 0
        for piece in pieces:
            # Writing takes fresh pages without zeroing them first, as filling a map of them would.
            done = 0
            while done < piece.nbytes:
                done += os.pwrite(parcel.fd, piece[done:], at + done)
            at = _aligned(at + piece.nbytes)
    except BaseException:
        parcel.close()
        raise
    return parcel


def send(line: socket.socket, words: tuple[Any, ...], parcel: Parcel | None = None) -> None:
    """One packet: some words, and a parcel. BlockingIOError where the line is full and must not be waited for."""
    what = parcel or Parcel((), b"")
    head = pickle.dumps((words, what.lengths), protocol=5)
    message = [len(head).to_bytes(4, "little"), head, what.inline]
    socket.send_fds(line, message, [what.fd] if what.fd >= 0 else [])


def receive(line: socket.socket) -> tuple[tuple[Any, ...], Parcel]:
    """The next packet; EOFError when the other side is gone and all it said is read."""
    try:
        data, fds, _, _ = socket.recv_fds(line, PACKET, 1, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:  # it left without reading what we sent
        raise EOFError from None
    if not data:
        raise EOFError
    ends = 4 + int.from_bytes(data[:4], "little")
    words, lengths = pickle.loads(data[4:ends])  # noqa: S301
    return words, Parcel(lengths, data[ends:], *fds)


def line() -> tuple[socket.socket, socket.socket]:
    """Two ends that carry packets both ways."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _mapped(fd: int, size: int, own: bool) -> memoryview:
    """The pages of a memfd, unmapped when nothing looks at them any more.

    Not `mmap.mmap`: that keeps a file descriptor open for each map, and a caller may keep thousands of results.
    """
    flags = mmap.MAP_SHARED | POPULATE if own else mmap.MAP_PRIVATE  # populating private pages would copy them
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise MemoryError(f"{size} bytes could not be mapped: {os.strerror(code)}")
    pages = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(pages, _libc.munmap, address, size).atexit = False
    return memoryview(pages).cast("B")


def _size(lengths: Sequence[int]) -> int:
    return sum(map(_aligned, lengths))


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
