"""Titles: the year, the article, and the search for a title that may be misspelt.

>>> parse_year("Usual Suspects, The (1995)"), move_article_first("Usual Suspects, The (1995)")
(1995, 'The Usual Suspects (1995)')
"""

from __future__ import annotations

import heapq
import re
import threading
import unicodedata
from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

from ridgeline.errors import InputError

_YEAR = re.compile(r"\((\d{4})(?:\s*[-–]\s*(?:\d{4})?)?\)\s*$")
_ARTICLE = re.compile(
    r"^(?P<name>.+), (?P<article>The|A|An|La|Le|Les|L'|Il|El|Los|Das|Der|Die)(?P<rest>( \([^()]*\))*)$"
)
# Marks beside, on or around letters of any script, and variation selectors.
_ACCENTS = re.compile(
    "[\u02b0-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\U000e0100-\U000e01ef]"
)
_WORDS = re.compile(r"[a-z0-9\u0080-\U0010ffff]+")
MIN_RATIO = 0.6  # difflib's ratio; below it, two titles are different titles
_LETTER_BINS = 64  # bins of characters
MAX_TITLE_CHARS = 80  # characters of an unknown title in a message


def parse_year(title: str) -> int:
    """Return the year in brackets at the end of a title, 0 without one."""
    match = _YEAR.search(title)
    return int(match[1]) if match else 0


def move_article_first(title: str) -> str:
    """Move the article to the front."""
    match = _ARTICLE.match(title.strip())
    if not match:
        return title.strip()
    blank = "" if match["article"].endswith("'") else " "
    return f"{match['article']}{blank}{match['name']}{match['rest']}"


def normalize_title(title: str) -> str:
    """Remove case, accents and punctuation, so that spellings of a title in any script agree."""
    bare = unicodedata.normalize("NFKD", move_article_first(title))
    if not bare.isascii():
        bare = "".join(filter(_is_significant, _ACCENTS.sub("", bare))).casefold()
    bare = bare.lower()
    words = _WORDS.findall(bare)
    if len(words) < 3 and not _WORDS.search(_YEAR.sub("", bare)):  # a title of signs only
        return " ".join(title.lower().split())
    return " ".join(words)


def _is_significant(letter: str) -> bool:
    """Whether to keep a character: ASCII, letters, numbers, and marks that are part of a word (vowel signs)."""
    return letter.isascii() or unicodedata.category(letter)[0] in "LNM"


class TitleIndex:
    """Finds the row of a title: exact, without its year, by its beginning, or by the most similar spelling."""

    def __init__(self, titles: Sequence[str], popularity: Sequence[float]) -> None:
        self.titles = titles
        self._popularity = popularity  # decides between several matches
        self._lock, self._is_built = threading.Lock(), False

    def _build(self) -> None:
        """Index the titles at the first search: for a million of them it takes longer than the rest of a load."""
        with self._lock:
            if self._is_built:
                return
            self._with_year: dict[str, list[int]] = {}
            self._without_year: dict[str, list[int]] = {}
            for row, title in enumerate(self.titles):
                self._with_year.setdefault(normalize_title(title), []).append(row)
                self._without_year.setdefault(normalize_title(_YEAR.sub("", title)), []).append(row)
            self._spellings = SpellingIndex(list(self._without_year))
            self._is_built = True

    def find(self, title: str) -> tuple[int, bool]:
        """Return (row, whether the spelling was exact); the InputError for an unknown title suggests similar ones."""
        key = normalize_title(title)
        if not key:
            raise InputError("the title is empty; give some of its words.")
        self._build()
        for known in (self._with_year, self._without_year):
            if key in known:
                return self._best(known[key]), True
        prefixed = [row for name, rows in self._without_year.items() if name.startswith(f"{key} ") for row in rows]
        if prefixed:
            return self._best(prefixed), True
        nearest = self._find_similar(key, MIN_RATIO, slack=0.01)  # slack: ratios that round to the same number
        if nearest:
            return nearest[0], False
        suggestions = [self.titles[row] for row in self._find_similar(key, 0.4)]
        hint = (
            f"the nearest are {', '.join(repr(t) for t in suggestions)}"
            if suggestions
            else "search finds films by what they are about"
        )
        short_title = title if len(title) <= MAX_TITLE_CHARS else title[: MAX_TITLE_CHARS - 1] + "…"
        raise InputError(f"there is no title like '{short_title}'; {hint}.")

    def _find_similar(self, key: str, cutoff: float, slack: float = 1.0) -> list[int]:
        names = self._spellings.find_similar(key, 3, cutoff, slack)
        rows = [self._best(self._without_year[name]) for name in names]
        # Equal ratios: the more popular film first.
        return sorted(
            rows,
            key=lambda row: (
                -round(SequenceMatcher(None, key, normalize_title(_YEAR.sub("", self.titles[row]))).ratio(), 2),
                -self._popularity[row],
            ),
        )

    def _best(self, rows: Sequence[int]) -> int:
        return max(rows, key=lambda row: (self._popularity[row], -row))


class SpellingIndex:
    """`difflib.get_close_matches` for many queries to one list of names.

    The letters that two names share bound their ratio from above. One sum gives this bound for all names, so that only
    a few names need the exact ratio.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._lengths = np.array([len(name) for name in names], np.int64)
        self._kind = np.int16 if self._lengths.max(initial=0) <= np.iinfo(np.int16).max else np.int32
        self._letters = np.array([_count_letters(name) for name in names], self._kind).reshape(-1, _LETTER_BINS)

    def find_similar(self, title: str, count: int, cutoff: float, slack: float = 1.0) -> list[str]:
        """Return at most `count` names, the most similar first; names worse by more than `slack` may be missing."""
        name_letters = np.minimum(_count_letters(title), np.iinfo(self._kind).max).astype(
            self._kind
        )  # no name has more
        common = np.minimum(self._letters, name_letters).sum(1, dtype=np.int64)
        total_lengths = self._lengths + len(title)
        upper_bounds = np.where(total_lengths > 0, 2.0 * common / np.maximum(total_lengths, 1), 1.0)
        matcher, matches, best = SequenceMatcher(None, "", title), list[tuple[float, str]](), 0.0
        for at in np.argsort(-upper_bounds, kind="stable").tolist():
            threshold = max(cutoff, best - slack, matches[0][0] if len(matches) == count else 0.0)
            if upper_bounds[at] < threshold:
                break
            matcher.set_seq1(self._names[at])
            if (ratio := matcher.ratio()) >= threshold:
                best = max(best, ratio)
                heapq.heappush(matches, (ratio, self._names[at]))
                if len(matches) > count:
                    heapq.heappop(matches)
        return [name for _, name in sorted(matches, reverse=True)]


def _count_letters(name: str) -> list[int]:
    """Count the letters of a name by bin."""
    counts = [0] * _LETTER_BINS
    for letter in name:
        counts[ord(letter) % _LETTER_BINS] += 1
    return counts
