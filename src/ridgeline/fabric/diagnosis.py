"""`doctor`: what on this machine slows ranks down or stops them, and the command that cures it."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline.machine import topology

MEMLOCK, BUFFERS, SHM = 64 << 20, 16 << 20, 1 << 30
MARK = 0x5EED
SHM_AT = "/dev/shm"  # noqa: S108  looked at, not written to


@dataclass(frozen=True)
class Finding:
    what: str
    ok: bool
    found: str
    cure: str = ""  # empty where all is well, or nothing can be done


def doctor(root: str = "/") -> list[Finding]:
    """All findings; `root` lets a recorded tree be read."""
    base = Path(root)
    return [*_cpus(), *_memory(base), *_rights(base), *_network(base), *_clocks(base)]


def _cpus() -> Iterator[Finding]:
    here = topology()
    usable, quota = len(here.usable_cpus), here.limits.cpu_quota
    yield Finding(
        "CPUs",
        usable > 1,
        f"{usable} usable",
        "" if usable > 1 else "taskset or the container's --cpuset-cpus: allow 2 or more",
    )
    short = quota is not None and quota < usable
    told = f"quota of {quota:g} for {usable} CPUs" if quota is not None else "no quota"
    yield Finding(
        "CPU quota",
        not short,
        told,
        f"docker run --cpus={usable} (spinning ranks are throttled below that)" if short else "",
    )


def _memory(base: Path) -> Iterator[Finding]:
    try:
        fd = os.memfd_create("ridgeline-doctor")
        os.close(fd)
        yield Finding("memfd", True, "available: ranks need no /dev/shm")
    except OSError as error:
        yield Finding(
            "memfd", False, os.strerror(error.errno or 0), "allow memfd_create in the container's seccomp profile"
        )
    try:
        room = os.statvfs(base / "dev/shm")
        size = room.f_frsize * room.f_blocks
        ok = size >= SHM
        yield Finding(
            SHM_AT,
            ok,
            f"{size >> 20} MiB (others, such as NCCL and MPI, use it)",
            "" if ok else "docker run --shm-size=1g",
        )
    except OSError:
        yield Finding(SHM_AT, False, "missing (others, such as NCCL and MPI, use it)", "mount -t tmpfs tmpfs /dev/shm")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    ok = limit == resource.RLIM_INFINITY or limit >= MEMLOCK
    told = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 10} KiB"
    yield Finding("locked memory", ok, told, "" if ok else "ulimit -l unlimited (RDMA and pinned buffers need it)")


def _rights(base: Path) -> Iterator[Finding]:
    allowed = _may_read_a_child()
    scope = _read(base / "proc/sys/kernel/yama/ptrace_scope")
    cure = "sysctl kernel.yama.ptrace_scope=0" if scope not in ("", "0") else "docker run --cap-add=SYS_PTRACE"
    yield Finding(
        "CMA (process_vm_readv)",
        allowed,
        "allowed" if allowed else "refused: large arrays are copied twice",
        "" if allowed else cure,
    )


def _may_read_a_child() -> bool:
    """Read a word of a child's memory, as ranks do with each other's."""

    class Span(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    copy = ctypes.c_uint64(0)
    code = f"import ctypes, sys; w = ctypes.c_uint64({MARK}); print(ctypes.addressof(w), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None  # noqa: S101  pipes, both
        assert child.stdout is not None  # noqa: S101
        address = int(child.stdout.readline())
        libc = ctypes.CDLL(None)
        libc.process_vm_readv.restype = ctypes.c_ssize_t
        here, there = Span(ctypes.addressof(copy), 8), Span(address, 8)
        got = libc.process_vm_readv(child.pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        child.stdin.close()
    return bool(got == 8 and copy.value == MARK)


def _network(base: Path) -> Iterator[Finding]:
    for name in ("rmem_max", "wmem_max"):
        told = _read(base / f"proc/sys/net/core/{name}")
        if told:
            ok = int(told) >= BUFFERS
            yield Finding(
                f"net.core.{name}", ok, f"{int(told) >> 10} KiB", "" if ok else f"sysctl -w net.core.{name}={BUFFERS}"
            )
    nics = [n for n in topology(root=str(base)).nics if n.name != "lo"]
    told = ", ".join(f"{n.name} ({n.speed or 'speed unknown'})" for n in nics)
    yield Finding("interfaces", True, told or "none but loopback: ranks of this host need none")


def _clocks(base: Path) -> Iterator[Finding]:
    told = _read(base / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if told:
        ok = told in ("performance", "schedutil")
        yield Finding("CPU governor", ok, told, "" if ok else "cpupower frequency-set -g performance")
    else:
        yield Finding("CPU governor", True, "not told here (a virtual machine)")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
