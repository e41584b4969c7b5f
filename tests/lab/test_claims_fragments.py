"""Fragments of reports in many styles: what holds has no finding, and of wrong numbers at least so many are found.

The floor is what was measured when they were written, not a promise: raise it with the checker, never lower it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ridgeline.lab.claims import check_text

HOME = Path(__file__).parent / "fragments"
FRAGMENTS = sorted(path for path in HOME.iterdir() if path.suffix != ".toml")
PLANTED = tomllib.loads((HOME / "planted.toml").read_text())["planted"]
FOUND = 103  # of the numbers made wrong, in their own lines
ELSEWHERE = 10  # findings in other lines: totals and quotients that no longer fit


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_that_holds_has_no_finding(fragment):
    assert check_text(fragment.read_text(), fragment.name).findings == ()


def test_most_wrong_numbers_are_found_where_they_stand():
    found, elsewhere, missed = 0, 0, []
    for plant in PLANTED:
        text = (HOME / plant["file"]).read_text()
        assert text.count(plant["right"]) == 1, plant
        line = text[: text.index(plant["right"])].count("\n") + 1
        told = [f.line for f in check_text(text.replace(plant["right"], plant["wrong"]), plant["file"]).findings]
        found += line in told
        elsewhere += sum(other != line for other in told)
        missed += [] if line in told else [f"{plant['file']}: {plant['wrong']}"]
    assert found >= FOUND, missed
    assert elsewhere <= ELSEWHERE


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The port carried 11.6 GB/s of payload, that is 98.2 Gb/s.", "92.8"),
        ("We use 2.9 GB/s (33.2 Gb/s) of it.", "4.15 GB/s"),
        ("24 h at 500 events/s is 34.2 million events.", "43,200,000"),
        ("It does 4,576 images/s on 8 GPUs, that is 752 images/s per GPU.", "572"),
        ("Each of the 24 nodes holds 6.2 TB, 194 TB in total.", "148.8"),
        ("Memory fell by 35 %, from 16 GB to 12 GB.", "25.0%"),
        ("It takes 5.0 ms instead of 21.0 ms: it is 4.2x as fast, or 220 % faster.", "76.2%"),
        ("The card has 80 GB; the run took 61 GB, 86 % of it.", "76.2%"),
    ],
)
def test_the_arithmetic_of_a_sentence_is_shown(text, number):
    told = check_text(text, "report.md").findings
    assert len(told) == 1
    held = number in told[0].arithmetic or number.replace(",", "") in told[0].arithmetic.replace(",", "")
    assert held, told[0].arithmetic


@pytest.mark.parametrize(
    "text",
    [
        "The port carried 11.6 GB/s, that is 92.8 Gb/s.",
        "A file of 10 GB (9.3 GiB) was read.",
        "Latency is 12.4 ms (850 µs deviation).",
        "Of 80 GB the run took 61 GB; with 2 TB of host memory it is 76 % of it.",
        "We ran it 5 times as a test and then 3 times more with 20 ms and 8 ms.",
        "It takes 36 h or 3 days on the small machine.",
        "4 workers at 200 rows/s each, 800 rows/s in total.",
        "The run of 20 minutes costs $2.40 at $2.40 per hour on 3 machines.",
        "It used 40 GB at 3 GB/s.",
    ],
)
def test_sentences_that_compute_nothing_or_hold_are_left_alone(text):
    assert check_text(text, "report.md").findings == ()
