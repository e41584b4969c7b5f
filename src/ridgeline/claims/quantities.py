"""Quantities: find numbers with units in a text, compute with their intervals, format results.

>>> [q.text for q in find_quantities("60,001 texts in 12.50 s: 4,800 texts/s on an A100 (3.5% of 40 GB)")]
['60,001', '12.50 s', '4,800 texts/s', '3.5%', '40 GB']
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

# --- Units

Dims = tuple[int, int, int, int, int]  # powers of second, byte, dollar, operation, joule
NONE: Dims = (0, 0, 0, 0, 0)
TIME: Dims = (1, 0, 0, 0, 0)
RATE: Dims = (-1, 0, 0, 0, 0)
BYTES: Dims = (0, 1, 0, 0, 0)
BANDWIDTH: Dims = (-1, 1, 0, 0, 0)
MONEY: Dims = (0, 0, 1, 0, 0)
PRICE: Dims = (-1, 0, 1, 0, 0)
WORK: Dims = (0, 0, 0, 1, 0)
FLOPS: Dims = (-1, 0, 0, 1, 0)
ENERGY: Dims = (0, 0, 0, 0, 1)
POWER: Dims = (-1, 0, 0, 0, 1)
_TIME_UNITS = {
    "ns nsec nanosecond nanoseconds": 1e-9,
    "us µs μs usec microsecond microseconds": 1e-6,
    "ms msec msecs millisecond milliseconds": 1e-3,
    "s sec secs second seconds": 1.0,
    "min mins minute minutes": 60.0,
    "h hr hrs hour hours": 3600.0,
    "day days d": 86400.0,
    "week weeks wk": 604800.0,
    "month months mo": 2592000.0,
    "year years yr yrs": 31536000.0,
}
_PREFIX = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
DEVICE_PREFIX = (
    r"(?:GPU|CPU|TPU|vCPU|core|node|machine|instance|device|server|worker|chip|[ABHLV]\d{2,3})s?[-·\s]"  # "GPU-hours"
)


def _build_units() -> dict[str, tuple[float, Dims]]:
    units: dict[str, tuple[float, Dims]] = {}
    for names, factor in _TIME_UNITS.items():
        units |= dict.fromkeys(names.split(), (factor, TIME))
    for prefix, factor in {**_PREFIX, **_BINARY}.items():
        units |= {prefix + name: (factor, BYTES) for name in ("B", "byte", "bytes", "Byte", "Bytes")}
        units |= {prefix + name: (factor / 8, BYTES) for name in ("bit", "bits") + (("b",) if prefix else ())}
        units |= {prefix + name: (factor / 8, BANDWIDTH) for name in ("bps", "bit/s", "bits/s")}
        units |= {prefix + "Bps": (factor, BANDWIDTH), prefix + "Hz": (factor, RATE)}
        units |= {prefix + name: (factor, WORK) for name in ("FLOP", "FLOPs", "flop", "flops", "OP", "Flop")}
        units |= {prefix + name: (factor, FLOPS) for name in ("FLOPS", "Flops", "OPS", "flops/s", "FLOPs/s")}
    for prefix, factor in {**_PREFIX, "m": 1e-3}.items():
        units |= {prefix + "W": (factor, POWER), prefix + "Wh": (factor * 3600, ENERGY), prefix + "J": (factor, ENERGY)}
    units |= {"watts": (1.0, POWER), "watt": (1.0, POWER), "joule": (1.0, ENERGY), "joules": (1.0, ENERGY)}
    units |= {"$": (1.0, MONEY), "USD": (1.0, MONEY), "dollars": (1.0, MONEY)}
    for name in ("qps", "QPS", "fps", "FPS", "rps", "RPS", "tps", "TPS", "IOPS", "iops"):
        units[name] = (1.0, RATE)
    units["OPS"] = units["ops"] = (1.0, NONE)
    del units["OP"], units["b" if "b" in units else "Kb"]
    units["Kb"] = (125.0, BYTES)
    return units


UNITS = _build_units()


def combine_dims(a: Dims, b: Dims, power: int = 1) -> Dims:
    """Return the dimensions of a product, or of a quotient (power -1)."""
    return (a[0] + power * b[0], a[1] + power * b[1], a[2] + power * b[2], a[3] + power * b[3], a[4] + power * b[4])


def parse_unit(name: str) -> tuple[float, Dims] | None:
    """Parse 'GB/s', 'texts per second', 'FLOP/byte' into factor and dimensions; an unknown word counts as 1."""
    parts = [re.sub(rf"^{DEVICE_PREFIX}", "", part, flags=re.I) for part in re.split(r"\s?/\s?|\sper\s", name.strip())]
    factor, dims = 1.0, NONE
    known = False
    for index, part in enumerate(parts):
        unit = UNITS.get(part) or UNITS.get(part.strip("()")) or (UNITS.get(part.lower()) if len(part) > 2 else None)
        if unit is None:
            if len(parts) == 1 or (index and part not in UNITS):
                return None if len(parts) == 1 else ((factor, dims) if known else None)
            continue
        known = True
        if index == 0:
            factor, dims = unit
        else:
            factor, dims = factor / unit[0], combine_dims(dims, unit[1], -1)
    return (factor, dims) if known else None


# --- Quantities

LOOSEST = 0.05  # the largest rounding error that trailing zeros may hide
_SUFFIX = {"k": 1e3, "K": 1e3, "M": 1e6, "m": 1e6, "B": 1e9, "T": 1e12, "G": 1e9}
_SUFFIX |= {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
# A letter after a space: "1 M rows", "5 G × 2 bytes"; but "5 G phones" and "4 K frames" are names, and "5 B" is bytes.
MAGNITUDE = r"(?:\s[kMT]|\s[KG](?!\s[A-Za-z])|(?<!(?<![\d.,])[2-68])\s[KG])(?![\w/%-])"


@dataclass(frozen=True)
class Quantity:
    """One written number: its value in seconds, bytes, dollars, operations or joules, and its precision."""

    value: float
    step: float  # value of one unit of the last written digit
    loose: float  # the same for the last digit that is not a trailing zero, at most 10 % of the value
    dims: Dims
    unit: str  # as written: "ms", "texts/s", "%", "x", ""
    noun: str  # what is counted, in lower case: "texts", "gpus"; or what follows the number
    text: str
    start: int
    end: int
    about: bool = False  # ~, ≈, about
    bound: str = ""  # "<", ">", or "+" for "at least"
    top: float | None = None  # the upper end of a range
    written: float = 0.0  # the number itself, before its unit

    @property
    def share(self) -> bool:
        return self.unit == "%"

    @property
    def factor(self) -> bool:
        return self.unit == "×"

    @property
    def significant(self) -> int:
        """The number of significant digits: three of 4.00, one of 400."""
        figures = re.sub(r"[^\d.]", "", re.sub(r"[A-Za-z/]\S*", "", self.text)).lstrip("0.")
        return len(figures.replace(".", "")) if "." in figures else len(figures.rstrip("0"))

    def interval(self, steps: float = 0.5, loosely: bool = True) -> tuple[float, float]:
        """Return the values that round to this number; `steps` of the last digit to either side."""
        half = steps * (self.loose if loosely else self.step)
        if self.about:
            half = max(half, LOOSEST * abs(self.value))
        return self.value - half, (self.top if self.top is not None else self.value) + half

    def count_interval(self) -> tuple[float, float]:
        """Return the interval of what may be a count: 6,400 and 64 KB are exact, 6.4K and 41 MB are rounded."""
        is_count = self.dims == NONE and self.written == self.value and re.fullmatch(r"[\d,]+", self.text.split()[0])
        is_size = self.dims == BYTES and self.written in _ROUND_SIZES
        return (self.value, self.value) if (is_count or is_size) and not self.about else self.interval(loosely=False)


_ROUND_SIZES = {*(2.0**power for power in range(13)), 10.0, 100.0, 1000.0}
NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,2}(?![\w.]))?|\.\d+"
_WORD = r"[A-Za-zµμ%$][A-Za-zµμ]*"
_PART = rf"(?:{DEVICE_PREFIX})?{_WORD}"
_SPAN = r"(?:second|minute|hour|day|week|month|year)\b"
_FIND = re.compile(
    r"(?P<sign>(?:[~≈<>≤≥]\s?|(?:about|approx\.?|around|roughly|under|over)\s)*)"
    rf"(?P<money>[$€])?(?P<number>{NUMBER})"
    rf"(?:\s?(?:-|–|to)\s?[$€]?(?P<top>{NUMBER}))?"
    rf"(?P<suffix>[kKMBTG](?![A-Za-z/%])|\s(?:thousand|(?:m|b|tr)illion)\b|\s?[kM](?=/[a-z]|\s[a-z]+/s)|{MAGNITUDE})?"
    r"(?P<plus>\+)?"
    r"(?P<unit>\s?%|\s?[x×](?![A-Za-z0-9]|\s?[\d$€(])|-fold\b|"
    rf"(?:\s|-)?(?!per\b|an?\s{_SPAN}){_PART}(?:\s?/\s?{_PART}|\sper\s{_PART})*|/{_PART}|\sper\s{_PART}|(?(money)\san?\s{_SPAN}|(?!)))?"
)
_BEFORE = re.compile(r"[\w.:/#@^_-]$|[A-Za-z]-$|\d,$")
_COUNTED = re.compile(r"\s?[x×](?:(?=[A-Za-z])|\s(?=[A-Z]|[a-z]+-[a-z]+|gpus?\b|nodes?\b|servers?\b))")
_TIMES_FASTER = re.compile(  # "3.2 times faster", "twice" is no number; "run 5 times" is a count
    r"\s?times\s(?:as|the|that|faster|slower|quicker|more|less|fewer|cheaper|better|smaller|larger|bigger|higher|lower|"
    r"shorter|longer)\b"
)
_FACTOR_OF = re.compile(r"\bfactor of\W{0,3}$", re.I)
_VERSION = re.compile(r"\.\d|:\d|/\d{2,}\b(?=/)|-\d\d-|(?:st|nd|rd|th)\b|['’]s|_\w")


def find_quantities(text: str) -> list[Quantity]:
    """Find every quantity of a line; skip versions, dates, addresses and names that contain digits."""
    quantities: list[Quantity] = []
    at = 0
    while match := _FIND.search(text, at):
        at = match.end("number")
        begin = match.start("money") if match["money"] else match.start("number")
        before = text[max(0, begin - 4) : begin]
        if _BEFORE.search(before) and not re.search(r"(?:^|\s|\()[-:/]$", before):
            at = _skip_word(text, at)
            continue
        if _VERSION.match(text, match.end("number")):
            at = _skip_word(text, at)
            continue
        if match["top"] and _is_falling(match):  # "from 40 to 28": two numbers, no range
            text_up_to = text[: match.end("number")]
            match = _FIND.search(text_up_to, match.start()) or match
            quantity = _parse_quantity(text_up_to, match)
        else:
            quantity = _parse_quantity(text, match)
        if quantity is None:
            at = _skip_word(text, at)
            continue
        if quantities and _continues(quantities[-1], quantity, text):
            quantity = _join(quantities.pop(), quantity, text)
        quantities.append(quantity)
        at = max(at, quantity.end)
    return quantities


def _is_falling(match: re.Match[str]) -> bool:
    low, high = (float(match[name].replace(",", "")) for name in ("number", "top"))
    return high <= low and match.string[match.end("number") : match.start("top")].strip() == "to"


def _continues(first: Quantity, second: Quantity, text: str) -> bool:
    """ "6 h 12 min", "1m 30s": one time in two units."""
    if first.dims != TIME or second.dims != TIME or first.top is not None or second.top is not None:
        return False
    small = UNITS.get(second.unit, (0.0, NONE))[0]
    joined = re.fullmatch(r"\s?(?:and\s)?", text[first.end : second.start])
    return bool(joined) and 0 < second.value < first.step and small >= 1e-3 and not second.bound and first.step > small


def _join(first: Quantity, second: Quantity, text: str) -> Quantity:
    return replace(
        first,
        value=first.value + second.value,
        step=second.step,
        loose=second.step,
        text=text[first.start : second.end].strip(),
        end=second.end,
        written=(first.value + second.value) * first.written / first.value if first.value else 0.0,
    )


def _skip_word(text: str, at: int) -> int:
    """Return the offset behind the word that contains a number."""
    while at < len(text) and (text[at].isalnum() or (text[at] in "._:-,/" and text[at + 1 : at + 2].isalnum())):
        at += 1
    return at


def _parse_quantity(text: str, match: re.Match[str]) -> Quantity | None:
    number_text = match["number"].replace(",", "")
    if len(number_text) > 24:
        return None
    number, end = float(number_text), match.end("number")
    scale = 1.0
    suffix = (match["suffix"] or "").strip()
    unit_text = match["unit"] or ""
    if match["top"]:
        end = match.end("top")
    things = re.match(r"\s*(?:param|token|weight|model|row|vector)", text[match.end("suffix") :], re.I)
    power_of_two = number_text.isdigit() and number <= 4096 and int(number) & (int(number) - 1) == 0
    if suffix == "B" and power_of_two and not match["money"] and not things:
        suffix, unit_text = "", "B"  # 8B, 64B: bytes
        end = match.end("suffix")
    if suffix:
        scale, end = _SUFFIX[suffix], match.end("suffix")
    if match["plus"]:
        end = match.end("plus")
    factor, dims, unit, noun = _classify_unit(unit_text, text, match)
    if unit is None:
        return None
    if unit_text and (unit or noun) and match.end("unit") > 0:
        end = match.end("unit") if unit or "/" in unit_text else end
    if match["money"]:
        dims = combine_dims(dims, MONEY)
        unit = "$" + (text[match.end("number") : end].strip() if dims != MONEY else "")
    places = len(number_text.partition(".")[2].partition("e")[0]) if "." in number_text else 0
    exponent = int(number_text.lower().partition("e")[2] or 0)
    step = 10.0 ** (exponent - places)
    loose = step
    if not places and number:
        zeros = len(number_text.partition("e")[0]) - len(number_text.partition("e")[0].rstrip("0"))
        loose = min(step * 10.0**zeros, max(step, 2 * LOOSEST * number / 1.0))
    total_scale = scale * factor
    sign = match["sign"] or ""
    high = float(match["top"].replace(",", "")) if match["top"] else None
    if high is not None and high <= number:
        return None
    bound = (
        "<"
        if re.search(r"[<≤]|under", sign)
        else ">"
        if re.search(r"[>≥]|over", sign)
        else "+"
        if match["plus"]
        else ""
    )
    start = match.start("sign") if sign.strip() else match.start("money") if match["money"] else match.start("number")
    return Quantity(
        value=number * total_scale,
        step=step * total_scale,
        loose=loose * total_scale,
        dims=dims,
        unit=unit,
        noun=noun,
        text=text[start:end].strip(),
        start=start,
        end=end,
        about=bool(re.search(r"[~≈]|about|approx|around|roughly", sign)),
        bound=bound,
        top=None if high is None else high * total_scale,
        written=number * scale,
    )


def _classify_unit(unit_text: str, text: str, match: re.Match[str]) -> tuple[float, Dims, str | None, str]:
    """Return factor, dimensions, the unit as written ('' for none, None if this is no number), and the noun."""
    tight = bool(unit_text) and not unit_text[0].isspace() and unit_text[0] not in "-/"
    name = re.sub(r"^(?:per|an?)\s", "/", unit_text.strip().lstrip("-"))
    after = text[match.end("number") :] if not match["top"] else text[match.end("top") :]
    counted = _COUNTED.match(after)
    if counted and not match["suffix"]:
        return 1.0, NONE, "", after[counted.end() :].split()[0].lower() if after[counted.end() :].split() else ""
    if name in ("x", "×") or unit_text == "-fold":
        return 1.0, NONE, "×", ""
    if name == "%" or after.lstrip().startswith(("percent", "%")):
        return 0.01, NONE, "%", ""
    if (name == "times" and _TIMES_FASTER.match(after)) or (
        not name and _FACTOR_OF.search(text[max(0, match.start("number") - 16) : match.start("number")])
    ):
        return 1.0, NONE, "×", ""
    if not name:
        return 1.0, NONE, "", ""
    parsed = parse_unit(name)
    if parsed is not None and name.lstrip("/")[:1] != "%":
        return parsed[0], parsed[1], name, _get_noun(name)
    if tight and not re.match(r"(?:dim|D|d)\b", name):
        return 1.0, NONE, None, ""
    return 1.0, NONE, "", re.split(r"[\s/]", name)[0].lower()


def _get_noun(name: str) -> str:
    first = re.split(r"[\s/]", name)[0]
    return "" if first in UNITS or parse_unit(first) is not None else first.lower()


def take_unit(bare: Quantity, other: Quantity) -> Quantity:
    """Give a number without a unit that of the next one: "64 of 340 ms", "1,250 vs 432 images/s"."""
    if bare.dims != NONE or bare.unit or bare.noun not in ("", "of", "out", "vs", "versus", "to") or not other.written:
        return bare
    scale = other.value / other.written
    return replace(bare, value=bare.value * scale, step=bare.step * scale, loose=bare.loose * scale, dims=other.dims)


# --- Arithmetic

SLACK = 0.0005  # tolerance on top of the rounding of written numbers
MIXES = tuple(1.024**power for power in range(-3, 4))  # binary beside decimal units
Interval = tuple[float, float]


def overlap(a: Interval, b: Interval, slack: float = 0.0) -> bool:
    margin = slack * max(abs(a[0]), abs(a[1]), abs(b[0]), abs(b[1]))
    return a[0] <= b[1] + margin and b[0] <= a[1] + margin


def multiply(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def divide(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0 <= b[1]:
        return -math.inf, math.inf
    return multiply(a, (1 / b[1], 1 / b[0]))


def compute_factor(stated: float, computed: float) -> float:
    """Return the ratio of the larger to the smaller value; infinity if their signs differ."""
    if stated * computed <= 0:
        return math.inf
    return max(stated / computed, computed / stated)


def find_unit_mixup(factor: float, dims: Dims) -> str | None:
    """Return "MB for MiB" and the like if a factor comes from mixed units, else None."""
    if dims[1] == 0:
        return None
    for power, names in ((1, "KB for KiB"), (2, "MB for MiB"), (3, "GB for GiB"), (4, "TB for TiB")):
        if abs(factor / 1.024**power - 1) < 0.006:
            return names
    return None


def format_value(value: float, dims: Dims) -> str:
    """Format a value in a readable unit.

    >>> format_value(624390.2, RATE), format_value(2133.3, TIME), format_value(6.4e9, BANDWIDTH)
    ('624,390/s', '2,133 s', '6.4 GB/s')
    """
    if dims == TIME:
        for limit, unit, factor in ((1e-6, "ns", 1e9), (1e-3, "µs", 1e6), (1.0, "ms", 1e3), (7200.0, "s", 1.0)):
            if abs(value) < limit:
                return f"{format_number(value * factor)} {unit}"
        return f"{format_number(value / 3600)} h"
    if dims == RATE:
        return f"{format_number(value)}/s"
    if dims == MONEY:
        return f"${value:,.2f}" if abs(value) >= 0.1 else f"${format_number(value)}"
    if dims == PRICE:
        return f"${value * 3600:,.2f}/h"
    if dims in (BYTES, BANDWIDTH, FLOPS):
        name = {BYTES: "B", BANDWIDTH: "B/s", FLOPS: "FLOP/s"}[dims]
        for limit, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= limit:
                return f"{format_number(value / limit)} {prefix}{name}"
        return f"{format_number(value)} {name}"
    return format_number(value) if dims == NONE else f"{format_number(value)} (in other units)"


def format_number(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.3g}"
