"""Read a folder of ratings, whichever form it has.

    ridgeline recommend describe ml-latest-small

| form    | files                                                    | comes with                        |
|---------|----------------------------------------------------------|-----------------------------------|
| csv     | movies.csv ratings.csv [tags.csv genome-*.csv]           | latest, latest-small, 20M 25M 32M |
| dat     | movies.dat ratings.dat [tags.dat]                        | 1M, 10M                           |
| 100k    | u.item u.data [u.genre]                                  | 100k                              |
| inter   | NAME.inter NAME.item                                     | RecBole's atomic files            |
| generic | items.(csv|parquet) interactions.(csv|parquet)           | anything else                     |

The generic columns: item, title [year, genres and tags parted by '|'] and user, item [rating, time]. Times are seconds
since 1970; in Parquet they may be timestamps or dates.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.recommend.data import Catalogue, Dataset, Problems, Ratings
from ridgeline.recommend.tables import ID, MOMENT, REAL, TEXT, TOO_MANY, WHOLE, WORDS, read_columns
from ridgeline.recommend.themes import from_genome, from_tags
from ridgeline.recommend.titles import year_of

NO_GENRES = ("(no genres listed)", "unknown", "")
STARS = (0.5, 5.0)  # of every MovieLens
# First the file that tells the form, then the other that it cannot do without.
FORMS = {
    "csv": ("movies.csv", "ratings.csv"),
    "dat": ("movies.dat", "ratings.dat"),
    "100k": ("u.item", "u.data"),
}
RATED = {"user": WHOLE, "item": WHOLE, "rating": REAL, "time": MOMENT}
LAST = 253_402_300_799  # the last second of the year 9999: a larger time is not in seconds
FINER = {"milliseconds": 1_000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}


def read(folder: str | os.PathLike[str]) -> Dataset:
    """A dataset from a folder; what is wrong in it is counted and named in `problems`, or an InputError."""
    root = Path(folder)
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise InputError(f"'{root}' {what}; give the folder that a MovieLens download was extracted to.")
    problems = Problems()
    for form, pair in FORMS.items():
        there = [(root / name).is_file() for name in pair]
        if any(there):
            if not all(there):
                lacking, has = pair[there.index(False)], pair[there.index(True)]
                raise InputError(f"'{root}' has {has} but no {lacking}; extract the whole download again.")
            items, rated = {"csv": _csv, "dat": _dat, "100k": _100k}[form](root, problems)
            return _checked(root.name, form, items, root / pair[1], rated, STARS, problems)
    inter = sorted(root.glob("*.inter"))
    if inter:
        items, rated = _inter(inter[0], problems)
        return _checked(root.name, "inter", items, inter[0], rated, None, problems)
    generic = [next((p for e in ("parquet", "csv") if (p := root / f"{n}.{e}").is_file()), None) for n in GENERIC]
    if any(generic):
        if generic[0] is None or generic[1] is None:
            lacking = GENERIC[generic.index(None)]
            raise InputError(f"'{root}' has no {lacking}.csv or {lacking}.parquet; both files of a pair are needed.")
        items, rated = _generic(generic[0], generic[1], problems)
        return _checked(root.name, "generic", items, generic[1], rated, None, problems)
    known = ", ".join(" + ".join(pair) for pair in FORMS.values())
    raise InputError(
        f"'{root}' holds no ratings that are known here; expected {known}, *.inter or items + interactions."
    )


GENERIC = ("items", "interactions")


def _csv(root: Path, problems: Problems) -> tuple[Catalogue, Mapping[str, Any]]:
    films = read_columns(root / "movies.csv", {"movieId": WHOLE, "title": TEXT, "genres": TEXT}, problems)
    names = {"userId": WHOLE, "movieId": WHOLE, "rating": REAL, "timestamp": WHOLE}
    rated = read_columns(root / "ratings.csv", names, problems)
    ids = films["movieId"].to_numpy()
    themes, genome = from_genome(root, ids, problems)
    if (root / "tags.csv").is_file():
        tags = read_columns(root / "tags.csv", {"movieId": WHOLE, "tag": TEXT}, Problems(), needed=False)
        themes = from_tags(ids, tags["movieId"].to_numpy(), tags["tag"].to_pylist(), themes)
    items = _catalogue(ids, films["title"].to_pylist(), films["genres"].to_pylist(), themes, genome=genome)
    return items, dict(zip(RATED, rated.values(), strict=True))


def _dat(root: Path, problems: Problems) -> tuple[Catalogue, Mapping[str, Any]]:
    how: dict[str, Any] = {"delimiter": "::", "encoding": "latin-1", "quoted": False}
    columns = {"item": WHOLE, "title": TEXT, "genres": TEXT}
    films = read_columns(root / "movies.dat", columns, problems, names=list(columns), **how)
    rated = read_columns(root / "ratings.dat", RATED, problems, names=list(RATED), **how)
    ids = films["item"].to_numpy()
    themes: list[tuple[str, ...]] = [()] * len(ids)
    if (root / "tags.dat").is_file():
        wanted = {"item": WHOLE, "tag": TEXT}
        names = ["user", "item", "tag", "time"]
        tags = read_columns(root / "tags.dat", wanted, Problems(), names=names, needed=False, **how)
        themes = from_tags(ids, tags["item"].to_numpy(), tags["tag"].to_pylist(), themes)
    return _catalogue(ids, films["title"].to_pylist(), films["genres"].to_pylist(), themes), rated


def _100k(root: Path, problems: Problems) -> tuple[Catalogue, Mapping[str, Any]]:
    how: dict[str, Any] = {"delimiter": "|", "encoding": "latin-1", "quoted": False}
    genres = [f"g{n}" for n in range(19)]
    kinds = {"item": WHOLE, "title": TEXT, **dict.fromkeys(genres, TEXT)}
    names = ["item", "title", "released", "video", "link", *genres]
    films = read_columns(root / "u.item", kinds, problems, names=names, **how)
    words = GENRES_100K
    if (root / "u.genre").is_file():
        told = read_columns(root / "u.genre", {"genre": TEXT, "row": TEXT}, Problems(), names=["genre", "row"], **how)
        words = told["genre"].to_pylist() if len(told["genre"]) == len(genres) else words
    flags = np.array([films[g].to_pylist() for g in genres]) == "1"  # [19, I]
    joined = ["|".join(w for w, on in zip(words, column, strict=True) if on) for column in flags.T]
    rated = read_columns(root / "u.data", RATED, problems, names=list(RATED), delimiter="\t")
    ids = films["item"].to_numpy()
    return _catalogue(ids, films["title"].to_pylist(), joined, [()] * len(ids)), rated


GENRES_100K = [
    *(
        "unknown",
        "Action",
        "Adventure",
        "Animation",
        "Children's",
        "Comedy",
        "Crime",
        "Documentary",
        "Drama",
        "Fantasy",
    ),
    *("Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
]


def _inter(path: Path, problems: Problems) -> tuple[Catalogue, Mapping[str, Any]]:
    how: dict[str, Any] = {"delimiter": "\t", "quoted": False}
    kinds = {"user_id": TEXT, "item_id": TEXT, "rating": REAL, "timestamp": REAL}
    rated = read_columns(path, kinds, problems, optional=("rating", "timestamp"), **how)
    text = ("movie_title", "title", "release_year", "class", "genre")
    names = {"item_id": TEXT, **dict.fromkeys(text, TEXT)}
    films = read_columns(path.with_suffix(".item"), names, problems, optional=text, **how)
    titles = films.get("movie_title", films.get("title", films["item_id"])).to_pylist()
    if "release_year" in films:
        years = films["release_year"].to_pylist()
        pairs = zip(titles, years, strict=True)
        titles = [t if year_of(t) or not y.strip().isdigit() else f"{t} ({y.strip()})" for t, y in pairs]
    genres = films.get("class", films.get("genre"))
    parted = [g.strip().replace(" ", "|") for g in genres.to_pylist()] if genres is not None else [""] * len(titles)
    ids = _ids(films["item_id"])
    items = _catalogue(ids, titles, parted, [()] * len(ids))
    found = {"user": rated["user_id"], "item": rated["item_id"]}
    return items, found | {
        new: rated[old] for new, old in (("rating", "rating"), ("time", "timestamp")) if old in rated
    }


def _generic(first: Path, second: Path, problems: Problems) -> tuple[Catalogue, Mapping[str, Any]]:
    more = ("year", "genres", "tags")
    kinds = {"item": ID, "title": TEXT, "year": WHOLE, "genres": WORDS, "tags": WORDS}
    films = read_columns(first, kinds, problems, optional=more)
    rated = read_columns(second, {**RATED, "user": ID, "item": ID}, problems, optional=("rating", "time"))
    ids = _ids(films["item"])
    empty = [""] * len(ids)
    tags = [_parted(t) for t in (films["tags"].to_pylist() if "tags" in films else empty)]
    genres = films["genres"].to_pylist() if "genres" in films else empty
    years = films["year"].to_numpy() if "year" in films else None
    return _catalogue(ids, films["title"].to_pylist(), genres, tags, years=years), rated


def _catalogue(
    ids: NDArray[Any],
    titles: list[str],
    genres: list[Any],
    themes: list[tuple[str, ...]],
    *,
    years: NDArray[Any] | None = None,
    genome: int = 0,
) -> Catalogue:
    if not len(ids):
        raise InputError("the file of items has no rows; extract the whole download again.")
    known, counts = np.unique(ids, return_counts=True)
    if len(known) != len(ids):
        raise InputError(f"item {known[counts > 1][0]} stands more than once in the file of items; keep one row of it.")
    found = np.array([year_of(t) for t in titles], np.int64) if years is None else np.asarray(years, np.int64)
    return Catalogue(ids, titles, found, [_parted(g) for g in genres], themes, genome)


def _parted(words: Any) -> tuple[str, ...]:
    parts = words if isinstance(words, list) else str(words).split("|")
    bare = (str(w).strip() for w in parts if w is not None)
    return tuple(w for w in bare if w not in NO_GENRES)


def _ids(column: Any) -> NDArray[Any]:
    """Ids as numbers where all are, else as text."""
    import pyarrow as pa

    if pa.types.is_integer(column.type):
        return np.asarray(column.to_numpy(), np.int64)
    text = np.array(column.to_pylist(), dtype=str)
    # '007' is not 7: only what a number would be written as again may become one.
    plain = all(t.isascii() and t.isdigit() and (t == "0" or t[0] != "0") and len(t) < 19 for t in text.tolist())
    return text.astype(np.int64) if plain and len(text) else text


def _checked(
    name: str,
    form: str,
    items: Catalogue,
    file: Path,
    rated: Mapping[str, Any],
    stars: tuple[float, float] | None,
    problems: Problems,
) -> Dataset:
    users, wanted = _ids(rated["user"]), _ids(rated["item"])
    count = len(users)
    if not count:
        raise InputError(f"'{name}' has no ratings; extract the whole download again.")
    values = np.asarray(rated["rating"].to_numpy(), np.float32) if "rating" in rated else np.full(count, 5, np.float32)
    times, timed = _moments(file, users, wanted, rated.get("time"))
    if wanted.dtype.kind != items.ids.dtype.kind:
        wanted = wanted.astype(str)
        items_ids = items.ids.astype(str)
    else:
        items_ids = items.ids
    order = np.argsort(items_ids, kind="stable")
    at = np.minimum(np.searchsorted(items_ids, wanted, sorter=order), len(order) - 1)
    rows = order[at]
    there = items_ids[rows] == wanted
    for row in np.flatnonzero(~there)[:5]:
        problems.add("unknown item", f"user {users[row]} rated item {wanted[row]}, which is not in the catalogue", 0)
    if not there.all():
        problems.counts["unknown item"] = int((~there).sum())
    low, high = stars or (-np.inf, np.inf)
    fit = np.isfinite(values) & (values >= low) & (values <= high)
    for row in np.flatnonzero(~fit & there)[:5]:
        told = f"user {users[row]} gave item {wanted[row]} {values[row]:g}, not {low:g} to {high:g}"
        problems.add("rating out of range", told, 0)
    if (~fit & there).any():
        problems.counts["rating out of range"] = int((~fit & there).sum())
    late = np.flatnonzero(~timed & there & fit)
    for row in late[:5]:
        problems.add("time out of range", _mistimed(users[row], wanted[row], rated["time"][int(row)].as_py()), 0)
    if len(late):
        problems.counts["time out of range"] = len(late)
    good = np.flatnonzero(there & fit & timed)
    if not len(good):
        raise InputError(f"no rating of '{name}' can be used: {problems.lines()[0]}; is this the right folder?")
    user_ids, user_rows = np.unique(users[good], return_inverse=True)
    found = Ratings(user_rows.astype(np.int64), rows[good].astype(np.int64), values[good], times[good])
    return Dataset(name, form, items, user_ids, _latest(found, user_ids, items, problems), problems)


def _moments(
    file: Path, users: NDArray[Any], items: NDArray[Any], column: Any
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(seconds since 1970 by row, 0 where there are none; which of them can be seconds); refused where many cannot."""
    if column is None:
        return np.zeros(len(users), np.int64), np.ones(len(users), bool)
    given = np.asarray(column.to_numpy(), np.float64)
    fit = np.abs(given) <= LAST  # what is not a number is not
    wrong = np.flatnonzero(~fit)
    if len(wrong) > max(1, TOO_MANY * len(given)):
        row = int(wrong[0])
        told = _mistimed(users[row], items[row], column[row].as_py())
        raise InputError(f"{file}: {len(wrong):,} of {len(given):,} times are not in seconds since 1970: {told}.")
    return np.where(fit, given, 0.0).astype(np.int64), fit


def _mistimed(user: Any, item: Any, time: float) -> str:
    """The time of a rating that cannot be in seconds, and what it may be in."""
    told = f"user {user} rated item {item} at {time}"
    if not abs(time) <= LAST * max(FINER.values()):
        return f"{told}, which is no time; give seconds"
    unit = next(name for name, parts in FINER.items() if abs(time) <= LAST * parts)
    return f"{told}, which looks like {unit}; divide by {FINER[unit]}"


def _latest(ratings: Ratings, user_ids: NDArray[Any], items: Catalogue, problems: Problems) -> Ratings:
    """One rating per user and item: of several the latest."""
    pair = ratings.users * len(items) + ratings.items
    order = np.lexsort((ratings.times, pair))
    last = np.ones(len(order), bool)
    last[:-1] = pair[order][1:] != pair[order][:-1]
    again = order[~last]
    for row in again[:5]:
        told = f"user {user_ids[ratings.users[row]]} rated item {items.ids[ratings.items[row]]} more than once"
        problems.add("duplicate", told, 0)
    if len(again):
        problems.counts["duplicate"] = len(again)
    return ratings.taken(np.sort(order[last]))
