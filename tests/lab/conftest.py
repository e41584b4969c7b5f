"""What the lab's tests share: made-up ceilings (so that no test measures them), made-up records, a quick plan."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest

from ridgeline.cli import main
from ridgeline.lab.race.benchmark import bench
from ridgeline.lab.race.plan import Plan
from ridgeline.lab.race.points import Ask
from ridgeline.lab.record.record import SCHEMA, Lane, Record
from ridgeline.machine import topology
from ridgeline.machine.ceiling import Ceiling, Ceilings, cache_path
from ridgeline.machine.identity import facts, fingerprint

SUBJECTS = str(Path(__file__).with_name("subjects.py"))


@pytest.fixture(autouse=True)
def known_ceilings(tmp_path_factory, monkeypatch):
    """A cache folder of this test's own, with ceilings nobody had to measure."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    here = topology()
    rows = [Ceiling(mix, 1e6, 1e6, "GB/s", bytes=1 << 20, threads=1) for mix in ("read", "write", "copy")]
    rows.append(Ceiling("matmul", 1e6, 1e6, "GFLOP/s", dtype="float32", how="numpy", threads=1))
    path = cache_path(here, "cpu")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(Ceilings("cpu", fingerprint(here), tuple(rows)).to_json()))
    return cache


@pytest.fixture
def run(tmp_path):
    """Bench the test subjects, or another workload, in this process."""

    def go(*cases: str, workload: str = SUBJECTS, watcher=None, out: Path | None = None, **ask):
        names = ("timeout_s", "cold", "most_rounds")
        plan = Plan(**{"timeout_s": 60.0, **{name: ask.pop(name) for name in names if name in ask}})
        budget = ask.pop("budget_s", 2.0 * len(cases) or 30.0)
        asked = Ask([workload], out or tmp_path / "out", device="cpu", cases=cases, plan=plan, budget_s=budget, **ask)
        return bench(asked, watcher).records

    return go


@pytest.fixture
def say(capsys, monkeypatch, tmp_path):
    """Run a command in this process, in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def command(*words: object):
        with pytest.raises(SystemExit) as left:
            main([str(w) for w in words])
        return left.value.code or 0, *capsys.readouterr()

    return command


@cache
def _this_machine() -> dict:
    """Read once: a hundred files of the system's are more than an example of Hypothesis's has time for."""
    return facts()


def make_record(times: dict[str, list[float]], *, checks: dict[str, dict] | None = None, **changes) -> Record:
    """A record with these samples (nanoseconds, one per turn)."""
    good = {"ok": True, "error": 0.0, "quality": {}, "note": ""}
    lanes = tuple(
        Lane(name, tuple(samples), check=(checks or {}).get(name, good), turn_overhead_ns=(1000,) * len(samples))
        for name, samples in times.items()
    )
    calm = {"load_average": 0.1, "cpu_mhz": None, "gpu": None, "quota_throttled": 0, "thermal_events": None}
    whole = {
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
        "weather": {"before": calm, "after": calm},
        "ceilings": {
            "memory": {"rate": 1e10, "name": "copy of 1 MiB", "what": "10 GB/s copy of 1 MiB"},
            "compute": {"rate": 1e10, "name": "float32 matmul", "what": "10 GFLOP/s float32 matmul"},
        },
        "contenders": lanes,
        "command": "ridgeline bench made",
    }  # fmt: skip
    return Record(**{**whole, **changes})


@pytest.fixture
def record():
    return make_record
