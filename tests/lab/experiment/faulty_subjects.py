"""Subjects for tests of the runner: one that works, others that hang, crash, raise, answer wrong or fork.

Points name them as "faulty_subjects:NAME"; they need only the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from ridgeline.lab.experiment import PointRequest, PointResult
from ridgeline.machine import placed
from ridgeline.machine.numa import probe_fresh_pages


def good(request: PointRequest) -> PointResult:
    print("measuring", request.params["n"])
    with placed(request.staging):
        pages = probe_fresh_pages(4)
    return PointResult(
        samples_ns=[1e6 * request.params["n"]] * 8,
        check={"ok": True, "error": 0.0, "quality": {}, "note": ""},
        extras={
            "alone_ns": {"h2d": 4e5, "compute": 9e5, "d2h": 1e5},
            "timeline": {"h2d": [[0.0, 0.4]], "compute": [[0.4, 1.3]], "d2h": [[1.3, 1.4]]},
            "pages": pages,
            "process": {"cpus": sorted(os.sched_getaffinity(0)), "pid": os.getpid()},
        },
        files={"trace.json": {"traceEvents": []}},
    )


def crosses_at_five_layers(request: PointRequest) -> PointResult:
    """Copies take 1 ms, arithmetic 0.1 ms and 0.18 ms for every layer: both are equal at 5 layers."""
    n = request.params["n"]
    compute = (0.1 + 0.18 * n) * 1e6 * (1.01 if n % 3 else 0.99) if n else 1e4
    alone = {"h2d": 1e6, "compute": compute, "d2h": 1e4}
    return PointResult([max(alone.values())] * 8, check={"ok": True, "error": 0.0, "quality": {}, "note": ""},
                   extras={"alone_ns": alone})  # fmt: skip


def wrong(request: PointRequest) -> PointResult:
    return PointResult([1e6] * 8, check={"ok": False, "error": 0.5, "quality": {}, "note": "far off"})


def returns_nan(request: PointRequest) -> PointResult:
    return PointResult([1e6, float("nan"), 0.0])


def raises(request: PointRequest) -> PointResult:
    raise ValueError("no\nmore")


def kills_itself(request: PointRequest) -> PointResult:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def exits(request: PointRequest) -> PointResult:
    print("last words", file=sys.stderr, flush=True)
    os._exit(7)


def hangs(request: PointRequest) -> PointResult:
    """Ignore every signal except SIGKILL, with a child that keeps the pipes open."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _append_pid()
    if os.fork() == 0:
        _append_pid()
    time.sleep(3600)
    raise AssertionError


def exits_with_a_sleeping_child(request: PointRequest) -> PointResult:
    """Exit at once, while the child would keep the pipe of the answer open for an hour."""
    if os.fork() == 0:
        _append_pid()
        time.sleep(3600)
    os._exit(9)


def second_try(request: PointRequest) -> PointResult:
    """Fail until the file "fixed" exists."""
    if not Path("fixed").exists():
        raise RuntimeError("not yet")
    return good(request)


def slow(request: PointRequest) -> PointResult:
    """The first takes 0.3 s, the others SLOW_S seconds."""
    _append_pid()
    time.sleep(float(os.environ.get("SLOW_S", "0.3")) if request.params["n"] > 1 else 0.3)
    return good(request)


def _append_pid() -> None:
    with Path("pids").open("a") as out:
        out.write(f"{os.getpid()}\n")
