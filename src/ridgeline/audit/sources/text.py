"""Lines of text as events: plain log lines, and JSON with one event per line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache

from ridgeline.audit.event import parse_line
from ridgeline.audit.moment import parse_moment
from ridgeline.audit.sources import Event
from ridgeline.errors import InputError

LONGEST = 1 << 20  # bytes of a line; the rest is cut off, and the event says how much
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_AHEAD_S = 86_400  # a line further in the future than this is of last year
# "Jun 14 15:16:01 host program[12]: " and "2026-11-15T08:30:00.5+00:00 host program[12]: "
_SYSLOG = re.compile(
    r"(?:<\d{1,3}>)?(?:([A-Z][a-z]{2} [ \d]\d \d\d:\d\d):(\d\d)|(\d{4}-\d\d-\d\dT\S+)) \S+ "
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
            "time": _moment(found) if found else time.time_ns(),
            "source": "lines",
            "action": "log.line",
            "subject": found[4] if found else None,
            "attributes": attributes,
        }

    return read


def _moment(found: re.Match[str]) -> int:
    """The time a line says, in this machine's zone if it names none; now, if it says none that there is."""
    try:
        if found[3]:
            return parse_moment(found[3])
        return (_minute(found[1], int(time.time()) // _AHEAD_S) + int(found[2])) * 10**9
    except (ValueError, OverflowError, InputError):
        return time.time_ns()


@lru_cache(256)
def _minute(words: str, today: int) -> int:
    """Seconds of "Jun 14 15:16" in the newest year that does not put it after tomorrow."""
    month, day, hour, minute = _MONTHS.index(words[:3]) + 1, int(words[4:6]), int(words[7:9]), int(words[10:12])
    year = time.localtime().tm_year
    for past in (0, 1, 2, 3, 4):  # 29 February may be up to four years back
        try:
            seconds = int(datetime(year - past, month, day, hour, minute).timestamp())  # noqa: DTZ001  (local, as syslog)
        except ValueError:
            continue
        if seconds // _AHEAD_S <= today + 1:
            return seconds
    raise ValueError(words)


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
