"""What ranks do in the tests: plain functions of a module, so that fresh processes can import them."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

from ridgeline import fabric

REDUCE = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}


def values(rank: int, count: int, dtype: str, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng([seed, rank]).integers(-3, 4, count)
    return (np.abs(made) if dtype == "uint8" else made).astype(dtype)


def reference(ranks: int, count: int, dtype: str, op: str) -> np.ndarray:
    """In float64, from what every rank gave."""
    return REDUCE[op](np.stack([values(r, count, dtype) for r in range(ranks)]).astype("f8"), axis=0)


def wrong_reductions(comm, cases) -> list:
    """Cases (count, dtype, op, algorithm, how the buffer lies) whose all_reduce differs from the reference."""
    wrong = []
    for count, dtype, op, algorithm, lies in cases:
        x = values(comm.rank, count, dtype)
        if lies == "registered":
            given = fabric.empty(count, dtype)
            given[:] = x
        elif lies == "strided":
            given = np.zeros(2 * count, dtype)[::2]
            given[:] = x
        else:
            given = x.copy()
        out = np.empty_like(x) if lies == "out of place" else None
        got = comm.all_reduce(given, op, out=out, algorithm=algorithm)
        wanted = reference(comm.size, count, dtype, op)
        if np.dtype(dtype).kind in "iu":
            wanted = wanted.astype("i8").astype(dtype).astype("f8")  # both wrap round, and a mean is cut
        if not np.allclose(got.astype("f8"), wanted, rtol=2e-3 if dtype == "float16" else 1e-6):
            wrong.append((comm.rank, count, dtype, op, algorithm, lies))
        if lies == "out of place" and not np.array_equal(given, x):
            wrong.append(("input changed", count))
    return wrong


def wrong_moves(comm, counts, algorithms) -> list:
    """Everything but all_reduce, by value."""
    wrong, n, me = [], comm.size, comm.rank
    for count in counts:
        everyone = np.stack([values(r, count, "float32") for r in range(n)])
        mine = everyone[me].copy()
        for algorithm in algorithms["all_gather"]:
            wrong += _unlike(comm.all_gather(mine, algorithm=algorithm), everyone, ("all_gather", count, algorithm))
        for root in {0, n - 1}:
            for algorithm in algorithms["broadcast"]:
                x = mine.copy()
                comm.broadcast(x, root, algorithm=algorithm)
                wrong += _unlike(x, everyone[root], ("broadcast", count, root, algorithm))
            for algorithm in algorithms["reduce"]:
                x = mine.copy()
                comm.reduce(x, root, algorithm=algorithm)
                wrong += _unlike(x, everyone.sum(0) if me == root else mine, ("reduce", count, root, algorithm))
        wide = np.stack([values(me, count, "float32", seed=k) for k in range(n)])
        for algorithm in algorithms["reduce_scatter"]:
            given = wide.copy()
            got = comm.reduce_scatter(given, algorithm=algorithm)[0]
            wanted = np.stack([values(r, count, "float32", seed=me) for r in range(n)]).sum(0)
            wrong += _unlike(got, wanted, ("reduce_scatter", count, algorithm))
            wrong += _unlike(given, wide, ("reduce_scatter changed its input", count, algorithm))
        wanted = np.stack([values(r, count, "float32", seed=me) for r in range(n)])
        wrong += _unlike(comm.all_to_all(wide), wanted, ("all_to_all", count))
        comm.barrier()
    return wrong


def wrong_lies(comm) -> list:
    """Moves of arrays that go straight into the engine on one rank and the long way (strided, odd types) on another."""
    wrong, me = [], comm.rank
    for dtype in ("f4", "i8", "u1", "?", "c8", ">i4", "u2"):
        for strided in (None, 0, 1):  # the rank whose arrays have gaps
            everyone = [(np.arange(60) % 2 + 7 * r).astype(dtype) for r in range(comm.size)]

            def lying(x, strided=strided):
                wide = np.zeros(2 * x.size if me == strided else x.size, x.dtype)
                view = wide[::2] if me == strided else wide
                view[:] = x
                return view

            for root in range(comm.size):
                x = lying(everyone[me])
                comm.broadcast(x, root)
                wrong += _unlike(x, everyone[root], ("broadcast", dtype, strided, root))
            out = lying(np.zeros(60 * comm.size, dtype))
            comm.all_gather(lying(everyone[me]), out=out)
            wrong += _unlike(out, np.concatenate(everyone), ("all_gather", dtype, strided))
            x = lying(everyone[me])
            if me == 0:
                x.flags.writeable = False
                comm.send(x, 1)
            elif me == 1:
                comm.recv(x, 0)
                wrong += _unlike(x, everyone[0], ("recv", dtype, strided))
    return wrong


def _unlike(got, wanted, what) -> list:
    return [] if np.array_equal(got, wanted) else [what]


def round_trip(comm, counts) -> int:
    """Messages round the ring of ranks, each adding one; how many came back wrong."""
    wrong, right, left = 0, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in counts:
        x = np.zeros(count, "i8")
        if comm.rank == 0:
            comm.send(x, right)
            comm.recv(x, left)
            wrong += bool((x != comm.size - 1).any())
        else:
            comm.recv(x, left)
            comm.send(x + 1, right)
    return wrong


def groups(comm) -> tuple:
    odd = comm.split(comm.rank % 2, key=-comm.rank)
    x = np.array([comm.rank], "i8")
    odd.all_reduce(x)
    comm.all_reduce(y := np.array([1], "i8"))
    alone = comm.split(None if comm.rank else 0)
    return odd.rank, odd.size, int(x[0]), int(y[0]), alone is None


def later(comm) -> list:
    arrays = [np.full(1 << k, comm.rank, "f4") for k in range(16)]
    handles = [comm.all_reduce(a, async_op=True) for a in arrays]
    comm.barrier()
    return [float(h.wait()[0]) for h in handles]


def counted(comm) -> dict:
    if comm.rank == 1:
        time.sleep(0.3)
    comm.all_reduce(np.ones(10, "f4"))
    comm.all_reduce(np.ones(10, "f4"), algorithm="ring")
    return comm.stats()


def tensors(comm) -> list:
    import torch

    found = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int64):
        t = torch.full((3, 5), comm.rank + 1, dtype=dtype)
        comm.all_reduce(t)
        u = torch.full((4, 6), comm.rank + 1, dtype=dtype).t()
        comm.all_reduce(u, "max")
        found.append((t.float().sum().item(), u.float().sum().item()))
    flags = torch.tensor([comm.rank == 0, True])
    return [*found, comm.all_gather(flags).tolist()]


def fails(comm, call) -> str:
    """The error of one call, as text."""
    x = np.ones(8, "f4")
    calls = {
        "complex": lambda: comm.all_reduce(np.ones(3, "c8")),
        "no such op": lambda: comm.all_reduce(x, "median"),
        "objects": lambda: comm.broadcast(np.array([None])),
        "read-only": lambda: comm.all_reduce(np.broadcast_to(x, (2, 8))),
        "list": lambda: comm.all_reduce([1, 2]),
        "out": lambda: comm.all_gather(x, out=np.empty(3, "f4")),
        "out's type": lambda: comm.all_gather(x, out=np.empty(8 * comm.size, "i4")),
        "read-only recv": lambda: comm.recv(np.broadcast_to(x, (2, 8)), 1 - comm.rank),
        "closed": lambda: (comm.close(), comm.broadcast(x)),
        "cut": lambda: comm.reduce_scatter(np.ones(comm.size * 2 + 1, "f4")),
        "root": lambda: comm.broadcast(x, 9),
        "algorithm": lambda: comm.all_reduce(x, algorithm="rign"),
        "memory": lambda: fabric.empty(1 << 50, "u1"),
    }
    try:
        calls[call]()
    except fabric.FabricError as error:
        return str(error)
    except Exception as error:
        return str(error)
    return "no error"


def differs(comm, what) -> str:
    """Rank 1 calls something else; afterwards all make one more call together."""
    odd = comm.rank == 1
    x = np.ones(6, "f4")
    try:
        if what == "dtype":
            comm.all_reduce(np.ones(6, "f8") if odd else x)
        elif what == "op":
            comm.broadcast(x) if odd else comm.all_reduce(x)
        elif what == "reduction":
            comm.all_reduce(x, "max" if odd else "sum")
        elif what == "algorithm":
            comm.all_reduce(x, algorithm="ring" if odd else "tree")
        else:
            comm.broadcast(x, root=1 if odd else 0)
    except fabric.FabricError as error:
        comm.all_reduce(x)
        return str(error)
    return "no error"


def ends(comm, how) -> tuple:
    """Rank 1 ends or stands still; what the others are told, and after how long."""
    comm.barrier()
    if comm.rank == 1:
        if how == "raises":
            raise ValueError("by itself")
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])
    began = time.perf_counter()
    try:
        comm.all_reduce(np.ones(100_000, "f4"), timeout=1.5)
    except fabric.FabricError as error:
        said = str(error)
        took = time.perf_counter() - began
        try:
            comm.barrier(timeout=1.5)
        except fabric.FabricError as again:
            return said, took, str(again)
    return "no error", 0.0, ""


def sleeps(comm) -> int:
    os.write(1, f"{os.getpid()}\n".encode())  # in one piece: ranks share the pipe
    time.sleep(60)
    return 0


def joined() -> None:
    """The body of a script under a launcher: every rank writes what it got."""
    with fabric.init(timeout=60) as comm:
        x = np.array([comm.rank + 1.0])
        comm.all_reduce(x)
        reg = fabric.empty(3, "f8")
        reg[:] = comm.rank
        comm.all_reduce(reg)
        print(f"rank {comm.rank} of {comm.size}: {x[0]:g} {reg[0]:g}", flush=True)
