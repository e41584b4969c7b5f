"""Plans over random machines: everyone has a place, nobody shares one, caches fill evenly."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.machine import Cache, Cpu, Gpu, Node, Placement, Topology, nearest_gpus, nearest_node, plan


def machine(
    nodes: list[int],
    domains: int = 1,
    cores: int = 2,
    threads: int = 1,
    *,
    barred: frozenset[int] = frozenset(),
    gpus: tuple[int | None, ...] = (),
    adjacent: bool = True,
) -> Topology:
    """Every node has `domains` last-level caches of `cores` cores of `threads`; `barred` CPUs are not usable."""
    total = len(nodes) * domains * cores
    cpus: list[Cpu] = []
    caches: list[Cache] = []
    found: list[Node] = []
    for n, node in enumerate(nodes):
        mine: list[int] = []
        for d in range(domains):
            shared: list[int] = []
            for c in range(cores):
                number = (n * domains + d) * cores + c
                ids = [number * threads + t if adjacent else number + t * total for t in range(threads)]
                cpus += [Cpu(i, node, ids[0], n, i not in barred) for i in ids]
                shared += ids
            caches.append(Cache(3, 1 << 25, tuple(sorted(shared))))
            mine += shared
        distances = {m: 10 if m == node else 21 for m in nodes}
        found.append(Node(node, tuple(sorted(mine)), 1 << 30, distances))
    boards = tuple(Gpu(i, None, "GPU", f"0000:{i:02x}:00.0", node, (), None, None) for i, node in enumerate(gpus))
    return Topology(tuple(found), tuple(sorted(cpus, key=lambda c: c.id)), tuple(caches), boards, ())


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    nodes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True))
    domains, cores, threads = (draw(st.integers(1, most)) for most in (3, 4, 4))
    total = len(nodes) * domains * cores * threads
    barred = draw(st.frozensets(st.integers(0, total - 1), max_size=total - 1))
    gpus = draw(st.lists(st.sampled_from([*nodes, None]), max_size=6))
    return machine(nodes, domains, cores, threads, barred=barred, gpus=tuple(gpus), adjacent=draw(st.booleans()))


def check_cpus(here: Topology, placements: list[Placement], ranks: int) -> None:
    assert len(placements) == ranks
    given_out = [cpu for p in placements for cpu in p.cpus or ()]
    assert all(p.cpus for p in placements)
    assert len(given_out) == len(set(given_out)), "a CPU was given twice"
    assert set(given_out) <= set(here.usable_cpus)
    for p in placements:
        assert p.node is not None
        assert set(p.cpus or ()) <= set(here.node(p.node).cpus)


@given(machines(), st.sampled_from(["node", "core"]), st.data())
def test_any_number_of_ranks_up_to_the_cpus_finds_places(here: Topology, per: str, data: st.DataObject):
    ranks = data.draw(st.integers(1, len(here.usable_cpus)))
    check_cpus(here, plan(here, ranks, per), ranks)


@given(machines(), st.data())
def test_ranks_of_gpus_stand_on_their_gpus_node(here: Topology, data: st.DataObject):
    assume(here.gpus)
    ranks = data.draw(st.integers(1, 2 * len(here.gpus)))
    homes = Counter(here.gpus[rank % len(here.gpus)].node for rank in range(ranks))
    room = {n.id: len(set(n.cpus) & set(here.usable_cpus)) for n in here.nodes}
    crowded = any(room[n] and count > room[n] for n, count in homes.items() if n is not None)
    if crowded or ranks > len(here.usable_cpus):
        with pytest.raises(InputError, match="ranks asked for"):
            plan(here, ranks, "gpu")
        return
    placements = plan(here, ranks, "gpu")
    check_cpus(here, placements, ranks)
    for rank, p in enumerate(placements):
        gpu = here.gpus[rank % len(here.gpus)]
        assert p.gpu == gpu.index
        if gpu.node is not None and set(here.node(gpu.node).cpus) & set(here.usable_cpus):
            assert p.node == gpu.node


def test_named_gpus_have_the_cpus_of_their_node_to_themselves():
    here = machine([0, 1], cores=4, gpus=(0, 0, 1, 1))
    last, first, again = plan(here, 3, "gpu", gpus=[3, 0, 0])
    assert [p.gpu for p in (last, first, again)] == [3, 0, 0]
    assert last.cpus == (4, 5, 6, 7)
    assert (first.cpus or ()) + (again.cpus or ()) == (0, 1, 2, 3)
    with pytest.raises(InputError, match="no GPU 9"):
        plan(here, 1, "gpu", gpus=[9])


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.data())
def test_ranks_spread_evenly_over_equal_cache_domains(
    nodes: int, domains: int, cores: int, threads: int, data: st.DataObject
):
    here = machine(list(range(nodes)), domains, cores, threads)
    ranks = data.draw(st.integers(1, nodes * domains * cores))
    for per in ("core", "node"):
        placements = plan(here, ranks, per)
        loads = [
            sum(bool(set(p.cpus or ()) & set(domain)) / _domains_of(here, p) for p in placements)
            for domain in here.llc_domains()
        ]
        counts = [sum(bool(set(p.cpus or ()) & set(d)) for p in placements) for d in here.llc_domains()]
        assert max(counts) - min(counts) <= 1, (per, loads)


def _domains_of(here: Topology, placement: Placement) -> int:
    return sum(bool(set(placement.cpus or ()) & set(d)) for d in here.llc_domains())


@given(machines())
def test_more_ranks_than_cpus_is_an_error_with_both_numbers(here: Topology):
    usable = len(here.usable_cpus)
    for per in ("core", "node"):
        with pytest.raises(InputError) as caught:
            plan(here, usable + 1, per)
        assert f"{usable + 1} ranks" in str(caught.value)
        assert f"{usable} " in str(caught.value)


@given(st.booleans(), st.integers(1, 8))
def test_no_core_gets_a_second_rank_while_another_has_none(adjacent: bool, ranks: int):
    here = machine([0], 1, 4, 2, adjacent=adjacent)
    core_of = {c.id: c.core for c in here.cpus}
    for per in ("core", "node"):
        used = Counter(core_of[c] for p in plan(here, ranks, per) for c in (p.cpus or ())[:1])
        assert max(used.values()) - (min(used.values()) if len(used) == 4 else 0) <= 1, per


def test_one_rank_per_node_gets_the_whole_node():
    here = machine([0, 8], 2, 2, 2)
    assert plan(here, 2, "node") == [
        Placement(0, here.node(0).cpus),
        Placement(8, here.node(8).cpus),
    ]


def test_one_rank_per_core_gets_all_threads_of_its_core():
    here = machine([0], 2, 2, 2)
    assert [p.cpus for p in plan(here, 4, "core")] == [(0, 1), (4, 5), (2, 3), (6, 7)]


def test_ranks_of_one_gpu_share_out_its_node():
    here = machine([0, 1], 1, 4, gpus=(1,))
    assert plan(here, 2) == [Placement(1, (4, 5), gpu=0), Placement(1, (6, 7), gpu=0)]


def test_gpus_of_unknown_node_are_served_where_there_is_most_room():
    here = machine([0, 1], 1, 8, barred=frozenset(range(7)), gpus=(None, None, None))
    assert Counter(p.node for p in plan(here, 3)) == {1: 3}


def test_ranks_go_on_where_there_is_room_when_a_small_node_is_full():
    here = machine([0, 1], 1, 4, barred=frozenset({0, 1, 2}))
    assert Counter(p.node for p in plan(here, 5, "node")) == {0: 1, 1: 4}


def test_cpus_of_no_node_can_still_be_planned_for():
    here = Topology((Node(1, (), 1 << 30),), (Cpu(0, None, 0, 0, True), Cpu(1, None, 1, 0, True)), (), (), ())
    for per in ("core", "node"):
        assert sorted(p.cpus or () for p in plan(here, 2, per)) == [(0,), (1,)]


@pytest.mark.parametrize("ranks", [0, -3])
def test_fewer_than_one_rank_is_refused(ranks: int):
    with pytest.raises(InputError, match=f"cannot plan {ranks} ranks"):
        plan(machine([0]), ranks, "node")


def test_an_unknown_unit_is_named_with_those_there_are():
    with pytest.raises(InputError, match="cannot plan per 'socket'; there are: gpu, node, core"):
        plan(machine([0]), 1, "socket")


def test_planning_per_gpu_without_gpus_says_what_to_do():
    with pytest.raises(InputError, match=r"sees no GPU .* per='node' or per='core'"):
        plan(machine([0]), 1, "gpu")


def test_the_nearest_gpus_come_first():
    here = machine([0, 1], gpus=(1, 0, None, 1))
    assert [g.index for g in nearest_gpus(here, 1)] == [0, 3, 1]
    assert [g.index for g in nearest_gpus(here, 0)] == [1, 0, 3]
    assert [nearest_node(g) for g in here.gpus] == [1, 0, None, 1]


def test_the_machine_at_hand_can_be_planned_for():
    assert len(plan(ranks=1, per="core")) == 1
