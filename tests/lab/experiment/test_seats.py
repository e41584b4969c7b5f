"""Who runs beside whom: never two on one GPU or on one CPU, unless that is the question.

python -m pytest tests/lab/experiment/test_seats.py
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.lab.experiment import Point, refuse_absent
from ridgeline.lab.experiment.point import distance
from ridgeline.lab.experiment.seats import Hall
from ridgeline.machine import Cpu, Gpu, Node, Topology

GB = 1 << 30


def machine(nodes: int, cores: int, gpus: int = 0) -> Topology:
    """Cores dealt evenly, GPUs round the nodes, the other nodes at distance 21."""
    held = tuple(
        Node(n, tuple(range(n * cores, (n + 1) * cores)), GB, {m: 10 if m == n else 21 for m in range(nodes)})
        for n in range(nodes)
    )
    cpus = tuple(Cpu(c, c // cores, c, c // cores, True) for c in range(nodes * cores))
    cards = tuple(
        Gpu(
            index=g,
            name="made",
            uuid=f"GPU-{g}",
            pci=f"0000:0{g}:00.0",
            node=g % nodes,
            cpus=(),
            link=None,
            memory_bytes=GB,
        )
        for g in range(gpus)
    )
    return Topology(held, cpus, (), cards, ())


def stand(n: int, node: int, gpu: int | None = None, cpu_node: int | None = None, **more) -> Point:
    return Point("made", f"p{n}", "x:y", {"n": n}, node, node if cpu_node is None else cpu_node, gpu, **more)


@given(st.data(), st.integers(1, 3), st.integers(1, 4), st.integers(0, 4), st.integers(1, 6))
def test_whoever_sits_has_gpu_and_cpus_alone_and_everyone_gets_a_turn(data, nodes, cores, gpus, workers):
    here = machine(nodes, cores, gpus)
    where = st.integers(0, nodes - 1)
    places = st.tuples(where, st.integers(0, gpus - 1) if gpus else st.none())
    points = [stand(n, node, gpu) for n, (node, gpu) in enumerate(data.draw(st.lists(places, min_size=1, max_size=12)))]
    hall = Hall(points, here, workers)
    waiting, sitting, served = list(points), [], 0
    while waiting or sitting:
        for point in list(waiting):
            seat = hall.take(point)
            if seat is not None:
                waiting.remove(point)
                sitting.append(seat)
        assert 0 < len(sitting) <= workers
        taken = [cpu for seat in sitting for cpu in seat.cpus]
        assert len(taken) == len(set(taken))
        cards = [seat.gpu for seat in sitting if seat.gpu is not None]
        assert len(cards) == len(set(cards))
        assert all(seat.cpus and set(seat.cpus) <= set(here.node(seat.node).cpus) for seat in sitting)
        hall.leave(sitting.pop(data.draw(st.integers(0, len(sitting) - 1))))
        served += 1
    assert served == len(points)


@given(st.integers(1, 3), st.integers(1, 8), st.integers(1, 6))
def test_every_seat_of_a_node_is_as_large_as_the_others_to_one(nodes, cores, workers):
    here = machine(nodes, cores)
    points = [stand(n, n % nodes) for n in range(12)]
    hall = Hall(points, here, workers)
    sizes = {len(cpus) for seats in hall._seats.values() for cpus in seats}
    assert max(sizes) - min(sizes) <= 1
    for node, seats in hall._seats.items():
        assert len(seats) == min(workers, cores)
        assert sorted(c for cpus in seats for c in cpus) == list(here.node(node).cpus)


def test_one_worker_has_the_whole_node():
    here = machine(2, 4)
    seat = Hall([stand(0, 1)], here, 1).take(stand(0, 1))
    assert seat is not None
    assert seat.cpus == (4, 5, 6, 7)


def test_contention_lets_them_share_up_to_the_number_of_workers():
    points = [stand(n, 0, gpu=0) for n in range(3)]
    hall = Hall(points, machine(1, 4, 1), 2, contention=True)
    first, second = hall.take(points[0]), hall.take(points[1])
    assert first is not None
    assert second is not None
    assert first.cpus == second.cpus == (0, 1, 2, 3)
    assert first.gpu == second.gpu == 0
    assert hall.take(points[2]) is None


def test_points_with_gpus_share_a_node_by_the_number_of_gpus_not_of_workers():
    points = [stand(n, 0, gpu=n % 2) for n in range(4)]
    hall = Hall(points, machine(1, 8, 2), 8)
    assert [len(cpus) for cpus in hall._seats[0]] == [4, 4]


def test_a_place_that_is_not_there_is_told_with_what_is():
    here = machine(2, 2, 1)
    with pytest.raises(InputError, match=r"no GPU 3.*0 \(made\)"):
        refuse_absent(stand(0, 0, gpu=3), here)
    with pytest.raises(InputError, match="no NUMA node 7; this machine has: 0, 1"):
        refuse_absent(stand(0, 7), here)
    with pytest.raises(InputError, match=r"pool of 2,048 MB is larger than node 1.*1,024 MB"):
        refuse_absent(stand(0, 1, staged_bytes=2 * GB), here)
    refuse_absent(stand(0, 1, gpu=0, staged_bytes=GB), here)


def test_distance_is_from_the_memory_to_what_computes():
    here = machine(2, 2, 2)
    assert distance(stand(0, 0, gpu=0), here) == 10
    assert distance(stand(0, 0, gpu=1), here) == 21
    assert distance(stand(0, 1, cpu_node=0), here) == 21
    assert distance(stand(0, 1, cpu_node=1), here) == 10
