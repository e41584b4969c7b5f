"""Weighted sums of rows, against float64.

python -m pytest tests/native/test_row_sums.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline import native


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 40),
    width=st.sampled_from([1, 7, 384, 1_023, 1_024, 1_025, 2_500]),
    count=st.integers(0, 30),
    kinds=st.integers(0, 4),
    threads=st.integers(1, 3),
    isa=st.sampled_from(native.instruction_sets()),
    seed=st.integers(0, 999),
)
def test_rows_are_summed_as_in_float64(height, width, count, kinds, threads, isa, seed):
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((height, width)).astype(np.float32)
    rows, weights = rng.integers(0, height, count), rng.standard_normal((kinds, count)).astype(np.float32)
    out = np.full((kinds, width), np.nan, np.float32)
    native.sum_rows(table, rows, weights, out, threads, isa)
    np.testing.assert_allclose(out, weights.astype(float) @ table[rows].astype(float), atol=1e-4)


@pytest.mark.parametrize("isa", native.instruction_sets())
def test_a_weight_of_zero_leaves_its_row_out(isa):
    table, out = np.array([[1, 2], [np.nan, np.inf]], np.float32), np.empty((2, 2), np.float32)
    native.sum_rows(table, np.array([1, 0]), np.array([[0, 3], [-0.0, 1]], np.float32), out, 1, isa)
    np.testing.assert_array_equal(out, [[3, 6], [1, 2]])


def test_a_row_outside_the_table_and_wrong_shapes_are_errors():
    table, weights, out = np.ones((3, 4), np.float32), np.ones((1, 1), np.float32), np.empty((1, 4), np.float32)
    for row in (-1, 3):
        with pytest.raises(ValueError, match="outside the table"):
            native.sum_rows(table, np.array([row]), weights, out)
    for wrong in ((table, np.array([0, 1]), weights, out), (table, np.array([0]), weights, out[:, :3].copy())):
        with pytest.raises(ValueError, match="differ in shape"):
            native.sum_rows(*wrong)
