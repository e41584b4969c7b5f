"""How far a session is from the nearest known one: as adding up all templates has it, whatever gave way."""

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
    def apart(other: dict[int, int]) -> float:
        templates = sorted({*other, *session})
        a, b = (np.log1p([held.get(t, 0) for t in templates]) for held in (other, session))
        return float(np.abs(a - b).sum() / (a + b).sum())

    return min(map(apart, known), default=0.0)


@given(st.lists(sessions, max_size=40), st.lists(sessions, min_size=1, max_size=5), st.booleans())
@settings(max_examples=80, deadline=None)
def test_as_adding_up_all_templates_has_it(learnt, asked, restored):
    held, known, before = Counts(), list[dict[int, int]](), module.MOST
    module.MOST = 8
    try:
        for session in learnt:
            held.learn(session, held.surprise(session)[1])
            if session not in known:
                known = [*known, session][-8:]
        if restored:
            held = Counts.restore(json.loads(json.dumps(held.state())))
        for session in asked:
            assert held.distance(session) == pytest.approx(slow(known, session), abs=1e-6)
        for session in known:
            assert held.distance(session) == 0.0
    finally:
        module.MOST = before


def test_an_answer_is_worked_out_anew_once_more_was_learnt():
    held = Counts()
    held.learn({1: 1}, 0.0)
    first = held.surprise({1: 1, 2: 1})
    assert held.surprise({1: 1, 2: 1}) == first
    held.learn({1: 1, 2: 1}, first[1])
    assert held.surprise({1: 1, 2: 1}) != first
