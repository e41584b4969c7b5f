"""The distance of a session from the nearest known one equals a sum over all templates."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.audit.anomaly import counts as module
from ridgeline.audit.anomaly.counts import Counts

sessions = st.dictionaries(st.integers(0, 40), st.integers(1, 300), min_size=1, max_size=12)


def slow(known: list[dict[int, int]], session: dict[int, int]) -> float:
    def distance(other: dict[int, int]) -> float:
        templates = sorted({*other, *session})
        a, b = (np.log1p([counts.get(t, 0) for t in templates]) for counts in (other, session))
        return float(np.abs(a - b).sum() / (a + b).sum())

    return min(map(distance, known), default=0.0)


@given(st.lists(sessions, max_size=40), st.lists(sessions, min_size=1, max_size=5), st.booleans())
@settings(max_examples=80, deadline=None)
def test_the_distance_equals_a_sum_over_all_templates(learnt, queries, restored):
    counts, known, before = Counts(), list[dict[int, int]](), module.MOST
    module.MOST = 8
    try:
        for session in learnt:
            counts.learn(session)
            if session not in known:
                known = [*known, session][-8:]
        if restored:
            counts = Counts.restore(json.loads(json.dumps(counts.state())))
        for session in queries:
            assert counts.distances(session)[0] == pytest.approx(slow(known, session), abs=1e-6)
        for session in known:
            assert counts.distances(session)[0] == 0.0
    finally:
        module.MOST = before


def test_a_rare_key_counts_more_in_the_weighted_distance():
    counts = Counts()
    for n in range(1, 40):
        counts.learn({1: n, 2: 2 * n, 3: 5})
    counts.learn({1: 1, 2: 2, 3: 5, 4: 1})
    plain, weighted = counts.distances({1: 20, 2: 40, 3: 5, 9: 1})
    assert weighted > 2 * plain
    assert counts.distances({1: 20, 2: 40, 3: 5}) == (0.0, 0.0)


def test_keys_beyond_the_last_column_share_columns(monkeypatch):
    monkeypatch.setattr(module, "WIDEST", 16)
    counts = Counts()
    for key in range(200):
        counts.learn({key: 2})
    assert counts._matrix.shape[1] == 16
    assert counts.distances({199: 2}) == (0.0, 0.0)
    assert 0.0 <= counts.distances({1000: 2})[0] <= 1.0
