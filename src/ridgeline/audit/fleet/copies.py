"""The copies of a fleet: one ledger per origin, byte for byte, and the collector's own ledger around them.

FLEET/                   the collector's own ledger: alerts, starts, stops
FLEET/ORIGIN/            the copy of one log, with / as +; any tlog client can verify it
FLEET.private/           mode 0700
  key, lock, journal.0 … those of the own ledger
  collector              the collector's key: it identifies the collector, and co-signs checkpoints
  fleet.json             the public key of every origin that was ever trusted
  received.0, received.1 acknowledged entries that are not yet in the copies, on the disk
  collected.json         the state of every copy when all of them were last brought to the disk

A commit of entries from many origins is one record of a journal: one write and one fdatasync. Tiles and checkpoints of
the copies follow; `sync` brings all of them to the disk, notes their state and clears the older journal. After a crash
the journals rebuild what the copies lost.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import (
    COSIGNATURE,
    Checkpoint,
    Note,
    Signer,
    Verifier,
    new_signer,
    parse_verifier,
    read_checkpoint,
)
from ridgeline.audit.ledger.event import decode
from ridgeline.audit.ledger.journal import Journal
from ridgeline.audit.ledger.layout import LedgerPaths, read_key, write_key
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.merkle import EMPTY, HASH
from ridgeline.audit.ledger.tile_store import TileStore
from ridgeline.audit.ledger.tiles import Edge, Growth, Tiles, extend_edge, load_edge, split_bundle
from ridgeline.errors import InputError, StoreError, Unverified
from ridgeline.native import bundle_hashes
from ridgeline.store import explain_errors, publish, sync_filesystem, sync_folder

# Each sync flushes a few files per host, and commits wait for the disk meanwhile: so it must be seldom with many hosts.
TURN = 64 << 20  # bytes in a journal before the other one is used and the copies are synced
MOST = 192 << 20  # bytes in a journal before commits wait
_RESERVED = frozenset(("checkpoint", "tile", "blob", "witness"))  # of the own ledger
_LONGEST = 200  # bytes of the name of a folder
_STORED_MARK = b',"stored":{"bytes":'


@dataclass(frozen=True)
class FleetPaths:
    """The paths of one fleet; `fleet` is its folder."""

    fleet: Path

    @property
    def local(self) -> LedgerPaths:
        return LedgerPaths(self.fleet)

    @property
    def key(self) -> Path:
        return self.local.private / "collector"

    @property
    def settings(self) -> Path:
        return self.local.private / "fleet.json"

    @property
    def collected(self) -> Path:
        return self.local.private / "collected.json"

    def journal(self, number: int) -> Path:
        return self.local.private / f"received.{number}"

    def copy(self, origin: str) -> Path:
        return self.fleet / origin.replace("/", "+")

    def index(self, origin: str) -> Path:
        """The folder of the meaning index of one copy."""
        return self.local.private / "meaning" / origin.replace("/", "+")


def is_fleet(path: Path) -> bool:
    """Whether `path` is the folder of a collector."""
    return FleetPaths(path.absolute()).settings.exists()


def check_origin(origin: str) -> str:
    """Return `origin` if it can be the name of a folder; else raise `InputError`."""
    name = origin.replace("/", "+")
    bad = name in _RESERVED or name.startswith((".", "+")) or name.endswith(".private") or "\0" in name
    if bad or len(name.encode()) > _LONGEST:
        raise InputError(
            f"the log '{origin[:100]}' cannot be collected under that name; a name is like host1.test/audit."
        )
    return origin


def read_origins(paths: FleetPaths) -> dict[str, Verifier]:
    """Read the key of every origin that was ever trusted."""
    try:
        words = json.loads(paths.settings.read_text(encoding="utf-8"))
        return {str(origin): parse_verifier(str(key)) for origin, key in words["origins"].items()}
    except FileNotFoundError:
        raise InputError(f"{paths.fleet} is no fleet; ridgeline audit collect makes one.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StoreError(f"{paths.settings} is damaged; restore it from a copy.") from None


@dataclass
class Copy:
    """The copy of one log: `edge` is what it holds; `seen` is the newest checkpoint that was proved to continue it."""

    key: Verifier
    folder: Path
    edge: Edge = field(default_factory=Edge)
    seen: Checkpoint = field(default_factory=lambda: Checkpoint("", 0, EMPTY))
    cosigned: Note | None = None  # of `seen`, once all its entries are here
    full: dict[str, bytes] = field(default_factory=dict)  # full tiles to write
    dirty: bool = False
    state: threading.Lock = field(default_factory=threading.Lock)  # guards edge, seen, cosigned, full, dirty
    writing: threading.Lock = field(default_factory=threading.Lock)  # one thread writes its files
    store: TileStore | None = None
    written: dict[str, Any] | None = None  # the state of its files, as `collected.json` has it

    @property
    def size(self) -> int:
        return self.edge.size

    @property
    def complete(self) -> bool:
        return self.edge.size == self.seen.size

    def apply(self, growth: Growth, seen: Checkpoint) -> None:
        """Take over what was committed; it is co-signed when its files are written."""
        with self.state:
            self.edge, self.seen, self.cosigned, self.dirty = growth.edge, seen, None, True
            self.full.update(growth.full)


@dataclass(frozen=True)
class ReceivedBatch:
    """Entries of one origin, checked, to be committed: `entries` as in a bundle, empty if only hashes are known."""

    copy: Copy
    first: int
    entries: bytes
    hashes: bytes
    note: str | None  # the newest checkpoint, if it is new


class Copies:
    """All copies of a fleet, open for its collector, and the collector's own ledger.

    folder   FLEET; created if it does not exist
    trusted  the keys of the logs that may send
    name     the name of a new collector, for its keys
    """

    def __init__(self, folder: Path, trusted: Sequence[Verifier], name: str) -> None:
        self.paths = FleetPaths(folder.absolute())
        keys = _merge_keys(self.paths, trusted)
        self.ledger = (
            Ledger.open(folder) if self.paths.local.settings.exists() else Ledger.create(folder, check_origin(name))
        )
        try:
            self.ledger.append([])  # takes the lock: one collector writes a fleet
            if not self.paths.key.exists():
                write_key(self.paths.key, new_signer(self.ledger.origin, COSIGNATURE))
            self.signer: Signer = read_key(self.paths.key)
            words = {"format": 1, "origins": {origin: str(key) for origin, key in keys.items()}}
            with publish(self.paths.settings) as tmp:
                tmp.write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")
            self.by_origin = {origin: Copy(key, self.paths.copy(origin)) for origin, key in keys.items()}
            self._journals = [Journal(self.paths.journal(k)) for k in range(2)]
            self._received = 0  # entries since the start, which the journals count
            self._recover()
        except BaseException:
            self.ledger.close()
            raise

    def close(self) -> None:
        """Bring everything to the disk and release the lock."""
        try:
            self.turn()
            self.sync()
            for copy in self.by_origin.values():
                with copy.writing:
                    if copy.store is not None:
                        copy.store.close()
        finally:
            for journal in self._journals:
                journal.close()
            self.ledger.close()

    @property
    def backlog(self) -> int:
        """Bytes in the journal that takes commits."""
        return self._journals[0].end

    def commit(self, batches: Sequence[ReceivedBatch]) -> None:
        """Bring batches to the disk: they are acknowledged after that. One thread at a time; `Copy.apply` follows."""
        rows = [
            [
                batch.copy.key.name,
                batch.first,
                len(batch.hashes) // HASH,
                batch.note,
                None if batch.entries else base64.b64encode(batch.hashes).decode(),
            ]
            for batch in batches
        ]
        stored = [batch for batch in batches if batch.entries]
        entries = b"".join(batch.entries for batch in stored)
        hashes = b"".join(batch.hashes for batch in stored)
        count = len(hashes) // HASH
        self._journals[0].append(self._received, count, entries, hashes, {"batches": rows})
        self._received += count

    def turn(self) -> bool:
        """Use the other journal from now on, if it is empty; no commit may run. Returns whether a sync must follow."""
        if not self._journals[1].empty:
            return True  # the last sync failed: finish that first
        if not self._journals[0].used:
            return False
        self._journals[1].begin(self._journals[0].number + 1, self._received)
        self._journals.reverse()
        return True

    def sync(self) -> None:
        """Write all copies, bring them to the disk, note their state, and clear the older journal."""
        for copy in self.by_origin.values():
            self.write(copy)
        stores = [copy for copy in self.by_origin.values() if copy.store is not None]
        # Take the states before the sync: what is written during it may not be on the disk.
        states = {copy.key.name: copy.written for copy in stores if copy.written is not None}
        with explain_errors(self.paths.fleet):
            sync_filesystem(self.paths.fleet)
        for copy in stores:
            with copy.writing:
                if copy.store is not None and states.get(copy.key.name) is copy.written:
                    copy.store.mark_synced()
        self._collected.update({origin: state for origin, state in states.items() if state is not None})
        with publish(self.paths.collected) as tmp:
            tmp.write_text(json.dumps({"format": 1, "copies": self._collected}), encoding="utf-8")
        self._journals[1].clear()

    def write(self, copy: Copy) -> None:
        """Write the files of one copy, so that readers see what was committed; they are not yet on the disk."""
        with copy.writing:
            with copy.state:
                if not copy.dirty:
                    return
                edge, seen = copy.edge, copy.seen
                if copy.cosigned is None and copy.complete:
                    copy.cosigned = self.cosign(seen)
                cosigned = copy.cosigned
                full, copy.full, copy.dirty = copy.full, {}, False
            try:
                if copy.store is None:
                    with explain_errors(copy.folder):
                        copy.folder.mkdir(exist_ok=True)
                        sync_folder(copy.folder.parent)
                    copy.store = TileStore(LedgerPaths(copy.folder))
                copy.store.put(full)
                copy.store.put(edge.partials())
                if cosigned is not None and edge.size == seen.size:
                    copy.store.put({"checkpoint": str(cosigned).encode()})
            except BaseException:
                with copy.state:
                    copy.full, copy.dirty = {**full, **copy.full}, True
                raise
            copy.written = {
                "size": edge.size,
                "root": base64.b64encode(edge.root()).decode(),
                "seen": str(seen),
                "cosigned": str(cosigned) if cosigned is not None else (copy.written or {}).get("cosigned"),
            }

    def root(self, copy: Copy, size: int) -> bytes:
        """Return the root of the first `size` entries that a copy holds."""
        self.write(copy)
        return merkle.root(size, Tiles(copy.folder).node(copy.size))

    def store_blobs(self, copy: Copy, blobs: Mapping[str, bytes]) -> None:
        """Write files of events that are too large for an entry; they are on the disk when this returns."""
        for digest, data in blobs.items():
            path = LedgerPaths(copy.folder).blob(digest)
            if not path.exists():
                with explain_errors(path):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    sync_folder(path.parent.parent)
                with publish(path) as tmp:
                    tmp.write_bytes(data)

    def cosign(self, checkpoint: Checkpoint) -> Note:
        """Return the checkpoint's note with the signature of its log and the co-signature of this collector."""
        note = checkpoint.note
        signatures = [s for s in note.signatures if s.name == checkpoint.origin] if note is not None else []
        return Note(checkpoint.text(), (*signatures, self.signer.cosign(checkpoint.text(), int(time.time()))))

    def _recover(self) -> None:
        """Restore every acknowledged entry: the copies as they were synced, then the records of the journals."""
        self._collected = _read_collected(self.paths)
        for origin, state in self._collected.items():
            copy = self.by_origin.get(origin)
            if copy is not None:
                _load_copy(copy, state, self.paths)
        read = sorted(((journal.read(), journal) for journal in self._journals), key=lambda pair: pair[1].number)
        for records, journal in read:
            for record in records:
                self._replay(record.entries, record.positions.get("batches", []), journal)
        for copy in self.by_origin.values():
            if copy.size == 0 and (copy.folder / "checkpoint").exists():
                raise StoreError(
                    f"{self.paths.collected} does not know {copy.folder}, which holds a log; restore the private "
                    "folder, or move that copy away to collect it anew."
                )
            self.write(copy)
            if copy.store is not None:
                copy.store.repair_partials(copy.edge)
        self._journals = [journal for _, journal in read]
        self.sync()
        number = self._journals[1].number
        for journal in self._journals:
            journal.clear()
        self._journals[0].begin(number + 1, 0)

    def _replay(self, entries: bytes, batches: Iterable[Sequence[Any]], journal: Journal) -> None:
        ends = [0]
        for entry in split_bundle(entries, str(journal.path)):
            ends.append(ends[-1] + 2 + len(entry))
        at = 0
        for origin, first, count, note, hashes in batches:
            part, start = b"", at
            if hashes is None:
                at += count
                part = entries[ends[start] : ends[at]]
            copy = self.by_origin.get(origin)
            if copy is None or first + count <= copy.size:
                continue  # it was in the copy when that was synced
            if first != copy.size:
                raise StoreError(
                    f"{journal.path} goes on at entry {first} of {origin}, but {copy.size} are here; restore it."
                )
            leaves = bundle_hashes(part) if hashes is None else base64.b64decode(hashes)
            growth = extend_edge(copy.edge, part, leaves)
            seen = read_checkpoint(note.encode(), copy.key, str(journal.path)) if note is not None else copy.seen
            copy.apply(growth, seen)


def _merge_keys(paths: FleetPaths, trusted: Sequence[Verifier]) -> dict[str, Verifier]:
    """Join the trusted keys with those of earlier starts; a log has one key."""
    keys = read_origins(paths) if paths.settings.exists() else {}
    names = {origin.replace("/", "+"): origin for origin in keys}
    for key in trusted:
        if key.kind == COSIGNATURE:
            raise InputError(f"--trust {key} is the key of a witness or collector; give the keys of logs.")
        known = keys.setdefault(check_origin(key.name), key)
        if known != key:
            raise InputError(
                f"the log {key.name} has two keys, {known} and {key}; trust one. To collect a new log of that name, "
                "collect into a new folder."
            )
        if names.setdefault(key.name.replace("/", "+"), key.name) != key.name:
            raise InputError(f"the logs {key.name} and {names[key.name.replace('/', '+')]} would share a folder.")
    return keys


def _read_collected(paths: FleetPaths) -> dict[str, dict[str, Any]]:
    try:
        words = json.loads(paths.collected.read_text(encoding="utf-8"))
        copies = words["copies"]
        if isinstance(copies, dict):
            return copies
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError):
        pass
    raise StoreError(f"{paths.collected} is damaged; restore it from a copy.")


def read_collected(paths: FleetPaths, keys: Mapping[str, Verifier]) -> dict[str, Checkpoint]:
    """Read by origin the newest checkpoint of which the collector had all entries on the disk."""
    states = _read_collected(paths)
    checkpoints = {
        origin: _read_cosigned(states[origin], key, paths) for origin, key in keys.items() if origin in states
    }
    return {origin: checkpoint for origin, checkpoint in checkpoints.items() if checkpoint is not None}


def _read_cosigned(state: Mapping[str, Any], key: Verifier, paths: FleetPaths) -> Checkpoint | None:
    cosigned = state["cosigned"]
    return read_checkpoint(cosigned.encode(), key, str(paths.collected)) if cosigned is not None else None


def _load_copy(copy: Copy, state: Mapping[str, Any], paths: FleetPaths) -> None:
    """Load what a copy held when it was last synced; its tiles must still lead to that root."""
    try:
        edge = load_edge(Tiles(copy.folder), int(state["size"])) if state["size"] else Edge()
        if base64.b64encode(edge.root()).decode() != state["root"]:
            raise Unverified("altered", "its tiles do not give the root that the collector noted")
        seen = read_checkpoint(state["seen"].encode(), copy.key, str(paths.collected)) if state["size"] else copy.seen
        cosigned = _read_cosigned(state, copy.key, paths)
        copy.cosigned = cosigned.note if cosigned is not None and cosigned.text() == seen.text() else None
    except Unverified as error:
        raise StoreError(
            f"{copy.folder} is not what the collector stored ({str(error).rstrip('.')}); restore it from a copy."
        ) from None
    copy.edge, copy.seen, copy.written = edge, seen, dict(state)


def find_blobs(entries: bytes) -> list[str]:
    """Return the SHA-256 of every file that entries (as in a bundle) refer to, in order."""
    if _STORED_MARK not in entries:
        return []
    digests = dict[str, None]()
    for entry in split_bundle(entries, "the entries"):
        if _STORED_MARK in entry:
            with suppress(Unverified):  # not an event of ours
                event = decode(entry)
                if "stored" in event:
                    digests[str(event["stored"]["sha256"])] = None
    return list(digests)


def check_blobs(entries: bytes, blobs: Mapping[str, bytes]) -> None:
    """Raise `Unverified` unless `blobs` has exactly the files that the entries refer to."""
    if set(find_blobs(entries)) != set(blobs) or any(sha256(data).hexdigest() != name for name, data in blobs.items()):
        raise Unverified("altered", "the files of its large events are not those that its entries name")
