"""Rendezvous: how the ranks of one host find each other and get the same shared memory.

One rank listens, the others connect. The address is an abstract socket name, the memory is a memfd that is sent by
SCM_RIGHTS: neither has a name in a folder, and both are gone with the last process.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.errors import FabricError
from ridgeline.native import Collective, fabric_bytes

if TYPE_CHECKING:
    from ridgeline.fabric.network_rendezvous import Membership

TIMEOUT_S = 120.0
_GREETING = struct.Struct("<iii")  # rank, ranks, pid
_SECRET_BYTES = 32


@dataclass(frozen=True)
class World:
    """The ranks of one host and their shared memory."""

    fd: int
    rank: int
    pids: tuple[int, ...]
    arena_bytes: int
    name: str  # of the rendezvous
    secret: bytes = b""  # that only ranks know
    membership: Membership | None = None  # of ranks that met over the network, though all are on this host

    @property
    def size(self) -> int:
        return len(self.pids)

    def make_engine(self, config: object, context: int, members: tuple[int, ...]) -> Collective:
        pidfds = [_open_pidfd(pid) if r != self.rank and r in members else -1 for r, pid in enumerate(self.pids)]
        me = members.index(self.rank)
        return Collective(self.fd, self.size, context, self.arena_bytes, members, me, self.pids, pidfds, True)

    def describe_process(self, rank: int) -> str:
        return describe_process(self.pids[rank])

    def list_strangers(self) -> Mapping[str, int]:
        return {} if self.membership is None else dict(self.membership.listener.strangers)

    def find_ended(self, members: Sequence[int]) -> list[int]:
        """The members whose process has ended."""
        return [rank for rank in members if rank != self.rank and not _is_alive(self.pids[rank])]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def describe_process(pid: int) -> str:
    """The state of a process of this host, from the kernel."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "its process is gone"
    return {
        "T": "its process is stopped (SIGSTOP; kill -CONT wakes it)",
        "t": "its process is held by a debugger",
        "R": "its process is busy with something else",
        "Z": "its process has ended",
    }.get(letter, "its process waits for something else")


def _open_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1  # an old kernel: then only the timeout detects a dead rank


class RendezvousServer:
    """Listens until all ranks are connected, then sends them the memory; runs in a thread."""

    def __init__(self, name: str, ranks: int, arena_bytes: int, timeout: float = TIMEOUT_S) -> None:
        self._ranks, self._arena, self._deadline = ranks, arena_bytes, time.monotonic() + timeout
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("\0" + name)
        self._listener.listen(ranks)
        self._thread = threading.Thread(target=self._serve, daemon=True, name="fabric-rendezvous")
        self._thread.start()

    def _serve(self) -> None:
        connections: dict[int, tuple[socket.socket, int]] = {}
        fd = os.memfd_create("ridgeline-fabric", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, fabric_bytes(self._ranks, self._arena))
            while len(connections) < self._ranks:
                self._listener.settimeout(max(0.01, self._deadline - time.monotonic()))
                connection, _ = self._listener.accept()
                _, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                greeting = connection.recv(_GREETING.size)
                if uid != os.getuid() or len(greeting) != _GREETING.size:
                    connection.close()
                    continue
                rank, ranks, pid = _GREETING.unpack(greeting)
                if ranks == self._ranks and 0 <= rank < ranks:
                    connections[rank] = (connection, pid)
            pids = (connections[r][1] for r in range(self._ranks))
            answer = struct.pack(
                f"<q{_SECRET_BYTES}s{self._ranks}i", self._arena, secrets.token_bytes(_SECRET_BYTES), *pids
            )
            for connection, _ in connections.values():
                socket.send_fds(connection, [answer], [fd])
        except OSError:
            return  # the waiting ranks see the connection close and report the missing ranks
        finally:
            os.close(fd)
            self._listener.close()
            for connection, _ in connections.values():
                connection.close()

    def close(self) -> None:
        self._listener.close()


def join_world(name: str, rank: int, ranks: int, timeout: float = TIMEOUT_S) -> World:
    """Connect to the rendezvous and wait until all ranks are connected; raises FabricError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with connection:
        while True:
            try:
                connection.connect("\0" + name)
                break
            except (ConnectionRefusedError, FileNotFoundError):
                if time.monotonic() >= deadline:
                    message = f"rank {rank}: rank 0 did not open the rendezvous within {timeout:g} s."
                    raise FabricError(message) from None
                time.sleep(0.005)
        connection.send(_GREETING.pack(rank, ranks, os.getpid()))
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            answer, fds, _, _ = socket.recv_fds(connection, 8 + _SECRET_BYTES + 4 * ranks, 1, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            answer, fds = b"", []
    if not fds:
        raise FabricError(f"rank {rank}: not all of {ranks} ranks came within {timeout:g} s; start every one of them.")
    arena, secret, *pids = struct.unpack(f"<q{_SECRET_BYTES}s{ranks}i", answer)
    return World(fds[0], rank, tuple(pids), arena, name, secret)


def choose_arena_bytes(requested: int) -> int:
    """The size of the arena of each rank; 0 requests half of the memory. Untouched pages cost nothing."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return -(-(requested or total // 2) // (2 << 20)) * (2 << 20)
