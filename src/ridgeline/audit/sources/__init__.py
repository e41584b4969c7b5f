"""Where events come from: each source is an async iterator of batches that waits while the log is busy.

    async for batch in source.batches(position):
        ...  # append batch.events, then remember batch.position

A source that can wait (a file, a pipe, the journal) loses nothing. One that cannot (D-Bus) buffers a bounded number of
events and counts those it drops; the next batch carries the count, and the watcher records it in the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.sources.auditd import Auditd as Auditd
    from ridgeline.audit.sources.containers import make_container_reader as make_container_reader
    from ridgeline.audit.sources.containers import parse_kubernetes_line as parse_kubernetes_line
    from ridgeline.audit.sources.dbus import DBus as DBus
    from ridgeline.audit.sources.files import CompressedFile as CompressedFile
    from ridgeline.audit.sources.files import LineFile as LineFile
    from ridgeline.audit.sources.files import is_compressed as is_compressed
    from ridgeline.audit.sources.folder import LineFolder as LineFolder
    from ridgeline.audit.sources.folder import is_pattern as is_pattern
    from ridgeline.audit.sources.http import Http as Http
    from ridgeline.audit.sources.journal import Journal as Journal
    from ridgeline.audit.sources.lines import LineReader as LineReader
    from ridgeline.audit.sources.lines import make_log_reader as make_log_reader
    from ridgeline.audit.sources.lines import parse_json_line as parse_json_line
    from ridgeline.audit.sources.otlp import Otlp as Otlp
    from ridgeline.audit.sources.source import LATEST as LATEST
    from ridgeline.audit.sources.source import SUBJECT as SUBJECT
    from ridgeline.audit.sources.source import Batch as Batch
    from ridgeline.audit.sources.source import Event as Event
    from ridgeline.audit.sources.source import KeyedEvents as KeyedEvents
    from ridgeline.audit.sources.source import Position as Position
    from ridgeline.audit.sources.source import Source as Source
    from ridgeline.audit.sources.source import shorten as shorten
    from ridgeline.audit.sources.stdin import PipeSource as PipeSource
    from ridgeline.audit.sources.syslog import Certificate as Certificate
    from ridgeline.audit.sources.syslog import Syslog as Syslog

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "auditd": ["Auditd"],
        "containers": ["make_container_reader", "parse_kubernetes_line"],
        "dbus": ["DBus"],
        "files": ["CompressedFile", "LineFile", "is_compressed"],
        "folder": ["LineFolder", "is_pattern"],
        "http": ["Http"],
        "journal": ["Journal"],
        "lines": ["LineReader", "parse_json_line", "make_log_reader"],
        "otlp": ["Otlp"],
        "source": ["Batch", "Event", "KeyedEvents", "LATEST", "Position", "SUBJECT", "Source", "shorten"],
        "stdin": ["PipeSource"],
        "syslog": ["Certificate", "Syslog"],
    },
)
