"""Are verdicts as sure as they say? Equal and unequal versions, made of the noise that committed records show.

The noise of a race is its log ratio round by round, drawn in blocks, for neighbouring rounds are alike. On top comes
luck that stays with a process for a heat, and in some heats a step half-way that only one of the two feels.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.lab.heated import gone_on, line, times

from ridgeline.lab.judge import stats, verdict
from ridgeline.lab.judge.verdict import Comparison
from ridgeline.lab.record import record

RECORDS = Path(__file__).parents[2] / "benchmarks" / "records"
FILES = ("neoverse-n1-bench", "neoverse-n1-ledger", "h200-lab", "h200-host-lab")
QUIET = 0.01  # median deviation of the log ratio, round by round
BLOCK, HEAT, MOST = 6, 24, 400  # rounds
HEATS = 60


def noises() -> list[list[float]]:
    found = []
    for name in FILES:
        for one in record.read(RECORDS / f"{name}.jsonl").records:
            ours, *others = (stats.turns(lane.samples_ns, lane.samples_per_turn) for lane in one.contenders)
            for other in others:
                if len(other) == len(ours) >= 24:
                    logs = [math.log(a / b) for a, b in zip(other, ours, strict=True)]
                    found.append([x - statistics.median(logs) for x in logs])
    return found


NOISES = noises()
CALM = [noise for noise in NOISES if statistics.median(map(abs, noise)) < QUIET]


def drawn(noise: Sequence[float], rounds: int, rng: random.Random, block: int = BLOCK) -> list[float]:
    out: list[float] = []
    side = rng.choice((1, -1))
    while len(out) < rounds:
        start = rng.randrange(len(noise))
        out += [side * noise[(start + k) % len(noise)] for k in range(block)]
    return out[:rounds]


def heat(
    noise: Sequence[float], rounds: int, rng: random.Random, ratio: float, luck: float, drift: float
) -> list[float]:
    logs = drawn(noise, rounds, rng)
    shift = math.log(ratio) + rng.gauss(0, luck)
    step, size = (rng.randrange(rounds), rng.gauss(0, drift)) if rng.random() < 0.3 else (rounds, 0.0)
    return [math.exp(x + shift + (size if n >= step else 0.0)) for n, x in enumerate(logs)]


def raced(noise: Sequence[float], rng: random.Random, ratio: float, luck: float, drift: float) -> Comparison:
    """As `bench --against` does it: the rounds of a first look, then time for so many heats of `HEAT` rounds."""
    first = line(heat(noise, min(MOST, 3 * len(noise)), rng, ratio, luck, drift))
    done = gone_on(first, lambda rounds: heat(noise, rounds or HEAT, rng, ratio, luck, drift), HEATS)
    return verdict.of_versions(*times(done))[1]


def words(pool: Sequence[Sequence[float]], trials: int, seed: int, ratio: float, luck: float, drift: float) -> Counter:
    rng = random.Random(seed)
    return Counter(raced(noise, rng, ratio, luck, drift) for noise in pool for _ in range(trials))


@pytest.mark.parametrize(("luck", "drift"), [(0.0, 0.0), (0.01, 0.03), (0.02, 0.03)])
def test_one_code_is_never_called_faster_or_slower_than_itself(luck, drift):
    found = words(NOISES, 4, 1, 1.0, luck, drift)
    assert found[Comparison.FASTER] + found[Comparison.SLOWER] <= 1, found


@pytest.mark.parametrize(("luck", "drift", "share"), [(0.0, 0.0, 0.98), (0.005, 0.01, 0.95), (0.01, 0.03, 0.9)])
def test_on_a_quiet_machine_nine_lines_of_ten_are_the_same(luck, drift, share):
    found = words(CALM, 20, 2, 1.0, luck, drift)
    assert found[Comparison.SAME] >= share * found.total(), found


@pytest.mark.parametrize(("luck", "drift", "share"), [(0.0, 0.0, 0.98), (0.01, 0.03, 0.9)])
@pytest.mark.parametrize(("ratio", "word"), [(1.1, Comparison.SLOWER), (1 / 1.1, Comparison.FASTER)])
def test_on_a_quiet_machine_ten_percent_are_found(luck, drift, share, ratio, word):
    found = words(CALM, 10, 3, ratio, luck, drift)
    assert found[word] >= share * found.total(), found
    assert not found[Comparison.SAME], found


@pytest.mark.parametrize("luck", [0.01, 0.025, 0.04])
@pytest.mark.parametrize("ratio", [1.0, 1.03, 1.1])
def test_going_on_until_it_is_known_keeps_what_the_levels_promise(luck, ratio):
    """Heats whose luck is all there is: intervals cover as often as they say, whenever the lab chose to stop."""
    rng, trials, missed, unsure, found = random.Random(6), 600, 0, 0, Counter()

    def more(rounds: int | None) -> list[float]:
        return [ratio * math.exp(rng.gauss(0, luck))]

    for _ in range(trials):
        theirs, ours, heats = times(gone_on(line(more(None), looked=True), more, HEATS))
        ratios = stats.heat_ratios(theirs, ours, heats)
        usual, sure = (stats.over_heats(ratios, confidence) for confidence in (stats.CONFIDENCE, stats.SURE))
        missed += not usual.low <= ratio <= usual.high
        unsure += not sure.low <= ratio <= sure.high
        found[verdict.compare(usual, sure)] += 1
    assert missed <= 0.075 * trials, "0.05, and what chance adds once in a hundred times"
    assert unsure <= 0.005 * trials
    if ratio == 1.0:
        assert found[Comparison.FASTER] + found[Comparison.SLOWER] <= 0.0035 * trials, found
        assert found[Comparison.SAME] >= (0.96 if luck < 0.03 else 0.9) * trials, found
    elif ratio == 1.03:
        assert found[Comparison.SAME] + found[Comparison.FASTER] <= 0.05 * trials, found
    else:
        assert found[Comparison.SLOWER] >= 0.99 * trials, found


@pytest.mark.parametrize(("confidence", "most"), [(stats.CONFIDENCE, 0.05), (stats.SURE, 0.005)])
@pytest.mark.parametrize("block", [1, 6, 12])
def test_an_interval_covers_the_truth_though_neighbouring_rounds_are_alike(confidence, most, block):
    """By a sign test of independent rounds the second would miss in more than one of a hundred."""
    rng, missed, tried = random.Random(4), 0, 0
    for noise in NOISES:
        for _ in range(15):
            ratios = [math.exp(x) for x in drawn(noise, 200, rng, block)]
            found = stats.paired_ratio(ratios, [1.0] * len(ratios), confidence)
            missed += not found.low <= 1 <= found.high
            tried += 1
    assert missed <= most * tried


def test_independent_values_are_worth_all_of_themselves_and_repeated_ones_once():
    rng = random.Random(5)
    alone = [rng.gauss(0, 1) for _ in range(400)]
    repeated = [x for x in alone[:50] for _ in range(8)]
    assert stats.worth(alone) >= 250
    assert 30 <= stats.worth(repeated) <= 90
    assert stats.worth([]) == 0
    assert stats.worth([1.0, 1.0, 1.0]) == 3
