"""A ledger: an append-only Merkle log of events on plain files, which any tlog client can verify.

>>> import tempfile
>>> from pathlib import Path
>>> folder = Path(tempfile.mkdtemp()) / "log"
>>> with Ledger.create(folder, origin="example.test/log") as ledger:
...     receipts = ledger.append([{"source": "test", "action": "bridge.create", "subject": "br0"}])
...     proof = ledger.prove_inclusion(receipts[0].index)
>>> Ledger.open(folder).entry(0)["subject"]
'br0'

Reading needs no lock and sees the signed entries. The first append locks the log: one process is its writer, and other
processes append through the writer's socket (`writer_socket.py`, `appender.py`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import Checkpoint, Signer, Verifier, new_signer, read_checkpoint
from ridgeline.audit.ledger.event import EncodedEvents, decode, encode
from ridgeline.audit.ledger.journal import has_records
from ridgeline.audit.ledger.layout import LedgerPaths, find_ledger, read_key, read_settings, write_key, write_settings
from ridgeline.audit.ledger.merkle import HASH
from ridgeline.audit.ledger.personal import Personal
from ridgeline.audit.ledger.tiles import WIDTH, Tiles, check_continues, read_bundle
from ridgeline.audit.ledger.writer import CHECKPOINT_S, Writer
from ridgeline.audit.ledger.writer_socket import WriterSocket
from ridgeline.errors import InputError, Locked, RidgelineError, StoreError, Unverified
from ridgeline.store import StrPath, explain_errors, get_owner, sync_folder

if TYPE_CHECKING:
    from ridgeline.audit.ledger.verify import Report


class Ledger:
    """An open log. `Ledger.create` makes one, `Ledger.open` opens one; close it, or use it in a `with` block."""

    def __init__(self, paths: LedgerPaths, verifier: Verifier, signer: Signer | None, checkpoint_s: float) -> None:
        self.path = paths.log
        self.verifier = verifier
        self._paths, self._signer, self._checkpoint_s = paths, signer, checkpoint_s
        self._tiles = Tiles(paths.log)
        self._writer: Writer | None = None
        self._personal: Personal | None = None
        self._opening = threading.Lock()
        self._checkpoint_cache: tuple[bytes, Checkpoint] = b"", Checkpoint(verifier.name, 0, merkle.EMPTY)
        self._closed = False

    @classmethod
    def create(
        cls, path: StrPath, origin: str, key: Signer | StrPath | None = None, *, checkpoint_s: float = CHECKPOINT_S
    ) -> Self:
        """Create a log in the new or empty folder `path`.

        origin        the name of the log, like example.com/audit; its key has the same name
        key           a key file, or a `Signer` that is not stored; by default a new key in the private folder
        checkpoint_s  a signed checkpoint covers an append after at most this many seconds

        Raises `InputError` if `path` is not empty or the key does not fit.
        """
        paths = LedgerPaths(Path(path).absolute())
        if (paths.log.exists() and (not paths.log.is_dir() or any(paths.log.iterdir()))) or paths.settings.exists():
            raise InputError(f"{path} exists already; open it, or choose another name.")
        key_file = None if key is None or isinstance(key, Signer) else Path(key).absolute()
        signer = key if isinstance(key, Signer) else read_key(key_file) if key_file else new_signer(origin)
        if signer.name != origin:
            raise InputError(f"the key is named '{signer.name}' and the log '{origin}'; a log's key bears its name.")
        if key_file is not None and paths.log.resolve() in key_file.resolve().parents:
            raise InputError(f"the key {key_file} lies in the log, which may be public; choose another place.")
        with explain_errors(paths.log):
            paths.log.parent.mkdir(parents=True, exist_ok=True)
            paths.private.mkdir(mode=0o700, exist_ok=True)
            if key is None:
                write_key(paths.key, signer)
            paths.log.mkdir(exist_ok=True)
            sync_folder(paths.log.parent)
            write_settings(paths, signer.verifier, key_file)
        ledger = cls(paths, signer.verifier, signer, checkpoint_s)
        ledger._open_writer()
        return ledger

    @classmethod
    def open(
        cls,
        path: StrPath,
        *,
        key: Signer | StrPath | None = None,
        verifier: Verifier | None = None,
        checkpoint_s: float = CHECKPOINT_S,
    ) -> Self:
        """Open a log for reading, and for appending if its key is available.

        key           a key file or a `Signer`, if the key is not in the log's private folder
        verifier      the public key, to read a copy of a log without its private folder
        checkpoint_s  a signed checkpoint covers an append after at most this many seconds

        If a writer was killed, this first moves the entries of its journal into the log. Raises `InputError` if there
        is no log, `Unverified` if `verifier` is not the log's key.
        """
        paths = find_ledger(path)
        known = read_settings(paths)[0] if verifier is None or paths.settings.exists() else verifier
        if verifier is not None and verifier != known:
            raise Unverified(
                "wrong key", f"{path} is signed by {known}, which is not the key {verifier} that was given."
            )
        signer = key if isinstance(key, Signer) else read_key(Path(key)) if key is not None else None
        if signer is not None and signer.verifier != known:
            raise InputError(f"the key of {signer.verifier} is not the key of {path}, which is {known}.")
        ledger = cls(paths, known, signer, checkpoint_s)
        ledger._repair()
        return ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except StoreError:  # it must not hide the first error; the next writer signs what is recorded
            if error is None:
                raise

    def close(self) -> None:
        """Sign everything that was appended, sync it, and release the lock."""
        with self._opening:
            self._closed = True
            writer, self._writer = self._writer, None
        if writer is not None:
            self._finalizer()

    @property
    def origin(self) -> str:
        return self.verifier.name

    @property
    def size(self) -> int:
        """The number of entries: durable ones for the writer, signed ones for readers."""
        return self._writer.size if self._writer is not None else self.checkpoint().size

    def append(
        self, events: Iterable[Mapping[str, Any]] | EncodedEvents, positions: Mapping[str, Any] | None = None
    ) -> Receipts:
        """Append events; they are on the disk when this returns. After an error none of them is in the log.

        events     mappings with `action` and `source`, optionally `time` (ns since 1970), `actor`, `subject`,
                   `attributes`; personal fields are encrypted if the log has a policy (`personal.py`), but not those of
                   `EncodedEvents`
        positions  source → its position (JSON) after these events, for `get_position`; stored in the same commit, so
                   after a crash both are there, or neither

        Returns one receipt per event. Raises `InputError` for a bad event, `StoreError` if the log cannot be written.
        """
        encoded = events if isinstance(events, EncodedEvents) else encode(self._encrypt(events))
        writer = self._open_writer()
        if encoded.count or positions:
            first, size = writer.append(encoded, positions)
        else:
            first = size = writer.size
        return Receipts(first, encoded.hashes, size)

    @property
    def personal(self) -> Personal:
        """Encrypts and decrypts the personal fields of this log's events."""
        if self._personal is None:
            self._personal = Personal(self._paths, self.origin)
        return self._personal

    def reload_policy(self) -> None:
        """Read again which fields are personal."""
        self._personal = None

    def _encrypt(self, events: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
        if not self.personal.policy or isinstance(events, Mapping | str | bytes):  # the latter are refused
            return events
        return self.personal.encrypt(list(events))

    def get_position(self, source: str) -> Any:
        """Return the position that the last append of `source` carried; None if there was none."""
        return self._open_writer().get_position(source)

    def checkpoint(self) -> Checkpoint:
        """Return the newest checkpoint with its signature verified; the writer first signs its current size."""
        if self._writer is not None:
            return self._writer.publish()
        with explain_errors(self._paths.checkpoint):
            data = self._paths.checkpoint.read_bytes()
        if data != self._checkpoint_cache[0]:  # verify the signature of the same bytes only once
            self._checkpoint_cache = data, read_checkpoint(data, self.verifier, str(self._paths.checkpoint))
        return self._checkpoint_cache[1]

    def entry(self, index: int) -> dict[str, Any]:
        """Return event `index`."""
        return next(self.entries(index, index + 1))

    def raw(self, index: int) -> bytes:
        """Return the bytes of entry `index`, as they were hashed."""
        return next(self.raw_entries(index, index + 1))[1]

    def entries(self, start: int = 0, end: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield events `start` to `end` (not included), in order; raise `Unverified` where payloads were pruned."""
        for index, raw in self.raw_entries(start, end):
            yield self.load_event(decode(raw, f"entry {index}"))

    def raw_entries(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield (index, bytes) of entries; each entry is proved to lead to the signed root."""
        checkpoint = self.checkpoint()
        end = checkpoint.size if end is None else end
        if not 0 <= start <= end <= checkpoint.size:
            raise InputError(f"entries {start} to {end} do not exist: {self.path} has {checkpoint.size}.")
        for number in range(start // WIDTH, -(-end // WIDTH)):
            first = number * WIDTH
            entries = read_bundle(self._tiles, checkpoint, number)
            for k in range(max(start - first, 0), min(end - first, WIDTH)):
                yield first + k, entries[k]

    def leaf(self, index: int) -> bytes:
        """Return the leaf hash of entry `index`, proved to lead to the signed root. Pruning does not remove it."""
        now = self._get_checkpoint(index + 1)
        if not 0 <= index < now.size:
            raise InputError(f"there is no entry {index} in {self.path}: it has {now.size} entries.")
        node = self._tiles.node(now.size)
        leaf, path = node(0, index), merkle.inclusion_path(index, now.size, node)
        if merkle.root_from_inclusion(index, now.size, leaf, path) != now.root:
            raise Unverified(
                "altered",
                f"the tiles of entry {index} do not lead to the signed root; see: ridgeline audit verify.",
            )
        return leaf

    def prove_inclusion(self, index: int, size: int | None = None) -> list[bytes]:
        """Return the hashes that lead from entry `index` to the root of the first `size` entries, leaf to root.

        `size` is the size of the newest checkpoint by default.
        """
        covering = self._get_checkpoint(index + 1 if size is None else size).size
        size = covering if size is None else size
        if not 0 <= index < size <= covering:
            raise InputError(f"entry {index} of {size} cannot be proved: {self.path} has {covering} entries.")
        return merkle.inclusion_path(index, size, self._tiles.node(covering))

    def prove_consistency(self, old: int, new: int) -> list[bytes]:
        """Return the hashes that prove that the first `new` entries begin with the first `old` entries."""
        covering = self._get_checkpoint(new).size
        if not 0 <= old <= new <= covering:
            raise InputError(f"{old} to {new} entries cannot be proved: {self.path} has {covering} entries.")
        return merkle.consistency_path(old, new, self._tiles.node(covering))

    def root(self, size: int) -> bytes:
        """Return the root of the first `size` entries, proved to be the beginning of the signed log."""
        now = self._get_checkpoint(size)
        if not 0 <= size <= now.size:
            raise InputError(f"{self.path} has no root at {size}: it has {now.size} entries.")
        root = merkle.root(size, self._tiles.node(now.size))
        check_continues(Checkpoint(self.origin, size, root), now, self._tiles, "its tiles")
        return root

    def verify(self, full: bool = True) -> Report:
        """Verify the log against its signature; raise `Unverified` with the findings. `full` reads every entry."""
        from ridgeline.audit.ledger.verify import verify

        if self._writer is not None:
            self._writer.publish()
        return verify(self.path, self.verifier, full=full)

    def prune(self, before: int, *, by: str, reason: str = "") -> int:
        """Remove the payloads of entries older than `before` (ns since 1970); return their number (`retention.py`).

        by, reason  the log records actor and reason for ever
        """
        from ridgeline.audit.ledger.retention import prune

        return prune(self._paths, self._open_writer(), before, by, reason)

    def _open_writer(self) -> Writer:
        if self._writer is not None:
            return self._writer
        with self._opening:  # threads that append first at the same time share one writer
            if self._closed:
                raise StoreError(f"{self.path} is closed; open it anew.")
            if self._writer is None:
                signer = self._signer if self._signer is not None else self._load_key()
                writer = Writer(self._paths, signer, self._checkpoint_s)
                writer_socket = WriterSocket(self._paths, writer)
                self._finalizer = weakref.finalize(
                    self, _close_writer, writer, writer_socket
                )  # runs at exit and on garbage collection too
                self._writer, self._signer = writer, signer
            return self._writer

    def _load_key(self) -> Signer:
        _, key_file = read_settings(self._paths)
        path = key_file or self._paths.key
        if not path.exists():
            raise InputError(f"the key of {self.path} is not at {path}; give it with key= or --key.")
        signer = read_key(path)
        if signer.verifier != self.verifier:
            raise InputError(f"the key at {path} is not the key of {self.path}, which is {self.verifier}.")
        return signer

    def _repair(self) -> None:
        """If no process writes the log but a journal has records, its writer was killed: move them into the log."""
        if not any(has_records(self._paths.journal(k)) for k in range(2)) or get_owner(self._paths.lock) is not None:
            return
        try:
            signer = self._signer if self._signer is not None else self._load_key()
        except RidgelineError:
            return  # a reader without the key sees what is signed
        try:
            Writer(self._paths, signer, self._checkpoint_s).close()
        except Locked:
            return  # another process or thread repairs it, or writes it by now
        except StoreError as error:
            # The disk is full or read-only: the signed entries can still be read.
            if not isinstance(error.__cause__, OSError):
                raise

    def _get_checkpoint(self, size: int) -> Checkpoint:
        """Return a checkpoint that covers `size` entries, or the newest one."""
        if self._writer is not None:
            known = self._writer.checkpoint
            return known if size <= known.size else self._writer.publish()
        return self.checkpoint()

    def load_event(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return the event; if its entry refers to a file beside the log, read that file."""
        stored = event.get("stored")
        if stored is None:
            return event
        path = self._paths.blob(stored["sha256"])
        with explain_errors(path):
            data = path.read_bytes()
        if sha256(data).hexdigest() != stored["sha256"]:
            raise Unverified("altered", f"blob/{path.name} was altered: it does not have the SHA-256 of its name.")
        return decode(data, f"blob/{path.name}")


def _close_writer(writer: Writer, writer_socket: WriterSocket) -> None:
    writer_socket.close()
    writer.close()


@dataclass(frozen=True)
class Receipt:
    """The place of one appended event; every checkpoint of at least `checkpoint_size` entries covers it."""

    index: int
    leaf_hash: bytes
    checkpoint_size: int


class Receipts(Sequence[Receipt]):
    """The receipts of one append, a sequence; each receipt is made on access."""

    def __init__(self, first: int, hashes: bytes, checkpoint_size: int) -> None:
        self.first, self.hashes, self.checkpoint_size = first, hashes, checkpoint_size

    def __len__(self) -> int:
        return len(self.hashes) // HASH

    @overload
    def __getitem__(self, at: int) -> Receipt: ...
    @overload
    def __getitem__(self, at: slice) -> list[Receipt]: ...
    def __getitem__(self, at: int | slice) -> Receipt | list[Receipt]:
        if isinstance(at, slice):
            return [self[k] for k in range(*at.indices(len(self)))]
        k = range(len(self))[at]
        return Receipt(self.first + k, self.hashes[k * HASH : (k + 1) * HASH], self.checkpoint_size)
