"""Messages between two processes of one machine: small objects inline, large ones in shared memory without a name.

A large object is written once, into a memfd; the receiver maps the same pages. A memfd has no name in /dev/shm and is
not limited by the size of a container's /dev/shm: the kernel frees it with the last process that holds it, however that
process ends. Messages are packets: they arrive complete or not at all, even if the sender is killed.
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

INLINE = 64 << 10  # up to this size a message is faster: 56 µs against 137 for 64 KiB; larger packets do not fit twice
PACKET = 4 * INLINE  # buffer for one packet: header and inline payload
ALIGN = 64  # arrays start on a cache line
POPULATE = 0x8000  # MAP_POPULATE: one call instead of a fault for every page

Load = Callable[[memoryview, Sequence[memoryview]], Any]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def load_pickle(head: memoryview, buffers: Sequence[memoryview]) -> Any:
    return pickle.loads(head, buffers=buffers)  # noqa: S301  from our own child or parent


@dataclass(eq=False)
class Payload:
    """A packed object that can be sent any number of times: its pickle, then its arrays."""

    lengths: tuple[int, ...]
    inline: bytes
    fd: int = -1  # a memfd, if the parts are too large for a message

    def unpack(self, *, exclusive: bool, load: Load = load_pickle) -> Any:
        """Return the object.

        exclusive  no other process unpacks it, so its pages may be written; otherwise a write copies the page
        """
        if self.fd < 0:
            memory = memoryview(bytearray(self.inline))
        else:
            memory = _map_memory(self.fd, _sum_aligned(self.lengths), exclusive)
        parts, start = [], 0
        for length in self.lengths:
            parts.append(memory[start : start + length])
            start = _align(start + length)
        return load(parts[0], parts[1:])

    def close(self) -> None:
        """Release the memory; an object that was unpacked keeps its pages."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def pack(value: Any) -> Payload:
    """Pickle an object; contiguous arrays are not copied into the pickle but follow it."""
    buffers: list[pickle.PickleBuffer] = []
    stream = BytesIO()
    pickle.Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    parts = [stream.getbuffer(), *(b.raw() for b in buffers)]
    lengths = tuple(p.nbytes for p in parts)
    if _sum_aligned(lengths) <= INLINE:
        padded = (bytes(p) + bytes(_align(p.nbytes) - p.nbytes) for p in parts)
        return Payload(lengths, b"".join(padded))
    payload = Payload(lengths, b"", os.memfd_create("ridgeline-payload"))
    try:
        os.ftruncate(payload.fd, _sum_aligned(lengths))
        start = 0
        for part in parts:
            # A write takes fresh pages without zeroing them first; a copy into a map would zero them.
            done = 0
            while done < part.nbytes:
                done += os.pwrite(payload.fd, part[done:], start + done)
            start = _align(start + part.nbytes)
    except BaseException:
        payload.close()
        raise
    return payload


def send(connection: socket.socket, header: tuple[Any, ...], payload: Payload | None = None) -> None:
    """Send one packet: a header and a payload. Raises BlockingIOError if a non-blocking socket is full."""
    body = payload or Payload((), b"")
    head = pickle.dumps((header, body.lengths), protocol=5)
    message = [len(head).to_bytes(4, "little"), head, body.inline]
    socket.send_fds(connection, message, [body.fd] if body.fd >= 0 else [])


def receive(connection: socket.socket) -> tuple[tuple[Any, ...], Payload]:
    """Return header and payload of the next packet; raises EOFError when the peer is gone and all packets are read."""
    try:
        data, fds, _, _ = socket.recv_fds(connection, PACKET, 1, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:  # the peer ended without reading our last packet
        raise EOFError from None
    if not data:
        raise EOFError
    end = 4 + int.from_bytes(data[:4], "little")
    header, lengths = pickle.loads(data[4:end])  # noqa: S301
    return header, Payload(lengths, data[end:], *fds)


def make_connection() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that carry packets in both directions."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _map_memory(fd: int, size: int, exclusive: bool) -> memoryview:
    """The pages of a memfd, unmapped when the last view of them is gone.

    Not `mmap.mmap`: that keeps a file descriptor open for each map, and a caller may keep thousands of results.
    """
    flags = mmap.MAP_SHARED | POPULATE if exclusive else mmap.MAP_PRIVATE  # populating private pages would copy them
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise MemoryError(f"{size} bytes could not be mapped: {os.strerror(code)}")
    pages = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(pages, _libc.munmap, address, size).atexit = False
    return memoryview(pages).cast("B")


def _sum_aligned(lengths: Sequence[int]) -> int:
    return sum(map(_align, lengths))


def _align(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
