"""Right reports have no finding; one planted contradiction is found; mixed units are notes."""

from __future__ import annotations

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.claims import reports

from ridgeline.claims import check_text
from ridgeline.claims.document import read_document, repair
from ridgeline.claims.quantities import BANDWIDTH, BYTES, NONE, RATE, TIME, find_quantities

seeds = st.integers(0, 2**32 - 1)
PEERS = "|Who|Throughput|\n|--|--|\n|NumPy CPU|500 rows/s|\n|ours GPU|9,000 rows/s|\n"
RANKS = """|GPUs|Images/sec|Speedup|Efficiency|
|--|--|--|--|
|1|100|1.00x|100%|
|2|190|1.90x|95.0%|
|4|360|3.60x|90.0%|
"""
SWEEP = "|Length|Time (ms)|\n|--|--|\n|10|1.00|\n|20|4.00|\n|40|16.0|\n"
FACTORS = [0.5, 0.8, 1.25, 2, 10]


def findings(text: str, file: str = "report.md"):
    return check_text(text, file).findings


@settings(max_examples=120, deadline=None, derandomize=True)
@given(seeds)
def test_a_report_with_right_numbers_has_no_finding(seed):
    r = random.Random(seed)
    parts = [reports.write(make(r), r.choice(reports.FORMATS)) for make in r.sample(reports.TABLES, r.randint(1, 3))]
    parts += [reports.sentence(r)[0] + "\n" for _ in range(r.randint(0, 3))]
    parts += r.sample([line + "\n" for line in reports.UNRELATED], r.randint(0, 3))
    r.shuffle(parts)
    assert findings("# Report\n\n" + "\n".join(parts)) == ()


@settings(max_examples=120, deadline=None, derandomize=True)
@given(seeds, st.sampled_from(reports.TABLES), st.sampled_from((*reports.FORMATS, "csv")), st.sampled_from(FACTORS))
def test_one_wrong_cell_is_found_in_its_line(seed, make, form, factor):
    r = random.Random(seed)
    part = make(r)
    row, column = r.choice(part.derived)
    right = part.rows[row][column]
    wrong = part.rows[row][column] = reports.falsify(right, factor)
    if _hidden(right, wrong):
        return
    if len(part.rows) < 4:
        return  # two of three rows do not prove a relation
    text = reports.write(part, form)
    text = text if form == "csv" else "# Report\n\n" + text
    result = findings(text, "report.csv" if form == "csv" else "report.md")
    lines = text.splitlines()
    assert any(wrong.replace("**", "") in lines[f.line - 1] for f in result), (right, wrong)


def _hidden(right: str, wrong: str) -> bool:
    """Whether the wrong figure is plausible: too few digits, "1.0x" (the row becomes the base), another base."""
    digits = "".join(c for c in right if c.isdigit()).lstrip("0")
    return (
        len(digits) < 3 or wrong in ("1.0x", "1.00x", "1x", "1.00") or right == wrong or _has_other_base(right, wrong)
    )


def _has_other_base(right: str, wrong: str) -> bool:
    """ "+25.8 %" of the smaller figure is "20.5 %" of the larger one: both are right."""
    percent, other = (re.match(r"\+?([\d.]+)% (?:faster|slower)", text) for text in (right, wrong))
    if percent is None or other is None:
        return False
    share, stated = float(percent[1]) / 100, float(other[1]) / 100
    options = [share / (1 + share), *([share / (1 - share)] if share < 1 else [])]
    return any(abs(option - stated) < 0.0025 for option in options)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(seeds, st.sampled_from(FACTORS))
def test_one_wrong_number_in_a_sentence_is_found(seed, factor):
    text, number = reports.sentence(random.Random(seed))
    wrong = reports.falsify(number, factor)
    assert findings(text) == ()
    if not _hidden(number, wrong) and not (" minutes" in text and factor not in (1.25, 10)):
        result = findings(text.replace(number, wrong))  # a bracket that is far off may be about something else
        assert [f.line for f in result] == [1], (text, wrong)
        assert all(0 < f.confidence <= 1 and f.arithmetic and f.says for f in result)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(max_size=300))
def test_any_text_can_be_checked(text):
    check_text(text, "x.md")
    check_text("| a | b |\n|---|---|\n| " + text.replace("\n", " ") + " | 1 |\n| 2 | 3 |", "x.md")
    check_text(text, "x.csv")


@pytest.mark.parametrize(
    "text",
    ["(" * 5000 + "1" + ")" * 5000 + " = 2", "1 " * 3000, "1.5 ms " * 1500, "1 + " * 1500 + "= 3", "|---" * 3000 + "|"],
    ids=["brackets", "digits", "times", "sum", "rule"],
)
def test_a_long_line_without_a_report_is_checked_quickly(text):
    start = time.process_time()
    check_text(text, "x.md")
    assert time.process_time() - start < 30  # CPU time: tenths of a second; a quadratic algorithm takes minutes


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.text(st.sampled_from("×→—µé±≈✅€“” abc 12"), max_size=30), st.sampled_from(["mac_roman", "cp1252", "latin-1"])
)
def test_text_decoded_with_the_wrong_codec_is_repaired(text, codec):
    try:
        broken = text.encode().decode(codec)
    except UnicodeDecodeError:
        return
    assert repair(broken) == text or "\xa0" in broken  # read as a plain space


def test_quantities_have_value_and_precision():
    assert [x.value for x in find_quantities("5.8 ms, 30 Gbps, 1,555 GB/s")] == pytest.approx(
        [5.8e-3, 3.75e9, 1.555e12]
    )
    assert find_quantities("5.8 ms")[0].dims == TIME
    assert find_quantities("5.8 ms")[0].interval() == pytest.approx((5.75e-3, 5.85e-3))
    assert find_quantities("62,423 texts")[0].noun == "texts"
    assert find_quantities("64 MiB")[0].value == 2**26
    assert find_quantities("64 MiB")[0].dims == BYTES
    assert find_quantities("5,870 texts/s")[0].dims == RATE
    assert [x.value for x in find_quantities("8x A100 at 3x faster")] == [8, 3]
    assert [x.factor for x in find_quantities("8x A100 at 3x faster")] == [False, True]
    assert find_quantities("40-70x")[0].top == 70
    assert find_quantities("175B parameters")[0].value == 175e9
    assert find_quantities("v1.2.3 of 2025-12-06 on MiniLM-L6-v2, 10.0.0.1/24, sm_80") == []
    assert [x.dims for x in find_quantities("0.64")] == [NONE]
    assert [x.value for x in find_quantities("it took 6 h 12 min, then 1m 30s")][:1] == [22_320]
    assert [x.value for x in find_quantities("from 40 to 28 nodes")] == [40, 28]
    assert find_quantities("40,627 GPU-hours")[0].dims == TIME
    assert find_quantities("$2.10 per GPU-hour")[0].value == pytest.approx(2.1 / 3600)
    assert [x.value for x in find_quantities("1 M × 384, k = 10; 720 k items, 2 thousand")] == [
        1e6,
        384,
        10,
        720e3,
        2e3,
    ]
    assert [x.value for x in find_quantities("1.2 G cells, 2M/day, 5 G phones")] == pytest.approx(
        [1.2e9, 2e6 / 86400, 5]
    )
    assert find_quantities("720 k items")[0].noun == "items"
    assert [x.dims for x in find_quantities("4 B, 10 G bit/s")] == [BYTES, BANDWIDTH]
    assert find_quantities("3.3 kW")[0].value * find_quantities("38.0 h")[0].value == pytest.approx(
        find_quantities("125.4 kWh")[0].value
    )


def test_tables_of_every_kind_are_read_with_their_lines():
    text = (
        "# T\n\n| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n\n<table><tr><th>x</th></tr>\n<tr><td>5</td></tr></table>\n"
    )
    first, second = read_document(text, "t.md").tables
    assert [row.line for row in first.rows] == [5, 6]
    assert second.rows[0].line == 9
    assert second.rows[0].cells == ("5",)
    quoted = read_document('a,b\n"1\n2",3\n4,5\n', "t.csv").tables[0]
    assert [row.line for row in quoted.rows] == [2, 4]


@pytest.mark.parametrize(
    "line",
    [
        "In all: 1 GiB = 1.07 GB",
        "- Memory: 40,960 MiB (42 GB)",
        "Vectors: 62,423 × 384 × 4 B = 91.4 MB",  # MiB: a note
        "Ridge point: 51 / 2000 = 25.5 FLOP/byte",  # units left out
        "GPU utilisation: 180 / 275.7 = 65.3%",
        "Savings: 1 - 224 / 504 = 56%",
        "log2(100) = 7 comparisons",
        "batch = 15 + 128K for level = 8",
        PEERS + "\n- Tuned: 4,000 rows/s (8x over CPU)",
        RANKS + "\nWe reach 90% scaling efficiency at 4 GPUs, up to 3.6x speedup.",
        SWEEP + "\n- Not linear with length",
        "Latency: 4x faster (40 ms vs 10 ms)",
        "1 M × 384 × 4 B = 1.536 GB",
        "2 M × 20 ms / 86400 s = 0.46",
        "2M/day × 20 ms = 0.46 cores",
        "2 M requests/day × 20 ms = 0.46 cores",
        "5 G × 2 bytes = 10 GB",
        "12 k items/s × 60 s = 720 k items",
        "720 k items / 60 s = 12 k/s",
        "2 trillion × 2 bytes = 4 TB, 5 thousand × 2 = 10,000",
        "109 M × 4 B parameters = 436 MB",
        "Links: 4 × 25 G = 12.5 GB/s",  # bits, a name, bytes of 1,024s or billions: ambiguous
        "Memory: 4 × 8 G = 34.4 GB",
        "Weights: 7 B × 2 = 14 GB",
        "5 K steps × 2 s = 10,000 s",
        "|Size (MB)|Time (s)|MB/s|\n|-|-|-|\n|16 M|4.0|4.00|\n|32 M|4.0|8.00|\n|120 M|4.0|30.0|\n|64|4.0|16.0|",
    ],
)
def test_rounding_and_units_are_no_contradictions(line):
    assert findings(line) == ()


def test_a_wrapped_paragraph_is_one_statement_and_every_number_keeps_its_line():
    text = (
        "We moved the whole archive of last year, which is 18.4 TB in all, and now it takes\n4 TB / 10 Gbps = 32 s.\n"
    )
    assert [(f.line, f.says) for f in findings(text)] == [(2, text.replace("\n", " ").strip())]
    listed = "- a point of this list that is long enough to be wrapped, 5 ms\n- 4 TB / 10 Gbps = 32 s"
    assert [f.says for f in findings(listed)] == ["- 4 TB / 10 Gbps = 32 s"]


def test_headers_of_two_rows_and_cells_over_several():
    text = (
        "<table><tr><th rowspan=2>n</th><th colspan=2>A</th><th colspan=2>B</th></tr>"
        "<tr><th>ms</th><th>x</th><th>ms</th><th>x</th></tr>\n<tr><td>1</td><td>2</td><td>3</td><td>4</td><td>5</td></tr>"
        "\n<tr><td rowspan=2>7</td><td>1</td><td>1</td><td>1</td><td>1</td></tr>"
        "<tr><td>2</td><td>2</td><td>2</td><td>2</td></tr></table>"
    )
    table = read_document(text, "t.html").tables[0]
    assert table.header == ("n", "A ms", "A x", "B ms", "B x")
    assert [row.cells[0] for row in table.rows] == ["1", "7", "7"]
    piped = read_document(
        "| | A | | B | |\n|-|-|-|-|-|\n| n | ms | x | ms | x |\n| 1 | 2 | 3 | 4 | 5 |\n| 2 | 3 | 4 | 5 | 6 |", "t.md"
    )
    assert piped.tables[0].header == ("n", "A ms", "A x", "B ms", "B x")
    over = read_document(
        "#   size   time   rate\n#    (B)   (us)   (GB/s)\n    1024    2.0      0.5\n    2048    4.0      0.5\n",
        "t.txt",
    )
    assert over.tables[0].header == ("size (B)", "time (us)", "rate (GB/s)")


def test_rows_that_share_another_factor_are_notes():
    rows = ["|base|100 ms|1.00x|", "|a|50.0 ms|2.00x|", "|b|25.0 ms|4.00x|", "|c|20.0 ms|10.00x|", "|d|10.0 ms|20.00x|"]
    checked = check_text("|Case|Time|Speedup|\n|-|-|-|\n" + "\n".join(rows), "report.md")
    assert checked.findings == ()
    assert [note.line for note in checked.notes] == [6, 7]


def test_mixed_units_are_notes():
    checked = check_text("Vectors: 62,423 × 384 × 4 B = 91.4 MB", "x.md")
    assert [note.kind for note in checked.notes] == ["unit"]
    assert "MB for MiB" in checked.notes[0].arithmetic


@pytest.mark.parametrize(
    ("text", "kind", "number"),
    [
        ("Needed: 2M × 20ms / 86400s = 463 cores", "equation", "0.463"),
        ("- Copy: 4 TB / 10 Gbps = 32 s", "equation", "3,200 s"),
        ("Vectors: 1 M × 384 × 4 B = 1.536 MB", "equation", "1.536 GB"),
        ("Needed: 2 M requests/day × 20 ms = 463 cores", "equation", "0.463"),
        ("Row: 8 B × 4 = 32 kB", "equation", "32 B"),
        ("- Peak bandwidth: 1000 GB/s\n\n- 900 GB/s sustained (45% of theoretical peak)", "share", "90.0%"),
        ("On A100s.\n\n|Config|FLOPS|\n|--|--|\n|8 GPUs|90 PFLOPS|\n|16 GPUs|1 PFLOPS|", "peak", "19.97 PFLOP/s"),
        ("A|n|Total\n-|-|-\nx|1|50.1 MB\ny|2|60.2 MB\nTotal|3|120.3 MB", "total", "110.3 MB"),
        ("- Cut from 80 ms to 20 ms, a 60% reduction", "change", "75.0%"),
        ("Latency: 2.5x faster (40 ms vs 10 ms)", "ratio", "a factor of 4"),
        (
            "|Item|Price ($)|Count|Sum ($)|\n|-|-|-|-|\n|a|10.5|12|126|\n|b|25.5|11|280.5|\n|c|31|20|720|\n"
            "|d|12.5|30|375|\n",
            "derived",
            "$36.00",
        ),
        (
            "|Run|Hits|Misses|Lookups|\n|-|-|-|-|\n|a|811|188|999|\n|b|702|310|1,012|\n|c|640|120|780|\n|d|512|99|611|\n",
            "derived",
            "760",
        ),
        ("|Case|p50 (ms)|p99 (ms)|\n|-|-|-|\n|a|4.0|9.1|\n|b|5.0|3.9|\n", "order", "5.0 ms > 3.9 ms"),
        (
            "|Case|A (ms)|B (ms)|\n|-|-|-|\n|x|1.00|2.00|\n|y|3.00|4.00|\n|z|5.00|9.00|\n|w|3.00|5.00|\n"
            "|Average|3.00|8.00|\n",
            "mean",
            "",
        ),
    ],
)
def test_a_finding_shows_its_arithmetic(text, kind, number):
    checked = check_text(text, "report.md")
    result = checked.notes if kind == "mean" else checked.findings  # one column that holds does not prove a mean
    assert [f.kind for f in result] == [kind], checked
    assert number in result[0].arithmetic


def test_findings_are_sorted_by_confidence():
    text = "a: 2 × 3 = 60 s\n\nb: 300 × 7 = 2,093 s\n"
    result = findings(text)
    assert [f.line for f in result] == [1, 3]
    assert result[0].confidence > result[1].confidence


def test_a_batch_stated_elsewhere_does_not_explain_requests_that_run_at_once():
    table = "|Case|Time (ms)|Throughput (req/s)|\n|-|-|-|\n|a|10.0|800|\n|b|20.0|400|\n|c|40.0|200|"
    assert findings(f"- Training: batch=64\n\n## Serving\n\n{table}") == ()


BATCHES = "|model|batch|time (ms)|images/s|\n|-|-|-|-|\n|a|8|4|2,000|\n|b|16|4|4,000|\n|e|32|4|8,000|\n"
SHARED = BATCHES.replace("images/s", "images/s per GPU")


@pytest.mark.parametrize(
    "row", ["|c (2 GPUs)|8|4|4,000|", "|c (workers=4)|8|4|8,000|", "|2 nodes × 4 GPUs|8|4|16,000|"]
)
@pytest.mark.parametrize("table", [BATCHES, SHARED])
def test_a_row_of_several_devices_may_have_several_times_the_rate(table, row):
    assert findings(table + row) == ()
    assert [f.line for f in findings(table + "|c (run 2)|8|4|4,000|")] == [6]


def test_a_side_without_units_is_compared_with_the_closer_value():
    (result,) = findings("Memory: 4 × 8 G = 39 GB")
    assert "factor" not in result.arithmetic
