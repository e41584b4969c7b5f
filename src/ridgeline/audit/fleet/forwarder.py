"""The forwarder: it sends a log to a collector, from the entry on that the collector does not have.

    ridgeline audit forward LOG --to HOST:PORT --collector VKEY

The log itself is the queue: nothing is copied on this machine, and the collector says how many entries it has. So a
kill at either end, or a cut network, neither loses nor doubles an entry. The co-signatures that the collector answers
with are kept with the log, like those of any witness.
"""

from __future__ import annotations

import base64
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.audit.fleet import channel
from ridgeline.audit.fleet.channel import BadFrame, Header
from ridgeline.audit.fleet.copies import find_blobs
from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import COSIGNATURE, Checkpoint, Signer, Verifier, parse_checkpoint, parse_note
from ridgeline.audit.ledger.layout import LedgerPaths, read_key, read_regular, read_settings
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.tiles import WIDTH, Tiles
from ridgeline.audit.ledger.witness import store_cosigned
from ridgeline.errors import InputError, StoreError, Unverified
from ridgeline.native import entry_ends
from ridgeline.store import StrPath, explain_errors

CHUNK_BYTES = 1 << 20  # of entries in a frame, about
CHUNK_ENTRIES = 8_192
BLOB_BYTES = 8 << 20  # of the files of large events in a frame, about
POLL_S = 1.0  # between two looks at the log
PING_S = 30.0  # a word at least this often, so that the host does not count as silent
ONCE_S = 30.0  # how long `once` tries to reach the collector
STORE_S = 10.0  # between two co-signatures that are kept
_TIMEOUT_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 15.0
_SHORT_LOG_TIMEOUT_S = (
    5.0  # for a log that is shorter than what was sent: its writer may be restoring it after a power cut
)
_LONGEST_FRAME_PAUSE_S = 60.0
_LARGEST_BLOB = 80 << 20


class TryAgain(Exception):
    """The collector cannot take entries now."""


@dataclass(frozen=True)
class Chunk:
    """Entries of one frame; `hashes` instead of `entries` if their payloads were pruned."""

    first: int
    count: int
    entries: bytes = b""
    hashes: bytes = b""
    blobs: dict[str, bytes] = field(default_factory=dict)


class Forwarder:
    """Sends one log to one collector.

    log        the folder of the ledger, whose key must be on this machine
    collector  the public key that the collector printed
    notify     called with a sentence when the connection is lost or works again
    """

    def __init__(
        self,
        log: StrPath,
        host: str,
        port: int,
        collector: Verifier,
        *,
        notify: Callable[[str], object] = lambda sentence: None,
    ) -> None:
        self._ledger = Ledger.open(log)
        self._paths = LedgerPaths(self._ledger.path)
        self._signer = _read_signer(self._paths)
        self._tiles = Tiles(self._ledger.path)
        self._where, self._collector, self._notify = (host, port), collector, notify
        self._name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._stop = threading.Event()
        self._stored = float("-inf")  # when the last co-signature was stored
        self._cosigned: Checkpoint | None = None
        self._ping_s = PING_S
        self._pause_s = 0.0  # what the collector asks for between two frames
        self._unsigned = False  # the collector has all entries, and its co-signature is missing
        self.sent = 0  # entries since the start
        self.size = 0  # entries that the collector has

    def stop(self) -> None:
        """Let `run` end after the frame that is on its way; another thread or a signal handler may call this."""
        self._stop.set()

    def run(self, *, once: bool = False) -> None:
        """Send what the collector does not have; then wait for more entries, unless `once`.

        Raises `Unverified` if the collector refuses the log, has another key, or (with `once`) cannot be reached.
        """
        pause, until, lost = _FIRST_PAUSE_S, time.monotonic() + ONCE_S, False
        while not self._stop.is_set():
            try:
                with self._connect() as connection:
                    if lost:
                        self._notify(f"connected to {self._name} again.")
                    lost, pause = False, _FIRST_PAUSE_S
                    self._send_all(connection, once)
                    return
            except (OSError, BadFrame, TryAgain, Unverified) as error:
                # The collector may be updated later than its hosts, and they shall find it then.
                if isinstance(error, Unverified) and (once or error.kind != "version"):
                    raise
                why = str(getattr(error, "strerror", None) or error)
                if once and time.monotonic() > until:
                    raise Unverified("unreachable", f"{self._name} took nothing for {ONCE_S:.0f} s: {why}.") from None
                if not lost:
                    self._notify(f"{self._name}: {why.rstrip('.')}; trying again.")
                lost = True
                self._stop.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311  (hosts shall not come back together)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            finally:
                self._keep(always=True)

    def close(self) -> None:
        self._ledger.close()

    def _connect(self) -> ssl.SSLSocket:
        """Connect, check the collector's key, and prove the log's key."""
        plain = socket.create_connection(self._where, timeout=_TIMEOUT_S)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = channel.make_client_context().wrap_socket(plain)
        except BaseException:
            plain.close()
            raise
        try:
            channel.check_peer(connection, self._collector, self._name)
            hello, _ = channel.receive_frame(connection)
            key = self._ledger.verifier
            proof = self._signer.sign(channel.format_proof_of_key(str(hello.get("nonce")), self._collector, key))
            header = {"ridgeline": channel.VERSION, "key": str(key), "signature": base64.b64encode(proof.body).decode()}
            answer = self._exchange(connection, header)
            self.size = _read_size(answer)
            seen = answer.get("seen")
            self._seen = parse_checkpoint(str(seen).encode(), "the collector's checkpoint").size if seen else 0
            silent_after = answer.get("silent_after")
            if isinstance(silent_after, int | float) and silent_after > 0:
                self._ping_s = min(PING_S, silent_after / 3)
        except BaseException:
            connection.close()
            raise
        return connection

    def _send_all(self, connection: ssl.SSLSocket, once: bool) -> None:
        target = self._find_target()
        self._send_checkpoint(connection, target, once)
        last = time.monotonic()
        while not once and not self._stop.is_set():
            self._stop.wait(min(max(POLL_S, self._pause_s), self._ping_s))
            now = self._ledger.checkpoint()
            if now.size > target.size:
                target = now
                self._send_checkpoint(connection, target, once)
                last = time.monotonic()
            elif time.monotonic() - last >= (min(STORE_S, self._ping_s) if self._unsigned else self._ping_s):
                self._note_cosigned(self._exchange(connection, {"time": time.time_ns()}), target)
                last = time.monotonic()
            self._keep()

    def _find_target(self) -> Checkpoint:
        """Return the newest checkpoint; wait a little if the collector has seen a larger one."""
        until = time.monotonic() + _SHORT_LOG_TIMEOUT_S
        while (now := self._ledger.checkpoint()).size < self._seen and time.monotonic() < until:
            if self._stop.wait(POLL_S / 4):
                break
        return now

    def _send_checkpoint(self, connection: ssl.SSLSocket, target: Checkpoint, once: bool) -> None:
        """Send the entries up to `target`, the first frame with the checkpoint itself."""
        proof = []
        if self._seen <= target.size:
            proof = merkle.consistency_path(self._seen, target.size, self._tiles.node(target.size))
        offer: Header = {"checkpoint": str(target), "proof": _encode(proof)}
        while True:
            header: Header = {"time": time.time_ns(), **offer}
            payload = b""
            if self.size < target.size:
                chunk = self._read_chunk(self.size, target.size)
                end = chunk.first + chunk.count
                path = merkle.consistency_path(end, target.size, self._tiles.node(target.size))
                header |= {"first": chunk.first, "count": chunk.count, "path": _encode(path)}
                header |= {"hashes": base64.b64encode(chunk.hashes).decode()} if chunk.hashes else {}
                header |= {"blobs": [[name, len(data)] for name, data in chunk.blobs.items()]} if chunk.blobs else {}
                payload = b"".join((chunk.entries, *chunk.blobs.values()))
                self.sent += chunk.count
            else:
                end = self.size
            if once and end >= target.size:
                header["finish"] = True
            answer = self._exchange(connection, header, payload)
            if _read_size(answer) != end:
                raise BadFrame(f"the collector has {answer.get('size')} entries instead of {end}")
            self.size, offer = end, {}
            self._seen = target.size
            if self.size >= target.size:
                self._note_cosigned(answer, target)
                return
            if self._stop.is_set():
                return

    def _exchange(self, connection: ssl.SSLSocket, header: Header, payload: bytes = b"") -> Header:
        connection.sendall(channel.pack_frame(header, payload))
        answer, _ = channel.receive_frame(connection)
        if "refused" in answer:
            reason = str(answer.get("reason"))[:500]
            raise Unverified(str(answer["refused"])[:50], f"the collector at {self._name} refuses this log: {reason}")
        if "retry" in answer:
            raise TryAgain(f"the collector cannot store entries now: {str(answer['retry'])[:300].rstrip('.')}")
        pause = answer.get("pause")
        if isinstance(pause, int | float) and pause >= 0:
            self._pause_s = min(pause, _LONGEST_FRAME_PAUSE_S)
        return answer

    def _read_chunk(self, first: int, end: int) -> Chunk:
        """Read some entries from `first` on, at most up to `end`."""
        parts, size, at, blobs = list[bytes](), 0, first, dict[str, bytes]()
        while at < end and size < CHUNK_BYTES and at - first < CHUNK_ENTRIES:
            number, offset = divmod(at, WIDTH)
            width = min(WIDTH, end - number * WIDTH)
            try:
                bundle = self._tiles.bundle(number, width)
            except Unverified as error:
                if error.kind != "missing" or width < WIDTH or offset:
                    raise
                if parts:
                    break  # what is before it is a frame of its own
                return Chunk(at, WIDTH, hashes=self._tiles.hashes(0, number))
            ends = [0, *entry_ends(bundle).tolist()]
            if len(ends) != width + 1:
                raise Unverified("altered", f"bundle {number} of {self._ledger.path} is damaged; see: audit verify.")
            part = bundle[ends[offset] :]
            if find_blobs(part):
                if not parts:
                    return self._read_large(at, bundle, ends, offset)
                break
            parts.append(part)
            size += len(part)
            at = number * WIDTH + width
        return Chunk(first, at - first, b"".join(parts), blobs=blobs)

    def _read_large(self, first: int, bundle: bytes, ends: list[int], offset: int) -> Chunk:
        """Read entries of one bundle, and the files of those that are too large for an entry."""
        blobs, size, stop = dict[str, bytes](), 0, offset
        while stop < len(ends) - 1 and size < BLOB_BYTES:
            for name in find_blobs(bundle[ends[stop] : ends[stop + 1]]):
                path = self._paths.blob(name)
                with explain_errors(path):
                    blobs[name] = read_regular(path, _LARGEST_BLOB)
                size += len(blobs[name])
            stop += 1
        return Chunk(first, stop - offset, bundle[ends[offset] : ends[stop]], blobs=blobs)

    def _note_cosigned(self, answer: Header, target: Checkpoint) -> None:
        """Take the co-signature of an answer, if it is one of the collector on this checkpoint."""
        given = answer.get("cosigned")
        self._unsigned = given is None
        if given is None or self._collector.kind != COSIGNATURE:
            return
        note = parse_note(str(given).encode(), "the co-signed checkpoint")
        if note.text != target.text() or not self._collector.find_signatures(note):
            raise Unverified("bad signature", f"the collector at {self._name} answered with a wrong co-signature.")
        self._cosigned = Checkpoint(target.origin, target.size, target.root, target.extensions, note)
        self._keep()

    def _keep(self, always: bool = False) -> None:
        """Store the newest co-signed checkpoint with the log."""
        if self._cosigned is None or (not always and time.monotonic() - self._stored < STORE_S):
            return
        with suppress(StoreError):  # a full disk, or one that is read-only: the collector has it too
            store_cosigned(self._ledger.path, self._cosigned, self._collector)
        self._cosigned, self._stored = None, time.monotonic()


def _read_signer(paths: LedgerPaths) -> Signer:
    key = read_settings(paths)[1] or paths.key
    if not key.exists():
        raise InputError(f"the key of {paths.log} is not at {key}; a forwarder proves with it whose log it sends.")
    return read_key(Path(key))


def _read_size(answer: dict[str, Any]) -> int:
    size = answer.get("size")
    if not isinstance(size, int) or isinstance(size, bool):
        raise BadFrame("the answer of the collector has no size")
    return size


def _encode(hashes: list[bytes]) -> list[str]:
    return [base64.b64encode(word).decode() for word in hashes]
