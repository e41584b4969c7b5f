"""`pytest --ridgeline`: the fixture benchmark writes records."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ridgeline.lab.record import read_records

TEST = """
import pytest

@pytest.mark.parametrize("n", [10, 20])
def test_sum(benchmark, n):
    assert benchmark(sum, range(n)) == n * (n - 1) // 2

def test_sort(benchmark):
    def setup():
        return ([3, 1, 2],), {}
    assert benchmark.pedantic(sorted, setup=setup) == [1, 2, 3]
"""


def test_benchmarks_of_tests_are_records(tmp_path):
    (tmp_path / "test_b.py").write_text(TEST)
    words = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "ridgeline.lab.race.pytest_plugin",
        "--ridgeline",
        "--ridgeline-budget",
        "0.1",
    ]
    command = [sys.executable, "-m", "pytest", *words, "--ridgeline-out", "out", "test_b.py"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stdout + process.stderr
    records = read_records(tmp_path / "out").records
    assert [(r.workload, r.case.get("n")) for r in records] == [
        ("test_b.py::test_sum", 10),
        ("test_b.py::test_sum", 20),
        ("test_b.py::test_sort", None),
    ]
    assert all(result.samples_ns for r in records for result in r.contenders)


SUITE = """
import pytest

@pytest.fixture
def values():
    box = [3, 1, 2]
    yield box
    box.clear()

@pytest.mark.parametrize("n", [10, 20])
def test_sum(benchmark, n, values):
    assert benchmark(lambda: sum(range(n)) + len(values)) == sum(range(n)) + 3

def test_wrong(benchmark):
    assert benchmark(len, "abc") == 4

def test_fresh(benchmark):
    benchmark.pedantic(sorted, setup=lambda: (([3, 1],), {}))

def test_no_benchmark():
    raise RuntimeError("is not run")
"""
PROGRAM = """
from ridgeline.errors import InputError
from ridgeline.lab import Profile
from ridgeline.lab.race import load_workload
from ridgeline.machine import Placement

workload = load_workload("tests/test_speed.py")
cases = {case["test"]: case for case in workload.cases(Profile.QUICK)}
print(sorted(cases), workload.contenders(next(iter(cases.values()))))
run = workload.prepare(cases["test_sum[20]"], "mine", Placement())
print(run.step(), run.step())
run.close()
for name in ("test_wrong", "test_fresh"):
    try:
        workload.prepare(cases[name], "mine", Placement())
    except InputError as error:
        print(error)
"""


@pytest.mark.slow  # a process that starts pytest five times
def test_a_file_of_tests_is_a_workload_that_holds_a_test_inside_its_benchmark(tmp_path):
    folder = tmp_path / "mine" / "tests"
    folder.mkdir(parents=True)
    (folder / "test_speed.py").write_text(SUITE)
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=folder.parent, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    names, times, wrong, fresh = process.stdout.splitlines()
    assert names == "['test_fresh', 'test_sum[10]', 'test_sum[20]', 'test_wrong'] ['mine']"
    assert times == "193 193", "the fixtures of the test are alive while it is timed"
    assert wrong == "the test test_wrong does not pass: AssertionError: assert 3 == 4."
    assert "needs fresh arguments" in fresh
