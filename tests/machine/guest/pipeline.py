"""A CPU pipeline for the guest, which has neither torch nor numpy: staged bytes are copied to memory near the CPUs, a
checksum is computed, and they are copied back. The experiment runner runs it, one process per point.

The emulator has nodes but not their latencies: its times mean nothing, the nodes of memory and CPUs are correct.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probe import call

from ridgeline.lab import Work
from ridgeline.lab.experiment import (
    Point,
    PointRequest,
    PointResult,
    ProgressHooks,
    ResultsWriter,
    RunOptions,
    check_available,
    open_folder,
    run_points,
)
from ridgeline.machine import placed, topology

SIZE = 1 << 20
BATCHES = 8


def measure(request: PointRequest) -> PointResult:
    with placed(request.staging):
        staged, answers = _memory(), _memory()
    beside = _memory()
    with _address(staged) as source, _address(beside) as local, _address(answers) as target:
        samples = []
        for _ in range(BATCHES):
            start_ns = time.perf_counter_ns()
            ctypes.memmove(local, source, SIZE)
            checksum = zlib.crc32(beside)
            ctypes.memmove(target, local, SIZE)
            samples.append(float(time.perf_counter_ns() - start_ns))
        lies = {"staging": _nodes(source), "answers": _nodes(target), "beside": _nodes(local)}
    ok = checksum == zlib.crc32(bytes(range(256)) * (SIZE // 256)) and answers[:] == staged[:]
    check = {"ok": ok, "error": 0.0 if ok else 1.0, "quality": {}, "note": "checksum and bytes that came back"}
    return PointResult(samples, check=check, extras={"lies": lies, "cpus": sorted(os.sched_getaffinity(0))})


def experiment() -> list[dict[str, Any]]:
    """CPUs of every node with memory of every node: the rows, with the nodes that the kernel reports."""
    computer = topology()
    nodes = [n.id for n in computer.nodes]
    work = Work(1, "copies", bytes={"staged": SIZE, "staged_back": SIZE})
    points = [
        Point("guest", "copy", "pipeline:measure", {"model": "copy", "bytes": SIZE}, node, cpus, work=work)
        for cpus in nodes
        for node in nodes
    ]
    for point in points:
        check_available(point, computer)
    os.environ["PYTHONPATH"] = "/guest"
    folder = open_folder(Path("/tmp/outputs"), "guest", None, "")
    run_points(points, folder, computer, RunOptions(workers=2), ProgressHooks())
    rows = ResultsWriter(folder, {"name": "guest"}).write(finished=True)
    record_by_run = {one.plan["run_id"]: one for one in folder.records()}
    return [
        {
            **row,
            "lane": dict(record_by_run[row["run_id"]].contenders[0].extras),
            "seat": record_by_run[row["run_id"]].placement[0],
        }
        for row in rows
    ]


def _memory() -> mmap.mmap:
    memory = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = bytes(range(256)) * (SIZE // 256)
    return memory


@contextmanager
def _address(memory: mmap.mmap) -> Iterator[int]:
    anchor = ctypes.c_char.from_buffer(memory)
    try:
        yield ctypes.addressof(anchor)
    finally:
        del anchor


def _nodes(address: int) -> dict[str, int]:
    """Pages of a buffer by node, from the kernel page by page: adjacent buffers share a line of numa_maps."""
    count = SIZE // mmap.PAGESIZE
    pages = (ctypes.c_void_p * count)(*range(address, address + SIZE, mmap.PAGESIZE))
    status = (ctypes.c_int * count)()
    call("move_pages", 0, count, pages, None, status, 0)
    return dict(Counter(map(str, status)))
