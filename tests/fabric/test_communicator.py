"""The communicator: it stays failed after a failure, refuses before data moves, and is right where arrays overlap."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
from tests.fabric import ranks_communicator as jobs
from tests.fabric.mutants import is_proved, make_document, mutate
from tests.strategies import CALLS

from ridgeline import fabric
from ridgeline.errors import InputError
from ridgeline.fabric import Step

pytestmark = pytest.mark.ranks


def test_after_a_missed_deadline_every_call_of_all_ranks_names_the_first_failure():
    first_failure = (
        r"has failed: rank [01] gave up waiting for rank [01] in send #0 after 0\.5 s; call shrink\(\) to go on"
    )
    for rank, errors in enumerate(fabric.spawn(jobs.fail_and_go_on, 4, timeout=90)):
        for name in ("half", "all"):
            for number, text in enumerate(errors[name]):
                assert text.startswith("FabricError: "), (rank, name, number, text)
                late = number == 0 and re.search(
                    r"did not come to send #0 of rank [01] within the timeout of 0\.5 s", text
                )
                assert late or re.search(first_failure, text), (rank, name, number, text)
        # A failure ends one communicator: not the other ranks' part of the split, and not the one that was split.
        assert errors["other half"] == 2.0
        assert errors["sum"] == 4.0


def test_the_last_rank_of_a_chain_of_waiting_ranks_is_named():
    waits, cause, late = fabric.spawn(jobs.wait_in_a_chain, 3, timeout=60)
    assert "rank 1 did not come to recv #0 of rank 2 within the timeout of 0.5 s" in late
    for text in (waits, cause):
        assert "rank 2 gave up waiting for rank 1 in recv #0 after 0.5 s" in text


NAMES = ("all_reduce", "reduce_scatter", "reduce", "all_gather", "all_to_all")


@pytest.mark.parametrize(("ranks", "foreign"), [(2, False), (2, True), (3, False)])
def test_overlapping_arrays_give_what_separate_ones_give(ranks, foreign):
    rng = np.random.default_rng(ranks)
    cases = []
    for seed in range(250):
        name = str(rng.choice(NAMES))
        algorithms = [None, None, *(a for a in fabric.ALGORITHMS.get(name, {}) if a != "hierarchical")]
        count, kind = int(rng.choice([1, 7, 3_000, 40_000])), str(rng.choice(["plain", "registered"]))
        cases.append((name, count, kind, algorithms[rng.integers(len(algorithms))], seed))
    config = fabric.FabricConfig(foreign=foreign, foreign_bytes=1 << 12, foreign_move_bytes=1 << 12)
    assert fabric.spawn(jobs.find_wrong_overlaps, ranks, args=(cases,), config=config, timeout=120) == [[]] * ranks


def test_a_mismatch_leaves_overlapping_arrays_as_they_are():
    assert fabric.spawn(jobs.mismatch_in_place, 2, timeout=60) == [(True, 2.0)] * 2


def test_a_signal_handler_cannot_make_a_call_during_another(tmp_path):
    """It would wait for ever: it runs in the middle of the call that it waits for."""
    (total, text), other = fabric.spawn(jobs.call_in_signal_handler, 2, args=(tmp_path / "handled",), timeout=60)
    assert (total, other) == (2.0, 2.0)
    assert text.startswith(
        "FabricError: all_gather: a signal handler cannot make this call while it interrupts another"
    )


def test_abort_ends_the_calls_of_all_ranks():
    waiting, aborting, later = fabric.spawn(jobs.abort_in_one_rank, 3, timeout=60)
    for text in (waiting, later):
        assert re.search("has failed: rank 1 aborted it; its last call was (all_reduce|all_gather) #", text), text
    assert "rank 1 aborted it" in aborting


def test_an_array_whose_elements_share_memory_takes_no_result():
    assert fabric.spawn(jobs.write_into_shared_elements, 2, timeout=60) == [([True] * 5, 2.0)] * 2


def test_a_forked_child_is_refused_and_its_parent_stays_right():
    for rank, result in enumerate(fabric.spawn(jobs.use_in_forked_child, 2, timeout=90)):
        assert len(result["child"]) == 17
        for text in result["child"]:
            assert re.search(r"^FabricError: .*this process was forked from (a rank|rank \d) and is no", text), text
        assert (result["shared"], result["sum"]) == (rank + 1.0, 3.0)


def test_types_without_a_reduction_are_compared_between_ranks():
    for rank, (*errors, total) in enumerate(fabric.spawn(jobs.exchange_other_types, 2, timeout=60)):
        assert total == 2.0
        assert len(errors) == (25 if rank == 0 else 30)
        for text in errors:
            assert re.search("all ranks must make the same call|another length or type", text), text
        assert "complex64" in errors[0]
        assert "datetime64[ns]" in errors[0]


def test_what_one_rank_refuses_is_an_error_in_all_ranks_and_all_go_on():
    for rank, rows in enumerate(fabric.spawn(jobs.refuse_in_one_rank, 3, timeout=60)):
        for name, text, total in rows:
            assert total == 3.0, (rank, name)
            if name == "all":
                continue
            if rank == 1:
                assert re.match("(Input|Proof)Error: ", text), (name, text)
            else:
                assert re.search(r"rank 1 calls \w+ #\d+ with arguments that it refuses", text), (rank, name, text)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_settings_need_a_timeout_above_zero(timeout):
    with pytest.raises(InputError, match="give seconds above 0"):
        fabric.FabricConfig(timeout=timeout)


def test_schedules_of_the_caller_give_what_the_collective_gives():
    chain = fabric.schedule("broadcast", "chain", ranks=3, root=2, chunks=3)
    plans = [fabric.schedule(op, name, ranks=3) for op, names in fabric.ALGORITHMS.items() for name in names]
    plans += [chain, fabric.schedule("reduce", "tree", ranks=3, root=1)]
    to_root = [(Step("reduce", 1, 0, 2), Step("reduce", 2, 0, 2), Step("send", 1, 0, 2), Step("send", 2, 0, 2))]
    others = [(Step("copy", 0, 0, 2), Step("send", 0, 0, 2), Step("copy", 0, 1), Step("recv", 0, 0, 2))] * 2
    plans.append(fabric.Schedule("all_reduce", "mine", 3, 2, 1, 0, (*to_root, *others)))
    texts = [plan.to_json() for plan in plans]
    assert fabric.spawn(jobs.run_schedules, 3, args=(texts, [0, 1001, 40_000]), timeout=120) == [[]] * 3


@pytest.mark.slow  # hundreds of schedules
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_proved_gives_what_the_collective_gives(ranks):
    generator = random.Random(ranks)
    originals = [make_document(op, name, ranks, chunks=chunks) for op, name in CALLS for chunks in (1, 2)]
    proved = []
    while len(proved) < 300:
        document = mutate(generator.choice(originals), generator)
        if is_proved(document):
            proved.append(json.dumps(document))
    assert fabric.spawn(jobs.run_schedules, ranks, args=(proved, [0, 1, 1001]), timeout=300) == [[]] * ranks


def test_schedules_that_must_not_run_are_refused_in_all_ranks():
    messages = {
        "forged": "ProofError: all_reduce ring over 2 ranks: rank",
        "forged algorithm": "ProofError",
        "ranks": "InputError: the schedule is made for 3 ranks, this communicator has 2",
        "text": "InputError: a schedule is a fabric.Schedule, not str",
        "other collective": "InputError: all_gather: the schedule is one of all_reduce",
        "other root": "InputError: broadcast: root is 1, that of the schedule 0",
        "out of a broadcast": "InputError: run: a broadcast has no out",
        "wide": "InputError: broadcast: a step moves 9,000 chunks; float64 allows 8,192",
        "other schedules": "by a schedule of its own, rank . calls all_reduce .* by a schedule of its own: all ranks",
        "only one": "all ranks must make the same call",
    }
    for result in fabric.spawn(jobs.run_refused_schedules, 2, timeout=60):
        assert result["unchanged"]
        assert result["sum"] == 2.0
        for name, message in messages.items():
            assert re.search(message, result[name]), (name, result[name])


@pytest.mark.slow  # thousands of calls, many of which wait for a deadline
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_returns_is_right_where_deadlines_are_missed_at_random(ranks):
    assert fabric.spawn(jobs.miss_random_deadlines, ranks, args=(ranks,), timeout=300) == [[]] * ranks
