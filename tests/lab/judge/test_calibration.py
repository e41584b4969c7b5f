"""Calibration of verdicts: equal and unequal versions, simulated with the noise of committed records.

The noise of a race is its log ratio round by round, drawn in blocks because neighbouring rounds are similar. Each
execution adds a factor that stays with its processes, and some executions a step that affects one of the two.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.lab.repeated_races import get_times, open_case, repeat_case

from ridgeline.lab.judge import Comparison, stats, verdict
from ridgeline.lab.record import read_records

pytestmark = pytest.mark.slow  # simulates thousands of races
RECORDS = Path(__file__).parents[3] / "benchmarks" / "records"
FILES = ("neoverse-n1-bench", "neoverse-n1-ledger", "h200-lab", "h200-host-lab")
QUIET = 0.01  # median deviation of the log ratio, round by round
BLOCK, EXECUTION, MOST = 6, 24, 400  # rounds
EXECUTIONS = 60


def load_noises() -> list[list[float]]:
    noises = []
    for name in FILES:
        for record in read_records(RECORDS / f"{name}.jsonl").records:
            ours, *others = (
                stats.turn_medians(result.samples_ns, result.samples_per_turn) for result in record.contenders
            )
            for other in others:
                if len(other) == len(ours) >= 24:
                    logs = [math.log(a / b) for a, b in zip(other, ours, strict=True)]
                    noises.append([x - statistics.median(logs) for x in logs])
    return noises


NOISES = load_noises()
QUIET_NOISES = [noise for noise in NOISES if statistics.median(map(abs, noise)) < QUIET]


def draw_noise(noise: Sequence[float], rounds: int, rng: random.Random, block: int = BLOCK) -> list[float]:
    out: list[float] = []
    sign = rng.choice((1, -1))
    while len(out) < rounds:
        start = rng.randrange(len(noise))
        out += [sign * noise[(start + k) % len(noise)] for k in range(block)]
    return out[:rounds]


def draw_ratios(
    noise: Sequence[float], rounds: int, rng: random.Random, ratio: float, luck: float, drift: float
) -> list[float]:
    logs = draw_noise(noise, rounds, rng)
    shift = math.log(ratio) + rng.gauss(0, luck)
    step, size = (rng.randrange(rounds), rng.gauss(0, drift)) if rng.random() < 0.3 else (rounds, 0.0)
    return [math.exp(x + shift + (size if n >= step else 0.0)) for n, x in enumerate(logs)]


def simulate(noise: Sequence[float], rng: random.Random, ratio: float, luck: float, drift: float) -> Comparison:
    """Do what `bench --against` does: a first race, then time for `EXECUTIONS` repeats of `EXECUTION` rounds."""
    first = open_case(draw_ratios(noise, min(MOST, 3 * len(noise)), rng, ratio, luck, drift))
    done = repeat_case(
        first, lambda rounds: draw_ratios(noise, rounds or EXECUTION, rng, ratio, luck, drift), EXECUTIONS
    )
    return verdict.compare_versions(*get_times(done))[1]


def count_verdicts(
    pool: Sequence[Sequence[float]], trials: int, seed: int, ratio: float, luck: float, drift: float
) -> Counter:
    rng = random.Random(seed)
    return Counter(simulate(noise, rng, ratio, luck, drift) for noise in pool for _ in range(trials))


@pytest.mark.parametrize(("luck", "drift"), [(0.0, 0.0), (0.01, 0.03), (0.02, 0.03)])
def test_one_code_is_never_faster_or_slower_than_itself(luck, drift):
    counts = count_verdicts(NOISES, 4, 1, 1.0, luck, drift)
    assert counts[Comparison.FASTER] + counts[Comparison.SLOWER] <= 1, counts


@pytest.mark.parametrize(("luck", "drift", "share"), [(0.0, 0.0, 0.98), (0.005, 0.01, 0.95), (0.01, 0.03, 0.9)])
def test_on_a_quiet_machine_nine_of_ten_cases_are_same(luck, drift, share):
    counts = count_verdicts(QUIET_NOISES, 20, 2, 1.0, luck, drift)
    assert counts[Comparison.SAME] >= share * counts.total(), counts


@pytest.mark.parametrize(("luck", "drift", "share"), [(0.0, 0.0, 0.98), (0.01, 0.03, 0.9)])
@pytest.mark.parametrize(("ratio", "comparison"), [(1.1, Comparison.SLOWER), (1 / 1.1, Comparison.FASTER)])
def test_on_a_quiet_machine_ten_percent_are_detected(luck, drift, share, ratio, comparison):
    counts = count_verdicts(QUIET_NOISES, 10, 3, ratio, luck, drift)
    assert counts[comparison] >= share * counts.total(), counts
    assert not counts[Comparison.SAME], counts


@pytest.mark.parametrize("luck", [0.01, 0.025, 0.04])
@pytest.mark.parametrize("ratio", [1.0, 1.03, 1.1])
def test_repeats_until_the_interval_is_narrow_keep_the_stated_confidence(luck, ratio):
    """With varying processes and no other noise, intervals have their stated coverage when the lab stops."""
    rng, trials, missed, missed_confident, counts = random.Random(6), 600, 0, 0, Counter()

    def draw(rounds: int | None) -> list[float]:
        return [ratio * math.exp(rng.gauss(0, luck))]

    for _ in range(trials):
        case = repeat_case(open_case(draw(None), differs=True), draw, EXECUTIONS)
        ratios = stats.execution_ratios(*get_times(case))
        usual, confident = (stats.mean_execution_ratio(ratios, c) for c in (stats.CONFIDENCE, stats.HIGH_CONFIDENCE))
        missed += not usual.low <= ratio <= usual.high
        missed_confident += not confident.low <= ratio <= confident.high
        counts[verdict.classify_ratio(usual, confident)] += 1
    assert missed <= 0.075 * trials, "0.05, and what chance adds in one of a hundred runs"
    assert missed_confident <= 0.005 * trials
    if ratio == 1.0:
        assert counts[Comparison.FASTER] + counts[Comparison.SLOWER] <= 0.0035 * trials, counts
        assert counts[Comparison.SAME] >= (0.96 if luck < 0.03 else 0.9) * trials, counts
    elif ratio == 1.03:
        assert counts[Comparison.SAME] + counts[Comparison.FASTER] <= 0.05 * trials, counts
    else:
        assert counts[Comparison.SLOWER] >= 0.99 * trials, counts


@pytest.mark.parametrize(("confidence", "most"), [(stats.CONFIDENCE, 0.05), (stats.HIGH_CONFIDENCE, 0.005)])
@pytest.mark.parametrize("block", [1, 6, 12])
def test_an_interval_covers_the_truth_if_neighbouring_rounds_are_similar(confidence, most, block):
    """A sign test of independent rounds at the second confidence would miss in more than one of a hundred."""
    rng, missed, tried = random.Random(4), 0, 0
    for noise in NOISES:
        for _ in range(15):
            ratios = [math.exp(x) for x in draw_noise(noise, 200, rng, block)]
            estimate = stats.paired_ratio(ratios, [1.0] * len(ratios), confidence)
            missed += not estimate.low <= 1 <= estimate.high
            tried += 1
    assert missed <= most * tried


def test_independent_values_count_in_full_and_repeated_values_once():
    rng = random.Random(5)
    independent = [rng.gauss(0, 1) for _ in range(400)]
    repeated = [x for x in independent[:50] for _ in range(8)]
    assert stats.effective_sample_size(independent) >= 250
    assert 30 <= stats.effective_sample_size(repeated) <= 90
    assert stats.effective_sample_size([]) == 0
    assert stats.effective_sample_size([1.0, 1.0, 1.0]) == 3
