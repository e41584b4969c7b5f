"""Which records form a sweep.

python -m pytest tests/lab/judge/test_sweeps.py
"""

from __future__ import annotations

import random

import pytest

from ridgeline.lab.judge import find_sweeps, list_differing_parameters
from ridgeline.lab.report import build_report


@pytest.fixture
def points(record):
    rng = random.Random(0)

    def make(*cases, **changes):
        times = {
            name: [f * rng.uniform(0.99, 1.01) for _ in range(20)] for name, f in (("ridgeline", 1e3), ("peer", 2e3))
        }
        return [record(times, case={**case, "device": "cpu", "ranks": 1}, **changes) for case in cases]

    return make


BASE = {"batch": 256, "long": 100, "half": 50, "dtype": "a"}


def test_one_parameter_at_a_time_around_a_base_is_one_sweep_each(points):
    changes = [{"batch": b, "dtype": d} for b in (16, 256, 4096) for d in "ab"]
    changes += [{"long": n, "half": n // 2} for n in (50, 200, 400)]
    sweeps = find_sweeps(points(*({**BASE, **c} for c in changes)))
    assert [(s.name, s.second) for s in sweeps] == [("batch", None), ("long", "half")]
    batch, length = sweeps
    assert [[r.case["batch"] for r in family] for family in batch.families] == [[16, 256, 4096]] * 2
    assert list_differing_parameters(batch) == ["dtype"]
    assert [[r.case["long"] for r in family] for family in length.families] == [[50, 100, 200, 400]]


def test_fewer_than_three_points_are_not_a_sweep(points):
    assert find_sweeps(points(*({**BASE, "batch": b} for b in (16, 256)))) == []
    assert find_sweeps([]) == []


def test_unrelated_points_are_not_a_sweep(points):
    cases = [{**BASE, "batch": b, "long": n} for b, n in ((1, 9), (2, 5), (3, 7))]
    assert find_sweeps(points(*cases)) == []


def test_each_sweep_has_its_chart_and_stages_are_listed(points):
    cases = [{**BASE, "batch": b} for b in (16, 64, 256)] + [{**BASE, "long": n, "half": n // 2} for n in (50, 400)]
    records = points(*cases)
    for record in records:
        record.contenders[0].extras["stages_ns"] = {"up": [700, 800, 900], "down": [100, 100, 100]}
    page = build_report(records)
    assert "rate over batch" in page
    assert "rate over long (and half with it)" in page
    assert "up 800 ns · down 100 ns" in page
