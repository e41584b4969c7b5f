"""A ledger: an append-only Merkle log of events on plain files, which any tlog client can verify.

>>> import tempfile
>>> from pathlib import Path
>>> folder = Path(tempfile.mkdtemp()) / "log"
>>> with Ledger.create(folder, origin="example.test/log") as ledger:
...     receipts = ledger.append([{"source": "test", "action": "bridge.create", "subject": "br0"}])
...     proof = ledger.prove_inclusion(receipts[0].index)
>>> Ledger.open(folder).entry(0)["subject"]
'br0'

Reading takes no lock and sees what is signed. The first append takes the lock, which one process at a time can hold;
others append through that one's socket (`door.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ridgeline.audit.ledger import layout as homes
from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import Checkpoint, read_checkpoint
from ridgeline.audit.ledger.event import Encoded, decode, encode
from ridgeline.audit.ledger.journal import holds_something
from ridgeline.audit.ledger.layout import Home
from ridgeline.audit.ledger.note import Signer, Verifier, new_signer
from ridgeline.audit.ledger.reading import read_bundle
from ridgeline.audit.ledger.receipts import Receipts
from ridgeline.audit.ledger.report import continues
from ridgeline.audit.ledger.tiles import WIDTH, Tiles
from ridgeline.audit.ledger.writer import CHECKPOINT_S, Writer
from ridgeline.audit.ledger.writer_socket import Door
from ridgeline.errors import InputError, RidgelineError, StoreError, Unverified
from ridgeline.store import StrPath, explained, owner, sync_folder

if TYPE_CHECKING:
    from ridgeline.audit.ledger.verify import Verified


class Ledger:
    """One log, open; make it with `create` or `open`, and close it (or use it as a context)."""

    def __init__(self, home: Home, verifier: Verifier, signer: Signer | None, checkpoint_s: float) -> None:
        self.path = home.log
        self.verifier = verifier
        self._home, self._signer, self._checkpoint_s = home, signer, checkpoint_s
        self._tiles = Tiles(home.log)
        self._writer: Writer | None = None
        self._seen: tuple[bytes, Checkpoint] = b"", Checkpoint(verifier.name, 0, merkle.EMPTY)
        self._closed = False

    @classmethod
    def create(
        cls, path: StrPath, origin: str, key: Signer | StrPath | None = None, *, checkpoint_s: float = CHECKPOINT_S
    ) -> Self:
        """Make a new log. `key`: a key file of one's own, or a Signer that is not stored; else one is made.

        `checkpoint_s`: how long after an append a signed checkpoint covers it, at most.
        """
        home = Home(Path(path).absolute())
        if (home.log.exists() and (not home.log.is_dir() or any(home.log.iterdir()))) or home.settings.exists():
            raise InputError(f"{path} is there already; open it, or choose another name.")
        own = None if key is None or isinstance(key, Signer) else Path(key).absolute()
        signer = key if isinstance(key, Signer) else homes.read_key(own) if own else new_signer(origin)
        if signer.name != origin:
            raise InputError(f"the key is named '{signer.name}' and the log '{origin}'; a log's key bears its name.")
        if own is not None and home.log.resolve() in own.resolve().parents:
            raise InputError(f"the key {own} lies in the log, which may be served to anyone; keep it elsewhere.")
        with explained(home.log):
            home.log.parent.mkdir(parents=True, exist_ok=True)
            home.private.mkdir(mode=0o700, exist_ok=True)
            if key is None:
                homes.write_key(home.key, signer)
            home.log.mkdir(exist_ok=True)
            sync_folder(home.log.parent)
            homes.write_settings(home, signer.verifier, own)
        made = cls(home, signer.verifier, signer, checkpoint_s)
        made._write()
        return made

    @classmethod
    def open(
        cls,
        path: StrPath,
        *,
        key: Signer | StrPath | None = None,
        verifier: Verifier | None = None,
        checkpoint_s: float = CHECKPOINT_S,
    ) -> Self:
        """Open a log. `key` is needed for writing where it is not the log's own file; `verifier` where the private part
        of the log is not here, for reading a copy. What a killed writer left in its journal is put into the log first.
        """
        home = homes.find(path)
        known = homes.read_settings(home)[0] if verifier is None or home.settings.exists() else verifier
        if verifier is not None and verifier != known:
            raise Unverified(
                "wrong key", f"{path} is signed by {known}, which is not the key {verifier} that was given."
            )
        signer = key if isinstance(key, Signer) else homes.read_key(Path(key)) if key is not None else None
        if signer is not None and signer.verifier != known:
            raise InputError(f"the key of {signer.verifier} is not the key of {path}, which is {known}.")
        opened = cls(home, known, signer, checkpoint_s)
        opened._repair()
        return opened

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Sign and make durable what was appended, and let go of the lock."""
        self._closed = True
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self._finalizer()
            del writer

    @property
    def origin(self) -> str:
        return self.verifier.name

    @property
    def size(self) -> int:
        """Entries that are durable, for the writer; that are signed, for everyone else."""
        return self._writer.size if self._writer is not None else self.checkpoint().size

    def append(self, events: Iterable[Mapping[str, Any]] | Encoded) -> Receipts:
        """Append events; they are on the disk when this returns. All of them or, after an error, none."""
        encoded = events if isinstance(events, Encoded) else encode(events)
        writer = self._write()
        first, size = writer.append(encoded) if encoded.count else (writer.size, writer.size)
        return Receipts(first, encoded.hashes, size)

    def checkpoint(self) -> Checkpoint:
        """The newest checkpoint, signature verified; the writer signs its present size first."""
        if self._writer is not None:
            return self._writer.publish()
        with explained(self._home.checkpoint):
            data = self._home.checkpoint.read_bytes()
        if data != self._seen[0]:  # the same bytes need no second look at their signature
            self._seen = data, read_checkpoint(data, self.verifier, str(self._home.checkpoint))
        return self._seen[1]

    def entry(self, index: int) -> dict[str, Any]:
        """One event."""
        return next(self.entries(index, index + 1))

    def raw(self, index: int) -> bytes:
        """One entry as it was hashed."""
        return next(self.raws(index, index + 1))[1]

    def entries(self, start: int = 0, end: int | None = None) -> Iterator[dict[str, Any]]:
        """Events `start` to `end` (not included), in order; those that were pruned are an error."""
        for index, raw in self.raws(start, end):
            yield self.whole(decode(raw, f"entry {index}"))

    def raws(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Entries as they were hashed, with their index; each has been proved to be the signed one."""
        checkpoint = self.checkpoint()
        end = checkpoint.size if end is None else end
        if not 0 <= start <= end <= checkpoint.size:
            raise InputError(f"entries {start} to {end} are asked for, but {self.path} has {checkpoint.size}.")
        for number in range(start // WIDTH, -(-end // WIDTH)):
            first = number * WIDTH
            found = read_bundle(self._tiles, checkpoint, number)
            for k in range(max(start - first, 0), min(end - first, WIDTH)):
                yield first + k, found[k]

    def leaf(self, index: int) -> bytes:
        """The leaf hash of one entry, proved to be the signed one; it stays when the payload is pruned."""
        now = self._covering(index + 1)
        if not 0 <= index < now.size:
            raise InputError(f"there is no entry {index} in {self.path}: it has {now.size} entries.")
        node = self._tiles.node(now.size)
        found, path = node(0, index), merkle.inclusion_path(index, now.size, node)
        if merkle.root_from_inclusion(index, now.size, found, path) != now.root:
            raise Unverified(
                "altered",
                f"the tiles of entry {index} do not lead to the signed root; ridgeline audit verify tells why.",
            )
        return found

    def prove_inclusion(self, index: int, size: int | None = None) -> list[bytes]:
        """The hashes that lead from entry `index` to the root of the first `size` entries, leaf to root.

        `size`: that of the newest checkpoint, if it is not given.
        """
        covering = self._covering(index + 1 if size is None else size).size
        size = covering if size is None else size
        if not 0 <= index < size <= covering:
            raise InputError(f"entry {index} of {size} cannot be proved: {self.path} has {covering} entries.")
        return merkle.inclusion_path(index, size, self._tiles.node(covering))

    def prove_consistency(self, old: int, new: int) -> list[bytes]:
        """The hashes that prove the first `old` entries to be the beginning of the first `new` ones."""
        covering = self._covering(new).size
        if not 0 <= old <= new <= covering:
            raise InputError(f"{old} to {new} entries cannot be proved: {self.path} has {covering} entries.")
        return merkle.consistency_path(old, new, self._tiles.node(covering))

    def root(self, size: int) -> bytes:
        """The root of the first `size` entries, proved to be the beginning of the signed log."""
        now = self._covering(size)
        if not 0 <= size <= now.size:
            raise InputError(f"{self.path} has no root at {size}: it has {now.size} entries.")
        found = merkle.root(size, self._tiles.node(now.size))
        continues(Checkpoint(self.origin, size, found), now, self._tiles, "its tiles")
        return found

    def verify(self, full: bool = True) -> Verified:
        """Check the log against its signature; raises `Unverified` with what is wrong. `full` reads every entry."""
        from ridgeline.audit.ledger.verify import verify

        if self._writer is not None:
            self._writer.publish()
        return verify(self.path, self.verifier, full=full)

    def prune(self, before: int, *, by: str, reason: str = "") -> int:
        """Remove the payloads of entries older than `before` (ns); how many. See `retention.py`."""
        from ridgeline.audit.ledger.retention import prune

        return prune(self, self._write(), before, by, reason)

    def _write(self) -> Writer:
        if self._closed:
            raise StoreError(f"{self.path} is closed; open it anew.")
        if self._writer is None:
            signer = self._signer if self._signer is not None else self._own_key()
            writer = Writer(self._home, signer, self._checkpoint_s)
            self._writer, self._signer = writer, signer
            door = Door(self._home, writer)
            self._finalizer = weakref.finalize(self, _leave, writer, door)  # also at exit, also when forgotten
        return self._writer

    def _own_key(self) -> Signer:
        _, elsewhere = homes.read_settings(self._home)
        path = elsewhere or self._home.key
        if not path.exists():
            raise InputError(f"the key of {self.path} is not at {path}; give it with key= or --key.")
        signer = homes.read_key(path)
        if signer.verifier != self.verifier:
            raise InputError(f"the key at {path} is not the key of {self.path}, which is {self.verifier}.")
        return signer

    def _repair(self) -> None:
        """If nobody writes and a journal holds something, its writer was killed: put that into the log."""
        if not any(holds_something(self._home.journal(k)) for k in range(2)) or owner(self._home.lock) is not None:
            return
        try:
            signer = self._signer if self._signer is not None else self._own_key()
        except RidgelineError:
            return  # a reader without the key sees what is signed
        try:
            Writer(self._home, signer, self._checkpoint_s).close()
        except StoreError as error:
            # Somebody else was quicker, the disk is full, or only for reading: then what is signed can still be read.
            if owner(self._home.lock) is None and not isinstance(error.__cause__, OSError):
                raise

    def _covering(self, size: int) -> Checkpoint:
        """A checkpoint that covers `size` entries, or the newest there is."""
        if self._writer is not None:
            known = self._writer.checkpoint
            return known if size <= known.size else self._writer.publish()
        return self.checkpoint()

    def whole(self, event: dict[str, Any]) -> dict[str, Any]:
        """The event itself where its entry only says where it is stored."""
        stored = event.get("stored")
        if stored is None:
            return event
        path = self._home.blob(stored["sha256"])
        with explained(path):
            data = path.read_bytes()
        if sha256(data).hexdigest() != stored["sha256"]:
            raise Unverified("altered", f"blob/{path.name} was altered: it does not have the SHA-256 of its name.")
        return decode(data, f"blob/{path.name}")


def _leave(writer: Writer, door: Door) -> None:
    door.close()
    writer.close()
