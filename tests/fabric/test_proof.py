"""Proofs: a schedule is proved if, and only if, an execution with random numbers gives the right sums."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fabric.mutants import Document, is_proved, make_document, mutate
from tests.strategies import CALLS, json_values

from ridgeline import fabric
from ridgeline.errors import InputError
from ridgeline.fabric import ProofError, Schedule, Step


class Execution:
    """A schedule run as the engine runs it: chunks of unequal length, random numbers, one message per link."""

    def __init__(self, document: Document, generator: random.Random) -> None:
        self.op, self.ranks, self.chunks = document["op"], document["ranks"], document["chunks"]
        self.root, self.programs = document["root"], document["programs"]
        self.blocks = self.op in ("all_gather", "reduce_scatter")
        self.per_block = self.chunks // self.ranks if self.blocks else self.chunks
        self.count = self.per_block + generator.randint(0, 2 * self.per_block)  # elements of a block
        length = self.count * (self.ranks if self.blocks else 1)
        self.inputs = [[generator.getrandbits(60) for _ in range(length)] for _ in range(self.ranks)]
        self.data: list[list[int | None]] = [self._make_initial(rank) for rank in range(self.ranks)]

    def _make_initial(self, rank: int) -> list[int | None]:
        if self.op == "all_gather":
            return [x if k // self.count == rank else None for k, x in enumerate(self.inputs[rank])]
        if self.op == "broadcast" and rank != self.root:
            return [None] * self.count
        return list(self.inputs[rank])

    def _find_start(self, chunk: int) -> int:
        block, piece = divmod(chunk, self.per_block)
        return block * self.count + piece * self.count // self.per_block

    def _get_span(self, chunk: int, width: int = 1) -> slice:
        return slice(self._find_start(chunk), self._find_start(chunk + width))

    def is_right(self) -> bool:
        """No rank waits for ever, nothing is left over, nothing unwritten is read, and the result is right."""
        if self.blocks and self.chunks % self.ranks:
            return False
        position, links, progress = [0] * self.ranks, {}, True
        while progress:
            progress = False
            for rank, program in enumerate(self.programs):
                while position[rank] < len(program):
                    outcome = self._run_step(rank, program[position[rank]], links)
                    if outcome == "wrong":
                        return False
                    if outcome == "wait":
                        break
                    position[rank] += 1
                    progress = True
        done = all(at == len(program) for at, program in zip(position, self.programs, strict=True))
        return done and not links and all(self._has_result(rank) for rank in range(self.ranks))

    def _run_step(self, rank: int, step: list[Any], links: dict[tuple[int, int], Any]) -> str:
        kind, peer, chunk, width = step
        data = self.data[rank]
        if width < 1 or not 0 <= chunk <= self.chunks - width:
            return "wrong"
        if kind == "copy":
            if not 0 <= peer <= self.chunks - width:
                return "wrong"
            if None in data[self._get_span(peer, width)]:
                return "wrong"
            before = list(data)
            for k in range(width):
                values, target = before[self._get_span(peer + k)], self._get_span(chunk + k)
                end = min(target.stop, target.start + len(values))
                data[target.start : end] = values[: end - target.start]
            return "done"
        if peer == rank or not 0 <= peer < self.ranks:
            return "wrong"
        span = self._get_span(chunk, width)
        if kind == "send":
            if (rank, peer) in links:
                return "wait"
            links[rank, peer] = (chunk, width, data[span])
            return "wrong" if None in data[span] else "done"
        if (peer, rank) not in links:
            return "wait"
        sent_chunk, sent_width, values = links.pop((peer, rank))
        if (sent_chunk, sent_width) != (chunk, width) or (kind == "reduce" and None in data[span]):
            return "wrong"
        data[span] = values if kind == "recv" else [a + b for a, b in zip(data[span], values, strict=True)]
        return "done"

    def _has_result(self, rank: int) -> bool:
        total = [sum(column) for column in zip(*self.inputs, strict=True)]
        if self.op == "all_gather":
            return self.data[rank] == [self.inputs[k // self.count][k] for k in range(len(total))]
        if self.op == "reduce_scatter":
            block = slice(rank * self.count, (rank + 1) * self.count)
            return self.data[rank][block] == total[block]
        if self.op == "broadcast":
            return self.data[rank] == self.inputs[self.root]
        return self.data[rank] == total or (self.op == "reduce" and rank != self.root)


def test_a_copy_into_a_longer_chunk_leaves_an_element_that_must_not_be_sent():
    plan = fabric.schedule("broadcast", "chain", ranks=3, chunks=2)
    programs = [list(map(list, p)) for p in plan.programs]
    programs[1].insert(1, ["copy", 0, 1, 1])
    changed = Schedule("broadcast", "mine", 3, 2, 1, 0, programs)
    fabric.prove(changed)  # chunk 1 is received before it is sent on
    programs[1].insert(2, ["send", 2, 1, 1])
    programs[2].insert(0, ["recv", 1, 1, 1])
    with pytest.raises(ProofError, match=r"rank 1, step 2 .*chunk 1 is read before all of it was written"):
        fabric.prove(Schedule("broadcast", "mine", 3, 2, 1, 0, programs))


@pytest.mark.parametrize("mutants", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_of_random_mutants_no_wrong_one_is_proved_and_few_right_ones_are_refused(mutants):
    generator = random.Random(mutants)
    originals = [make_document(op, name, n, chunks=c) for op, name in CALLS for n in (2, 3, 4) for c in (1, 2)]
    originals += [make_document(op, "ring", 4, nodes=2, channels=2) for op in ("all_reduce", "all_gather")]
    right = refused = 0
    for _ in range(mutants):
        document = mutate(generator.choice(originals), generator)
        proved, is_right = is_proved(document), Execution(document, generator).is_right()
        assert is_right or not proved, f"proved, but wrong: {document}"
        right += is_right
        refused += is_right and not proved
    print(f"{mutants:,} mutants, {right:,} right, {refused:,} of them refused, no wrong one proved")
    assert right > 0.1 * mutants
    assert refused <= 0.05 * right


def _append(document: Document, rank: int, *steps: list[Any], at_start: bool = False) -> Document:
    programs = [list(p) for p in document["programs"]]
    programs[rank] = [*steps, *programs[rank]] if at_start else [*programs[rank], *steps]
    return {**document, "programs": programs}


RING = make_document("all_reduce", "ring", 4)
CROSSED = {
    **make_document("all_reduce", "ring", 2),
    "programs": [[["copy", 0, 1, 1], ["send", 1 - r, 0, 2], ["reduce", 1 - r, 0, 2]] for r in (0, 1)],
}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (_append(RING, 1, ["copy", 0, 1, 1], at_start=True), r"rank 1, step 0 \(copy .*chunk 0 is put into chunk 1"),
        (_append(RING, 2, ["copy", 0, 3, 1]), "rank 2 has it in chunk 3 at the end"),
        (
            CROSSED,  # each slot has the right contributors, of the wrong chunk
            "the data of chunk 0 is put into chunk 1",
        ),
        (_append(RING, 0, ["send", 0, 0, 1]), "there is no other rank 0"),
        (_append(RING, 0, ["send", 4, 0, 1]), "there is no other rank 4"),
        (_append(RING, 0, ["send", 1, 4, 1]), "only the chunks 0 to 3"),
        (_append(RING, 0, ["send", 1, 0, 0]), "only the chunks 0 to 3"),
        (_append(RING, 0, ["copy", -1, 0, 1]), "there is no chunk -1 to copy"),
        (_append(RING, 0, ["send", 1, 0, 1]), "rank 1 never receives this"),
    ],
)
def test_a_forged_schedule_is_refuted_with_rank_and_step(document, message):
    with pytest.raises(ProofError, match=message) as caught:
        fabric.prove(Schedule.from_json(json.dumps(document)))
    assert caught.value.step is not None


def test_wrong_data_that_is_overwritten_does_no_harm():
    ring = fabric.schedule("all_gather", "ring", ranks=2)
    programs = [list(p) for p in ring.programs]
    programs[0].insert(0, Step("copy", 0, 1))
    assert fabric.prove(ring.with_programs(programs)).steps == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op": "frobnicate"}, "there is no collective 'frobnicate'"),
        ({"op": ["all_reduce"]}, "there is no collective"),
        ({"op": None}, "there is no collective 'None'"),
        ({"algorithm": 3}, "algorithm is 3"),
        ({"ranks": 0, "programs": []}, "ranks is 0"),
        ({"ranks": 2}, "4 programs for 2 ranks"),
        ({"ranks": True}, "ranks is True; give a whole number"),
        ({"chunks": 0}, "chunks is 0"),
        ({"chunks": "4"}, "chunks is '4'; give a whole number"),
        ({"chunks": 4.0}, "chunks is 4.0; give a whole number"),
        ({"chunks": 10**40}, "at most"),
        ({"chunks": 1 << 40}, "too many for a proof"),
        ({"op": "all_gather", "chunks": 7}, "needs a multiple of 4"),
        ({"op": "reduce_scatter", "chunks": 1}, "needs a multiple of 4"),
        ({"nodes": 0}, "nodes is 0"),
        ({"nodes": 3}, "evenly over 3 nodes"),
        ({"root": 9}, "root is 9; it must be one of the ranks 0 to 3"),
        ({"root": -1}, "root is -1"),
        ({"root": None}, "root is None"),
        ({"channels": 0}, "channels is 0"),
        ({"programs": 5}, "programs is 5"),
        ({"programs": {"0": []}}, "give a list of steps for each rank"),
        ({"programs": [[], [], [], 7]}, "the program of rank 3 is 7"),
        ({"programs": [[], [7], [], []]}, "rank 1, step 0 is 7"),
        ({"programs": [[], [["send", 1]], [], []]}, "rank 1, step 0 is .'send', 1."),
        ({"programs": [[], [["send", "1", 0, 1]], [], []]}, "rank 1, step 0: peer is '1'"),
        ({"programs": [[], [["send", 1, 0.5, 1]], [], []]}, "rank 1, step 0: chunk is 0.5"),
        ({"programs": [[], [["send", 1, 0, None]], [], []]}, "rank 1, step 0: width is None"),
        ({"programs": [[], [["push", 1, 0, 1]], [], []]}, "rank 1, step 0: there is no step of kind 'push'"),
        ({"programs": [[], [[["send"], 1, 0, 1]], [], []]}, "there is no step of kind"),
        ({"comment": "mine"}, "has the fields op, algorithm"),
    ],
)
def test_what_is_no_schedule_is_refused_in_one_sentence(changes, message):
    with pytest.raises(InputError, match=message) as caught:
        fabric.prove(Schedule.from_json(json.dumps({**RING, **changes})))
    assert "\n" not in str(caught.value)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_value_in_any_place_is_proved_or_refused_without_another_error(data):
    document = json.loads(json.dumps(RING))
    value = data.draw(json_values)
    place = data.draw(st.sampled_from([*document, "program", "step", "entry"]))
    if place in document:
        document[place] = value
    elif place == "program":
        document["programs"][1] = value
    elif place == "step":
        document["programs"][1][2] = value
    else:
        document["programs"][1][2][data.draw(st.integers(0, 3))] = value
    is_proved(document)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "{}", '"ring"', "[" * 100_000, "1" * 5_000])
def test_a_text_that_holds_no_schedule_is_refused_in_one_sentence(text):
    with pytest.raises(InputError, match=r"fields op|not JSON"):
        Schedule.from_json(text)


def test_a_proof_is_cached_with_its_schedule_and_not_with_a_changed_one():
    ring = fabric.schedule("all_reduce", "ring", ranks=3)
    assert fabric.prove(ring) is fabric.prove(ring)
    assert fabric.prove(ring, buffers=2).buffers == 2
    with pytest.raises(ProofError):
        fabric.prove(ring.with_programs([p[:-1] for p in ring.programs]))


def test_a_schedule_travels_to_another_process():
    ring = fabric.schedule("all_reduce", "ring", ranks=3)
    assert pickle.loads(pickle.dumps(ring)) == ring
