"""The functions that ranks run in test_network.py, in a module that new processes can import."""

from __future__ import annotations

import os
import random
import signal
import socket
import urllib.request
from contextlib import suppress

import numpy as np

from ridgeline import fabric
from ridgeline.errors import InputError

LENGTHS = [1, 7, 1000, 5000, 65_537, 400_003]


def find_wrong_results(comm, seed) -> list:
    """Random calls of all kinds, without barriers between them, beside NumPy."""
    rng, wrong, n, me = np.random.default_rng(seed), [], comm.size, comm.rank
    for k in range(40):
        count, root = int(rng.choice(LENGTHS)), int(rng.integers(n))
        dtype = str(rng.choice(["f4", "f8", "i4", "i8"]))
        inputs = [np.random.default_rng([seed, k, r]).integers(-50, 50, count).astype(dtype) for r in range(n)]
        blocks = [np.stack([x + r for r in range(n)]) for x in inputs]
        x, op = inputs[me].copy(), str(rng.choice(OPS))
        if op == "all_reduce":
            algorithm = rng.choice([None, "ring", "tree", "recursive_doubling", "rabenseifner"])
            same = (comm.all_reduce(x, algorithm=algorithm) == sum(inputs)).all()
        elif op == "max":
            same = (comm.all_reduce(x, "max", out=np.empty_like(x)) == np.maximum.reduce(inputs)).all()
        elif op == "all_gather":
            same = (comm.all_gather(x) == np.stack(inputs)).all()
        elif op == "broadcast":
            same = (comm.broadcast(x, root) == inputs[root]).all()
        elif op == "reduce":
            same = (comm.reduce(x, root) == (sum(inputs) if me == root else inputs[me])).all()
        elif op == "reduce_scatter":
            same = (comm.reduce_scatter(blocks[me].reshape(-1)) == sum(inputs) + n * me).all()
        elif op == "all_to_all":
            same = (comm.all_to_all(blocks[me]) == np.stack([y + me for y in inputs])).all()
        else:  # around a ring
            y = np.empty_like(x)
            for rank in range(n):
                if me == rank:
                    comm.send(x, (rank + 1) % n)
                elif me == (rank + 1) % n:
                    comm.recv(y, rank)
            same = (y == inputs[(me - 1) % n]).all()
        wrong += [] if same else [(k, op, count, dtype, root)]
    return wrong


OPS = ("all_reduce", "max", "all_gather", "broadcast", "reduce", "reduce_scatter", "all_to_all", "send")


def differ_then_agree(comm) -> tuple[str, float]:
    errors = []
    for call in (
        lambda: comm.all_reduce(np.ones(6 + comm.rank, "f4")),
        lambda: comm.recv(np.ones(9), 1) if comm.rank == 0 else comm.send(np.ones(200_000), 0),
    ):
        try:
            call()
            errors.append("no error")
        except fabric.FabricError as error:
            errors.append(str(error))
    return "; ".join(errors), float(comm.all_reduce(np.ones(3))[0])


def get_stats(comm) -> dict:
    for _ in range(3):
        comm.all_reduce(np.ones(300_000, "f4"))
    return comm.stats()


def get_send_buffers(comm) -> list[int]:
    """The sizes of the send buffers of all TCP connections of this process."""
    sizes = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.family == socket.AF_INET and one.type == socket.SOCK_STREAM and one.getpeername():
                sizes.append(one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
    comm.barrier()
    return sizes


def fail_in_one_part(comm) -> str:
    part = comm.split(comm.rank // 2)
    if comm.rank == 2:
        part.abort()
    try:
        for _ in range(3):
            part.all_reduce(np.ones(1000))
        result = "ok"
    except fabric.FabricError:
        result = "failed"
    assert comm.all_reduce(np.ones(2))[0] == 4.0
    return result


def use_in_forked_child(comm, drops_engine=False) -> tuple[str, float]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            comm.all_reduce(np.ones(2))
        except fabric.FabricError as error:
            os.write(write, str(error).encode())
        if drops_engine:
            comm._engine = None
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    text = os.read(read, 1000).decode()
    os.close(read)
    return text, float(comm.all_reduce(np.ones(2))[0])


def die_at_random(comm, seed) -> str:
    """Rank 2 is killed at a random moment of many calls; returns the error of this rank."""
    rng = random.Random(seed)
    if comm.rank == 2:
        signal.setitimer(signal.ITIMER_REAL, 0.01 + rng.random() * 0.2)
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    try:
        for k in range(100_000):
            x = (np.arange((1000, 70_001, 500_009)[k % 3]) % 97 + comm.rank + k % 5).astype("f4")
            comm.all_reduce(x)
            if not (x == (np.arange(len(x)) % 97) * 3 + 3 + 3 * (k % 5)).all():
                return f"call {k} is wrong"
    except fabric.FabricError as error:
        return str(error)
    return "no error"


def shrink_after_death(comm, dead, how) -> tuple:
    """The ranks in `dead` end or stop one after the other; the others go on in smaller communicators."""
    first, sums = comm.rank, []
    for victim in dead:
        if first == victim:
            if how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            for k in range(100_000):
                comm.all_reduce(np.ones(1000 if k % 2 else 200_000, "f4"), timeout=1.5 if how == "stop" else 60)
            return ("no error",)
        except fabric.FabricError as error:
            message = str(error)
        comm = comm.shrink(timeout=20)
        x = np.full(300_000, first + 1.0)
        comm.all_reduce(x)
        part = comm.split(0)
        sums.append((comm.rank, comm.size, float(x[-1]), float(part.all_reduce(np.ones(2))[0]), message))
    return first, sums, comm.stats()["peers"]


def shrink_alone(comm) -> str:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with suppress(fabric.FabricError):
        comm.barrier(timeout=60)
    try:
        return f"{comm.shrink(timeout=5).size} ranks"
    except fabric.FabricError as error:
        return str(error)


def shrink_without_failure(comm) -> tuple:
    """All ranks but the last call shrink."""
    if comm.rank == comm.size - 1:
        try:
            comm.barrier(timeout=60)
        except fabric.FabricError as error:
            return (str(error),)
        return ("no error",)
    smaller = comm.shrink(timeout=5)
    return smaller.rank, smaller.size, float(smaller.all_reduce(np.ones(2))[0])


def ask_for_address(comm) -> str:
    try:
        return comm.address
    except InputError as error:
        return str(error)


def read_own_metrics(comm, port) -> tuple:
    """The text of rank 0, and two readings of all ranks with calls between them."""
    from ridgeline.fabric import Watcher

    for _ in range(10):
        comm.all_reduce(np.ones(100_000, "f4"))
    text, first, second = "", {}, {}
    if comm.rank == 0:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        watcher = Watcher(f"127.0.0.1:{port}")
        first = watcher.read()
    for _ in range(10):
        comm.all_reduce(np.ones(100_000, "f4"))
    if comm.rank == 0:
        second = watcher.read()
    comm.barrier()
    return text, first, second
