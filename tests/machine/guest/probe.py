"""Runs inside the guest: uses `ridgeline.machine`, and also calls the kernel directly.

The probe only records what it observes, as plain data; ../test_guest.py checks it. The answers of the project and of
the direct calls are separate, so that the test detects a binding that has no effect.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import re
import socket
import struct
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.machine import Placement, placed, plan, topology

SYSCALLS = {
    "aarch64": {"get_mempolicy": 236, "set_mempolicy": 237, "move_pages": 239},
    "x86_64": {"get_mempolicy": 239, "set_mempolicy": 238, "move_pages": 279},
}
PREFERRED = 1
BUFFER = 8 << 20
PLACEMENTS = {
    "bind 0": Placement(node=0, memory="bind"),
    "bind 1": Placement(node=1, memory="bind"),
    "local 1": Placement(node=1),
    "preferred 1": Placement(node=1, memory="preferred"),
    "across": Placement(node=1, cpus=(0,), memory="bind"),  # run on node 0, allocate on node 1
    "interleave": Placement(memory="interleave"),
}
libc = ctypes.CDLL(None, use_errno=True)


def observe() -> dict[str, Any]:
    """All observations by name; a failed one is replaced by its traceback."""
    report: dict[str, Any] = {}
    looks: dict[str, Callable[[], Any]] = {
        "sysfs": read_sysfs,
        "topology": lambda: asdict(topology()),
        "before": read_placement,
        **{name: lambda where=where: observe_inside(where) for name, where in PLACEMENTS.items()},
        "after": read_placement,
        "thread": observe_thread,
        "after an error": observe_after_error,
        "over a custom policy": observe_over_custom_policy,
        "no such node": lambda: observe_refusal(Placement(node=7, memory="bind")),
        "plan": lambda: [asdict(p) | observe_inside(p) for p in plan(topology(), 2, per="node")],
        "experiment": experiment,
        "seconds": time.monotonic,
    }
    for name, look in looks.items():
        try:
            report[name] = look()
        except Exception:
            report[name] = {"traceback": traceback.format_exc()}
    return report


def experiment() -> dict[str, Any]:
    """The rows of an experiment in the guest: CPUs of each node, memory of each node."""
    import pipeline  # in the same folder, in the guest only

    return {"rows": pipeline.experiment()}


def read_sysfs() -> dict[str, Any]:
    """The NICs as the kernel lists them, after they are brought up: a link that is down has no speed."""
    for name in os.listdir("/sys/class/net"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", name.encode(), 1))  # SIOCSIFFLAGS, IFF_UP
    nics = {}
    for device in Path("/sys/class/net").glob("*/device"):
        pci = next(p for p in device.resolve().parents if (p / "numa_node").exists())
        nics[device.parent.name] = {"pci": pci.name, "numa_node": int((pci / "numa_node").read_text())}
    return {"nics": nics}


def observe_inside(where: Placement) -> dict[str, Any]:
    with placed(where) as kernel_state:
        return {"placed": asdict(kernel_state)} | read_placement() | probe_fresh_pages()


def observe_thread() -> dict[str, Any]:
    """The placement of a thread that starts while its parent is placed."""
    state: dict[str, Any] = {}
    with placed(PLACEMENTS["bind 1"]):
        thread = threading.Thread(target=lambda: state.update(read_placement() | probe_fresh_pages()))
        thread.start()
        thread.join()
    return state


def observe_after_error() -> dict[str, Any]:
    try:
        with placed(PLACEMENTS["bind 1"]):
            raise ZeroDivisionError
    except ZeroDivisionError:
        return read_placement()


def observe_over_custom_policy() -> dict[str, Any]:
    """A caller with a custom policy and CPUs must get those back, not the defaults of the system."""
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {1, 2})
    call("set_mempolicy", PREFERRED, (ctypes.c_ulong * 1)(1 << 1), 64)
    try:
        before = read_placement()
        within = observe_inside(PLACEMENTS["bind 0"])
        return {"before": before, "inside": within, "after": read_placement()}
    finally:
        os.sched_setaffinity(0, everywhere)
        call("set_mempolicy", 0, None, 0)


def observe_refusal(where: Placement) -> dict[str, Any]:
    try:
        with placed(where):
            return {"error": None} | read_placement()
    except RidgelineError as error:
        return {"error": str(error)} | read_placement()


def read_placement() -> dict[str, Any]:
    """CPUs and memory policy of this thread, from the kernel."""
    mode, nodes = ctypes.c_int(), (ctypes.c_ulong * 16)()
    call("get_mempolicy", ctypes.byref(mode), nodes, 1024, None, 0)
    return {
        "cpus": sorted(os.sched_getaffinity(0)),
        "mode": mode.value,
        "nodes": [n for n in range(64) if nodes[0] >> n & 1],
    }


def probe_fresh_pages() -> dict[str, Any]:
    """Maps and touches 8 MiB and counts its pages by node, with two kernel interfaces."""
    with mmap.mmap(-1, BUFFER, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page lies on one node, which would hide an interleave
        for start in range(0, BUFFER, mmap.PAGESIZE):
            memory[start] = 1
        count = BUFFER // mmap.PAGESIZE
        anchor = ctypes.c_char.from_buffer(memory)
        begin = ctypes.addressof(anchor)
        del anchor  # the map cannot be closed while it exists
        pages = (ctypes.c_void_p * count)(*range(begin, begin + BUFFER, mmap.PAGESIZE))
        status = (ctypes.c_int * count)()
        call("move_pages", 0, count, pages, None, status, 0)
        (line,) = re.findall(rf"^{begin:08x} .*$", Path("/proc/self/numa_maps").read_text(), re.MULTILINE)
        maps = {node: int(pages) for node, pages in re.findall(r" N(\d+)=(\d+)", line)}
    return {"pages": dict(Counter(map(str, status))), "numa_maps": maps}


def call(name: str, *arguments: Any) -> None:
    # ctypes takes a bare int for a 32-bit one; sizes and masks are longs.
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    if libc.syscall(ctypes.c_long(SYSCALLS[platform.machine()][name]), *words) < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
