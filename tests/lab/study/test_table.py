"""Rows of every kind make a study: what is missing, failed or odd is said.

python -m pytest tests/lab/study
"""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.study.made import BASE, row, two_nodes

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


def whole(rows, **more):
    """The study in all its forms; each must be possible."""
    made = study(rows, **more)
    json.dumps(made.findings, allow_nan=False)
    json.dumps(made.recommendation, allow_nan=False)
    assert made.page("t").startswith("<!doctype html>")
    assert made.markdown
    return made


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), max_size=8))
def test_no_row_is_so_odd_that_there_is_no_study(rows):
    whole(rows)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_one_odd_value_among_good_rows_is_no_error(data):
    rows = two_nodes(random.Random(1), {"a": 1.2, "b": 1.0}, batches=(8, 16))
    for _ in range(data.draw(st.integers(1, 6))):
        rows[data.draw(st.integers(0, len(rows) - 1))][data.draw(st.sampled_from(NAMES))] = data.draw(VALUES)
    whole(rows)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "There are no runs to study."),
        ([{"success": False, "error": "out of memory"}] * 3, "3 failed: out of memory"),
        ([{"success": True}], "1 succeeded by their own word but tell no time"),
        ([{"batch_seconds": math.nan}], "tell no time"),
        ([{"batch_seconds": 0.1}], "No row tells device, numa_node"),
    ],
)
def test_what_is_not_there_is_said(rows, words):
    assert words in whole(rows).markdown


def test_columns_may_have_other_names():
    rows = [{"ok": True, "host": n, "hops": 10 + n, "net": "x", "t": 1.0 + n} for n in (0, 1)]
    names = Columns(
        success="ok", node="host", distance="hops", model="net", seconds="t", identity=("net", "host", "hops")
    )
    assert whole(rows, columns=names).findings["Placement"]["remote"][0]["overall"]["ratio"]["value"] == 2.0


def test_text_from_rows_is_text_on_the_page_and_in_markdown():
    hostile = "<script>x</script>|`*"
    made = whole([row(random.Random(0), model=hostile, numa_node=n) for n in (0, 1)])
    assert "<script>x" not in made.page("t")
    assert "\\<script\\>x\\</script\\>\\|\\`\\*" in made.markdown
