"""Every format gives the same data; errors name file and line.

python -m pytest tests/recommend/test_read.py
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recommend import folders

from ridgeline.errors import InputError
from ridgeline.recommend import read


@pytest.mark.parametrize("form", folders.EVERY)
def test_every_format_gives_the_same_films_and_ratings(form, tmp_path):
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


def append_line(folder, lines: str):
    with (folder / "ratings.csv").open("a") as file:
        file.write("".join(f"{n},1,3.0,{n}\n" for n in range(100, 200)) + lines)
    return folder


@pytest.mark.parametrize(
    ("line", "kind", "message"),
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
def test_a_bad_row_is_left_out_counted_and_named(tmp_path, line, kind, message):
    good = read(append_line(folders.csv(tmp_path / "good"), ""))
    data = read(append_line(folders.csv(tmp_path / "bad"), line + "300,2,2.0,9\n"))
    assert data.problems.counts == {kind: 1}
    assert data.problems.examples[kind] == [message]
    assert len(data.ratings) == len(good.ratings) + 1


@pytest.mark.parametrize("kind", ["csv", "pandas", "parquet"])
def test_an_item_without_a_year_or_genres_stays(kind, tmp_path):
    """pandas writes years with gaps as 1995.0."""
    years, genres = [None, 1995, None, 2001], ["Drama", None, "", "Comedy|Romance"]
    if kind == "parquet":
        columns = {"item": [1, 2, 3, 4], "title": ["A", "B", "C (1999)", "D"], "year": years, "genres": genres}
        pq.write_table(pa.table(columns), tmp_path / "items.parquet")
    else:
        written = ["" if y is None else f"{y}.0" if kind == "pandas" else str(y) for y in years]
        rows = zip("1234", ["A", "B", "C (1999)", "D"], written, [g or "" for g in genres], strict=True)
        (tmp_path / "items.csv").write_text("item,title,year,genres\n" + "".join(",".join(r) + "\n" for r in rows))
    (tmp_path / "interactions.csv").write_text("user,item,rating\n" + "".join(f"u,{i},5\n" for i in (1, 2, 3, 4)))
    data = read(tmp_path)
    assert data.catalogue.years.tolist() == [0, 1995, 1999, 2001]
    assert list(data.catalogue.genres) == [("Drama",), (), (), ("Comedy", "Romance")]
    assert len(data.ratings) == 4
    assert not data.problems.total()


def test_a_year_that_is_a_word_is_named(tmp_path):
    (tmp_path / "items.csv").write_text(
        "item,title,year\n" + "".join(f"{i},T,{1990 + i}\n" for i in range(40)) + "99,X,soon\n"
    )
    (tmp_path / "interactions.csv").write_text("user,item\nu,1\n")
    assert "year is 'soon', not a number" in read(tmp_path).problems.lines()[0]


def test_the_later_of_two_ratings_of_a_film_counts(tmp_path):
    data = read(append_line(folders.csv(tmp_path / "x"), "1,2,0.5,999\n1,2,1.5,998\n"))
    r = data.ratings
    assert r.stars[(data.user_ids[r.users] == 1) & (data.catalogue.ids[r.items] == 2)].tolist() == [0.5]
    assert data.problems.counts == {"duplicate": 2}


def test_a_file_that_is_mostly_unreadable_is_refused(tmp_path):
    folder = append_line(folders.csv(tmp_path / "x"), "a,b,c,d\n" * 30)
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


def test_a_folder_without_ratings_is_an_error(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no known ratings"):
        read(tmp_path)
    folder = folders.csv(tmp_path / "x")
    (folder / "movies.csv").write_bytes(b"movieId,title,genres\n1,Am\xe9lie,Drama\n")
    with pytest.raises(InputError, match=r"movies\.csv line 2 is not UTF-8"):
        read(folder)
    (folder / "movies.csv").write_text("id,title,genres\n1,x,Drama\n")
    with pytest.raises(InputError, match="has no column 'movieId'"):
        read(folder)
    (folder / "movies.csv").write_text("movieId,title,genres\n1,x,Drama\n1,y,Drama\n")
    with pytest.raises(InputError, match="item 1 occurs more than once"):
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


def write_times(folder, times):
    """Generic ratings, one a time, of the first film by a user each."""
    folder = folders.generic_csv(folder)
    rows = "".join(f"{u},1,4.0,{t}\n" for u, t in enumerate(times))
    (folder / "interactions.csv").write_text("user,item,rating,time\n" + rows)
    return folder


@pytest.mark.parametrize(
    ("unit", "parts"), [("milliseconds", 1_000), ("microseconds", 1_000_000), ("nanoseconds", 1_000_000_000)]
)
def test_times_that_are_not_in_seconds_are_an_error_with_the_cure(unit, parts, tmp_path):
    folder = write_times(tmp_path / "x", [(1_500_000_000 + n) * parts for n in range(40)])
    message = (
        f"interactions.csv: 40 of 40 times .* rated item 1 at {1_500_000_000 * parts}, .* {unit}; divide by {parts}"
    )
    with pytest.raises(InputError, match=message):
        read(folder)
    with (folder / "interactions.csv").open("a") as file:
        file.write("7,1,good,5\n")  # read again as text
    with pytest.raises(InputError, match=message):
        read(folder)


@pytest.mark.parametrize(("time", "cure"), [("1500000000000", "milliseconds; divide by 1000"), ("inf", "give seconds")])
def test_one_time_out_of_range_is_left_out_and_named(time, cure, tmp_path):
    folder = folders.inter(tmp_path / "x")
    with (folder / "x.inter").open("a") as file:
        file.write("".join(f"{n},9,3.0,{n}\n".replace(",", "\t") for n in range(10, 60)) + f"5\t2\t3.0\t{time}\n")
    data = read(folder)
    assert data.problems.counts == {"time out of range": 1}
    assert "user 5 rated item 2 at " in data.problems.examples["time out of range"][0]
    assert cure in data.problems.examples["time out of range"][0]
    assert data.describe()["to"] == "1970-01-01"
    assert len(data.ratings) == len(folders.RATINGS) + 50


@pytest.mark.parametrize("kind", ["s", "ms", "us", "ns", "tz", "date32", "date64"])
def test_timestamps_and_dates_in_parquet_become_seconds(kind, tmp_path):
    folder = folders.generic_parquet(tmp_path / "x")
    table = pq.read_table(folder / "interactions.parquet")
    seconds = pa.array([86_400 * n for n in range(1, 1 + len(table))]).cast(pa.timestamp("s"))
    types = {"tz": pa.timestamp("us", "Europe/Berlin"), "date32": pa.date32(), "date64": pa.date64()}
    column = seconds.cast(types.get(kind) or pa.timestamp(kind))
    pq.write_table(table.set_column(3, "time", column), folder / "interactions.parquet")
    data = read(folder)
    assert sorted(data.ratings.times.tolist()) == [86_400 * n for n in range(1, 1 + len(table))]
    assert data.describe()["from"] == "1970-01-02"
    pq.write_table(table.set_column(3, "time", seconds.cast(pa.time32("s"))), folder / "interactions.parquet")
    with pytest.raises(InputError, match=r"column 'time' is time32\[ms\], not int64; convert it"):
        read(folder)


def test_titles_and_genres_of_other_types_in_parquet_are_text(tmp_path):
    folder = folders.generic_parquet(tmp_path / "x")
    table = pq.read_table(folder / "items.parquet").drop_columns(["title", "genres"])
    odd = table.append_column("title", pa.array([1984, 300, 21, 8]))
    lists = pa.array([["Drama", None], [None], [], ["War "]], pa.large_list(pa.string()))
    pq.write_table(odd.append_column("genres", lists), folder / "items.parquet")
    c = read(folder).catalogue
    assert list(c.titles) == ["1984", "300", "21", "8"]
    assert c.genres == [("Drama",), (), (), ("War",)]
    pq.write_table(odd.append_column("genres", pa.array([[1, 2], [3], [], [4]])), folder / "items.parquet")
    assert read(folder).catalogue.genres == [("1", "2"), ("3",), (), ("4",)]
    pq.write_table(table.append_column("title", lists), folder / "items.parquet")
    with pytest.raises(InputError, match=r"column 'title' is large_list<.*>, not string; convert it"):
        read(folder)


def write_rows(folder, text: str):
    folder.mkdir()
    (folder / "items.csv").write_text("item,title\na,A\nb,B\n")
    (folder / "interactions.csv").write_text(text)
    return folder


@pytest.mark.parametrize("column", ["stars", "Rating", "plays", "event"])
def test_ratings_under_another_name_are_not_read_as_likes(tmp_path, column):
    folder = write_rows(tmp_path / "x", f"user,item,{column}\nu,a,1\nv,b,5\n")
    with pytest.raises(InputError, match=f"no column 'rating', and its column '{column}' is not used"):
        read(folder)
    (folder / "x.inter").write_text(f"user_id:token\titem_id:token\t{column}:float\nu\ta\t1\n")
    with pytest.raises(InputError, match=f"its column '{column}' is not used"):
        read(folder)


def test_rows_without_ratings_are_likes_also_beside_an_index(tmp_path):
    for number, header in enumerate(("user,item", ",user,item", "Unnamed: 0,user,item")):
        row = "u,a" if header == "user,item" else "0,u,a"
        assert read(write_rows(tmp_path / str(number), f"{header}\n{row}\n")).ratings.stars.tolist() == [5]


def test_columns_of_a_generic_file_may_have_the_names_of_other_formats(tmp_path):
    data = read(write_rows(tmp_path / "x", "user_id,movieId,rating,timestamp\nu,a,1,1369699200\nv,b,5,1369699201\n"))
    assert (data.ratings.stars.tolist(), data.ratings.times.tolist()) == ([1, 5], [1369699200, 1369699201])


def test_an_empty_id_is_no_user(tmp_path):
    rows = "".join(f"u{n},a,4\n" for n in range(30))
    data = read(write_rows(tmp_path / "x", f"user,item,rating\n{rows},a,5\n"))
    assert "" not in data.user_ids.tolist()
    assert data.problems.examples["unreadable"] == ["interactions.csv line 32: user is empty"]
    (tmp_path / "x" / "interactions.csv").unlink()
    pq.write_table(pa.table({"user": ["", "u"], "item": ["a", "b"]}), tmp_path / "x" / "interactions.parquet")
    with pytest.raises(InputError, match="column 'user' has 1 empty values"):
        read(tmp_path / "x")


def test_a_column_that_comes_twice_is_refused(tmp_path):
    with pytest.raises(InputError, match="has the column 'rating' more than once"):
        read(write_rows(tmp_path / "x", "user,item,rating,rating\nu,a,1,5\n"))


def write_titles(folder, lines):
    """Write generic items with these titles, unchanged, into the CSV file."""
    folder = folders.generic_csv(folder)
    rows = "".join(f"{n},{title},Drama\n" for n, title in enumerate(lines, 1))
    (folder / "items.csv").write_text("item,title,genres\n" + rows)
    return folder


@pytest.mark.parametrize("name", ["interactions.csv", "items.csv"])
@pytest.mark.parametrize("later", [0, 1])  # quoted values after it, of which the first seems to close it
@pytest.mark.parametrize("rows", [60, 60_000])  # less than a block of the parser, and more
def test_a_quote_that_is_not_closed_is_refused_by_its_line(name, later, rows, tmp_path):
    folder = folders.generic_csv(tmp_path / "x")
    if name == "items.csv":
        lines = [f"{n},Film {n:09},Drama" for n in range(1, rows)]
        lines[10] = '11,"Film,Drama'
        lines[-1] = f'{rows - 1},"Film, The",Drama' if later else lines[-1]
        head = "item,title,genres"
    else:
        lines = [f"{n},1,4.0,{1_500_000_000 + n}" for n in range(1, rows)]
        lines[10] = '11,1,"5,1500000000'
        lines[-1] = f'{rows - 1},1,"4.0",7' if later else lines[-1]
        head = "user,item,rating,time"
    (folder / name).write_text("\n".join([head, *lines]) + "\n")
    with pytest.raises(InputError, match=f"{name} line 12: the quote that opens a value is not closed"):
        read(folder)


def test_lines_inside_an_unclosed_quote_count_as_unreadable_rows(tmp_path):
    folder = write_times(tmp_path / "x", range(1, 101))
    text = (folder / "interactions.csv").read_text()
    (folder / "interactions.csv").write_text(
        text.replace("10,1,4.0,11", '10,1,"4.0,11').replace("29,1,4.0", '29,1,4.0"')
    )
    with pytest.raises(
        InputError, match=r"20 of 100 rows cannot be read \(interactions.csv line 12: rating is '4.0,11"
    ):
        read(folder)


def test_line_breaks_in_quotes_are_read_however_large_the_file_is(tmp_path):
    titles = ["A\nfilm", 'The "b"\r\nfilm', "\n", "x" * 3_000_000, *(f"Film\n{n}, the last" for n in range(50_000))]
    folder = write_titles(tmp_path / "x", ['"' + t.replace('"', '""') + '"' for t in titles])
    data = read(folder)
    assert list(data.catalogue.titles) == titles
    assert data.problems.total() == 0


def test_a_bad_row_after_line_breaks_and_empty_lines_is_named_by_its_line(tmp_path):
    folder = write_times(tmp_path / "x", range(1, 101))
    lines = (folder / "interactions.csv").read_text().splitlines()
    lines[3] = '2,"1\n",4.0,3'  # lines 4 and 5
    lines[8:8] = ["", ""]  # lines 10 and 11
    lines[20] = "x,1"  # one further down, for the break
    lines[30] = "5,1,good,+7"
    lines[31] = "5,1,3.5,+7"
    (folder / "interactions.csv").write_text("\n".join(lines))
    data = read(folder)
    message = data.problems.examples["unreadable"]
    assert message == [
        "interactions.csv line 22: 2 columns, not 4",
        "interactions.csv line 32: rating is 'good', not a number",
    ]
    assert 7 in data.ratings.times


def test_the_real_dataset_is_read_and_its_damaged_row_is_named(data):
    folder = data / "movielens/ml-latest-small"
    if not folder.is_dir():
        pytest.skip("no ml-latest-small")
    dataset = read(folder)
    message = dataset.describe()
    assert (message["users"], message["items"]) == (610, 9742)
    assert message["ratings"] + dataset.problems.total() == 100_836
    assert np.isin(dataset.ratings.stars, np.arange(0.5, 5.5, 0.5)).all()


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 4),
            st.integers(0, 5),
            st.sampled_from([1.0, 4.0, 5.0, float("nan")]),
            st.sampled_from([1, 2, 3]),
        ),
        min_size=1,
        max_size=60,
    ),
    texts=st.booleans(),
)
def test_ratings_are_those_that_a_loop_keeps(rows, texts, tmp_path_factory):
    """Items 4 and 5 are not in the catalogue; of a user's ratings of an item the latest counts."""
    folder = tmp_path_factory.mktemp("rows")
    make_id = (lambda n: f"x{n}") if texts else int
    pq.write_table(pa.table({"item": [make_id(n) for n in range(4)], "title": list("abcd")}), folder / "items.parquet")
    columns = {"user": [make_id(u) for u, *_ in rows], "item": [make_id(i) for _, i, *_ in rows]}
    columns |= {"rating": [s for _, _, s, _ in rows], "time": [t for *_, t in rows], "more": [0] * len(rows)}
    pq.write_table(pa.table(columns), folder / "interactions.parquet")
    want: dict = {}
    twice = unknown = bad = 0
    for user, item, stars, time in rows:
        if item >= 4:
            unknown += 1
        elif stars != stars:
            bad += 1
        else:
            old = want.pop((user, item), None)
            twice += old is not None
            want[user, item] = (stars, time) if old is None or time >= old[1] else old
    if not want:
        with pytest.raises(InputError, match="no rating of"):
            read(folder)
        return
    data = read(folder)
    r = data.ratings
    users, items = data.user_ids[r.users].tolist(), data.catalogue.ids[r.items].tolist()
    got = dict(zip(zip(users, items, strict=True), zip(r.stars.tolist(), r.times.tolist(), strict=True), strict=True))
    assert got == {(make_id(user), make_id(item)): value for (user, item), value in want.items()}
    assert data.user_ids.tolist() == sorted({make_id(user) for user, _ in want})
    counts = {"duplicate": twice, "unknown item": unknown, "rating out of range": bad}
    assert data.problems.counts == {kind: count for kind, count in counts.items() if count}
