"""Filters over columns: conditions, errors, masks; a search returns only rows that pass.

python -m pytest tests/search/test_where.py
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.search.reference import nearest
from tests.search.test_exact import make_clusters
from tests.store.test_where import ROWS, TYPES, Condition, conditions, reference

from ridgeline import Index
from ridgeline.audit.ledger import compile_filter
from ridgeline.errors import InputError, PointedError
from ridgeline.store import compile_test, parse_where

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
        ("90 <= year", [1, 2, 4]),
        ("85 < year <= 93", [1, 2]),
        ("'2001-09-08' < day < '2001-09-10'", [2]),
        ("source.startswith('d') or source.endswith('l')", [0, 1, 2]),
        ("not source.contains('u')", [3]),
        ("source in ('dbus',)", [0, 2]),
        ("source in ['dbus']", [0, 2]),
        ("source in ('dbus')", [0, 2]),
        ("year == null", [3]),
        ("year != None", [0, 1, 2, 4]),
        ("year > score", [0, 1, 4]),
        ("source in ('http', it)", [3]),
        ("'dbus'.startswith(source)", [0, 2]),
        ("source.startswith(it) and source == 'http'", [3]),
        ("(year >= 90) == true and good == false", [1, 4]),
        ("true", [0, 1, 2, 3, 4]),
        ("`odd name` > 3 and not false", [3, 4]),
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
        ("year >= 90 and", "name of a column or a value", 14),
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
        ("year > 99999999999999999999999", "64 bits", 7),
        ("(" * 110 + "year > 1" + ")" * 110, "nesting", 100),
        ("90", "name of a column", 0),
        ("source in ('x', year) and 'x'", "name of a column", 26),
        ("source.startswith('x') and year.startswith('x')", "'year' is int64", 27),
    ],
)
def test_an_error_points_at_the_place(text: str, words: str, at: int):
    with pytest.raises(InputError, match=words) as error:
        rows_where(text, TABLE)
    line, caret = str(error.value).split("\n")[1:]
    assert line == f"  {text}"
    assert caret.index("^") - 2 == at


COLUMNS = {"text": pa.string(), "number": pa.int64(), "real": pa.float64(), "flag": pa.bool_()}


@settings(max_examples=200, deadline=None)
@given(conditions, st.lists(ROWS, min_size=1, max_size=6))
def test_the_rows_are_those_of_the_reference(condition: Condition, rows: list[dict]):
    table = pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in COLUMNS.items()})
    expected = [k for k, row in enumerate(rows) if reference(condition.tree, row, None)]
    assert rows_where(condition.text, table).tolist() == expected


@settings(max_examples=200, deadline=None)
@given(conditions, st.lists(ROWS, min_size=1, max_size=6))
def test_columns_and_rows_without_null_give_the_same_choice(condition: Condition, rows: list[dict]):
    complete = [{name: row[name] if row.get(name) is not None else TYPES[name][0] for name in COLUMNS} for row in rows]
    table = pa.table({name: pa.array([row[name] for row in complete], kind) for name, kind in COLUMNS.items()})
    test = compile_test(parse_where(condition.text))
    assert rows_where(condition.text, table).tolist() == [k for k, row in enumerate(complete) if test(row)]


EVENT_FIELDS = ("index", "time", "source", "actor", "action", "subject", "attributes")
EVENTS = pa.table({name: pa.array(["x"]) for name in EVENT_FIELDS})
PIECES = [
    "source",
    "actor",
    "sorce",
    "==",
    ">>",
    ">",
    "'x",
    "'x'",
    "3",
    "(",
    ")",
    "in",
    "not",
    "is",
    "null",
    "and",
    "or",
    ",",
    "[",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=8).map(" ".join))
@example("source == 'dbus' and actor >> 3")
def test_search_and_audit_point_at_the_same_mistake(text: str):
    """Search may refuse more, because columns have types."""
    try:
        compile_filter(text)
    except InputError as error:
        with pytest.raises(PointedError) as other:
            rows_where(text, EVENTS)
        one, two = (str(e).split("\n") for e in (error, other.value))
        assert one[1:] == two[1:]


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
    vectors, queries = make_clusters(1200, 8), make_clusters(5, 8, 1)
    index = Index(spec, metric="l2", device="cpu")
    if not index.trained:
        index.train(vectors)
    year = np.arange(1200) % 100
    index.add(vectors, meta={"year": year})
    allowed = year >= least
    best = nearest(queries, index.reconstruct(np.arange(1200)), 7, "l2", allowed=allowed)[1]
    answers = [index.search(queries, 7, nprobe=4, depth=200, where=w)[1] for w in (f"year >= {least}", allowed)]
    answers.append(index.search(queries, 7, nprobe=4, depth=200, where=np.append(np.flatnonzero(allowed), 99_999))[1])
    for ids_ in answers:
        assert np.array_equal(ids_, best)
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


@pytest.mark.parametrize("spec", ["IVF32,Flat", "IVF32,SQ8", "IVF32,PQ8,Refine(Flat)", "IVF32,RaBitQ4,Refine(Flat)"])
def test_a_filter_over_lists_loses_no_neighbours(spec: str) -> None:
    random = np.random.default_rng(0)
    axes = random.standard_normal((8, 24))
    vectors = (random.standard_normal((3000, 8)) @ axes + 0.3 * random.standard_normal((3000, 24))).astype(np.float32)
    queries = vectors[:40] + 0.1 * random.standard_normal((40, 24)).astype(np.float32)
    index = Index(spec, metric="l2", device="cpu")
    index.train(vectors)
    index.add(vectors)
    stored = index.reconstruct(np.arange(3000)).astype(np.float64)
    distances = ((queries[:, None].astype(np.float64) - stored[None]) ** 2).sum(2)

    def measure(allowed: Any) -> float:
        k = min(10, int(allowed.sum()))
        truth = np.argsort(np.where(allowed, distances, np.inf), 1)[:, :k]
        ids = index.search(queries, k, nprobe=8, where=allowed)[1]
        assert (ids >= 0).all()
        assert allowed[ids].all()
        for query, row in zip(queries[:3], ids, strict=False):
            assert (index.search(query, k, nprobe=8, where=allowed)[1] == row).all()
        return float(np.mean([len(set(a) & set(b)) / k for a, b in zip(ids.tolist(), truth.tolist(), strict=True)]))

    plain = measure(np.ones(3000, np.bool_))
    for share in (0.005, 0.02, 0.1, 0.5):
        assert measure(random.random(3000) < share) >= plain - 0.02
    far = vectors[:, 0] > np.quantile(vectors[:, 0], 0.95)  # many rows pass, and they are near to each other
    assert measure(far) >= plain - 0.02


@given(
    st.sampled_from(["Flat", "SQ8", "IVF8,Flat", "IVF8,SQ8", "IVF8,PQ4", "IVF8,RaBitQ2", "RaBitQ1", "HNSW4"]),
    st.integers(1, 12),
    st.integers(0, 200),
    st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=40)
def test_if_k_rows_pass_k_are_found(spec: str, k: int, passing: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((200, 8)).astype(np.float32)
    index = Index(spec, metric="ip", device="cpu")
    if not index.trained:
        index.train(vectors)
    index.add(vectors)
    index.remove(random.permutation(200)[:20])
    ids = random.permutation(200)[:passing]
    live = np.intersect1d(ids, index.ids)
    found = index.search(vectors[:3], k, nprobe=None if spec == "HNSW4" else 1, where=ids)[1]
    for row in found:
        assert (row >= 0).sum() == min(k, len(live))
        assert np.isin(row[row >= 0], live).all()
        assert len(set(row[row >= 0].tolist())) == (row >= 0).sum()
