"""How the time of a bench is divided, on a clock of the test's own.

python -m pytest tests/lab/test_budget.py
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.lab.race.budget import HEADLINE, Pace, Purse, divide, spread

PACE = Pace(total_s=100.0, least_s=1.0, most_s=10.0)
tenths = st.integers(0, 10_000).map(lambda n: n / 10)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def serve(cases, headline, total_s, setup_s, pace=PACE):
    """Run cases whose set-up takes `setup_s(number, case)`: what was raced, for how long, and the time at the end."""
    clock = Clock()
    purse = Purse(total_s, pace, clock)
    raced = {}
    for number, (case, race_s) in enumerate(purse.served(cases, headline)):
        setup = setup_s(number, case)
        clock.now += setup
        raced[case] = race_s(setup)
        clock.now += raced[case]
        purse.took(setup)
    return raced, clock.now


@given(tenths, st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0, 3.0]), tenths), min_size=1, max_size=6))
def test_all_time_is_given_out_by_weight_and_first_to_those_who_need_it(total, wants):
    shares = divide(total, wants)
    assert sum(shares) == pytest.approx(total, abs=1e-6)
    assert all(share >= 0 for share in shares)
    enough = total >= sum(need for _, need in wants)
    if enough:
        more = [(share - need) / weight for share, (weight, need) in zip(shares, wants, strict=True)]
        assert max(more) - min(more) < 1e-6 * max(1, total), "what nobody needs is shared by weight"
        return
    assert all(share <= need + 1e-6 for share, (_, need) in zip(shares, wants, strict=True))
    per_weight = [(share / weight, share < need - 1e-6) for share, (weight, need) in zip(shares, wants, strict=True)]
    short = [share for share, goes_short in per_weight if goes_short]
    assert max(short) - min(short) < 1e-6 * max(1, total), "who goes short does so by weight"
    assert all(share <= min(short) + 1e-6 for share, goes_short in per_weight if not goes_short)


@given(st.integers(0, 200))
def test_every_beginning_of_a_spread_order_reaches_over_the_whole(count):
    order = spread(count)
    assert sorted(order) == list(range(count))
    for size in (4, 8, 16, 32):
        if size <= count:
            taken = sorted(order[:size])
            gaps = [b - a for a, b in zip([0, *taken], [*taken, count], strict=True)]
            assert max(gaps) <= 2 * math.ceil(count / size) * 2


def test_all_cases_run_when_there_is_time_and_none_races_longer_than_it_may():
    raced, _ = serve(list("abcd"), list("abcd"), 100, lambda *_: 2.0)
    assert raced == dict.fromkeys("abcd", 10.0)


def test_time_is_shared_evenly_and_what_one_case_saves_the_next_may_use():
    setups = {"a": 1.0, "b": 1.0, "c": 3.0, "d": 1.0}
    raced, end = serve(list("abcd"), list("abcd"), 16, lambda _, case: setups[case])
    assert [raced[c] + setups[c] for c in "abcd"] == pytest.approx([4, 4, 4, 4])
    assert end == pytest.approx(16)


def test_a_set_up_that_eats_the_time_still_leaves_the_shortest_race():
    raced, _ = serve(list("ab"), list("ab"), 10, lambda number, _: 30.0 if number == 0 else 1.0)
    assert raced == {"a": 1.0}, "and the next case is left out"


def test_a_workload_that_others_left_no_time_has_one_case_all_the_same():
    assert serve(list("abc"), list("abc"), -5, lambda *_: 2.0)[0] == {"a": 1.0}


def test_a_case_that_would_not_fit_by_what_others_took_is_not_begun():
    raced, end = serve(list(range(50)), list(range(50)), 30, lambda *_: 4.0)
    assert list(raced) == [0, 1, 2, 3, 4, 5]
    assert end <= 30


def test_of_a_sweep_that_does_not_fit_the_headline_stays_and_the_rest_is_thinned_in_order():
    cases = list(range(40))
    raced, end = serve(cases, [3, 17], 50, lambda *_: 1.5)
    ran = list(raced)
    assert ran[:2] == [3, 17]
    assert len(ran) >= 15
    assert end <= 52
    later = ran[2:]
    assert later[: len(later) - 3] == sorted(later[: len(later) - 3]), "in the workload's own order: neighbours share"
    gaps = [b - a for a, b in zip(sorted(ran), sorted(ran)[1:], strict=False)]
    assert max(gaps) <= 8, "no stretch of the sweep is missing"
    assert raced[3] == pytest.approx(HEADLINE * PACE.least_s)


def test_a_slow_first_case_does_not_condemn_the_others():
    raced, _ = serve(list(range(10)), [0], 40, lambda number, _: 12.0 if number == 0 else 0.5)
    assert len(raced) == 10


def test_a_sweep_without_headline_learns_from_one_case():
    raced, end = serve(list(range(30)), [], 20, lambda *_: 2.0)
    assert 5 <= len(raced) <= 7
    assert end <= 20 + PACE.least_s


@given(st.integers(1, 40), st.integers(0, 5), st.integers(1, 200), st.integers(0, 10), st.sampled_from([0.5, 1.0, 3.0]))
def test_no_bench_overruns_by_more_than_one_case(count, headlines, total, setup, least):
    pace = Pace(total, least, 10 * least)
    raced, end = serve(list(range(count)), list(range(headlines)), total, lambda *_: setup, pace)
    assert end <= total + setup + HEADLINE * least + 1e-6
    assert raced, "some case is always begun"
    assert all(least <= race <= 10 * least for race in raced.values())


def test_a_budget_of_ones_own_is_used_up_by_one_case():
    raced, _ = serve(["a"], ["a"], 60, lambda *_: 2.0, Pace(60, 0.5, math.inf))
    assert raced["a"] == pytest.approx(58)
