"""Bound numbers are compared with records; drift, missing records and unbound performance numbers are findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.claims import check_file

ROOT = Path(__file__).resolve().parents[2]
TEXT = """# one machine
linear  bfloat16   145.1   4.61   107.9%
p50 0.183 ms, p99 0.222 ms
batches: 582,262/s, peak 0.84 GB
"""


def write_race(file: Path, times_ms: dict[str, float]) -> None:
    """A record of schema 1: each contender ran twelve times in the same time."""
    start = json.loads((Path(__file__).parent / "race.json").read_text())
    contenders = [
        start["contenders"][0] | {"contender": name, "samples_ns": [time * 1e6] * 12} for name, time in times_ms.items()
    ]
    file.write_text(json.dumps(start | {"contenders": contenders}) + "\n")


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "benchmarks" / "records"
    folder.mkdir(parents=True)
    (folder / "gpu.txt").write_text(TEXT)
    (folder / "figures.jsonl").write_text(
        "\n".join(json.dumps(x) for x in ({"split": "a", "m": {"r@20": 0.2684}}, {"split": "b"}))
    )
    write_race(folder / "races.jsonl", {"ridgeline": 1.0, "peer": 2.0})

    def check(text: str, name: str = "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
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
        "It tries again, with pauses of half a second to 30 seconds.",
        "```\n1.5 ms here is code\n```\nand `2 ms` too",
        'As in `0.19 ms<!--@gone.txt "p50 0.183 ms"-->` or\n\n```\n0.19 ms<!--@gone.txt "p50 0.183 ms"-->\n```',
    ],
)
def test_a_number_that_agrees_with_its_record_has_no_finding(project, text):
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
def test_a_number_that_disagrees_with_its_record_is_a_finding(project, text, kind):
    assert {k for k, _ in kinds(project(text + "\n"))} == {kind}


def with_block(page: str, *bindings: str) -> str:
    return "\n".join([page, "", "<!-- records", *bindings, "-->", ""])


@pytest.mark.parametrize(
    ("page", "bindings"),
    [
        ("It takes 0.18 ms.", ['"0.18 ms" = gpu.txt "p50 0.183 ms"']),
        ("It takes **0.18\nms** here.", ['"takes 0.18 ms" = gpu.txt "p50 0.183 ms"']),
        ("At 0.18 / 0.22 ms.", ['"0.18 / 0.22 ms" = gpu.txt "p50 0.183 ms"; "p99 0.222 ms"']),
        ("At 0.18 / 0.22 ms.", ['"0.18 / 0.22 ms" = gpu.txt', '  "p50 0.183 ms";', '  "p99 0.222 ms"']),
        (
            "From 0.18 to 0.22 ms.",
            ['"0.18 to [0.22] ms" = gpu.txt "p99 0.222 ms"', '"[0.18] to 0.22 ms" = gpu.txt "0.183 ms"'],
        ),
        ("At batch 256: 1.21 times as long.", ['"256: [1.21] times" = gpu.txt "p99 0.222 ms" / "p50 0.183 ms"']),
        ("| a | 108 % | 582,000/s |", ['"108 % | 582,000/s" = gpu.txt "4.61 107.9%"; "batches: 582,262/s"']),
        ("About 150 µs.", ["# of one machine", "", '"About 150 µs" = gpu.txt "linear bfloat16 [145.1]" ±5%']),
        ("Recall .268.", ['"Recall .268" = figures.jsonl split=a m.r@20']),
        ("Twice: 2.0 times as long.", ['"2.0 times" = races.jsonl abcd peer ratio']),
        ("```\n160 µs\n```", ['"160 µs" = gpu.txt "linear bfloat16 [145.1]" ±11%']),
        (
            "p50 is 0.18 ms, again 0.18 ms.",
            ['"is 0.18 ms" = gpu.txt "0.183 ms"', '"again 0.18 ms" = gpu.txt "0.183 ms"'],
        ),
    ],
)
def test_a_block_at_the_end_binds_numbers_by_their_words(project, page, bindings):
    kinds_and_lines, checked = project(with_block(page, *bindings))
    assert kinds_and_lines == []
    assert checked.bound >= 1


@pytest.mark.parametrize(
    ("page", "binding", "finding", "message"),
    [
        ("It takes 0.19 ms.", '"0.19 ms" = gpu.txt "p50 0.183 ms"', ("drift", 1), "the record gives 183 µs"),
        ("It takes 0.18 ms.", '"0.18 ms" = gpu.txt "p50 0.190 ms"', ("missing", 1), "no line of 'gpu.txt' has"),
        ("Recall .27.", '"Recall .268" = figures.jsonl split=a m.r@20', ("reference", 4), "line 1 has “Recall .27”"),
        ("Words.", '"Recall .268" = figures.jsonl split=a m.r@20', ("reference", 4), "the page has no “Recall .268”"),
        (
            "Recall .268; .268.",
            '".268" = figures.jsonl split=a m.r@20',
            ("reference", 4),
            "occurs 2 times (lines 1, 1)",
        ),
        ("5 of 0.9.", '"5 of 0.9" = gpu.txt "p50 0.183 ms"', ("reference", 4), "put the bound numbers in [brackets]"),
        ("Words.", "0.18 ms: gpu.txt", ("reference", 4), "this is no binding; write:"),
        ("Cosine 10.98.", '"0.98" = gpu.txt "p50 0.183 ms"', ("reference", 4), "the page has no “0.98”"),
    ],
)
def test_a_binding_that_does_not_fit_the_page_or_the_record_is_a_finding(project, page, binding, finding, message):
    kinds_and_lines, checked = project(with_block(page, binding))
    assert kinds_and_lines == [finding]
    assert message in checked.findings[0].arithmetic


def test_a_number_that_the_block_does_not_name_is_unbound(project):
    page = with_block("It takes 0.18 ms and 0.22 ms.", '"0.18 ms" = gpu.txt "p50 0.183 ms"')
    assert kinds(project(page)) == [("unbound", 1)]


def test_a_block_that_is_not_the_end_of_the_page_is_a_finding(project):
    page = with_block("It takes 0.18 ms.", '"0.18 ms" = gpu.txt "p50 0.183 ms"')
    assert kinds(project(page + "More words.\n")) == [("reference", 3)]


def test_a_block_inside_code_is_an_example(project):
    page = "```\n" + with_block("It takes 0.19 ms.", '"0.19 ms" = gone.txt "p50 0.183 ms"') + "```\n"
    assert project(page)[1].bound == 0
    assert kinds(project(page)) == []


def test_attributes_of_html_tags_are_no_performance_numbers(project):
    assert kinds(project('<svg><path d="M158 38h32"/></svg>')) == []


def test_metrics_of_a_race_are_computed_from_its_samples(project):
    ours, peer = "<!--@races.jsonl abcd ridgeline median-->", "<!--@races.jsonl abcd peer ratio-->"
    row = f"It takes {{}} ms{ours}, the peer {{}}{peer} times as long"
    assert kinds(project(row.format("1.0", "2.0"))) == []
    slow, ratio = (f.arithmetic for f in project(row.format("1.5", "2.5"))[1].findings)
    assert slow == "the record gives 1 ms, not 1.5 ms"
    assert ratio == "the record gives 2, not 2.5"
    lost = project("5 ms<!--@races.jsonl abcd absent median-->")[1].findings[0]
    assert lost.kind == "missing"
    assert "there are: ridgeline" in lost.arithmetic
    assert kinds(project("5 ms<!--@races.jsonl abcd ridgeline speed-->")) == [("missing", 1)]


def test_only_readmes_and_docs_of_a_project_with_records_must_be_bound(project, tmp_path):
    assert kinds(project("It takes 5 ms.", "notes.md")) == []
    assert kinds(project("It takes 5 ms.", "docs/page.md")) == [("unbound", 1)]
    assert kinds(project("It takes 5 ms.", "docs/decisions/page.md")) == [("unbound", 1)]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(value=st.floats(0.01, 9e5), digits=st.integers(2, 6), off=st.floats(1.2, 5))
def test_a_rounded_number_holds_and_a_wrong_one_drifts(tmp_path_factory, value, digits, off):
    home = tmp_path_factory.mktemp("project")
    (home / "benchmarks" / "records").mkdir(parents=True)
    (home / "benchmarks" / "records" / "r.txt").write_text(f"median {value:.9f} ms\n")
    page = home / "README.md"
    written = f"{float(f'{value:.{digits - 1}e}'):,f}".rstrip("0").rstrip(".")
    reference = f'<!--@r.txt "median {value:.9f} ms"-->'
    page.write_text(f"It takes {written} ms{reference}.\n")
    assert check_file(page).findings == ()
    page.write_text(f"It takes {value * off:.6f} ms{reference}.\n")
    assert [f.kind for f in check_file(page).findings] == ["drift"]


def test_the_readme_and_the_docs_of_this_project_agree_with_their_records():
    """CI runs this: every published number of this project agrees with its record."""
    checked = [check_file(page) for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
    assert [str(f) for c in checked for f in c.findings] == []
    assert sum(c.bound for c in checked) > 80


@pytest.mark.parametrize(
    "page",
    [
        "Limits of a run (defaults: 120 s).",
        "A time (default: 20 s).",
        "A gap longer than 2 s.",
        "For runs above 100 ms.",
    ],
)
def test_a_duration_that_is_a_setting_needs_no_record(project, page):
    assert kinds(project(page, "docs/page.md")) == []
