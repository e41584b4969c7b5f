"""Subjects for the runner's tests: one that measures a little, others that hang, crash, raise, answer wrong or fork.

Named by points as "experiment_faults:NAME"; nothing here needs more than the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from ridgeline.lab.experiment import Order, Outcome
from ridgeline.machine import placed
from ridgeline.machine.numa import fresh_pages_nodes


def good(order: Order) -> Outcome:
    print("measuring", order.params["n"])
    with placed(order.staging):
        pages = fresh_pages_nodes(4)
    return Outcome(
        samples_ns=[1e6 * order.params["n"]] * 8,
        check={"ok": True, "error": 0.0, "quality": {}, "note": ""},
        extras={
            "alone_ns": {"h2d": 4e5, "compute": 9e5, "d2h": 1e5},
            "timeline": {"h2d": [[0.0, 0.4]], "compute": [[0.4, 1.3]], "d2h": [[1.3, 1.4]]},
            "pages": pages,
            "seen": {"cpus": sorted(os.sched_getaffinity(0)), "pid": os.getpid()},
        },
        files={"trace.json": {"traceEvents": []}},
    )


def layered(order: Order) -> Outcome:
    """Copies of a millisecond; 0.1 ms of arithmetic, and 0.18 for every layer: both take as long at 5."""
    n = order.params["n"]
    compute = (0.1 + 0.18 * n) * 1e6 * (1.01 if n % 3 else 0.99) if n else 1e4
    alone = {"h2d": 1e6, "compute": compute, "d2h": 1e4}
    return Outcome([max(alone.values())] * 8, check={"ok": True, "error": 0.0, "quality": {}, "note": ""},
                   extras={"alone_ns": alone})  # fmt: skip


def wrong(order: Order) -> Outcome:
    return Outcome([1e6] * 8, check={"ok": False, "error": 0.5, "quality": {}, "note": "far off"})


def timeless(order: Order) -> Outcome:
    return Outcome([1e6, float("nan"), 0.0])


def raises(order: Order) -> Outcome:
    raise ValueError("no\nmore")


def killed(order: Order) -> Outcome:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def leaves(order: Order) -> Outcome:
    print("last words", file=sys.stderr, flush=True)
    os._exit(7)


def hangs(order: Order) -> Outcome:
    """Deaf to everything but SIGKILL, with a child that holds its pipes."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _note_pid()
    if os.fork() == 0:
        _note_pid()
    time.sleep(3600)
    raise AssertionError


def parent_of_a_sleeper(order: Order) -> Outcome:
    """Gone at once, while its child would keep the answer's pipe open for an hour."""
    if os.fork() == 0:
        _note_pid()
        time.sleep(3600)
    os._exit(9)


def second_try(order: Order) -> Outcome:
    """Fails until the file is there."""
    if not Path("mended").exists():
        raise RuntimeError("not yet")
    return good(order)


def slow(order: Order) -> Outcome:
    """The first is soon done, the others take as long as they are told."""
    _note_pid()
    time.sleep(float(os.environ.get("SLOW_S", "0.3")) if order.params["n"] > 1 else 0.3)
    return good(order)


def _note_pid() -> None:
    with Path("pids").open("a") as out:
        out.write(f"{os.getpid()}\n")
