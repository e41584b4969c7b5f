"""Append events under an idempotency key: the same input appended again is recorded once.

    into = Appender(log)
    once = KeyedAppend(log, into, key)
    once.append(lines, events)          # (index of the first event, size of the log, whether it was there before)

The key is in the log, in the same append as the events (`ridgeline.watch.keys`), like those of HTTP requests. An input
of several parts has one key per part: key/0, key/1, …
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline.audit.ledger.appender import Appender
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.sources.http import RecordedRequest, check_key
from ridgeline.audit.sources.source import KeyedEvents
from ridgeline.audit.watch.internal_events import make_key_events, read_request_keys
from ridgeline.errors import InputError


class KeyedAppend:
    """Appends the parts of one input, each once.

    Raises `StoreError` if the log cannot be signed: then it is unknown which keys it has, and nothing is appended.
    """

    PART = 10_000  # lines of one part: the same on every run, so that its key and its hash are too

    def __init__(self, log: Path, into: Appender, key: str) -> None:
        self._into, self._key, self._part = into, check_key(key), 0
        into.finish()  # sign, so that a reader sees what was appended before
        with Ledger.open(log) as ledger:
            self._known = {known.key: known for known in read_request_keys(ledger)}

    def append(self, lines: Sequence[bytes], events: Sequence[dict[str, Any]]) -> tuple[int, int, bool]:
        """Append the events of the next part, whose input is `lines`; return (first, size of the log, repeated)."""
        key, digest = f"{self._key}/{self._part}", self._into.personal.digest(b"\n".join(lines))
        self._part += 1
        known = self._known.get(key)
        if known is not None:
            return self._repeat(known, digest)
        keyed = [KeyedEvents(key, digest, 0, len(events))]
        first, size = self._into.append([*events, *make_key_events(keyed, len(events), "append")])
        return first, size, False

    def _repeat(self, known: RecordedRequest, digest: str) -> tuple[int, int, bool]:
        if known.digest != digest:
            raise InputError(f"the key '{self._key}' was used with other events; give these events another key.")
        return known.first, known.first + known.count, True
