"""`ridgeline bench -- A -- B`: commands race, each run contained, measured and checked."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cli import main
from ridgeline.cli.bench_own import parse_values
from ridgeline.lab.record import read_records


@pytest.fixture
def bench(capfd, monkeypatch, tmp_path):
    """Return a function that runs `ridgeline bench --json` here: exit code, rows by contender, stderr."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, list[dict], str]:
        with pytest.raises(SystemExit) as exit_info:
            main(["bench", "--json", "-q", "--budget", "0.3s", "--out", str(tmp_path / "out"), *map(str, words)])
        out, err = capfd.readouterr()
        cases = json.loads(out)["cases"] if out else []
        return exit_info.value.code or 0, [row for case in cases for row in case["contenders"]], " ".join(err.split())

    return run


def test_the_first_command_is_the_reference_and_every_run_is_measured(bench, tmp_path):
    code, rows, _ = bench("--", "true", "--", "sh", "-c", "true")
    assert code == 0
    assert [row["contender"] for row in rows] == ["true", "sh -c true"]
    assert rows[0]["verdict"] is None
    assert rows[1]["verdict"] in ("SLOWER", "UNCLEAR", "SAME", "FASTER")
    assert all(row["cpu_ns"] > 0 and row["peak_bytes"] > 0 and "instructions" in row for row in rows)
    record = read_records(tmp_path / "out").records[0]
    assert record.reference == "true"
    assert not record.is_ours


def test_equal_commands_have_different_names_and_a_flag_debug_is_the_command_s_own(bench):
    _, rows, _ = bench("--", "echo", "--debug", "--", "echo", "--debug")
    assert [row["contender"] for row in rows] == ["echo --debug", "echo --debug #2"]


def test_another_output_is_wrong_and_has_no_time(bench):
    code, rows, err = bench("--same-output", "--sh", "echo 1", "--sh", "echo 2")
    assert code == 1
    assert [row["validity"] == "WRONG" for row in rows] == [False, True]
    assert rows[1]["median_ns"] is None
    assert "differs from that of the first command" in err


def test_a_check_reads_the_output_and_an_exit_code_can_be_right(bench):
    code, rows, _ = bench("--check", "grep -q yes", "--exit-code", 3, "--sh", "echo yes; exit 3", "--sh", "echo yes")
    assert code == 1
    assert rows[0]["validity"] in ("VALID", "NOISY")
    assert rows[1]["validity"] == "INCOMPLETE"
    assert "exited with code 0" in rows[1]["advice"]


@given(st.integers(-50, 50), st.integers(0, 30), st.integers(1, 7))
def test_a_range_of_a_parameter_has_both_steps_and_ends_of_python(first, length, step):
    values = parse_values(f"{first}..{first + length}..{step}", "")
    assert values == list(range(first, first + length + 1, step))
    assert parse_values(f"{first}..{first + length}", "") == list(range(first, first + length + 1))


@given(st.text(max_size=8).filter(lambda text: ".." not in text))
def test_a_value_of_a_parameter_is_the_text_or_exactly_its_number(text):
    (value,) = parse_values(text, "")
    assert str(value) == text


def test_parameters_make_cases_with_set_up_and_clean_up(bench, tmp_path):
    words = ("--param", "n=1,20", "--setup", "seq {n} > f{n}", "--cleanup", "echo {n} >> log; rm f{n}")
    code, rows, _ = bench(*words, "--sh", "cat f{n}", "--sh", "head -n {n} f{n}")
    assert code == 0
    assert len(rows) == 4
    assert (tmp_path / "log").read_text() == "1\n20\n"
    assert not list(tmp_path.glob("f*"))


@pytest.mark.parametrize(
    ("program", "words", "reason"),
    [
        ("import os; os.kill(os.getpid(), 11)", (), "killed by signal 11"),
        ("import time; time.sleep(60)", ("--timeout", "0.2s"), "did not end within 0.2 s"),
        ("a = bytearray(400 << 20)", ("--memory", "100MB"), "MemoryError"),
    ],
)
def test_a_hostile_command_costs_itself_alone(bench, program, words, reason):
    code, rows, _ = bench(*words, "--", "true", "--", sys.executable, "-S", "-c", program)
    assert code == 1
    assert rows[0]["median_ns"] > 0
    assert rows[1]["validity"] == "INCOMPLETE"
    assert reason in rows[1]["advice"]


def test_a_line_in_quotes_that_is_no_program_is_told_of_the_shell(bench):
    code, rows, _ = bench("--", "true", "--", "sleep 0")
    assert code == 1
    assert "--sh LINE" in rows[1]["advice"]


def test_processes_that_leave_the_session_do_not_outlive_a_run(bench):
    mark = f"ridgeline-left-behind-{os.getpid()}"
    program = f"import os, time  # {mark}\nfor _ in range(3):\n    if os.fork() == 0: os.setsid(); time.sleep(600)\n"
    code, rows, _ = bench("--", sys.executable, "-S", "-c", program)
    assert code == 0
    assert rows[0]["median_ns"] > 0
    left = [pid for pid in Path("/proc").glob("[0-9]*") if mark in _read(pid / "cmdline")]
    assert [pid for pid in left if int(pid.name) != os.getpid()] == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--", "true", "--"), "no command between two --"),
        (("spin", "--", "true"), "'spin' is a workload"),
        (("--param", "n=1", "--", "true"), "no command contains {n}"),
        (("--param", "n=9..1", "--", "echo", "{n}"), "a range is FIRST..LAST"),
        (("--same-output", "spin"), "name them after --"),
        (("--memory", "much", "--", "true"), "is no size"),
        (("--against", "HEAD", "--", "true"), "--against is for workloads"),
        (("--setup", "exit 7", "--", "true"), "ended with exit code 7"),
    ],
)
def test_bad_input_is_one_sentence(bench, words, sentence):
    code, rows, err = bench(*words)
    assert (code, rows) == (2, [])
    assert sentence in err


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
