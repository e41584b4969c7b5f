"""Times as people write them, in nanoseconds since 1970.

>>> parse_moment("2026-11-15"), parse_moment("1970-01-01T00:00:01.5Z")
(1794700800000000000, 1500000000)
>>> parse_moment("2h", now=10_000_000_000_000)
2800000000000
>>> show_moment(1_500_000_007)
'1970-01-01T00:00:01.500000007Z'
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from ridgeline.errors import InputError

_SPAN = re.compile(r"([0-9]{1,12})\s*(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_EARLIEST = 10**17  # nanoseconds: March 1973. Smaller numbers are of another unit …
_UNITS = ((10**14, "microseconds"), (10**11, "milliseconds"), (10**8, "seconds"))  # … if they are at least this large
_FRACTION = re.compile(r"\.(\d{1,9})\d*")


def parse_moment(text: str, now: int | None = None) -> int:
    """Parse a date, a date and time (UTC without a zone), nanoseconds, or an age (90d, 24h, 30m), in ns since 1970."""
    words = text.strip()
    span = _SPAN.fullmatch(words)
    if span:
        return (time.time_ns() if now is None else now) - int(span[1]) * _SECONDS[span[2]] * 10**9
    if words.isascii() and words.isdigit() and 8 < len(words) < 20:
        unit = find_other_unit(int(words))
        if unit is not None:
            raise InputError(
                f"'{text}' looks like {unit} (as nanoseconds it is {show_moment(int(words))}); write "
                "2026-11-15T08:30:00Z, nanoseconds since 1970, or an age like 90d."
            )
        return int(words)
    fraction = _FRACTION.search(words)
    nanoseconds = int(fraction[1].ljust(9, "0")) if fraction else 0
    try:
        moment = datetime.fromisoformat(_FRACTION.sub("", words))
    except ValueError:
        raise InputError(f"'{text}' is no time; write 2026-11-15, 2026-11-15T08:30:00Z, nanoseconds, or 90d.") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 + nanoseconds


def find_other_unit(number: int) -> str | None:
    """Return the unit that a number has if it is no nanoseconds since 1970, because those would be before 1973."""
    return next((name for least, name in _UNITS if least <= number < _EARLIEST), None)


def show_moment(ns: int) -> str:
    """Format nanoseconds since 1970 as RFC 3339, to the nanosecond."""
    seconds, rest = divmod(ns, 10**9)
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{rest:09}Z"
    except (OverflowError, ValueError, OSError):
        return f"{ns} ns"
