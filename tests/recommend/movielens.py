"""A small copy of every MovieLens dataset, with its files, columns, quoting and encodings.

All have the same five films, with difficulties of the real ones: a comma and quotes in a title, an accent, a year with
a blank behind it, a span of years, no year, no genres.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

FILMS = [
    (1, "Toy Story (1995)", ["Animation", "Children's", "Comedy"]),
    (11, "American President, The (1995)", ["Comedy", "Drama", "Romance"]),
    (267, '"Great Performances" Cats (1998)', ["Musical"]),
    (648, "Mission: Impossible (1996)", ["Action", "Adventure", "Mystery"]),
    (1175, "Cité des enfants perdus, La (1995)", ["Sci-Fi"]),
]
ODD = [(131262, "Innocence (2014) ", []), (171495, "Cosmos", []), (108583, "Fawlty Towers (1975-1979)", ["Comedy"])]
RATINGS = [(1, 1, 4.0, 964982703), (1, 648, 5.0, 964981247), (2, 11, 3.0, 1445714835), (2, 1175, 1.0, 1445714851)]
HALF_LIVES = [(3, 1, 3.5, 1494535901), (3, 267, 0.5, 1494535902)]
TAGS = [(2, 1, "pixar", 1445714994), (3, 1, "Pixar", 1445714996), (2, 648, 'spies, "heists"', 1445714992)]
GENOME = [(1, "007"), (2, "toys"), (3, "animation")]
RELEVANCE = {1: (0.029, 0.999, 0.985), 11: (0.021, 0.055, 0.041)}
GENRES = [
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama"),
    *("Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
]


def ml_100k(root: Path) -> None:
    lines = []
    for number, title, genres in FILMS:
        flags = "|".join("1" if name in genres else "0" for name in GENRES)
        lines.append(f"{number}|{title}|01-Jan-1995||http://us.imdb.com/M/title-exact?{number}|{flags}")
    lines.append("1358|unknown||||1|" + "|".join("0" * 18))
    write(root / "u.item", lines, "latin-1")
    write(root / "u.data", ["\t".join(f"{v:g}" if isinstance(v, float) else str(v) for v in row) for row in RATINGS])
    write(root / "u.genre", [f"{name}|{n}" for n, name in enumerate(GENRES)] + [""])
    write(root / "u.user", ["1|24|M|technician|85711", "2|53|F|other|94043"])
    write(root / "u.info", ["2 users", "6 items", "4 ratings"])


def ml_1m(root: Path) -> None:
    dat(root, FILMS, RATINGS, "latin-1")
    write(root / "users.dat", ["1::F::1::10::48067", "2::M::56::16::70072"])


def ml_10m(root: Path) -> None:
    dat(root, FILMS, RATINGS + HALF_LIVES, "utf8")
    write(root / "tags.dat", ["::".join(map(str, row)) for row in TAGS])
    write(root / "split_ratings.sh", ["#!/bin/sh"])


def ml_20m(root: Path) -> None:
    csv(root)
    genome(root)


def ml_32m(root: Path) -> None:
    csv(root)
    write(root / "checksums.txt", ["d41d8cd98f00b204e9800998ecf8427e  ratings.csv"])


def dat(root: Path, films: Sequence, ratings: Sequence, encoding: str) -> None:
    write(root / "movies.dat", [f"{i}::{t}::{'|'.join(g)}" for i, t, g in films], encoding)
    write(root / "ratings.dat", [f"{u}::{i}::{s:g}::{t}" for u, i, s, t in ratings])


def csv(root: Path) -> None:
    films = [f"{i},{quote(t)},{'|'.join(g) or '(no genres listed)'}" for i, t, g in FILMS + ODD]
    write(root / "movies.csv", ["movieId,title,genres", *films], end="\r\n")
    rated = [",".join(map(str, row)) for row in RATINGS + HALF_LIVES]
    write(root / "ratings.csv", ["userId,movieId,rating,timestamp", *rated], end="\r\n")
    tags = [f"{u},{i},{quote(word)},{t}" for u, i, word, t in TAGS]
    write(root / "tags.csv", ["userId,movieId,tag,timestamp", *tags], end="\r\n")
    write(root / "links.csv", ["movieId,imdbId,tmdbId", "1,0114709,862", "11,0112346,"], end="\r\n")


def genome(root: Path) -> None:
    write(root / "genome-tags.csv", ["tagId,tag", *(f"{n},{word}" for n, word in GENOME)])
    rows = [f"{item},{n},{value}" for item, values in RELEVANCE.items() for n, value in enumerate(values, 1)]
    write(root / "genome-scores.csv", ["movieId,tagId,relevance", *rows])


def quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"') else text


def write(path: Path, lines: Sequence[str], encoding: str = "utf8", end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode(encoding))


EVERY: dict[str, Callable[[Path], None]] = {
    "ml-100k": ml_100k,
    "ml-1m": ml_1m,
    "ml-10M100K": ml_10m,
    "ml-20m": ml_20m,
    "ml-25m": ml_20m,
    "ml-32m": ml_32m,
    "ml-latest": ml_20m,
    "ml-latest-small": ml_32m,
}
