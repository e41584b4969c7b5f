"""Items, ratings, histories of users, and the bad rows of the files that they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, unknown

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
MAX_EXAMPLES = 5  # bad rows of one kind to describe; the rest is only counted


@dataclass(frozen=True)
class Catalogue:
    """Items by row: `ids` int64 or str [I], `years` (0: unknown), genres and themes (tags, best first) per item.

    `texts` are descriptions beside the title, `removed` bool [I] marks items that are not recommended any more.
    """

    ids: NDArray[Any]
    titles: Sequence[str]
    years: Ints
    genres: Sequence[tuple[str, ...]]
    themes: Sequence[tuple[str, ...]]
    genome: int = 0  # number of items with themes from the tag genome
    texts: Sequence[str] = ()
    removed: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def all_genres(self) -> list[str]:
        return sorted({g for genres in self.genres for g in genres})

    def find_allowed(self, genre: str | None, years: tuple[int, int] | None) -> NDArray[np.bool_]:
        """Return bool [I]: items of a genre (any case) and of a span of years, without removed items. An unknown year
        is in no span."""
        keep = np.ones(len(self), bool) if self.removed is None else ~self.removed
        if genre is not None:
            known = {g.lower(): g for g in self.all_genres}
            genre_name = known.get(genre.lower())
            if genre_name is None:
                raise unknown("genre", genre, self.all_genres)
            keep &= np.fromiter((genre_name in g for g in self.genres), bool, len(self))
        if years is not None:
            keep &= (self.years >= years[0]) & (self.years <= years[1])
        return keep


@dataclass(frozen=True)
class Ratings:
    """One entry per rating: rows of user and item, stars, and seconds since 1970 (0: unknown)."""

    users: Ints
    items: Ints
    stars: Floats
    times: Ints

    def __len__(self) -> int:
        return len(self.users)

    def select(self, rows: NDArray[Any]) -> Ratings:
        return Ratings(self.users[rows], self.items[rows], self.stars[rows], self.times[rows])


@dataclass
class Problems:
    """Rows left out of a dataset: their number by kind, and sentences about the first ones."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, sentence: str, count: int = 1) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + count
        examples = self.examples.setdefault(kind, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append(sentence)

    def total(self) -> int:
        return sum(self.counts.values())

    def lines(self) -> list[str]:
        """Return one sentence per kind."""
        return [f"{n:,} left out ({kind}): {'; '.join(self.examples[kind])}" for kind, n in self.counts.items()]


@dataclass(frozen=True)
class Dataset:
    """A catalogue, its users and their ratings."""

    name: str
    form: str  # which kind of files it came from
    catalogue: Catalogue
    user_ids: NDArray[Any]
    ratings: Ratings
    problems: Problems

    def without_themes(self) -> Dataset:
        """Return this dataset with titles, years and genres only: the information about a new item."""
        bare = replace(self.catalogue, themes=[()] * len(self.catalogue), genome=0)
        return replace(self, catalogue=bare)

    def describe(self) -> dict[str, Any]:
        """Return counts, dates and the shares of items with a year, genres, themes and genome."""
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
            "left_out_named": {kind: list(examples) for kind, examples in self.problems.examples.items()},
        }


def find_user_row(user_ids: NDArray[Any], user: object) -> int:
    """Return the row of a user's id, a number or text; the error suggests similar ids."""
    text = user_ids.astype(str)
    rows = np.flatnonzero(text == str(user))
    if not len(rows):
        from difflib import get_close_matches

        similar_ids = get_close_matches(str(user), text.tolist(), n=3, cutoff=0.5)
        hint = (
            f"the nearest are {', '.join(similar_ids)}"
            if similar_ids
            else f"they go from {user_ids[0]} to {user_ids[-1]}"
        )
        raise InputError(f"there is no user '{user}' in this model; {hint}; `new` serves users without ratings.")
    return int(rows[0])


def plain_ids(ids: NDArray[Any]) -> NDArray[Any]:
    """Return ids as numbers if all are numbers, else as texts.

    >>> plain_ids(np.array([1, "a"], object)).tolist()
    ['1', 'a']
    """
    if ids.dtype != object:
        return ids
    return ids.astype(np.int64) if all(isinstance(value, int) for value in ids.tolist()) else ids.astype(str)


def _day(seconds: Any) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).date().isoformat()


@dataclass(frozen=True)
class Histories:
    """The likes of n users as compressed rows: `items`, `stars` and `times` of user u are at starts[u]:starts[u + 1].

    Entries are sorted by time, oldest first. `width` is the number of items. `now` [n] is the moment of each user's
    request: a model must not use later likes.
    """

    starts: Ints
    items: Ints
    stars: Floats
    times: Ints
    width: int
    now: Ints

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Ints:
        return np.diff(self.starts)

    @property
    def users(self) -> Ints:
        """The user row of every entry."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def ages(self) -> Ints:
        """The number of newer entries of the same user, for every entry: 0 is the latest."""
        return np.repeat(self.starts[1:], self.lengths) - 1 - np.arange(len(self.items))

    def matrix(self, weights: NDArray[Any] | None = None) -> Any:
        """Return a SciPy CSR matrix [n, width] of ones, or of `weights`, one per entry."""
        from scipy.sparse import csr_matrix

        values = np.ones(len(self.items), np.float32) if weights is None else np.asarray(weights, np.float32)
        return csr_matrix((values, self.items, self.starts), shape=(len(self), self.width))

    def select(self, users: NDArray[Any]) -> Histories:
        """Return the histories of some users, in the order of `users`."""
        users = np.asarray(users, np.int64)
        lengths = self.starts[users + 1] - self.starts[users]
        starts = np.r_[0, np.cumsum(lengths)]
        rows = np.repeat(self.starts[users] - starts[:-1], lengths) + np.arange(starts[-1])
        return replace(
            self,
            starts=starts,
            items=self.items[rows],
            stars=self.stars[rows],
            times=self.times[rows],
            now=self.now[users],
        )

    def at_moment(self, moment: int) -> Histories:
        return replace(self, now=np.full(len(self), moment, np.int64))


def build_histories(ratings: Ratings, users: int, width: int) -> Histories:
    """Build the histories of `users` users; the moment of request is each user's last rating."""
    order = np.lexsort((ratings.times, ratings.users))  # stable: equal times keep the order of the file
    starts = np.r_[0, np.cumsum(np.bincount(ratings.users, minlength=users))].astype(np.int64)
    times = ratings.times[order]
    now = np.zeros(users, np.int64)
    some = np.diff(starts) > 0
    now[some] = times[starts[1:][some] - 1]
    return Histories(starts, ratings.items[order], ratings.stars[order], times, width, now)


def build_single_history(items: NDArray[Any], stars: NDArray[Any], width: int, now: int) -> Histories:
    """Build the history of one new user from liked items, in the order of `items`."""
    count = len(items)
    return Histories(
        np.array([0, count], np.int64),
        np.asarray(items, np.int64),
        np.asarray(stars, np.float32),
        np.full(count, now, np.int64),
        width,
        np.array([now], np.int64),
    )
