"""Schedules: right for any number of ranks and chunks, refuted if broken, the same after a round trip through JSON."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import schedules

from ridgeline import fabric
from ridgeline.errors import InputError
from ridgeline.fabric import ProofError, Schedule, Step


@given(schedules(), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_every_schedule_is_proved_with_one_message_per_link(plan, buffers):
    proof = fabric.prove(plan, buffers=buffers)
    assert proof.steps == sum(map(len, plan.programs))
    assert proof.steps == 2 * proof.messages


@given(schedules(least_ranks=2, most_ranks=9), st.data())
@settings(max_examples=200, deadline=None)
def test_a_dropped_duplicated_or_redirected_step_is_refuted(plan, data):
    rank = data.draw(st.sampled_from([r for r, p in enumerate(plan.programs) if p]))
    index = data.draw(st.integers(0, len(plan.programs[rank]) - 1))
    how = data.draw(st.sampled_from(["drop", "duplicate", "redirect", "other chunk"]))
    program = list(plan.programs[rank])
    step = program[index]
    if how == "drop":
        del program[index]
    elif how == "duplicate":
        program.insert(index, step)
    elif how == "redirect":
        others = [r for r in range(plan.ranks) if r not in (rank, step.peer)] or [plan.ranks]
        program[index] = step._replace(peer=data.draw(st.sampled_from(others)))
    else:
        program[index] = step._replace(chunk=step.chunk + 1)
    programs = list(plan.programs)
    programs[rank] = tuple(program)
    with pytest.raises(ProofError, match=r"rank \d+"):
        fabric.prove(plan.with_programs(programs))


@given(schedules(least_ranks=3, most_ranks=9), st.data())
@settings(max_examples=150, deadline=None)
def test_a_chunk_that_is_sent_before_it_is_received_is_refuted(plan, data):
    places = [
        (rank, i, j)
        for rank, program in enumerate(plan.programs)
        for i, j in itertools.combinations(range(len(program)), 2)
        if program[i].kind != "send" and program[j].kind == "send" and _do_overlap(program[i], program[j])
    ]
    if not places:
        return
    rank, i, j = data.draw(st.sampled_from(places))
    program = list(plan.programs[rank])
    program.insert(i, program.pop(j))
    programs = list(plan.programs)
    programs[rank] = tuple(program)
    with pytest.raises(ProofError):
        fabric.prove(plan.with_programs(programs))


def _do_overlap(a: Step, b: Step) -> bool:
    return a.chunk < b.chunk + b.width and b.chunk < a.chunk + a.width


def test_a_proof_error_names_rank_and_step():
    ring = fabric.schedule("all_reduce", "ring", ranks=4)
    programs = list(ring.programs)
    programs[2] = programs[2][:3] + programs[2][4:]
    with pytest.raises(ProofError, match=r"rank \d, step \d+ \(\w+ \d") as caught:
        fabric.prove(ring.with_programs(programs))
    assert caught.value.rank in range(4)
    assert caught.value.step is not None


def test_two_ranks_that_receive_first_are_a_deadlock():
    swap = fabric.schedule("all_reduce", "recursive_doubling", ranks=2)
    reversed_swap = swap.with_programs([tuple(reversed(p)) for p in swap.programs])
    with pytest.raises(ProofError, match="deadlock"):
        fabric.prove(reversed_swap)


def test_a_sum_that_counts_a_rank_twice_is_refuted():
    twice = fabric.schedule("all_reduce", "recursive_doubling", ranks=2)
    with pytest.raises(ProofError, match=r"the data of rank [01] is added twice"):
        fabric.prove(twice.with_programs([p + p for p in twice.programs]))


def test_reading_an_unwritten_chunk_is_refuted():
    chain = fabric.schedule("broadcast", "chain", ranks=3, chunks=1)
    programs = [(), (Step("send", 2, 0),), (Step("recv", 1, 0),)]
    with pytest.raises(ProofError, match=r"rank 1, step 0 .*read before anything was written"):
        fabric.prove(chain.with_programs(programs))


@given(schedules(most_ranks=6))
@settings(max_examples=40, deadline=None)
def test_json_returns_the_same_schedule(plan):
    copy = Schedule.from_json(plan.to_json())
    assert tuple(copy.programs) == tuple(plan.programs)
    assert (copy.op, copy.ranks, copy.chunks) == (plan.op, plan.ranks, plan.chunks)
    fabric.prove(copy)


def test_a_schedule_is_frozen_and_prints():
    plan = fabric.schedule("all_reduce", "ring", ranks=2)
    with pytest.raises(AttributeError):
        plan.ranks = 3
    assert "rank 1: send 0 to 0 · reduce 1 from 0" in str(plan)


def test_between_hosts_only_leaders_or_ranks_of_one_local_number_exchange_data():
    hosts = ["a", "b", "a", "b", "a"]
    for op, name in (("all_reduce", "leader_ring"), ("all_reduce", "leader_tree"), ("broadcast", "leader_tree")):
        plan = fabric.schedule(op, name, ranks=5, hosts=hosts)
        pairs = {(r, s.peer) for r, p in enumerate(plan.programs) for s in p if hosts[r] != hosts[s.peer]}
        assert pairs == {(0, 1), (1, 0)}
    plan = fabric.schedule("all_reduce", "hierarchical", ranks=5, hosts=hosts)
    steps = [s for r, p in enumerate(plan.programs) for s in p if s.kind == "send" and hosts[r] != hosts[s.peer]]
    assert sum(s.width for s in steps) == 2 * plan.chunks  # each host sends the data once
    pairs = {(r, s.peer) for r, p in enumerate(plan.programs) for s in p if hosts[r] != hosts[s.peer]}
    assert pairs == {(0, 1), (1, 0), (2, 3), (3, 2)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"op": "all_reduce", "algorithm": "rign", "ranks": 2}, "did you mean 'ring'"),
        ({"op": "all_redcue", "algorithm": "ring", "ranks": 2}, "no collective 'all_redcue'"),
        ({"op": "all_reduce", "algorithm": "ring", "ranks": 0}, "ranks is 0"),
        ({"op": "all_reduce", "algorithm": "tree", "ranks": 2, "chunks": 0}, "chunks is 0"),
        ({"op": "broadcast", "algorithm": "tree", "ranks": 2, "root": 2}, "root is 2"),
        ({"op": "all_reduce", "algorithm": "hierarchical", "ranks": 7, "nodes": 2}, "evenly over 2 nodes"),
        ({"op": "all_reduce", "algorithm": "leader_ring", "ranks": 3, "hosts": "ab"}, "2 hosts for 3 ranks"),
        ({"op": "all_reduce", "algorithm": "ring", "ranks": 7, "channels": 0}, "channels is 0"),
        ({"op": "all_reduce", "algorithm": "tree", "ranks": 7, "channels": 2}, "a ring has 1 or more"),
    ],
)
def test_the_error_for_wrong_arguments_is_one_sentence(call, message):
    op, algorithm = call.pop("op"), call.pop("algorithm")
    with pytest.raises(InputError, match=message):
        fabric.schedule(op, algorithm, **call)
