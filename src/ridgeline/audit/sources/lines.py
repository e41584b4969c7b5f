"""Make events of lines of text: plain log lines, or JSON with one event per line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from ridgeline.audit.ledger.event import parse_line
from ridgeline.audit.ledger.moment import parse_moment
from ridgeline.audit.sources.source import LATEST, Event, shorten
from ridgeline.errors import InputError

LONGEST = 1 << 20  # most bytes of a line; the rest is cut off, and the event counts it
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  (local time, like stamps without a zone)
_AHEAD_S = 86_400  # a line further in the future than this is from last year
# "Jun 14 15:16:01 host program[12]: " and "2026-11-15T08:30:00.5+00:00 host program[12]: "
_SYSLOG = re.compile(
    r"(?:<\d{1,3}>)?(?:([A-Z][a-z]{2} [ \d]\d \d\d:\d\d):(\d\d)|(\d{4}-\d\d-\d\dT\S+)) \S+ "
    r"([\w./-]+)(?:\([^)]*\))?(?:\[\d+\])?: "
)

# (line, its place, number of bytes cut off) → event; raises InputError
LineReader = Callable[[bytes, str, int], Event]


@dataclass(frozen=True)
class JoiningReader:
    """A reader of lines that may be parts: an event with `_partial` continues in the next one of its stream."""

    read: LineReader

    def __call__(self, line: bytes, where: str, more: int = 0) -> Event:
        return self.read(line, where, more)

    def find_unfinished(self, data: bytes) -> int:
        """Return the number of bytes before the parts at the end of `data` that continue after it."""
        end = len(data)
        while end:
            start = data.rfind(b"\n", 0, end - 1) + 1
            try:
                event = self.read(data[start:end].rstrip(b"\r\n"), "", 0)
            except InputError:
                break
            if not event["attributes"].get("_partial"):
                break
            end = start
        return end


def make_log_reader(file: str) -> LineReader:
    """Return a reader of plain lines; `_prefix` and `message` together are the line."""

    def read(line: bytes, where: str, more: int = 0) -> Event:
        attributes: dict[str, object] = {"_file": file}
        if len(line) > LONGEST or more:
            attributes["_cut_bytes"] = len(line) - LONGEST + more
            line = line[:LONGEST]
        text = line.decode("utf-8", errors="backslashreplace")
        header = _SYSLOG.match(text)
        at = header.end() if header else 0
        if header:
            attributes["_prefix"] = text[:at]
        attributes["message"] = text[at:]
        return {
            "time": _moment(header) if header else time.time_ns(),
            "source": "lines",
            "action": "log.line",
            "subject": shorten(header[4]) if header else None,
            "attributes": attributes,
        }

    return read


def _moment(header: re.Match[str]) -> int:
    """Return the time of a line (ns), in local time without a zone; now if it has no time that the log accepts."""
    if header[3]:
        return parse_stamp(header[3])
    return parse_old_stamp(header[1], int(header[2]) * 10**9)


def parse_old_stamp(minute: str, rest_ns: int, year: int = 0, *, utc: bool = False) -> int:
    """Parse "Jun 14 15:16"; return ns since 1970, or now if it is no time that the log accepts.

    year  0: the newest that does not put it after tomorrow
    utc   it is in UTC, not in local time
    """
    try:
        time_ns = _minute(minute, int(time.time()) // _AHEAD_S, year, utc) * 10**9 + rest_ns
    except (ValueError, OverflowError):
        return time.time_ns()
    return time_ns if 0 <= time_ns <= LATEST else time.time_ns()


def parse_stamp(words: str) -> int:
    """Parse "2026-11-15T08:30:00.5Z"; return ns since 1970, or now if it is no time that the log accepts."""
    try:
        time_ns = _stamp(words)
    except (ValueError, OverflowError, InputError):
        return time.time_ns()
    return time_ns if 0 <= time_ns <= LATEST else time.time_ns()


def _stamp(words: str) -> int:
    """Parse "2026-11-15T08:30:00.5", with or without a zone; return ns since 1970."""
    moment = parse_moment(words)  # UTC if there is no zone
    clock = words[11:]
    if clock.endswith("Z") or "+" in clock or "-" in clock:
        return moment
    seconds, rest = divmod(moment, 10**9)
    return int((_EPOCH + timedelta(seconds=seconds)).timestamp()) * 10**9 + rest


@lru_cache(256)
def _minute(words: str, today: int, year: int = 0, utc: bool = False) -> int:
    """Parse "Jun 14 15:16" in the newest year that does not put it after tomorrow; return seconds since 1970."""
    month, day, hour, minute = _MONTHS.index(words[:3]) + 1, int(words[4:6]), int(words[7:9]), int(words[10:12])
    zone = UTC if utc else None  # local time, as syslog
    if year:
        return int(datetime(year, month, day, hour, minute, tzinfo=zone).timestamp())
    newest = time.localtime(today * _AHEAD_S).tm_year + 1  # the new year may have begun where the sender is
    for past in (0, 1, 2, 3, 4, 5):  # 29 February may be up to four years back
        try:
            seconds = int(datetime(newest - past, month, day, hour, minute, tzinfo=zone).timestamp())
        except ValueError:
            continue
        if seconds // _AHEAD_S <= today + 1:
            return seconds
    raise ValueError(words)


def parse_json_line(line: bytes, where: str, more: int = 0) -> Event:
    """Parse one event as JSON; add `time` and `source` if they are missing."""
    if len(line) + more > LONGEST:
        raise InputError(f"{where} has {len(line) + more} bytes, more than {LONGEST}")
    event = parse_line(line, where)
    event.setdefault("time", time.time_ns())
    event.setdefault("source", "jsonl")
    return event


def parse_lines(
    data: bytes, read: LineReader, of: str, number: int | None, start: int, more: int = 0
) -> tuple[list[Event], list[str], list[tuple[str, str]]]:
    """Return the events of complete lines, their places (line number, else byte), and (place, reason) of refused lines.

    data    the lines; `start` is the byte offset of the first
    of      names the file in places, like "of stdin"
    number  lines before these; None if unknown
    more    bytes of the first line that were cut off
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
    if isinstance(read, JoiningReader):
        events, places = _join_parts(events, places)
    return events, places, refused


def _join_parts(events: list[Event], places: list[str]) -> tuple[list[Event], list[str]]:
    """Join the parts of a line, each stream by itself; a line that continues after `events` keeps `_partial`."""
    complete, begun = list[tuple[Event, str]](), dict[Any, tuple[Event, str]]()
    for event, place in zip(events, places, strict=True):
        words = event["attributes"]
        first, place = begun.pop(words.get("stream"), (event, place))
        if first is not event:
            message = first["attributes"]["message"] + words["message"]
            if len(message) > LONGEST:
                complete.append((first, place))
            else:
                event = {**event, "time": first["time"], "attributes": {**words, "message": message}}
        if event["attributes"].get("_partial"):
            begun[words.get("stream")] = event, place
        else:
            complete.append((event, place))
    complete += begun.values()
    return [event for event, _ in complete], [place for _, place in complete]
