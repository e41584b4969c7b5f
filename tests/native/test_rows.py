"""Rows moved by several threads are the rows numpy moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.native import mean_rows, scatter_rows, sort_by_length, touch_pages


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_rows_land_where_their_numbers_say(count, width, threads, seed):
    random = np.random.default_rng(seed)
    rows = random.permutation(50)[:count]
    source = random.standard_normal((count, width)).astype(np.float32)
    to = np.zeros((50, width), np.float32)
    expected = to.copy()
    expected[rows] = source
    scatter_rows(to, rows, source, threads)
    np.testing.assert_array_equal(to, expected)


def test_many_rows_are_all_moved_by_a_team():
    random = np.random.default_rng(0)
    source = random.standard_normal((5_000, 384)).astype(np.float32)
    rows, to = random.permutation(5_000), np.zeros((5_000, 384), np.float32)
    scatter_rows(to, rows, source, 4)
    np.testing.assert_array_equal(to[rows], source)


@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_that_is_not_there_is_refused_before_anything_is_written(row):
    to = np.zeros((3, 2), np.float32)
    with pytest.raises(IndexError, match=f"row {row} of 3"):
        scatter_rows(to, np.array([0, row]), np.ones((2, 2), np.float32))
    assert (to == 0).all()


@given(st.lists(st.integers(0, 6), max_size=30), st.booleans())
def test_texts_are_sorted_by_length_and_equal_ones_keep_their_order(lengths, long):
    if long and lengths:
        lengths[0] = 70_000  # beyond what is sorted by counting
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.arange(offsets[-1], dtype=np.int32)
    packed, starts, order = np.empty_like(ids), np.empty_like(offsets), np.empty(len(lengths), np.int64)
    sort_by_length(ids, offsets, packed, starts, order)
    expected = np.argsort(lengths, kind="stable")
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(np.diff(starts), np.asarray(lengths)[expected] if lengths else [])
    parts = [ids[offsets[k] : offsets[k + 1]] for k in expected]
    np.testing.assert_array_equal(packed, np.concatenate(parts) if parts else ids)


@pytest.mark.parametrize("offsets", [[0, 3, 2, 4], [1, 2, 3, 4], [0, 1, 2, 3]])
def test_offsets_that_do_not_fit_the_tokens_are_refused(offsets):
    with pytest.raises(ValueError, match="offsets"):
        sort_by_length(
            np.zeros(4, np.int32),
            np.array(offsets),
            np.zeros(4, np.int32),
            np.zeros(4, np.int64),
            np.zeros(3, np.int64),
        )


def test_memory_keeps_its_values_when_it_is_given_its_pages():
    memory = np.arange(10_000, dtype=np.float32).reshape(100, 100)
    touch_pages(memory)
    np.testing.assert_array_equal(memory.ravel(), np.arange(10_000))
    touch_pages(np.empty((0, 4), np.float32))


@given(
    st.lists(st.integers(0, 40), max_size=30),
    st.integers(1, 70),
    st.booleans(),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
)
def test_means_are_those_of_float64(lengths, width, unit, threads, seed):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = np.random.default_rng(seed).standard_normal((offsets[-1], width), np.float32)
    result = np.full((len(lengths), width), 7, np.float32)
    mean_rows(rows, offsets, result, unit, threads)
    for k, length in enumerate(lengths):
        expected = rows[offsets[k] : offsets[k + 1]].astype(float).mean(0) if length else np.full(width, np.nan)
        if unit:
            expected = expected / np.linalg.norm(expected)
        np.testing.assert_allclose(result[k], expected, atol=2e-6)


def test_means_are_the_same_by_any_number_of_threads():
    rows = np.random.default_rng(1).standard_normal((9_000, 128), np.float32)
    offsets = np.arange(0, 9_001, 30)
    one, four = (np.empty((300, 128), np.float32) for _ in range(2))
    mean_rows(rows, offsets, one, True, 1)
    mean_rows(rows, offsets, four, True, 4)
    np.testing.assert_array_equal(one, four)


def test_a_mean_of_nothing_but_zeros_stays_one():
    result = np.ones((1, 3), np.float32)
    mean_rows(np.zeros((2, 3), np.float32), np.array([0, 2]), result, True)
    np.testing.assert_array_equal(result, 0)


@pytest.mark.parametrize(
    ("offsets", "shape", "message"),
    [
        ([0, 4], (1, 3), "as wide as"),
        ([0, 4], (2, 2), "must be"),
        ([0, 3], (1, 2), "must run"),
        ([1, 4], (1, 2), "must run"),
        ([0, 5, 4], (2, 2), "must not decrease"),
    ],
)
def test_means_of_what_is_not_there_are_refused(offsets, shape, message):
    with pytest.raises(ValueError, match=message):
        mean_rows(np.zeros((4, 2), np.float32), np.array(offsets), np.zeros(shape, np.float32))
