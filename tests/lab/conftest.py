"""Fixtures of the lab's tests: artificial ceilings (no test measures them), artificial records, a quick plan."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest

from ridgeline.cli import main
from ridgeline.lab.race.benchmark import run_benchmark
from ridgeline.lab.race.measure import Plan
from ridgeline.lab.race.request import BenchRequest
from ridgeline.lab.record import SCHEMA, ContenderResult, Record
from ridgeline.machine import Ceiling, Ceilings, topology
from ridgeline.machine.ceiling_measurement import cache_path
from ridgeline.machine.identity import describe_machine, fingerprint

SUBJECTS = str(Path(__file__).with_name("subjects.py"))


@pytest.fixture(autouse=True)
def known_ceilings(tmp_path_factory, monkeypatch):
    """Give each test its own cache folder with artificial ceilings."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    write_ceilings()
    return cache


def write_ceilings() -> None:
    """Write artificial ceilings of the CPU into the cache folder of this process."""
    machine = topology()
    rows = [Ceiling(mix, 1e6, 1e6, "GB/s", bytes=1 << 20, threads=1) for mix in ("read", "write", "copy")]
    rows.append(Ceiling("matmul", 1e6, 1e6, "GFLOP/s", dtype="float32", how="numpy", threads=1))
    path = cache_path(machine, "cpu")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(Ceilings("cpu", fingerprint(machine), tuple(rows)).to_json()))


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a benchmark of the test subjects, or of another workload, in this process."""

    def run_subjects(*cases: str, workload: str = SUBJECTS, hooks=None, out: Path | None = None, **options):
        names = ("timeout_s", "cold", "most_rounds")
        plan = Plan(**{"timeout_s": 60.0, **{name: options.pop(name) for name in names if name in options}})
        budget = options.pop("budget_s", 2.0 * len(cases) or 30.0)
        folder = out or tmp_path / "out"
        request = BenchRequest([workload], folder, device="cpu", cases=cases, plan=plan, budget_s=budget, **options)
        return run_benchmark(request, hooks).records

    return run_subjects


@pytest.fixture
def run_command(capsys, monkeypatch, tmp_path):
    """Return a function that runs a command in this process, in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def command(*words: object):
        with pytest.raises(SystemExit) as exit_info:
            main([str(w) for w in words])
        return exit_info.value.code or 0, *capsys.readouterr()

    return command


@cache
def _this_machine() -> dict:
    """Read the machine once: it reads a hundred system files, too slow for an example of Hypothesis."""
    return describe_machine()


def make_record(times: dict[str, list[float]], *, checks: dict[str, dict] | None = None, **changes) -> Record:
    """Make a record with these samples (nanoseconds, one per turn)."""
    passed = {"ok": True, "error": 0.0, "quality": {}, "note": ""}
    contenders = tuple(
        ContenderResult(
            name, tuple(samples), check=(checks or {}).get(name, passed), turn_overhead_ns=(1000,) * len(samples)
        )
        for name, samples in times.items()
    )
    idle = {"load_average": 0.1, "cpu_mhz": None, "gpu": None, "quota_throttled": 0, "thermal_events": None}
    values = {
        "schema": SCHEMA,
        "id": f"{random.getrandbits(128):032x}",
        "time": "2026-01-01T00:00:00+00:00",
        "workload": "made",
        "case": {"n": 8, "device": "cpu", "ranks": 1},
        "work": {
            "items": 8, "unit": "rows", "flops": 16, "bytes": {"memory": 64}, "dtype": "float32", "mix": "copy",
            "working_set": None, "threads": 1, "launches": 1,
        },
        "placement": ({"node": None, "cpus": [0], "memory": "local", "gpu": None},),
        "machine": dict(_this_machine()),
        "code": {"ridgeline": "0", "commit": "c" * 40, "dirty": False, "tree": "t", "python": "3", "libraries": {}},
        "plan": {},
        "race": {"rounds": 1, "ended": "budget"},
        "conditions": {"before": idle, "after": idle},
        "ceilings": {
            "memory": {"rate": 1e10, "name": "copy of 1 MiB", "what": "10 GB/s copy of 1 MiB"},
            "compute": {"rate": 1e10, "name": "float32 matmul", "what": "10 GFLOP/s float32 matmul"},
        },
        "contenders": contenders,
        "command": "ridgeline bench made",
    }  # fmt: skip
    return Record(**{**values, **changes})


@pytest.fixture
def record():
    return make_record
