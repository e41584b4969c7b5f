"""How ranks of several hosts find each other and connect.

Each rank listens on one address of one interface, and, for ranks of its own host, on an abstract Unix socket. Rank 0
listens on the rendezvous, too, until all ranks have arrived; it compares their settings and sends all of them the table
of members. Then each rank connects to those of lower rank. Every connection begins with the handshake
(handshake.py). Connections of strangers are dropped and counted.
"""

from __future__ import annotations

import base64
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ridgeline.errors import FabricError, InputError
from ridgeline.fabric.config import FabricConfig
from ridgeline.fabric.handshake import (
    NONCE_BYTES,
    REFUSED,
    Connection,
    HandshakeError,
    Stranger,
    derive_keys,
    make_answer,
    make_greeting,
    make_refusal,
    parse_request,
    read_exactly,
    send_request,
)
from ridgeline.fabric.hosts import (
    Address,
    choose_host,
    describe_bind_error,
    find_interface,
    get_host_identity,
    list_ucx_devices,
    parse_ports,
)
from ridgeline.fabric.rendezvous import describe_process
from ridgeline.fabric.selection import read_tuning
from ridgeline.native import NetworkCollective, UcxWorker, find_ucx_problem, shared_stream_bytes, ucx_version

HANDSHAKE_TIMEOUT_S = 5.0  # for the handshake of one connection
MOST_CONNECTIONS = 256  # whose handshake is not finished
RETRY_S = 0.05
SHM, TCP, UDP, UCX = "shm", "tcp", "udp", "ucx"
TRANSPORT_CODES = {SHM: 0, TCP: 1, UDP: 2, UCX: 3}
_PORT = struct.Struct("<H")
# Settings that may differ between ranks
_OWN_SETTINGS = ("timeout", "arena_bytes", "interface", "ports", "rendezvous", "metrics", "trace")


@dataclass(frozen=True)
class Member:
    """What a rank says of itself."""

    host: str  # its identity
    name: str  # of the host
    pid: int
    address: str  # where it listens
    local: str  # where it listens for ranks of its own host
    cpus: int
    settings: dict[str, Any] = field(default_factory=dict)
    tuning: dict[str, Any] = field(
        default_factory=dict
    )  # of `tune_hosts`; in a table of members only that of the first one


@dataclass
class Arrival:
    """A connection whose handshake is right, and which waits for an answer."""

    socket: socket.socket
    peer: str
    request: dict[str, Any]
    secret: bytes
    server_nonce: bytes
    nonce: bytes

    def answer(self, document: Mapping[str, Any]) -> None:
        with suppress(OSError):
            self.socket.settimeout(HANDSHAKE_TIMEOUT_S)
            self.socket.sendall(make_answer(self.secret, self.server_nonce, self.nonce, document))

    def refuse(self, text: str) -> None:
        with suppress(OSError):
            self.socket.settimeout(HANDSHAKE_TIMEOUT_S)
            self.socket.sendall(make_refusal(REFUSED, text))
        self.socket.close()


@dataclass(eq=False)
class _Client:
    socket: socket.socket
    peer: str
    nonce: bytes
    deadline: float
    data: bytearray = field(default_factory=bytearray)


class Listener:
    """Accepts connections in a thread, does their handshake, and keeps those of ranks until they are taken."""

    def __init__(self, secret: bytes, addresses: Sequence[Address], ports: range = range(1)) -> None:
        """Listen on addresses; one with port 0 gets a free port of `ports`."""
        self._secret, self._process = secret, os.getpid()
        self._selector = selectors.DefaultSelector()
        self._condition = threading.Condition()
        self._arrivals: list[Arrival] = []
        self._closed = False
        self.strangers: Counter[str] = Counter()  # "address: reason" → connections
        self.addresses: list[Address] = []
        self._sockets: list[socket.socket] = []
        try:
            for address in addresses:
                self._listen(address, ports)
        except BaseException:
            for link in self._sockets:
                link.close()
            raise
        self._wake, woken = socket.socketpair()
        self._selector.register(woken, selectors.EVENT_READ, None)
        self._clients: set[_Client] = set()
        self._thread = threading.Thread(target=self._run, args=(woken,), daemon=True, name="fabric-listener")
        self._thread.start()

    def _listen(self, address: Address, ports: range) -> None:
        choices = [address.port] if address.port or address.is_local else list(ports)
        for port in choices:
            one = replace(address, port=port)
            try:
                link, at = one.open_socket()
            except OSError as error:
                raise InputError(f"the host '{one.host}' of {one} is not known ({error.strerror}).") from None
            link.set_inheritable(False)
            if not address.is_local:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                link.bind(at)
                link.listen(1024)
            except OSError as error:
                link.close()
                if port == choices[-1]:
                    text = describe_bind_error(error, one)
                    raise InputError(text if len(choices) == 1 else f"no port of {ports} is free: {text}") from None
                continue
            link.setblocking(False)
            self._sockets.append(link)
            self._selector.register(link, selectors.EVENT_READ, address)
            self.addresses.append(one if address.is_local else replace(one, port=link.getsockname()[1]))
            return

    def take(self, matches: Callable[[dict[str, Any]], bool], deadline: float) -> Arrival | None:
        """The next connection with such a request; None at the deadline."""
        with self._condition:
            while True:
                for arrival in self._arrivals:
                    if matches(arrival.request):
                        self._arrivals.remove(arrival)
                        return arrival
                left = deadline - time.monotonic()
                if left <= 0 or self._closed:
                    return None
                self._condition.wait(left)

    def count_stranger(self, peer: str, reason: str) -> None:
        with self._condition:
            if len(self.strangers) < 1000:
                self.strangers[f"{peer}: {reason}"] += 1
            else:
                self.strangers["others"] += 1

    def close(self) -> None:
        """End the thread and close all sockets that were not taken."""
        if self._closed or os.getpid() != self._process:
            return
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self._wake.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, woken: socket.socket) -> None:
        try:
            while not self._closed:
                clients = self._clients
                first = min((client.deadline for client in clients), default=None)
                for key, _ in self._selector.select(None if first is None else max(0.0, first - time.monotonic())):
                    if key.data is None:
                        break
                    if isinstance(key.data, _Client):
                        self._read(key.data)
                    else:
                        self._accept(key.fileobj)  # type: ignore[arg-type]
                now = time.monotonic()
                for client in [g for g in clients if g.deadline <= now]:
                    self._drop(client, Stranger(f"no handshake within {HANDSHAKE_TIMEOUT_S:g} s"))
        finally:
            self._selector.close()
            for link in (*self._sockets, *(g.socket for g in self._clients), woken):
                link.close()
            with self._condition:
                for arrival in self._arrivals:
                    arrival.socket.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            link, at = listener.accept()
        except OSError:
            return
        peer = str(at[0]) if isinstance(at, tuple) else "this host"
        if len(self._clients) >= MOST_CONNECTIONS:
            link.close()
            self.count_stranger(peer, "too many connections at once")
            return
        client = _Client(link, peer, secrets.token_bytes(NONCE_BYTES), time.monotonic() + HANDSHAKE_TIMEOUT_S)
        link.setblocking(False)
        try:
            link.send(make_greeting(client.nonce))
        except OSError:
            link.close()
            self.count_stranger(peer, "closed the connection")
            return
        self._clients.add(client)
        self._selector.register(link, selectors.EVENT_READ, client)

    def _read(self, client: _Client) -> None:
        try:
            some = client.socket.recv(1 << 16)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            some = b""
        if not some:
            self._drop(client, Stranger("closed the connection"))
            return
        client.data += some
        result = parse_request(bytes(client.data), self._secret, client.nonce)
        if result is None:
            return
        if isinstance(result, Stranger):
            self._drop(client, result)
            return
        request, nonce, end = result
        if end != len(client.data):
            self._drop(client, Stranger("bytes after its request"))
            return
        self._forget(client)
        client.socket.setblocking(True)
        with self._condition:
            self._arrivals.append(Arrival(client.socket, client.peer, request, self._secret, client.nonce, nonce))
            self._condition.notify_all()

    def _drop(self, client: _Client, stranger: Stranger) -> None:
        self._forget(client)
        self.count_stranger(client.peer, stranger.reason)
        with suppress(OSError):
            if client.data[:8] == b"RLFABRIC":
                text = {
                    "another secret": "the secret of this rank differs from that of the rank it connects to; "
                    "give all ranks the same RIDGELINE_FABRIC_SECRET."
                }.get(stranger.reason, f"refused: {stranger.reason}.")
                client.socket.send(make_refusal(stranger.status, text))
        client.socket.close()

    def _forget(self, client: _Client) -> None:
        self._clients.discard(client)
        with suppress(KeyError, ValueError):
            self._selector.unregister(client.socket)


def connect(
    address: Address,
    secret: bytes,
    document: Mapping[str, Any],
    deadline: float,
    handshake_timeout: float | None = None,
) -> Connection:
    """Connect and send a request, again and again until the deadline; raises HandshakeError or FabricError.

    handshake_timeout  seconds for the connection, if the deadline is for more than that
    """
    reason = "no answer"
    start = time.monotonic()
    if handshake_timeout is not None:
        deadline = min(deadline, start + handshake_timeout)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise FabricError(f"{address} cannot be reached within {deadline - start:.3g} s ({reason}).")
        link = None
        try:
            link, at = address.open_socket()
            link.settimeout(left)
            link.connect(at)
            _set_options(link)
            return send_request(link, str(address), secret, document, deadline)
        except HandshakeError:
            if link is not None:
                link.close()
            raise
        except OSError as error:
            if link is not None:
                link.close()
            reason = error.strerror or str(error) or "no answer"
            time.sleep(min(RETRY_S, max(0.0, deadline - time.monotonic())))


def _set_options(link: socket.socket) -> None:
    if link.family != socket.AF_UNIX:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


# transport, control stream, lanes, memory of the lanes, keys of the control stream and the lanes, worker of UCX
LinkRow = tuple[int, int, list[int], list[int], list[tuple[int, int]], bytes]


@dataclass(frozen=True)
class LinkEnd:
    """This rank's end of a stream, as files."""

    fd: int
    memory: int = -1  # of a stream through shared memory
    keys: tuple[int, int] = (0, 0)  # of a stream over UDP or UCX: in its packets from here, and to here
    worker: bytes = b""  # the address of the other rank in UCX


@dataclass
class Membership:
    """What a rank keeps after the ranks have met: their table, where it listens, the secret."""

    rank: int
    members: tuple[Member, ...]
    session: str
    secret: bytes
    listener: Listener
    config: FabricConfig

    @property
    def size(self) -> int:
        return len(self.members)

    def get_transport(self, rank: int) -> str:
        """How this rank reaches another one."""
        is_near = self.members[rank].host == self.members[self.rank].host
        if is_near and self.config.transport in ("auto", SHM):
            return SHM
        return TCP if self.config.transport == "auto" else self.config.transport

    @property
    def is_on_one_host(self) -> bool:
        return len({member.host for member in self.members}) == 1

    def make_worker(self) -> UcxWorker | None:
        """This rank's end of the streams over UCX, if it has such streams."""
        if self.config.transport != UCX:
            return None
        interface = find_interface(self.listener.addresses[0].host) if self.config.interface else ""
        if self.config.ports:
            os.environ.setdefault("UCX_TCP_PORT_RANGE", self.config.ports)  # UCX listens by itself
        try:
            return UcxWorker.make(list_ucx_devices(interface))
        except RuntimeError as error:
            raise FabricError(f"rank {self.rank}: {error}.") from None

    @property
    def _connections(self) -> int:
        """Of each pair of ranks: a control stream, lanes for calls and lanes for messages; UCX makes its own lanes."""
        return 1 if self.config.transport == UCX else 1 + 2 * self.config.streams

    @property
    def choice(self) -> dict[str, Any]:
        """The algorithms for these ranks, the same on all of them: op → layout → rows."""
        choice: dict[str, Any] = self.members[0].tuning.get(self.config.transport, {})
        return choice

    def connect_links(self, deadline: float, worker: UcxWorker | None = None) -> list[LinkRow]:
        """Open the streams to all other ranks, as files.

        worker  of `make_worker`
        """
        count = self._connections
        address = worker.address if worker is not None else b""
        files: dict[tuple[int, int], LinkEnd] = {}
        try:
            for rank in range(self.rank):
                for number in range(count):
                    files[rank, number] = self._open_link(rank, number, address, deadline)
            for _ in range((self.size - 1 - self.rank) * count):
                rank, number, end = self._take_link(files, address, deadline)
                files[rank, number] = end
        except BaseException:
            for end in files.values():
                for fd in (end.fd, end.memory):
                    if fd >= 0:
                        os.close(fd)
            raise
        rows: list[LinkRow] = []
        for rank in range(self.size):
            if rank == self.rank:
                rows.append((TRANSPORT_CODES[SHM], -1, [], [], [], b""))
                continue
            control, *lanes = (files[rank, number] for number in range(count))
            code, keys = TRANSPORT_CODES[self.get_transport(rank)], [end.keys for end in (control, *lanes)]
            lane_files = [end.fd for end in lanes] or [-1] * (2 * self.config.streams)
            rows.append((code, control.fd, lane_files, [end.memory for end in lanes], keys, control.worker))
        return rows

    def choose(self, ranks: Sequence[int], context: int) -> Membership:
        """The membership of a part of the ranks, which may have several communicators."""
        first, *others = (self.members[r] for r in ranks)
        members = (replace(first, tuning=self.members[0].tuning), *others)
        session = f"{self.session}/{context}/{ranks[0]}" if context else self.session
        return replace(self, rank=list(ranks).index(self.rank), members=members, session=session)

    def connect_messages(self, deadline: float) -> tuple[dict[int, socket.socket], dict[int, socket.socket]]:
        """Two more connections to each other rank, made here and there: (outgoing, incoming)."""
        others = [r for r in range(self.size) if r != self.rank]
        connections: dict[int, Connection] = {}
        incoming: dict[int, socket.socket] = {}
        request = {"purpose": "messages", "session": self.session, "rank": self.rank}
        for rank in others:
            is_shared = self.get_transport(rank) == SHM
            address = (
                Address(self.members[rank].local, 0) if is_shared else parse_member_address(self.members[rank].address)
            )
            connections[rank] = connect(address, self.secret, request, deadline)
        for _ in others:
            arrival = self.listener.take(
                lambda r: r.get("purpose") == "messages" and r.get("session") == self.session, deadline
            )
            if arrival is None:
                missing = ", ".join(str(r) for r in others if r not in incoming)
                raise FabricError(f"rank {self.rank}: no connection for messages came from the ranks {missing}.")
            arrival.answer({})
            _set_options(arrival.socket)
            incoming[int(arrival.request["rank"])] = arrival.socket
        for connection in connections.values():
            connection.read_answer(deadline)
        return {rank: connection.socket for rank, connection in connections.items()}, incoming

    def _open_link(self, rank: int, number: int, worker: bytes, deadline: float) -> LinkEnd:
        is_shared, member = self.get_transport(rank) == SHM, self.members[rank]
        address = Address(member.local, 0) if is_shared else parse_member_address(member.address)
        request = {"purpose": "link", "session": self.session, "rank": self.rank, "number": number}
        if worker:
            request["worker"] = _encode(worker)
        try:
            connection = connect(address, self.secret, request, deadline)
            answer = connection.read_answer(deadline)
            if self.get_transport(rank) == UDP:
                link = self._open_datagrams(connection.socket)
                connection.socket.sendall(_PORT.pack(link.getsockname()[1]))
                _connect_datagrams(link, connection.socket, int(answer["port"]))
                connection.socket.close()
                return LinkEnd(_detach(link), keys=derive_keys(self.secret, connection.server_nonce, connection.nonce))
        except HandshakeError:
            raise
        except (FabricError, OSError) as error:
            text = error if isinstance(error, FabricError) else f"{address} closed the connection."
            raise FabricError(f"rank {self.rank} could not connect to rank {rank} on {member.name}: {text}") from None
        if self.get_transport(rank) == UCX:
            keys = derive_keys(self.secret, connection.server_nonce, connection.nonce)
            return LinkEnd(_detach(connection.socket), keys=keys, worker=_decode(answer["worker"]))
        memory = -1
        if is_shared and number:
            memory = os.memfd_create("ridgeline-stream", os.MFD_CLOEXEC)
            os.ftruncate(memory, shared_stream_bytes())
            socket.send_fds(connection.socket, [b"m"], [memory])
        return LinkEnd(_detach(connection.socket), memory)

    def _take_link(
        self, files: Mapping[tuple[int, int], LinkEnd], worker: bytes, deadline: float
    ) -> tuple[int, int, LinkEnd]:
        arrival = self.listener.take(
            lambda r: r.get("purpose") == "link" and r.get("session") == self.session, deadline
        )
        if arrival is None:
            count = self._connections
            late = [r for r in range(self.rank + 1, self.size) if any((r, k) not in files for k in range(count))]
            names = ", ".join(f"rank {r} on {self.members[r].name}" for r in late)
            raise FabricError(f"rank {self.rank}: {names} did not connect to {self.listener.addresses[0]} in time.")
        rank, number = arrival.request.get("rank"), arrival.request.get("number")
        if not isinstance(rank, int) or not isinstance(number, int) or (rank, number) in files:
            arrival.refuse("this connection was made before.")
            raise FabricError(f"rank {self.rank}: rank {rank!r} connected twice.")
        if self.get_transport(rank) == UDP:
            return rank, number, self._answer_datagrams(arrival, deadline)
        arrival.answer({"worker": _encode(worker)} if worker else {})
        _set_options(arrival.socket)
        if self.get_transport(rank) == UCX:
            client_key, server_key = derive_keys(self.secret, arrival.server_nonce, arrival.nonce)
            address = _decode(arrival.request["worker"])
            return rank, number, LinkEnd(_detach(arrival.socket), keys=(server_key, client_key), worker=address)
        memory = -1
        if self.get_transport(rank) == SHM and number:
            arrival.socket.settimeout(max(0.01, deadline - time.monotonic()))
            _, fds, _, _ = socket.recv_fds(arrival.socket, 1, 1, socket.MSG_CMSG_CLOEXEC)
            if not fds:
                raise FabricError(f"rank {self.rank}: rank {rank} died while it connected.")
            memory = fds[0]
        return rank, number, LinkEnd(_detach(arrival.socket), memory)

    def _open_datagrams(self, connection: socket.socket) -> socket.socket:
        """A UDP socket on the address of a connection, on a port of those that are allowed."""
        ports = parse_ports(self.config.ports)
        for port in ports:
            link = socket.socket(connection.family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            host, _, *scope = connection.getsockname()
            try:
                link.bind((host, port, *scope))
            except OSError as error:
                link.close()
                if port == ports[-1]:
                    text = describe_bind_error(error, Address(host, port))
                    raise InputError(text if len(ports) == 1 else f"no port of {ports} is free: {text}") from None
                continue
            return link
        raise AssertionError  # a range of ports is not empty

    def _answer_datagrams(self, arrival: Arrival, deadline: float) -> LinkEnd:
        link = self._open_datagrams(arrival.socket)
        arrival.answer({"port": link.getsockname()[1]})
        try:
            data = read_exactly(arrival.socket, _PORT.size, deadline)
        except OSError as error:
            link.close()
            text = f"rank {self.rank}: rank {arrival.request['rank']} ended while it connected ({error})."
            raise FabricError(text) from None
        _connect_datagrams(link, arrival.socket, _PORT.unpack(data)[0])
        arrival.socket.close()
        client_key, server_key = derive_keys(self.secret, arrival.server_nonce, arrival.nonce)
        return LinkEnd(_detach(link), keys=(server_key, client_key))


def parse_member_address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host.strip("[]"), int(port))


def _connect_datagrams(link: socket.socket, connection: socket.socket, port: int) -> None:
    host, _, *scope = connection.getpeername()
    link.connect((host, port, *scope))


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text)


def _detach(link: socket.socket) -> int:
    link.setblocking(False)
    return link.detach()


def describe_self(config: FabricConfig, listener: Listener) -> Member:
    shared = {name: value for name, value in asdict(config).items() if name not in _OWN_SETTINGS}
    if config.transport == UCX:
        shared["ucx"] = ucx_version()
    outside, inside = listener.addresses
    cpus = len(os.sched_getaffinity(0))
    host, name, tuning = get_host_identity(), socket.gethostname(), read_tuning().get("hosts", {})
    return Member(host, name, os.getpid(), str(outside), inside.host, cpus, shared, tuning)


def open_listener(config: FabricConfig, secret: bytes, rendezvous: Address) -> Listener:
    """Listen for the other ranks: on the chosen interface, and for this host."""
    if config.transport == UCX:
        check_ucx()
    host = choose_host(config.interface, rendezvous)
    inside = Address(f"@ridgeline-fabric-{secrets.token_hex(16)}", 0)
    return Listener(secret, [Address(host, 0), inside], parse_ports(config.ports))


def check_ucx() -> None:
    """Raise InputError if this host has no usable UCX."""
    problem = find_ucx_problem()
    if problem:
        raise InputError(
            f"transport ucx: {problem}; install UCX (Debian and Ubuntu: apt install libucx0), or choose tcp."
        )


def meet(
    rank: int,
    size: int,
    rendezvous: Address,
    secret: bytes,
    config: FabricConfig,
    timeout: float,
    server: Listener | None = None,
) -> Membership:
    """Find the other ranks; raises InputError or FabricError, which name what is wrong.

    server  of rank 0: it listens on the rendezvous already; this function closes it
    """
    deadline = time.monotonic() + timeout
    listener = open_listener(config, secret, rendezvous)
    try:
        me = describe_self(config, listener)
        if rank == 0:
            server = server or Listener(secret, [rendezvous])
            members, session = _host_rendezvous(server, size, secret, me, deadline, timeout)
        else:
            members, session = _attend_rendezvous(rank, size, rendezvous, secret, me, deadline, timeout)
    except BaseException:
        if server is not None:
            server.close()
        listener.close()
        raise
    return Membership(rank, members, session, secret, listener, config)


def _host_rendezvous(
    server: Listener, size: int, secret: bytes, me: Member, deadline: float, timeout: float
) -> tuple[tuple[Member, ...], str]:
    rendezvous = server.addresses[0]
    arrivals: dict[int, Arrival] = {}
    members = {0: me}
    try:
        while len(members) < size:
            arrival = server.take(lambda request: request.get("purpose") == "meet", deadline)
            if arrival is None:
                missing = ", ".join(str(r) for r in range(size) if r not in members)
                text = f"not all of {size} ranks came to {rendezvous} within {timeout:g} s; missing: {missing}."
                if server.strangers:
                    text += f" Refused: {'; '.join(list(server.strangers)[:3])}."
                raise FabricError(text)
            rank, member = _read_member(arrival.request)
            problem = _find_problem(rank, size, arrival.request, member, members)
            if problem is None and member is not None:
                arrivals[rank], members[rank] = arrival, replace(member, tuning={})
                continue
            arrival.refuse(str(problem))
            if member is not None:
                raise FabricError(str(problem))
        table = tuple(members[r] for r in range(size))
        check_transport(table)
        session = secrets.token_hex(16)
        for arrival in arrivals.values():
            arrival.answer({"members": [asdict(member) for member in table], "session": session})
            arrival.socket.close()
        return table, session
    except (FabricError, InputError) as error:
        for arrival in arrivals.values():
            arrival.refuse(str(error))
        raise
    finally:
        server.close()


def _read_member(request: Mapping[str, Any]) -> tuple[int, Member | None]:
    try:
        return int(request["rank"]), Member(**request["member"])
    except (KeyError, TypeError, ValueError):
        return -1, None


def _find_problem(
    rank: int, size: int, request: Mapping[str, Any], member: Member | None, members: Mapping[int, Member]
) -> str | None:
    if member is None or not isinstance(rank, int):
        return "the request is not complete; install one release everywhere."
    if request.get("size") != size:
        return f"rank 0 waits for {size} ranks, rank {rank} is one of {request.get('size')}; give all the same number."
    if rank in members or not 0 <= rank < size:
        other = members[rank].name if rank in members else "?"
        return f"rank {rank} came twice, from {other} and {member.name}; each rank needs its own number below {size}."
    return find_difference(members[0], member, f"rank {rank}")


def find_difference(first: Member, other: Member, rank_name: str) -> str | None:
    """A sentence about settings that differ from those of rank 0."""
    for name, value in first.settings.items():
        if other.settings.get(name) != value:
            return (
                f"rank 0 has {name}={value}, {rank_name} on {other.name} has {name}={other.settings.get(name)}; "
                f"give all ranks the same settings."
            )
    return None


def check_transport(members: Sequence[Member]) -> None:
    hosts = sorted({member.name for member in members})
    if members[0].settings.get("transport") == SHM and len({member.host for member in members}) > 1:
        raise InputError(f"transport is shm, but the ranks are on several hosts ({', '.join(hosts)}); set it to auto.")


def _attend_rendezvous(
    rank: int, size: int, rendezvous: Address, secret: bytes, me: Member, deadline: float, timeout: float
) -> tuple[tuple[Member, ...], str]:
    request = {"purpose": "meet", "rank": rank, "size": size, "member": asdict(me)}
    try:
        connection = connect(rendezvous, secret, request, deadline)
    except HandshakeError as error:
        raise FabricError(f"rank {rank}: {error}") from None
    except FabricError as error:
        raise FabricError(f"rank {rank}: the rendezvous {error} Is rank 0 running there?") from None
    with connection.socket:
        try:
            document = connection.read_answer(deadline)
        except HandshakeError as error:
            raise FabricError(f"rank {rank}: {error}") from None
        except TimeoutError:
            raise FabricError(
                f"rank {rank}: not all of {size} ranks came to {rendezvous} within {timeout:g} s; start all of them."
            ) from None
        except OSError:
            raise FabricError(f"rank {rank}: rank 0 at {rendezvous} ended before all ranks had come.") from None
    return tuple(Member(**member) for member in document["members"]), str(document["session"])


@dataclass(frozen=True)
class NetworkWorld:
    """The ranks of several hosts, or of one whose ranks are to use TCP."""

    membership: Membership
    deadline: float  # for the connections

    arena_bytes = 0  # registered buffers need memory that all ranks share

    @property
    def rank(self) -> int:
        return self.membership.rank

    @property
    def size(self) -> int:
        return self.membership.size

    def make_engine(self, config: FabricConfig, context: int, members: tuple[int, ...]) -> NetworkCollective:
        """Connect to all members; communicators in one context have no member in common."""
        membership = self.membership
        if context:
            membership = membership.choose(members, context)
        host = membership.members[membership.rank].host
        local_ranks = sum(member.host == host for member in membership.members)
        is_crowded = local_ranks > len(os.sched_getaffinity(0))
        worker = membership.make_worker()
        links = membership.connect_links(self.deadline, worker)
        try:
            return NetworkCollective(membership.rank, links, config.small_bytes, is_crowded, worker)
        except RuntimeError as error:
            raise FabricError(f"rank {membership.rank}: {error}.") from None

    def describe_process(self, rank: int) -> str:
        member, me = self.membership.members[rank], self.membership.members[self.rank]
        if member.host != me.host:
            return f"it runs on {member.name} ({member.address})"
        return describe_process(member.pid)

    def find_ended(self, members: Sequence[int]) -> list[int]:
        """The members that are known to have ended before a call: the engine notices it by their connections."""
        return []

    def list_strangers(self) -> Mapping[str, int]:
        """Connections that were dropped, by address and reason."""
        return dict(self.membership.listener.strangers)
