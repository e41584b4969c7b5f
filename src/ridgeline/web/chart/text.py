"""How much room a text takes, without a browser: an upper estimate, and cutting to fit.

The widths are those of a wide sans-serif (DejaVu Sans, which plain Linux desktops show); the usual system
fonts are narrower, so that what fits here fits everywhere.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

LABEL = 12.0  # text sizes in the drawing's units, the same as in chart.css
TICK = 11.0

_NARROW = frozenset("iIjl.,:;'|!()[]-/\\ ftr")
_WIDE = frozenset("mwMWQOGD%@&—…+<>=~^#")
_STACKED = 2  # marks on one letter; fonts set further ones side by side
ELLIPSIS = "…"
_LONGEST = 2_000  # characters looked at; no drawing has room for more


def text_width(text: str, size: float = LABEL) -> float:
    """The width of one line, estimated high.

    >>> text_width("il") < text_width("ab") < text_width("MW") < text_width("界界")
    True
    """
    return size * sum(_ems(text))


def fitted(text: str, room: float, size: float = LABEL) -> str:
    """The text on one line, cut with an ellipsis where it would be wider than `room`.

    >>> fitted("a rather long label", 60)
    'a rathe…'
    """
    text = " ".join(text[:_LONGEST].split())
    if text_width(text, size) <= room:
        return text
    used, kept = text_width(ELLIPSIS, size), 0
    for em in _ems(text):
        used += size * em
        if used > room:
            break
        kept += 1
    # A mark that combines with the character before it must not be cut from it.
    while kept and kept < len(text) and (_combines(text[kept]) or text[kept] in "\u200d\ufe0f"):
        kept -= 1
    return text[:kept].rstrip() + ELLIPSIS


def _ems(text: str) -> Iterator[float]:
    stacked = 0
    for char in text:
        stacked = stacked + 1 if _combines(char) else 0
        yield 0.0 if 0 < stacked <= _STACKED else _em(char)


def _combines(char: str) -> bool:
    return char > "\x7f" and unicodedata.category(char) in ("Mn", "Me")


def _em(char: str) -> float:
    if char < "\x7f":
        return 0.42 if char in _NARROW else 0.99 if char in _WIDE else 0.72 if char.isupper() else 0.645
    if unicodedata.east_asian_width(char) in "WF" or ord(char) > 0xFFFF:
        return 1.4  # emoji are wider than one em in several fonts
    return 1.0 if char in _WIDE else 0.85 if char.isupper() else 0.75
