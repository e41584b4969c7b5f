"""Plans for random machines: each rank has CPUs, no CPU has two ranks, caches fill evenly."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.machine import Cache, Cpu, Gpu, Node, Placement, Topology, find_nearest_gpus, find_nearest_node, plan


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
    result: list[Node] = []
    for n, node in enumerate(nodes):
        cpus_of_node: list[int] = []
        for d in range(domains):
            shared: list[int] = []
            for c in range(cores):
                number = (n * domains + d) * cores + c
                ids = [number * threads + t if adjacent else number + t * total for t in range(threads)]
                cpus += [Cpu(i, node, ids[0], n, i not in barred) for i in ids]
                shared += ids
            caches.append(Cache(3, 1 << 25, tuple(sorted(shared))))
            cpus_of_node += shared
        distances = {m: 10 if m == node else 21 for m in nodes}
        result.append(Node(node, tuple(sorted(cpus_of_node)), 1 << 30, distances))
    boards = tuple(Gpu(i, None, "GPU", f"0000:{i:02x}:00.0", node, (), None, None) for i, node in enumerate(gpus))
    return Topology(tuple(result), tuple(sorted(cpus, key=lambda c: c.id)), tuple(caches), boards, ())


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    nodes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True))
    domains, cores, threads = (draw(st.integers(1, most)) for most in (3, 4, 4))
    total = len(nodes) * domains * cores * threads
    barred = draw(st.frozensets(st.integers(0, total - 1), max_size=total - 1))
    gpus = draw(st.lists(st.sampled_from([*nodes, None]), max_size=6))
    return machine(nodes, domains, cores, threads, barred=barred, gpus=tuple(gpus), adjacent=draw(st.booleans()))


def check_cpus(computer: Topology, placements: list[Placement], ranks: int) -> None:
    assert len(placements) == ranks
    assigned = [cpu for p in placements for cpu in p.cpus or ()]
    assert all(p.cpus for p in placements)
    assert len(assigned) == len(set(assigned)), "a CPU was given twice"
    assert set(assigned) <= set(computer.usable_cpus)
    for p in placements:
        assert p.node is not None
        assert set(p.cpus or ()) <= set(computer.node(p.node).cpus)


@given(machines(), st.sampled_from(["node", "core"]), st.data())
def test_any_number_of_ranks_up_to_the_number_of_cpus_is_placed(computer: Topology, per: str, data: st.DataObject):
    ranks = data.draw(st.integers(1, len(computer.usable_cpus)))
    check_cpus(computer, plan(computer, ranks, per), ranks)


@given(machines(), st.data())
def test_each_rank_is_placed_on_the_node_of_its_gpu(computer: Topology, data: st.DataObject):
    assume(computer.gpus)
    ranks = data.draw(st.integers(1, 2 * len(computer.gpus)))
    homes = Counter(computer.gpus[rank % len(computer.gpus)].node for rank in range(ranks))
    usable_by_node = {n.id: len(set(n.cpus) & set(computer.usable_cpus)) for n in computer.nodes}
    crowded = any(usable_by_node[n] and count > usable_by_node[n] for n, count in homes.items() if n is not None)
    if crowded or ranks > len(computer.usable_cpus):
        with pytest.raises(InputError, match="ranks are too many"):
            plan(computer, ranks, "gpu")
        return
    placements = plan(computer, ranks, "gpu")
    check_cpus(computer, placements, ranks)
    for rank, p in enumerate(placements):
        gpu = computer.gpus[rank % len(computer.gpus)]
        assert p.gpu == gpu.index
        if gpu.node is not None and set(computer.node(gpu.node).cpus) & set(computer.usable_cpus):
            assert p.node == gpu.node


def test_ranks_of_named_gpus_share_only_the_cpus_of_their_node():
    computer = machine([0, 1], cores=4, gpus=(0, 0, 1, 1))
    last, first, again = plan(computer, 3, "gpu", gpus=[3, 0, 0])
    assert [p.gpu for p in (last, first, again)] == [3, 0, 0]
    assert last.cpus == (4, 5, 6, 7)
    assert (first.cpus or ()) + (again.cpus or ()) == (0, 1, 2, 3)
    with pytest.raises(InputError, match="no GPU 9"):
        plan(computer, 1, "gpu", gpus=[9])


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.data())
def test_ranks_spread_evenly_over_equal_cache_domains(
    nodes: int, domains: int, cores: int, threads: int, data: st.DataObject
):
    computer = machine(list(range(nodes)), domains, cores, threads)
    ranks = data.draw(st.integers(1, nodes * domains * cores))
    for per in ("core", "node"):
        placements = plan(computer, ranks, per)
        loads = [
            sum(bool(set(p.cpus or ()) & set(domain)) / count_domains(computer, p) for p in placements)
            for domain in computer.llc_domains()
        ]
        counts = [sum(bool(set(p.cpus or ()) & set(d)) for p in placements) for d in computer.llc_domains()]
        assert max(counts) - min(counts) <= 1, (per, loads)


def count_domains(computer: Topology, placement: Placement) -> int:
    return sum(bool(set(placement.cpus or ()) & set(d)) for d in computer.llc_domains())


@given(machines())
def test_more_ranks_than_cpus_is_an_error_with_both_numbers(computer: Topology):
    usable = len(computer.usable_cpus)
    for per in ("core", "node"):
        with pytest.raises(InputError) as caught:
            plan(computer, usable + 1, per)
        assert f"{usable + 1} ranks" in str(caught.value)
        assert f"{usable} " in str(caught.value)


@given(st.booleans(), st.integers(1, 8))
def test_no_core_gets_a_second_rank_while_another_core_is_free(adjacent: bool, ranks: int):
    computer = machine([0], 1, 4, 2, adjacent=adjacent)
    core_by_cpu = {c.id: c.core for c in computer.cpus}
    for per in ("core", "node"):
        used = Counter(core_by_cpu[c] for p in plan(computer, ranks, per) for c in (p.cpus or ())[:1])
        assert max(used.values()) - (min(used.values()) if len(used) == 4 else 0) <= 1, per


def test_one_rank_per_node_gets_all_cpus_of_the_node():
    computer = machine([0, 8], 2, 2, 2)
    assert plan(computer, 2, "node") == [
        Placement(0, computer.node(0).cpus),
        Placement(8, computer.node(8).cpus),
    ]


def test_one_rank_per_core_gets_all_threads_of_its_core():
    computer = machine([0], 2, 2, 2)
    assert [p.cpus for p in plan(computer, 4, "core")] == [(0, 1), (4, 5), (2, 3), (6, 7)]


def test_per_core_the_ranks_spread_over_nodes_then_caches_then_cores():
    computer = machine([0, 1, 2, 3], domains=2, cores=4)
    for ranks in (4, 6, 8, 13):
        placements = plan(computer, ranks, "core")
        per_node = [sum(p.node == n.id for p in placements) for n in computer.nodes]
        per_domain = [sum(set(p.cpus or ()) <= set(d) for p in placements) for d in computer.llc_domains()]
        assert max(per_node) - min(per_node) <= 1, (ranks, per_node)
        assert max(per_domain) - min(per_domain) <= 1, (ranks, per_domain)


def test_per_core_a_larger_node_gets_proportionally_more_ranks():
    computer = machine([0, 1], domains=2, cores=6, barred=frozenset({0, 1, 2, 3, 6, 7, 8, 9}))
    placements = plan(computer, 8, "core")  # node 0 has 4 usable cores, node 1 has 12
    assert Counter(p.node for p in placements) == {0: 2, 1: 6}


def test_per_core_a_second_thread_is_used_only_after_every_core():
    barred = frozenset({5, 7})  # the second threads of two cores: their domain has fewer CPUs, not fewer cores
    computer = machine([0, 1], cores=2, threads=2, barred=barred)
    assert {(p.cpus or ())[0] for p in plan(computer, 5, "core")[:4]} == {0, 2, 4, 6}


def test_ranks_of_one_gpu_divide_the_cpus_of_its_node():
    computer = machine([0, 1], 1, 4, gpus=(1,))
    assert plan(computer, 2) == [Placement(1, (4, 5), gpu=0), Placement(1, (6, 7), gpu=0)]


def test_gpus_of_unknown_node_get_the_node_with_most_free_cpus():
    computer = machine([0, 1], 1, 8, barred=frozenset(range(7)), gpus=(None, None, None))
    assert Counter(p.node for p in plan(computer, 3)) == {1: 3}


def test_when_a_small_node_is_full_further_ranks_go_to_other_nodes():
    computer = machine([0, 1], 1, 4, barred=frozenset({0, 1, 2}))
    assert Counter(p.node for p in plan(computer, 5, "node")) == {0: 1, 1: 4}


def test_cpus_without_a_node_are_planned_as_well():
    computer = Topology((Node(1, (), 1 << 30),), (Cpu(0, None, 0, 0, True), Cpu(1, None, 1, 0, True)), (), (), ())
    for per in ("core", "node"):
        assert sorted(p.cpus or () for p in plan(computer, 2, per)) == [(0,), (1,)]


@pytest.mark.parametrize("ranks", [0, -3])
def test_fewer_than_one_rank_is_refused(ranks: int):
    with pytest.raises(InputError, match=f"cannot plan {ranks} ranks"):
        plan(machine([0]), ranks, "node")


def test_the_error_for_an_unknown_unit_lists_the_valid_units():
    with pytest.raises(InputError, match="cannot plan per 'socket'; there are: gpu, node, core"):
        plan(machine([0]), 1, "socket")


def test_the_error_for_a_plan_without_gpus_names_the_alternatives():
    with pytest.raises(InputError, match=r"sees no GPU .* per='node' or per='core'"):
        plan(machine([0]), 1, "gpu")


def test_the_nearest_gpus_come_first():
    computer = machine([0, 1], gpus=(1, 0, None, 1))
    assert [g.index for g in find_nearest_gpus(computer, 1)] == [0, 3, 1]
    assert [g.index for g in find_nearest_gpus(computer, 0)] == [1, 0, 3]
    assert [find_nearest_node(g) for g in computer.gpus] == [1, 0, None, 1]


def test_the_default_machine_of_a_plan_is_this_one():
    assert len(plan(ranks=1, per="core")) == 1
