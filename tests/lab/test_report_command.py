"""`ridgeline report` from the outside: what it writes, what it leaves out, how it refuses.

python -m pytest tests/lab/test_report_command.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.lab.made import on_another, race

from ridgeline.lab.record import record as records

REAL = Path(__file__).parents[2] / "benchmarks" / "records"
FILES = ["report.html", "report.json", "report.md"]


@pytest.fixture
def runs(tmp_path):
    """A folder with two cases of one machine."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for n in (8, 16):
        records.append(folder, race("made", {"n": n}, 1e3 * n, {"peer": 3e3 * n}))
    return folder


def written(folder):
    return sorted(p.name for p in folder.glob("report.*"))


def test_a_folder_becomes_a_page_markdown_and_json(say, runs, tmp_path):
    code, out, err = say("report", "runs", "--out", "here")
    assert (code, err) == (0, "")
    assert out == "Report: here/report.html\n"
    assert written(tmp_path / "here") == FILES
    told = json.loads((tmp_path / "here" / "report.json").read_text())
    assert told["mixed_machines"] is False
    assert [p["workload"] for p in told["machines"][0]["paths"]] == ["made"]
    assert "3.0 × as fast as peer" in (tmp_path / "here" / "report.md").read_text()


def test_the_answer_in_json_holds_every_case(say, runs):
    told = json.loads(say("report", "runs", "--json")[1])
    assert [c["case"]["n"] for c in told["cases"]] == [8, 16]
    assert (told["report"], told["machines"], told["refused"]) == ("report.html", 1, [])


def test_one_record_in_two_files_is_told_once(say, runs, tmp_path):
    (runs / "again.jsonl").write_bytes((runs / "records.jsonl").read_bytes())
    assert len(json.loads(say("report", "runs", "runs/again.jsonl", "--json")[1])["cases"]) == 2


def test_machines_are_grouped_and_that_is_said(say, runs, tmp_path):
    records.append(runs, on_another(race("made", {"n": 8}, 10.0, {"peer": 5.0})))
    code, out, _ = say("report", "runs")
    assert code == 0
    assert out.startswith("2 kinds of machine; each is a chapter of its own, and none is compared with another.")
    for file in ("report.html", "report.md"):
        text = (tmp_path / file).read_text()
        assert "Records of 2 kinds of machine" in text
        assert "Another CPU" in text
    machines = json.loads((tmp_path / "report.json").read_text())["machines"]
    assert [len(m["cases"]) for m in machines] == [2, 1]
    assert [m["paths"][0]["verdict"] for m in machines] == ["SLOWER", "FASTER"], "each from its own records"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"schema": 99}\n', "record schema 99, this version reads 1"),
        (b'{"op": "all_reduce"}\n', "record schema None"),
        (b"\x00\xff\xfe\x80binary\n\x00\n", "other.jsonl"),
        (b"a,b\n1,2\n3,4\n", "other.jsonl"),
    ],
)
def test_files_of_another_kind_are_named_and_left_out(say, runs, tmp_path, content, says):
    (runs / "other.jsonl").write_bytes(content)
    code, _, err = say("report", "runs")
    assert code == 1, "partly done"
    assert says in err
    assert "left out: " in err
    assert written(tmp_path) == FILES
    assert "other.jsonl" in (tmp_path / "report.html").read_text()
    assert "other.jsonl" in (tmp_path / "report.md").read_text()
    assert len(json.loads((tmp_path / "report.json").read_text())["refused"]) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["empty"], "'empty' holds no .jsonl file; record some runs first"),
        (["blank"], "holds no record that can be read: its files are empty"),
        (["blank/nothing.jsonl"], "holds no record yet; run ridgeline bench first"),
        (["foreign"], "holds no record that can be read"),
        (["foreign/old.jsonl"], "record schema 99, this version reads 1; use the version that wrote it"),
        (["runs", "foreign/old.jsonl"], "record schema 99"),
        (["nowhere"], "there are no records at 'nowhere'"),
        (["runs", "--out", "runs/records.jsonl"], "cannot write into --out"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(say, runs, tmp_path, words, says):
    for name, content in (
        ("empty", None),
        ("blank", ("nothing.jsonl", "")),
        ("foreign", ("old.jsonl", '{"schema": 99}\n')),
    ):
        (tmp_path / name).mkdir()
        if content:
            (tmp_path / name / content[0]).write_text(content[1])
    before = sorted(tmp_path.rglob("*"))
    code, out, err = say("report", *words)
    assert (code, out) == (2, "")
    assert says in " ".join(err.split())
    assert len(err.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_torn_last_line_is_told_and_the_rest_counts(say, runs):
    with (runs / "records.jsonl").open("a") as file:
        file.write('{"schema": 1, "id"')
    code, _, err = say("report", "runs")
    assert code == 0
    assert "is torn" in err


def test_the_records_of_this_repository_make_a_page_below_four_megabytes(say, tmp_path):
    code, out, err = say("report", REAL)
    assert code == 1, "some files there are no records, and each is named"
    assert "kinds of machine" in out
    refused = json.loads((tmp_path / "report.json").read_text())["refused"]
    odd = [file for file in REAL.glob("*.jsonl") if "schema" not in json.loads(file.read_text().splitlines()[0])]
    assert odd
    assert len(refused) == err.count("left out: ") == len(odd)
    assert all((tmp_path / file).stat().st_size < 4_000_000 for file in FILES)
