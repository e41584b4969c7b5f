"""How often races are wrong, simulated by benchmarks/lab_rates.py; the committed record has more trials."""

from __future__ import annotations

import random
import statistics
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # simulates hundreds of races
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def rates():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import lab_rates

        return lab_rates
    finally:
        sys.path.remove(str(BENCHMARKS))


def count(rates, name: str, files: tuple[str, ...], ratio: float, trials: int, quiet: bool = False) -> Counter[str]:
    noises = rates.load_noises(files)
    if quiet:
        noises = [n for n in noises if statistics.median(map(abs, n)) < rates.QUIET]
    rng = random.Random(f"{name} {ratio}")
    return Counter(str(rates.SIMULATIONS[name](noises[k % len(noises)], rng, ratio)) for k in range(trials))


@pytest.mark.parametrize("name", ["commands", "functions", "http", "commits"])
def test_equal_contenders_are_faster_or_slower_in_one_of_100_races_at_most_whatever_the_noise(rates, name):
    found = count(rates, name, rates.FILES, 1.0, 273) + count(rates, name, rates.VERSIONS, 1.0, 78)
    assert found["FASTER"] + found["SLOWER"] <= 3  # of 351


@pytest.mark.parametrize("name", ["commands", "functions", "http", "commits"])
def test_five_percent_are_found_on_a_quiet_machine_and_mostly_on_a_shared_one(rates, name):
    assert count(rates, name, rates.FILES, 1.05, 36, quiet=True)["SLOWER"] >= 33
    assert count(rates, name, rates.VERSIONS, 1.05, 104)["SLOWER"] >= 0.88 * 104  # 90 % but for chance
