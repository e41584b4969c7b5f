"""The writer of a log: appends go to the journal by group commit; tiles and signed checkpoints follow soon after.

An append is done when its record is in the journal, on the disk. Threads that arrive during a commit wait and share the
next one: the first of them writes for all. A publisher thread then writes tiles, signs the new size, and clears a
journal once all its entries are on the disk as tiles. Two journals take turns, so that appends continue meanwhile.

The positions of sources that an append carries are in the same journal record as its entries. Before a journal is
cleared, all positions go to a file.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ridgeline.audit.ledger.checkpoint import EMPTY, Checkpoint, Signer, read_checkpoint, sign_checkpoint
from ridgeline.audit.ledger.event import EncodedEvents
from ridgeline.audit.ledger.journal import Journal
from ridgeline.audit.ledger.layout import LedgerPaths, check_private, read_note
from ridgeline.audit.ledger.retention import finish_pruning
from ridgeline.audit.ledger.tile_store import TileStore
from ridgeline.audit.ledger.tiles import Edge, Tiles, check_continues, extend_edge, load_edge
from ridgeline.errors import RidgelineError, StoreError, Unverified
from ridgeline.store import lock, publish, sync_folder

CHECKPOINT_S = 1.0
_TURN = 8 << 20  # bytes in a journal before the writer switches to the other
_MOST = 32 << 20  # bytes in a journal before appends wait; also bounds the memory
_SYNC_S = 60.0  # a slow log syncs after this time; obsolete partial tiles are only removed then
_RETRY_S = 1.0


class Writer:
    """Locks a log and writes it; `Ledger` creates it at its first write."""

    def __init__(self, paths: LedgerPaths, signer: Signer, checkpoint_s: float = CHECKPOINT_S) -> None:
        self._paths, self._signer, self._every = paths, signer, checkpoint_s
        self._pid = os.getpid()
        self._group_commit = GroupCommit(self._commit)
        self._commit_lock = threading.Lock()  # guards the journals, `_fresh` and the positions
        self._publish_lock = threading.RLock()  # guards the tile store and the edge
        self._fresh: list[tuple[bytes, bytes]] = []  # committed, not yet in tiles
        self._positions: dict[str, Any] = {}  # by source; committed
        self._positions_saved = True  # the file has them
        self._wake = threading.Condition()
        self._stop = self._hurry = False
        self._error: RidgelineError | None = None
        self._journals: list[Journal] = []
        self._size, self._last_sync = 0, time.monotonic()
        self._edge, self._checkpoint = Edge(), sign_checkpoint(signer.name, 0, EMPTY, signer)
        check_private(paths)
        self._stack = ExitStack()
        self._stack.enter_context(lock(paths.lock))
        try:
            self._tile_store = TileStore(paths)
            for k in range(2):
                self._journals.append(Journal(paths.journal(k)))
            self._recover()
            finish_pruning(paths, self._tile_store)
        except BaseException:
            for journal in self._journals:
                journal.close()
            self._stack.close()
            raise
        self._thread = threading.Thread(target=self._run, name="ledger-publisher", daemon=True)
        self._thread.start()

    @property
    def size(self) -> int:
        """The number of durable entries."""
        return self._size

    @property
    def checkpoint(self) -> Checkpoint:
        """The newest signed checkpoint."""
        return self._checkpoint

    def get_position(self, source: str) -> Any:
        """Return the position of the last append of a source; None if there was none."""
        with self._commit_lock:
            return self._positions.get(source)

    def append(self, encoded: EncodedEvents, positions: Mapping[str, Any] | None = None) -> tuple[int, int]:
        """Commit; return the index of the first entry and the size of the log after this commit.

        positions  by source: the positions (JSON) after these entries, in the same commit
        """
        if os.getpid() != self._pid:
            raise StoreError(f"{self._paths.log} is open in the parent of this process; open it again to append.")
        ticket = self._group_commit.submit(encoded, positions or {})
        return ticket.first, ticket.size

    def publish(self) -> Checkpoint:
        """Write the tiles of everything committed, and sign the new size."""
        with self._publish_lock:
            self._publish(sync=False)
            return self._checkpoint

    def prune(self, remove: Callable[[TileStore], None]) -> None:
        """Call `remove`, which removes payloads, while no publication runs."""
        with self._publish_lock:
            self._publish(sync=True)  # the event that records it must be durable first
            remove(self._tile_store)
            self._tile_store.sync()

    def close(self) -> None:
        """Publish, sync everything, release the lock."""
        if self._group_commit.closed or os.getpid() != self._pid:
            return
        self._group_commit.close()
        with self._wake:
            self._stop = True
            self._wake.notify_all()
        self._thread.join()
        try:
            with self._publish_lock:
                self._publish(sync=True)
                self._tile_store.close()
                with self._commit_lock:
                    if self._size == self._edge.size:  # all entries are on the disk as tiles: the journals may shrink
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
        positions = {source: position for ticket in batch for source, position in ticket.positions.items()}
        self._wait_for_journal(len(entries))
        with self._commit_lock:
            self._journals[0].append(self._size, count, entries, hashes, positions)
            first, self._size = self._size, self._size + count
            if count:
                self._fresh.append((entries, hashes))
            if positions:
                self._positions.update(positions)
                self._positions_saved = False
            full = self._journals[0].end > _TURN
        for ticket in batch:
            ticket.first, ticket.size = first, self._size
            first += ticket.encoded.count
        if full and not self._hurry:
            with self._wake:
                self._hurry = True
                self._wake.notify_all()

    def _store_large(self, encoded: list[EncodedEvents]) -> None:
        for _, digest, data in (large for e in encoded for large in e.large):
            path = self._paths.blob(digest)
            if not path.exists():
                if not path.parent.exists():
                    path.parent.mkdir()
                    sync_folder(path.parent.parent)
                with publish(path) as tmp:
                    tmp.write_bytes(data)

    def _wait_for_journal(self, more: int) -> None:
        """Wait until a long journal is cleared; raise the publisher's error if it cannot be."""
        while self._journals[0].end + more > _MOST and self._journals[0].end > _TURN:
            if self._error is not None:
                raise self._error
            with self._wake:
                self._hurry = True
                self._wake.notify_all()
            time.sleep(0.002)

    def _run(self) -> None:
        """The publisher thread: publishes soon after a commit, and at once if a journal is long."""
        while True:
            with self._wake:
                if not self._stop and not self._hurry:
                    self._wake.wait(self._every)
                if self._stop:
                    return
            try:
                with self._publish_lock:
                    self._hurry = False
                    self._publish(sync=False)
                self._error = None
            except RidgelineError as error:  # for example a full disk: the journal still has everything
                self._error = error
                time.sleep(_RETRY_S if not self._stop else 0)

    def _publish(self, sync: bool) -> None:
        with self._commit_lock:
            fresh, self._fresh = self._fresh, []
            due = self._journals[0].used and time.monotonic() - self._last_sync > _SYNC_S
            turn = sync or due or self._journals[0].end > _TURN or not self._journals[1].empty
            if turn and self._journals[1].empty:  # else an earlier sync failed: finish that first
                self._journals[1].begin(self._journals[0].number + 1, self._edge.size + _count(fresh))
                self._journals.reverse()
        try:
            self._put(fresh)
        except BaseException:
            with self._commit_lock:
                self._fresh[:0] = fresh
            raise
        if turn:
            self._sync()

    def _put(self, fresh: list[tuple[bytes, bytes]]) -> None:
        if not fresh and self._checkpoint.size == self._edge.size:
            return
        more = extend_edge(self._edge, *_join(fresh))
        self._tile_store.put(more.full)
        self._tile_store.put(more.edge.partials())
        checkpoint = sign_checkpoint(self._signer.name, more.edge.size, more.edge.root(), self._signer)
        self._tile_store.put_checkpoint(str(checkpoint))
        self._edge, self._checkpoint = more.edge, checkpoint

    def _sync(self) -> None:
        """Sync all tiles; after that the older journal is no longer needed."""
        self._tile_store.sync()
        self._last_sync = time.monotonic()
        with publish(self._paths.published) as tmp:
            tmp.write_text(str(self._checkpoint), encoding="utf-8")
        self._save_positions()
        with self._commit_lock:
            self._journals[1].clear()

    def _save_positions(self) -> None:
        """Write all positions to their file; recovery reads the records of the journals after it."""
        with self._commit_lock:
            if self._positions_saved:
                return
            self._positions_saved, text = True, json.dumps(self._positions)
        try:
            with publish(self._paths.positions) as tmp:
                tmp.write_text(text, encoding="utf-8")
        except BaseException:
            self._positions_saved = False
            raise

    def _load_positions(self) -> dict[str, Any]:
        path = self._paths.positions
        try:
            positions = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(positions, dict):
                return positions
        except FileNotFoundError:
            return _read_old_positions(self._paths.private / "positions")
        except ValueError:
            pass
        raise StoreError(
            f"{path} is damaged; restore it, or remove it: then every source is read again from its beginning."
        )

    def _recover(self) -> None:
        """Restore every acknowledged entry: tiles up to the oldest journal, then the records of the journals."""
        journals = sorted(((journal.read(), journal) for journal in self._journals), key=lambda h: h[1].number)
        live = [(records, journal) for records, journal in journals if not journal.empty]
        signed, noted = self._read_signed(), self._read_published()
        base = live[0][1].first if live else signed.size
        if signed.size < max(base, noted.size):
            raise StoreError(
                f"{self._paths.checkpoint} signs {signed.size} entries, but this machine had signed "
                f"{max(base, noted.size)}: it is an old one put back; restore the log from a copy."
            )
        self._edge = self._load_edge(noted, base)
        self._positions = self._load_positions()
        seen = {base: self._edge.root()}  # the roots at the signed sizes
        self._size = base
        for records, journal in live:
            if journal.first != self._size:
                raise StoreError(f"{journal.path} begins at entry {journal.first} instead of {self._size}; restore it.")
            for record in records:
                self._fresh.append((record.entries, record.hashes))
                self._size += record.count
                if record.positions:
                    self._positions.update(record.positions)
                    self._positions_saved = False
                if self._size in (signed.size, noted.size):
                    seen[self._size] = extend_edge(self._edge, *_join(self._fresh)).edge.root()
        if signed.size > self._size:
            raise StoreError(
                f"{self._paths.checkpoint} signs {signed.size} entries, but only {self._size} are here: its tail was "
                "cut off; restore the log and its journals from a copy."
            )
        # Never sign a continuation of unsigned tiles: anyone who can write tiles could make us sign another history.
        if seen.get(signed.size) != signed.root or (noted.size >= base and seen.get(noted.size) != noted.root):
            raise StoreError(f"the tiles of {self._paths.log} do not fit its checkpoint; see: ridgeline audit verify.")
        self._checkpoint = signed
        # Write the recovered entries into tiles, durably, before new ones: then both journals can be cleared.
        self._journals = [journal for _, journal in journals]
        fresh, self._fresh = self._fresh, []
        self._put(fresh)
        self._tile_store.repair_partials(self._edge)
        self._tile_store.sync()
        self._save_positions()
        number = self._journals[1].number
        for journal in self._journals:
            journal.clear()
        self._journals[0].begin(number + 1, self._size)

    def _load_edge(self, noted: Checkpoint, base: int) -> Edge:
        """Load the edge of the tiles at `base`; it must continue the last checkpoint that this machine noted."""
        tiles = Tiles(self._paths.log)
        try:
            edge = load_edge(tiles, base)
            if noted.size < base:
                now = Checkpoint(noted.origin, base, edge.root())
                check_continues(noted, now, tiles, "the log this machine has written")
        except Unverified as error:
            raise StoreError(
                f"{self._paths.log} cannot be written: {str(error).rstrip('.')}; restore it from a copy."
            ) from None
        return edge

    def _read_published(self) -> Checkpoint:
        data = read_note(self._paths.published)
        if data is None:
            raise StoreError(
                f"{self._paths.published} is missing, so this machine cannot tell whether the log was put back to an "
                f"earlier size; restore it, or, if you know that the log is complete: cp {self._paths.checkpoint} "
                f"{self._paths.published}"
            )
        return read_checkpoint(data, self._signer.verifier, str(self._paths.published))

    def _read_signed(self) -> Checkpoint:
        """Read the checkpoint on the disk; write the first one of a new log."""
        path = self._paths.checkpoint
        if path.exists():
            return read_checkpoint(path.read_bytes(), self._signer.verifier, str(path))
        first = sign_checkpoint(self._signer.name, 0, EMPTY, self._signer)
        if self._paths.published.exists() and self._read_published().size:
            raise StoreError(f"{path} is missing; restore it (a copy is {self._paths.published}).")
        with publish(self._paths.published) as tmp:  # before the checkpoint: every log with a checkpoint has it
            tmp.write_text(str(first), encoding="utf-8")
        self._tile_store.put_checkpoint(str(first))
        return first


def _read_old_positions(folder: Path) -> dict[str, Any]:
    """Read the positions of earlier versions, a file per source; an unconfirmed append counts as not done."""
    positions = dict[str, Any]()
    for path in folder.glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            words = json.loads(path.read_text(encoding="utf-8"))
            positions[words["source"]] = words["before" if words["count"] else "after"]
    return {source: position for source, position in positions.items() if position is not None}


def _join(fresh: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    return b"".join(entries for entries, _ in fresh), b"".join(hashes for _, hashes in fresh)


def _count(fresh: list[tuple[bytes, bytes]]) -> int:
    return sum(len(hashes) for _, hashes in fresh) // 32


class Ticket:
    """One waiting append; its lock is released when it is done, or when it must lead the next commit."""

    __slots__ = ("done", "encoded", "error", "first", "lock", "positions", "size")

    def __init__(self, encoded: EncodedEvents, positions: Mapping[str, Any]) -> None:
        self.encoded, self.positions = encoded, positions
        self.lock = threading.Lock()
        self.done, self.first, self.size = False, 0, 0
        self.error: BaseException | None = None


class GroupCommit:
    """A queue of appends for `commit(tickets)`, which one thread at a time calls.

    The first thread leads: it takes all waiting tickets, commits them, and releases their threads. The first thread
    that arrives during the commit leads the next one. No extra thread is involved, so a single caller pays for no
    switch.
    """

    def __init__(self, commit: Callable[[list[Ticket]], None]) -> None:
        self._commit = commit
        self._mutex = threading.Lock()
        self._queue: list[Ticket] = []
        self._leading = False
        self.closed = False

    def submit(self, encoded: EncodedEvents, positions: Mapping[str, Any]) -> Ticket:
        """Wait until `encoded` is committed, together with other waiting appends; raise what the commit raised."""
        ticket = Ticket(encoded, positions)
        with self._mutex:
            if self.closed:
                raise StoreError("the ledger is closed; open it again to append.")
            self._queue.append(ticket)
            lead = not self._leading
            self._leading = True
            if not lead:
                ticket.lock.acquire()
        if not lead:
            with ticket.lock:  # the leader releases it: this append is done, or must lead
                pass
        if not ticket.done:
            self._lead()
        if ticket.error is not None:
            raise ticket.error
        return ticket

    def close(self) -> None:
        """Refuse further appends."""
        with self._mutex:
            self.closed = True

    def _lead(self) -> None:
        with self._mutex:
            batch, self._queue = self._queue, []
        try:
            self._commit(batch)
        except RidgelineError as error:
            for ticket in batch:
                ticket.error = error
        except BaseException as error:
            stopped = StoreError(f"the commit these events waited for was stopped ({error!r}); append them again.")
            for ticket in batch:
                ticket.error = stopped
            raise
        finally:
            with self._mutex:
                for ticket in batch:
                    ticket.done = True
                following = self._queue[0] if self._queue else None
                self._leading = following is not None
            for ticket in batch:
                if ticket.lock.locked():
                    ticket.lock.release()
            if following is not None:
                following.lock.release()
