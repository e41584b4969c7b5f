"""The way into the log: redacted, what is no event refused aloud, the source's position kept, the backlog told."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.event import Encoded, encode
from ridgeline.audit.sources.source import Batch, Event
from ridgeline.audit.watch import own
from ridgeline.audit.watch.backlog import Backlog
from ridgeline.audit.watch.positions import Positions
from ridgeline.audit.watch.redaction import Redaction
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.audit.ledger.ledger import Ledger
    from ridgeline.audit.ledger.receipts import Receipts

_TOLD = 20  # refusals spelled out of one batch; the others are counted
_LONG = 300  # characters of such a sentence


class Intake:
    """Safe to use from several threads, but one source at a time from each."""

    def __init__(self, ledger: Ledger, backlog: Backlog, positions: Positions, redaction: Redaction) -> None:
        self._ledger, self._backlog, self._positions, self._redact = ledger, backlog, positions, redaction
        self._mutex = threading.Lock()
        self.taken: Counter[str] = Counter()  # by source
        self.dropped: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def take(self, source: str, batch: Batch) -> Receipts | None:
        """Append a batch; it is on the disk when this returns. None where there was nothing to append."""
        events = [own.foreign(self._redact.event(event)) for event in batch.events]
        encoded, events, wrong = _encodable(events, batch.places)
        told = own.keys_events(batch.keyed, len(events), source) if not wrong else []  # else their places are not known
        told += self._told(source, batch, wrong)
        if told:
            events = [*events, *told]
            encoded = encode(events)
        if batch.position is not None:
            self._positions.intend(source, batch.position, self._ledger.size, encoded.hashes)
        with self._mutex:
            self.taken[source] += len(events) - len(told)
            self.dropped[source] += batch.dropped
            self.refused[source] += len(batch.refused) + len(wrong)
        return self._append(events, encoded) if events else None

    def own(self, events: list[dict[str, Any]]) -> Receipts:
        """Append the watcher's own events."""
        return self._append(events, encode(events))

    def counts(self) -> dict[str, dict[str, int]]:
        """By source: what was taken, dropped, refused."""
        with self._mutex:
            return {
                "taken": dict(self.taken),
                "dropped": {source: n for source, n in self.dropped.items() if n},
                "refused": {source: n for source, n in self.refused.items() if n},
            }

    def settle(self) -> None:
        """Positions whose append is known to be done."""
        for source in self._positions.unsettled:
            self._positions.settle(source)

    def _append(self, events: list[dict[str, Any]], encoded: Encoded) -> Receipts:
        receipts = self._ledger.append(encoded)
        self._backlog.told(receipts.first, events, encoded.hashes)
        return receipts

    def _told(self, source: str, batch: Batch, wrong: list[tuple[str, str]]) -> list[Event]:
        told = []
        if batch.dropped:
            told.append(own.own(own.DROPS, source, {"dropped": batch.dropped}))
        told += [own.own(own.GAP, source, {"what": sentence}) for sentence in batch.gaps]
        refused = [*batch.refused, *wrong]
        sentences = [f"{where}: {why}" if not why.startswith(where) else why for where, why in refused]
        if sentences:
            # The text itself is not repeated: what could not be read could not be redacted either.
            shown = [self._redact.text(s)[:_LONG] for s in sentences[:_TOLD]]
            told.append(own.own(own.REFUSED, source, {"count": len(sentences), "why": shown}))
        return told


def _encodable(events: list[Event], places: Sequence[str]) -> tuple[Encoded, list[Event], list[tuple[str, str]]]:
    """The events that the log can hold, and of the others where they stood and why they cannot be."""
    for event in events:
        event.setdefault("time", time.time_ns())
    try:
        return encode(events), events, []
    except InputError:
        pass
    good, wrong = list[Event](), list[tuple[str, str]]()
    for number, event in enumerate(events):
        try:
            encode([event])
            good.append(event)
        except InputError as error:
            where = places[number] if places else f"event {number}"
            wrong.append((where, str(error).replace("event 0", where, 1)))  # alone it was the first
    return encode(good), good, wrong
