"""The lab judged by simulation: equal is SAME, five percent is found, weather never makes a false FASTER.

python -m pytest tests/lab/test_verdict.py
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from tests.lab.heated import gone_on, line, times

from ridgeline.lab.judge import analyse, verdict
from ridgeline.lab.judge.verdict import Comparison, Validity
from ridgeline.lab.race.baton import Entrant
from ridgeline.lab.race.plan import Judge, Plan
from ridgeline.lab.race.plan import Lane as Racing
from ridgeline.lab.record.record import Lane


def race(rng: random.Random, slowdown: float, *, rounds: int, noise: float, weather: str) -> tuple[Lane, Lane]:
    """Two contenders, turn by turn in shuffled order, under weather that lasts for many turns."""
    lanes: dict[str, list[float]] = {"ours": [], "theirs": []}
    storm = 1.0
    for _ in range(rounds):
        for name in rng.sample(["ours", "theirs"], 2):
            if weather == "drift":
                storm *= rng.lognormvariate(0, 0.01)
            elif weather == "bursts" and rng.random() < 0.1:
                storm = rng.choice([1.0, 1.0, 1.5, 2.5])
            base = 100.0 * (slowdown if name == "theirs" else 1.0)
            lanes[name].append(base * storm * rng.lognormvariate(0, noise))
    return Lane("theirs", tuple(lanes["theirs"])), Lane("ours", tuple(lanes["ours"]))


def words(slowdown: float, trials: int, seed: int, **how) -> Counter[Comparison]:
    rng = random.Random(seed)
    return Counter(verdict.in_race(*race(rng, slowdown, **how))[1] for _ in range(trials))


def raced(slowdown: float, trials: int, seed: int, **how) -> Counter[Comparison]:
    """The same, ended by the lab's own stopping rule instead of after a fixed number of rounds."""
    rng, found = random.Random(seed), Counter()
    for _ in range(trials):
        whole = race(rng, slowdown, rounds=Plan().most_rounds, **how)
        judge = Judge(Plan())
        for rounds in range(1, Plan().most_rounds + 1):
            theirs, ours = (replace(lane, samples_ns=lane.samples_ns[:rounds]) for lane in whole)
            seen = [Racing(Entrant(x.contender, x.contender), list(x.samples_ns)) for x in (ours, theirs)]
            if judge.settled(seen, rounds):
                break
        found[verdict.in_race(theirs, ours)[1]] += 1
    return found


@pytest.mark.parametrize("weather", ["calm", "drift", "bursts"])
def test_equal_contenders_are_same_in_95_of_100_noisy_trials(weather):
    found = raced(1.0, 100, 1, noise=0.03, weather=weather)
    assert found[Comparison.SAME] >= 95, found


@pytest.mark.parametrize("weather", ["calm", "drift", "bursts"])
def test_five_percent_slower_is_found_in_95_of_100_noisy_trials(weather):
    found = raced(1.05, 100, 2, noise=0.03, weather=weather)
    assert found[Comparison.SLOWER] >= 95, found
    assert not found[Comparison.FASTER]


@pytest.mark.parametrize("weather", ["calm", "drift", "bursts"])
@pytest.mark.parametrize("noise", [0.01, 0.1, 0.4])
@pytest.mark.parametrize("rounds", [5, 12, 40])
def test_no_weather_makes_equals_differ(weather, noise, rounds):
    found = words(1.0, 300, rounds, rounds=rounds, noise=noise, weather=weather)
    assert found[Comparison.FASTER] + found[Comparison.SLOWER] <= 1, found


def test_too_little_evidence_is_unclear_not_same():
    found = words(1.0, 50, 3, rounds=8, noise=0.2, weather="calm")
    assert found[Comparison.SAME] <= 2, found
    assert found[Comparison.UNCLEAR] >= 45, found


def test_verdicts_are_said_of_them_and_mirror_when_sides_change():
    rng = random.Random(4)
    theirs, ours = race(rng, 1.5, rounds=30, noise=0.02, weather="calm")
    assert verdict.in_race(theirs, ours)[1] is Comparison.SLOWER
    assert verdict.in_race(ours, theirs)[1] is Comparison.FASTER


def test_the_margin_decides_what_is_worth_a_word():
    rng = random.Random(6)
    theirs, ours = race(rng, 1.05, rounds=60, noise=0.005, weather="calm")
    assert verdict.in_race(theirs, ours, margin=0.03)[1] is Comparison.SLOWER
    assert verdict.in_race(theirs, ours, margin=0.10)[1] is Comparison.SAME


def test_a_wrong_output_is_wrong_and_shows_no_time(record):
    bad = {"ok": False, "error": 3.5, "quality": {}, "note": "off by a row"}
    made = record({"ridgeline": [100.0] * 20, "peer": [90.0] * 20}, checks={"peer": bad})
    row = analyse.rows(made)[1]
    assert row.judged.validity is Validity.WRONG
    assert "error 3.5" in row.judged.advice
    assert "off by a row" in row.judged.advice
    assert (row.judged.time, row.ratio, row.comparison, row.items_per_s) == (None, None, None, None)


def test_validity_is_derived_from_what_was_recorded(record):
    steady = {"ridgeline": [100.0, 101.0, 99.0] * 8}
    made = record(steady)
    judge = lambda r: verdict.judge(r, r.contenders[0])  # noqa: E731
    assert judge(made).validity is Validity.VALID
    assert judge(record({"ridgeline": [100.0, 400.0] * 8})).validity is Validity.NOISY
    assert judge(record({"ridgeline": [100.0] * 5})).validity is Validity.INCOMPLETE, "no 95 % interval of five"
    one_turn = replace(made, contenders=(replace(made.contenders[0], samples_per_turn=24),))
    assert judge(one_turn).validity is Validity.INCOMPLETE, "24 samples of one moment are one observation"
    crashed = replace(made, contenders=(replace(made.contenders[0], failure="was killed by SIGSEGV"),))
    assert judge(crashed).validity is Validity.INCOMPLETE
    assert "SIGSEGV" in judge(crashed).advice


@pytest.mark.parametrize(
    ("after", "device", "word"),
    [
        ({"gpu": {"throttle_reasons": ["hardware thermal slowdown"]}}, "cuda", "hardware thermal slowdown"),
        ({"quota_throttled": 4}, "cpu", "cgroup CPU quota"),
        ({"thermal_events": 9}, "cpu", "CPU heat"),
    ],
)
def test_a_machine_that_was_held_back_is_throttled_and_says_by_what(record, after, device, word):
    made = record({"ridgeline": [100.0, 101.0] * 8})
    weather = {"before": made.weather["before"], "after": {**made.weather["after"], **after}}
    judged = verdict.judge(replace(made, weather=weather, case={**made.case, "device": device}), made.contenders[0])
    assert judged.validity is Validity.THROTTLED
    assert word in judged.advice


def test_the_share_of_the_ceiling_is_floor_over_time(record):
    row = analyse.rows(record({"ridgeline": [12.8] * 12}))[0]
    # 64 bytes at 10 GB/s take 6.4 ns, 16 FLOP at 10 GFLOP/s 1.6 ns: memory binds, and half of it was reached.
    assert row.limit.resource == "memory"
    assert row.share == pytest.approx(0.5)
    assert row.items_per_s == pytest.approx(8 / 12.8e-9)


def test_nothing_derived_is_stored(record):
    from ridgeline.lab.record.record import to_json

    text = str(to_json(record({"ridgeline": [1.0] * 12})))
    for word in ("median", "throughput", "items_per_s", "verdict", "ratio", "speedup", "share"):
        assert word not in text


def test_a_result_above_its_ceiling_raises_the_ceiling(record):
    made = record({"ridgeline": [3.2] * 12, "peer": [6.4] * 12})
    assert analyse.rows(made)[0].share == pytest.approx(2), "64 bytes at 10 GB/s should take 6.4 ns"
    raised = replace(made, ceilings=analyse.raised(made.ceilings, made))
    assert analyse.rows(raised)[0].share == pytest.approx(1)
    assert analyse.rows(raised)[1].share == pytest.approx(0.5)
    assert "raised" in raised.ceilings["memory"]["what"]
    assert raised.ceilings["compute"] == made.ceilings["compute"]
    slower = record({"ridgeline": [12.8] * 12})
    assert analyse.raised(slower.ceilings, slower) == slower.ceilings


def test_who_multiplies_in_another_type_has_another_ceiling(record):
    made = record({"ridgeline": [3.2] * 12, "peer": [0.8] * 12})
    ours, peer = made.contenders
    made = replace(
        made,
        work={**made.work, "bytes": {}},  # 16 FLOP at 10 GFLOP/s take 1.6 ns
        contenders=(ours, replace(peer, settings={"arithmetic": "int8"})),
    )
    assert analyse.raised(made.ceilings, made) == made.ceilings
    assert [row.share for row in analyse.rows(made)] == [pytest.approx(0.5), None]


def heated(rng: random.Random, slowdown: float, luck: float, heats: int = 16) -> Comparison:
    """A race of versions whose every process has lasting luck of its own; it goes on as the lab would have it."""

    def more(rounds: int | None) -> list[float]:
        own = slowdown * rng.lognormvariate(0, luck) / rng.lognormvariate(0, luck)
        return [own * rng.lognormvariate(0, 0.014) for _ in range(rounds or 12)]

    return verdict.of_versions(*times(gone_on(line(more(100)), more, heats)))[1]


@pytest.mark.parametrize("luck", [0.0, 0.02, 0.1])
def test_luck_that_stays_with_a_process_makes_no_difference_between_versions(luck):
    rng = random.Random(3)
    found = Counter(heated(rng, 1.0, luck) for _ in range(300))
    assert found[Comparison.FASTER] + found[Comparison.SLOWER] <= 3, found
    if not luck:
        assert found[Comparison.SAME] == 300


def test_a_slower_version_is_found_beyond_the_luck_of_its_processes():
    rng = random.Random(4)
    found = Counter(heated(rng, 1.1, 0.01) for _ in range(200))
    assert found[Comparison.SLOWER] >= 190, found


def test_fewer_heats_than_six_may_show_that_versions_are_the_same_but_no_difference():
    slow, ours = [2.0] * 30, [1.0] * 30
    for heats in ([30], [10, 10, 10], [6] * 5):
        assert verdict.of_versions(slow, ours, heats)[1] is Comparison.UNCLEAR
        assert verdict.of_versions(ours, ours, heats)[1] is Comparison.SAME
    assert verdict.of_versions([2.0, 2.1] * 15, ours, [5] * 6)[1] is Comparison.SLOWER
    lanes = Lane("theirs", tuple(slow)), Lane("ours", tuple(ours))
    assert verdict.in_race(*lanes, heats=[30])[1] is Comparison.SLOWER, "a peer is no version"
    assert verdict.in_race(*lanes, heats=[30], versions=True)[1] is Comparison.UNCLEAR


def test_versions_are_looked_at_until_their_ratio_is_known_whatever_their_times_do():
    """The same storms over both: each one's own time never settles, the ratio does."""
    rng, storm = random.Random(5), [1.0]
    for _ in range(400):
        storm.append(storm[-1] * rng.lognormvariate(0, 0.2))
    lanes = [
        Racing(Entrant(name, name), [100 * s * rng.lognormvariate(0, 0.06) for s in storm])
        for name in ("ridgeline", "ridgeline@x")
    ]

    def end(**how) -> tuple[int, str]:
        judge = Judge(Plan(**how))
        for rounds in range(1, 401):
            seen = [Racing(lane.entrant, lane.samples_ns[:rounds]) for lane in lanes]
            if word := judge.settled(seen, rounds):
                return rounds, word
        return 400, "rounds"

    assert end()[1] != "converged"
    assert end(versions=True)[1] == "converged"
    assert end(versions=True)[0] > 96, "where a race of peers may already have been given up"
