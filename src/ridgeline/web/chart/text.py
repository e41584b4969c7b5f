"""Estimate the width of a text without a browser, and cut it to fit.

The widths are those of a wide sans-serif font (DejaVu Sans). The usual system fonts are narrower, so a text that fits
by this estimate fits in a browser.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

LABEL = 12.0  # text sizes in drawing units, the same as in chart.css
TICK = 11.0

_NARROW = frozenset("iIjl.,:;'|!()[]-/\\ ftr")
_WIDE = frozenset("mwMWQOGD%@&—…+<>=~^#")
_MAX_STACKED = 2  # combining marks on a letter; fonts draw further ones side by side
ELLIPSIS = "…"
_MAX_CHARACTERS = 2_000  # no drawing shows more


def estimate_width(text: str, size: float = LABEL) -> float:
    """Return an upper estimate of the width of one line.

    >>> estimate_width("il") < estimate_width("ab") < estimate_width("MW") < estimate_width("界界")
    True
    """
    return size * sum(_list_widths(text))


def fit_text(text: str, max_width: float, size: float = LABEL) -> str:
    """Return the text on one line, cut with an ellipsis if it is wider than `max_width`.

    >>> fit_text("a rather long label", 60)
    'a rathe…'
    """
    text = " ".join(text[:_MAX_CHARACTERS].split())
    if estimate_width(text, size) <= max_width:
        return text
    used, count = estimate_width(ELLIPSIS, size), 0
    for em in _list_widths(text):
        used += size * em
        if used > max_width:
            break
        count += 1
    # Do not separate a combining mark from its character.
    while count and count < len(text) and (_combines(text[count]) or text[count] in "\u200d\ufe0f"):
        count -= 1
    return text[:count].rstrip() + ELLIPSIS


def _list_widths(text: str) -> Iterator[float]:
    stacked = 0
    for char in text:
        stacked = stacked + 1 if _combines(char) else 0
        yield 0.0 if 0 < stacked <= _MAX_STACKED else _get_width(char)


def _combines(char: str) -> bool:
    return char > "\x7f" and unicodedata.category(char) in ("Mn", "Me")


def _get_width(char: str) -> float:
    if char < "\x7f":
        return 0.42 if char in _NARROW else 0.99 if char in _WIDE else 0.72 if char.isupper() else 0.645
    if unicodedata.east_asian_width(char) in "WF" or ord(char) > 0xFFFF:
        return 1.4  # emoji are wider than one em in several fonts
    return 1.0 if char in _WIDE else 0.85 if char.isupper() else 0.75
