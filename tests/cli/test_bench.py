"""The commands of the lab: what they print, what they write, their exit codes.

python -m pytest tests/cli/test_bench.py
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lab.conftest import make_record, write_ceilings

from ridgeline.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "sort_workload.py"


@pytest.fixture(scope="module")
def cli(tmp_path_factory):
    """Return a function that runs the command line with artificial ceilings, or with those in the folder `cache`."""
    known = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(known))
        write_ceilings()

    def run(*words: object, cache: Path = known, **options) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "NO_COLOR": "1"}
        command = [sys.executable, "-m", "ridgeline", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, **options)

    return run


@pytest.fixture
def run_here(capsys, monkeypatch, tmp_path):
    """Return a function that runs the command line in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])  # loading a workload file adds its folder

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_info:
            main([str(word) for word in words])
        return exit_info.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def finished(cli, tmp_path_factory):
    """Run a short benchmark of copy with measured ceilings; return its folder and its JSON."""
    out, cache = tmp_path_factory.mktemp("bench"), tmp_path_factory.mktemp("measured")
    words = ("--case", "bytes=262144", "--device", "cpu", "--budget", "2s", "--out", out, "--json")
    process = cli("bench", "copy", *words, cache=cache)
    assert process.returncode == 0, process.stderr
    return out, json.loads(process.stdout)


@pytest.mark.slow
def test_bench_answers_in_json_with_a_verdict_for_every_peer(finished):
    out, answer = finished
    case = answer["cases"][0]
    assert (case["workload"], case["case"]["bytes"]) == ("copy", 262144)
    ours, peer = case["contenders"][:2]
    assert ours["contender"] == "ridgeline"
    assert ours["verdict"] is None
    assert peer["verdict"] in ("FASTER", "SLOWER", "SAME", "UNCLEAR")
    assert peer["interval_ns"][0] <= peer["median_ns"] <= peer["interval_ns"][1]
    assert ours["limited_by"] == "memory"
    assert 0 < ours["share_of_ceiling"] < 1.3
    assert {p.name for p in out.iterdir()} >= {"records.jsonl", "report.html"}


@pytest.mark.slow
def test_records_can_be_listed_shown_and_exported(cli, finished, tmp_path):
    out, _ = finished
    listed = json.loads(cli("records", "ls", out, "--json").stdout)
    assert listed["records"][0]["workload"] == "copy"
    table = cli("records", "show", out)
    assert "ridgeline bench copy" in table.stdout
    raw = json.loads(cli("records", "show", out, listed["records"][0]["id"][:6], "--json").stdout)
    samples = sum(len(c["samples_ns"]) for c in raw["contenders"])
    for name in ("x.csv", "x.parquet", "x.json"):
        assert cli("records", "export", out, "-o", tmp_path / name).returncode == 0
    with (tmp_path / "x.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == samples
    assert {r["contender"] for r in rows} == {c["contender"] for c in raw["contenders"]}
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(tmp_path / "x.parquet").num_rows == samples


@pytest.mark.slow
def test_a_run_compared_with_itself_is_same(cli, finished):
    out, _ = finished
    process = cli("compare", out, out)
    assert process.returncode == 0
    assert "SAME" in process.stdout


@pytest.mark.slow
def test_the_report_can_be_reproduced_from_its_records(cli, finished, tmp_path):
    out, _ = finished
    process = cli("report", out, "--out", tmp_path)
    assert process.returncode == 0
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_the_example_workload_is_under_100_lines_and_races(cli, tmp_path):
    assert len(EXAMPLE.read_text().splitlines()) < 100
    process = cli(
        "bench", EXAMPLE, "--case", "n=2000", "--device", "cpu", "--budget", "2s", "--out", tmp_path, "--json"
    )
    assert process.returncode == 0, process.stderr
    rows = {c["contender"]: c for c in json.loads(process.stdout)["cases"][0]["contenders"]}
    assert rows["python"]["verdict"] == "SLOWER"


def test_contributing_links_to_the_example():
    assert "(examples/sort_workload.py)" in (EXAMPLE.parents[1] / "CONTRIBUTING.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["bench", "cpoy"], 2, "did you mean 'copy'"),
        (["bench", "copy", "--device", "tpu"], 2, "there is no device 'tpu'"),
        (["bench", "copy", "--out", "/proc/nowhere"], 2, "cannot write into --out '/proc/nowhere'"),
        (["bench", "copy", "--budget", "soon"], 2, "--budget 'soon' is no length of time"),
        (["bench", "copy", "--case", "colour=red"], 2, "no 'colour'; they have: bytes"),
        (["bench", "copy", "--ranks", "0"], 2, "--ranks 0"),
        (["bench", "copy", "--node", "77"], 2, "there is no NUMA node 77"),
        (["bench", "missing.py"], 2, "no workload file 'missing.py'"),
        (["bench", "copy", "--python", "numpy"], 2, "not of the form PEER=PATH"),
        (["bench", "copy", "--against", "no-such-commit"], 2, "no commit 'no-such-commit'"),
        (["records", "ls", "/nowhere"], 2, "there are no records at '/nowhere'"),
        (["compare", "/nowhere", "/nowhere"], 2, "there are no records at '/nowhere'"),
        (["report", "/nowhere"], 2, "there are no records at '/nowhere'"),
    ],
)
def test_bad_input_is_one_sentence(cli, words, code, message, tmp_path):
    process = cli(*words, cwd=tmp_path)
    assert process.returncode == code
    assert message in " ".join(process.stderr.split())
    assert "Traceback" not in process.stderr
    assert len(process.stderr.strip().splitlines()) <= 2
    assert not list(tmp_path.iterdir()), "no incomplete file"


def test_a_workload_file_without_a_method_is_refused_by_name(run_here, tmp_path):
    (tmp_path / "half.py").write_text(
        "class W:\n    name = 'half'\n    def cases(self, profile): return []\nworkload = W()\n"
    )
    code, _, error_text = run_here("bench", tmp_path / "half.py", "--out", tmp_path / "o")
    assert code == 2
    assert "lacks: work, contenders, prepare, check" in " ".join(error_text.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import not_there", "cannot be loaded: ModuleNotFoundError: No module named 'not_there'"),
        ("def x(:", "cannot be loaded: SyntaxError"),
    ],
)
def test_a_broken_workload_file_is_refused_in_one_sentence(run_here, tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    code, _, error_text = run_here("bench", tmp_path / "mine.py", "--device", "cpu", "--out", tmp_path / "o")
    assert code == 2
    assert message in " ".join(error_text.split())
    assert "Traceback" not in error_text


def test_the_message_of_a_peer_is_not_markup(cli, tmp_path):
    broken = (
        "def prepare(self, case, contender, place):\n        if contender == 'python': raise OSError('[/lib] [red]')"
    )
    text = EXAMPLE.read_text().replace(
        "def prepare(self, case: Case, contender: str, place: Placement) -> Run:", broken
    )
    (tmp_path / "mine.py").write_text(text)
    words = ("--case", "n=100", "--device", "cpu", "--budget", "1s", "--out", tmp_path / "o")
    process = cli("bench", tmp_path / "mine.py", *words)
    assert process.returncode == 0, process.stderr
    assert "it raised OSError: [/lib] [red]" in process.stdout


def test_a_narrow_screen_keeps_names_and_verdicts():
    from rich.console import Console

    from ridgeline.cli import tables

    screen = Console(width=60, record=True, file=io.StringIO())
    record = make_record({"ridgeline": [100.0 + k % 3 for k in range(40)], "numpy": [300.0] * 40})
    for part in tables.list_race_tables([record], screen.width):
        screen.print(part)
    text = screen.export_text()
    assert "  ridgeline" in text
    assert "numpy" in text
    assert "verdict" in text
    assert "…" not in text


def test_a_wrong_result_of_ours_sets_exit_code_1(cli, tmp_path):
    text = EXAMPLE.read_text().replace("return Check(ok=ascending", "return Check(ok=not ascending")
    (tmp_path / "lying.py").write_text(text)
    words = ("--case", "n=100", "--device", "cpu", "--budget", "1s", "--out", tmp_path / "o", "--json")
    process = cli("bench", tmp_path / "lying.py", *words)
    assert process.returncode == 1
    assert "WRONG" in process.stderr
    assert json.loads(process.stdout)["cases"][0]["contenders"][0]["median_ns"] is None


@pytest.mark.slow
def test_bench_into_a_pipe_names_ceilings_contenders_and_cases(tmp_path):
    """With an empty cache it measures the ceilings first; nothing stays silent for long (see test_bench_progress)."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "NO_COLOR": "1"}
    words = (
        "bench",
        "copy",
        "--case",
        "bytes=262144",
        "--device",
        "cpu",
        "--budget",
        "2s",
        "--out",
        str(tmp_path / "o"),
    )
    command = [sys.executable, "-m", "ridgeline", *words]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert process.returncode == 0, process.stderr
    assert "measuring ceilings: " in process.stderr
    assert "case 1 of 1: copy bytes=256 KiB · cpu: " in process.stderr
