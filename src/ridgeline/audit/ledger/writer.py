"""The one writer of a log: group commit into the journal, tiles and signed checkpoints soon after.

An append is done when its record is in the journal and on the disk. Threads that come while a commit is under way wait
and go together into the next: the first of them writes for all. A thread of its own then puts tiles, signs the new
size, and empties a journal once everything in it has reached the disk as tiles. Two journals take turns, so that
appends go on meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from ridgeline.audit.ledger.checkpoint import EMPTY, Checkpoint, read_checkpoint, signed_checkpoint
from ridgeline.audit.ledger.event import Encoded
from ridgeline.audit.ledger.files import read_note
from ridgeline.audit.ledger.group_commit import Group, Ticket
from ridgeline.audit.ledger.journal import Journal
from ridgeline.audit.ledger.layout import Home
from ridgeline.audit.ledger.note import Signer
from ridgeline.audit.ledger.report import continues
from ridgeline.audit.ledger.retention import finish as finish_pruning
from ridgeline.audit.ledger.tile_store import Shelf
from ridgeline.audit.ledger.tiles import Tiles
from ridgeline.audit.ledger.tree import Edge, grown, load_edge
from ridgeline.errors import RidgelineError, StoreError, Unverified
from ridgeline.store import lock, publish, sync_folder

CHECKPOINT_S = 1.0
_TURN = 8 << 20  # bytes in a journal before the other takes over
_MOST = 32 << 20  # bytes in a journal before appends wait for it to be emptied; memory follows it
_SETTLE_S = 60.0  # a slow log settles by the clock: outgrown partial tiles are only removed then
_RETRY_S = 1.0


class Writer:
    """Holds the lock of a log; made by `Ledger` when it first writes."""

    def __init__(self, home: Home, signer: Signer, checkpoint_s: float = CHECKPOINT_S) -> None:
        self._home, self._signer, self._every = home, signer, checkpoint_s
        self._pid = os.getpid()
        self._group = Group(self._commit)
        self._commit_lock = threading.Lock()  # of the journals and `_fresh`
        self._publish_lock = threading.RLock()  # of the shelf and the edge
        self._fresh: list[tuple[bytes, bytes]] = []  # committed, not yet in tiles
        self._wake = threading.Condition()
        self._stop = self._hurry = False
        self._trouble: RidgelineError | None = None
        self._journals: list[Journal] = []
        self._size, self._settled = 0, time.monotonic()
        self._edge, self._checkpoint = Edge(), signed_checkpoint(signer.name, 0, EMPTY, signer)
        self._stack = ExitStack()
        self._stack.enter_context(lock(home.lock))
        try:
            self._shelf = Shelf(home)
            for k in range(2):
                self._journals.append(Journal(home.journal(k)))
            self._recover()
            finish_pruning(home, self._shelf)
        except BaseException:
            for journal in self._journals:
                journal.close()
            self._stack.close()
            raise
        self._thread = threading.Thread(target=self._run, name="ledger-publisher", daemon=True)
        self._thread.start()

    @property
    def size(self) -> int:
        """Entries that are durable."""
        return self._size

    @property
    def checkpoint(self) -> Checkpoint:
        """The newest signed checkpoint."""
        return self._checkpoint

    def append(self, encoded: Encoded) -> tuple[int, int]:
        """Commit; the index of the first entry and the size of the log after this commit."""
        if os.getpid() != self._pid:
            raise StoreError(f"{self._home.log} is open in the parent of this process; open it anew to append.")
        ticket = self._group.submit(encoded)
        return ticket.first, ticket.size

    def publish(self) -> Checkpoint:
        """Put tiles for all that is committed and sign their size."""
        with self._publish_lock:
            self._publish(settle=False)
            return self._checkpoint

    def prune(self, remove: Callable[[Shelf], None]) -> None:
        """Take payloads away while nothing is being published."""
        with self._publish_lock:
            self._publish(settle=True)  # the event that says so must outlast what it takes away
            remove(self._shelf)
            self._shelf.settle()

    def close(self) -> None:
        """Publish, make everything durable, let go of the lock."""
        if self._group.closed or os.getpid() != self._pid:
            return
        self._group.close()
        with self._wake:
            self._stop = True
            self._wake.notify_all()
        self._thread.join()
        try:
            with self._publish_lock:
                self._publish(settle=True)
                self._shelf.close()
                with self._commit_lock:
                    if self._size == self._edge.size:  # all is in tiles, on the disk: the journals may shrink
                        self._journals[0].clear()
        finally:
            with self._commit_lock:
                for journal in self._journals:
                    journal.close()
            self._stack.close()

    def _commit(self, batch: list[Ticket]) -> None:
        encoded = [ticket.encoded for ticket in batch]
        if len(encoded) == 1:
            entries, hashes = encoded[0].entries, encoded[0].hashes
        else:
            entries, hashes = b"".join(e.entries for e in encoded), b"".join(e.hashes for e in encoded)
        self._store_large(encoded)
        count = sum(e.count for e in encoded)
        self._make_room(len(entries))
        with self._commit_lock:
            self._journals[0].append(self._size, count, entries, hashes)
            first, self._size = self._size, self._size + count
            self._fresh.append((entries, hashes))
            full = self._journals[0].end > _TURN
        for ticket in batch:
            ticket.first, ticket.size = first, self._size
            first += ticket.encoded.count
        if full and not self._hurry:
            with self._wake:
                self._hurry = True
                self._wake.notify_all()

    def _store_large(self, encoded: list[Encoded]) -> None:
        for _, digest, whole in (large for e in encoded for large in e.large):
            path = self._home.blob(digest)
            if not path.exists():
                if not path.parent.exists():
                    path.parent.mkdir()
                    sync_folder(path.parent.parent)
                with publish(path) as tmp:
                    tmp.write_bytes(whole)

    def _make_room(self, more: int) -> None:
        """Wait for a journal that has grown too long; say why if it cannot be emptied."""
        while self._journals[0].end + more > _MOST and self._journals[0].end > _TURN:
            if self._trouble is not None:
                raise self._trouble
            with self._wake:
                self._hurry = True
                self._wake.notify_all()
            time.sleep(0.002)

    def _run(self) -> None:
        """The publisher: soon after a commit, and at once when a journal is long."""
        while True:
            with self._wake:
                if not self._stop and not self._hurry:
                    self._wake.wait(self._every)
                if self._stop:
                    return
            try:
                with self._publish_lock:
                    self._hurry = False
                    self._publish(settle=False)
                self._trouble = None
            except RidgelineError as error:  # a full disk, say: the journal still holds everything
                self._trouble = error
                time.sleep(_RETRY_S if not self._stop else 0)

    def _publish(self, settle: bool) -> None:
        with self._commit_lock:
            fresh, self._fresh = self._fresh, []
            due = self._journals[0].used and time.monotonic() - self._settled > _SETTLE_S
            turn = settle or due or self._journals[0].end > _TURN or not self._journals[1].empty
            if turn and self._journals[1].empty:  # else an earlier settling failed: first that one
                self._journals[1].begin(self._journals[0].number + 1, self._edge.size + _count(fresh))
                self._journals.reverse()
        try:
            self._put(fresh)
        except BaseException:
            with self._commit_lock:
                self._fresh[:0] = fresh
            raise
        if turn:
            self._settle()

    def _put(self, fresh: list[tuple[bytes, bytes]]) -> None:
        if not fresh and self._checkpoint.size == self._edge.size:
            return
        more = grown(self._edge, *_joined(fresh))
        self._shelf.put(more.full)
        self._shelf.put(more.edge.partials())
        checkpoint = signed_checkpoint(self._signer.name, more.edge.size, more.edge.root(), self._signer)
        self._shelf.put_checkpoint(str(checkpoint))
        self._edge, self._checkpoint = more.edge, checkpoint

    def _settle(self) -> None:
        """Everything in tiles is on the disk after this, so the older journal is no longer needed."""
        self._shelf.settle()
        self._settled = time.monotonic()
        with publish(self._home.published) as tmp:
            tmp.write_text(str(self._checkpoint), encoding="utf-8")
        with self._commit_lock:
            self._journals[1].clear()

    def _recover(self) -> None:
        """The log as it was acknowledged: tiles up to the oldest journal, then what the journals hold."""
        held = sorted(((journal.read(), journal) for journal in self._journals), key=lambda h: h[1].number)
        live = [(records, journal) for records, journal in held if not journal.empty]
        signed, noted = self._signed(), self._noted()
        base = live[0][1].first if live else signed.size
        if signed.size < max(base, noted.size):
            raise StoreError(
                f"{self._home.checkpoint} signs {signed.size} entries, but this machine had signed "
                f"{max(base, noted.size)}: it is an old one put back; restore the log from a copy."
            )
        self._edge = self._continued(noted, base)
        seen = {base: self._edge.root()}  # the roots at the sizes that were signed
        self._size = base
        for records, journal in live:
            if journal.first != self._size:
                raise StoreError(f"{journal.path} begins at entry {journal.first} instead of {self._size}; restore it.")
            for record in records:
                self._fresh.append((record.entries, record.hashes))
                self._size += record.count
                if self._size in (signed.size, noted.size):
                    seen[self._size] = grown(self._edge, *_joined(self._fresh)).edge.root()
        if signed.size > self._size:
            raise StoreError(
                f"{self._home.checkpoint} signs {signed.size} entries, but only {self._size} are here: its tail was "
                "cut off; restore the log and its journals from a copy."
            )
        # Never sign on top of what was not signed: whoever can write tiles would have us sign another history.
        if seen.get(signed.size) != signed.root or (noted.size >= base and seen.get(noted.size) != noted.root):
            raise StoreError(f"the tiles of {self._home.log} do not fit its checkpoint; see: ridgeline audit verify.")
        self._checkpoint = signed
        # What was found goes into tiles, durably, before anything new comes: then both journals can be emptied.
        self._journals = [journal for _, journal in held]
        fresh, self._fresh = self._fresh, []
        self._put(fresh)
        self._shelf.mend(self._edge)
        self._shelf.settle()
        number = self._journals[1].number
        for journal in self._journals:
            journal.clear()
        self._journals[0].begin(number + 1, self._size)

    def _continued(self, noted: Checkpoint, base: int) -> Edge:
        """The edge of the tiles at `base`, which must continue what this machine noted when it was last at rest."""
        tiles = Tiles(self._home.log)
        try:
            edge = load_edge(tiles, base)
            if noted.size < base:
                now = Checkpoint(noted.origin, base, edge.root())
                continues(noted, now, tiles, "the log this machine has written")
        except Unverified as error:
            raise StoreError(
                f"{self._home.log} cannot be written: {str(error).rstrip('.')}; restore it from a copy."
            ) from None
        return edge

    def _noted(self) -> Checkpoint:
        data = read_note(self._home.published)
        if data is None:
            return Checkpoint(self._signer.name, 0, EMPTY)
        return read_checkpoint(data, self._signer.verifier, str(self._home.published))

    def _signed(self) -> Checkpoint:
        """The checkpoint on the disk; a log that was just made gets its first one."""
        path = self._home.checkpoint
        if path.exists():
            return read_checkpoint(path.read_bytes(), self._signer.verifier, str(path))
        first = signed_checkpoint(self._signer.name, 0, EMPTY, self._signer)
        if self._home.published.exists():
            raise StoreError(f"{path} is gone; restore it (a copy is {self._home.published}).")
        self._shelf.put_checkpoint(str(first))
        return first


def _joined(fresh: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    return b"".join(entries for entries, _ in fresh), b"".join(hashes for _, hashes in fresh)


def _count(fresh: list[tuple[bytes, bytes]]) -> int:
    return sum(len(hashes) for _, hashes in fresh) // 32
