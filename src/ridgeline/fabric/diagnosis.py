"""`doctor`: find what slows ranks down or stops them on this machine, and the command that repairs it."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline.fabric.hosts import list_addresses
from ridgeline.machine import topology
from ridgeline.native import find_ucx_problem, ucx_version

MEMLOCK, BUFFERS, SHM = 64 << 20, 16 << 20, 1 << 30
MARK = 0x5EED
SHM_AT = "/dev/shm"  # noqa: S108  read, not written


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    ok: bool
    value: str
    cure: str = ""  # empty if all is well, or nothing can be done


def doctor(root: str = "/") -> list[Finding]:
    """Return the results of all checks; `root` is the folder of a recorded tree (default: this machine)."""
    base = Path(root)
    return [*_check_cpus(), *_check_memory(base), *_check_rights(base), *_check_network(base), *_check_clocks(base)]


def _check_cpus() -> Iterator[Finding]:
    machine = topology()
    usable, quota = len(machine.usable_cpus), machine.limits.cpu_quota
    yield Finding(
        "CPUs",
        usable > 1,
        f"{usable} usable",
        "" if usable > 1 else "taskset or the container's --cpuset-cpus: allow 2 or more",
    )
    short = quota is not None and quota < usable
    value = f"quota of {quota:g} for {usable} CPUs" if quota is not None else "no quota"
    yield Finding(
        "CPU quota",
        not short,
        value,
        f"docker run --cpus={usable} (spinning ranks are throttled below that)" if short else "",
    )


def _check_memory(base: Path) -> Iterator[Finding]:
    try:
        fd = os.memfd_create("ridgeline-doctor")
        os.close(fd)
        yield Finding("memfd", True, "available: ranks need no /dev/shm")
    except OSError as error:
        yield Finding(
            "memfd", False, os.strerror(error.errno or 0), "allow memfd_create in the container's seccomp profile"
        )
    try:
        file_system = os.statvfs(base / "dev/shm")
        size = file_system.f_frsize * file_system.f_blocks
        ok = size >= SHM
        yield Finding(
            SHM_AT,
            ok,
            f"{size >> 20} MiB (NCCL and MPI use it)",
            "" if ok else "docker run --shm-size=1g",
        )
    except OSError:
        yield Finding(SHM_AT, False, "missing (NCCL and MPI use it)", "mount -t tmpfs tmpfs /dev/shm")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    ok = limit == resource.RLIM_INFINITY or limit >= MEMLOCK
    value = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 10} KiB"
    yield Finding("locked memory", ok, value, "" if ok else "ulimit -l unlimited (RDMA and pinned buffers need it)")


def _check_rights(base: Path) -> Iterator[Finding]:
    allowed = _may_read_child()
    scope = _read(base / "proc/sys/kernel/yama/ptrace_scope")
    cure = "sysctl kernel.yama.ptrace_scope=0" if scope not in ("", "0") else "docker run --cap-add=SYS_PTRACE"
    yield Finding(
        "CMA (process_vm_readv)",
        allowed,
        "allowed" if allowed else "refused: large arrays are copied twice",
        "" if allowed else cure,
    )


def _may_read_child() -> bool:
    """Whether this process may read the memory of a child, as ranks read the memory of each other."""

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
        local, remote = Span(ctypes.addressof(copy), 8), Span(address, 8)
        count = libc.process_vm_readv(child.pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        child.stdin.close()
    return bool(count == 8 and copy.value == MARK)


def _check_network(base: Path) -> Iterator[Finding]:
    for name in ("rmem_max", "wmem_max"):
        value = _read(base / f"proc/sys/net/core/{name}")
        if value:
            ok = int(value) >= BUFFERS
            yield Finding(
                f"net.core.{name}", ok, f"{int(value) >> 10} KiB", "" if ok else f"sysctl -w net.core.{name}={BUFFERS}"
            )
    nics = [n for n in topology(root=str(base)).nics if n.name != "lo"]
    names = ", ".join(f"{n.name} ({n.speed or 'speed unknown'})" for n in nics)
    yield Finding("interfaces", True, names or "none but loopback: ranks of this host need none")
    yield Finding("transport shm", True, "for ranks of one host")
    if base == Path("/"):
        addresses = ", ".join(f"{name} {ip}" for name, ip in list_addresses() if name != "lo" and "%" not in ip)
        yield Finding("transport tcp", True, f"over {addresses}" if addresses else "over loopback only")
        yield _check_datagrams()
    yield _check_ucx()


def _check_datagrams() -> Finding:
    """UDP, and whether the kernel cuts and joins its packets (GSO, GRO)."""
    missing = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        for name, option, value in (("GSO", 103, 1200), ("GRO", 104, 1)):
            try:
                link.setsockopt(socket.IPPROTO_UDP, option, value)
            except OSError:
                missing.append(name)
    return Finding("transport udp", True, f"without {' and '.join(missing)}: slow" if missing else "with GSO and GRO")


def _check_ucx() -> Finding:
    """UCX is optional: without it the check is fine, and says what would install it."""
    problem = find_ucx_problem()
    return Finding("transport ucx", True, f"not here: {problem}" if problem else f"UCX {ucx_version()}, if asked for")


def _check_clocks(base: Path) -> Iterator[Finding]:
    governor = _read(base / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor:
        ok = governor in ("performance", "schedutil")
        yield Finding("CPU governor", ok, governor, "" if ok else "cpupower frequency-set -g performance")
    else:
        yield Finding("CPU governor", True, "unknown (a virtual machine)")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
