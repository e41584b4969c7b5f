"""Rows of results: a ratio that cannot be is no result, and a run that says little is NOISY.

python -m pytest tests/lab/study/test_rows.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.lab.conftest import make_record

from ridgeline.lab.experiment import list_warnings
from ridgeline.lab.judge import find_stage_limit
from ridgeline.lab.study.rows import build_row

PLAN = {"run_id": "light-gpu0", "duration_s": 1.0, "device_node": 0, "distance": 10, "placement": "gpu0", "facts": {}}


def build(samples_ns: list[float], compute_ns: float = 9e6, **changes) -> dict:
    record = make_record({"ridgeline": samples_ns})
    result = replace(record.contenders[0], extras={"alone_ns": {"h2d": 1e5, "compute": compute_ns}}, **changes)
    place = ({"node": 0, "cpus": [0], "memory": "local", "gpu": None},)
    return build_row(replace(record, contenders=(result,), plan=PLAN, placement=place))


@pytest.mark.parametrize(
    ("samples_ns", "compute_ns", "overlap", "validity", "advice"),
    [
        ([1e7] * 120, 9e6, 0.9, "VALID", ""),
        ([1e7] * 120, 1.02e7, 1.0, "VALID", ""),
        ([1e7] * 120, 1.55e7, None, "NOISY", "a stage by itself took longer than a batch"),
        ([1e6] * 10, 9e5, 0.9, "NOISY", "too short (10 batches in 10 ms)"),
        ([2e9] * 8, 1e9, 0.5, "VALID", ""),
        ([2e9] * 3, 1e9, 0.5, "NOISY", "too short (3 batches in 6 s)"),
        ([1e7] * 100 + [5e8] * 20, 9e6, 0.0982, "NOISY", "the mean batch takes 9.2 times the median batch"),
        ([1e7, 2e7] * 60, 9e6, 0.6, "NOISY", "the median is uncertain by ± 5 ms"),
    ],
    ids=["good", "within the error", "impossible", "short", "few long batches", "too few", "skewed", "wide"],
)
def test_a_ratio_that_cannot_be_is_not_shown_and_a_run_that_says_little_is_noisy(
    samples_ns, compute_ns, overlap, validity, advice
):
    row = build(samples_ns, compute_ns)
    assert row["overlap"] == (None if overlap is None else pytest.approx(overlap, rel=1e-2))
    assert row["validity"] == validity
    assert advice in row["advice"]


def test_a_failed_run_has_the_validity_of_its_failure():
    assert build([1e7] * 120, failure="exited with code 1")["validity"] == "INCOMPLETE"
    wrong = {"ok": False, "error": 0.5, "note": ""}
    assert build([1e7] * 120, check=wrong)["validity"] == "WRONG"


def test_a_run_that_must_not_be_quoted_has_a_sentence():
    rows = [build([1e7] * 120), build([1e6] * 10, 9e5)]
    (sentence,) = list_warnings(rows, {"light-gpu0": "light"})
    assert sentence.startswith("light is NOISY: it is too short (10 batches in 10 ms)")


def test_shares_of_a_run_never_exceed_1():
    limit = find_stage_limit(1.0, {"compute": 10.98}, {"compute": 1.03})
    assert (limit.kind, limit.filled, limit.reached) == ("overhead", None, 1.0)
