"""The limits of this process on the machine: CPU quota and memory of its cgroup (v1, v2), its memory nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from ridgeline.machine.sysfs import Tree, parse_list

# cgroup v1 writes "no limit" as the largest page-aligned 63-bit number.
UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Limits:
    """The limits that the operating system sets for this process."""

    cpu_quota: float | None = None  # CPUs' worth of time per second; None = no quota
    memory_bytes: int | None = None  # None = no limit below the installed memory
    memory_nodes: tuple[int, ...] | None = None  # nodes from which it may allocate; None = all


def read_limits(tree: Tree) -> Limits:
    """The lowest limits on the path from this process's cgroup up to the root."""
    quotas: list[float] = []
    memory: list[int] = []
    for controllers, path in _list_memberships(tree):
        for folder in _list_folders(tree, controllers, path):
            quotas += _read_quota(tree, folder)
            memory += [
                n
                for name in ("memory.max", "memory.limit_in_bytes")
                if (n := tree.number(folder, name)) is not None and 0 < n < UNLIMITED
            ]
    return Limits(min(quotas, default=None), min(memory, default=None), _read_memory_nodes(tree))


def _read_memory_nodes(tree: Tree) -> tuple[int, ...] | None:
    """The nodes of this process's cpuset, as the kernel reports them."""
    match = re.search(r"^Mems_allowed_list:\s*([\d,-]+)$", tree.text("proc/self/status") or "", re.MULTILINE)
    try:
        return tuple(sorted(parse_list(match[1]))) if match else None
    except ValueError:
        return None


def count_quota_throttles(tree: Tree) -> int | None:
    """How often the CPU quota has stopped the cgroup of this process since the cgroup exists."""
    counts = [
        int(words[1])
        for controllers, path in _list_memberships(tree)
        for folder in _list_folders(tree, controllers, path)
        for line in (tree.text(folder, "cpu.stat") or "").splitlines()
        if len(words := line.split()) == 2 and words[0] == "nr_throttled"
    ]
    return max(counts, default=None)


def _list_memberships(tree: Tree) -> list[tuple[str, str]]:
    """(controllers, path) of each cgroup hierarchy of this process; v2 lists no controllers."""
    lines = (tree.text("proc/self/cgroup") or "").splitlines()
    return [(parts[1], parts[2]) for line in lines if len(parts := line.split(":", 2)) == 3]


def _list_folders(tree: Tree, controllers: str, path: str) -> list[str]:
    """Candidate folders from the group of this process up to the mount, for both versions.

    Inside a container the path is often that of the host, which is not mounted: then only the root of the mount
    exists, and that is the group of the container.
    """
    mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"] if not controllers else []
    mounts += [f"sys/fs/cgroup/{name}" for name in {controllers, *controllers.split(",")} if name]
    group = PurePosixPath(path.lstrip("/"))
    levels = [group, *group.parents] if path.strip("/") else [PurePosixPath(".")]
    return [f"{mount}/{level}" for mount in mounts for level in levels if tree.path(mount).is_dir()]


def _read_quota(tree: Tree, folder: str) -> list[float]:
    match = re.fullmatch(r"(\d+) ([1-9]\d*)", tree.text(folder, "cpu.max") or "")
    if match:
        return [int(match[1]) / int(match[2])]
    quota = tree.number(folder, "cpu.cfs_quota_us")
    period = tree.number(folder, "cpu.cfs_period_us")
    return [quota / period] if quota and period and quota > 0 and period > 0 else []
