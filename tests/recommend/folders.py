"""The same few films and ratings in every supported format."""

from __future__ import annotations

from pathlib import Path

FILMS = [
    (1, "Toy Story (1995)", "Animation|Comedy"),
    (2, "Usual Suspects, The (1995)", "Crime|Thriller"),
    (7, "Amélie (2001)", "Comedy|Romance"),
    (9, "Untitled Study", "(no genres listed)"),
]
RATINGS = [(1, 1, 4.0, 100), (1, 2, 5.0, 200), (2, 7, 3.0, 300), (2, 1, 1.0, 400), (3, 9, 5.0, 500)]


def csv(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    films = "".join(f'{i},"{t}",{g}\n' for i, t, g in FILMS)
    (folder / "movies.csv").write_text("movieId,title,genres\n" + films)
    rated = "".join(f"{u},{i},{s},{t}\n" for u, i, s, t in RATINGS)
    (folder / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + rated)
    return folder


def many(folder: Path, users: int = 12, films: int = 15) -> Path:
    """As csv, with enough likes of every user to hold some out."""
    folder.mkdir(parents=True, exist_ok=True)
    names = "".join(f"{i},Film {i} ({1980 + i}),Drama\n" for i in range(1, films + 1))
    (folder / "movies.csv").write_text("movieId,title,genres\n" + names)
    rated = [
        f"{u},{1 + (u + 2 * n) % films},{5 - n % 2}.0,{1000 * u + n}\n" for u in range(1, users + 1) for n in range(7)
    ]
    (folder / "ratings.csv").write_text("userId,movieId,rating,timestamp\n" + "".join(rated))
    return folder


def dat(folder: Path, encoding: str = "latin-1") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "movies.dat").write_bytes("".join(f"{i}::{t}::{g}\n" for i, t, g in FILMS).encode(encoding))
    (folder / "ratings.dat").write_text("".join(f"{u}::{i}::{s:g}::{t}\n" for u, i, s, t in RATINGS))
    return folder


def hundred_k(folder: Path) -> Path:
    names = "unknown Action Adventure Animation Children's Comedy Crime Documentary Drama Fantasy Film-Noir Horror"
    names = [*names.split(), "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"]
    folder.mkdir(exist_ok=True)
    lines = [
        f"{i}|{t}|01-Jan-1995||http://link|" + "|".join(str(int(n in g.split("|"))) for n in names) for i, t, g in FILMS
    ]
    (folder / "u.item").write_bytes(("\n".join(lines) + "\n").encode("latin-1"))
    (folder / "u.data").write_text("".join(f"{u}\t{i}\t{s:g}\t{t}\n" for u, i, s, t in RATINGS))
    return folder


def inter(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    films = "".join(f"{i}\t{t}\t{g.replace('|', ' ') if 'no' not in g else ''}\n" for i, t, g in FILMS)
    (folder / "x.item").write_text("item_id:token\tmovie_title:token_seq\tclass:token_seq\n" + films)
    rated = "".join(f"{u}\t{i}\t{s}\t{t}\n" for u, i, s, t in RATINGS)
    (folder / "x.inter").write_text("user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + rated)
    return folder


def generic_csv(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    films = "".join(f'{i},"{t}",{g}\n' for i, t, g in FILMS)
    (folder / "items.csv").write_text("item,title,genres\n" + films)
    rated = "".join(f"{u},{i},{s},{t}\n" for u, i, s, t in RATINGS)
    (folder / "interactions.csv").write_text("user,item,rating,time\n" + rated)
    return folder


def generic_parquet(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    ids, titles, genres = zip(*FILMS, strict=True)
    table = pa.table({"item": list(ids), "title": list(titles), "genres": [g.split("|") for g in genres]})
    pq.write_table(table, folder / "items.parquet")
    users, items, stars, times = zip(*RATINGS, strict=True)
    columns = {"user": list(users), "item": list(items), "rating": list(stars), "time": list(times)}
    pq.write_table(pa.table(columns), folder / "interactions.parquet")
    return folder


EVERY = {f.__name__: f for f in (csv, dat, hundred_k, inter, generic_csv, generic_parquet)}
