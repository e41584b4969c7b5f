"""Numbers with a reference are re-derived; drift, lost records and unbound performance numbers are findings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.claims import check_file
from ridgeline.lab.record import record as records

ROOT = Path(__file__).resolve().parents[2]
TEXT = """# one machine
linear  bfloat16   145.1   4.61   107.9%
p50 0.183 ms, p99 0.222 ms
batches: 582,262/s, peak 0.84 GB
"""


@pytest.fixture
def project(tmp_path, record):
    folder = tmp_path / "benchmarks" / "records"
    folder.mkdir(parents=True)
    (folder / "gpu.txt").write_text(TEXT)
    (folder / "figures.jsonl").write_text(
        "\n".join(json.dumps(x) for x in ({"split": "a", "m": {"r@20": 0.2684}}, {"split": "b"}))
    )
    one = record({"ridgeline": [1e6] * 12, "peer": [2e6] * 12})  # 1 ms, 2 ms
    records.append(folder, replace(one, id="abcd1234" * 4))
    (folder / records.FILE).rename(folder / "races.jsonl")

    def check(text: str, name: str = "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        checked = check_file(tmp_path / name)
        return [(f.kind, f.line) for f in checked.findings], checked

    return check


def kinds(answer) -> list[tuple[str, int]]:
    return answer[0]


@pytest.mark.parametrize(
    "text",
    [
        'It takes 0.18 ms<!--@gpu.txt "p50 0.183 ms"-->.',
        'At 0.18 / 0.22 ms<!--@gpu.txt "p50 0.183 ms"; "p99 0.222 ms"-->.',
        '582,000 texts/s<!--@gpu.txt "batches: 582,262/s"-->',
        '| copy | 108 %<!--@gpu.txt "linear bfloat16 145.1 4.61 107.9%"--> |',
        'About 150 µs<!--@gpu.txt "linear bfloat16 [145.1]" ±5%-->',
        '1.21 times faster<!--@gpu.txt "p99 0.222 ms" / "p50 0.183 ms"-->',
        "Recall .268<!--@figures.jsonl split=a m.r@20-->",
        '```\n160 µs\n```\n<!--@gpu.txt "160 µs" = "linear bfloat16 [145.1]" ±11%-->',
        "It is not measured yet; 5 layers, 384 dimensions, at 50 Hz, within 5 s, 95 % intervals.",
        "```\n1.5 ms here is code\n```\nand `2 ms` too",
        'As in `0.19 ms<!--@gone.txt "p50 0.183 ms"-->` or\n\n```\n0.19 ms<!--@gone.txt "p50 0.183 ms"-->\n```',
    ],
)
def test_what_the_record_says_holds(project, text):
    assert kinds(project(text + "\n")) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('0.19 ms<!--@gpu.txt "p50 0.183 ms"-->', "drift"),
        ('0.18 ms<!--@gpu.txt "p50 0.190 ms"-->', "missing"),
        ('0.18 ms<!--@gone.txt "p50 0.183 ms"-->', "missing"),
        ("Recall .27<!--@figures.jsonl split=c m.r@20-->", "missing"),
        ("Recall .25<!--@figures.jsonl split=a m.r@20-->", "drift"),
        ('words only<!--@gpu.txt "p50 0.183 ms"-->', "reference"),
        ('```\n170 µs\n```\n<!--@gpu.txt "160 µs" = "linear bfloat16 [145.1]" ±11%-->', "reference"),
        ("It takes 5.5 ms.", "unbound"),
        ("It does 500 texts/s.", "unbound"),
        ("It is 3 times faster than that.", "unbound"),
        ("It is 3.5× as fast.", "unbound"),
        ("It reaches 80 % of the measured ceiling.", "unbound"),
        ("| what | Time (ms) |\n|---|---|\n| a | 5 |\n| b | 6 |", "unbound"),
    ],
)
def test_what_it_does_not_say_is_found(project, text, kind):
    found = {k for k, _ in kinds(project(text + "\n"))}
    assert found == {kind}


def test_metrics_of_a_race_are_derived_anew(project):
    ours, peer = "<!--@races.jsonl abcd ridgeline median-->", "<!--@races.jsonl abcd peer ratio-->"
    row = f"It takes {{}} ms{ours}, the peer {{}}{peer} times as long"
    assert kinds(project(row.format("1.0", "2.0"))) == []
    slow, ratio = (f.arithmetic for f in project(row.format("1.5", "2.5"))[1].findings)
    assert slow == "the record gives 1 ms, not 1.5 ms"
    assert ratio == "the record gives 2, not 2.5"
    lost = project("5 ms<!--@races.jsonl abcd nobody median-->")[1].findings[0]
    assert lost.kind == "missing"
    assert "there are: ridgeline" in lost.arithmetic
    assert kinds(project("5 ms<!--@races.jsonl abcd ridgeline speed-->")) == [("missing", 1)]


def test_only_readmes_and_docs_of_a_project_with_records_must_be_bound(project, tmp_path):
    assert kinds(project("It takes 5 ms.", "notes.md")) == []
    assert kinds(project("It takes 5 ms.", "docs/page.md")) == [("unbound", 1)]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(value=st.floats(0.01, 9e5), digits=st.integers(2, 6), off=st.floats(1.2, 5))
def test_a_rounded_number_holds_and_a_wrong_one_drifts(tmp_path_factory, value, digits, off):
    home = tmp_path_factory.mktemp("project")
    (home / "benchmarks" / "records").mkdir(parents=True)
    (home / "benchmarks" / "records" / "r.txt").write_text(f"median {value:.9f} ms\n")
    page = home / "README.md"
    said = f"{float(f'{value:.{digits - 1}e}'):,f}".rstrip("0").rstrip(".")
    reference = f'<!--@r.txt "median {value:.9f} ms"-->'
    page.write_text(f"It takes {said} ms{reference}.\n")
    assert check_file(page).findings == ()
    page.write_text(f"It takes {value * off:.6f} ms{reference}.\n")
    assert [f.kind for f in check_file(page).findings] == ["drift"]


def test_our_own_readme_and_docs_hold():
    """What CI runs: every published number of this project is what its record says."""
    checked = [check_file(page) for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    assert [str(f) for c in checked for f in c.findings] == []
    assert sum(c.bound for c in checked) > 80
