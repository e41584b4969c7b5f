"""Batches hold every text exactly once, in restored order, within the budget, equal lengths side by side."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.embed.batches import find_runs, make_window, split_batch, split_window
from ridgeline.embed.tokens import Tokens

lengths = st.lists(st.integers(1, 40), max_size=60)


def make_tokens(sizes: list[int]) -> Tokens:
    """Token k of text i is 100·i + k."""
    ids = [100 * i + k for i, size in enumerate(sizes) for k in range(size)]
    return Tokens(np.array(ids, np.int32), np.cumsum([0, *sizes]))


@given(lengths, st.integers(1, 200), st.integers(0, 1000))
def test_every_text_occurs_once_with_its_number(sizes, budget, first):
    tokens = make_tokens(sizes)
    seen = {}
    for batch in split_window(make_window(tokens, first), budget):
        assert len(batch) > 0
        for k, row in enumerate(batch.rows.tolist()):
            assert row not in seen
            seen[row] = batch.ids[batch.offsets[k] : batch.offsets[k + 1]].tolist()
    assert seen == {first + i: tokens[i].tolist() for i in range(len(sizes))}


@given(lengths, st.integers(1, 200))
def test_a_batch_keeps_to_the_budget_unless_it_is_one_text(sizes, budget):
    batches = list(split_window(make_window(make_tokens(sizes)), budget))
    assert all(len(b.ids) <= budget or len(b) == 1 for b in batches)
    for earlier, later in pairwise(batches):  # and no batch is smaller than needed
        assert len(earlier.ids) + int(np.diff(later.offsets)[-1]) > budget


@given(lengths, st.integers(1, 200), st.integers(1, 200))
def test_a_split_batch_loses_no_text(sizes, budget, smaller):
    for batch in split_window(make_window(make_tokens(sizes)), budget):
        parts = list(split_batch(batch, smaller))
        assert sorted(row for p in parts for row in p.rows.tolist()) == sorted(batch.rows.tolist())
        assert all(len(p.ids) <= smaller or len(p) == 1 for p in parts)


@given(lengths, st.integers(1, 200))
def test_runs_cover_all_tokens_with_distinct_lengths(sizes, budget):
    for batch in split_window(make_window(make_tokens(sizes)), budget):
        at = 0
        for first, count, length in batch.runs:
            assert first == at
            at += count * length
        assert at == len(batch.ids)
        assert len({length for _, _, length in batch.runs}) == len(batch.runs)


@given(st.lists(st.integers(1, 5), max_size=30))
def test_runs_of_unsorted_texts_are_neighbours_only(sizes):
    runs = find_runs(np.cumsum([0, *sizes]))
    assert [length for _, count, length in runs for _ in range(count)] == sizes


def test_texts_of_one_length_keep_their_order():
    window = make_window(make_tokens([3, 2, 3, 2, 3]))
    assert window.rows.tolist() == [1, 3, 0, 2, 4]
