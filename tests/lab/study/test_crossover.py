"""Where compute overtakes transfers: inside a sweep, beyond it, below its first size, nowhere, and in noise.

python -m pytest tests/lab/study/test_crossover.py
"""

from __future__ import annotations

import math
import random

import pytest
from tests.lab.study.made import row

from ridgeline.lab.study import study
from ridgeline.lab.study.crossover import cross, crossovers, sentence
from ridgeline.lab.study.sweep import every
from ridgeline.lab.study.table import Columns, tabulate

TITLE = "Where compute overtakes transfers"
DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)


def sized(rng, depths, *, layer, fixed=0.1, copy=1.0, noise=0.01, **changes):
    """Runs of a model whose layers take `layer` ms each after `fixed` ms, its copies `copy` ms."""
    rows = []
    for depth in depths:
        compute = (fixed + layer * depth if depth else 0.01) * rng.lognormvariate(0, noise) * 1e-3
        up = copy * rng.lognormvariate(0, noise / 3) * 1e-3
        stages = {"h2d_seconds": up, "compute_seconds": compute, "d2h_seconds": up / 50}
        made = row(rng, max(up, compute), depth=depth, model=f"d{depth}", flops=depth * 1e10, **changes)
        rows.append(made | stages)
    return rows


def found_in(rows):
    table = tabulate(rows, Columns())
    return [one for _, one in crossovers(table, every(table))]


def said(rows):
    return next(s for s in study(rows).sections if s.title == TITLE)


def test_inside_a_sweep_it_is_found_with_an_interval_and_said_everywhere():
    rows = sized(random.Random(1), (0, *DEPTHS), layer=0.18)  # the truth is 5
    (one,) = found_in(rows)
    assert (one.inside, one.below, one.above, one.control) == (True, "transfer", "compute", "transfer")
    assert one.at == pytest.approx(5, rel=0.05)
    assert one.low < one.at < one.high < 1.2 * one.low
    words = said(rows).said[0]
    assert words == f"Along depth transfer gives way to compute at {one.at:.3g}, {one.low:.3g} to {one.high:.3g}."
    whole = study(rows)
    assert words in whole.markdown
    assert f"crossover {one.at:.3g}" in whole.page("a study"), "the picture names it too"
    assert whole.findings[TITLE]["crossovers"][0]["at"] == pytest.approx(one.at)


def test_between_the_control_and_the_first_size_it_is_bracketed_and_not_made_up():
    rows = sized(random.Random(2), (0, *DEPTHS), layer=1.0, fixed=1.5)
    (one,) = found_in(rows)
    assert (one.at, one.bracketed, one.smallest) == (None, True, 1.0)
    words = said(rows).said[0]
    assert "transfer gives way to compute between 0 and 1, where no size was run: no fit can say where" in words
    assert "0 to 1 (no fit)" in study(rows).markdown
    (without,) = found_in([r for r in rows if r["depth"]])
    assert not without.bracketed
    assert "every size is compute-bound: no crossover" in sentence(without, "")


@pytest.mark.parametrize("other", [{"dim": 512}, {"batch_size": 16}, {"dtype": "float32"}])
def test_a_control_of_another_family_brackets_nothing(other):
    rng = random.Random(3)
    rows = [*sized(rng, DEPTHS, layer=1.0, fixed=1.5), *sized(rng, (0,), layer=1.0, **other)]
    (one,) = found_in(rows)
    assert one.control == ""


@pytest.mark.parametrize(
    ("layer", "copy", "words"),
    [
        (0.18, 4.2, "every size that was run is transfer-bound; by the fit transfer gives way to compute at"),
        (0.8, 0.7, "every size that was run is compute-bound; by the fit transfer gives way to compute at"),
    ],
)
def test_beyond_the_sweep_the_two_sides_are_named_rightly(layer, copy, words):
    (one,) = found_in(sized(random.Random(4), DEPTHS, layer=layer, fixed=0.0, copy=copy))
    assert one.at is not None
    assert not one.inside
    assert one.below == one.above
    assert words in sentence(one, "")


def test_where_copies_always_decide_there_is_none():
    rows = sized(random.Random(5), (0, *DEPTHS), layer=0.01)
    (one,) = found_in(rows)
    assert (one.at, one.control) == (None, "transfer")
    assert said(rows).said[0] == "Along depth every size is transfer-bound: no crossover."


def test_in_noise_the_interval_is_wide_and_still_holds_the_truth_as_often_as_it_says():
    held, trials = 0, 200
    for seed in range(trials):
        one = cross([(x, (x / 5) ** 0.8 * random.Random(1000 * seed + x).lognormvariate(0, 0.3)) for x in DEPTHS])
        held += (one.low or 0) <= 5 <= (one.high or math.inf)
    assert 0.9 <= held / trials < 1
    quiet, loud = (found_in(sized(random.Random(6), DEPTHS, layer=0.18, noise=n))[0] for n in (0.01, 0.15))
    assert math.log((loud.high or math.inf) / (loud.low or 0.1)) > 5 * math.log(quiet.high / quiet.low)


def test_pure_noise_around_balance_is_not_called_a_place():
    """Compute as long as transfers at every size: whatever zero the fit has, its interval is open or wide."""
    for seed in range(20):
        rng = random.Random(seed)
        one = cross([(x, rng.lognormvariate(0, 0.1)) for x in DEPTHS])
        if one.at is not None:
            assert one.low is None or one.high is None or one.high / one.low > 1.5


def test_repeats_of_a_point_narrow_the_interval():
    rng = random.Random(8)
    once = sized(rng, DEPTHS, layer=0.18, noise=0.05)
    four = [r for _ in range(4) for r in sized(rng, DEPTHS, layer=0.18, noise=0.05)]
    (few,), (many,) = found_in(once), found_in(four)
    assert many.points == 4 * few.points
    assert many.high / many.low < few.high / few.low
