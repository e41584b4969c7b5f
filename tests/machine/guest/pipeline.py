"""A CPU pipeline for the guest, where there is neither torch nor numpy: staged bytes are copied beside the CPUs, a
checksum is computed of them there, and they are copied back. Run by the experiment runner, a process per point.

The emulator knows nodes but not their latencies, so its times say nothing; where memory and CPUs are, it tells truly.
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
from ridgeline.lab.experiment import Manner, Order, Outcome, Point, Results, Watcher, open_folder, refuse_absent, run
from ridgeline.machine import placed, topology

SIZE = 1 << 20
BATCHES = 8


def measure(order: Order) -> Outcome:
    with placed(order.staging):
        there, back = _memory(), _memory()
    beside = _memory()
    with _address(there) as source, _address(beside) as own, _address(back) as target:
        samples = []
        for _ in range(BATCHES):
            began = time.perf_counter_ns()
            ctypes.memmove(own, source, SIZE)
            found = zlib.crc32(beside)
            ctypes.memmove(target, own, SIZE)
            samples.append(float(time.perf_counter_ns() - began))
        lies = {"staging": _nodes(source), "answers": _nodes(target), "beside": _nodes(own)}
    ok = found == zlib.crc32(bytes(range(256)) * (SIZE // 256)) and back[:] == there[:]
    check = {"ok": ok, "error": 0.0 if ok else 1.0, "quality": {}, "note": "checksum and bytes that came back"}
    return Outcome(samples, check=check, extras={"lies": lies, "cpus": sorted(os.sched_getaffinity(0))})


def experiment() -> list[dict[str, Any]]:
    """CPUs of every node with memory of every node, as rows with what the kernel said beside them."""
    here = topology()
    nodes = [n.id for n in here.nodes]
    work = Work(1, "copies", bytes={"staged": SIZE, "staged_back": SIZE})
    points = [
        Point("guest", "copy", "pipeline:measure", {"model": "copy", "bytes": SIZE}, node, cpus, work=work)
        for cpus in nodes
        for node in nodes
    ]
    for point in points:
        refuse_absent(point, here)
    os.environ["PYTHONPATH"] = "/guest"
    folder = open_folder(Path("/tmp/outputs"), "guest", None, "")
    run(points, folder, here, Manner(workers=2), Watcher())
    rows = Results(folder, {"name": "guest"}).write(finished=True)
    seen = {one.plan["run_id"]: one for one in folder.records()}
    return [
        {**row, "lane": dict(seen[row["run_id"]].contenders[0].extras), "seat": seen[row["run_id"]].placement[0]}
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
    """Pages of a buffer by node, asked of the kernel page by page: neighbouring buffers share a line of numa_maps."""
    count = SIZE // mmap.PAGESIZE
    pages = (ctypes.c_void_p * count)(*range(address, address + SIZE, mmap.PAGESIZE))
    status = (ctypes.c_int * count)()
    call("move_pages", 0, count, pages, None, status, 0)
    return dict(Counter(map(str, status)))
