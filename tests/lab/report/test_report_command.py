"""The command `ridgeline report`: what it writes, what it leaves out, what it refuses.

python -m pytest tests/lab/report/test_report_command.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.lab.sample_records import make_race, move_to_another_machine

from ridgeline.lab.record import append_record

REAL = Path(__file__).parents[3] / "benchmarks" / "records"
FILES = ["report.html", "report.json", "report.md"]


@pytest.fixture
def runs(tmp_path):
    """Make a folder with two cases of one machine."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for n in (8, 16):
        append_record(folder, make_race("made", {"n": n}, 1e3 * n, {"peer": 3e3 * n}))
    return folder


def list_reports(folder):
    return sorted(p.name for p in folder.glob("report.*"))


def test_a_folder_becomes_a_page_markdown_and_json(run_command, runs, tmp_path):
    code, out, err = run_command("report", "runs", "--out", "here")
    assert (code, err) == (0, "")
    assert out == "Report: here/report.html\n"
    assert list_reports(tmp_path / "here") == FILES
    answer = json.loads((tmp_path / "here" / "report.json").read_text())
    assert answer["mixed_machines"] is False
    assert [p["workload"] for p in answer["machines"][0]["paths"]] == ["made"]
    assert "3.0 × as fast as peer" in (tmp_path / "here" / "report.md").read_text()


def test_the_answer_in_json_holds_every_case(run_command, runs):
    answer = json.loads(run_command("report", "runs", "--json")[1])
    assert [c["case"]["n"] for c in answer["cases"]] == [8, 16]
    assert (answer["report"], answer["machines"], answer["refused"]) == ("report.html", 1, [])


def test_a_record_in_two_files_counts_once(run_command, runs, tmp_path):
    (runs / "again.jsonl").write_bytes((runs / "records.jsonl").read_bytes())
    assert len(json.loads(run_command("report", "runs", "runs/again.jsonl", "--json")[1])["cases"]) == 2


def test_each_kind_of_machine_has_its_chapter(run_command, runs, tmp_path):
    append_record(runs, move_to_another_machine(make_race("made", {"n": 8}, 10.0, {"peer": 5.0})))
    code, out, _ = run_command("report", "runs")
    assert code == 0
    assert out.startswith("2 kinds of machine; each has its own chapter, and no chapter compares two.")
    for file in ("report.html", "report.md"):
        text = (tmp_path / file).read_text()
        assert "Records of 2 kinds of machine" in text
        assert "Another CPU" in text
    machines = json.loads((tmp_path / "report.json").read_text())["machines"]
    assert [len(m["cases"]) for m in machines] == [1, 2]
    assert [m["paths"][0]["verdict"] for m in machines] == ["FASTER", "SLOWER"], "each from its own records, loss first"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"schema": 99}\n', "record schema 99, this version reads up to 2"),
        (b'{"op": "all_reduce"}\n', "record schema None"),
        (b"\x00\xff\xfe\x80binary\n\x00\n", "other.jsonl"),
        (b"a,b\n1,2\n3,4\n", "other.jsonl"),
    ],
)
def test_files_of_another_kind_are_named_and_left_out(run_command, runs, tmp_path, content, says):
    (runs / "other.jsonl").write_bytes(content)
    code, _, err = run_command("report", "runs")
    assert code == 1, "partly done"
    assert says in err
    assert "left out: " in err
    assert list_reports(tmp_path) == FILES
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
        (["foreign/old.jsonl"], "record schema 99, this version reads up to 2; use the version that wrote it"),
        (["runs", "foreign/old.jsonl"], "record schema 99"),
        (["nowhere"], "there are no records at 'nowhere'"),
        (["runs", "--out", "runs/records.jsonl"], "cannot write into --out"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(run_command, runs, tmp_path, words, says):
    for name, content in (
        ("empty", None),
        ("blank", ("nothing.jsonl", "")),
        ("foreign", ("old.jsonl", '{"schema": 99}\n')),
    ):
        (tmp_path / name).mkdir()
        if content:
            (tmp_path / name / content[0]).write_text(content[1])
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run_command("report", *words)
    assert (code, out) == (2, "")
    assert says in " ".join(err.split())
    assert len(err.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_torn_last_line_gives_a_warning_and_the_rest_counts(run_command, runs):
    with (runs / "records.jsonl").open("a") as file:
        file.write('{"schema": 1, "id"')
    code, _, err = run_command("report", "runs")
    assert code == 0
    assert "is torn" in err


@pytest.mark.slow
def test_the_records_of_this_repository_make_a_page_below_four_megabytes(run_command, tmp_path):
    code, out, err = run_command("report", REAL)
    assert (code, err.count("left out: ")) == (0, 0)
    assert "kinds of machine" in out
    assert json.loads((tmp_path / "report.json").read_text())["refused"] == []
    assert all((tmp_path / file).stat().st_size < 4_000_000 for file in FILES)
