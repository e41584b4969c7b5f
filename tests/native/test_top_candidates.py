"""TopCandidates returns every row that may be among the best k, on every instruction set; its sums against NumPy.

python -m pytest tests/native/test_top_candidates.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline import native

ISAS = native.instruction_sets()


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 5), st.integers(0, 2100), st.integers(1, 40), st.sampled_from([0.0, 0.05, 10.0]),
    st.integers(1, 700), st.sampled_from(ISAS), st.booleans(), st.integers(0, 999),
)  # fmt: skip
def test_the_candidates_are_the_rows_within_the_slack_of_the_kth_best(
    queries: int, rows: int, k: int, slack: float, step: int, isa: str, filtered: bool, seed: int
):
    r = np.random.default_rng(seed)
    scores = np.round(r.standard_normal((queries, rows)), 2).astype(np.float32)  # rounded: many ties
    bias, offset = (r.standard_normal(n).astype(np.float32) for n in (rows, queries))
    allowed = (r.random(rows) < 0.7).astype(np.uint8) if filtered else None
    best = native.TopCandidates(k, np.full(queries, slack))
    for at in range(0, rows, step):
        part = np.ascontiguousarray(scores[:, at : at + step])
        best.add_scores(part, None, offset, bias[at : at + step], at, None, allowed, threads=2, isa=isa)
    ends, retained = best.candidates()
    sums = scores + offset[:, None] + bias
    for q in range(queries):
        existing = np.flatnonzero(allowed) if filtered else np.arange(rows)
        mine = sums[q, existing]
        bar = np.sort(mine)[-k] - slack if len(mine) >= k else -np.inf
        result = set(retained[ends[q] : ends[q + 1]])
        assert result >= set(existing[mine >= bar])
        assert result <= set(existing[mine >= bar - 1e-5])


@pytest.mark.parametrize("isa", ISAS)
def test_queries_and_rows_may_be_named(isa: str):
    best = native.TopCandidates(1, np.zeros(3))
    scores = np.array([[1, 5, 2], [9, 0, 1]], np.float32)
    best.add_scores(scores, np.array([2, 0]), rows=np.array([30, 10, 20]), isa=isa)
    ends, rows = best.candidates()
    assert ends.tolist() == [0, 1, 1, 2]
    assert rows.tolist() == [30, 10]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [1, 15, 16, 17, 384])
def test_scores_are_those_of_float64(dim: int, isa: str):
    r = np.random.default_rng(dim)
    queries, vectors = (r.standard_normal((n, dim)).astype(np.float32) for n in (3, 50))
    ends, rows = np.array([0, 20, 20, 50]), r.integers(0, 50, 50)
    owner = np.repeat([0, 1, 2], np.diff(ends))
    wide_q, wide_x = queries.astype(float)[owner], vectors.astype(float)[rows]
    for squared, expected in ((False, (wide_q * wide_x).sum(1)), (True, ((wide_q - wide_x) ** 2).sum(1))):
        out = np.empty(50)
        native.rescore(queries, vectors, ends, rows, out, squared, 2, isa)
        assert np.allclose(out, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("rows", "width"), [(0, 4), (1, 1), (5, 3), (5000, 48), (5000, 33)])
def test_bytes_and_tables_are_summed(rows: int, width: int, isa: str):
    r = np.random.default_rng(rows)
    codes = r.integers(0, 256, (rows, width)).astype(np.uint8)
    query, tables = r.standard_normal(width).astype("f4"), r.standard_normal((width, 256)).astype("f4")
    out = np.empty(rows, np.float32)
    native.dot_bytes(query, codes, out, 2, isa)
    assert np.allclose(out, codes.astype(float) @ query.astype(float), rtol=1e-4, atol=1e-2)
    native.look_up(tables, codes, out, 2, isa)
    assert np.allclose(out, tables.astype(float)[np.arange(width), codes].sum(1), atol=1e-4)


def test_shapes_that_do_not_fit_are_refused():
    best = native.TopCandidates(2, np.zeros(2))
    good = np.zeros((2, 4), np.float32)
    for more in (
        {"which": np.array([0, 2])},
        {"which": np.array([0])},
        {"rows": np.array([1, 2])},
        {"biases": np.zeros(3, np.float32)},
        {"allowed": np.ones(3, np.uint8)},
        {"rows": np.array([0, 1, 2, 9]), "allowed": np.ones(4, np.uint8)},
        {"first": -1, "allowed": np.ones(4, np.uint8)},
    ):
        with pytest.raises(ValueError):
            best.add_scores(good, **more)
    with pytest.raises(ValueError):
        best.add_scores(np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError):
        native.TopCandidates(0, np.zeros(1))
    with pytest.raises(ValueError):
        native.rescore(good, good, np.array([0, 1, 2]), np.array([0, 5]), np.empty(2))
    with pytest.raises(ValueError):
        native.rescore(good, good, np.array([0, 2, 1]), np.array([0]), np.empty(1))
