"""The record of labelled reports: its summary follows from the counts of its projects."""

from __future__ import annotations

import re
from math import sqrt
from pathlib import Path

RECORD = Path(__file__).resolve().parents[2] / "benchmarks" / "records" / "claims-reports.txt"
ROW = re.compile(r"([A-D])\s+(\S+)((?:\s+(?:\d+|-)){9})$", re.MULTILINE)


def format_interval(count: int, total: int) -> str:
    """The Wilson interval of 95 %."""
    z = 1.96
    share, scale = count / total, 1 + z * z / total
    middle, half = share + z * z / (2 * total), z * sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    low, high = max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
    return f"{count} of {total}, {100 * low:.0f} % to {100 * high:.0f} %"


def test_the_summary_follows_from_the_projects():
    text = RECORD.read_text()
    rows = [(row[1], [int(n) if n != "-" else 0 for n in row[3].split()]) for row in ROW.finditer(text)]
    assert len(rows) == 72
    for name in "AD":
        findings, true, place, in_place, across, in_several, *_ = map(
            sum, zip(*(n for s, n in rows if s == name), strict=True)
        )
        assert f"{name}, final: precision {format_interval(true, findings)}\n" in text
        assert f"{name}, final: place {format_interval(in_place, place)}\n" in text
        assert f"{name}, final: across {format_interval(in_several, across)}\n" in text
    unseen = [n for s, n in rows if s != "A"]
    _, _, place, _, across, _, findings, true, in_place = map(sum, zip(*unseen, strict=True))
    wrong = sum(n[6] > n[7] for n in unseen)
    title = "B, C, D at first sight:"
    assert f"{title} precision {format_interval(true, findings)}\n" in text
    assert f"{title} place {format_interval(in_place, place)}\n" in text
    assert f"{title} across {format_interval(0, across)}\n" in text
    assert f"{title} reports with a false finding {format_interval(wrong, len(unseen))}\n" in text
