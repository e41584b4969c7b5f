"""Run commands one at a time, measure each, and leave nothing of them behind. race/commands.py starts this file.

    python -I -S command_runner.py          orders on stdin, answers on stdout, one JSON object per line

It imports the standard library only and stays small, because the kernel counts the memory of the process that starts a
command as part of the command's peak (about 10 MB here; the lab itself has more than 100 MB).

Containment needs no root: the command has its own session; this process is the subreaper of all its descendants, so a
daemon that leaves the session becomes a child of this process and is killed too; RLIMIT_DATA and a check every 100 ms
limit memory and processes; a cgroup (pids.max, cgroup.kill) holds them where one is delegated. RLIMIT_NPROC does not
hold root: without a cgroup, a fork bomb of root starts hundreds of processes before the check sees it.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import os
import platform
import resource
import select
import signal
import struct
import sys
import time
from contextlib import suppress
from typing import Any

TICK_S = 0.1  # between two checks of memory and processes
MAX_PROCESSES = 512
STDERR_BYTES = 4096
CHUNK = 1 << 20
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
PERF_SYSCALL = {"x86_64": 298, "aarch64": 241}
# disabled, inherit, exclude_kernel, exclude_hv, enable_on_exec
PERF_FLAGS = 1 | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 12
INSTRUCTIONS = 1
PAGE = os.sysconf("SC_PAGE_SIZE")
libc = ctypes.CDLL(None, use_errno=True)


class ParentGone(Exception):
    """The lab closed its pipe."""


def run_command(order: dict[str, Any]) -> dict[str, Any]:
    """Run `argv` once and return what was measured; `failure` says why it ended early or could not start."""
    (out, out_w), (err, err_w), (gate_r, gate), (fault, fault_w) = (os.pipe() for _ in range(4))
    cgroups = create_cgroups(order.get("processes", MAX_PROCESSES))
    pid = os.fork()
    if pid == 0:
        _start(order, (out_w, err_w, gate_r, fault_w), (out, err, gate, fault), cgroups)
    for descriptor in (out_w, err_w, gate_r, fault_w):
        os.close(descriptor)
    counter = open_counter(pid)
    watch = os.pidfd_open(pid)
    try:
        return _watch(order, pid, (out, err, gate, fault), watch, counter)
    finally:
        kill_descendants(cgroups)
        for descriptor in (out, err, gate, fault, watch, *([counter] if counter is not None else [])):
            with suppress(OSError):
                os.close(descriptor)
        for cgroup in cgroups:
            _remove_cgroup(cgroup)


def _start(order: dict[str, Any], pipes: tuple[int, ...], others: tuple[int, ...], cgroups: list[str]) -> None:
    """In the child: set the limits, wait for the gate, become the command."""
    out, err, gate, fault = pipes
    try:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for descriptor in others:
            os.close(descriptor)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if order.get("memory"):
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_DATA, (order["memory"], order["memory"]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if order.get("tasks"):  # does not hold root
            limit = order["tasks"] + order.get("processes", MAX_PROCESSES)
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NPROC, (limit, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
        for cgroup in cgroups:
            with suppress(OSError), open(os.path.join(cgroup, "cgroup.procs"), "w") as file:
                file.write("0")
        if order.get("cwd"):
            os.chdir(order["cwd"])
        for number in (signal.SIGPIPE, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.read(gate, 1)
        os.execvp(order["argv"][0], order["argv"])  # noqa: S606  the words of the user, without a shell
    except OSError as error:
        os.write(fault, str(error.strerror).encode())
    finally:
        os._exit(127)


def _watch(order: dict[str, Any], pid: int, pipes: tuple[int, ...], watch: int, counter: int | None) -> dict[str, Any]:
    """Open the gate, read the output, and wait for the end, a limit, or the end of the lab."""
    out, err, gate, fault = pipes
    digest, output, tail = hashlib.blake2b(digest_size=16), bytearray(), b""
    size, failure, peak = 0, None, 0
    for descriptor in (out, err, fault):
        os.set_blocking(descriptor, False)
    poll = select.poll()
    for descriptor in (out, err, watch, 0):
        poll.register(descriptor, select.POLLIN)

    def read(descriptor: int) -> bytes:
        try:
            return os.read(descriptor, CHUNK)
        except BlockingIOError:
            return b""

    def take(descriptor: int) -> bool:
        nonlocal size, tail
        data = read(descriptor)
        if descriptor == err:
            tail = (tail + data)[-STDERR_BYTES:]
        else:
            size += len(data)
            digest.update(data)
            if len(output) < order["keep"]:
                output.extend(data[: order["keep"] - len(output)])
        return bool(data)

    start = time.perf_counter_ns()
    os.write(gate, b"x")
    tick, ended = start + int(TICK_S * 1e9), 0
    deadline = start + int(order["timeout_s"] * 1e9)
    while not ended:
        ready = poll.poll(TICK_S * 1000)
        now = time.perf_counter_ns()
        for descriptor, event in ready:
            if descriptor == watch:
                ended = now
            elif descriptor == 0:
                raise ParentGone
            elif not take(descriptor) and event & (select.POLLHUP | select.POLLERR):
                poll.unregister(descriptor)  # the command closed it and may go on
        if not ended and now >= deadline:
            failure = f"did not end within {order['timeout_s']:.3g} s and was stopped; --timeout gives it more"
        elif not ended and now >= tick:
            tick = now + int(TICK_S * 1e9)
            failure, memory = _check_limits(order)
            peak = max(peak, memory)
        if failure:
            os.kill(pid, signal.SIGKILL)
            ended = now
    _, status, usage = os.wait4(pid, 0)
    left = 1 << 26  # a descendant may keep writing
    while left > 0 and take(out):
        left -= CHUNK
    take(err)
    code = os.waitstatus_to_exitcode(status)
    if message := read(fault).decode(errors="replace"):
        failure = f"could not start '{order['argv'][0]}': {message}{_explain_spaces(order['argv'])}"
    return {
        "wall_ns": ended - start,
        "cpu_ns": round((usage.ru_utime + usage.ru_stime) * 1e9),
        "peak_bytes": max(usage.ru_maxrss * 1024, peak),
        "instructions": _read_counter(counter),
        "code": code,
        "failure": failure,
        "digest": digest.hexdigest(),
        "size": size,
        "output": base64.b64encode(bytes(output)).decode() if order["keep"] else None,
        "stderr": tail.decode(errors="replace"),
    }


def _explain_spaces(argv: list[str]) -> str:
    """Say how to race a line of the shell, if the command is one word with spaces."""
    return "; for a line of the shell write --sh LINE instead of -- LINE" if len(argv) == 1 and " " in argv[0] else ""


def _check_limits(order: dict[str, Any]) -> tuple[str | None, int]:
    """Return why the descendants must be stopped, or None, and the bytes of memory that they have together."""
    pids = list_descendants()
    if len(pids) > order.get("processes", MAX_PROCESSES):
        return f"had {len(pids)} processes at once and was stopped", 0
    memory = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm") as file:
            resident, shared = file.read().split()[1:3]
            memory += (int(resident) - int(shared)) * PAGE
    if order.get("memory") and memory > order["memory"]:
        return f"used {memory >> 20} MiB of memory, more than --memory allows, and was stopped", memory
    return None, memory


def list_descendants() -> list[int]:
    """Return all descendants of this process, the ended ones too."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(name))
    descendants, waiting = [], [os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), []):
            descendants.append(child)
            waiting.append(child)
    return descendants


def kill_descendants(cgroups: list[str]) -> None:
    """Kill and reap every descendant. Stopped processes cannot fork, so all are stopped before they are killed."""
    for cgroup in cgroups:
        kill = os.path.join(cgroup, "cgroup.kill")
        if os.path.exists(kill):
            with suppress(OSError), open(kill, "w") as file:
                file.write("1")
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        pids = list_descendants()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with suppress(OSError):
                    os.kill(pid, number)
        time.sleep(0.001)


def create_cgroups(processes: int) -> list[str]:
    """Create cgroups below those of this process, with a limit of processes; empty where that is not allowed.

    With version 2 one of them kills all its processes at once; with version 1 only the controller of pids matters.
    """
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.strip().split(":", 2) for line in file]
    except OSError:
        return []
    paths = {controllers: path.rstrip("/") for _, controllers, path in lines}
    places = [("/sys/fs/cgroup", paths.get("")), ("/sys/fs/cgroup/unified", paths.get(""))]
    places.append(("/sys/fs/cgroup/pids", paths.get("pids")))
    created = []
    for root, path in places:
        if path is None or not os.path.exists(f"{root}{path}/cgroup.procs"):
            continue
        folder = f"{root}{path}/ridgeline-{os.getpid()}"
        with suppress(OSError):
            os.mkdir(folder)
            created.append(folder)
            with open(f"{folder}/pids.max", "w") as file:  # version 2 has it only if pids is delegated
                file.write(str(processes))
    return created


def _remove_cgroup(path: str) -> None:
    for _ in range(50):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)  # its last process has just been killed
        else:
            return


def count_tasks() -> int:
    """Count the threads of this user: RLIMIT_NPROC limits their sum."""
    count, user = 0, os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count


def open_counter(pid: int) -> int | None:
    """Count the instructions of a process and of those that it starts, from its next exec; None if not allowed."""
    number = PERF_SYSCALL.get(platform.machine())
    if number is None:
        return None
    attributes = ctypes.create_string_buffer(struct.pack("<IIQQQQQ", 0, 112, INSTRUCTIONS, 0, 0, 0, PERF_FLAGS), 112)
    descriptor = libc.syscall(number, attributes, pid, -1, -1, 8)  # PERF_FLAG_FD_CLOEXEC
    return descriptor if descriptor >= 0 else None


def _read_counter(counter: int | None) -> int | None:
    if counter is None:
        return None
    with suppress(OSError, struct.error):
        return struct.unpack("<Q", os.read(counter, 8))[0] or None
    return None


def main() -> None:
    """Carry out orders until the lab closes its pipe."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    tasks = count_tasks()
    pending = b""
    while True:
        while b"\n" not in pending:
            data = os.read(0, CHUNK)
            if not data:
                return
            pending += data
        line, _, pending = pending.partition(b"\n")
        try:
            answer = run_command({"tasks": tasks, **json.loads(line)})
        except ParentGone:
            return
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
