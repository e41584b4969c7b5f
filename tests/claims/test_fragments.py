"""Fragments of reports in many styles: right ones have no finding, and the wrong numbers are found in their lines."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ridgeline.claims import check_text

HOME = Path(__file__).parent / "fragments"
FRAGMENTS = sorted(path for path in HOME.iterdir() if path.suffix != ".toml")
PLANTED = tomllib.loads((HOME / "planted.toml").read_text())["planted"]
MAX_ELSEWHERE = 10  # findings in other lines: totals and quotients that no longer fit


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_that_holds_has_no_finding(fragment):
    assert check_text(fragment.read_text(), fragment.name).findings == ()


def test_the_wrong_numbers_are_found_in_their_lines():
    elsewhere, missed = 0, []
    for plant in PLANTED:
        text = (HOME / plant["file"]).read_text()
        assert text.count(plant["right"]) == 1, plant
        line = text[: text.index(plant["right"])].count("\n") + 1
        lines = [f.line for f in check_text(text.replace(plant["right"], plant["wrong"]), plant["file"]).findings]
        elsewhere += sum(other != line for other in lines)
        missed += [] if line in lines else [f"{plant['file']}: {plant['wrong']}"]
    assert missed == []
    assert elsewhere <= MAX_ELSEWHERE


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Memory fell by 35 %, from 16 GB to 12 GB.", "25.0%"),
        ("We sent 1.2 M requests in 60 s (30 k requests/s).", "20,000"),
        ("It fell from 30 ms to 20 ms, a reduction of 66 %.", "33.3%, not 66 %"),
        ("It fell from 30 ms to 20 ms per call, a total reduction of 50 %.", "33.3%, not 50 %"),
        ("It rose from 100 req/s to 150 req/s, an increase of 33 %.", "50.0%, not 33 %"),
        ("Throughput went from 100 to 150 req/s (+150 %).", "50.0%, not 150 %"),
        ("Latency grew by 20 %, from 100 to 150 ms.", "50.0%, not 20 %"),
        ("It rose from 9.5 to 12 k req/s (+62 %).", "26.3%, not 62 %"),
    ],
)
def test_a_wrong_result_of_a_sentence_is_found(text, number):
    findings = check_text(text, "report.md").findings
    assert len(findings) == 1
    right_findings = number in findings[0].arithmetic or number.replace(",", "") in findings[0].arithmetic.replace(
        ",", ""
    )
    assert right_findings, findings[0].arithmetic


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
        "Latency: p50 = 900 µs, p99 = 1.2 ms.",
        "p99 = 1.2 s, p50 = 900 ms.",
        "load = 1.2 s, save = 900 ms",
        "The median is 900 µs and the p99, which is 1.2 ms, is fine.",
        "Loads take 900 ms, a save that is 1.2 s is slow.",
        "Disk = 2 TB, link = 10 GB/s, timeout = 90 s.",
        "Rate: 500 rows/s, warm-up: 2 s, batch: 64 rows.",
        "24 h at 500 events/s is 43.2 M events.",
        "On the 5 G network we ran 5 G phones for 10 s at 0.5 phones/s; 4 K frames in 2 s (30 frames/s).",
        "It fell from 30 ms to 20 ms, a reduction of 33 %.",
        "It fell from 30 ms to 20 ms, a reduction of 66 % in GPU memory.",
        "It fell from 30 ms to 20 ms, a memory reduction of 66 %.",
        "It fell from 30 ms to 20 ms, an improvement of 50 %, or a gain of 33 %.",
        "It rose from 100 to 150 req/s (+50 %).",
        "It rose from 100 to 150 req/s with 5 % more memory.",
        "Raising the load from 100 to 150 req/s (+5 %) cost little; p99 ranges from 100 to 150 ms (+5 %).",
        "Going from 1 to 8 GPUs (+650 %), from 2019 to 2023 (+30 %).",
    ],
)
def test_sentences_that_hold_or_compute_nothing_have_no_finding(text):
    assert check_text(text, "report.md").findings == ()
