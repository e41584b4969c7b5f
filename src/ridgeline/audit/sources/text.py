"""Lines of text as events: plain log lines, and JSON with one event per line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from ridgeline.audit.event import parse_line
from ridgeline.audit.sources import Event
from ridgeline.errors import InputError

LONGEST = 1 << 20  # bytes of a line; the rest is cut off, and the event says how much
# "Jun 14 15:16:01 host program[12]: " and "2026-11-15T08:30:00.5+00:00 host program[12]: "
_SYSLOG = re.compile(
    r"(?:<\d{1,3}>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) \S+ "
    r"([\w./-]+)(?:\([^)]*\))?(?:\[\d+\])?: "
)

Reader = Callable[[bytes, str], Event]  # a line, and where it stands → an event; raises InputError


def log_line(file: str) -> Reader:
    """A plain line: `_prefix` and `message` are together just what stood there."""

    def read(line: bytes, where: str) -> Event:
        attributes: dict[str, object] = {"_file": file}
        if len(line) > LONGEST:
            attributes["_cut_bytes"] = len(line) - LONGEST
            line = line[:LONGEST]
        text = line.decode("utf-8", errors="backslashreplace")
        found = _SYSLOG.match(text)
        at = found.end() if found else 0
        if found:
            attributes["_prefix"] = text[:at]
        attributes["message"] = text[at:]
        return {
            "time": time.time_ns(),
            "source": "lines",
            "action": "log.line",
            "subject": found[1] if found else None,
            "attributes": attributes,
        }

    return read


def json_line(line: bytes, where: str) -> Event:
    """One event as JSON; time and source are filled in where it has none."""
    if len(line) > LONGEST:
        raise InputError(f"{where} has {len(line)} bytes, more than {LONGEST}")
    event = parse_line(line, where)
    event.setdefault("time", time.time_ns())
    event.setdefault("source", "jsonl")
    return event


def lines_to_events(
    data: bytes, read: Reader, of: str, number: int | None, start: int
) -> tuple[list[Event], list[tuple[str, str]]]:
    """The events of whole lines, and what was none, with where it stood: by its number, else by its byte."""
    events, refused, at = list[Event](), list[tuple[str, str]](), start
    for count, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            where = f"line {number + count} {of}" if number is not None else f"the line at byte {at} {of}"
            try:
                events.append(read(line.rstrip(b"\r"), where))
            except InputError as error:
                refused.append((where, str(error)))
        at += len(line) + 1
    return events, refused
