"""What is recommended and who liked what: items, ratings, and what was wrong with the files they came from.

python -m pytest tests/recommend/test_read.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, unknown

Whole = NDArray[np.int64]
Real = NDArray[np.float32]
NAMED = 5  # bad rows of one kind that are named; the rest is counted


@dataclass(frozen=True)
class Catalogue:
    """Items by row: `ids` int64 or str [I], `years` 0 where unknown, genres and themes (tags, best first) per item."""

    ids: NDArray[Any]
    titles: Sequence[str]
    years: Whole
    genres: Sequence[tuple[str, ...]]
    themes: Sequence[tuple[str, ...]]
    genome: int = 0  # items whose themes come from the tag genome

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def all_genres(self) -> list[str]:
        return sorted({g for genres in self.genres for g in genres})

    def allowed(self, genre: str | None, years: tuple[int, int] | None) -> NDArray[np.bool_]:
        """bool [I]: the items of a genre (any case) and of a span of years; an unknown year is in no span."""
        keep = np.ones(len(self), bool)
        if genre is not None:
            known = {g.lower(): g for g in self.all_genres}
            wanted = known.get(genre.lower())
            if wanted is None:
                raise unknown("genre", genre, self.all_genres)
            keep &= np.fromiter((wanted in g for g in self.genres), bool, len(self))
        if years is not None:
            keep &= (self.years >= years[0]) & (self.years <= years[1])
        return keep


@dataclass(frozen=True)
class Ratings:
    """One row per rating: rows of users and of items, the stars, seconds since 1970 (0 where unknown)."""

    users: Whole
    items: Whole
    stars: Real
    times: Whole

    def __len__(self) -> int:
        return len(self.users)

    def taken(self, rows: NDArray[Any]) -> Ratings:
        return Ratings(self.users[rows], self.items[rows], self.stars[rows], self.times[rows])


@dataclass
class Problems:
    """Rows that were left out, by kind: how many, and the first few by name."""

    counts: dict[str, int] = field(default_factory=dict)
    named: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, sentence: str, count: int = 1) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + count
        told = self.named.setdefault(kind, [])
        if len(told) < NAMED:
            told.append(sentence)

    def total(self) -> int:
        return sum(self.counts.values())

    def lines(self) -> list[str]:
        """A sentence per kind."""
        return [f"{n:,} left out ({kind}): {'; '.join(self.named[kind])}" for kind, n in self.counts.items()]


@dataclass(frozen=True)
class Dataset:
    name: str
    form: str  # which kind of files it came from
    catalogue: Catalogue
    user_ids: NDArray[Any]
    ratings: Ratings
    problems: Problems

    def without_themes(self) -> Dataset:
        """Titles, years and genres only: what is known of an item before anybody has seen it."""
        bare = replace(self.catalogue, themes=[()] * len(self.catalogue), genome=0)
        return replace(self, catalogue=bare)

    def describe(self) -> dict[str, Any]:
        """Counts, dates and how much of the catalogue has a year, genres, themes, genome."""
        c, r = self.catalogue, self.ratings
        times = r.times[r.times > 0]
        pairs = len(self.user_ids) * len(c)

        def share(have: int) -> float:
            return have / len(c) if len(c) else 0.0

        return {
            "name": self.name,
            "form": self.form,
            "users": len(self.user_ids),
            "items": len(c),
            "ratings": len(r),
            "rated_items": len(np.unique(r.items)),
            "density": len(r) / pairs if pairs else 0.0,
            "from": _day(times.min()) if len(times) else None,
            "to": _day(times.max()) if len(times) else None,
            "share_with_year": share(int((c.years > 0).sum())),
            "share_with_genres": share(sum(map(bool, c.genres))),
            "share_with_themes": share(sum(map(bool, c.themes))),
            "share_with_genome": share(c.genome),
            "stars": {f"{v:g}": int(n) for v, n in zip(*np.unique(r.stars, return_counts=True), strict=True)},
            "left_out": dict(self.problems.counts),
            "left_out_named": {kind: list(told) for kind, told in self.problems.named.items()},
        }


def user_row(user_ids: NDArray[Any], user: object) -> int:
    """The row of a user's id, given as a number or as text."""
    text = user_ids.astype(str)
    found = np.flatnonzero(text == str(user))
    if not len(found):
        from difflib import get_close_matches

        near = get_close_matches(str(user), text.tolist(), n=3, cutoff=0.5)
        hint = f"the nearest are {', '.join(near)}" if near else f"they go from {user_ids[0]} to {user_ids[-1]}"
        raise InputError(f"there is no user '{user}' in this model; {hint}; `new` serves users without ratings.")
    return int(found[0])


def _day(seconds: Any) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).date().isoformat()
