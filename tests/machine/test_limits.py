"""The limits of a cgroup, in the layouts of v1, v2, hybrid and containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.machine.trees import Recording

from ridgeline.machine import Node, Topology
from ridgeline.machine.limits import Limits, read_limits
from ridgeline.machine.sysfs import Tree

GROUP = "sys/fs/cgroup"
V1_UNLIMITED = "9223372036854771712\n"
GIB = 1 << 30


@pytest.fixture
def tree(memory_path: Path) -> Recording:
    return Recording(memory_path)


def read(tree: Recording) -> Limits:
    return read_limits(Tree(tree.root))


def test_without_cgroups_there_is_no_limit(tree: Recording):
    assert read(tree) == Limits(None, None, None)


def test_v2_limits_are_those_of_the_process_group(tree: Recording):
    tree.write("proc/self/cgroup", "0::/user.slice/job\n")
    tree.write(f"{GROUP}/user.slice/job/memory.max", f"{2 * GIB}\n")
    tree.write(f"{GROUP}/user.slice/job/cpu.max", "150000 100000\n")
    tree.write(f"{GROUP}/other/memory.max", "4096\n")
    assert read(tree) == Limits(1.5, 2 * GIB)


def test_max_is_no_limit(tree: Recording):
    tree.write("proc/self/cgroup", "0::/job\n")
    tree.write(f"{GROUP}/job/memory.max", "max\n").write(f"{GROUP}/job/cpu.max", "max 100000\n")
    assert read(tree) == Limits()


def test_the_lowest_limit_of_all_parent_groups_applies(tree: Recording):
    tree.write("proc/self/cgroup", "0::/a/b/c\n")
    for level, gib, quota in (("a", 8, 400_000), ("a/b", 2, 800_000), ("a/b/c", 4, 600_000)):
        tree.write(f"{GROUP}/{level}/memory.max", f"{gib * GIB}\n")
        tree.write(f"{GROUP}/{level}/cpu.max", f"{quota} 100000\n")
    assert read(tree) == Limits(4.0, 2 * GIB)


def test_v1_limits_are_read_from_one_hierarchy_per_controller(tree: Recording):
    tree.write("proc/self/cgroup", "5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job\n")
    tree.write(f"{GROUP}/memory/job/memory.limit_in_bytes", f"{3 * GIB}\n")
    tree.write(f"{GROUP}/memory/memory.limit_in_bytes", V1_UNLIMITED)
    tree.write(f"{GROUP}/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n")
    tree.write(f"{GROUP}/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
    assert read(tree) == Limits(0.5, 3 * GIB)


def test_in_v1_a_huge_number_and_a_negative_quota_mean_no_limit(tree: Recording):
    tree.write("proc/self/cgroup", "5:memory:/\n4:cpu:/\n")
    tree.write(f"{GROUP}/memory/memory.limit_in_bytes", V1_UNLIMITED)
    tree.write(f"{GROUP}/cpu/cpu.cfs_quota_us", "-1\n").write(f"{GROUP}/cpu/cpu.cfs_period_us", "100000\n")
    assert read(tree) == Limits()


def test_in_a_hybrid_the_v1_controllers_and_the_unified_group_both_count(tree: Recording):
    tree.write("proc/self/cgroup", "5:memory:/job\n0::/job\n")
    tree.write(f"{GROUP}/memory/job/memory.limit_in_bytes", f"{GIB}\n")
    tree.write(f"{GROUP}/unified/job/cpu.max", "200000 100000\n")
    assert read(tree) == Limits(2.0, GIB)


@pytest.mark.parametrize("path", ["/", "/docker/0123abcd", "/../../kubepods/pod1"])
def test_in_a_container_with_an_unmounted_path_the_mount_itself_counts(tree: Recording, path: str):
    tree.write("proc/self/cgroup", f"0::{path}\n")
    tree.write(f"{GROUP}/memory.max", f"{GIB}\n").write(f"{GROUP}/cpu.max", "50000 100000\n")
    assert read(tree) == Limits(0.5, GIB)


def test_in_a_v1_container_the_mount_itself_counts(tree: Recording):
    tree.write("proc/self/cgroup", "5:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123\n")
    tree.write(f"{GROUP}/memory/memory.limit_in_bytes", f"{GIB}\n")
    tree.write(f"{GROUP}/cpuacct/cpu.cfs_quota_us", "300000\n").write(f"{GROUP}/cpuacct/cpu.cfs_period_us", "100000\n")
    assert read(tree) == Limits(3.0, GIB)


@pytest.mark.parametrize("text", ["", "rubbish", "5 0", "-5", "1 2 3", "-5 100000", "\udcff"])
def test_an_invalid_limit_is_none(tree: Recording, text: str):
    tree.write("proc/self/cgroup", "0::/job\nrubbish\n")
    for name in ("cpu.max", "memory.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
        tree.write(f"{GROUP}/job/{name}", text.encode(errors="surrogateescape"))
    assert read(tree) == Limits()


def test_memory_nodes_are_those_of_the_cpuset(tree: Recording):
    tree.write("proc/self/status", "Name:\tpython\nMems_allowed:\t00000005\nMems_allowed_list:\t0,2-3\n")
    assert read(tree).memory_nodes == (0, 2, 3)


def test_the_limits_reduce_the_usable_memory():
    nodes = tuple(Node(n, (), 4 * GIB) for n in range(3))
    unlimited = Topology(nodes, (), (), (), ())
    assert unlimited.usable_memory_bytes == 12 * GIB
    limited = Topology(nodes, (), (), (), (), limits=Limits(memory_bytes=5 * GIB))
    assert limited.usable_memory_bytes == 5 * GIB
    one_node = Topology(nodes, (), (), (), (), limits=Limits(memory_nodes=(1, 7)))
    assert one_node.memory_nodes == (1,)
    assert one_node.usable_memory_bytes == 4 * GIB
