"""What this process may use of the machine: its cgroup's CPU quota and memory limit (v1 and v2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from ridgeline.machine.sysfs import Tree

# cgroup v1 says "no limit" with the largest page-aligned 63-bit number.
UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Limits:
    cpu_quota: float | None = None  # CPUs' worth of time per second; None = no quota
    memory_bytes: int | None = None  # None = no limit below the installed memory


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
    return Limits(min(quotas, default=None), min(memory, default=None))


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
    words = (tree.text(folder, "cpu.max") or "").split()
    if len(words) == 2 and words[0].isdigit():
        return [int(words[0]) / int(words[1])]
    quota = tree.number(folder, "cpu.cfs_quota_us")
    period = tree.number(folder, "cpu.cfs_period_us")
    return [quota / period] if quota and period and quota > 0 else []
