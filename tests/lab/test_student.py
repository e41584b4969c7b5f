"""Student's t against SciPy.

python -m pytest tests/lab/test_student.py
"""

from __future__ import annotations

import math

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.lab.judge import student


@settings(deadline=None)
@given(st.floats(0.5, 0.9999), st.integers(1, 2000))
def test_the_quantile_is_the_known_one(confidence, freedom):
    known = scipy.stats.t.ppf((1 + confidence) / 2, freedom)
    assert student.quantile(confidence, freedom) == pytest.approx(known, rel=1e-8)


@settings(deadline=None)
@given(st.floats(0, 200), st.integers(1, 2000))
def test_the_tails_are_the_known_ones(t, freedom):
    assert student.outside(t, freedom) == pytest.approx(2 * scipy.stats.t.sf(t, freedom), rel=1e-8, abs=1e-15)


def test_without_freedom_nothing_is_known():
    assert student.quantile(0.95, 0) == math.inf
    assert student.outside(math.inf, 3) == 0
