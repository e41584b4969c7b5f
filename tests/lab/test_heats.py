"""Which lines of a bench of versions are looked at again, in which order, and until when.

python -m pytest tests/lab/test_heats.py
"""

from __future__ import annotations

import random

from tests.lab.heated import Clock, gone_on, line, times

from ridgeline.lab.judge import stats
from ridgeline.lab.judge.verdict import MARGIN
from ridgeline.lab.race import benchmark as bench
from ridgeline.lab.race.baton import Entrant
from ridgeline.lab.race.heats import settle


def rounds(ratio: float, noise: float, count: int, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [ratio * rng.lognormvariate(0, noise) for _ in range(count)]


def test_what_the_first_look_shows_to_be_the_same_wants_nothing_more():
    assert line(rounds(1.0, 0.01, 40)).wants == (0, None)


def test_a_line_that_is_wide_open_gets_as_many_rounds_again_until_they_are_worth_a_look():
    one = line(rounds(1.0, 0.15, 12))
    assert one.wants == (1, 12)
    done = gone_on(one, lambda count: rounds(1.0, 0.15, count or 12, seed=len(one.race.heats)), 200)
    assert done.race.heats[:3] == [12, 12, 24], "what there was, again"
    assert stats.paired_ratio(*times(done)[:2]).relative < MARGIN


def test_a_line_that_seems_to_differ_goes_on_in_six_heats_and_more_where_they_lie_apart():
    alike, apart = line(rounds(1.05, 0.01, 40)), line(rounds(1.05, 0.01, 40))
    assert alike.wants == (5, None)
    assert len(gone_on(alike, lambda _: rounds(1.05, 0.001, 12), 60).race.heats) == 6
    luck = random.Random(2)
    done = gone_on(apart, lambda _: rounds(luck.lognormvariate(0, 0.03), 0.001, 12), 60)
    assert 10 < len(done.race.heats) < 40
    assert done.wants[0] == 0


def test_when_it_ends_does_not_hang_on_where_the_ratios_lie():
    rng = random.Random(3)
    luck = [rng.lognormvariate(0, 0.02) for _ in range(60)]

    def heats(shift: float) -> int:
        drawn = iter(luck)
        return len(gone_on(line([shift] * 12, looked=True), lambda _: [shift * next(drawn)] * 12, 60).race.heats)

    assert heats(0.9) == heats(1.0) == heats(1.5) > 6


def test_lines_that_need_least_come_first_and_no_heat_is_begun_that_would_end_too_late():
    clock, order = Clock(), []
    dear, cheap, same = line(rounds(1.05, 0.01, 40), 10.0), line(rounds(1.05, 0.01, 40), 2.0), line([1.0] * 12)

    def race_on(race, count, watch):
        one = dear if race is dear.race else cheap
        order.append(one)
        race.lanes[0].samples_ns += [1.0] * 12
        race.lanes[1].samples_ns += [1.05] * 12
        race.heats.append(12)
        clock.now += one.heat_s

    done = list(settle([dear, cheap, same], 35.0, lambda line: None, clock, race_on))
    assert done == [same, cheap, dear], "as they are decided"
    assert order == [cheap] * 5 + [dear] * 2
    assert clock.now <= 35


def test_a_contender_that_is_lost_in_a_heat_ends_its_line():
    one = line(rounds(1.05, 0.01, 40))

    def lose(race, count, watch):
        race.lanes[1].failure = "was killed by SIGKILL"
        race.heats.append(0)

    assert list(settle([one], 1e9, lambda line: None, Clock(), lose)) == [one]


def test_cases_that_found_no_time_come_before_any_second_look(run, tmp_path, monkeypatch):
    twin = Entrant("ridgeline@twin", "slow")  # five times slower: it wants six heats
    begun, divide = [], bench.divide
    shares = iter([lambda total, wants: [0.0] * len(wants)])  # others have used up this workload's share
    monkeypatch.setattr(bench, "divide", lambda total, wants: next(shares, divide)(total, wants))
    watcher = bench.Watcher(case=lambda point: begun.append(point.case["who"]))
    records = run(rivals=[twin], most_rounds=12, budget_s=180.0, watcher=watcher)  # it ends when all is decided
    assert sorted(r.case["who"] for r in records) == ["chatty", "slow", "wrong"]
    assert begun[:3] == ["chatty", "slow", "wrong"]
    assert max(len(r.race["heats"]) for r in records) >= 6
