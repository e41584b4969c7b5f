"""Titles as people write them: the year, the article at its place, and finding one in spite of a slip.

>>> year_of("Usual Suspects, The (1995)"), spoken("Usual Suspects, The (1995)")
(1995, 'The Usual Suspects (1995)')
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from difflib import SequenceMatcher, get_close_matches

from ridgeline.errors import InputError

_YEAR = re.compile(r"\((\d{4})(?:\s*[-–]\s*(?:\d{4})?)?\)\s*$")
_ARTICLE = re.compile(
    r"^(?P<name>.+), (?P<article>The|A|An|La|Le|Les|L'|Il|El|Los|Das|Der|Die)(?P<rest>( \([^()]*\))*)$"
)
CLOSE = 0.6  # of difflib's ratio: below it a title is another title


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
    """Without case, accents and punctuation: what two spellings have in common."""
    bare = unicodedata.normalize("NFKD", spoken(title)).encode("ascii", "ignore").decode().lower()
    return " ".join(re.findall(r"[a-z0-9]+", bare)) or " ".join(title.lower().split())


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
        near = self._near(key)
        if near:
            return near[0], False
        few = [self.titles[row] for row in self._near(key, 0.4)]
        hint = (
            f"the nearest are {', '.join(repr(t) for t in few)}" if few else "search finds films by what they are about"
        )
        raise InputError(f"there is no title like '{wanted}'; {hint}.")

    def _near(self, key: str, cutoff: float = CLOSE) -> list[int]:
        names = get_close_matches(key, self._bare, n=3, cutoff=cutoff)
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
