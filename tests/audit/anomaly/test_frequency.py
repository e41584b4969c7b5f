"""p-values by frequency and by rank: against slow references, and calibrated."""

from __future__ import annotations

import json
import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.audit.anomaly.calibration import Ranks
from ridgeline.audit.anomaly.frequency import USUAL, Contexts, Frequencies, Hours

DAY, HOUR = 86_400 * 10**9, 3_600 * 10**9


def naive(history: list, value: object) -> float:
    """The share of all values, the new one included, that are as rare as it or rarer."""
    every = [*history, value]
    count = every.count(value)
    if count > USUAL * len(every):
        return 1.0
    return sum(every.count(other) <= count for other in every) / len(every)


@given(st.lists(st.integers(0, 12), max_size=60), st.integers(3, 25))
def test_p_is_what_it_says(values, span):
    seen = Frequencies(span)
    history: list = []
    for n, value in enumerate(values):
        assert seen.p(value) == pytest.approx(naive(history, value))
        assert seen.add(value) == pytest.approx(naive(history, value))
        history.append(value)
        if (n + 1) % span == 0:  # a generation is full: only it is remembered
            history = history[-span:]
        assert len(seen) == len(history)


@given(st.lists(st.integers(0, 9) | st.text(max_size=2), max_size=80), st.integers(2, 30))
def test_restored_frequencies_go_on_the_same_way(values, span):
    seen = Frequencies(span)
    for value in values:
        seen.learn(value)
    again = Frequencies.restore(json.loads(json.dumps(seen.state())))
    assert [seen.add(v) for v in values] == [again.add(v) for v in values]


@pytest.mark.parametrize("kinds", [3, 40, 4000])
def test_small_p_values_are_as_rare_as_they_say(kinds):
    rng, seen = Random(kinds), Frequencies()
    weights = [1 / (k + 1) for k in range(kinds)]
    drawn = rng.choices(range(kinds), weights, k=4000)
    p_values = np.array([seen.add(value) for value in drawn])
    for level in (0.01, 0.05, 0.1):
        assert (p_values <= level).mean() <= level * 1.35 + 0.002


def test_a_field_that_is_always_new_is_never_unusual():
    seen = Frequencies()
    assert min(seen.add(n) for n in range(500)) == 1.0


def test_contexts_forget_those_unused_for_longest():
    contexts = Contexts(10, most=3)
    for context in ("a", "b", "c", "a", "d"):
        contexts.add(context, 1)
    assert contexts.get("b") is None
    assert contexts.get("a") is not None
    assert Contexts.restore(json.loads(json.dumps(contexts.state()))).p("a", 2) == contexts.p("a", 2)


@given(st.lists(st.floats(0, 70), max_size=200), st.floats(0, 80), st.floats(0, 80))
def test_rank_falls_with_surprise(history, one, other):
    lately = Ranks()
    for surprise in history:
        lately.add(surprise)
    low, high = sorted((one, other))
    assert 0.0 < lately.p(high) <= lately.p(low) <= 1.0


@pytest.mark.parametrize("count", [300, 3000])
def test_rank_is_about_the_share_that_was_as_large(count):
    rng, lately = np.random.default_rng(0), Ranks()
    for surprise in rng.exponential(3.0, count):
        lately.add(float(surprise))
    for level in (0.3, 0.1, 0.03):
        rank = lately.p(3.0 * -math.log(level))
        assert level * 0.6 < rank < level * 1.6 + 4 / count


def test_old_history_fades():
    lately = Ranks(memory=200)
    for _ in range(500):
        lately.add(8.0)
    usual = lately.p(8.0)
    for _ in range(2000):
        lately.add(0.0)
    assert usual > 0.9
    assert lately.p(8.0) < 0.01


def test_the_first_day_does_not_weigh_on_the_second():
    lately = Ranks()
    for _ in range(50):
        lately.add(6.0)
    for _ in range(950):
        lately.add(0.0)
    assert lately.p(6.0) < 0.003  # 5 % of all, but long ago


@given(st.lists(st.floats(0, 20), max_size=100), st.floats(0, 30))
def test_restored_ranks_are_the_same(history, surprise):
    lately = Ranks(memory=50)
    for value in history:
        lately.add(value)
    again = Ranks.restore(json.loads(json.dumps(lately.state())))
    for ranks in (lately, again):
        ranks.add(surprise)
    assert again.p(surprise) == lately.p(surprise)


def test_hours_are_counted_by_day():
    usual = Hours()
    for day in range(20):
        for minute in range(60):
            usual.learn("backup", day * DAY + 3 * HOUR + minute * 60 * 10**9)
    assert usual.p("backup", 20 * DAY + 4 * HOUR) == 1.0  # next to it
    assert usual.p("backup", 20 * DAY + 12 * HOUR) == pytest.approx(1 / 21)
    assert usual.p("backup", 19 * DAY + 12 * HOUR) == pytest.approx(1 / 20)  # today is counted once
    assert usual.p("other", 0) == 1.0
    assert Hours.restore(json.loads(json.dumps(usual.state()))).p("backup", 20 * DAY) == usual.p("backup", 20 * DAY)


def test_an_hour_on_the_first_day_is_not_unusual():
    usual = Hours()
    usual.learn("x", 5 * HOUR)
    assert usual.p("x", 6 * HOUR + DAY // 2) == 1.0
