"""Hashes of rows: equal rows have equal hashes, and others have others, whatever the types."""

from __future__ import annotations

import numpy as np
import pyarrow as arrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.bulk.increment import RowHasher, check_unique, find_removed, index_rows, pick_keys
from ridgeline.errors import InputError

TEXTS = st.one_of(
    st.none(), st.text(max_size=40), st.sampled_from(["", "\x00", "\x00\x00", "a" * 8, "a" * 9, "é" * 20])
)
NUMBERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
ROWS = st.lists(st.tuples(st.integers(-9, 9), TEXTS, NUMBERS, st.lists(st.integers(0, 3), max_size=2)), max_size=12)


def make_table(rows):
    ids, texts, numbers, lists = zip(*rows, strict=True) if rows else ([], [], [], [])
    return arrow.table(
        {
            "id": arrow.array(ids, arrow.int64()),
            "text": arrow.array(texts, arrow.string()),
            "number": arrow.array(numbers, arrow.int64()),
            "list": arrow.array(lists, arrow.list_(arrow.int64())),
        }
    )


@settings(max_examples=150, deadline=None)
@given(ROWS, ROWS, st.integers(0, 3))
def test_two_rows_have_one_hash_exactly_if_all_columns_are_equal(first, second, cut):
    hasher = RowHasher()
    one = make_table(first)
    other = arrow.concat_tables([make_table(second[:cut]), make_table(second[cut:])])  # several chunks
    keys, contents = (
        np.concatenate(pair) for pair in zip(hasher.hash_rows(one, "id"), hasher.hash_rows(other, "id"), strict=True)
    )
    rows = [*first, *second]
    for i in range(len(rows)):
        for j in range(i):
            assert (contents[i] == contents[j]) == (rows[i] == rows[j])
            assert (keys[i] == keys[j]) == (rows[i][0] == rows[j][0])


@pytest.mark.parametrize(
    "kind",
    [arrow.large_string(), arrow.binary(), arrow.float32(), arrow.float64(), arrow.bool_(), arrow.timestamp("us")],
)
def test_other_types_of_columns_differ_by_value_too(kind):
    values = (
        [False, True] if kind == arrow.bool_() else ["a", "b"] if "bin" in str(kind) or "str" in str(kind) else [1, 2]
    )
    column = arrow.array([*values, None, values[0]]).cast(kind)
    hasher = RowHasher()
    hashes = hasher.hash_column(column)
    assert len(set(hashes[:3].tolist())) == 3
    assert hashes[3] == hashes[0]
    assert hasher.hash_column(column.slice(1)).tolist() == hashes[1:].tolist(), "an array with an offset"


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.integers(0, 30), TEXTS), st.dictionaries(st.integers(0, 30), TEXTS))
def test_an_increment_finds_same_changed_and_removed_rows(before, after):
    def make(rows):
        return arrow.table(
            {"id": arrow.array(list(rows), arrow.int64()), "t": arrow.array(list(rows.values()), arrow.string())}
        )

    hasher = RowHasher()
    old = index_rows([(0, make(before))], "id", hasher)
    keys, contents = hasher.hash_rows(make(after), "id")
    parts, places = old.find(keys, contents)
    for (key, text), part, place in zip(after.items(), parts, places, strict=True):
        same = key in before and before[key] == text
        assert (part == 0) == same
        assert not same or list(before)[place] == key
    removed = pick_keys([make(before)], "id", find_removed(old, keys), hasher)
    assert sorted(removed) == sorted(before.keys() - after.keys())


def test_a_key_that_occurs_twice_is_refused():
    keys, _ = RowHasher().hash_rows(make_table([(1, "a", 1, []), (1, "b", 1, [])]), "id")
    with pytest.raises(InputError, match="occur twice"):
        check_unique(keys, "id")
