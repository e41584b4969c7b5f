"""Where events come from: each source is a small async iterator that is pulled, so it waits while the log is busy.

    async for batch in source.batches(position):
        ...  # append batch.events, then remember batch.position

A source that can wait (a file, a pipe, the journal) loses nothing. One that cannot (D-Bus) holds a bounded number of
events and counts what it had to drop; the count travels in the next batch and is written to the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.sources.dbus import DBus as DBus
    from ridgeline.audit.sources.files import LineFile as LineFile
    from ridgeline.audit.sources.http import Http as Http
    from ridgeline.audit.sources.journal import Journal as Journal
    from ridgeline.audit.sources.source import (
        LATEST as LATEST,
    )
    from ridgeline.audit.sources.source import (
        SUBJECT as SUBJECT,
    )
    from ridgeline.audit.sources.source import (
        Batch as Batch,
    )
    from ridgeline.audit.sources.source import (
        Event as Event,
    )
    from ridgeline.audit.sources.source import (
        Keyed as Keyed,
    )
    from ridgeline.audit.sources.source import (
        Position as Position,
    )
    from ridgeline.audit.sources.source import (
        Source as Source,
    )
    from ridgeline.audit.sources.source import (
        fitting as fitting,
    )
    from ridgeline.audit.sources.stdin import Piped as Piped
    from ridgeline.audit.sources.text import Reader as Reader
    from ridgeline.audit.sources.text import json_line as json_line
    from ridgeline.audit.sources.text import log_line as log_line

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "dbus": ["DBus"],
        "files": ["LineFile"],
        "http": ["Http"],
        "journal": ["Journal"],
        "source": ["Batch", "Event", "Keyed", "LATEST", "Position", "SUBJECT", "Source", "fitting"],
        "stdin": ["Piped"],
        "text": ["Reader", "json_line", "log_line"],
    },
)
