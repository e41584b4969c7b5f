"""What ranks do in the tests: plain functions of a module, so that fresh processes can import them."""

from __future__ import annotations

import os
import signal
import threading
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


def both_ways(comm, cases) -> list:
    """Small all-reduces (count, dtype, op): what adding in parts gives otherwise than adding whole, in any bit."""
    wrong = []
    for k, (count, dtype, op) in enumerate(cases):
        mine = (values(comm.rank, count, dtype, seed=k) / (1 if dtype[0] in "iu" else 3)).astype(dtype)
        answers = []
        for whole in (1 << 62, 0):
            comm._engine.full_reduce_bytes = whole
            answers.append(comm.all_reduce(mine.copy(), op).tobytes())
            comm.barrier()
        wrong += [(count, dtype, op)] if answers[0] != answers[1] else []
    return wrong


def hurried(comm, calls, seed) -> list:
    """Calls of all lengths without a meeting between them, whose ranks come as late as chance will; the wrong ones."""
    wrong, chance, late = [], np.random.default_rng(seed), np.random.default_rng([seed, comm.rank])
    for k in range(calls):
        op, count = (
            chance.choice(["broadcast", "all_gather", "reduce", "all_to_all", "all_reduce"]),
            chance.integers(1, 60_000),
        )
        root = int(chance.integers(comm.size))
        everyone = [values(r, int(count), "float32", seed=k) for r in range(comm.size)]
        x = everyone[comm.rank].copy()
        if late.random() < 0.2:
            time.sleep(late.random() * 2e-3)
        if op == "broadcast":
            got, wanted = comm.broadcast(x, root), everyone[root]
        elif op == "all_gather":
            got, wanted = comm.all_gather(x), np.stack(everyone)
        elif op == "reduce":
            got, wanted = comm.reduce(x, root), np.sum(everyone, 0) if comm.rank == root else x.copy()
        elif op == "all_reduce":
            got, wanted = comm.all_reduce(x), np.sum(everyone, 0)
        else:
            got = comm.all_to_all(np.stack([x + r for r in range(comm.size)]))
            wanted = np.stack([one + comm.rank for one in everyone])
        wrong += _unlike(got, wanted, (k, str(op), int(count), root))
    return wrong


def many_messages(comm, counts, each) -> int:
    """More messages than a mail holds, long and short, before anyone takes one away; how many came wrong."""
    wrong = 0
    if comm.rank == 0:
        for count in counts:
            for k in range(each):
                comm.send(np.arange(k, k + count, dtype="i4"), 1)
    elif comm.rank == 1:
        time.sleep(0.05)
        for count in counts:
            for k in range(each):
                got = comm.recv(np.empty(count, "i4"), 0)
                wrong += not np.array_equal(got, np.arange(k, k + count))
    return wrong


def other_lengths(comm) -> list:
    """A message of another length or type is said and taken away: the next one is right."""
    said = []
    for sent, wanted in (
        ("3f4", "4f4"),
        ("3f4", "3i4"),
        ("90000f4", "3f4"),
        ("3f4", "90000f4"),
        ("90000f4", "90000i4"),
    ):
        if comm.rank == 0:
            comm.send(np.ones(int(sent[:-2]), sent[-2:]), 1)
            comm.send(np.full(5, 7, "i8"), 1)
        else:
            try:
                comm.recv(np.empty(int(wanted[:-2]), wanted[-2:]), 0)
            except fabric.FabricError as error:
                said.append((str(error), int(comm.recv(np.empty(5, "i8"), 0).sum())))
    return said


def busy_beside(comm) -> int:
    """How often a thread of rank 1 had a turn while its rank waited half a second for a short message."""
    turns, done = [0], threading.Event()

    def count() -> None:
        while not done.is_set():
            turns[0] += 1
            time.sleep(0.001)

    if comm.rank == 0:
        time.sleep(0.5)
        comm.send(np.ones(2, "f4"), 1)
        return 0
    thread = threading.Thread(target=count)
    thread.start()
    comm.recv(np.empty(2, "f4"), 0)
    done.set()
    thread.join()
    return turns[0]


def threads_call(comm) -> list:
    """Two threads of rank 0 send, two of rank 1 receive; the values that came, whole ones only."""
    came: list[int] = []

    def send(first: int) -> None:
        for k in range(first, first + 300):
            comm.send(np.full(100, k, "i4"), 1)

    def receive(_: int) -> None:
        for _ in range(300):
            got = comm.recv(np.empty(100, "i4"), 0)
            came.append(int(got[0]) if (got == got[0]).all() else -1)

    started = [threading.Thread(target=receive if comm.rank else send, args=(k * 300,)) for k in range(2)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return sorted(came)


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
        "byte order": lambda: comm.all_reduce(np.ones(3, ">f4")),
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
        if what == "length in parts":
            comm._engine.full_reduce_bytes = 0
            comm.all_reduce(np.ones(7 if odd else 6, "f4"))
        elif what == "length of much":
            comm.all_gather(np.ones(700_000 if odd else 600_000, "f4"))
        elif what == "dtype":
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


CALLS = {
    "all_reduce": lambda comm: comm.all_reduce(np.ones(100_000, "f4"), timeout=1.5),
    "broadcast": lambda comm: comm.broadcast(np.ones(1_000_000, "f4"), timeout=1.5),
    "all_gather": lambda comm: comm.all_gather(np.ones(1_000_000, "f4"), timeout=1.5),
    "reduce": lambda comm: comm.reduce(np.ones(1_000_000, "f4"), timeout=1.5),
    "recv": lambda comm: comm.recv(np.empty(4, "f4"), 1, timeout=1.5),
    "recv of much": lambda comm: comm.recv(np.empty(1_000_000, "f4"), 1, timeout=1.5),
    "send": lambda comm: [comm.send(np.ones(4, "f4"), 1, timeout=1.5) for _ in range(20)],
    "send of much": lambda comm: comm.send(np.ones(1_000_000, "f4"), 1, timeout=1.5),
}


def ends_in(comm, call, how, after) -> tuple:
    """Rank 1 ends or stands still `after` so many seconds, while the ranks make one call over and over."""
    if call in ("all_reduce in parts", "all_reduce"):
        comm._engine.full_reduce_bytes = 0
    many = CALLS.get(call, lambda comm: comm.all_reduce(np.ones(1_000, "f4"), timeout=1.5))
    one_sided = call.split()[0] in ("recv", "send")
    comm.barrier()
    if comm.rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), how))
        signal.setitimer(signal.ITIMER_REAL, after)
        while one_sided:
            time.sleep(0.01)
    until = time.perf_counter() + 10
    try:
        while time.perf_counter() < until:
            began = time.perf_counter()
            many(comm)
    except fabric.FabricError as error:
        return str(error), time.perf_counter() - began
    return "no error", 0.0


def interrupted(comm) -> tuple:
    """Rank 1 is interrupted while it waits for a short message."""
    if comm.rank == 0:
        time.sleep(1.0)
        return "", 0.0
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    began = time.perf_counter()
    try:
        comm.recv(np.empty(4, "f4"), 0, timeout=30)
    except KeyboardInterrupt:
        return "interrupted", time.perf_counter() - began
    return "no error", 0.0


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
