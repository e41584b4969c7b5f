"""What this process may use of the machine: CPU quota and memory limit of its cgroup (v1, v2), its memory nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from ridgeline.machine.sysfs import Tree, parse_list

# cgroup v1 says "no limit" with the largest page-aligned 63-bit number.
UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Limits:
    cpu_quota: float | None = None  # CPUs' worth of time per second; None = no quota
    memory_bytes: int | None = None  # None = no limit below the installed memory
    memory_nodes: tuple[int, ...] | None = None  # nodes it may allocate from; None = all


def limits(tree: Tree) -> Limits:
    """The tightest limit on the way from this process's cgroup up to the root."""
    quotas: list[float] = []
    memory: list[int] = []
    for controllers, path in _memberships(tree):
        for folder in _folders(tree, controllers, path):
            quotas += _quota(tree, folder)
            memory += [
                n
                for name in ("memory.max", "memory.limit_in_bytes")
                if (n := tree.number(folder, name)) is not None and 0 < n < UNLIMITED
            ]
    return Limits(min(quotas, default=None), min(memory, default=None), _memory_nodes(tree))


def _memory_nodes(tree: Tree) -> tuple[int, ...] | None:
    """The nodes of this process's cpuset, as the kernel sums it up."""
    told = re.search(r"^Mems_allowed_list:\s*([\d,-]+)$", tree.text("proc/self/status") or "", re.MULTILINE)
    try:
        return tuple(sorted(parse_list(told[1]))) if told else None
    except ValueError:
        return None


def quota_throttled(tree: Tree) -> int | None:
    """How often this process's cgroup was stopped by its CPU quota since it was made."""
    counts = [
        int(words[1])
        for controllers, path in _memberships(tree)
        for folder in _folders(tree, controllers, path)
        for line in (tree.text(folder, "cpu.stat") or "").splitlines()
        if len(words := line.split()) == 2 and words[0] == "nr_throttled"
    ]
    return max(counts, default=None)


def _memberships(tree: Tree) -> list[tuple[str, str]]:
    """(controllers, path) of each hierarchy this process is in; v2 has no controllers named."""
    lines = (tree.text("proc/self/cgroup") or "").splitlines()
    return [(parts[1], parts[2]) for line in lines if len(parts := line.split(":", 2)) == 3]


def _folders(tree: Tree, controllers: str, path: str) -> list[str]:
    """Candidates from the process's own group up to the mount, for both layouts.

    Inside a container the path is often the host's, which is not mounted: then only the mount's root is
    there, and that is the container's own group.
    """
    mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"] if not controllers else []
    mounts += [f"sys/fs/cgroup/{name}" for name in {controllers, *controllers.split(",")} if name]
    own = PurePosixPath(path.lstrip("/"))
    levels = [own, *own.parents] if path.strip("/") else [PurePosixPath(".")]
    return [f"{mount}/{level}" for mount in mounts for level in levels if tree.path(mount).is_dir()]


def _quota(tree: Tree, folder: str) -> list[float]:
    told = re.fullmatch(r"(\d+) ([1-9]\d*)", tree.text(folder, "cpu.max") or "")
    if told:
        return [int(told[1]) / int(told[2])]
    quota = tree.number(folder, "cpu.cfs_quota_us")
    period = tree.number(folder, "cpu.cfs_period_us")
    return [quota / period] if quota and period and quota > 0 and period > 0 else []
