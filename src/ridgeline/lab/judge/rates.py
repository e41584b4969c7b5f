"""Rates and times as people write them: "1e6/day", "1200/h", "0.5ms"; kept in items per second and seconds."""

from __future__ import annotations

import math
import re

from ridgeline.errors import InputError, unknown

SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86400.0, "week": 604800.0, "month": 2629800.0, "year": 31557600.0}
PERIODS = {"sec": "s", "second": "s", "m": "min", "minute": "min", "hr": "h", "hour": "h", "d": "day"}
TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
MANY = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
WHOLE = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*"  # 1,000 is a thousand; 1,5 is nothing
NUMBER = rf"\s*((?:{WHOLE})?(?:(?<=[0-9])|(?=\.[0-9]))(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"
RATE = re.compile(NUMBER + r"\s*([kKMG]?)\s*(?:/|\bper\b)\s*([a-zA-Z]+)\s*")
TIME = re.compile(NUMBER + r"\s*(ns|us|µs|μs|ms|s|min|h)\s*")


def parse_rate(text: str) -> float:
    """Items per second. A month is a twelfth of 365.25 days.

    >>> parse_rate("86400/day"), parse_rate("1.8M/h"), parse_rate("5_000 per second")
    (1.0, 500.0, 5000.0)
    """
    found = RATE.fullmatch(text)
    if found is None:
        raise InputError(f"'{text}' is no rate; write it like 1e6/day, 1200/h or 5000/s.")
    told = found[3].lower()
    for period in (told, told.removesuffix("s")):
        period = PERIODS.get(period, period)
        if period in SECONDS:
            return _good(_number(found[1]) * MANY[found[2]] / SECONDS[period], text)
    raise unknown("period", found[3], SECONDS)


def parse_time(text: str) -> float:
    """Seconds.

    >>> parse_time("0.5ms"), parse_time("2 min")
    (0.0005, 120.0)
    """
    found = TIME.fullmatch(text)
    if found is None:
        raise InputError(f"'{text}' is no time; write it like 0.5ms, 12us or 2s.")
    return _good(_number(found[1]) * TIMES[found[2]], text)


def _number(text: str) -> float:
    return float(text.replace("_", "").replace(",", ""))


def _good(value: float, text: str) -> float:
    if not 0 < value < math.inf:
        raise InputError(f"'{text}' is not above zero and finite.")
    return value
