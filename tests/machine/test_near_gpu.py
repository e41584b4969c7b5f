"""A command runs near its GPU; whatever stands in the way is a reason and no error."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from ridgeline.errors import PlacementError
from ridgeline.machine import Cpu, Gpu, Node, Topology, placed_near_gpu, topology

CPUS = sorted(os.sched_getaffinity(0))
several_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU only")


def make_machine(gpu_node: int | None, usable: list[int] = CPUS) -> Topology:
    """Two nodes that share the CPUs of this process, and one GPU."""
    halves = CPUS[:1], CPUS[1:]
    nodes = tuple(Node(number, tuple(cpus), 1 << 30) for number, cpus in enumerate(halves))
    cpus = tuple(Cpu(cpu, int(cpu != CPUS[0]), cpu, 0, cpu in usable) for cpu in CPUS)
    gpu = Gpu(0, None, "gpu", "0000:01:00.0", gpu_node, (), None, None)
    return replace(topology(), nodes=nodes, cpus=cpus, gpus=(gpu,))


@several_cpus
def test_threads_run_on_the_node_of_the_gpu_inside_and_anywhere_outside():
    with placed_near_gpu(0, make_machine(gpu_node=1)) as near:
        assert os.sched_getaffinity(0) == set(CPUS[1:]) == set(near.cpus)
        assert near.node == 1
        assert "of node 1, near GPU 0" in near.reason
    assert sorted(os.sched_getaffinity(0)) == CPUS


@several_cpus
@pytest.mark.parametrize(
    ("machine", "gpu", "reason"),
    [
        (make_machine(gpu_node=None), 0, "firmware does not say"),
        (make_machine(gpu_node=1), 3, "driver does not say where GPU 3 is"),
        (make_machine(gpu_node=1, usable=CPUS[:1]), 0, "nothing to choose"),
    ],
)
def test_without_a_choice_threads_stay_and_the_reason_is_given(machine, gpu, reason):
    with placed_near_gpu(gpu, machine) as near:
        assert reason in near.reason
        assert near.node is None
        assert sorted(os.sched_getaffinity(0)) == CPUS == list(near.cpus)


@several_cpus
def test_cpus_that_the_user_chose_elsewhere_are_kept():
    machine = make_machine(gpu_node=1)
    third = Node(2, (), 1 << 30)
    machine = replace(machine, nodes=(*machine.nodes, third), gpus=(replace(machine.gpus[0], node=2),))
    with placed_near_gpu(0, machine) as near:
        assert "may use no CPU of node 2" in near.reason
        assert sorted(os.sched_getaffinity(0)) == CPUS


@several_cpus
def test_a_refusal_of_the_kernel_is_a_reason(monkeypatch):
    def refuse(pid: int, cpus: set[int]) -> None:
        if sorted(cpus) != CPUS:
            raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("ridgeline.machine.placement.os.sched_setaffinity", refuse)
    with placed_near_gpu(0, make_machine(gpu_node=1)) as near:
        assert near.node is None
        assert "refused" in near.reason


def test_an_error_of_the_block_is_not_swallowed():
    with pytest.raises(PlacementError, match="of the block"), placed_near_gpu(0, make_machine(gpu_node=None)):
        raise PlacementError("of the block")
