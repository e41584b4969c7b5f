"""The lab's commands from the outside: what they print, what they write, how they leave.

python -m pytest tests/cli/test_bench.py
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "sort_workload.py"


@pytest.fixture(scope="module")
def cli(tmp_path_factory):
    """Run the command line with ceilings measured once for this module, on a ladder made short."""
    cache = tmp_path_factory.mktemp("cache")

    def go(*words: object, **more) -> subprocess.CompletedProcess[str]:
        import os

        environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "NO_COLOR": "1"}
        command = [sys.executable, "-m", "ridgeline", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, **more)

    return go


@pytest.fixture(scope="module")
def finished(cli, tmp_path_factory):
    """A short bench of copy: its folder and its JSON."""
    out = tmp_path_factory.mktemp("bench")
    done = cli("bench", "copy", "--case", "bytes=262144", "--device", "cpu", "--budget", "2s", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    return out, json.loads(done.stdout)


pytestmark = pytest.mark.xdist_group("bench")


def test_bench_answers_in_json_with_every_contender_judged(finished):
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


def test_records_can_be_listed_shown_and_exported(cli, finished, tmp_path):
    out, _ = finished
    listed = json.loads(cli("records", "ls", out, "--json").stdout)
    assert listed["records"][0]["workload"] == "copy"
    shown = cli("records", "show", out)
    assert "ridgeline bench copy" in shown.stdout
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


def test_a_run_compared_with_itself_is_same(cli, finished):
    out, _ = finished
    done = cli("compare", out, out)
    assert done.returncode == 0
    assert "SAME" in done.stdout


def test_the_report_can_be_made_again_from_its_records(cli, finished, tmp_path):
    out, _ = finished
    done = cli("report", out, "--out", tmp_path)
    assert done.returncode == 0
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_the_example_workload_is_under_100_lines_and_races(cli, tmp_path):
    assert len(EXAMPLE.read_text().splitlines()) < 100
    done = cli("bench", EXAMPLE, "--case", "n=2000", "--device", "cpu", "--budget", "2s", "--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    rows = {c["contender"]: c for c in json.loads(done.stdout)["cases"][0]["contenders"]}
    assert rows["python"]["verdict"] == "SLOWER"


def test_contributing_shows_the_example_as_it_is():
    assert EXAMPLE.read_text() in (EXAMPLE.parents[1] / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize(
    ("words", "code", "says"),
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
def test_bad_input_is_one_sentence(cli, words, code, says, tmp_path):
    done = cli(*words, cwd=tmp_path)
    assert done.returncode == code
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert not list(tmp_path.iterdir()), "nothing half-written"


def test_a_workload_of_ones_own_that_lacks_a_method_is_told_so(cli, tmp_path):
    (tmp_path / "half.py").write_text(
        "class W:\n    name = 'half'\n    def cases(self, profile): return []\nworkload = W()\n"
    )
    done = cli("bench", tmp_path / "half.py", "--out", tmp_path / "o")
    assert done.returncode == 2
    assert "lacks: work, contenders, prepare, check" in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import not_there", "cannot be loaded: ModuleNotFoundError: No module named 'not_there'"),
        ("def x(:", "cannot be loaded: SyntaxError"),
        (EXAMPLE.read_text().replace('["ridgeline", "python"]', '["mine", "python"]'), "'sort' lack 'ridgeline'"),
    ],
)
def test_a_workload_file_that_is_wrong_is_one_sentence(cli, tmp_path, text, says):
    (tmp_path / "mine.py").write_text(text)
    done = cli("bench", tmp_path / "mine.py", "--device", "cpu", "--out", tmp_path / "o")
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_what_a_peer_says_is_no_markup(cli, tmp_path):
    broken = (
        "def prepare(self, case, contender, place):\n        if contender == 'python': raise OSError('[/lib] [red]')"
    )
    text = EXAMPLE.read_text().replace(
        "def prepare(self, case: Case, contender: str, place: Placement) -> Run:", broken
    )
    (tmp_path / "mine.py").write_text(text)
    words = ("--case", "n=100", "--device", "cpu", "--budget", "1s", "--out", tmp_path / "o")
    done = cli("bench", tmp_path / "mine.py", *words)
    assert done.returncode == 0, done.stderr
    assert "it raised OSError: [/lib] [red]" in done.stdout


def test_a_narrow_screen_keeps_names_and_verdicts(finished):
    from rich.console import Console

    from ridgeline.cli import tables
    from ridgeline.lab.record import record

    screen = Console(width=60, record=True, file=io.StringIO())
    for part in tables.races(record.read(finished[0]).records, screen.width):
        screen.print(part)
    shown = screen.export_text()
    assert "  ridgeline" in shown
    assert "numpy" in shown
    assert "verdict" in shown
    assert "…" not in shown


def test_something_of_ours_that_is_wrong_sets_exit_1(cli, tmp_path):
    text = EXAMPLE.read_text().replace("return Check(ok=rising", "return Check(ok=not rising")
    (tmp_path / "lying.py").write_text(text)
    words = ("--case", "n=100", "--device", "cpu", "--budget", "1s", "--out", tmp_path / "o", "--json")
    done = cli("bench", tmp_path / "lying.py", *words)
    assert done.returncode == 1
    assert "WRONG" in done.stderr
    assert json.loads(done.stdout)["cases"][0]["contenders"][0]["median_ns"] is None
