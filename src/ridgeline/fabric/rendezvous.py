"""How ranks of one host find each other: one of them listens, the rest knock, all get the same memory.

The address is an abstract socket name, the memory a memfd that travels by SCM_RIGHTS: neither lies in any folder, and
both are gone with the last process.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from dataclasses import dataclass

from ridgeline.errors import FabricError
from ridgeline.native import fabric_bytes

PATIENCE_S = 120.0
_WORDS = struct.Struct("<iii")  # rank, ranks, pid


@dataclass(frozen=True)
class World:
    """The ranks of one host and the memory they share."""

    fd: int
    rank: int
    pids: tuple[int, ...]
    arena_bytes: int

    @property
    def size(self) -> int:
        return len(self.pids)


class Host:
    """Listens until all ranks have come, then hands out the memory; a thread of its own."""

    def __init__(self, name: str, ranks: int, arena_bytes: int, patience: float = PATIENCE_S) -> None:
        self._ranks, self._arena, self._until = ranks, arena_bytes, time.monotonic() + patience
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("\0" + name)
        self._listener.listen(ranks)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="fabric-meeting")
        self._thread.start()

    def _serve(self) -> None:
        lines: dict[int, tuple[socket.socket, int]] = {}
        fd = os.memfd_create("ridgeline-fabric", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, fabric_bytes(self._ranks, self._arena))
            while len(lines) < self._ranks:
                self._listener.settimeout(max(0.01, self._until - time.monotonic()))
                line, _ = self._listener.accept()
                _, uid, _ = struct.unpack("iII", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                words = line.recv(_WORDS.size)
                if uid != os.getuid() or len(words) != _WORDS.size:
                    line.close()
                    continue
                rank, ranks, pid = _WORDS.unpack(words)
                if ranks == self._ranks and 0 <= rank < ranks:
                    lines[rank] = (line, pid)
            pids = struct.pack(f"<q{self._ranks}i", self._arena, *(lines[r][1] for r in range(self._ranks)))
            for line, _ in lines.values():
                socket.send_fds(line, [pids], [fd])
        except OSError:
            return  # those who wait hear the line close, and say who is missing
        finally:
            os.close(fd)
            self._listener.close()
            for line, _ in lines.values():
                line.close()

    def close(self) -> None:
        self._listener.close()


def join(name: str, rank: int, ranks: int, patience: float = PATIENCE_S) -> World:
    """Knock, and wait until all have come."""
    until = time.monotonic() + patience
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with line:
        while True:
            try:
                line.connect("\0" + name)
                break
            except (ConnectionRefusedError, FileNotFoundError):
                if time.monotonic() >= until:
                    raise FabricError(f"rank {rank}: rank 0 did not open the meeting within {patience:g} s.") from None
                time.sleep(0.005)
        line.send(_WORDS.pack(rank, ranks, os.getpid()))
        line.settimeout(max(0.01, until - time.monotonic()))
        try:
            words, fds, _, _ = socket.recv_fds(line, 8 + 4 * ranks, 1, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            words, fds = b"", []
    if not fds:
        raise FabricError(f"rank {rank}: not all of {ranks} ranks came within {patience:g} s; start every one of them.")
    arena, *pids = struct.unpack(f"<q{ranks}i", words)
    return World(fds[0], rank, tuple(pids), arena)


def arena_size(asked: int) -> int:
    """Addresses, not memory: what is not touched costs nothing."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return -(-(asked or whole // 2) // (2 << 20)) * (2 << 20)
