"""Every form reads to the same data; what is wrong is named, by file and line.

python -m pytest tests/recommend/test_read.py
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.recommend import folders

from ridgeline.errors import InputError
from ridgeline.recommend import read


@pytest.mark.parametrize("form", folders.EVERY)
def test_every_form_gives_the_same_films_and_ratings(form, tmp_path):
    data = read(folders.EVERY[form](tmp_path / form))
    c, r = data.catalogue, data.ratings
    assert c.ids.tolist() == [1, 2, 7, 9]
    assert list(c.titles) == [t for _, t, _ in folders.FILMS]
    assert c.years.tolist() == [1995, 1995, 2001, 0]
    assert [set(g) for g in c.genres] == [{"Animation", "Comedy"}, {"Crime", "Thriller"}, {"Comedy", "Romance"}, set()]
    got = zip(data.user_ids[r.users].tolist(), c.ids[r.items].tolist(), r.stars.tolist(), r.times.tolist(), strict=True)
    assert sorted(got) == sorted(folders.RATINGS)
    assert data.problems.total() == 0


def test_ten_million_is_utf8_where_one_million_is_latin_1(tmp_path):
    assert read(folders.dat(tmp_path / "m", "utf8")).catalogue.titles[2] == "Amélie (2001)"


def appended(folder, lines: str):
    with (folder / "ratings.csv").open("a") as file:
        file.write("".join(f"{n},1,3.0,{n}\n" for n in range(100, 200)) + lines)
    return folder


@pytest.mark.parametrize(
    ("line", "kind", "told"),
    [
        (
            "5,2,3.0,847434 http://x\n",
            "unreadable",
            "ratings.csv line 107: timestamp is '847434 http://x', not a number",
        ),
        ("5,2,good,8\n", "unreadable", "ratings.csv line 107: rating is 'good', not a number"),
        ("5,2,,8\n", "unreadable", "ratings.csv line 107: rating is '', not a number"),
        ("5,2,3.0\n", "unreadable", "ratings.csv line 107: 3 columns, not 4"),
        ("5,777,3.0,8\n", "unknown item", "user 5 rated item 777, which is not in the catalogue"),
        ("5,2,11,8\n", "rating out of range", "user 5 gave item 2 11, not 0.5 to 5"),
        ("1,2,2.0,8\n", "duplicate", "user 1 rated item 2 more than once"),
    ],
)
def test_a_bad_row_is_left_out_counted_and_named(tmp_path, line, kind, told):
    good = read(appended(folders.csv(tmp_path / "good"), ""))
    data = read(appended(folders.csv(tmp_path / "bad"), line + "300,2,2.0,9\n"))
    assert data.problems.counts == {kind: 1}
    assert data.problems.named[kind] == [told]
    assert len(data.ratings) == len(good.ratings) + 1


def test_of_two_ratings_of_one_film_the_later_counts(tmp_path):
    data = read(appended(folders.csv(tmp_path / "x"), "1,2,0.5,999\n1,2,1.5,998\n"))
    r = data.ratings
    assert r.stars[(data.user_ids[r.users] == 1) & (data.catalogue.ids[r.items] == 2)].tolist() == [0.5]
    assert data.problems.counts == {"duplicate": 2}


def test_a_file_that_is_mostly_unreadable_is_refused(tmp_path):
    folder = appended(folders.csv(tmp_path / "x"), "a,b,c,d\n" * 30)
    with pytest.raises(InputError, match=r"30 of 135 rows cannot be read .*line 107"):
        read(folder)


@pytest.mark.parametrize(
    ("form", "lost"),
    [
        ("csv", "ratings.csv"),
        ("csv", "movies.csv"),
        ("dat", "ratings.dat"),
        ("hundred_k", "u.item"),
        ("inter", "x.item"),
    ],
)
def test_a_half_extracted_folder_names_the_file(form, lost, tmp_path):
    folder = folders.EVERY[form](tmp_path / "x")
    (folder / lost).unlink()
    with pytest.raises(InputError, match=lost.replace(".", r"\.")):
        read(folder)


def test_other_things_than_ratings_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no ratings"):
        read(tmp_path)
    folder = folders.csv(tmp_path / "x")
    (folder / "movies.csv").write_bytes(b"movieId,title,genres\n1,Am\xe9lie,Drama\n")
    with pytest.raises(InputError, match=r"movies\.csv line 2 is not UTF-8"):
        read(folder)
    (folder / "movies.csv").write_text("id,title,genres\n1,x,Drama\n")
    with pytest.raises(InputError, match="has no column 'movieId'"):
        read(folder)
    (folder / "movies.csv").write_text("movieId,title,genres\n1,x,Drama\n1,y,Drama\n")
    with pytest.raises(InputError, match="item 1 stands more than once"):
        read(folder)


def test_themes_come_from_the_genome_and_else_from_tags(tmp_path):
    folder = folders.csv(tmp_path / "x")
    (folder / "genome-tags.csv").write_text("tagId,tag\n1,pixar\n2,twist\n")
    (folder / "genome-scores.csv").write_text("movieId,tagId,relevance\n1,1,0.2\n1,2,0.9\n")
    (folder / "tags.csv").write_text("userId,movieId,tag,timestamp\n1,1,toys,1\n1,2,Noir,1\n2,2,noir,1\n2,2,cult,1\n")
    data = read(folder)
    assert data.catalogue.themes[:3] == [("twist", "pixar"), ("noir", "cult"), ()]
    assert data.describe()["share_with_genome"] == 0.25
    assert data.without_themes().catalogue.themes[0] == ()


def test_the_real_dataset_is_read_and_its_damaged_row_is_named(data):
    folder = data / "movielens/ml-latest-small"
    if not folder.is_dir():
        pytest.skip("no ml-latest-small")
    found = read(folder)
    told = found.describe()
    assert (told["users"], told["items"]) == (610, 9742)
    assert told["ratings"] + found.problems.total() == 100_836
    assert np.isin(found.ratings.stars, np.arange(0.5, 5.5, 0.5)).all()
