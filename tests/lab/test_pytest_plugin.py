"""`pytest --ridgeline`: the fixture benchmark writes records."""

from __future__ import annotations

import subprocess
import sys

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
        "ridgeline.lab.pytest_plugin",
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
