"""Crossovers: inside a sweep, beyond it, below its first size, nowhere, and in noise.

python -m pytest tests/lab/study/test_crossover.py
"""

from __future__ import annotations

import math
import random

import pytest
from tests.lab.study.sample_rows import row

from ridgeline.lab.study import Columns, study, tabulate
from ridgeline.lab.study.table import find_all_sweeps
from ridgeline.lab.study.transfers import describe_crossover, find_crossovers, fit_crossover

TITLE = "Where compute overtakes transfers"
DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)


def make_sized_rows(rng, depths, *, layer, fixed=0.1, copy=1.0, noise=0.01, **changes):
    """Return runs of a model whose layers take `layer` ms each after `fixed` ms, its copies `copy` ms."""
    rows = []
    for depth in depths:
        compute = (fixed + layer * depth if depth else 0.01) * rng.lognormvariate(0, noise) * 1e-3
        up = copy * rng.lognormvariate(0, noise / 3) * 1e-3
        stages = {"h2d_seconds": up, "compute_seconds": compute, "d2h_seconds": up / 50}
        run = row(rng, max(up, compute), depth=depth, model=f"d{depth}", flops=depth * 1e10, **changes)
        rows.append(run | stages)
    return rows


def find_in_rows(rows):
    table = tabulate(rows, Columns())
    return [one for _, one in find_crossovers(table, find_all_sweeps(table))]


def get_section(rows):
    return next(s for s in study(rows).sections if s.title == TITLE)


def test_a_crossover_inside_a_sweep_has_an_interval_and_is_on_every_page():
    rows = make_sized_rows(random.Random(1), (0, *DEPTHS), layer=0.18)  # the truth is 5
    (one,) = find_in_rows(rows)
    assert (one.inside, one.below, one.above, one.control) == (True, "transfer", "compute", "transfer")
    assert one.at == pytest.approx(5, rel=0.05)
    assert one.low < one.at < one.high < 1.2 * one.low
    words = get_section(rows).sentences[0]
    assert words == f"Along depth transfer gives way to compute at {one.at:.3g}, {one.low:.3g} to {one.high:.3g}."
    result = study(rows)
    assert words in result.markdown
    assert f"crossover {one.at:.3g}" in result.page("a study"), "the chart names it too"
    assert result.findings[TITLE]["crossovers"][0]["at"] == pytest.approx(one.at)


def test_a_crossover_between_the_control_and_the_first_size_is_bracketed_not_invented():
    rows = make_sized_rows(random.Random(2), (0, *DEPTHS), layer=1.0, fixed=1.5)
    (one,) = find_in_rows(rows)
    assert (one.at, one.bracketed, one.smallest) == (None, True, 1.0)
    words = get_section(rows).sentences[0]
    assert "transfer gives way to compute between 0 and 1, where no size was run: no fit can say at which size" in words
    assert "0 to 1 (no fit)" in study(rows).markdown
    (without,) = find_in_rows([r for r in rows if r["depth"]])
    assert not without.bracketed
    assert "every size is compute-bound: no crossover" in describe_crossover(without, "")


@pytest.mark.parametrize("other", [{"dim": 512}, {"batch_size": 16}, {"dtype": "float32"}])
def test_a_control_of_another_family_brackets_nothing(other):
    rng = random.Random(3)
    rows = [*make_sized_rows(rng, DEPTHS, layer=1.0, fixed=1.5), *make_sized_rows(rng, (0,), layer=1.0, **other)]
    (one,) = find_in_rows(rows)
    assert one.control == ""


@pytest.mark.parametrize(
    ("layer", "copy", "words"),
    [
        (0.18, 4.2, "every size that was run is transfer-bound; by the fit transfer gives way to compute at"),
        (0.8, 0.7, "every size that was run is compute-bound; by the fit transfer gives way to compute at"),
    ],
)
def test_a_crossover_beyond_the_sweep_names_its_two_sides_correctly(layer, copy, words):
    (one,) = find_in_rows(make_sized_rows(random.Random(4), DEPTHS, layer=layer, fixed=0.0, copy=copy))
    assert one.at is not None
    assert not one.inside
    assert one.below == one.above
    assert words in describe_crossover(one, "")


def test_there_is_no_crossover_where_copies_are_always_slower():
    rows = make_sized_rows(random.Random(5), (0, *DEPTHS), layer=0.01)
    (one,) = find_in_rows(rows)
    assert (one.at, one.control) == (None, "transfer")
    assert get_section(rows).sentences[0] == "Along depth every size is transfer-bound: no crossover."


def test_with_noise_the_interval_is_wide_and_covers_the_truth_as_stated():
    covered, trials = 0, 200
    for seed in range(trials):
        one = fit_crossover(
            [(x, (x / 5) ** 0.8 * random.Random(1000 * seed + x).lognormvariate(0, 0.3)) for x in DEPTHS]
        )
        covered += (one.low or 0) <= 5 <= (one.high or math.inf)
    assert 0.9 <= covered / trials < 1
    quiet, loud = (
        find_in_rows(make_sized_rows(random.Random(6), DEPTHS, layer=0.18, noise=n))[0] for n in (0.01, 0.15)
    )
    assert math.log((loud.high or math.inf) / (loud.low or 0.1)) > 5 * math.log(quiet.high / quiet.low)


def test_pure_noise_around_balance_gives_no_precise_crossover():
    """Compute takes as long as transfers at every size: the interval of any zero is open or wide."""
    for seed in range(20):
        rng = random.Random(seed)
        one = fit_crossover([(x, rng.lognormvariate(0, 0.1)) for x in DEPTHS])
        if one.at is not None:
            assert one.low is None or one.high is None or one.high / one.low > 1.5


def test_repeats_of_a_point_narrow_the_interval():
    rng = random.Random(8)
    once = make_sized_rows(rng, DEPTHS, layer=0.18, noise=0.05)
    four = [r for _ in range(4) for r in make_sized_rows(rng, DEPTHS, layer=0.18, noise=0.05)]
    (single,), (repeated,) = find_in_rows(once), find_in_rows(four)
    assert repeated.points == 4 * single.points
    assert repeated.high / repeated.low < single.high / single.low
