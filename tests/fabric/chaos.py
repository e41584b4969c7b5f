"""Kill a rank of three or four at a random point of many calls, many times, over one transport:

    python tests/fabric/chaos.py TRANSPORT KILLS [SEED]        TRANSPORT: shm, mixed, tcp, udp, ucx-tcp or ucx-posix

All calls before the error must be right. Each survivor must get an error that names the rank, shrink with the others,
and get right results from the smaller communicator. Prints one line for each wrong outcome and exits with 1 if there is
one. Mixed is shared memory inside two hosts and TCP between them.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time
from typing import Any

import numpy as np

from ridgeline import fabric
from ridgeline.fabric.communicator import Communicator

TRANSPORTS = ("shm", "mixed", "tcp", "udp", "ucx-tcp", "ucx-posix")
GUARD_S = 60.0
LENGTHS = (1, 900, 5000, 70_001, 300_007)
ALGORITHMS = (None, None, "ring", "tree", "rabenseifner", "hierarchical", "leader_tree")


def main(transport: str, kills: int, seed: int) -> int:
    choice, wrong, slowest_error, slowest_shrink = random.Random(seed), 0, 0.0, 0.0
    for number in range(kills):
        ranks = choice.choice((3, 4))
        victim, delay = choice.randrange(ranks), choice.random() ** 2 * 0.3
        outcomes = kill_once(transport, ranks, victim, delay, f"{os.getpid()}-{number}", choice.randrange(1 << 30))
        for rank, outcome in outcomes.items():
            if outcome.startswith("right "):
                _, error_s, shrink_s = outcome.split()
                slowest_error, slowest_shrink = max(slowest_error, float(error_s)), max(slowest_shrink, float(shrink_s))
            else:
                wrong += 1
                print(
                    f"kill {number}, rank {victim} of {ranks} after {delay:.3f} s, rank {rank}: {outcome}", flush=True
                )
    print(
        f"{transport}: {kills} kills, {wrong} survivors with a wrong outcome; "
        f"slowest error {slowest_error:.2f} s after the kill, slowest shrink {slowest_shrink:.2f} s",
        flush=True,
    )
    return 1 if wrong else 0


def kill_once(transport: str, ranks: int, victim: int, delay: float, name: str, seed: int) -> dict[int, str]:
    """Fork the ranks, kill one, and return what the others say."""
    pids, readers = {}, {}
    for rank in range(ranks):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            try:
                text = work(transport, rank, ranks, victim, name, seed, writer)
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(writer, text.encode())
            os._exit(0)
        os.close(writer)
        pids[rank], readers[rank] = pid, reader
    deadline = time.monotonic() + GUARD_S
    try:
        for rank in range(ranks):
            wait_for(readers[rank], deadline, 1)  # one byte: it has begun
        time.sleep(delay)
        os.kill(pids[victim], signal.SIGKILL)
        killed = time.monotonic()
        return {r: finish(wait_for(readers[r], deadline), killed) for r in range(ranks) if r != victim}
    finally:
        for rank, pid in pids.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(readers[rank])


def wait_for(reader: int, deadline: float, count: int = 1 << 16) -> str:
    data = b""
    while len(data) < count:
        if not select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return f"no answer within {GUARD_S:g} s"
        some = os.read(reader, count - len(data))
        if not some:
            break
        data += some
    return data.decode()


def finish(outcome: str, killed: float) -> str:
    """With the time from the kill to the error instead of the moment of the error."""
    kind, *words = outcome.split(" ", 2)
    return f"right {float(words[0]) - killed} {words[1]}" if kind == "right" else outcome


def work(transport: str, rank: int, ranks: int, victim: int, name: str, seed: int, writer: int) -> str:
    os.environ["RIDGELINE_FABRIC_SECRET"] = "a test"
    os.environ["RIDGELINE_FABRIC_JOB"] = name
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    kind, _, devices = transport.partition("-")
    options: dict[str, Any] = {} if kind == "shm" else {"rendezvous": f"@ridgeline-chaos-{name}"}
    if kind == "mixed":
        os.environ["RIDGELINE_FABRIC_HOST"] = f"host {rank % 2}"
    elif kind != "shm":
        options["transport"] = kind
    if devices:
        os.environ["UCX_TLS"] = f"{devices},self"
    comm = fabric.init(config=fabric.FabricConfig(timeout=30.0, **options), timeout=40)
    call(comm, random.Random(seed), seed)
    os.write(writer, b".")
    choice = random.Random(seed)
    try:
        for k in range(1_000_000):
            if not call(comm, choice, k):
                return f"call {k} has a wrong result"
    except fabric.FabricError as error:
        raised, text = time.monotonic(), str(error)
    if f"rank {victim} died" not in text:
        return f"another error: {text}"
    start = time.monotonic()
    smaller = comm.shrink(timeout=20)
    taken = time.monotonic() - start
    is_right = smaller.size == ranks - 1 and all(call(smaller, random.Random(k), k) for k in range(5))
    smaller.barrier()
    return f"right {raised} {taken}" if is_right else "a wrong result after shrink"


def call(comm: Communicator, choice: random.Random, k: int) -> bool:
    """One call of any kind, the same on all ranks; whether its result is right."""
    count, kind, root, algorithm = (
        choice.choice(LENGTHS),
        choice.randrange(5),
        choice.random(),
        choice.choice(ALGORITHMS),
    )
    n, me, source = comm.size, comm.rank, int(root * comm.size)
    base = np.arange(count) % 97
    x = (base + me + k % 5).astype(np.float32)
    if kind == 0:
        return bool((comm.all_gather(x) == (base + np.arange(n)[:, None] + k % 5)).all())
    if kind == 1:
        return bool((comm.broadcast(x, source) == base + source + k % 5).all())
    if kind == 2:
        y = np.empty_like(x)
        for rank in range(n):  # around a ring
            if me == rank:
                comm.send(x, (rank + 1) % n)
            elif me == (rank + 1) % n:
                comm.recv(y, rank)
        return bool((y == base + (me - 1) % n + k % 5).all())
    comm.all_reduce(x, algorithm=algorithm)
    return bool((x == base * n + n * (n - 1) // 2 + n * (k % 5)).all())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0))
