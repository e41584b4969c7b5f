"""What a source of events is: a pulled async iterator of batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ridgeline.audit.ledger.receipts import Receipts

Event = dict[str, Any]
Position = dict[str, Any]

LATEST = (1 << 63) - 1  # nanoseconds since 1970; the log holds no time after it, and none before 1970
SUBJECT = 1024  # bytes a source gives a subject at most; the log holds four times as many, and redacting may add some


@dataclass(frozen=True)
class Keyed:
    """Events of a batch that came under one key, so that they are not taken twice."""

    key: str
    digest: str  # of what was sent
    first: int  # among the batch's events
    count: int


@dataclass(frozen=True)
class Batch:
    """Some events in order, and what a reader of the log must know besides."""

    events: list[Event]
    position: Position | None = None  # where to go on after them; None where the source cannot resume
    dropped: int = 0  # since the last batch
    refused: tuple[tuple[str, str], ...] = ()  # what was no event: where it stood, why
    gaps: tuple[str, ...] = ()  # sentences: what the source lost while nobody looked
    places: Sequence[str] = ()  # where each event stood ("line 3 of stdin"); empty where the source cannot say
    keyed: tuple[Keyed, ...] = ()
    taken: Callable[[Receipts | None], None] | None = None  # called when it is on the disk …
    failed: Callable[[BaseException], None] | None = None  # … or could not be brought there


class Source(Protocol):
    name: str  # one of a kind in a log: its position is kept under it

    def batches(self, position: Position | None) -> AsyncIterator[Batch]:
        """From `position` on, until it is told to stop or there is no more."""

    def stop(self) -> None:
        """End after what is here already; called in the event loop, safe to call twice."""


def fitting(text: str, most: int = SUBJECT) -> str:
    """A text that others chose, cut to `most` bytes so that the log does not refuse its event; the cut is seen."""
    if 4 * len(text) <= most or len(text.encode("utf-8", "replace")) <= most:
        return text
    return text.encode("utf-8", "replace")[: most - len("…".encode())].decode("utf-8", "ignore") + "…"
