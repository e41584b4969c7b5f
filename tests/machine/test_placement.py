"""Binding, reading back and restoring, with a kernel that allows it and with one that refuses."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from dataclasses import replace

import pytest

from ridgeline.errors import InputError, PlacementError
from ridgeline.machine import Cpu, Gpu, Node, Placement, Topology, numa, placed, topology
from ridgeline.machine.limits import Limits
from ridgeline.machine.placement import resolve_placement

COMPUTER = topology()
CPUS = sorted(os.sched_getaffinity(0))
FIRST, LAST = CPUS[0], CPUS[-1]
NODE = next(n.id for n in COMPUTER.nodes if FIRST in n.cpus)

binds_memory = pytest.mark.skipif(not numa.memory_policy_supported(), reason="this kernel refuses memory policies")
several_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU only")


@pytest.fixture(autouse=True)
def nothing_stays_bound():
    """Checks that the thread has the same binding after the test."""
    before = state()
    yield
    assert state() == before


def state() -> tuple[set[int], object]:
    return os.sched_getaffinity(0), numa.get_policy() if numa.memory_policy_supported() else None


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch):
    """Makes the kernel refuse the named calls with an errno."""
    real, numbers = numa._libc, {v: k for k, v in numa._NUMBERS[os.uname().machine].items()}

    def refuse(code: int, *names: str) -> None:
        class Libc:
            @staticmethod
            def syscall(number, *arguments):
                if not names or numbers[number.value] in names:
                    ctypes.set_errno(code)
                    return -1
                return real.syscall(number, *arguments)

        monkeypatch.setattr(numa, "_libc", Libc)

    yield refuse
    monkeypatch.undo()


def test_cpus_are_bound_inside_and_restored_outside():
    with placed(Placement(cpus=(FIRST,))) as where:
        assert os.sched_getaffinity(0) == {FIRST}
        assert where.cpus == (FIRST,)
    assert os.sched_getaffinity(0) == set(CPUS)


def test_an_empty_placement_leaves_all_usable_cpus():
    with placed(Placement()) as where:
        assert where.cpus == tuple(CPUS)


def test_a_node_selects_its_usable_cpus():
    with placed(Placement(node=NODE)) as where:
        assert set(where.cpus) == set(COMPUTER.node(NODE).cpus) & set(CPUS)


@several_cpus
def test_named_cpus_take_precedence_over_those_of_the_node():
    with placed(Placement(node=NODE, cpus=(LAST,))) as where:
        assert where.cpus == (LAST,)


@binds_memory
@pytest.mark.parametrize(
    ("memory", "mode", "nodes"),
    [
        ("bind", numa.BIND, {NODE}),
        ("preferred", numa.PREFERRED, {NODE}),
        ("interleave", numa.INTERLEAVE, {NODE}),
    ],
)
def test_memory_is_bound_and_verified_by_fresh_pages(memory: str, mode: int, nodes: set[int]):
    with placed(Placement(node=NODE, memory=memory)) as where:
        assert numa.get_policy() == (mode, nodes)
        assert where.memory_nodes == tuple(nodes)
        assert set(where.page_nodes) == nodes
        assert set(numa.probe_fresh_pages(3)) == nodes


@binds_memory
def test_local_memory_names_no_node_but_reports_the_nodes_of_pages():
    with placed(Placement(cpus=(FIRST,))) as where:
        mode, nodes = numa.get_policy()
        assert mode in (numa.LOCAL, numa.PREFERRED)
        assert not nodes
        assert where.memory_nodes == ()
        assert set(where.page_nodes) <= {n.id for n in COMPUTER.nodes}


@binds_memory
def test_interleave_without_a_node_goes_over_all_nodes_with_memory():
    with placed(Placement(memory="interleave")) as where:
        assert where.memory_nodes == COMPUTER.memory_nodes


def test_all_is_restored_after_an_exception():
    def fail() -> None:
        assert state() != before
        raise LookupError

    before = state()
    with pytest.raises(LookupError), placed(Placement(node=NODE, cpus=(FIRST,), memory="bind")):
        fail()
    assert state() == before


@several_cpus
def test_placements_nest_and_each_restores_the_one_around_it():
    with placed(Placement(cpus=(FIRST,), node=NODE, memory="bind")):
        outer = state()
        with placed(Placement(cpus=(LAST,), node=NODE, memory="interleave")) as inner:
            assert inner.cpus == (LAST,)
            assert os.sched_getaffinity(0) == {LAST}
        assert state() == outer


@several_cpus
def test_a_thread_started_inside_is_bound_too_and_an_earlier_thread_is_not():
    seen: dict[str, set[int]] = {}
    go = threading.Event()

    def look(name: str) -> None:
        go.wait(60)
        seen[name] = os.sched_getaffinity(0)

    early = threading.Thread(target=look, args=("early",))
    early.start()
    with placed(Placement(cpus=(LAST,))):
        late = threading.Thread(target=look, args=("late",))
        late.start()
        go.set()
        late.join()
    early.join()
    assert seen == {"early": set(CPUS), "late": {LAST}}


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (Placement(node=77), ["77", f"this machine has: {', '.join(str(n.id) for n in COMPUTER.nodes)}"]),
        (Placement(node=77, cpus=(FIRST,)), ["NUMA node 77"]),
        (Placement(cpus=(FIRST, 9999)), ["CPU 9999", f"CPUs {', '.join(map(str, CPUS))}"]),
        (Placement(cpus=()), ["no CPU was named"]),
        (Placement(gpu=55), ["GPU 55", "this process sees"]),
        (Placement(node=NODE, gpu=55), ["GPU 55"]),
        (Placement(node=NODE, memory="near"), ["'near'", "local, preferred, bind, interleave"]),
        (Placement(memory="bind"), ["memory='bind' needs a node"]),
    ],
    ids=[
        "node",
        "node beside CPUs",
        "CPU",
        "no CPU",
        "GPU",
        "GPU beside a node",
        "policy",
        "bind to nothing",
    ],
)
def test_the_error_for_an_invalid_placement_lists_the_valid_values(placement: Placement, words: list[str]):
    with pytest.raises(InputError) as caught, placed(placement):
        pytest.fail("was accepted")
    for word in words:
        assert word in str(caught.value)


TWO_NODES = Topology(
    nodes=(Node(0, tuple(CPUS), 1 << 30), Node(1, (), 1 << 30), Node(2, (998, 999), 0)),
    cpus=(*(Cpu(c, 0, c, 0, True) for c in CPUS), Cpu(998, 2, 998, 0, True), Cpu(999, 2, 999, 0, False)),
    caches=(),
    gpus=(
        Gpu(0, None, "near", "0000:01:00.0", 0, (), None, None),
        Gpu(1, None, "unknown", "0000:02:00.0", None, (FIRST,), None, None),
        Gpu(2, None, "on a node without CPUs", "0000:03:00.0", 1, (), None, None),
    ),
    nics=(),
)


def test_a_node_without_usable_cpus_is_refused_with_the_nodes_that_have_some():
    with pytest.raises(InputError, match=r"node 1 has no CPU this process may use; nodes with some: 0, 2"):
        resolve_placement(Placement(node=1), TWO_NODES)


def test_memory_without_cpus_is_used_from_its_nearest_cpus():
    nodes = (TWO_NODES.nodes[0], replace(TWO_NODES.nodes[1], nearest_cpus=(998,)), TWO_NODES.nodes[2])
    computer = replace(TWO_NODES, nodes=nodes)
    assert resolve_placement(Placement(node=1, memory="bind"), computer).cpus == (998,)
    assert resolve_placement(Placement(gpu=2), computer).cpus == (998,)
    with pytest.raises(InputError, match=r"node 1 has no CPU .*memory='bind' runs on its nearest CPUs .*: 0, 2"):
        resolve_placement(Placement(node=1), computer)


def test_a_node_without_memory_cannot_be_bound_to():
    with (
        pytest.raises(InputError, match=r"node 2 has no memory .*: 0, 1"),
        placed(Placement(node=2, cpus=(FIRST,), memory="bind"), TWO_NODES),
    ):
        pytest.fail("was accepted")


def test_a_node_outside_the_cpuset_cannot_be_bound_to():
    limited = replace(TWO_NODES, limits=Limits(memory_nodes=(0,)))
    with (
        pytest.raises(InputError, match=r"node 1 has no memory for this process; nodes with some: 0\."),
        placed(Placement(node=1, cpus=(FIRST,), memory="bind"), limited),
    ):
        pytest.fail("was accepted")


@pytest.mark.parametrize(("gpu", "cpus"), [(0, tuple(CPUS)), (1, (FIRST,)), (2, (*CPUS, 998))])
def test_a_gpu_selects_the_cpus_near_it_or_all_cpus(gpu: int, cpus: tuple[int, ...]):
    assert resolve_placement(Placement(gpu=gpu), TWO_NODES) == Placement(cpus=cpus, gpu=gpu)


def test_a_cpu_that_the_kernel_does_not_have_is_a_placement_error():
    with pytest.raises(PlacementError, match="998"), placed(Placement(cpus=(998,)), TWO_NODES):
        pytest.fail("was accepted")


@pytest.mark.parametrize(("code", "word"), [(errno.EPERM, "--cap-add SYS_NICE"), (errno.ENOSYS, "built without NUMA")])
def test_if_the_kernel_refuses_a_binding_the_error_names_the_remedy(kernel, code: int, word: str):
    kernel(code)
    with (
        pytest.raises(PlacementError, match=word),
        placed(Placement(node=NODE, cpus=(FIRST,), memory="bind")),
    ):
        pytest.fail("was accepted")
    assert os.sched_getaffinity(0) == set(CPUS)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS])
@pytest.mark.parametrize("calls", [(), ("set_mempolicy",), ("move_pages",)], ids=["all", "set", "move_pages"])
def test_local_memory_works_if_the_kernel_refuses_policies(kernel, code: int, calls: tuple[str, ...]):
    kernel(code, *calls)
    with placed(Placement(cpus=(FIRST,))) as where:
        assert where.cpus == (FIRST,)
        assert where.page_nodes == ()
        assert where.notes
    assert os.sched_getaffinity(0) == set(CPUS)


@pytest.mark.parametrize("memory", ["bind", "preferred", "interleave"])
def test_a_binding_that_cannot_be_verified_is_an_error(kernel, memory: str):
    kernel(errno.EPERM, "move_pages")
    with pytest.raises(PlacementError, match="move_pages"), placed(Placement(node=NODE, memory=memory)):
        pytest.fail("was accepted")


@binds_memory
def test_a_policy_that_reads_back_differently_is_an_error_and_everything_is_restored(
    monkeypatch: pytest.MonkeyPatch,
):
    before = state()
    real = numa.set_policy
    with monkeypatch.context() as patch:
        # A kernel that reports success and does nothing.
        patch.setattr(numa, "set_policy", lambda mode, nodes: None if mode == numa.BIND else real(mode, nodes))
        with pytest.raises(PlacementError, match="the kernel reports"), placed(Placement(node=NODE, memory="bind")):
            pytest.fail("was accepted")
    assert state() == before


@binds_memory
def test_local_memory_that_reads_back_as_bound_is_an_error(monkeypatch: pytest.MonkeyPatch):
    real = numa.set_policy
    with placed(Placement(node=NODE, memory="bind")), monkeypatch.context() as patch:
        patch.setattr(numa, "set_policy", lambda mode, nodes: None if mode == numa.LOCAL else real(mode, nodes))
        with pytest.raises(PlacementError, match="the kernel reports"), placed(Placement(cpus=(FIRST,))):
            pytest.fail("was accepted")


@binds_memory
def test_pages_on_another_node_are_an_error_and_everything_is_restored(monkeypatch: pytest.MonkeyPatch):
    before = state()
    monkeypatch.setattr(numa, "probe_fresh_pages", lambda pages: [NODE, NODE + 1])
    with (
        pytest.raises(PlacementError, match=rf"bound to node {NODE}, yet .* {NODE + 1}"),
        placed(Placement(node=NODE, memory="bind")),
    ):
        pytest.fail("was accepted")
    assert state() == before


@several_cpus
def test_cpus_that_read_back_differently_are_an_error(monkeypatch: pytest.MonkeyPatch):
    answers = iter([set(CPUS), {LAST}])
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda pid: next(answers))
        with pytest.raises(PlacementError, match=rf"the kernel granted CPUs {LAST} instead of {FIRST}"):  # noqa: SIM117
            with placed(Placement(cpus=(FIRST,)), COMPUTER):
                pytest.fail("was accepted")


@several_cpus
def test_inside_a_placement_the_topology_still_lists_all_usable_cpus():
    with placed(Placement(cpus=(FIRST,))):
        assert topology().usable_cpus == tuple(CPUS)
    assert topology().usable_cpus == tuple(CPUS)


def test_a_resolved_placement_names_its_cpus():
    assert resolve_placement(Placement(node=NODE, memory="bind"), COMPUTER) == Placement(
        NODE, tuple(c for c in COMPUTER.node(NODE).cpus if c in CPUS), "bind"
    )


@binds_memory
def test_an_interleave_policy_with_a_user_flag_is_restored():
    """MPOL_F_STATIC_NODES comes back with the mode and must go back with it."""
    static = numa.INTERLEAVE | 1 << 15
    before = numa.get_policy()
    numa.set_policy(static, frozenset({NODE}))
    try:
        with placed(Placement(node=NODE, memory="bind")):
            pass
        assert numa.get_policy() == (static, {NODE})
    finally:
        numa.set_policy(*before)


@binds_memory
@pytest.mark.parametrize(("offset", "size", "pages"), [(0, 1, 1), (0, 4, 4), (1, 2, 3), (0.5, 0.25, 1)])
def test_pages_are_counted_by_node_for_every_touched_page(offset: float, size: float, pages: int):
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 8 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = bytes(8 * page)
        anchor = ctypes.c_char.from_buffer(memory)
        begin = ctypes.addressof(anchor) + int(offset * page) + (page // 2 if offset == 1 else 0)
        counts = numa.count_pages_by_node(begin, int(size * page))
        sampled = numa.count_pages_by_node(ctypes.addressof(anchor), 8 * page, most=2)
        del anchor
    assert sum(counts.values()) == pages
    assert set(counts) <= set(COMPUTER.memory_nodes)
    assert sum(sampled.values()) == 2


def test_the_page_count_is_empty_if_the_kernel_refuses(kernel):
    kernel(errno.EPERM, "move_pages")
    assert numa.count_pages_by_node(0x1000, 100) == {}
