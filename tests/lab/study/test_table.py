"""Rows of every kind give a study, which reports missing, failed and odd values.

python -m pytest tests/lab/study
"""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.study.sample_rows import BASE, row, two_nodes

from ridgeline.lab.study import Columns, study

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.floats() | st.text(max_size=2) | st.none(), max_size=12),
)
NAMES = [*BASE, "samples", "batch_seconds", "throughput", "h2d_seconds", "compute_seconds", "d2h_seconds", "run_id"]


def check_all_forms(rows, **more):
    """Return the study; each of its forms must exist."""
    result = study(rows, **more)
    json.dumps(result.findings, allow_nan=False)
    json.dumps(result.recommendation, allow_nan=False)
    assert result.page("t").startswith("<!doctype html>")
    assert result.markdown
    return result


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), max_size=8))
def test_any_rows_give_a_study(rows):
    check_all_forms(rows)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_one_odd_value_among_good_rows_is_no_error(data):
    rows = two_nodes(random.Random(1), {"a": 1.2, "b": 1.0}, batches=(8, 16))
    for _ in range(data.draw(st.integers(1, 6))):
        rows[data.draw(st.integers(0, len(rows) - 1))][data.draw(st.sampled_from(NAMES))] = data.draw(VALUES)
    check_all_forms(rows)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "There are no runs to study."),
        ([{"success": False, "error": "out of memory"}] * 3, "3 failed: out of memory"),
        ([{"success": True}], "1 succeeded but have no time"),
        ([{"batch_seconds": math.nan}], "have no time"),
        ([{"batch_seconds": 0.1}], "No row has device, numa_node"),
    ],
)
def test_the_study_reports_what_is_missing(rows, words):
    assert words in check_all_forms(rows).markdown


def test_columns_may_have_other_names():
    rows = [{"ok": True, "host": n, "hops": 10 + n, "net": "x", "t": 1.0 + n} for n in (0, 1)]
    names = Columns(
        success="ok", node="host", distance="hops", model="net", seconds="t", identity=("net", "host", "hops")
    )
    assert check_all_forms(rows, columns=names).findings["Placement"]["remote"][0]["overall"]["ratio"]["value"] == 2.0


def test_text_from_rows_is_escaped_on_the_page_and_in_markdown():
    hostile = "<script>x</script>|`*"
    result = check_all_forms([row(random.Random(0), model=hostile, numa_node=n) for n in (0, 1)])
    assert "<script>x" not in result.page("t")
    assert "\\<script\\>x\\</script\\>\\|\\`\\*" in result.markdown
