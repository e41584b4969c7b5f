"""Schedules: right for any rank count and chunks, refuted when broken, the same after a trip through JSON."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import schedules

from ridgeline import fabric
from ridgeline.errors import InputError
from ridgeline.fabric import Refuted, Schedule, Step


@given(schedules(), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_every_schedule_proves_with_room_for_one_message(made, buffers):
    proof = fabric.prove(made, buffers=buffers)
    assert proof.steps == sum(map(len, made.programs))
    assert proof.steps == 2 * proof.messages


@given(schedules(least_ranks=2, most_ranks=9), st.data())
@settings(max_examples=200, deadline=None)
def test_a_dropped_duplicated_or_redirected_step_is_refuted(made, data):
    rank = data.draw(st.sampled_from([r for r, p in enumerate(made.programs) if p]))
    at = data.draw(st.integers(0, len(made.programs[rank]) - 1))
    how = data.draw(st.sampled_from(["drop", "duplicate", "redirect", "other chunk"]))
    program = list(made.programs[rank])
    step = program[at]
    if how == "drop":
        del program[at]
    elif how == "duplicate":
        program.insert(at, step)
    elif how == "redirect":
        others = [r for r in range(made.ranks) if r not in (rank, step.peer)] or [made.ranks]
        program[at] = step._replace(peer=data.draw(st.sampled_from(others)))
    else:
        program[at] = step._replace(chunk=step.chunk + 1)
    programs = list(made.programs)
    programs[rank] = tuple(program)
    with pytest.raises(Refuted, match=r"rank \d+"):
        fabric.prove(made.with_programs(programs))


@given(schedules(least_ranks=3, most_ranks=9), st.data())
@settings(max_examples=150, deadline=None)
def test_a_chunk_sent_on_before_it_came_is_refuted(made, data):
    places = [
        (rank, i, j)
        for rank, program in enumerate(made.programs)
        for i, j in itertools.combinations(range(len(program)), 2)
        if program[i].kind != "send" and program[j].kind == "send" and _overlap(program[i], program[j])
    ]
    if not places:
        return
    rank, i, j = data.draw(st.sampled_from(places))
    program = list(made.programs[rank])
    program.insert(i, program.pop(j))
    programs = list(made.programs)
    programs[rank] = tuple(program)
    with pytest.raises(Refuted):
        fabric.prove(made.with_programs(programs))


def _overlap(a: Step, b: Step) -> bool:
    return a.chunk < b.chunk + b.width and b.chunk < a.chunk + a.width


def test_a_refutation_names_rank_and_step():
    ring = fabric.schedule("all_reduce", "ring", ranks=4)
    programs = list(ring.programs)
    programs[2] = programs[2][:3] + programs[2][4:]
    with pytest.raises(Refuted, match=r"rank \d, step \d+ \(\w+ \d") as told:
        fabric.prove(ring.with_programs(programs))
    assert told.value.rank in range(4)
    assert told.value.step is not None


def test_two_ranks_that_receive_first_are_a_deadlock():
    swap = fabric.schedule("all_reduce", "recursive_doubling", ranks=2)
    turned = swap.with_programs([tuple(reversed(p)) for p in swap.programs])
    with pytest.raises(Refuted, match="deadlock"):
        fabric.prove(turned)


def test_a_sum_that_counts_a_rank_twice_is_refuted():
    twice = fabric.schedule("all_reduce", "recursive_doubling", ranks=2)
    with pytest.raises(Refuted, match=r"rank 0 contributes is added twice|rank 1 contributes is added twice"):
        fabric.prove(twice.with_programs([p + p for p in twice.programs]))


def test_reading_what_nobody_wrote_is_refuted():
    chain = fabric.schedule("broadcast", "chain", ranks=3, chunks=1)
    programs = [(), (Step("send", 2, 0),), (Step("recv", 1, 0),)]
    with pytest.raises(Refuted, match=r"rank 1, step 0 .*read before anything was written"):
        fabric.prove(chain.with_programs(programs))


def test_a_copy_within_a_rank_is_followed():
    chain = fabric.schedule("broadcast", "chain", ranks=2, chunks=2)
    programs = [(Step("copy", 0, 1), Step("send", 1, 0)), (Step("recv", 0, 0), Step("copy", 0, 1))]
    assert fabric.prove(chain.with_programs(programs)).steps == 4


@given(schedules(most_ranks=6))
@settings(max_examples=40, deadline=None)
def test_json_gives_the_same_schedule_back(made):
    again = Schedule.from_json(made.to_json())
    assert tuple(again.programs) == tuple(made.programs)
    assert (again.op, again.ranks, again.chunks) == (made.op, made.ranks, made.chunks)
    fabric.prove(again)


def test_a_schedule_is_frozen_and_prints():
    made = fabric.schedule("all_reduce", "ring", ranks=2)
    with pytest.raises(AttributeError):
        made.ranks = 3
    assert "rank 1: send 0 to 0 · reduce 1 from 0" in str(made)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"op": "all_reduce", "algorithm": "rign", "ranks": 2}, "did you mean 'ring'"),
        ({"op": "all_redcue", "algorithm": "ring", "ranks": 2}, "no collective 'all_redcue'"),
        ({"op": "all_reduce", "algorithm": "ring", "ranks": 0}, "ranks is 0"),
        ({"op": "all_reduce", "algorithm": "tree", "ranks": 2, "chunks": 0}, "chunks is 0"),
        ({"op": "broadcast", "algorithm": "tree", "ranks": 2, "root": 2}, "root is 2"),
        ({"op": "all_reduce", "algorithm": "hierarchical", "ranks": 7, "nodes": 2}, "evenly over 2 nodes"),
    ],
)
def test_bad_input_is_one_sentence(call, says):
    op, algorithm = call.pop("op"), call.pop("algorithm")
    with pytest.raises(InputError, match=says):
        fabric.schedule(op, algorithm, **call)
