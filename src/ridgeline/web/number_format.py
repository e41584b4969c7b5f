"""Format numbers with SI prefixes and units, so that 4.25 TB/s looks the same in every table and chart."""

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
# Units that take the prefix directly (GB/s). Words do not: "1.2 M items/s", never "Mitems/s".
_SYMBOL_UNITS = frozenset({"s", "B", "b", "bit", "FLOP", "OP", "Hz", "W", "J", "Wh", "V", "A", "m", "g"})
# Ratios get no prefix: 0.25 FLOP/B, not 250 mFLOP/B.
_BARE_UNITS = frozenset({"%", "×", "°C", "FLOP/B", "OP/B"})
_PLAIN_BELOW = 10_000  # smaller counts get no prefix: batch 1024, not 1.02k


def format_si(value: float, unit: str = "", digits: int = 3) -> str:
    """Format a value with an SI prefix and its unit, to `digits` significant digits.

    >>> format_si(4.25e12, "B/s"), format_si(0.0012, "s"), format_si(1.2e6, "items/s")
    ('4.25 TB/s', '1.2 ms', '1.2 M items/s')
    >>> format_si(1024), format_si(65536), format_si(1.254, "×"), format_si(7200, "s"), format_si(float("nan"), "s")
    ('1024', '65.5k', '1.25×', '7200 s', 'n/a')
    """
    if math.isnan(value):
        return "n/a"
    if math.isinf(value):
        return join_unit("-∞" if value < 0 else "∞", 0, unit)
    power = choose_prefix_power(value, unit, digits)
    return join_unit(_format_decimal(value, power, digits), power, unit)


def format_bytes(count: float) -> str:
    """Format bytes in binary units, for memory and caches.

    >>> format_bytes(33554432), format_bytes(7093288960), format_bytes(0)
    ('32 MiB', '6.61 GiB', '0 B')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    step = min(len(units) - 1, int(math.log(count, 1024)) if count >= 1 else 0)
    scaled = count / 1024**step
    return f"{scaled:.0f} {units[step]}" if scaled >= 100 else f"{scaled:.3g} {units[step]}"


def choose_prefix_power(value: float, unit: str, digits: int = 3) -> int:
    """Return the power of ten (a multiple of 3) of the prefix for `value`; 0 if the unit takes none."""
    if value == 0 or not math.isfinite(value) or unit in _BARE_UNITS:
        return 0
    power = 3 * (_compute_exponent(value, digits) // 3)
    symbol_unit = _get_base_unit(unit) in _SYMBOL_UNITS
    lowest = -15 if symbol_unit else 0  # no milli-items
    highest = 0 if unit == "s" else 18  # no kiloseconds
    if (not unit and abs(value) < _PLAIN_BELOW) or not min(_SYMBOLS) <= power <= max(_SYMBOLS):
        return 0
    return max(lowest, min(highest, power))


def join_unit(number: str, power: int, unit: str) -> str:
    """Join number, prefix and unit.

    >>> join_unit("12", 9, "B/s"), join_unit("12", 3, "rows"), join_unit("12", 0, "%")
    ('12 GB/s', '12 k rows', '12 %')
    """
    if unit == "×":
        return f"{number}×"
    tail = add_prefix(power, unit)
    return f"{number}{' ' if unit else ''}{tail}"


def add_prefix(power: int, unit: str) -> str:
    """Return the unit with its prefix: `GB/s`, `k items/s`."""
    symbol = _SYMBOLS[power]
    gap = " " if symbol and unit and _get_base_unit(unit) not in _SYMBOL_UNITS else ""
    return f"{symbol}{gap}{unit}"


def _get_base_unit(unit: str) -> str:
    return unit.split("/", 1)[0]


def _compute_exponent(value: float, digits: int) -> int:
    """Return the exponent of the rounded value, so that 999.9996 becomes 1 k and not 1000."""
    return int(f"{abs(value):.{digits - 1}e}".partition("e")[2])


def _format_decimal(value: float, power: int, digits: int) -> str:
    exponent = _compute_exponent(value, digits) - power
    scaled = value / 10.0**power
    if (exponent < -4 and value != 0) or exponent > 9:
        return f"{scaled:.{digits}g}"
    text = f"{scaled:.{max(0, digits - 1 - exponent)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
