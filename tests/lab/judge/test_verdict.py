"""Verdicts tested by simulation: equal is SAME, five percent is detected, load never gives a false FASTER.

python -m pytest tests/lab/judge/test_verdict.py
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from tests.draws import choose_draws
from tests.lab.repeated_races import get_times, open_case, repeat_case

from ridgeline.lab.judge import Comparison, Validity, analyse_record, raise_ceilings, verdict
from ridgeline.lab.race import ContenderSpec, Plan
from ridgeline.lab.race.measure import Lane, StopRule
from ridgeline.lab.record import ContenderResult


def simulate_race(
    rng: random.Random, slowdown: float, *, rounds: int, noise: float, load: str
) -> tuple[ContenderResult, ContenderResult]:
    """Race two contenders, turn by turn in shuffled order, under load that lasts for many turns."""
    samples: dict[str, list[float]] = {"ours": [], "peer": []}
    factor = 1.0
    for _ in range(rounds):
        for name in rng.sample(["ours", "peer"], 2):
            if load == "drift":
                factor *= rng.lognormvariate(0, 0.01)
            elif load == "bursts" and rng.random() < 0.1:
                factor = rng.choice([1.0, 1.0, 1.5, 2.5])
            base = 100.0 * (slowdown if name == "peer" else 1.0)
            samples[name].append(base * factor * rng.lognormvariate(0, noise))
    return ContenderResult("peer", tuple(samples["peer"])), ContenderResult("ours", tuple(samples["ours"]))


def count_verdicts(slowdown: float, trials: int, seed: int, **options) -> Counter[Comparison]:
    rng = random.Random(seed)
    return Counter(verdict.compare_in_race(*simulate_race(rng, slowdown, **options))[1] for _ in range(trials))


def count_verdicts_with_stop_rule(slowdown: float, trials: int, seed: int, **options) -> Counter[Comparison]:
    """Count verdicts of races that end by the stop rule of the lab, not after a fixed number of rounds."""
    rng, counts = random.Random(seed), Counter()
    for _ in range(trials):
        results = simulate_race(rng, slowdown, rounds=Plan().most_rounds, **options)
        rule = StopRule(Plan())
        for rounds in range(1, Plan().most_rounds + 1):
            peer, ours = (replace(result, samples_ns=result.samples_ns[:rounds]) for result in results)
            lanes = [Lane(ContenderSpec(x.contender, x.contender), list(x.samples_ns)) for x in (ours, peer)]
            if rule.find_reason(lanes, rounds):
                break
        counts[verdict.compare_in_race(peer, ours)[1]] += 1
    return counts


@pytest.mark.parametrize("load", ["idle", "drift", "bursts"])
def test_equal_contenders_are_same_in_95_of_100_noisy_trials(load):
    trials = choose_draws(40, 100)
    counts = count_verdicts_with_stop_rule(1.0, trials, 1, noise=0.03, load=load)
    assert counts[Comparison.SAME] >= 0.95 * trials, counts


@pytest.mark.slow
@pytest.mark.parametrize("load", ["idle", "drift", "bursts"])
def test_five_percent_slower_is_detected_in_95_of_100_noisy_trials(load):
    counts = count_verdicts_with_stop_rule(1.05, 100, 2, noise=0.03, load=load)
    assert counts[Comparison.SLOWER] >= 95, counts
    assert not counts[Comparison.FASTER]


@pytest.mark.parametrize("load", ["idle", "drift", "bursts"])
@pytest.mark.parametrize("noise", [0.01, 0.1, 0.4])
@pytest.mark.parametrize("rounds", [5, 12, 40])
def test_no_load_makes_equals_differ(load, noise, rounds):
    counts = count_verdicts(1.0, 300, rounds, rounds=rounds, noise=noise, load=load)
    assert counts[Comparison.FASTER] + counts[Comparison.SLOWER] <= 1, counts


def test_too_little_evidence_is_unclear_not_same():
    counts = count_verdicts(1.0, 50, 3, rounds=8, noise=0.2, load="idle")
    assert counts[Comparison.SAME] <= 2, counts
    assert counts[Comparison.UNCLEAR] >= 45, counts


def test_verdicts_describe_the_peer_and_mirror_if_the_sides_change():
    rng = random.Random(4)
    peer, ours = simulate_race(rng, 1.5, rounds=30, noise=0.02, load="idle")
    assert verdict.compare_in_race(peer, ours)[1] is Comparison.SLOWER
    assert verdict.compare_in_race(ours, peer)[1] is Comparison.FASTER


def test_the_margin_decides_which_difference_counts():
    rng = random.Random(6)
    peer, ours = simulate_race(rng, 1.05, rounds=60, noise=0.005, load="idle")
    assert verdict.compare_in_race(peer, ours, margin=0.03)[1] is Comparison.SLOWER
    assert verdict.compare_in_race(peer, ours, margin=0.10)[1] is Comparison.SAME


def test_a_wrong_output_is_wrong_and_shows_no_time(record):
    bad = {"ok": False, "error": 3.5, "quality": {}, "note": "off by a row"}
    measured = record({"ridgeline": [100.0] * 20, "peer": [90.0] * 20}, checks={"peer": bad})
    row = analyse_record(measured)[1]
    assert row.assessment.validity is Validity.WRONG
    assert "error 3.5" in row.assessment.advice
    assert "off by a row" in row.assessment.advice
    assert (row.assessment.time, row.ratio, row.comparison, row.items_per_s) == (None, None, None, None)


def test_validity_is_derived_from_the_record(record):
    steady = {"ridgeline": [100.0, 101.0, 99.0] * 8}
    measured = record(steady)
    assess = lambda r: verdict.assess(r, r.contenders[0])  # noqa: E731
    assert assess(measured).validity is Validity.VALID
    assert assess(record({"ridgeline": [100.0, 400.0] * 8})).validity is Validity.NOISY
    assert assess(record({"ridgeline": [100.0] * 5})).validity is Validity.INCOMPLETE, "no 95 % interval of five"
    one_turn = replace(measured, contenders=(replace(measured.contenders[0], samples_per_turn=24),))
    assert assess(one_turn).validity is Validity.INCOMPLETE, "24 samples of one moment are one observation"
    crashed = replace(measured, contenders=(replace(measured.contenders[0], failure="was killed by SIGSEGV"),))
    assert assess(crashed).validity is Validity.INCOMPLETE
    assert "SIGSEGV" in assess(crashed).advice


@pytest.mark.parametrize(
    ("after", "device", "reason"),
    [
        ({"gpu": {"throttle_reasons": ["hardware thermal slowdown"]}}, "cuda", "hardware thermal slowdown"),
        ({"quota_throttled": 4}, "cpu", "cgroup CPU quota"),
        ({"thermal_events": 9}, "cpu", "CPU heat"),
    ],
)
def test_a_throttled_machine_is_named_with_its_reason(record, after, device, reason):
    measured = record({"ridgeline": [100.0, 101.0] * 8})
    conditions = {"before": measured.conditions["before"], "after": {**measured.conditions["after"], **after}}
    throttled = replace(measured, conditions=conditions, case={**measured.case, "device": device})
    assessment = verdict.assess(throttled, measured.contenders[0])
    assert assessment.validity is Validity.THROTTLED
    assert reason in assessment.advice


def test_the_share_of_the_ceiling_is_floor_over_time(record):
    row = analyse_record(record({"ridgeline": [12.8] * 12}))[0]
    # 64 bytes at 10 GB/s take 6.4 ns, 16 FLOP at 10 GFLOP/s 1.6 ns: memory is the limit, and the result is half of it.
    assert row.limit.resource == "memory"
    assert row.share == pytest.approx(0.5)
    assert row.items_per_s == pytest.approx(8 / 12.8e-9)


def test_nothing_derived_is_stored(record):
    from ridgeline.lab.record import record_to_json

    text = str(record_to_json(record({"ridgeline": [1.0] * 12})))
    for word in ("median", "throughput", "items_per_s", "verdict", "ratio", "speedup", "share"):
        assert word not in text


def test_a_result_above_its_ceiling_raises_the_ceiling(record):
    measured = record({"ridgeline": [3.2] * 12, "peer": [6.4] * 12})
    assert analyse_record(measured)[0].share == pytest.approx(2), "64 bytes at 10 GB/s should take 6.4 ns"
    raised = replace(measured, ceilings=raise_ceilings(measured.ceilings, measured))
    assert analyse_record(raised)[0].share == pytest.approx(1)
    assert analyse_record(raised)[1].share == pytest.approx(0.5)
    assert "raised" in raised.ceilings["memory"]["what"]
    assert raised.ceilings["compute"] == measured.ceilings["compute"]
    slower = record({"ridgeline": [12.8] * 12})
    assert raise_ceilings(slower.ceilings, slower) == slower.ceilings


def test_a_contender_that_multiplies_in_another_type_has_another_ceiling(record):
    measured = record({"ridgeline": [3.2] * 12, "peer": [0.8] * 12})
    ours, peer = measured.contenders
    measured = replace(
        measured,
        work={**measured.work, "bytes": {}},  # 16 FLOP at 10 GFLOP/s take 1.6 ns
        contenders=(ours, replace(peer, settings={"arithmetic": "int8"})),
    )
    assert raise_ceilings(measured.ceilings, measured) == measured.ceilings
    assert [row.share for row in analyse_record(measured)] == [pytest.approx(0.5), None]


def simulate_versions(rng: random.Random, slowdown: float, luck: float, executions: int = 16) -> Comparison:
    """Race versions whose every process has its own lasting factor; repeat it by the rules of the lab."""

    def draw(rounds: int | None) -> list[float]:
        factor = slowdown * rng.lognormvariate(0, luck) / rng.lognormvariate(0, luck)
        return [factor * rng.lognormvariate(0, 0.014) for _ in range(rounds or 12)]

    return verdict.compare_versions(*get_times(repeat_case(open_case(draw(100)), draw, executions)))[1]


@pytest.mark.parametrize("luck", [0.0, 0.02, 0.1])
def test_a_lasting_property_of_a_process_is_not_a_difference_between_versions(luck):
    rng, trials = random.Random(3), choose_draws(100, 300)
    counts = Counter(simulate_versions(rng, 1.0, luck) for _ in range(trials))
    assert counts[Comparison.FASTER] + counts[Comparison.SLOWER] <= 0.01 * trials, counts
    if not luck:
        assert counts[Comparison.SAME] == trials


def test_a_slower_version_is_detected_in_spite_of_varying_processes():
    rng, trials = random.Random(4), choose_draws(80, 200)
    counts = Counter(simulate_versions(rng, 1.1, 0.01) for _ in range(trials))
    assert counts[Comparison.SLOWER] >= 0.95 * trials, counts


def test_fewer_than_six_executions_can_show_same_but_no_difference():
    slow, ours = [2.0] * 30, [1.0] * 30
    for executions in ([30], [10, 10, 10], [6] * 5):
        assert verdict.compare_versions(slow, ours, executions)[1] is Comparison.UNCLEAR
        assert verdict.compare_versions(ours, ours, executions)[1] is Comparison.SAME
    assert verdict.compare_versions([2.0, 2.1] * 15, ours, [5] * 6)[1] is Comparison.SLOWER
    results = ContenderResult("peer", tuple(slow)), ContenderResult("ours", tuple(ours))
    assert verdict.compare_in_race(*results, executions=[30])[1] is Comparison.SLOWER, "a peer is not a version"
    assert verdict.compare_in_race(*results, executions=[30], versions=True)[1] is Comparison.UNCLEAR


def test_a_race_of_versions_goes_on_until_the_ratio_is_known():
    """Both feel the same load: the time of each never converges, the ratio does."""
    rng, load = random.Random(5), [1.0]
    for _ in range(400):
        load.append(load[-1] * rng.lognormvariate(0, 0.2))
    lanes = [
        Lane(ContenderSpec(name, name), [100 * x * rng.lognormvariate(0, 0.06) for x in load])
        for name in ("ridgeline", "ridgeline@x")
    ]

    def find_end(**options) -> tuple[int, str]:
        rule = StopRule(Plan(**options))
        for rounds in range(1, 401):
            beginning = [Lane(lane.spec, lane.samples_ns[:rounds]) for lane in lanes]
            if reason := rule.find_reason(beginning, rounds):
                return rounds, reason
        return 400, "rounds"

    assert find_end()[1] != "converged"
    assert find_end(versions=True)[1] == "converged"
    assert find_end(versions=True)[0] > 96, "a race of peers may have stopped at a plateau by then"
