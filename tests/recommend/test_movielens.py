"""Every MovieLens dataset from 100k to 32M reads unchanged; the error names a missing file or a wrong encoding.

python -m pytest tests/recommend/test_movielens.py
"""

from __future__ import annotations

import pytest
from tests.recommend import movielens as ml

from ridgeline.errors import InputError
from ridgeline.recommend import read
from ridgeline.recommend.item_vectors import item_texts

WITH_TAGS = {"ml-10M100K", "ml-20m", "ml-25m", "ml-32m", "ml-latest", "ml-latest-small"}
WITH_GENOME = {"ml-20m", "ml-25m", "ml-latest"}


@pytest.fixture(params=ml.EVERY)
def folder(request, tmp_path):
    ml.EVERY[request.param](tmp_path / request.param)
    return tmp_path / request.param


def test_films_ratings_and_themes_are_read(folder):
    data = read(folder)
    c, r = data.catalogue, data.ratings
    rows = {int(i): row for row, i in enumerate(c.ids)}
    for number, title, genres in ml.FILMS:
        assert c.titles[rows[number]] == title
        assert set(c.genres[rows[number]]) == set(genres)
        assert c.years[rows[number]] == {267: 1998, 648: 1996}.get(number, 1995)
    rated = ml.RATINGS + (ml.HALF_LIVES if folder.name not in ("ml-100k", "ml-1m") else [])
    read_rows = zip(
        data.user_ids[r.users].tolist(), c.ids[r.items].tolist(), r.stars.tolist(), r.times.tolist(), strict=True
    )
    assert sorted(read_rows) == sorted(rated)
    assert data.problems.total() == 0
    summary = data.describe()
    assert (summary["users"], summary["ratings"]) == (len({u for u, *_ in rated}), len(rated))
    assert (summary["from"], summary["to"]) == ("2000-07-30", "2017-05-11" if len(rated) > 4 else "2015-10-24")
    assert (summary["share_with_genome"] > 0) == (folder.name in WITH_GENOME)
    toys = c.themes[rows[1]]
    spies = c.themes[rows[648]]
    if folder.name in WITH_GENOME:
        assert toys == ("toys", "animation", "007")
    else:
        assert toys == (("pixar",) if folder.name in WITH_TAGS else ())
    assert spies == (('spies, "heists"',) if folder.name in WITH_TAGS else ())
    assert item_texts(c)[rows[1175]].startswith("La Cité des enfants perdus (1995). Genres: Sci-Fi.")


def test_unusual_titles_have_the_right_year(tmp_path):
    ml.ml_32m(tmp_path)
    c = read(tmp_path).catalogue
    years = dict(zip(c.ids.tolist(), c.years.tolist(), strict=True))
    assert [years[i] for i in (131262, 171495, 108583)] == [2014, 0, 1975]
    assert c.genres[c.ids.tolist().index(171495)] == ()


NEEDED = [
    *(("ml-100k", name) for name in ("u.item", "u.data")),
    *((size, name) for size in ("ml-1m", "ml-10M100K") for name in ("movies.dat", "ratings.dat")),
    *((size, name) for size in ("ml-25m", "ml-32m") for name in ("movies.csv", "ratings.csv")),
    ("ml-25m", "genome-tags.csv"),
]


@pytest.mark.parametrize(("size", "lost"), NEEDED)
@pytest.mark.parametrize("how", ["gone", "empty"])
def test_a_half_extracted_download_names_the_file(size, lost, how, tmp_path):
    ml.EVERY[size](tmp_path / size)
    path = tmp_path / size / lost
    path.unlink() if how == "gone" else path.write_bytes(b"")
    with pytest.raises(InputError, match=lost.replace(".", r"\.")):
        read(tmp_path / size)


@pytest.mark.parametrize("name", ["movies.csv", "ratings.csv", "tags.csv", "genome-tags.csv"])
@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_letters_that_are_not_utf8_are_named_by_file_and_line(name, encoding, tmp_path):
    ml.ml_20m(tmp_path)
    text = (tmp_path / name).read_text(encoding="utf8") + "é\n"
    (tmp_path / name).write_bytes(text.encode(encoding))
    with pytest.raises(InputError, match=rf"{name} line \d+ is not UTF-8; convert the file"):
        read(tmp_path)


def test_letters_with_a_mark_before_them_are_fine(tmp_path):
    ml.ml_32m(tmp_path)
    path = tmp_path / "movies.csv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read(tmp_path).catalogue) == 8
