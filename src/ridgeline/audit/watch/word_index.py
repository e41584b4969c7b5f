"""The words of texts: how many of a query's words a text has, and whether it says the opposite.

    words = WordIndex()
    words.extend(["session opened for user", "session closed for user"])
    shared, contradicts = words.compare("session open", np.array([1, 1]))     # float32 [2] from 0 to 1, bool [2]

The vector of "successful login" is near that of "authentication failure", because both are about logins. So `shared`
rates by BM25 (Robertson and Zaragoza 2009) how many of the query's words a text has, and `contradicts` marks the texts
that have an opposite of a word of the query, and nothing on the query's side.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_SATURATION = 1.2  # k1 of BM25; its b is 0, because the length of a log line says nothing about its relevance
_WORD = re.compile(r"[^\W\d_]+")
_SUFFIX = re.compile(r"(?:fully|ful|ingly|ing|edly|ed|ly|es|s)$")
_SHORTEST = 3  # letters that a word keeps at least
_NEGATIONS = frozenset(("not", "no", "never", "cannot"))
_COMMON = """
    a an and any are as at be been by could did do does for from had has have in into is it its of on or some somebody
    someone something that the then there this to was were what when where which who with
"""
_IGNORED = _NEGATIONS | frozenset(_COMMON.split())
# Words of one side mean nearly the same; the two sides are opposites.
_OPPOSITES = (
    (
        "success successful succeed accept allow permit grant approve authorize valid correct ok",
        "fail failure unsuccessful reject deny refuse forbid forbidden unauthorized invalid incorrect illegal error",
    ),
    ("open", "close shut"),
    ("start begin launch boot", "stop terminate halt shutdown"),
    ("enable activate", "disable deactivate"),
    ("add create insert", "remove delete destroy"),
    ("grant", "revoke"),
    ("connect", "disconnect"),
    ("login logon", "logout logoff"),
    ("lock", "unlock"),
    ("mount", "unmount umount"),
    ("install", "uninstall"),
    ("attach", "detach"),
    ("load", "unload"),
)


def stem(word: str) -> str:
    """Return the stem of a lower-case word: forms of one word have the same stem.

    >>> [stem(word) for word in ("stop", "stopped", "stops", "closing", "close", "denied", "successfully", "success")]
    ['stop', 'stop', 'stop', 'clos', 'clos', 'deny', 'succes', 'succes']
    """
    if word.endswith(("ies", "ied")) and len(word) > _SHORTEST + 1:
        return word[:-3] + "y"
    short = word if word.endswith("ss") else _SUFFIX.sub("", word)
    word = short if len(short) >= _SHORTEST else word
    if len(word) > _SHORTEST and (word[-1] == "e" or word[-1] == word[-2]):
        word = word[:-1]
    return word


def _list_sides() -> dict[str, tuple[str, ...]]:
    sides: dict[str, tuple[str, ...]] = {}
    for number, pair in enumerate(_OPPOSITES):
        for sign, words in zip("+-", pair, strict=True):
            for word in words.split():
                sides[stem(word)] = (*sides.get(stem(word), ()), f"{sign}{number}")
    return sides


_SIDES = _list_sides()  # stem → its sides, such as "+1"; no word starts with a sign


class WordIndex:
    """The words of texts, by row; rows are only added."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, int]] = {}  # stem or side → row → how often the text has it
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, texts: Sequence[str]) -> None:
        for text in texts:
            names = Counter(name for variants in _read_words(text) for name in variants)
            for name, count in names.items():
                self._rows.setdefault(name, {})[self._count] = count
            self._count += 1

    def compare(self, query: str, uses: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return how much of the query's words each text has, [rows] from 0 to 1, and which texts contradict it.

        `uses` [rows] says how many events have the text: a word is rare if few events have it. The total is the rarity
        of all words of the query, also of those that no text has, and at least that of one such word: a text that
        shares only a usual word shares little.
        """
        shared, contradicts = np.zeros(len(self), np.float32), np.zeros(len(self), bool)
        words = list(dict.fromkeys(_read_words(query)))
        events = int(uses.sum())
        unknown = _rate_rarity(0, events)
        total = 0.0
        for variants in words:
            rates, highest = np.zeros(len(self), np.float32), 0.0
            for name in variants:
                if counts := self._rows.get(name):
                    rows, count = np.fromiter(counts, int), np.fromiter(counts.values(), float)
                    rarity = _rate_rarity(int(uses[rows].sum()), events)
                    rates[rows] = np.maximum(rates[rows], rarity * count * (_SATURATION + 1) / (count + _SATURATION))
                    highest = max(highest, rarity)
            shared += rates
            total += highest or unknown
        sides = {name for variants in words for name in variants[1:]}
        for side in sides:
            opposite = _flip(side)
            if opposite not in sides:
                contradicts[[row for row in self._rows.get(opposite, ()) if row not in self._rows.get(side, ())]] = True
        return np.minimum(shared / max(total, unknown), 1, dtype=np.float32), contradicts


def _rate_rarity(having: int, events: int) -> float:
    """Return the inverse document frequency of BM25 for a word that `having` of `events` events have."""
    return math.log(1 + (events - having + 0.5) / (having + 0.5))


def _read_words(text: str) -> list[tuple[str, ...]]:
    """Return for each word its stem and its sides; after "not" or "no" a word is on the other side.

    >>> _read_words("The session was not opened")
    [('session',), ('open', '-1')]
    """
    words = []
    negated = False
    for word in _WORD.findall(text.lower()):
        if word not in _IGNORED:
            name = stem(word)
            sides = _SIDES.get(name, ())
            words.append((name, *(map(_flip, sides) if negated else sides)))
        negated = word in _NEGATIONS
    return words


def _flip(side: str) -> str:
    return ("-" if side[0] == "+" else "+") + side[1:]
