"""Filters: the language, its errors, masks; the rows that pass are the only ones that are found.

python -m pytest tests/search/test_where.py
"""

from __future__ import annotations

from datetime import UTC, date, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.search.reference import nearest
from tests.search.test_exact import clustered

from ridgeline import Index
from ridgeline.errors import InputError

pa = pytest.importorskip("pyarrow")
from ridgeline.search.where import rows_where  # noqa: E402

HOURS = [datetime(2001, 9, 9, hour, tzinfo=UTC) for hour in (0, 6, 12, 18)] + [None]
TABLE = pa.table(
    {
        "year": [85, 90, 93, None, 99],
        "source": ["dbus", "journal", "dbus", "http", None],
        "score": [0.5, -1.5, 2e3, 0.0, 1.0],
        "good": [True, False, None, True, False],
        "odd name": [1, 2, 3, 4, 5],
        "day": [date(2001, 9, day) for day in (7, 8, 9, 10)] + [None],
        "when": pa.array(HOURS, pa.timestamp("ns")),
        "zoned": pa.array(HOURS, pa.timestamp("s", "Asia/Tokyo")),
        "it": ["it's", 'say "x"', "a\\b", "", "ü"],
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("year >= 90", [1, 2, 4]),
        ("year >= 90 and source == 'dbus'", [2]),
        ("year = 90 or year=85", [0, 1]),
        ("not year >= 90", [0]),
        ("NOT (year < 90 OR source = 'dbus')", [1]),
        ("source != 'dbus'", [1, 3]),
        ("source in ('http', 'journal')", [1, 3]),
        ("source not in ('http', 'journal')", [0, 2]),
        ("year is null", [3]),
        ("source is not null and year is not null", [0, 1, 2]),
        ("good", [0, 3]),
        ("not good", [1, 4]),
        ("good == false", [1, 4]),
        ("score < -1", [1]),
        ("score > 1.5e2", [2]),
        ("score >= .5 and score <= +1", [0, 4]),
        ("`odd name` > 3", [3, 4]),
        ("it == 'it\\'s'", [0]),
        ('it == "it\'s"', [0]),
        ("it == 'a\\\\b'", [2]),
        ("it == 'ü'", [4]),
        ("year > 0 and year > 1 or year < 0", [0, 1, 2, 4]),
        ("day > '2001-09-08'", [2, 3]),
        ("day in ('2001-09-07', '2001-09-10')", [0, 3]),
        ("when >= '2001-09-09T06:00' and when < '2001-09-09 18:00:00'", [1, 2]),
        ("when == '2001-09-09T08:00+02:00'", [1]),
        ("when in ('2001-09-09T06:00:00', '2001-09-09')", [0, 1]),
        ("zoned <= '2001-09-09T15:00+09:00'", [0, 1]),
        ("zoned > '2001-09-09T06:00Z' and zoned > '2001-09-09'", [2, 3]),
    ],
)
def test_a_condition_holds_for_these_rows(text: str, rows: list[int]):
    assert rows_where(text, TABLE).tolist() == rows


@pytest.mark.parametrize(
    ("text", "words", "at"),
    [
        ("", "a condition was expected", 0),
        ("year >> 90", "a value was expected", 6),
        ("year >= ", "a value was expected", 7),
        ("yeer >= 90", "did you mean year", 0),
        ("year >= 90 and", "name of a column", 14),
        ("year >= 90 source == 'x'", "'and' or 'or'", 11),
        ("(year >= 90", r"'\)' was expected", 11),
        ("source == 'dbus", "no end", 10),
        ("year == 'x'", "'year' is int64", 0),
        ("year > 1 and source", "'source' is string", 13),
        ("source in 'x'", r"'\(' was expected", 10),
        ("source in ('x', 1)", "different kinds", 11),
        ("source in ()", "a value was expected", 11),
        ("source is 5", "'null' or 'not null'", 10),
        ("source not 5", "'in' was expected", 11),
        ("when > 'noon'", "no moment of timestamp", 7),
        ("day == '2001-09-09T10:00'", "no moment of date32", 7),
        ("when > 5", "'when' is timestamp", 0),
        ("year ; drop", "';' is not understood", 5),
        ("90 <= year", "name of a column", 0),
        ("year > 99999999999999999999999", "64 bits", 7),
        ("(" * 60 + "year > 1" + ")" * 60, "nesting", 50),
    ],
)
def test_an_error_points_at_the_place(text: str, words: str, at: int):
    with pytest.raises(InputError, match=words) as error:
        rows_where(text, TABLE)
    shown, caret = str(error.value).split("\n")[1:]
    assert shown == f"  {text}"
    assert caret.index("^") - 2 == at


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=" ()'\"`<>=!,.year+-0159andorti\\ü", max_size=30))
def test_any_text_is_a_filter_or_an_error_of_ours(text: str):
    try:
        rows = rows_where(text, TABLE)
    except InputError:
        return
    assert set(rows) <= set(range(5))


@pytest.mark.parametrize("spec", ["Flat", "SQ8", "IVF4,Flat", "IVF4,PQ2,Refine(Flat)"])
@pytest.mark.parametrize("least", [5, 50, 97, 200])
def test_only_rows_that_pass_are_found_and_all_the_best_of_them(spec: str, least: int):
    vectors, queries = clustered(1200, 8), clustered(5, 8, 1)
    index = Index(spec, metric="l2", device="cpu")
    if not index.trained:
        index.train(vectors)
    year = np.arange(1200) % 100
    index.add(vectors, meta={"year": year})
    allowed = year >= least
    wanted = nearest(queries, index.reconstruct(np.arange(1200)), 7, "l2", allowed=allowed)[1]
    answers = [index.search(queries, 7, nprobe=4, depth=200, where=w)[1] for w in (f"year >= {least}", allowed)]
    answers.append(index.search(queries, 7, nprobe=4, depth=200, where=np.append(np.flatnonzero(allowed), 99_999))[1])
    for found in answers:
        assert np.array_equal(found, wanted)
    limits, _, ids = index.range_search(queries, 1e9, nprobe=4, where=allowed)
    assert limits[-1] == 5 * allowed.sum()
    assert allowed[ids].all()


def test_a_filter_knows_nothing_of_rows_that_were_removed():
    index = Index("Flat", metric="l2", device="cpu")
    index.add(np.eye(8), meta={"n": np.arange(8)})
    index.remove([2])
    assert index.search(np.eye(8)[[2]], 8, where="n < 4")[1].tolist() == [[0, 1, 3, -1, -1, -1, -1, -1]]
    mask = index.ids >= 5
    assert index.search(np.eye(8)[[7]], 2, where=mask)[1].tolist() == [[7, 5]]
    assert index.search(np.eye(8)[[7]], 1, where=[2])[1].tolist() == [[-1]]


def test_a_mask_may_be_a_tensor():
    torch = pytest.importorskip("torch")
    index = Index("Flat", metric="l2", device="cpu")
    index.add(np.eye(4))
    assert index.search(np.eye(4)[[0]], 1, where=torch.tensor([False, True, False, False]))[1].tolist() == [[1]]
