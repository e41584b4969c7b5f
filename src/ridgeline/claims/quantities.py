"""Numbers with their units, as people write them, and how exactly they were written.

>>> [q.text for q in find("60,001 texts in 12.50 s: 4,800 texts/s on an A100 (3.5% of 40 GB)")]
['60,001', '12.50 s', '4,800 texts/s', '3.5%', '40 GB']
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ridgeline.claims.units import (
    BANDWIDTH,
    BYTES,
    ENERGY,
    FLOPS,
    MONEY,
    NONE,
    POWER,
    PRICE,
    RATE,
    TIME,
    UNITS,
    WHOSE,
    WORK,
    Dims,
    combined,
    parse_unit,
)

__all__ = [
    "BANDWIDTH",
    "BYTES",
    "ENERGY",
    "FLOPS",
    "LOOSEST",
    "MAGNITUDE",
    "MONEY",
    "NONE",
    "NUMBER",
    "POWER",
    "PRICE",
    "RATE",
    "TIME",
    "UNITS",
    "WHOSE",
    "WORK",
    "Dims",
    "Quantity",
    "combined",
    "find",
    "parse_unit",
]

LOOSEST = 0.05  # trailing zeros may hide at most this much
_SUFFIX = {"k": 1e3, "K": 1e3, "M": 1e6, "m": 1e6, "B": 1e9, "T": 1e12, "G": 1e9}
_SUFFIX |= {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
# Set apart, "1 M rows", "5 G × 2 bytes"; but "5 G phones" and "4 K frames" have a name, and "5 B" is bytes.
MAGNITUDE = r"(?:\s[kMT]|\s[KG](?!\s[A-Za-z])|(?<!(?<![\d.,])[2-68])\s[KG])(?![\w/%-])"


@dataclass(frozen=True)
class Quantity:
    """One written number: its value in seconds, bytes, dollars, operations, and the step of its last digit."""

    value: float
    step: float  # of the last written digit
    loose: float  # of the last digit that is not a trailing zero, within reason
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
        """How many digits are given: of 4.00 three, of 400 one."""
        digits = re.sub(r"[^\d.]", "", re.sub(r"[A-Za-z/]\S*", "", self.text)).lstrip("0.")
        return len(digits.replace(".", "")) if "." in digits else len(digits.rstrip("0"))

    def interval(self, steps: float = 0.5, loosely: bool = True) -> tuple[float, float]:
        """What may have been rounded to this; `steps` of the last digit to either side."""
        half = steps * (self.loose if loosely else self.step)
        if self.about:
            half = max(half, LOOSEST * abs(self.value))
        return self.value - half, (self.top if self.top is not None else self.value) + half


NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d{1,2}(?![\w.]))?|\.\d+"
_WORD = r"[A-Za-zµμ%$][A-Za-zµμ]*"
_PART = rf"(?:{WHOSE})?{_WORD}"
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
_TIMES = re.compile(  # "3.2 times faster", "twice" is no number; "run 5 times" is a count
    r"\s?times\s(?:as|the|that|faster|slower|quicker|more|less|fewer|cheaper|better|smaller|larger|bigger|higher|lower|"
    r"shorter|longer)\b"
)
_FACTOR_OF = re.compile(r"\bfactor of\W{0,3}$", re.I)
_VERSION = re.compile(r"\.\d|:\d|/\d{2,}\b(?=/)|-\d\d-|(?:st|nd|rd|th)\b|['’]s|_\w")


def find(text: str) -> list[Quantity]:
    """Every quantity of a line; versions, dates, addresses and names with digits in them are passed over."""
    found: list[Quantity] = []
    at = 0
    while match := _FIND.search(text, at):
        at = match.end("number")
        begin = match.start("money") if match["money"] else match.start("number")
        before = text[max(0, begin - 4) : begin]
        if _BEFORE.search(before) and not re.search(r"(?:^|\s|\()[-:/]$", before):
            at = _past(text, at)
            continue
        if _VERSION.match(text, match.end("number")):
            at = _past(text, at)
            continue
        if match["top"] and _falls(match):  # "from 40 to 28": two numbers, no range
            text_up_to = text[: match.end("number")]
            match = _FIND.search(text_up_to, match.start()) or match
            made = _quantity(text_up_to, match)
        else:
            made = _quantity(text, match)
        if made is None:
            at = _past(text, at)
            continue
        if found and _goes_on(found[-1], made, text):
            made = _together(found.pop(), made, text)
        found.append(made)
        at = max(at, made.end)
    return found


def _falls(match: re.Match[str]) -> bool:
    low, high = (float(match[name].replace(",", "")) for name in ("number", "top"))
    return high <= low and match.string[match.end("number") : match.start("top")].strip() == "to"


def _goes_on(first: Quantity, second: Quantity, text: str) -> bool:
    """ "6 h 12 min", "1m 30s": one time in two units."""
    if first.dims != TIME or second.dims != TIME or first.top is not None or second.top is not None:
        return False
    small = UNITS.get(second.unit, (0.0, NONE))[0]
    near = re.fullmatch(r"\s?(?:and\s)?", text[first.end : second.start])
    return bool(near) and 0 < second.value < first.step and small >= 1e-3 and not second.bound and first.step > small


def _together(first: Quantity, second: Quantity, text: str) -> Quantity:
    return replace(
        first,
        value=first.value + second.value,
        step=second.step,
        loose=second.step,
        text=text[first.start : second.end].strip(),
        end=second.end,
        written=(first.value + second.value) * first.written / first.value if first.value else 0.0,
    )


def _past(text: str, at: int) -> int:
    """Behind the word a number belongs to."""
    while at < len(text) and (text[at].isalnum() or (text[at] in "._:-,/" and text[at + 1 : at + 2].isalnum())):
        at += 1
    return at


def _quantity(text: str, match: re.Match[str]) -> Quantity | None:
    digits = match["number"].replace(",", "")
    if len(digits) > 24:
        return None
    number, end = float(digits), match.end("number")
    scale = 1.0
    suffix = (match["suffix"] or "").strip()
    unit_text = match["unit"] or ""
    if match["top"]:
        end = match.end("top")
    things = re.match(r"\s*(?:param|token|weight|model|row|vector)", text[match.end("suffix") :], re.I)
    power_of_two = digits.isdigit() and number <= 4096 and int(number) & (int(number) - 1) == 0
    if suffix == "B" and power_of_two and not match["money"] and not things:
        suffix, unit_text = "", "B"  # 8B, 64B: bytes
        end = match.end("suffix")
    if suffix:
        scale, end = _SUFFIX[suffix], match.end("suffix")
    if match["plus"]:
        end = match.end("plus")
    factor, dims, unit, noun = _unit(unit_text, text, match)
    if unit is None:
        return None
    if unit_text and (unit or noun) and match.end("unit") > 0:
        end = match.end("unit") if unit or "/" in unit_text else end
    if match["money"]:
        dims = combined(dims, MONEY)
        unit = "$" + (text[match.end("number") : end].strip() if dims != MONEY else "")
    places = len(digits.partition(".")[2].partition("e")[0]) if "." in digits else 0
    exponent = int(digits.lower().partition("e")[2] or 0)
    step = 10.0 ** (exponent - places)
    loose = step
    if not places and number:
        zeros = len(digits.partition("e")[0]) - len(digits.partition("e")[0].rstrip("0"))
        loose = min(step * 10.0**zeros, max(step, 2 * LOOSEST * number / 1.0))
    whole = scale * factor
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
        value=number * whole,
        step=step * whole,
        loose=loose * whole,
        dims=dims,
        unit=unit,
        noun=noun,
        text=text[start:end].strip(),
        start=start,
        end=end,
        about=bool(re.search(r"[~≈]|about|approx|around|roughly", sign)),
        bound=bound,
        top=None if high is None else high * whole,
        written=number * scale,
    )


def _unit(unit_text: str, text: str, match: re.Match[str]) -> tuple[float, Dims, str | None, str]:
    """Factor, dimension, the unit as written ('' for none, None for 'this is no number'), the noun."""
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
    if (name == "times" and _TIMES.match(after)) or (
        not name and _FACTOR_OF.search(text[max(0, match.start("number") - 16) : match.start("number")])
    ):
        return 1.0, NONE, "×", ""
    if not name:
        return 1.0, NONE, "", ""
    parsed = parse_unit(name)
    if parsed is not None and name.lstrip("/")[:1] != "%":
        return parsed[0], parsed[1], name, _noun(name)
    if tight and not re.match(r"(?:dim|D|d)\b", name):
        return 1.0, NONE, None, ""
    return 1.0, NONE, "", re.split(r"[\s/]", name)[0].lower()


def _noun(name: str) -> str:
    first = re.split(r"[\s/]", name)[0]
    return "" if first in UNITS or parse_unit(first) is not None else first.lower()
