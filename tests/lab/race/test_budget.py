"""How a benchmark divides its time, with an artificial clock.

python -m pytest tests/lab/race/test_budget.py
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.lab.race.budget import HEADLINE, TimeBudget, TimeLimits, divide, order_evenly

LIMITS = TimeLimits(total_s=100.0, least_s=1.0, most_s=10.0)
tenths = st.integers(0, 10_000).map(lambda n: n / 10)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run_cases(cases, headline, total_s, setup_s, limits=LIMITS):
    """Run cases whose preparation takes `setup_s(number, case)`: seconds of each race, and the time at the end."""
    clock = Clock()
    budget = TimeBudget(total_s, limits, clock)
    race_s_by_case = {}
    for number, (case, race_s) in enumerate(budget.allot(cases, headline)):
        setup = setup_s(number, case)
        clock.now += setup
        race_s_by_case[case] = race_s(setup)
        clock.now += race_s_by_case[case]
        budget.add_setup(setup)
    return race_s_by_case, clock.now


@given(tenths, st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0, 3.0]), tenths), min_size=1, max_size=6))
def test_all_time_is_divided_by_weight_and_needs_come_first(total, needs):
    shares = divide(total, needs)
    assert sum(shares) == pytest.approx(total, abs=1e-6)
    assert all(share >= 0 for share in shares)
    enough = total >= sum(need for _, need in needs)
    if enough:
        more = [(share - need) / weight for share, (weight, need) in zip(shares, needs, strict=True)]
        assert max(more) - min(more) < 1e-6 * max(1, total), "time that is not needed is divided by weight"
        return
    assert all(share <= need + 1e-6 for share, (_, need) in zip(shares, needs, strict=True))
    per_weight = [(share / weight, share < need - 1e-6) for share, (weight, need) in zip(shares, needs, strict=True)]
    short = [share for share, is_short in per_weight if is_short]
    assert max(short) - min(short) < 1e-6 * max(1, total), "a shortage is divided by weight"
    assert all(share <= min(short) + 1e-6 for share, is_short in per_weight if not is_short)


@given(st.integers(0, 200))
def test_every_beginning_of_an_even_order_covers_the_range(count):
    order = order_evenly(count)
    assert sorted(order) == list(range(count))
    for size in (4, 8, 16, 32):
        if size <= count:
            taken = sorted(order[:size])
            gaps = [b - a for a, b in zip([0, *taken], [*taken, count], strict=True)]
            assert max(gaps) <= 2 * math.ceil(count / size) * 2


def test_all_cases_run_if_there_is_time_and_none_exceeds_its_limit():
    race_s_by_case, _ = run_cases(list("abcd"), list("abcd"), 100, lambda *_: 2.0)
    assert race_s_by_case == dict.fromkeys("abcd", 10.0)


def test_time_is_divided_evenly_and_the_next_case_may_use_what_one_saves():
    setups = {"a": 1.0, "b": 1.0, "c": 3.0, "d": 1.0}
    race_s_by_case, end = run_cases(list("abcd"), list("abcd"), 16, lambda _, case: setups[case])
    assert [race_s_by_case[c] + setups[c] for c in "abcd"] == pytest.approx([4, 4, 4, 4])
    assert end == pytest.approx(16)


def test_a_long_preparation_still_leaves_the_shortest_race():
    race_s_by_case, _ = run_cases(list("ab"), list("ab"), 10, lambda number, _: 30.0 if number == 0 else 1.0)
    assert race_s_by_case == {"a": 1.0}, "and the next case is left out"


def test_a_workload_without_time_still_measures_one_case():
    assert run_cases(list("abc"), list("abc"), -5, lambda *_: 2.0)[0] == {"a": 1.0}


def test_a_case_that_would_not_fit_does_not_start():
    race_s_by_case, end = run_cases(list(range(50)), list(range(50)), 30, lambda *_: 4.0)
    assert list(race_s_by_case) == [0, 1, 2, 3, 4, 5]
    assert end <= 30


def test_a_sweep_that_does_not_fit_keeps_its_headline_and_thins_the_rest_evenly():
    cases = list(range(40))
    race_s_by_case, end = run_cases(cases, [3, 17], 50, lambda *_: 1.5)
    ran = list(race_s_by_case)
    assert ran[:2] == [3, 17]
    assert len(ran) >= 15
    assert end <= 52
    later = ran[2:]
    assert later[: len(later) - 3] == sorted(later[: len(later) - 3]), (
        "in the order of the workload: neighbours share what was built"
    )
    gaps = [b - a for a, b in zip(sorted(ran), sorted(ran)[1:], strict=False)]
    assert max(gaps) <= 8, "no stretch of the sweep is missing"
    assert race_s_by_case[3] == pytest.approx(HEADLINE * LIMITS.least_s)


def test_a_slow_first_case_does_not_exclude_the_others():
    race_s_by_case, _ = run_cases(list(range(10)), [0], 40, lambda number, _: 12.0 if number == 0 else 0.5)
    assert len(race_s_by_case) == 10


def test_a_sweep_without_headline_learns_from_one_case():
    race_s_by_case, end = run_cases(list(range(30)), [], 20, lambda *_: 2.0)
    assert 5 <= len(race_s_by_case) <= 7
    assert end <= 20 + LIMITS.least_s


@given(st.integers(1, 40), st.integers(0, 5), st.integers(1, 200), st.integers(0, 10), st.sampled_from([0.5, 1.0, 3.0]))
def test_no_benchmark_exceeds_its_time_by_more_than_one_case(count, headlines, total, setup, least):
    limits = TimeLimits(total, least, 10 * least)
    race_s_by_case, end = run_cases(list(range(count)), list(range(headlines)), total, lambda *_: setup, limits)
    assert end <= total + setup + HEADLINE * least + 1e-6
    assert race_s_by_case, "one case always starts"
    assert all(least <= race <= 10 * least for race in race_s_by_case.values())


def test_one_case_uses_up_a_budget_from_the_user():
    race_s_by_case, _ = run_cases(["a"], ["a"], 60, lambda *_: 2.0, TimeLimits(60, 0.5, math.inf))
    assert race_s_by_case["a"] == pytest.approx(58)
