"""The interface of a source: an async iterator of batches of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ridgeline.audit.ledger.ledger import Receipts

Event = dict[str, Any]
Position = dict[str, Any]

LATEST = (1 << 63) - 1  # nanoseconds since 1970; the log accepts times from 1970 to this
SUBJECT = 1024  # most bytes of a subject; the log accepts four times as many, and redaction may add some


@dataclass(frozen=True)
class KeyedEvents:
    """Events of a batch with one idempotency key, so that they are not recorded twice."""

    key: str
    digest: str  # of the request's body
    first: int  # index among the batch's events
    count: int


@dataclass(frozen=True)
class Batch:
    """Events in order, and what else the log must record about them."""

    events: list[Event]
    position: Position | None = None  # the position after them; None if the source cannot resume
    dropped: int = 0  # since the last batch
    refused: tuple[tuple[str, str], ...] = ()  # (place, reason) of inputs that are no events
    gaps: tuple[str, ...] = ()  # sentences: what the source lost
    places: Sequence[str] = ()  # the place of each event ("line 3 of stdin"); empty if the source has none
    keyed: tuple[KeyedEvents, ...] = ()
    taken: Callable[[Receipts | None], None] | None = None  # called when the batch is on the disk …
    failed: Callable[[BaseException], None] | None = None  # … or could not be written


class Source(Protocol):
    name: str  # unique in a log: its position is saved under this name

    def batches(self, position: Position | None) -> AsyncGenerator[Batch, None]:
        """Yield batches from `position` on, until `stop` or the end of the source."""

    def stop(self) -> None:
        """End after what has arrived; called in the event loop, and may be called twice."""


def shorten(text: str, most: int = SUBJECT) -> str:
    """Cut a text to `most` bytes, with an ellipsis, so that the log does not refuse its event."""
    if 4 * len(text) <= most or len(text.encode("utf-8", "replace")) <= most:
        return text
    return text.encode("utf-8", "replace")[: most - len("…".encode())].decode("utf-8", "ignore") + "…"
