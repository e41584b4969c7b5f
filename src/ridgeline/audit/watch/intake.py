"""The intake appends batches of events to the log: it hides secrets, encrypts personal fields, records refusals, and
adds the events to the backlog. The events and the source's position after them are one commit.

If the log cannot be written (a full disk, no descriptors), the intake tries again until it can or the watcher stops; a
source that can tell its client to come back gets the error instead.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.event import EncodedEvents, encode
from ridgeline.audit.sources.source import Batch, Event, Position
from ridgeline.audit.watch import internal_events
from ridgeline.audit.watch.backlog import Backlog
from ridgeline.audit.watch.redaction import Redaction
from ridgeline.errors import InputError, StoreError

if TYPE_CHECKING:
    from ridgeline.audit.ledger.ledger import Ledger, Receipts

_LISTED = 20  # refusals of one batch that are listed; the others are only counted
_LONG = 300  # characters of a listed refusal
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0  # between two tries to write the log


class Intake:
    """Several threads may use it; each source must be used by one thread at a time."""

    def __init__(self, ledger: Ledger, backlog: Backlog, redaction: Redaction) -> None:
        self._ledger, self._backlog, self._redact = ledger, backlog, redaction
        self._mutex = threading.Lock()
        self._failing_since: float | None = None  # the log cannot be written
        self.on_failure: Callable[[str], None] = lambda why: None  # called once when the log cannot be written …
        self.on_recovery: Callable[[str, float], None] = lambda why, seconds: None  # … and when it can be again
        self.stopping = threading.Event()  # do not wait for the disk any longer
        self.taken: Counter[str] = Counter()  # by source
        self.dropped: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def take(self, source: str, batch: Batch) -> Receipts | None:
        """Append a batch with its position; both are on the disk when this returns. Returns None without events."""
        events = [internal_events.mark_foreign(self._redact.event(event)) for event in batch.events]
        encoded, events, wrong = self._encode(events, batch.places)
        internal = (
            internal_events.make_key_events(batch.keyed, len(events), source) if not wrong else []
        )  # else their places are unknown
        internal += self._describe_losses(source, batch, wrong)
        if internal:
            events = [*events, *internal]
            encoded = encode(events)
        positions = {source: batch.position} if batch.position is not None else None
        patient = batch.failed is None
        receipts = self._append(events, encoded, positions, patient) if events or positions else None
        with self._mutex:
            self.taken[source] += len(events) - len(internal)
            self.dropped[source] += batch.dropped
            self.refused[source] += len(batch.refused) + len(wrong)
        return receipts if events else None

    def append_internal(self, events: list[dict[str, Any]]) -> Receipts:
        """Append internal events of the watcher."""
        return self._append(events, encode(events))

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of events taken, dropped and refused, by source."""
        with self._mutex:
            return {
                "taken": dict(self.taken),
                "dropped": {source: n for source, n in self.dropped.items() if n},
                "refused": {source: n for source, n in self.refused.items() if n},
            }

    def _append(
        self,
        events: list[dict[str, Any]],
        encoded: EncodedEvents,
        positions: dict[str, Position] | None = None,
        patient: bool = True,
    ) -> Receipts:
        pause = _PAUSE_S
        while True:
            last = self.stopping.is_set() or not patient
            try:
                receipts = self._ledger.append(encoded, positions)
                break
            except StoreError as error:
                if not isinstance(error.__cause__, OSError):  # no state of the disk that may change
                    raise
                self._report_failure(str(error))
                if last:
                    raise
                self.stopping.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        self._backlog.add(receipts.first, events, encoded.hashes)
        if self._failing_since is not None:
            self._report_recovery()
        return receipts

    def _encode(
        self, events: list[Event], places: Sequence[str]
    ) -> tuple[EncodedEvents, list[Event], list[tuple[str, str]]]:
        """Return the accepted events, with their personal fields encrypted, and (place, reason) of the others."""
        for event in events:
            event.setdefault("time", time.time_ns())
        personal = self._ledger.personal
        encrypt: Callable[[list[Event]], list[Event]] = personal.encrypt if personal.policy else lambda plain: plain
        try:
            encrypted = encrypt(events)
            return encode(encrypted), encrypted, []
        except InputError:
            pass
        good, wrong = list[Event](), list[tuple[str, str]]()
        for number, event in enumerate(events):
            try:
                encrypted = encrypt([event])
                encode(encrypted)
                good += encrypted
            except InputError as error:
                where = places[number] if places else f"event {number}"
                wrong.append((where, str(error).replace("event 0", where, 1)))  # `encode` numbers it from 0
        return encode(good), good, wrong

    def _report_failure(self, why: str) -> None:
        with self._mutex:
            first, self._failing_since = self._failing_since is None, self._failing_since or time.monotonic()
            self._failure = why
        if first:
            self.on_failure(why)

    def _report_recovery(self) -> None:
        with self._mutex:
            since, self._failing_since = self._failing_since, None
        if since is not None:
            self.on_recovery(self._failure, time.monotonic() - since)

    def _describe_losses(self, source: str, batch: Batch, wrong: list[tuple[str, str]]) -> list[Event]:
        internal = []
        if batch.dropped:
            internal.append(internal_events.make_event(internal_events.DROPS, source, {"dropped": batch.dropped}))
        internal += [
            internal_events.make_event(internal_events.GAP, source, {"what": sentence}) for sentence in batch.gaps
        ]
        refused = [*batch.refused, *wrong]
        sentences = [f"{where}: {why}" if not why.startswith(where) else why for where, why in refused]
        if sentences:
            # Do not repeat the text: secrets in a text that cannot be parsed cannot be hidden.
            reasons = [self._redact.text(s)[:_LONG] for s in sentences[:_LISTED]]
            internal.append(
                internal_events.make_event(internal_events.REFUSED, source, {"count": len(sentences), "why": reasons})
            )
        return internal
