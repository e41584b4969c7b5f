"""A minute of the soak, which the record xeon-audit-soak-faults.txt ran for half an hour."""

from __future__ import annotations

import pytest
from tests.audit.watch.soak import run_soak


@pytest.mark.slow  # a minute of faults, and starts of watchers
def test_no_line_and_no_acknowledged_request_is_lost_or_doubled_whatever_goes_wrong(tmp_path):
    report = run_soak(1.0, 1, tmp_path)
    assert report["ok"], report
    assert report["kills"]
    assert report["descriptor shortages"]
    assert report["requests"]
    assert report["lines"]
