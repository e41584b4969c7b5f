"""Export of events, and the conditions that select them."""

from __future__ import annotations

import csv
import json
from contextlib import suppress

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.conftest import BASE, cli, event

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.event import compile_filter
from ridgeline.audit.ledger.moment import parse_moment, show_moment
from ridgeline.errors import InputError


def test_json_and_json_lines_carry_index_and_event(log):
    done = cli("audit", "export", log, "--jsonl")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 700
    assert json.loads(cli("audit", "export", log, "--json").stdout) == rows
    assert json.loads(cli("audit", "export", log, "--json", "--where", "index < 0").stdout) == []
    assert rows[5] == {"index": 5, **event(5)}


def test_csv_keeps_what_is_awkward(tmp_path):
    odd = event(0) | {"subject": 'a "quoted", one\nwith a newline', "attributes": {"ü": [1, None]}}
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        ledger.append([odd])
    out = tmp_path / "e.csv"
    assert cli("audit", "export", tmp_path / "log", "--csv", "-o", out).returncode == 0
    with out.open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["subject"] == odd["subject"]
    assert json.loads(row["attributes"]) == odd["attributes"]
    assert row["time"] == "2023-11-14T22:13:20.000000000Z"
    assert int(row["time_ns"]) == BASE


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["=HYPERLINK(1)", "+1", "-2", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_of_a_csv_is_a_formula_and_json_is_exact(tmp_path, subject):
    with Ledger.create(tmp_path / "log", origin="a") as ledger:
        ledger.append([event(0) | {"subject": subject, "actor": "a=b"}])
    out = tmp_path / "e.csv"
    assert cli("audit", "export", tmp_path / "log", "--csv", "-o", out).returncode == 0
    with out.open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["subject"], row["actor"]) == ("'" + subject, "a=b")
    assert json.loads(cli("audit", "export", tmp_path / "log", "--json").stdout)[0]["subject"] == subject


def test_parquet_keeps_nanoseconds(log, tmp_path):
    out = tmp_path / "e.parquet"
    assert cli("audit", "export", log, "--parquet", "-o", out).returncode == 0
    table = pq.read_table(out)
    assert table.num_rows == 700
    assert table.column("time_ns")[123].as_py() == BASE + 123
    assert table.column("time")[123].value == BASE + 123
    assert table.column("subject")[123].as_py() == "br123"


def test_a_time_span_and_a_condition_choose(log):
    words = ("--from", str(BASE + 100), "--to", str(BASE + 200), "--where", "attributes.n in (99, 100, 150, 200)")
    done = cli("audit", "export", log, "--json", *words)
    assert [row["index"] for row in json.loads(done.stdout)] == [100, 150]


def test_what_was_pruned_is_left_out_and_counted(log):
    with Ledger.open(log) as ledger:
        ledger.prune(BASE + 600, by="alice")
    done = cli("audit", "export", log, "--csv")
    assert "512 entries were pruned" in done.stderr
    assert done.stdout.count("\n") == 1 + 700 - 512 + 1


@pytest.mark.parametrize("words", [(), ("--json", "--csv"), ("--parquet",), ("--json", "--where", "1 +")])
def test_what_cannot_be_done_is_refused_and_nothing_written(log, tmp_path, words):
    out = ("-o", tmp_path / "out") if words != ("--parquet",) else ()
    assert cli("audit", "export", log, *words, *out).returncode == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("source == 'test'", True),
        ("source != 'test'", False),
        ("action.startswith('network.') and not subject.endswith('9')", True),
        ("attributes['n'] >= 5 and attributes.n < 6", True),
        ("4 < attributes.n < 6", True),
        ("attributes.missing == 1 or attributes.missing > 1", False),
        ("attributes.ip.contains('168')", True),
        ("attributes.n == '5'", False),
        ("attributes.n < 'a'", False),
        ("'br5' in ['br4', subject]", True),
        ("index == 5 and time > 0", True),
    ],
)
def test_conditions_mean_what_they_say(text, right):
    assert compile_filter(text)({**event(5), "index": 5}) is right


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "().__class__", "colour == 1", "source[0]", "lambda: 1", "1 if 1 else 2", "", "x" * 3000],
)
def test_conditions_that_say_more_are_refused(text):
    with pytest.raises(InputError):
        compile_filter(text)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="sourceabtni.()[]'\"= <>!andotr15,-", max_size=40))
def test_any_text_is_a_condition_or_refused(text):
    with suppress(InputError):
        compile_filter(text)({**event(5), "index": 5})


@settings(max_examples=200)
@given(st.integers(0, 4 * 10**18))
def test_a_time_that_is_shown_is_read_back_to_the_nanosecond(ns):
    assert parse_moment(show_moment(ns)) == ns


@pytest.mark.parametrize(
    ("text", "unit"),
    [("1700000000", "seconds"), ("1700000000000", "milliseconds"), ("1700000000000000", "microseconds")],
)
def test_a_number_of_another_unit_is_no_time(text, unit):
    with pytest.raises(InputError, match=f"'{text}' looks like {unit}"):
        parse_moment(text)


@pytest.mark.parametrize("text", ["", "soon", "12", "2026-13-01", "5y"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(InputError, match="no time"):
        parse_moment(text)
