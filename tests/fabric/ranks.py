"""The functions that ranks run in the tests, in a module that new processes can import."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np

from ridgeline import fabric

REDUCE = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}


def make_values(rank: int, count: int, dtype: str, seed: int = 0) -> np.ndarray:
    numbers = np.random.default_rng([seed, rank]).integers(-3, 4, count)
    return (np.abs(numbers) if dtype == "uint8" else numbers).astype(dtype)


def reduce_with_numpy(ranks: int, count: int, dtype: str, op: str) -> np.ndarray:
    """The reference in float64, from the inputs of all ranks."""
    return REDUCE[op](np.stack([make_values(r, count, dtype) for r in range(ranks)]).astype("f8"), axis=0)


def find_wrong_reductions(comm, cases) -> list:
    """The cases (count, dtype, op, algorithm, layout) with an all_reduce that differs from the reference."""
    wrong = []
    for count, dtype, op, algorithm, layout in cases:
        x = make_values(comm.rank, count, dtype)
        if layout == "registered":
            array = fabric.empty(count, dtype)
            array[:] = x
        elif layout == "strided":
            array = np.zeros(2 * count, dtype)[::2]
            array[:] = x
        else:
            array = x.copy()
        out = np.empty_like(x) if layout == "out of place" else None
        actual = comm.all_reduce(array, op, out=out, algorithm=algorithm)
        expected = reduce_with_numpy(comm.size, count, dtype, op)
        if np.dtype(dtype).kind in "iu":
            expected = (
                expected.astype("i8").astype(dtype).astype("f8")
            )  # integers overflow in both, and a mean is truncated
        if not np.allclose(actual.astype("f8"), expected, rtol=2e-3 if dtype == "float16" else 1e-6):
            wrong.append((comm.rank, count, dtype, op, algorithm, layout))
        if layout == "out of place" and not np.array_equal(array, x):
            wrong.append(("input changed", count))
    return wrong


def find_wrong_moves(comm, counts, algorithms) -> list:
    """All collectives except all_reduce, compared by value."""
    wrong, n, me = [], comm.size, comm.rank
    for count in counts:
        all_inputs = np.stack([make_values(r, count, "float32") for r in range(n)])
        local = all_inputs[me].copy()
        for algorithm in algorithms["all_gather"]:
            wrong += _compare(comm.all_gather(local, algorithm=algorithm), all_inputs, ("all_gather", count, algorithm))
        for root in {0, n - 1}:
            for algorithm in algorithms["broadcast"]:
                x = local.copy()
                comm.broadcast(x, root, algorithm=algorithm)
                wrong += _compare(x, all_inputs[root], ("broadcast", count, root, algorithm))
            for algorithm in algorithms["reduce"]:
                x = local.copy()
                comm.reduce(x, root, algorithm=algorithm)
                wrong += _compare(x, all_inputs.sum(0) if me == root else local, ("reduce", count, root, algorithm))
        wide = np.stack([make_values(me, count, "float32", seed=k) for k in range(n)])
        for algorithm in algorithms["reduce_scatter"]:
            array = wide.copy()
            actual = comm.reduce_scatter(array, algorithm=algorithm)[0]
            expected = np.stack([make_values(r, count, "float32", seed=me) for r in range(n)]).sum(0)
            wrong += _compare(actual, expected, ("reduce_scatter", count, algorithm))
            wrong += _compare(array, wide, ("reduce_scatter changed its input", count, algorithm))
        expected = np.stack([make_values(r, count, "float32", seed=me) for r in range(n)])
        wrong += _compare(comm.all_to_all(wide), expected, ("all_to_all", count))
        comm.barrier()
    return wrong


def find_wrong_layouts(comm) -> list:
    """Moves of arrays that one rank passes directly to the engine and another copies first (strided, rare types)."""
    wrong, me = [], comm.rank
    for dtype in ("f4", "i8", "u1", "?", "c8", ">i4", "u2"):
        for strided in (None, 0, 1):  # the rank with strided arrays
            all_inputs = [(np.arange(60) % 2 + 7 * r).astype(dtype) for r in range(comm.size)]

            def lay_out(x, strided=strided):
                wide = np.zeros(2 * x.size if me == strided else x.size, x.dtype)
                view = wide[::2] if me == strided else wide
                view[:] = x
                return view

            for root in range(comm.size):
                x = lay_out(all_inputs[me])
                comm.broadcast(x, root)
                wrong += _compare(x, all_inputs[root], ("broadcast", dtype, strided, root))
            out = lay_out(np.zeros(60 * comm.size, dtype))
            comm.all_gather(lay_out(all_inputs[me]), out=out)
            wrong += _compare(out, np.concatenate(all_inputs), ("all_gather", dtype, strided))
            x = lay_out(all_inputs[me])
            if me == 0:
                x.flags.writeable = False
                comm.send(x, 1)
            elif me == 1:
                comm.recv(x, 0)
                wrong += _compare(x, all_inputs[0], ("recv", dtype, strided))
    return wrong


def _compare(actual, expected, label) -> list:
    return [] if np.array_equal(actual, expected) else [label]


def compare_small_methods(comm, cases) -> list:
    """The small all-reduces (count, dtype, op) for which adding in parts and adding all give different bits."""
    wrong = []
    for k, (count, dtype, op) in enumerate(cases):
        local = (make_values(comm.rank, count, dtype, seed=k) / (1 if dtype[0] in "iu" else 3)).astype(dtype)
        answers = []
        for threshold in (1 << 62, 0):
            comm._engine.full_reduce_bytes = threshold
            answers.append(comm.all_reduce(local.copy(), op).tobytes())
            comm.barrier()
        wrong += [(count, dtype, op)] if answers[0] != answers[1] else []
    return wrong


def find_wrong_hurried_calls(comm, calls, seed) -> list:
    """Calls of all lengths without barriers and with random delays of the ranks; returns the wrong ones."""
    wrong, shared, local = [], np.random.default_rng(seed), np.random.default_rng([seed, comm.rank])
    for k in range(calls):
        op, count = (
            shared.choice(["broadcast", "all_gather", "reduce", "all_to_all", "all_reduce"]),
            shared.integers(1, 60_000),
        )
        root = int(shared.integers(comm.size))
        all_inputs = [make_values(r, int(count), "float32", seed=k) for r in range(comm.size)]
        x = all_inputs[comm.rank].copy()
        if local.random() < 0.2:
            time.sleep(local.random() * 2e-3)
        if op == "broadcast":
            actual, expected = comm.broadcast(x, root), all_inputs[root]
        elif op == "all_gather":
            actual, expected = comm.all_gather(x), np.stack(all_inputs)
        elif op == "reduce":
            actual, expected = comm.reduce(x, root), np.sum(all_inputs, 0) if comm.rank == root else x.copy()
        elif op == "all_reduce":
            actual, expected = comm.all_reduce(x), np.sum(all_inputs, 0)
        else:
            actual = comm.all_to_all(np.stack([x + r for r in range(comm.size)]))
            expected = np.stack([array + comm.rank for array in all_inputs])
        wrong += _compare(actual, expected, (k, str(op), int(count), root))
    return wrong


def exchange_many_messages(comm, counts, each) -> int:
    """More messages than a mailbox holds, before the receiver reads one; returns the number of wrong ones."""
    wrong = 0
    if comm.rank == 0:
        for count in counts:
            for k in range(each):
                comm.send(np.arange(k, k + count, dtype="i4"), 1)
    elif comm.rank == 1:
        time.sleep(0.05)
        for count in counts:
            for k in range(each):
                actual = comm.recv(np.empty(count, "i4"), 0)
                wrong += not np.array_equal(actual, np.arange(k, k + count))
    return wrong


def receive_other_lengths(comm) -> list:
    """A message of another length or type raises an error and is removed: the next one is right."""
    errors = []
    for sent, expected in (
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
                comm.recv(np.empty(int(expected[:-2]), expected[-2:]), 0)
            except fabric.FabricError as error:
                errors.append((str(error), int(comm.recv(np.empty(5, "i8"), 0).sum())))
    return errors


def count_thread_turns(comm) -> int:
    """How often another thread of rank 1 runs while the rank waits half a second for a short message."""
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


def call_from_threads(comm) -> list:
    """Two threads of rank 0 send, two of rank 1 receive; returns the received values, −1 for a mixed message."""
    received: list[int] = []

    def send(first: int) -> None:
        for k in range(first, first + 300):
            comm.send(np.full(100, k, "i4"), 1)

    def receive(_: int) -> None:
        for _ in range(300):
            actual = comm.recv(np.empty(100, "i4"), 0)
            received.append(int(actual[0]) if (actual == actual[0]).all() else -1)

    threads = [threading.Thread(target=receive if comm.rank else send, args=(k * 300,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(received)


def send_around_ring(comm, counts) -> int:
    """Messages around the ring of ranks, each adds one; returns the number of wrong ones."""
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


def split_into_groups(comm) -> tuple:
    odd = comm.split(comm.rank % 2, key=-comm.rank)
    x = np.array([comm.rank], "i8")
    odd.all_reduce(x)
    comm.all_reduce(y := np.array([1], "i8"))
    alone = comm.split(None if comm.rank else 0)
    return odd.rank, odd.size, int(x[0]), int(y[0]), alone is None


def call_asynchronously(comm) -> list:
    arrays = [np.full(1 << k, comm.rank, "f4") for k in range(16)]
    handles = [comm.all_reduce(a, async_op=True) for a in arrays]
    comm.barrier()
    return [float(h.wait()[0]) for h in handles]


def get_stats(comm) -> dict:
    if comm.rank == 1:
        time.sleep(0.3)
    comm.all_reduce(np.ones(10, "f4"))
    comm.all_reduce(np.ones(10, "f4"), algorithm="ring")
    return comm.stats()


def reduce_tensors(comm) -> list:
    import torch

    sums = []
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.int64):
        t = torch.full((3, 5), comm.rank + 1, dtype=dtype)
        comm.all_reduce(t)
        u = torch.full((4, 6), comm.rank + 1, dtype=dtype).t()
        comm.all_reduce(u, "max")
        sums.append((t.float().sum().item(), u.float().sum().item()))
    flags = torch.tensor([comm.rank == 0, True])
    return [*sums, comm.all_gather(flags).tolist()]


def get_error(comm, call) -> str:
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


def make_different_calls(comm, what) -> str:
    """Rank 1 makes another call; afterwards all ranks make one more call together."""
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
    "all_reduce": lambda comm, timeout: comm.all_reduce(np.ones(100_000, "f4"), timeout=timeout),
    "broadcast": lambda comm, timeout: comm.broadcast(np.ones(1_000_000, "f4"), timeout=timeout),
    "all_gather": lambda comm, timeout: comm.all_gather(np.ones(1_000_000, "f4"), timeout=timeout),
    "reduce": lambda comm, timeout: comm.reduce(np.ones(1_000_000, "f4"), timeout=timeout),
    "recv": lambda comm, timeout: comm.recv(np.empty(4, "f4"), 1, timeout=timeout),
    "recv of much": lambda comm, timeout: comm.recv(np.empty(1_000_000, "f4"), 1, timeout=timeout),
    "send": lambda comm, timeout: [comm.send(np.ones(4, "f4"), 1, timeout=timeout) for _ in range(20)],
    "send of much": lambda comm, timeout: comm.send(np.ones(1_000_000, "f4"), 1, timeout=timeout),
}
SHORT_S, LONG_S = 1.5, 600.0  # timeouts of calls: to test the timeout, and to test that a death does not need it


def stop_rank_in_call(comm, call, how, delay_s) -> str:
    """Rank 1 gets a signal after `delay_s` seconds while the ranks repeat one call; returns the error of this rank."""
    if call in ("all_reduce in parts", "all_reduce"):
        comm._engine.full_reduce_bytes = 0
    run = CALLS.get(call, lambda comm, timeout: comm.all_reduce(np.ones(1_000, "f4"), timeout=timeout))
    one_sided = call.split()[0] in ("recv", "send")
    comm.barrier()
    if comm.rank == 1:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), how))
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        while one_sided:
            time.sleep(0.01)
    timeout = LONG_S if how == signal.SIGKILL else SHORT_S
    deadline = time.perf_counter() + 20
    try:
        while time.perf_counter() < deadline:
            run(comm, timeout)
    except fabric.FabricError as error:
        return str(error)
    return "no error"


def interrupt_recv(comm) -> str:
    """Rank 1 is interrupted while it waits for a short message."""
    if comm.rank == 0:
        time.sleep(1.0)
        return ""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        comm.recv(np.empty(4, "f4"), 0, timeout=LONG_S)
    except KeyboardInterrupt:
        try:
            comm.barrier(timeout=LONG_S)
        except fabric.FabricError as error:
            return str(error)
    return "no error"


def stop_rank(comm, how) -> tuple:
    """Rank 1 ends or stops; returns the errors of this rank in the current call and in the next one."""
    comm.barrier()
    if comm.rank == 1:
        if how == "raises":
            raise ValueError("by itself")
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])
    timeout = SHORT_S if how == "stop" else LONG_S
    try:
        comm.all_reduce(np.ones(100_000, "f4"), timeout=timeout)
    except fabric.FabricError as error:
        try:
            comm.barrier(timeout=timeout)
        except fabric.FabricError as next_error:
            return str(error), str(next_error)
    return "no error", ""


def sleep_long(comm) -> int:
    os.write(1, f"{os.getpid()}\n".encode())  # one write: the ranks share the pipe
    time.sleep(60)
    return 0


def run_launched() -> None:
    """The body of a script under a launcher: every rank prints its results."""
    with fabric.init(timeout=60) as comm:
        x = np.array([comm.rank + 1.0])
        comm.all_reduce(x)
        reg = fabric.empty(3, "f8")
        reg[:] = comm.rank
        comm.all_reduce(reg)
        print(f"rank {comm.rank} of {comm.size}: {x[0]:g} {reg[0]:g}", flush=True)
