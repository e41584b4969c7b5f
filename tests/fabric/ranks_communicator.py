"""The functions that ranks run in test_communicator.py, in a module that new processes can import."""

from __future__ import annotations

import gc
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ridgeline import fabric
from ridgeline.errors import RidgelineError
from ridgeline.fabric.failure_messages import OPS

SHORT_S, LONG_S = 0.5, 600.0


def get_error(call) -> str:
    """The type and text of the error of a call."""
    try:
        result = call()
    except RidgelineError as error:
        return f"{type(error).__name__}: {error}"
    return f"returned {result}"


def send_head_on(comm) -> str:
    """Ranks 0 and 1 send to each other more than a channel holds, and none receives."""
    return get_error(lambda: comm.send(np.full(100_000, -1.0), 1 - comm.rank, timeout=SHORT_S))


def call_in_signal_handler(comm, file) -> tuple[float, str] | float:
    """Rank 1 sends a signal to rank 0 while that waits for it in a reduce."""
    x = np.ones(3)
    if comm.rank == 1:
        while comm._engine.header(0, False)[1] != OPS.index("reduce"):
            time.sleep(0.001)
        os.kill(comm._world.pids[0], signal.SIGUSR1)
        while not file.exists():
            time.sleep(0.001)
        comm.reduce(x)
        return float(comm.all_reduce(x)[0])
    texts = []

    def handle(*_):
        texts.append(get_error(lambda: comm.all_gather(np.ones(3))))
        file.touch()

    signal.signal(signal.SIGUSR1, handle)
    comm.reduce(np.ones(3))
    return float(comm.all_reduce(x)[0]), texts[0]


def abort_in_one_rank(comm) -> str:
    if comm.rank == 0:
        return get_error(lambda: comm.all_reduce(np.ones(3), timeout=LONG_S))
    if comm.rank == 1:
        comm.abort()
        return get_error(comm.barrier)
    while not comm.has_failed:
        time.sleep(0.001)
    return get_error(comm.barrier)


def write_into_shared_elements(comm) -> tuple[list[bool], float]:
    """Whether each call is refused, and the sum of a call after them."""
    same = np.lib.stride_tricks.as_strided
    x = np.arange(8.0)
    calls = [
        lambda: comm.all_reduce(same(x, (4,), (0,))),
        lambda: comm.all_reduce(same(x, (4,), (4,))),
        lambda: comm.all_gather(x[:2], out=same(x, (2, 2), (8, 8))),
        lambda: comm.broadcast(same(x, (2, 4), (0, 8)), root=1 - comm.rank),
        lambda: comm.recv(same(x, (4,), (0,)), 1 - comm.rank),
    ]
    refused = ["elements of this array share memory" in get_error(call) for call in calls]
    for right in (np.ones((4, 6))[::-2, ::3], np.ones((2, 3, 4)).transpose(1, 2, 0)):
        comm.all_reduce(right)
        refused[0] &= bool((right == 2).all())
    return refused, float(comm.all_reduce(np.ones(3))[0])


def make_every_call(comm) -> list[str]:
    """The errors of all calls, each with arguments that are right."""
    x, other = np.ones(4 * comm.size), (comm.rank + 1) % comm.size
    ring = fabric.schedule("all_reduce", "ring", ranks=comm.size)
    calls = [
        lambda: comm.all_reduce(x),
        lambda: comm.all_reduce(np.ones(100_000)),
        lambda: comm.all_reduce(x, algorithm="ring"),
        lambda: comm.all_reduce(x.reshape(-1, 2)[:, 0]),
        lambda: comm.run(ring, x),
        lambda: comm.reduce_scatter(x),
        lambda: comm.reduce(x),
        lambda: comm.all_gather(x),
        lambda: comm.all_to_all(x),
        lambda: comm.broadcast(x),
        comm.barrier,
        lambda: comm.send(x, other),
        lambda: comm.recv(x, other),
        lambda: comm.split(0),
        lambda: comm.all_reduce(x, async_op=True).wait(),
        lambda: comm.all_reduce(x),
    ]
    return [get_error(call) for call in calls]


def fail_and_go_on(comm) -> dict:
    """Four ranks: the communicator of two of them fails, then the one of all."""
    half = comm.split(comm.rank // 2)
    errors = {"half": [send_head_on(half), *make_every_call(half)] if comm.rank < 2 else []}
    errors["other half"] = float(half.all_reduce(np.ones(3))[0]) if comm.rank >= 2 else 2.0
    errors["sum"] = float(comm.all_reduce(np.ones(3))[0])
    first = send_head_on(comm) if comm.rank < 2 else get_error(lambda: comm.barrier(timeout=LONG_S))
    errors["all"] = [first, *make_every_call(comm)]
    if comm.rank >= 2:
        errors["other half"] = float(half.all_reduce(np.ones(3))[0])
    return errors


def wait_in_a_chain(comm) -> str:
    """Rank 2 waits for rank 0, which waits for rank 1, which makes no call until the others have failed."""
    if comm.rank == 0:
        return get_error(lambda: comm.recv(np.empty(4), 1, timeout=LONG_S))
    if comm.rank == 2:
        time.sleep(0.2)
        return get_error(lambda: comm.recv(np.empty(4), 0, timeout=SHORT_S))
    for _ in range(2_000):
        time.sleep(0.01)
        if comm._engine.first_failure is not None:
            break
    return get_error(comm.barrier)


def find_wrong_overlaps(comm, cases) -> list:
    """The calls whose `out` overlaps the array in memory and whose result differs from NumPy."""
    wrong, n, me = [], comm.size, comm.rank
    for name, count, kind, algorithm, seed in cases:
        sent = count * n if name in ("reduce_scatter", "all_to_all") else count
        received = count * n if name in ("all_gather", "all_to_all") else count
        inputs = [np.random.default_rng([seed, r]).integers(0, 100, sent).astype("f4") for r in range(n)]
        local = np.random.default_rng([seed, me, 1])
        length = 2 * (sent + received)
        memory = fabric.empty(length, "f4") if kind == "registered" else np.empty(length, "f4")
        start = int(local.integers(0, received + 1))
        places = [
            0,
            start,
            received,
            max(0, start - me * count),
            min(sent, start + me * count),
            int(local.integers(0, sent + 1)),
        ]
        out_start = int(local.choice(places))
        x, out = memory[start : start + sent], memory[out_start : out_start + received]
        x[:] = inputs[me]
        root = seed % n
        options = {"out": out, **({} if name == "all_to_all" else {"algorithm": algorithm})}
        total = np.sum(inputs, 0)
        expected = {
            "all_reduce": lambda total=total: total,
            "reduce": lambda total=total: total,
            "reduce_scatter": lambda total=total: total.reshape(n, -1)[me],
            "all_gather": lambda inputs=inputs: np.concatenate(inputs),
            "all_to_all": lambda inputs=inputs: np.concatenate([i.reshape(n, -1)[me] for i in inputs]),
        }[name]()
        call = getattr(comm, name)
        call(x, root, **options) if name == "reduce" else call(x, **options)
        if (name != "reduce" or me == root) and not np.array_equal(out, expected):
            wrong.append((name, count, kind, algorithm, seed, start, out_start))
    return wrong


def mismatch_in_place(comm) -> tuple:
    """A call that another rank does not make leaves an array as it is that would be shifted in place."""
    unchanged = []
    for algorithm in (None, "ring"):
        x = np.arange(50_000.0) + comm.rank
        length = 40_000 if comm.rank else 40_001
        text = get_error(lambda x=x, m=length, a=algorithm: comm.all_reduce(x[:m], out=x[5 : 5 + m], algorithm=a))
        unchanged.append(np.array_equal(x, np.arange(50_000.0) + comm.rank) and "same call" in text)
    return all(unchanged), float(comm.all_reduce(np.ones(2))[0])


def use_in_forked_child(comm) -> dict:
    """A child tries every call, frees and asks for memory; returns its errors and what the rank gets after that."""
    shared = fabric.empty(5_000, "f8")
    shared[:] = comm.rank + 1
    comm.all_reduce(np.ones(2), async_op=True).wait()  # the thread of the queue does not exist in the child
    with ThreadPoolExecutor(1) as pool:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                errors = [*make_every_call(comm), get_error(lambda: comm.arena.empty(3, "f4"))]
                del shared
                gc.collect()
                os.write(writer, "\n".join(errors).encode())
            finally:
                os._exit(0)
        os.close(writer)
        text = pool.submit(os.read, reader, 1 << 16).result(60).decode()
        os.close(reader)
        os.waitpid(child, 0)
    total = comm.all_reduce(shared.copy())
    return {"child": text.split("\n"), "shared": float(shared.min()), "sum": float(total[0])}


def exchange_other_types(comm) -> list:
    """Calls with types that have no reduction and the same number of bytes but differ in rank 1."""
    odd = comm.rank == 1
    pair = np.dtype([("a", "f4"), ("b", "f4")]), np.dtype([("a", "i4"), ("c", "f4")])
    errors = []
    for first, second in (("c8", "M8[ns]"), ("u2", "?"), (">i4", "u4"), ("M8[s]", "M8[ns]"), pair):
        dtype = np.dtype(second if odd else first)
        x = np.zeros(64, "u1").view(dtype)
        y = np.zeros(64 * comm.size, "u1").view(dtype)
        calls = [lambda x=x: comm.all_gather(x), lambda x=x: comm.broadcast(x), lambda y=y: comm.all_to_all(y)]
        calls += [lambda x=x: comm.broadcast(x, algorithm="chain"), lambda x=x: comm.all_gather(x, algorithm="ring")]
        errors += [get_error(call) for call in calls]
        if comm.rank == 0:
            comm.send(x, 1)
        elif odd:
            errors.append(get_error(lambda x=x: comm.recv(x, 0)))
    return [*errors, float(comm.all_reduce(np.ones(2))[0])]


def refuse_in_one_rank(comm) -> list:
    """Wrong arguments in rank 1 only; returns the errors and the sum after each."""
    odd = comm.rank == 1
    x, even = np.ones(6, "f4"), np.ones(2 * comm.size)
    forged = fabric.schedule("all_reduce", "ring", ranks=comm.size).with_programs([[]] * comm.size)
    calls = {
        "list": lambda: comm.all_reduce([1, 2] if odd else x),
        "gather of a list": lambda: comm.all_gather([1, 2] if odd else x),
        "scatter of a list": lambda: comm.reduce_scatter([1, 2] if odd else even),
        "complex": lambda: comm.all_reduce(np.ones(6, "c8") if odd else x),
        "parts": lambda: comm.all_to_all(even[:-1] if odd else even),
        "algorithm": lambda: comm.all_reduce(x, algorithm="rign" if odd else "ring"),
        "root": lambda: comm.broadcast(x, 9 if odd else 0),
        "type of the root": lambda: comm.broadcast(x, "0" if odd else 0),
        "type of the reduction": lambda: comm.all_reduce(x, ["sum"] if odd else "sum"),
        "no timeout": lambda: comm.all_reduce(x, timeout=0 if odd else None),
        "negative timeout": lambda: comm.all_gather(x, timeout=-1 if odd else None),
        "timeout that is no number": lambda: comm.barrier(timeout=float("nan") if odd else None),
        "type of the timeout": lambda: comm.broadcast(x, timeout="5" if odd else None),
        "color": lambda: comm.split(-1 if odd else 0),
        "type of the key": lambda: comm.split(0, "first" if odd else 0),
        "out": lambda: comm.all_gather(x, out=np.empty(1, "f4") if odd else None),
        "proof": lambda: comm.all_reduce(x, algorithm=forged if odd else "ring"),
        "asynchronous": lambda: comm.all_reduce([1] if odd else x, async_op=True).wait(),
        "after that": lambda: comm.all_reduce([1] if odd else x),
    }
    rows = []
    for name, call in calls.items():
        rows.append((name, get_error(call), float(comm.all_reduce(np.ones(2))[0])))
    for _ in range(3):
        get_error(lambda: comm.all_reduce([1]))  # in all ranks, one after the other
    rows.append(("all", "", float(comm.all_reduce(np.ones(2))[0])))
    return rows


def run_schedules(comm, plans, counts) -> list:
    """The schedules whose results differ from those of the collective without a schedule; and if algorithm= does."""
    wrong, n = [], comm.size
    for number, text in enumerate(plans):
        plan = fabric.Schedule.from_json(text)
        name = plan.op
        for count in counts:
            for op in ("sum", "avg") if "reduce" in name else ("sum",):
                x = np.random.default_rng([number, comm.rank]).integers(
                    0, 99, count * (n if name == "reduce_scatter" else 1)
                )
                x = x.astype("f8")
                roots = [plan.root] if name in ("broadcast", "reduce") else []
                ops = [op] if "reduce" in name else []
                expected = getattr(comm, name)(x.copy(), *roots, *ops)
                results = [comm.run(plan, x.copy(), op), comm.run(plan, x.copy(), op, async_op=True).wait()]
                results.append(getattr(comm, name)(x.copy(), *roots, *ops, algorithm=plan))
                wrong += [(name, plan.algorithm, count, op) for r in results if not np.array_equal(r, expected)]
    return [
        *wrong,
        *([] if any("schedule" in k for k in comm.stats()["ops"]["all_reduce"]["algorithms"]) else ["stats"]),
    ]


def run_refused_schedules(comm) -> dict:
    """The errors of schedules that must not run, the same in all ranks; then a sum."""
    n, x = comm.size, np.ones(8)
    ring = fabric.schedule("all_reduce", "ring", ranks=n)
    forged = ring.with_programs([p[:-1] for p in ring.programs])
    wide = fabric.schedule("broadcast", "chain", ranks=n, chunks=1)
    steps = [(fabric.Step("send", 1, 0, 9_000),), (fabric.Step("recv", 0, 0, 9_000),)]
    wide = fabric.Schedule("broadcast", "wide", n, 9_000, 1, 0, (*steps, *[()] * (n - 2)))
    calls = {
        "forged": lambda: comm.run(forged, x),
        "forged algorithm": lambda: comm.all_reduce(x, algorithm=forged),
        "ranks": lambda: comm.run(fabric.schedule("all_reduce", "ring", ranks=n + 1), x),
        "text": lambda: comm.run(ring.to_json(), x),
        "other collective": lambda: comm.all_gather(x, algorithm=ring),
        "other root": lambda: comm.broadcast(x, 1, algorithm=fabric.schedule("broadcast", "tree", ranks=n)),
        "out of a broadcast": lambda: comm.run(fabric.schedule("broadcast", "tree", ranks=n), x, out=x),
        "wide": lambda: comm.run(wide, x),
        "other schedules": lambda: comm.run(fabric.schedule("all_reduce", "tree" if comm.rank else "ring", ranks=n), x),
        "only one": lambda: comm.all_reduce(x, algorithm=ring if comm.rank else None),
    }
    errors = {name: get_error(call) for name, call in calls.items()}
    return {**errors, "unchanged": x.tolist() == [1.0] * 8, "sum": float(comm.all_reduce(np.ones(2))[0])}


def miss_random_deadlines(comm, seed) -> list:
    """Random calls on 20 communicators with random delays and short deadlines; returns what contradicts the rules.

    A call returns the right values or raises an error. After the first error every call on the communicator raises.
    """
    wrong, n, me = [], comm.size, comm.rank
    for trial in range(20):
        group = comm.split(0)
        shared, local = np.random.default_rng([seed, trial]), np.random.default_rng([seed, trial, me])
        failed = ""
        for number in range(60):
            name = str(
                shared.choice(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "message"])
            )
            count, registered, root = (
                int(shared.choice([3, 3_000, 60_000])),
                shared.random() < 0.4,
                int(shared.integers(n)),
            )
            algorithm = "ring" if name in ("all_reduce", "all_gather") and shared.random() < 0.3 else None
            size = count * n if name in ("reduce_scatter", "all_to_all") else count
            inputs = [np.random.default_rng([trial, number, r]).integers(0, 100, size).astype("f4") for r in range(n)]
            x = fabric.empty(size, "f4") if registered else np.empty(size, "f4")
            x[:] = inputs[me]
            if local.random() < 0.1:
                time.sleep(local.random() * 0.04)
            timeout = float(local.choice([0.01, 0.02, 5.0]))
            try:
                if name == "message":
                    ring = [(me + 1) % n, (me - 1) % n]
                    group.send(x, ring[0], timeout=timeout)
                    result, expected = group.recv(x.copy(), ring[1], timeout=timeout), inputs[ring[1]]
                elif name == "broadcast":
                    result, expected = group.broadcast(x, root, timeout=timeout), inputs[root]
                elif name == "all_reduce":
                    result = group.all_reduce(x, algorithm=algorithm, timeout=timeout)
                    expected = np.sum(inputs, 0)
                elif name == "all_gather":
                    result = group.all_gather(x, algorithm=algorithm, timeout=timeout)
                    expected = np.stack(inputs)
                elif name == "reduce_scatter":
                    result, expected = group.reduce_scatter(x, timeout=timeout), np.sum(inputs, 0).reshape(n, -1)[me]
                else:
                    result = group.all_to_all(x, out=x, timeout=timeout)
                    expected = np.concatenate([array.reshape(n, -1)[me] for array in inputs])
            except fabric.FabricError as error:
                failed = failed or str(error)
            else:
                if failed or not np.array_equal(result, expected):
                    wrong.append((trial, number, name, count, registered, failed))
        if not failed:
            continue
        first = get_error(lambda group=group: group.barrier(timeout=LONG_S))
        wrong += [] if "has failed" in first else [(trial, "barrier", first)]
    return wrong
