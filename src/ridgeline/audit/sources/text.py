"""Lines of text as events: plain log lines, and JSON with one event per line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import lru_cache

from ridgeline.audit.ledger.event import parse_line
from ridgeline.audit.ledger.moment import parse_moment
from ridgeline.audit.sources.source import LATEST, Event, fitting
from ridgeline.errors import InputError

LONGEST = 1 << 20  # bytes of a line; the rest is cut off, and the event says how much
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  (local, like the stamps that name no zone)
_AHEAD_S = 86_400  # a line further in the future than this is of last year
# "Jun 14 15:16:01 host program[12]: " and "2026-11-15T08:30:00.5+00:00 host program[12]: "
_SYSLOG = re.compile(
    r"(?:<\d{1,3}>)?(?:([A-Z][a-z]{2} [ \d]\d \d\d:\d\d):(\d\d)|(\d{4}-\d\d-\d\dT\S+)) \S+ "
    r"([\w./-]+)(?:\([^)]*\))?(?:\[\d+\])?: "
)

# A line, where it stands, and how many more bytes it had that were not kept → an event; raises InputError
Reader = Callable[[bytes, str, int], Event]


def log_line(file: str) -> Reader:
    """A plain line: `_prefix` and `message` are together just what stood there."""

    def read(line: bytes, where: str, more: int = 0) -> Event:
        attributes: dict[str, object] = {"_file": file}
        if len(line) > LONGEST or more:
            attributes["_cut_bytes"] = len(line) - LONGEST + more
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
            "subject": fitting(found[4]) if found else None,
            "attributes": attributes,
        }

    return read


def _moment(found: re.Match[str]) -> int:
    """The time a line says, in this machine's zone if it names none; now, if it says none that the log can hold."""
    try:
        if found[3]:
            said = _stamp(found[3])
        else:
            said = (_minute(found[1], int(time.time()) // _AHEAD_S) + int(found[2])) * 10**9
    except (ValueError, OverflowError, InputError):
        return time.time_ns()
    return said if 0 <= said <= LATEST else time.time_ns()


def _stamp(words: str) -> int:
    """Nanoseconds of "2026-11-15T08:30:00.5", with a zone behind it or without."""
    moment = parse_moment(words)  # UTC, where there is no zone
    clock = words[11:]
    if clock.endswith("Z") or "+" in clock or "-" in clock:
        return moment
    seconds, rest = divmod(moment, 10**9)
    return int((_EPOCH + timedelta(seconds=seconds)).timestamp()) * 10**9 + rest


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


def json_line(line: bytes, where: str, more: int = 0) -> Event:
    """One event as JSON; time and source are filled in where it has none."""
    if len(line) + more > LONGEST:
        raise InputError(f"{where} has {len(line) + more} bytes, more than {LONGEST}")
    event = parse_line(line, where)
    event.setdefault("time", time.time_ns())
    event.setdefault("source", "jsonl")
    return event


def lines_to_events(
    data: bytes, read: Reader, of: str, number: int | None, start: int, more: int = 0
) -> tuple[list[Event], list[str], list[tuple[str, str]]]:
    """The events of whole lines, where each stood (by its number, else by its byte), and what was no event.

    `more`: bytes of the first line that were not kept.
    """
    events, places, refused, at = list[Event](), list[str](), list[tuple[str, str]](), start
    for count, line in enumerate(data.split(b"\n"), start=1):
        if line.strip() or more:
            where = f"line {number + count} {of}" if number is not None else f"the line at byte {at} {of}"
            try:
                events.append(read(line.rstrip(b"\r"), where, more))
                places.append(where)
            except InputError as error:
                refused.append((where, str(error)))
            more = 0
        at += len(line) + 1
    return events, places, refused
