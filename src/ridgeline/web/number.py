"""Numbers for people: one home for SI prefixes, so that 4.25 TB/s reads the same in every table and chart.

python -m pytest tests/web/test_number.py
"""

from __future__ import annotations

import math

_SYMBOLS = {
    -15: "f",
    -12: "p",
    -9: "n",
    -6: "µ",
    -3: "m",
    0: "",
    3: "k",
    6: "M",
    9: "G",
    12: "T",
    15: "P",
    18: "E",
}
# Units whose symbol carries the prefix itself (GB/s). Words do not: "1.2 M items/s", never "Mitems/s".
_SYMBOL_UNITS = frozenset({"s", "B", "b", "bit", "FLOP", "OP", "Hz", "W", "J", "Wh", "V", "A", "m", "g"})
# Ratios read best as they are: 0.25 FLOP/B, not 250 mFLOP/B.
_BARE_UNITS = frozenset({"%", "×", "°C", "FLOP/B", "OP/B"})
_PLAIN_BELOW = 10_000  # a count is written out below this: batch 1024, not 1.02k


def si(value: float, unit: str = "", digits: int = 3) -> str:
    """A value with an SI prefix and its unit, to `digits` significant digits.

    >>> si(4.25e12, "B/s"), si(0.0012, "s"), si(1.2e6, "items/s")
    ('4.25 TB/s', '1.2 ms', '1.2 M items/s')
    >>> si(1024), si(65536), si(1.254, "×"), si(7200, "s"), si(float("nan"), "s")
    ('1024', '65.5k', '1.25×', '7200 s', 'n/a')
    """
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return with_unit("-∞" if value < 0 else "∞", 0, unit)
    power = prefix_power(value, unit, digits)
    return with_unit(_decimal(value, power, digits), power, unit)


def binary(count: float) -> str:
    """Bytes in binary units, for memory and caches.

    >>> binary(33554432), binary(7093288960), binary(0)
    ('32 MiB', '6.61 GiB', '0 B')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    step = min(len(units) - 1, int(math.log(count, 1024)) if count >= 1 else 0)
    scaled = count / 1024**step
    return f"{scaled:.0f} {units[step]}" if scaled >= 100 else f"{scaled:.3g} {units[step]}"


def prefix_power(value: float, unit: str, digits: int = 3) -> int:
    """The power of ten, a multiple of 3, whose prefix suits `value`; 0 where the unit takes none."""
    if value == 0 or not math.isfinite(value) or unit in _BARE_UNITS:
        return 0
    power = 3 * (_exponent(value, digits) // 3)
    symbol_unit = _head(unit) in _SYMBOL_UNITS
    lowest = -15 if symbol_unit else 0  # nobody says milli-items
    highest = 0 if unit == "s" else 18  # nor kiloseconds
    if (not unit and abs(value) < _PLAIN_BELOW) or not min(_SYMBOLS) <= power <= max(_SYMBOLS):
        return 0
    return max(lowest, min(highest, power))


def with_unit(number: str, power: int, unit: str) -> str:
    """Number, prefix and unit, joined as that unit is written.

    >>> with_unit("12", 9, "B/s"), with_unit("12", 3, "rows"), with_unit("12", 0, "%")
    ('12 GB/s', '12 k rows', '12 %')
    """
    if unit == "×":
        return f"{number}×"
    tail = prefixed(power, unit)
    return f"{number}{' ' if unit else ''}{tail}"


def prefixed(power: int, unit: str) -> str:
    """The unit under a prefix: `GB/s`, `k items/s`."""
    symbol = _SYMBOLS[power]
    gap = " " if symbol and unit and _head(unit) not in _SYMBOL_UNITS else ""
    return f"{symbol}{gap}{unit}"


def _head(unit: str) -> str:
    return unit.split("/", 1)[0]


def _exponent(value: float, digits: int) -> int:
    """Of the rounded value, so that 999.9996 becomes 1 k and not 1000."""
    return int(f"{abs(value):.{digits - 1}e}".partition("e")[2])


def _decimal(value: float, power: int, digits: int) -> str:
    exponent = _exponent(value, digits) - power
    scaled = value / 10.0**power
    if (exponent < -4 and value != 0) or exponent > 9:
        return f"{scaled:.{digits}g}"
    text = f"{scaled:.{max(0, digits - 1 - exponent)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
