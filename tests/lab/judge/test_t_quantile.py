"""Student's t against the distribution of SciPy.

python -m pytest tests/lab/judge/test_t_quantile.py
"""

from __future__ import annotations

import math

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.lab.judge import t_quantile


@settings(deadline=None)
@given(st.floats(0.5, 0.9999), st.integers(1, 2000))
def test_the_quantile_is_that_of_the_distribution(confidence, freedom):
    known = scipy.stats.t.ppf((1 + confidence) / 2, freedom)
    assert t_quantile(confidence, freedom) == pytest.approx(known, rel=1e-8)


@settings(deadline=None)
@given(st.floats(0.5, 0.9999), st.integers(1, 2000))
def test_the_tails_beyond_the_quantile_have_the_rest_of_the_probability(confidence, freedom):
    quantile = t_quantile(confidence, freedom)
    assert 2 * scipy.stats.t.sf(quantile, freedom) == pytest.approx(1 - confidence, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(
    ("freedom", "table"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (10, 2.2281), (40, 2.0211)]
)
def test_the_quantile_is_that_of_printed_tables(freedom, table):
    assert t_quantile(0.95, freedom) == pytest.approx(table, abs=5e-5)


def test_without_degrees_of_freedom_the_quantile_is_infinite():
    assert t_quantile(0.95, 0) == math.inf
