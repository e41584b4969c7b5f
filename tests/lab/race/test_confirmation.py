"""Which cases of a race of versions are repeated with fresh processes, in which order, and until when.

python -m pytest tests/lab/race/test_confirmation.py
"""

from __future__ import annotations

import random

import pytest
from tests.lab.repeated_races import Clock, get_times, open_case, repeat_case

from ridgeline.lab.judge import MARGIN, paired_ratio
from ridgeline.lab.race import ContenderSpec, ProgressHooks, benchmark
from ridgeline.lab.race.confirmation import confirm_cases


def draw(ratio: float, noise: float, count: int, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [ratio * rng.lognormvariate(0, noise) for _ in range(count)]


def test_a_case_that_the_first_race_shows_to_be_the_same_needs_no_repeat():
    assert open_case(draw(1.0, 0.01, 40)).remaining == (0, None)


def test_an_undecided_case_doubles_its_rounds_until_they_are_enough_for_a_comparison():
    case = open_case(draw(1.0, 0.15, 12))
    assert case.remaining == (1, 12)
    done = repeat_case(case, lambda count: draw(1.0, 0.15, count or 12, seed=len(case.race.executions)), 200)
    assert done.race.executions[:3] == [12, 12, 24], "the same number of rounds again"
    assert paired_ratio(*get_times(done)[:2]).relative < MARGIN


def test_a_case_that_seems_to_differ_gets_six_executions_and_more_if_these_vary():
    similar, different = open_case(draw(1.05, 0.01, 40)), open_case(draw(1.05, 0.01, 40))
    assert similar.remaining == (5, None)
    assert len(repeat_case(similar, lambda _: draw(1.05, 0.001, 12), 60).race.executions) == 6
    luck = random.Random(2)
    done = repeat_case(different, lambda _: draw(luck.lognormvariate(0, 0.03), 0.001, 12), 60)
    assert 10 < len(done.race.executions) < 40
    assert done.remaining[0] == 0


def test_the_end_does_not_depend_on_the_values_of_the_ratios():
    rng = random.Random(3)
    luck = [rng.lognormvariate(0, 0.02) for _ in range(60)]

    def count_executions(shift: float) -> int:
        factors = iter(luck)
        case = open_case([shift] * 12, differs=True)
        return len(repeat_case(case, lambda _: [shift * next(factors)] * 12, 60).race.executions)

    assert count_executions(0.9) == count_executions(1.0) == count_executions(1.5) > 6


def test_cheap_cases_come_first_and_no_execution_starts_that_would_end_too_late():
    clock, order = Clock(), []
    dear, cheap = open_case(draw(1.05, 0.01, 40), 10.0), open_case(draw(1.05, 0.01, 40), 2.0)
    same = open_case([1.0] * 12)

    def repeat(case, rounds):
        order.append(case)
        case.race.lanes[0].samples_ns += [1.0] * 12
        case.race.lanes[1].samples_ns += [1.05] * 12
        case.race.executions.append(12)
        clock.now += case.execution_s

    done = list(confirm_cases([dear, cheap, same], 35.0, repeat, clock))
    assert done == [same, cheap, dear], "in the order in which they are decided"
    assert order == [cheap] * 5 + [dear] * 2
    assert clock.now <= 35


def test_a_contender_that_fails_in_a_repeat_ends_its_case():
    case = open_case(draw(1.05, 0.01, 40))

    def fail(case, rounds):
        case.race.lanes[1].failure = "was killed by SIGKILL"
        case.race.executions.append(0)

    assert list(confirm_cases([case], 1e9, fail, Clock())) == [case]


@pytest.mark.slow
def test_cases_that_found_no_time_come_before_any_repeat(run, monkeypatch):
    twin = ContenderSpec("ridgeline@twin", "slow")  # five times slower: it needs six executions
    started, divide = [], benchmark.divide
    shares = iter([lambda total, needs: [0.0] * len(needs)])  # other workloads have used the time of this one
    monkeypatch.setattr(benchmark, "divide", lambda total, needs: next(shares, divide)(total, needs))
    hooks = ProgressHooks(on_case=lambda point: started.append(point.case["who"]))
    records = run(versions=[twin], most_rounds=12, budget_s=180.0, hooks=hooks)  # ends when all cases are decided
    assert sorted(r.case["who"] for r in records) == ["chatty", "slow", "wrong"]
    assert started[:3] == ["chatty", "slow", "wrong"]
    assert max(len(r.race["executions"]) for r in records) >= 6
