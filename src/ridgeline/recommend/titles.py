"""Titles as people write them: the year, the article at its place, and finding one in spite of a slip.

>>> year_of("Usual Suspects, The (1995)"), spoken("Usual Suspects, The (1995)")
(1995, 'The Usual Suspects (1995)')
"""

from __future__ import annotations

import heapq
import re
import unicodedata
from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

from ridgeline.errors import InputError

_YEAR = re.compile(r"\((\d{4})(?:\s*[-–]\s*(?:\d{4})?)?\)\s*$")
_ARTICLE = re.compile(
    r"^(?P<name>.+), (?P<article>The|A|An|La|Le|Les|L'|Il|El|Los|Das|Der|Die)(?P<rest>( \([^()]*\))*)$"
)
# Marks set beside, on or around letters of any script, and those that only choose how a character is drawn.
_ACCENTS = re.compile(
    "[\u02b0-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\U000e0100-\U000e01ef]"
)
_WORDS = re.compile(r"[a-z0-9\u0080-\U0010ffff]+")
CLOSE = 0.6  # of difflib's ratio: below it a title is another title
_LETTERS = 64  # bins of characters
SHOWN = 80  # characters of a title that was not found


def year_of(title: str) -> int:
    """The year in brackets at the end, 0 if there is none."""
    found = _YEAR.search(title)
    return int(found[1]) if found else 0


def spoken(title: str) -> str:
    """The article in front again."""
    found = _ARTICLE.match(title.strip())
    if not found:
        return title.strip()
    blank = "" if found["article"].endswith("'") else " "
    return f"{found['article']}{blank}{found['name']}{found['rest']}"


def folded(title: str) -> str:
    """Without case, accents and punctuation: what two spellings have in common, in any script."""
    bare = unicodedata.normalize("NFKD", spoken(title))
    if not bare.isascii():
        bare = "".join(filter(_kept, _ACCENTS.sub("", bare))).casefold()
    bare = bare.lower()
    words = _WORDS.findall(bare)
    if len(words) < 3 and not _WORDS.search(_YEAR.sub("", bare)):  # all signs but for the year: those are its name
        return " ".join(title.lower().split())
    return " ".join(words)


def _kept(letter: str) -> bool:
    """Of other scripts letters, numbers and the marks that are part of a word, such as vowel signs; all of ASCII."""
    return letter.isascii() or unicodedata.category(letter)[0] in "LNM"


class Titles:
    """Finds a title's row: as written, without its year, as a beginning, or the nearest spelling."""

    def __init__(self, titles: Sequence[str], weight: Sequence[float]) -> None:
        self.titles = titles
        self._weight = weight  # of several fitting titles the one most people know is meant
        self._whole: dict[str, list[int]] = {}
        self._bare: dict[str, list[int]] = {}
        for row, title in enumerate(titles):
            self._whole.setdefault(folded(title), []).append(row)
            self._bare.setdefault(folded(_YEAR.sub("", title)), []).append(row)
        self._spellings = Spellings(list(self._bare))

    def find(self, wanted: str) -> tuple[int, bool]:
        """(row, whether it was found as written); an InputError with the nearest titles where nothing is near."""
        key = folded(wanted)
        if not key:
            raise InputError("the title is empty; give some of its words.")
        for known in (self._whole, self._bare):
            if key in known:
                return self._best(known[key]), True
        begins = [row for name, rows in self._bare.items() if name.startswith(f"{key} ") for row in rows]
        if begins:
            return self._best(begins), True
        near = self._near(key, CLOSE, slack=0.01)  # only what rounds to the same likeness can be the first
        if near:
            return near[0], False
        few = [self.titles[row] for row in self._near(key, 0.4)]
        hint = (
            f"the nearest are {', '.join(repr(t) for t in few)}" if few else "search finds films by what they are about"
        )
        shown = wanted if len(wanted) <= SHOWN else wanted[: SHOWN - 1] + "…"
        raise InputError(f"there is no title like '{shown}'; {hint}.")

    def _near(self, key: str, cutoff: float, slack: float = 1.0) -> list[int]:
        names = self._spellings.near(key, 3, cutoff, slack)
        rows = [self._best(self._bare[name]) for name in names]
        # Equal likeness: the better known film.
        return sorted(
            rows,
            key=lambda row: (
                -round(SequenceMatcher(None, key, folded(_YEAR.sub("", self.titles[row]))).ratio(), 2),
                -self._weight[row],
            ),
        )

    def _best(self, rows: Sequence[int]) -> int:
        return max(rows, key=lambda row: (self._weight[row], -row))


class Spellings:
    """`difflib.get_close_matches` for one list of names asked many times.

    Two names cannot be more alike than the letters they have in common; for all names at once that is one sum. So only
    the few that could be among the nearest are looked at letter by letter.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._lengths = np.array([len(name) for name in names], np.int64)
        self._kind = np.int16 if self._lengths.max(initial=0) <= np.iinfo(np.int16).max else np.int32
        self._letters = np.array([_letters(name) for name in names], self._kind).reshape(-1, _LETTERS)

    def near(self, wanted: str, count: int, cutoff: float, slack: float = 1.0) -> list[str]:
        """At most `count` names, the nearest first; those further from it than `slack` may be left out."""
        asked = np.minimum(_letters(wanted), np.iinfo(self._kind).max).astype(self._kind)  # no name has more
        common = np.minimum(self._letters, asked).sum(1, dtype=np.int64)
        both = self._lengths + len(wanted)
        most = np.where(both > 0, 2.0 * common / np.maximum(both, 1), 1.0)
        matcher, found, best = SequenceMatcher(None, "", wanted), list[tuple[float, str]](), 0.0
        for at in np.argsort(-most, kind="stable").tolist():
            least = max(cutoff, best - slack, found[0][0] if len(found) == count else 0.0)
            if most[at] < least:
                break
            matcher.set_seq1(self._names[at])
            if (ratio := matcher.ratio()) >= least:
                best = max(best, ratio)
                heapq.heappush(found, (ratio, self._names[at]))
                if len(found) > count:
                    heapq.heappop(found)
        return [name for _, name in sorted(found, reverse=True)]


def _letters(name: str) -> list[int]:
    """How often it has the letters of each bin."""
    found = [0] * _LETTERS
    for letter in name:
        found[ord(letter) % _LETTERS] += 1
    return found
