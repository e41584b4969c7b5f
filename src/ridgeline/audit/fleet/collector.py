"""The collector: it takes the entries of many logs, proves them, and keeps one copy per origin.

    ridgeline audit collect FLEET --listen HOST:PORT --trust VKEY,…

A forwarder proves its log's key (`channel.py`) and learns how many entries the collector has. It then sends frames:

    checkpoint, proof    the newest checkpoint, and that it continues the one seen before
    first, count, path   entries, and that the tree with them is the beginning of that checkpoint
    time                 the clock of the host

Nothing is stored before both proofs hold: the collector computes the root from its own entries and the new ones. The
answer to a frame comes when the entries are on the disk. It has the new size, a pause that grows with the number of
hosts, and now and then, if the checkpoint is complete, the collector's co-signature, which the forwarder keeps with its
log. Whatever does not fit is refused and an alert.
"""

from __future__ import annotations

import asyncio
import base64
import re
import resource
import signal
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline import web
from ridgeline.audit.fleet import channel
from ridgeline.audit.fleet.alerts import BACK, START, STOP, FleetAlerts, read_silent
from ridgeline.audit.fleet.channel import BadFrame, Header
from ridgeline.audit.fleet.copies import MOST, TURN, Copies, Copy, ReceivedBatch, check_blobs
from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import Checkpoint, Verifier, decode_hash, parse_verifier, read_checkpoint
from ridgeline.audit.ledger.merkle import HASH
from ridgeline.audit.ledger.moment import show_moment
from ridgeline.audit.ledger.tiles import WIDTH, extend_edge
from ridgeline.errors import InputError, RidgelineError, StoreError, Unverified
from ridgeline.native import bundle_hashes

WRITE_S = 2.0  # committed entries are in the files of their copy after this time
SYNC_S = 30.0  # and all files are brought to the disk after this one
GREETING_S = 10.0  # for TLS and the proof of the key
IDLE_S = 300.0  # a connection without a frame is closed
FRAMES_PER_S = 250  # of all hosts together: each gets a pause to keep after a frame
COSIGN_S = 10.0  # between two co-signatures in the answers to one host, which keeps no more of them
CLOCK_S = 60.0  # jumps of a host's clock below this are no alert
FUTURE_S = 600.0  # an event may be this far ahead of the collector's clock
_MOST_GREETINGS = 1024  # connections that have not proved a key yet, if there are descriptors for them
_MOST_HASHES = 64
_TIME = re.compile(rb'"time":"(\d{1,19})"\}$')


class Refused(Exception):
    """What a forwarder sent is refused, and the connection ends. `alert` is recorded for the origin."""

    def __init__(
        self, kind: str, reason: str, *, alert: bool = True, evidence: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(reason)
        self.kind, self.alert, self.evidence = kind, alert, evidence or {}


@dataclass
class Host:
    """What the collector knows about one origin while it runs."""

    copy: Copy
    last_contact: float  # monotonic
    silent: bool = False
    offset_s: float = 0.0  # its clock − the collector's, at its last report
    cosigned: float = float("-inf")  # when an answer last had a co-signature (monotonic)
    future: bool = False  # its events have times in the future, and an alert says so
    session: asyncio.Task[None] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by its session


class Collector:
    """Receives the logs that `trusted` names into the fleet at `folder`.

    name          the name of a new collector, like collector.example/fleet
    silent_after  seconds without a word after which a host is silent; 0: never
    outlets       called with every alert about a host
    """

    def __init__(
        self,
        folder: Path,
        trusted: Sequence[Verifier],
        name: str,
        *,
        silent_after: float = 0.0,
        outlets: Sequence[Callable[[dict[str, Any]], None]] = (),
    ) -> None:
        self._trusted = {key.name: key for key in trusted}
        self._copies = Copies(folder, trusted, name)
        self._alerts = FleetAlerts(self._copies.ledger, outlets)
        self._silent_after = silent_after
        was_silent, now = read_silent(self._copies.ledger), time.monotonic()
        self._hosts = {
            origin: Host(self._copies.by_origin[origin], now, origin in was_silent) for origin in self._trusted
        }
        self._pending: list[tuple[ReceivedBatch, Callable[[], None], asyncio.Future[None]]] = []
        self._greeting: dict[asyncio.StreamWriter, None] = {}  # connections that have not proved a key yet
        self._clock = time.time() - time.monotonic()  # a jump of our own clock must not change it
        self.port = 0  # the port in use, once it listens
        self.taken = 0  # entries since the start

    @property
    def key(self) -> Verifier:
        return self._copies.signer.verifier

    async def run(self, host: str, port: int, announce: Callable[[str], object], stop: asyncio.Event) -> None:
        """Collect until `stop` is set, then bring everything to the disk."""
        self._more, self._space, self._turn = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._committing, self._syncing = asyncio.Lock(), asyncio.Lock()
        self._space.set()
        self._sessions: set[asyncio.Task[None]] = set()
        _allow_connections()
        try:
            self._listener = listener = _listen(host, port)
            self.port = listener.getsockname()[1]
            server = await asyncio.start_server(
                self._accept,
                sock=listener,
                ssl=channel.make_server_context(self._copies.signer),
                ssl_handshake_timeout=GREETING_S,
                backlog=web.ACCEPT_AT_ONCE,
            )
            await asyncio.to_thread(self._alerts.record, START, None, {"origins": len(self._trusted)})
            announce(f"{host}:{self.port}")
            async with server:
                with web.count_listener():
                    await self._run_loops(stop)
                server.close()
            await asyncio.to_thread(self._alerts.record, STOP, None, {"taken": self.taken})
        finally:
            await asyncio.to_thread(self._copies.close)

    async def _run_loops(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set or a loop fails; then end the sessions, and the loops between two pieces of work."""
        loops = [self._commit_all(), self._write_all(), self._sync_all(), self._watch_silence()]
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(loop) for loop in loops]
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        sessions = list(self._sessions)
        for session in sessions:
            session.cancel()
        await asyncio.wait(sessions, timeout=GREETING_S) if sessions else None
        async with self._committing, self._syncing:
            for task in (stopped, *tasks):
                task.cancel()
            ended = await asyncio.gather(stopped, *tasks, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        self._listener.accept_handshake(writer.transport)
        while len(self._greeting) >= _count_greetings():  # connections that send nothing replace each other
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.transport.abort()
        self._greeting[writer] = None
        self._sessions.add(task)
        try:
            with suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError, BadFrame, TimeoutError):
                await self._serve(reader, writer, task)
        except asyncio.CancelledError:
            pass  # a newer connection of this host, or the end of the collector
        finally:
            self._sessions.discard(task)
            self._greeting.pop(writer, None)
            writer.transport.abort() if task.cancelling() else writer.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        async def send(header: Header) -> None:
            writer.write(channel.pack_frame(header))
            await writer.drain()

        origin = "?"
        try:
            async with asyncio.timeout(GREETING_S):
                origin = (await self._greet(reader, send)).name
            self._greeting.pop(writer, None)
            host = self._hosts[origin]
            if host.session is not None:
                host.session.cancel()  # the host has connected anew: its old connection is dead
            host.session = task
            async with host.lock:
                await self._hear(host)
                copy = host.copy
                seen = str(copy.seen) if copy.seen.note is not None else None
                greeting = {"size": copy.size, "seen": seen, "silent_after": self._silent_after}
                await send({**greeting, "pause": self._find_pause()})
                while True:
                    async with asyncio.timeout(IDLE_S):
                        header, payload = await channel.read_frame(reader)
                    await self._hear(host)
                    try:
                        answer = await self._take(host, header, payload)
                    except StoreError as error:  # a full disk, for example: the forwarder tries again
                        answer = {"retry": str(error)}
                    await send(answer)
        except Refused as refusal:
            if refusal.alert:
                with suppress(RidgelineError):
                    await asyncio.to_thread(self._alerts.send, refusal.kind, origin, str(refusal), refusal.evidence)
            await send({"refused": refusal.kind, "reason": str(refusal)})

    async def _greet(self, reader: asyncio.StreamReader, send: Callable[[Header], Any]) -> Verifier:
        """Let the forwarder prove its log's key; return that key."""
        nonce = channel.make_nonce()
        await send({"ridgeline": channel.VERSION, "nonce": nonce})
        header, _ = await channel.read_frame(reader, greeting=True)
        if header.get("ridgeline") != channel.VERSION:
            raise Refused(
                "version", f"this collector speaks version {channel.VERSION}; update the older end.", alert=False
            )
        try:
            key = parse_verifier(str(header.get("key")))
            channel.check_proof_of_key(nonce, self.key, key, str(header.get("signature")))
        except (InputError, Unverified):
            raise Refused("unproved", "the forwarder did not prove the key of its log.", alert=False) from None
        known = self._trusted.get(key.name)
        if known is None:
            await asyncio.to_thread(
                self._alerts.send, "stranger", key.name, f"the log {key} is not trusted; it was refused."
            )
            raise Refused("stranger", f"this collector does not trust the log {key}.", alert=False)
        if known != key:
            reason = f"a host uses the name {key.name} with the key {key}, but its log has the key {known}: refused."
            await asyncio.to_thread(self._alerts.send, "two_keys", key.name, reason)
            raise Refused("two_keys", f"this collector knows {key.name} by another key, {known}.", alert=False)
        return key

    async def _take(self, host: Host, header: Header, payload: bytes) -> Header:
        """Check one frame, bring its entries to the disk, and return the answer."""
        copy = host.copy
        await self._check_clock(host, header.get("time"))
        seen = await self._check_checkpoint(copy, header) if "checkpoint" in header else copy.seen
        count = _number(header, "count")
        if count:
            await self._take_entries(host, header, payload, seen, count)
        if header.get("finish"):
            await asyncio.to_thread(self._copies.write, copy)
        answer: Header = {"size": copy.size, "pause": self._find_pause()}
        if not copy.complete or copy.seen.text() != seen.text():
            return answer
        now = time.monotonic()
        if copy.cosigned is None and now - host.cosigned >= COSIGN_S:
            copy.cosigned, host.cosigned = self._copies.cosign(copy.seen), now
        if copy.cosigned is not None:
            answer["cosigned"] = str(copy.cosigned)
        return answer

    def _find_pause(self) -> float:
        """Return the seconds between two frames of a host, so that all together stay below FRAMES_PER_S."""
        return round(len(self._sessions) / FRAMES_PER_S, 3)

    async def _take_entries(self, host: Host, header: Header, payload: bytes, seen: Checkpoint, count: int) -> None:
        copy, first = host.copy, _number(header, "first")
        if first != copy.size:
            kind, what = ("replayed", "again") if first < copy.size else ("gap", "next, so entries are missing")
            raise Refused(kind, f"it sends entry {first} {what}; {copy.size} are stored.")
        entries, blobs = _split_payload(header, payload)
        try:
            hashes = bundle_hashes(entries) if entries else _read_hashes(header, "hashes")
            if len(hashes) != count * HASH or (not entries and (first % WIDTH or count % WIDTH)):
                raise ValueError
        except ValueError:
            raise Refused("altered", f"what it sends as entries {first} to {first + count - 1} is damaged.") from None
        growth = extend_edge(copy.edge, entries, hashes)
        try:
            path = _list_hashes(header, "path")
            merkle.check_consistency(growth.edge.size, seen.size, growth.edge.root(), seen.root, path)
            check_blobs(entries, blobs)
        except Unverified:
            reason = f"entries {first} to {first + count - 1} are not those that its checkpoint of {seen.size} signs."
            raise Refused("altered", reason, evidence={"offered": str(seen)}) from None
        if not entries:
            reason = (
                f"entries {first} to {first + count - 1} were pruned before they were sent; their hashes are stored."
            )
            await asyncio.to_thread(self._alerts.send, "gap", copy.key.name, reason)
        elif (ahead := _find_future(entries, self._now())) is None:
            host.future = False
        elif not host.future:
            host.future = True
            reason = f"an event has the time {show_moment(ahead)}, which is in the future."
            await asyncio.to_thread(self._alerts.send, "clock", copy.key.name, reason)
        if blobs:
            await asyncio.to_thread(self._copies.store_blobs, copy, blobs)
        note = str(seen) if seen.text() != copy.seen.text() else None
        await self._commit(ReceivedBatch(copy, first, entries, hashes, note), lambda: copy.apply(growth, seen))
        self.taken += count

    async def _check_checkpoint(self, copy: Copy, header: Header) -> Checkpoint:
        """Return the checkpoint of a frame, if it continues the one that was seen before."""
        try:
            now = read_checkpoint(str(header["checkpoint"]).encode(), copy.key, "the checkpoint")
            proof = _list_hashes(header, "proof")
        except Unverified as error:
            raise Refused("altered", f"its checkpoint cannot be used: {error}") from None
        then = copy.seen
        both = {"seen": str(then), "offered": str(now)}
        if now.size < then.size:
            if now.size > copy.size or await asyncio.to_thread(self._copies.root, copy, now.size) == now.root:
                reason = (
                    f"it offers its state of {now.size} entries again; {then.size} were seen: its log was put back."
                )
                raise Refused("replayed", reason, evidence=both)
            reason = (
                f"its log of {now.size} entries is not the beginning of the {then.size} that were seen: its past was"
            )
            raise Refused("rewritten", f"{reason} rewritten.", evidence=both)
        try:
            merkle.check_consistency(then.size, now.size, then.root, now.root, proof)
        except Unverified:
            reason = f"its log of {now.size} entries does not continue the {then.size} that were seen: its past was"
            raise Refused("rewritten", f"{reason} rewritten, or it was forked.", evidence=both) from None
        return now

    async def _commit(self, batch: ReceivedBatch, apply: Callable[[], None]) -> None:
        """Wait until the entries are on the disk and applied; a session that is cancelled meanwhile waits too."""
        await self._space.wait()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((batch, apply, done))
        self._more.set()
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:  # the next session of this host must find the true size
            await asyncio.wait({done})
            done.exception()
            raise

    async def _commit_all(self) -> None:
        """Bring what waits to the disk, all of it in one record; the next ones wait meanwhile."""
        while True:
            await self._more.wait()
            self._more.clear()
            async with self._committing:
                waiting, self._pending = self._pending, []
                error: RidgelineError | None = None
                try:
                    await asyncio.to_thread(self._copies.commit, [batch for batch, _, _ in waiting])
                except RidgelineError as failure:
                    error = failure
                for _, apply, done in waiting:
                    if error is None:
                        apply()
                        done.set_result(None)
                    else:
                        done.set_exception(error)
            if self._copies.backlog > TURN:
                self._turn.set()
            if self._copies.backlog > MOST:
                self._space.clear()

    async def _write_all(self) -> None:
        while True:
            await asyncio.sleep(max(WRITE_S, self._find_pause()))
            with suppress(RidgelineError):  # a full disk: the journal has everything, and the next round tries again
                await asyncio.to_thread(self._write_dirty)

    def _write_dirty(self) -> None:
        for host in self._hosts.values():
            self._copies.write(host.copy)

    async def _sync_all(self) -> None:
        while True:
            # `wait_for` would miss a cancellation in the moment in which a journal is full.
            with suppress(TimeoutError):
                async with asyncio.timeout(SYNC_S):
                    await self._turn.wait()
            self._turn.clear()
            with suppress(RidgelineError):
                async with self._syncing:
                    async with self._committing:
                        needed = await asyncio.to_thread(self._copies.turn)
                    if needed:
                        await asyncio.to_thread(self._copies.sync)
                self._space.set()

    async def _watch_silence(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._silent_after / 4) if self._silent_after else 3600.0)
            now, silent = time.monotonic(), list[tuple[str, str]]()
            for origin, host in self._hosts.items():
                if self._silent_after and not host.silent and now - host.last_contact > self._silent_after:
                    host.silent = True
                    silent.append((origin, f"it has been silent for {now - host.last_contact:.0f} s."))
            if silent:  # perhaps all of them: a network is down
                with suppress(RidgelineError):
                    await asyncio.to_thread(self._alerts.send_all, "silent", silent)

    async def _hear(self, host: Host) -> None:
        seconds, host.last_contact = time.monotonic() - host.last_contact, time.monotonic()
        if host.silent:
            host.silent = False
            with suppress(RidgelineError):
                await asyncio.to_thread(self._alerts.record, BACK, host.copy.key.name, {"seconds": round(seconds)})

    async def _check_clock(self, host: Host, reported: Any) -> None:
        if not isinstance(reported, int) or isinstance(reported, bool):
            return
        offset = (reported - self._now()) / 1e9
        jump = offset - host.offset_s
        if abs(jump) > CLOCK_S:
            host.offset_s = offset
            reason = f"its clock jumped by {jump:+,.0f} s: it is now {offset:+,.0f} s from the collector's."
            await asyncio.to_thread(self._alerts.send, "clock", host.copy.key.name, reason)

    def _now(self) -> int:
        """Nanoseconds since 1970, without the jumps of our own clock since the start."""
        return int((self._clock + time.monotonic()) * 1e9)


def collect(
    folder: Path,
    trusted: Sequence[Verifier],
    name: str,
    host: str,
    port: int,
    *,
    silent_after: float = 0.0,
    announce: Callable[[Collector, str], object] = lambda collector, where: None,
    outlets: Sequence[Callable[[dict[str, Any]], None]] = (),
) -> Collector:
    """Run a collector until SIGINT or SIGTERM; `announce` is called with it and its address once it listens."""

    async def run(collector: Collector) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await collector.run(host, port, lambda where: announce(collector, where), stop)

    collector = Collector(folder, trusted, name, silent_after=silent_after, outlets=outlets)
    asyncio.run(run(collector))
    return collector


def _listen(host: str, port: int) -> web.Listener:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return web.Listener(socket.create_server((host, port), family=family, backlog=1024), _count_greetings)
    except OSError as error:
        raise InputError(f"--listen {host}:{port} cannot be listened on: {error.strerror or error}.") from None


def _count_greetings() -> int:
    """Return the most connections in their TLS handshake, and the most that have not proved a key after it."""
    return web.get_connection_limit(_MOST_GREETINGS)


def _allow_connections() -> None:
    """Let this process open as many files as it may: every host keeps a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _number(header: Header, name: str) -> int:
    value = header.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise BadFrame(f"{name} is no number")
    return value


def _list_hashes(header: Header, name: str) -> list[bytes]:
    listed = header.get(name, [])
    hashes = [decode_hash(word) for word in listed if isinstance(word, str)] if isinstance(listed, list) else [None]
    if None in hashes or len(hashes) > _MOST_HASHES or len(hashes) != len(listed):
        raise BadFrame(f"{name} is no list of hashes")
    return [word for word in hashes if word is not None]


def _read_hashes(header: Header, name: str) -> bytes:
    try:
        return base64.b64decode(str(header.get(name)), validate=True)
    except ValueError:
        raise BadFrame(f"{name} is not base64") from None


def _split_payload(header: Header, payload: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Split a payload into the entries and the files of large events, whose names and sizes are in the header."""
    listed, blobs = header.get("blobs", []), dict[str, bytes]()
    try:
        end = len(payload)
        for name, size in reversed(listed):
            if not re.fullmatch("[0-9a-f]{64}", name) or not 0 <= size <= end:
                raise ValueError
            blobs[name] = payload[end - size : end]
            end -= size
    except (TypeError, ValueError):
        raise BadFrame("blobs is no list of names and sizes") from None
    return payload[:end], blobs


def _find_future(entries: bytes, now: int) -> int | None:
    """Return a time of an event that is too far in the future, if there is one."""
    at, limit = 0, now + int(FUTURE_S * 1e9)
    while at < len(entries):
        end = at + 2 + int.from_bytes(entries[at : at + 2], "big")
        match = _TIME.search(entries, max(at + 2, end - 29), end)
        if match is not None and int(match[1]) > limit:
            return int(match[1])
        at = end
    return None
