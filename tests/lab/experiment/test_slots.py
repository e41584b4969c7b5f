"""Points that run at the same time share no GPU and no CPU, unless contention is allowed.

python -m pytest tests/lab/experiment/test_slots.py
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.lab.experiment import Point, check_available, count_concurrent
from ridgeline.lab.experiment.point import get_distance
from ridgeline.lab.experiment.slots import Slots
from ridgeline.machine import Cpu, Gpu, Node, Topology

GB = 1 << 30


def make_machine(nodes: int, cores: int, gpus: int = 0) -> Topology:
    """Return a machine with GPUs on the nodes in turn; other nodes have distance 21."""
    node_list = tuple(
        Node(n, tuple(range(n * cores, (n + 1) * cores)), GB, {m: 10 if m == n else 21 for m in range(nodes)})
        for n in range(nodes)
    )
    cpus = tuple(Cpu(c, c // cores, c, c // cores, True) for c in range(nodes * cores))
    cards = tuple(
        Gpu(
            index=g,
            name="synthetic",
            uuid=f"GPU-{g}",
            pci=f"0000:0{g}:00.0",
            node=g % nodes,
            cpus=(),
            link=None,
            memory_bytes=GB,
        )
        for g in range(gpus)
    )
    return Topology(node_list, cpus, (), cards, ())


def make_point(n: int, node: int, gpu: int | None = None, cpu_node: int | None = None, **more) -> Point:
    return Point("synthetic", f"p{n}", "x:y", {"n": n}, node, node if cpu_node is None else cpu_node, gpu, **more)


def test_points_that_share_one_gpu_of_several_wait_for_each_other():
    machine = make_machine(2, 4, gpus=4)
    both, second, other = (make_point(n, 0, gpus[0], partners=gpus[1:]) for n, gpus in enumerate([(0, 1), (1,), (2,)]))
    slots = Slots([both, second, other], machine, workers=4)
    slot = slots.take(both)
    assert slot is not None
    assert slot.gpus == (0, 1)
    assert slots.take(second) is None
    assert slots.take(other) is not None
    slots.release(slot)
    assert slots.take(second) is not None


def test_gpus_that_work_together_are_named_checked_and_far_if_one_is_far():
    machine = make_machine(2, 2, gpus=2)
    alone, both = make_point(1, 0, 0), make_point(1, 0, 0, partners=(1,))
    assert (alone.placement, both.placement) == ("gpu0-node0", "gpu0+1-node0")
    assert alone.key != both.key
    assert (get_distance(alone, machine), get_distance(both, machine)) == (10, 21)
    with pytest.raises(InputError, match="no GPU 7"):
        check_available(make_point(1, 0, 0, partners=(7,)), machine)


def test_points_at_once_are_limited_by_gpus_or_cpus():
    machine = make_machine(1, 2, gpus=2)
    on_gpus = [make_point(1, 0, 0), make_point(2, 0, 0, partners=(1,))]
    assert count_concurrent(on_gpus, machine, 64) == 2
    assert count_concurrent([make_point(1, 0)], machine, 64) == 2
    assert count_concurrent(on_gpus, machine, 1) == 1


@given(st.data(), st.integers(1, 3), st.integers(1, 4), st.integers(0, 4), st.integers(1, 6))
def test_a_running_point_shares_nothing_and_every_point_runs(data, nodes, cores, gpus, workers):
    machine = make_machine(nodes, cores, gpus)
    node_ids = st.integers(0, nodes - 1)
    places = st.tuples(node_ids, st.integers(0, gpus - 1) if gpus else st.none())
    points = [
        make_point(n, node, gpu) for n, (node, gpu) in enumerate(data.draw(st.lists(places, min_size=1, max_size=12)))
    ]
    slots = Slots(points, machine, workers)
    waiting, running, finished = list(points), [], 0
    while waiting or running:
        for point in list(waiting):
            slot = slots.take(point)
            if slot is not None:
                waiting.remove(point)
                running.append(slot)
        assert 0 < len(running) <= workers
        used = [cpu for slot in running for cpu in slot.cpus]
        assert len(used) == len(set(used))
        cards = [gpu for slot in running for gpu in slot.gpus]
        assert len(cards) == len(set(cards))
        assert all(slot.cpus and set(slot.cpus) <= set(machine.node(slot.node).cpus) for slot in running)
        slots.release(running.pop(data.draw(st.integers(0, len(running) - 1))))
        finished += 1
    assert finished == len(points)


@given(st.integers(1, 3), st.integers(1, 8), st.integers(1, 6))
def test_slots_of_a_node_differ_by_one_cpu_at_most(nodes, cores, workers):
    machine = make_machine(nodes, cores)
    points = [make_point(n, n % nodes) for n in range(12)]
    slots = Slots(points, machine, workers)
    sizes = {len(cpus) for parts in slots._cpus_by_node.values() for cpus in parts}
    assert max(sizes) - min(sizes) <= 1
    for node, parts in slots._cpus_by_node.items():
        assert len(parts) == min(workers, cores)
        assert sorted(c for cpus in parts for c in cpus) == list(machine.node(node).cpus)


def test_one_worker_has_all_cpus_of_the_node():
    machine = make_machine(2, 4)
    slot = Slots([make_point(0, 1)], machine, 1).take(make_point(0, 1))
    assert slot is not None
    assert slot.cpus == (4, 5, 6, 7)


def test_contention_lets_points_share_up_to_the_number_of_workers():
    points = [make_point(n, 0, gpu=0) for n in range(3)]
    slots = Slots(points, make_machine(1, 4, 1), 2, contention=True)
    first, second = slots.take(points[0]), slots.take(points[1])
    assert first is not None
    assert second is not None
    assert first.cpus == second.cpus == (0, 1, 2, 3)
    assert first.gpus == second.gpus == (0,)
    assert slots.take(points[2]) is None


def test_gpu_points_divide_a_node_by_the_number_of_gpus_not_of_workers():
    points = [make_point(n, 0, gpu=n % 2) for n in range(4)]
    slots = Slots(points, make_machine(1, 8, 2), 8)
    assert [len(cpus) for cpus in slots._cpus_by_node[0]] == [4, 4]


def test_an_error_names_what_is_missing_and_what_exists():
    machine = make_machine(2, 2, 1)
    with pytest.raises(InputError, match=r"no GPU 3.*0 \(synthetic\)"):
        check_available(make_point(0, 0, gpu=3), machine)
    with pytest.raises(InputError, match="no NUMA node 7; this machine has: 0, 1"):
        check_available(make_point(0, 7), machine)
    with pytest.raises(InputError, match=r"pool of 2,048 MB is larger than node 1.*1,024 MB"):
        check_available(make_point(0, 1, staged_bytes=2 * GB), machine)
    check_available(make_point(0, 1, gpu=0, staged_bytes=GB), machine)


def test_the_distance_is_from_the_memory_to_what_computes():
    machine = make_machine(2, 2, 2)
    assert get_distance(make_point(0, 0, gpu=0), machine) == 10
    assert get_distance(make_point(0, 0, gpu=1), machine) == 21
    assert get_distance(make_point(0, 1, cpu_node=0), machine) == 21
    assert get_distance(make_point(0, 1, cpu_node=1), machine) == 10
