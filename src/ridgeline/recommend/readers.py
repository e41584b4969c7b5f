"""Read a folder of ratings in one of five formats.

    ridgeline recommend describe ml-latest-small

| form    | files                                                    | comes with                        |
|---------|----------------------------------------------------------|-----------------------------------|
| csv     | movies.csv ratings.csv [tags.csv genome-*.csv]           | latest, latest-small, 20M 25M 32M |
| dat     | movies.dat ratings.dat [tags.dat]                        | 1M, 10M                           |
| 100k    | u.item u.data [u.genre]                                  | 100k                              |
| inter   | NAME.inter NAME.item                                     | RecBole's atomic files            |
| generic | items.(csv|parquet) interactions.(csv|parquet)           | anything else                     |

Generic columns: item, title [year, genres and tags separated by '|'] and user, item [rating, time], or their names in
other formats. Without a column of ratings every row is a like. Year, genres and tags may be empty. Times are seconds
since 1970; in Parquet they may be timestamps or dates. An item's themes are its most relevant tags of the genome, else
the most frequent tags of users.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.recommend.data import Catalogue, Dataset, Problems, Ratings
from ridgeline.recommend.tables import FLOAT, ID, INTEGER, MAX_BAD_SHARE, MOMENT, TEXT, WORDS, read_columns, read_names
from ridgeline.recommend.titles import parse_year

NO_GENRES = ("(no genres listed)", "unknown", "")
STARS = (0.5, 5.0)  # range of every MovieLens dataset
# The two required files of each format: items, ratings.
FORMS = {
    "csv": ("movies.csv", "ratings.csv"),
    "dat": ("movies.dat", "ratings.dat"),
    "100k": ("u.item", "u.data"),
}
RATED = {"user": INTEGER, "item": INTEGER, "rating": FLOAT, "time": MOMENT}
MAX_YEAR = 9_999
MAX_TIME = 253_402_300_799  # the last second of the year 9999; a larger time is not in seconds
FINER_UNITS = {"milliseconds": 1_000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}
INDEX_COLUMNS = ("Unnamed: ", "__index_level_")  # of pandas
GENERIC = ("items", "interactions")
RATING_FILES, HEADERLESS = (".csv", ".tsv", ".parquet"), (".data", ".base", ".test")
SPELLINGS = {
    "user": ("user", "userId", "user_id"),
    "item": ("item", "movieId", "item_id"),
    "rating": ("rating",),
    "time": ("time", "timestamp"),
}
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
MAX_THEMES = 10


def read(folder: str | os.PathLike[str]) -> Dataset:
    """Read a dataset from a folder. Its `problems` count bad rows; a folder without ratings raises InputError."""
    root = Path(folder)
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise InputError(f"'{root}' {what}; give the folder that a MovieLens download was extracted to.")
    problems = Problems()
    for form, file_pair in FORMS.items():
        present = [(root / name).is_file() for name in file_pair]
        if any(present):
            if not all(present):
                missing, existing = file_pair[present.index(False)], file_pair[present.index(True)]
                raise InputError(f"'{root}' has {existing} but no {missing}; extract the whole download again.")
            items, rated = {"csv": _read_csv, "dat": _read_dat, "100k": _read_100k}[form](root, problems)
            return _build_dataset(root.name, form, items, root / file_pair[1], rated, STARS, problems)
    inter = sorted(root.glob("*.inter"))
    if inter:
        items, rated = _read_inter(inter[0], problems)
        return _build_dataset(root.name, "inter", items, inter[0], rated, None, problems)
    generic = [next((p for e in ("parquet", "csv") if (p := root / f"{n}.{e}").is_file()), None) for n in GENERIC]
    if any(generic):
        if generic[0] is None or generic[1] is None:
            missing = GENERIC[generic.index(None)]
            raise InputError(f"'{root}' has no {missing}.csv or {missing}.parquet; both files are required.")
        items, rated = _read_generic(generic[0], generic[1], problems)
        return _build_dataset(root.name, "generic", items, generic[1], rated, None, problems)
    known = ", ".join(" + ".join(file_pair) for file_pair in FORMS.values())
    raise InputError(f"'{root}' holds no known ratings; expected {known}, *.inter or items + interactions.")


def read_ratings(file: str | os.PathLike[str], catalogue: Catalogue) -> Dataset:
    """Read ratings of a catalogue's items from one file.

    A .csv, .tsv or .parquet file has the columns user and item [rating, time], under the names of any format above.
    .data, .base and .test are files of MovieLens 100k, without a header.
    """
    path = Path(file)
    if not path.is_file():
        raise InputError(f"there is no file '{path}'; give one with the columns user, item and rating.")
    problems = Problems()
    if path.suffix in HEADERLESS:
        rated = read_columns(path, RATED, problems, names=list(RATED), delimiter="\t")
        return _build_dataset(path.name, "file", catalogue, path, rated, None, problems)
    if path.suffix not in RATING_FILES:
        raise InputError(f"'{path}' ends in none of {', '.join((*RATING_FILES, *HEADERLESS))}; convert it.")
    return _build_dataset(path.name, "file", catalogue, path, _read_rating_columns(path, problems), None, problems)


def _read_rating_columns(path: Path, problems: Problems) -> dict[str, Any]:
    delimiter = "\t" if path.suffix == ".tsv" else ","
    present = read_names(path, delimiter)
    names = {kind: next((n for n in spellings if n in present), spellings[0]) for kind, spellings in SPELLINGS.items()}
    check_unused_columns(path, present, list(names.values()))
    kinds = {names["user"]: ID, names["item"]: ID, names["rating"]: FLOAT, names["time"]: MOMENT}
    columns = read_columns(path, kinds, problems, delimiter=delimiter, optional=(names["rating"], names["time"]))
    return {kind: columns[name] for kind, name in names.items() if name in columns}


def check_unused_columns(path: Path, present: Sequence[str], used: Sequence[str]) -> None:
    """Refuse ratings without a column 'rating', but with another column that may be meant: stars, plays or event."""
    unused = [name for name in present if name and name not in used and not name.startswith(INDEX_COLUMNS)]
    if "rating" not in present and unused and set(SPELLINGS["user"]) & set(present):
        raise InputError(
            f"{path} has no column 'rating', and its column '{unused[0]:.40}' is not used; rename it to 'rating', or "
            "remove it if every row is a like."
        )


def read_rating_rows(path: Path) -> list[dict[str, Any]]:
    """Read ratings as rows {"user", "item", "rating", "time"}: the rating is 5 and the time missing without a column.

    A row that cannot be read is an error.
    """
    if not path.is_file():
        raise InputError(f"there is no file '{path}'; give one with the columns user, item and rating.")
    if path.suffix not in RATING_FILES:
        raise InputError(f"'{path}' ends in none of {', '.join((*RATING_FILES, '.jsonl'))}; convert it.")
    problems = Problems()
    columns = _read_rating_columns(path, problems)
    if problems.total():
        raise InputError(f"{path}: {problems.lines()[0]}; correct or remove these rows.")
    times = np.asarray(columns["time"].to_numpy(zero_copy_only=False)).tolist() if "time" in columns else None
    users, items = _parse_ids(columns["user"]).tolist(), _parse_ids(columns["item"]).tolist()
    stars = columns["rating"].to_pylist() if "rating" in columns else [5.0] * len(users)
    return [
        {"user": user, "item": item, "rating": star, "time": moment}
        for user, item, star, moment in zip(users, items, stars, times or [None] * len(users), strict=True)
    ]


def themes_from_genome(root: Path, ids: NDArray[Any], problems: Problems) -> tuple[list[tuple[str, ...]], int]:
    """Return the `MAX_THEMES` highest-scored genome tags of each item, and the number of items with tags."""
    no_themes: list[tuple[str, ...]] = [()] * len(ids)
    if not (root / "genome-scores.csv").is_file():
        return no_themes, 0
    words = read_columns(root / "genome-tags.csv", {"tagId": INTEGER, "tag": TEXT}, problems)
    names = dict(zip(words["tagId"].to_pylist(), words["tag"].to_pylist(), strict=True))
    scores = read_columns(
        root / "genome-scores.csv", {"movieId": INTEGER, "tagId": INTEGER, "relevance": FLOAT}, problems
    )
    items, tags, relevance = (np.asarray(c.to_numpy()) for c in scores.values())
    order = np.lexsort((tags, -relevance, items))
    items, tags = items[order], tags[order]
    starts = np.flatnonzero(np.r_[True, items[1:] != items[:-1]]) if len(items) else np.zeros(0, int)
    rows = {int(item): row for row, item in enumerate(ids.tolist())}
    themes_by_row = list(no_themes)
    for start, stop in zip(starts, np.r_[starts[1:], len(items)], strict=True):
        row = rows.get(int(items[start]))
        if row is not None:
            themes_by_row[row] = tuple(
                names[t] for t in tags[start : min(stop, start + MAX_THEMES)].tolist() if t in names
            )
    return themes_by_row, sum(map(bool, themes_by_row))


def themes_from_tags(
    ids: NDArray[Any], items: NDArray[Any], tags: Sequence[str], themes: Sequence[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Give items without themes the `MAX_THEMES` most frequent user tags, in lower case, ties in alphabetical order."""
    rows = {int(item): row for row, item in enumerate(ids.tolist())}
    counts: dict[int, Counter[str]] = {}
    for item, tag in zip(items.tolist(), tags, strict=True):
        row = rows.get(item)
        word = " ".join(tag.lower().split())
        if row is not None and word and not themes[row]:
            counts.setdefault(row, Counter())[word] += 1
    themes_by_row = list(themes)
    for row, tag_counts in counts.items():
        themes_by_row[row] = tuple(
            w for w, _ in sorted(tag_counts.items(), key=lambda pair: (-pair[1], pair[0]))[:MAX_THEMES]
        )
    return themes_by_row


def _read_csv(root: Path, problems: Problems) -> tuple[Catalogue, dict[str, Any]]:
    films = read_columns(root / "movies.csv", {"movieId": INTEGER, "title": TEXT, "genres": TEXT}, problems)
    names = {"userId": INTEGER, "movieId": INTEGER, "rating": FLOAT, "timestamp": INTEGER}
    rated = read_columns(root / "ratings.csv", names, problems)
    ids = films["movieId"].to_numpy()
    themes, genome = themes_from_genome(root, ids, problems)
    if (root / "tags.csv").is_file():
        tags = read_columns(root / "tags.csv", {"movieId": INTEGER, "tag": TEXT}, Problems(), required=False)
        themes = themes_from_tags(ids, tags["movieId"].to_numpy(), tags["tag"].to_pylist(), themes)
    items = _build_catalogue(ids, films["title"].to_pylist(), films["genres"].to_pylist(), themes, genome=genome)
    return items, dict(zip(RATED, rated.values(), strict=True))


def _read_dat(root: Path, problems: Problems) -> tuple[Catalogue, dict[str, Any]]:
    options: dict[str, Any] = {"delimiter": "::", "encoding": "latin-1", "quoted": False}
    columns = {"item": INTEGER, "title": TEXT, "genres": TEXT}
    films = read_columns(root / "movies.dat", columns, problems, names=list(columns), **options)
    rated = read_columns(root / "ratings.dat", RATED, problems, names=list(RATED), **options)
    ids = films["item"].to_numpy()
    themes: list[tuple[str, ...]] = [()] * len(ids)
    if (root / "tags.dat").is_file():
        tag_columns = {"item": INTEGER, "tag": TEXT}
        names = ["user", "item", "tag", "time"]
        tags = read_columns(root / "tags.dat", tag_columns, Problems(), names=names, required=False, **options)
        themes = themes_from_tags(ids, tags["item"].to_numpy(), tags["tag"].to_pylist(), themes)
    return _build_catalogue(ids, films["title"].to_pylist(), films["genres"].to_pylist(), themes), rated


def _read_100k(root: Path, problems: Problems) -> tuple[Catalogue, dict[str, Any]]:
    options: dict[str, Any] = {"delimiter": "|", "encoding": "latin-1", "quoted": False}
    genres = [f"g{n}" for n in range(19)]
    kinds = {"item": INTEGER, "title": TEXT, **dict.fromkeys(genres, TEXT)}
    names = ["item", "title", "released", "video", "link", *genres]
    films = read_columns(root / "u.item", kinds, problems, names=names, **options)
    genre_names = GENRES_100K
    if (root / "u.genre").is_file():
        genre_table = read_columns(
            root / "u.genre", {"genre": TEXT, "row": TEXT}, Problems(), names=["genre", "row"], **options
        )
        genre_names = genre_table["genre"].to_pylist() if len(genre_table["genre"]) == len(genres) else genre_names
    flags = np.array([films[g].to_pylist() for g in genres]) == "1"  # [19, I]
    joined = ["|".join(w for w, on in zip(genre_names, column, strict=True) if on) for column in flags.T]
    rated = read_columns(root / "u.data", RATED, problems, names=list(RATED), delimiter="\t")
    ids = films["item"].to_numpy()
    return _build_catalogue(ids, films["title"].to_pylist(), joined, [()] * len(ids)), rated


def _read_inter(path: Path, problems: Problems) -> tuple[Catalogue, dict[str, Any]]:
    options: dict[str, Any] = {"delimiter": "\t", "quoted": False}
    kinds = {"user_id": ID, "item_id": ID, "rating": FLOAT, "timestamp": FLOAT}
    check_unused_columns(path, [name.partition(":")[0] for name in read_names(path, "\t")], list(kinds))
    rated = read_columns(path, kinds, problems, optional=("rating", "timestamp"), **options)
    text = ("movie_title", "title", "release_year", "class", "genre")
    names = {"item_id": TEXT, **dict.fromkeys(text, TEXT)}
    films = read_columns(path.with_suffix(".item"), names, problems, optional=text, **options)
    titles = films.get("movie_title", films.get("title", films["item_id"])).to_pylist()
    if "release_year" in films:
        years = films["release_year"].to_pylist()
        pairs = zip(titles, years, strict=True)
        titles = [t if parse_year(t) or not y.strip().isdigit() else f"{t} ({y.strip()})" for t, y in pairs]
    genres = films.get("class", films.get("genre"))
    genre_texts = (
        [g.strip().replace(" ", "|") for g in genres.to_pylist()] if genres is not None else [""] * len(titles)
    )
    ids = _parse_ids(films["item_id"])
    items = _build_catalogue(ids, titles, genre_texts, [()] * len(ids))
    columns = {"user": rated["user_id"], "item": rated["item_id"]}
    return items, columns | {
        new: rated[old] for new, old in (("rating", "rating"), ("time", "timestamp")) if old in rated
    }


def _read_generic(first: Path, second: Path, problems: Problems) -> tuple[Catalogue, dict[str, Any]]:
    more = ("year", "genres", "tags")
    # pandas writes a column of years with a gap as 1995.0
    kinds = {"item": ID, "title": TEXT, "year": FLOAT, "genres": WORDS, "tags": WORDS}
    films = read_columns(first, kinds, problems, optional=more, nullable=more)
    rated = _read_rating_columns(second, problems)
    ids = _parse_ids(films["item"])
    empty = [""] * len(ids)
    tags = [_split_words(t) for t in (films["tags"].to_pylist() if "tags" in films else empty)]
    genres = films["genres"].to_pylist() if "genres" in films else empty
    years = _parse_years(films["year"]) if "year" in films else None
    return _build_catalogue(ids, films["title"].to_pylist(), genres, tags, years=years), rated


def _parse_years(column: Any) -> NDArray[np.int64]:
    """Return years as int64; 0 for an empty value and for a number that is no year."""
    values = np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    return np.where((values > 0) & (values <= MAX_YEAR), values, 0.0).astype(np.int64)


def _build_catalogue(
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
        raise InputError(f"item {known[counts > 1][0]} occurs more than once in the file of items; keep one row of it.")
    release_years = np.array([parse_year(t) for t in titles], np.int64)
    if years is not None:
        release_years = np.where(years > 0, years, release_years)
    return Catalogue(ids, titles, release_years, [_split_words(g) for g in genres], themes, genome)


def _split_words(words: Any) -> tuple[str, ...]:
    parts = words if isinstance(words, list) else str(words or "").split("|")
    bare = (str(w).strip() for w in parts if w is not None)
    return tuple(w for w in bare if w not in NO_GENRES)


def _parse_ids(column: Any) -> NDArray[Any]:
    """Return ids as int64 if all are numbers, else as text."""
    import pyarrow as pa

    if pa.types.is_integer(column.type):
        return np.asarray(column.to_numpy(), np.int64)
    text = np.array(column.to_pylist(), dtype=str)
    # '007' is not 7: an id becomes a number only if the number prints the same text.
    plain = all(t.isascii() and t.isdigit() and (t == "0" or t[0] != "0") and len(t) < 19 for t in text.tolist())
    return text.astype(np.int64) if plain and len(text) else text


def _build_dataset(
    name: str,
    form: str,
    items: Catalogue,
    file: Path,
    rated: dict[str, Any],
    stars: tuple[float, float] | None,
    problems: Problems,
) -> Dataset:
    """Build a dataset of the ratings that can be used; `rated` is empty afterwards, to free its columns early."""
    users, rated_items = _parse_ids(rated["user"]), _parse_ids(rated["item"])
    count = len(users)
    if not count:
        raise InputError(f"'{name}' has no ratings; extract the whole download again.")
    values = (
        np.asarray(rated.pop("rating").to_numpy(), np.float32) if "rating" in rated else np.full(count, 5, np.float32)
    )
    times, valid_time = _read_times(file, users, rated_items, rated.get("time"))
    if rated_items.dtype.kind != items.ids.dtype.kind:
        rated_items = rated_items.astype(str)
        items_ids = items.ids.astype(str)
    else:
        items_ids = items.ids
    order = np.argsort(items_ids, kind="stable")
    rows = order[np.minimum(np.searchsorted(items_ids, rated_items, sorter=order), len(order) - 1)]
    known = items_ids[rows] == rated_items
    for row in np.flatnonzero(~known)[:5]:
        problems.add(
            "unknown item", f"user {users[row]} rated item {rated_items[row]}, which is not in the catalogue", 0
        )
    if not known.all():
        problems.counts["unknown item"] = int((~known).sum())
    low, high = stars or (-np.inf, np.inf)
    in_range = np.isfinite(values) & (values >= low) & (values <= high)
    for row in np.flatnonzero(~in_range & known)[:5]:
        sentence = f"user {users[row]} gave item {rated_items[row]} {values[row]:g}, not {low:g} to {high:g}"
        problems.add("rating out of range", sentence, 0)
    if (~in_range & known).any():
        problems.counts["rating out of range"] = int((~in_range & known).sum())
    late = np.flatnonzero(~valid_time & known & in_range)
    for row in late[:5]:
        problems.add(
            "time out of range", _describe_bad_time(users[row], rated_items[row], rated["time"][int(row)].as_py()), 0
        )
    if len(late):
        problems.counts["time out of range"] = len(late)
    rated.clear()
    is_usable = known & in_range & valid_time
    if not is_usable.any():
        raise InputError(f"no rating of '{name}' can be used: {problems.lines()[0]}; is this the right folder?")
    if not is_usable.all():
        users, rows, values, times = users[is_usable], rows[is_usable], values[is_usable], times[is_usable]
    user_ids = np.unique(users)
    # not np.unique's inverse, which takes five times the memory of the result
    ratings = Ratings(np.searchsorted(user_ids, users), rows, values, times)
    del users, rated_items, rows
    return Dataset(name, form, items, user_ids, _keep_latest(ratings, user_ids, items, problems), problems)


def _read_times(
    file: Path, users: NDArray[Any], items: NDArray[Any], column: Any
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return (seconds since 1970 by row, 0 without times; which rows have valid times); too many bad ones raise."""
    if column is None:
        return np.zeros(len(users), np.int64), np.ones(len(users), bool)
    values = np.asarray(column.to_numpy())
    if values.dtype.kind != "i":
        values = values.astype(np.float64)
    fit = (values >= -MAX_TIME) & (values <= MAX_TIME)  # False for NaN
    wrong = np.flatnonzero(~fit)
    if len(wrong) > max(1, MAX_BAD_SHARE * len(values)):
        row = int(wrong[0])
        sentence = _describe_bad_time(users[row], items[row], column[row].as_py())
        raise InputError(f"{file}: {len(wrong):,} of {len(values):,} times are not in seconds since 1970: {sentence}.")
    return np.asarray(values if fit.all() else np.where(fit, values, 0), np.int64), fit


def _describe_bad_time(user: Any, item: Any, time: float) -> str:
    """Describe the time of a rating that cannot be in seconds, and its likely unit."""
    sentence = f"user {user} rated item {item} at {time}"
    if not abs(time) <= MAX_TIME * max(FINER_UNITS.values()):
        return f"{sentence}, which is no time; give seconds"
    unit = next(name for name, parts in FINER_UNITS.items() if abs(time) <= MAX_TIME * parts)
    return f"{sentence}, which looks like {unit}; divide by {FINER_UNITS[unit]}"


def _keep_latest(ratings: Ratings, user_ids: NDArray[Any], items: Catalogue, problems: Problems) -> Ratings:
    """Keep one rating per user and item, the latest."""
    pair = ratings.users * len(items) + ratings.items
    ordered = np.sort(pair)
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    if not len(twice):
        return ratings
    rows = np.flatnonzero(twice[np.minimum(np.searchsorted(twice, pair), len(twice) - 1)] == pair)
    order = rows[np.lexsort((ratings.times[rows], pair[rows]))]
    repeated = order[:-1][pair[order[1:]] == pair[order[:-1]]]
    for row in repeated[:5]:
        sentence = f"user {user_ids[ratings.users[row]]} rated item {items.ids[ratings.items[row]]} more than once"
        problems.add("duplicate", sentence, 0)
    problems.counts["duplicate"] = len(repeated)
    keep = np.ones(len(ratings), bool)
    keep[repeated] = False
    return ratings.select(keep)
