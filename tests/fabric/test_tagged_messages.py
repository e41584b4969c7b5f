"""Messages with tags: any order and size, refusals, and what happens when a rank leaves or is late."""

from __future__ import annotations

import os
import random
import secrets

import numpy as np
import pytest

from ridgeline.errors import FabricError
from ridgeline.fabric.tagged_messages import Messenger

GUARD_S = 30


@pytest.fixture
def make_messengers():
    """Messengers of several ranks in this process."""
    messengers_to_close = []

    def make(ranks: int, timeout: float = GUARD_S) -> list[Messenger]:
        name = f"ridgeline-test-{secrets.token_hex(8)}"
        messengers = [Messenger(name, rank, ranks, timeout, failures.append) for rank in range(ranks)]
        for messenger in messengers:
            messenger.pids = [os.getpid()] * ranks
        messengers_to_close.extend(messengers)
        return messengers

    failures: list[FabricError] = []
    make.failures = failures
    yield make
    for messenger in messengers_to_close:
        messenger.close()


def send(messenger, values, to, tag=0):
    return messenger.send(memoryview(values).cast("B"), values.dtype.name, to, tag)


def receive(messenger, values, source, tag=0):
    return messenger.recv(memoryview(values).cast("B"), values.dtype.name, source, tag)


def test_messages_of_one_tag_keep_their_order_and_all_others_may_come_in_any(make_messengers):
    messengers, choice = make_messengers(3), random.Random(5)
    jobs = []
    for number in range(150):
        source, to = choice.sample(range(3), 2)
        jobs.append((source, to, choice.randrange(3), choice.choice([0, 1, 7, 5000, 400_000]), number))
    waiting: dict[tuple, list] = {}
    sends, receives = [], []
    for job in jobs:
        waiting.setdefault(job[:3], []).append(job)
    steps = ["send"] * len(jobs) + ["recv"] * len(jobs)
    choice.shuffle(steps)
    unsent = list(jobs)
    for step in steps:
        if step == "send":
            source, to, tag, size, number = unsent.pop(0)
            sends.append(send(messengers[source], np.full(size, number, np.int32), to, tag))
        else:
            key = choice.choice([key for key, queue in waiting.items() if queue])
            job = waiting[key].pop(0)
            values = np.full(job[3], -1, np.int32)
            receives.append((job, values, receive(messengers[job[1]], values, job[0], job[2])))
    for future in sends:
        future.result(GUARD_S)
    for (source, _, _, _, number), values, future in receives:
        assert future.result(GUARD_S) == source
        assert (values == number).all()


def test_a_receive_from_any_source_takes_the_tag_and_says_the_source(make_messengers):
    messengers = make_messengers(3)
    values = np.zeros(1)
    future = receive(messengers[0], values, None, tag=4)
    other = send(messengers[1], np.array([1.0]), 0, tag=3)
    send(messengers[2], np.array([2.0]), 0, tag=4).result(GUARD_S)
    assert future.result(GUARD_S) == 2
    assert values[0] == 2
    assert not other.done()


def test_another_length_or_type_is_refused_on_both_sides_and_the_next_message_works(make_messengers):
    one, two = make_messengers(2)
    for values in (np.zeros(5, np.float32), np.zeros(4, np.int32)):
        futures = send(one, np.ones(4, np.float32), 1), receive(two, values, 0)
        for future in futures:
            with pytest.raises(FabricError, match=r"rank \d (sends|receives) \d+ bytes of .*rank \d"):
                future.result(GUARD_S)
        assert not values.any()
    values = np.zeros(4, np.float32)
    futures = send(one, np.ones(4, np.float32), 1), receive(two, values, 0)
    assert [future.result(GUARD_S) for future in futures] == [1, 0]
    assert values.all()


def test_a_message_that_misses_its_deadline_ends_the_messenger(make_messengers):
    one, two = make_messengers(2, timeout=0.2)
    late, also = receive(one, np.zeros(1), 1, tag=6), send(one, np.zeros(1), 1, tag=9)
    with pytest.raises(
        FabricError, match=r"rank 1 did not come to recv \(tag 6\) of rank 0 within the timeout of 0.2 s"
    ):
        late.result(GUARD_S)
    for future in (also, send(one, np.zeros(1), 1)):
        with pytest.raises(FabricError, match=r"did not come to|has ended"):
            future.result(GUARD_S)
    assert "within the timeout of 0.2 s" in str(make_messengers.failures[0])
    with pytest.raises(FabricError, match="rank 0"):
        send(two, np.zeros(1), 0).result(GUARD_S)


def test_messages_with_a_rank_that_leaves_fail_at_once(make_messengers):
    one, two, three = make_messengers(3)
    values = np.zeros(3)
    pair = send(two, np.ones(3), 0), receive(one, values, 1)
    assert [future.result(GUARD_S) for future in pair] == [0, 1]
    first, anyone = receive(one, values, 1), receive(one, values, None)
    two.close()
    with pytest.raises(FabricError, match="rank 1 left the group or died: rank 0 waited for it in recv"):
        first.result(GUARD_S)
    with pytest.raises(FabricError, match="rank 1"):
        send(one, values, 1).result(GUARD_S)
    assert not anyone.done()
    assert send(three, np.ones(3), 0).result(GUARD_S) == 0
    assert anyone.result(GUARD_S) == 2
    anyone = receive(one, values, None)
    three.close()
    with pytest.raises(FabricError, match="every other rank left"):
        anyone.result(GUARD_S)


def test_a_forked_child_does_not_hide_that_a_rank_has_left(make_messengers):
    one, two = make_messengers(2)
    pair = send(two, np.ones(3), 0), receive(one, np.zeros(3), 1)
    assert [future.result(GUARD_S) for future in pair] == [0, 1]
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent closes the pipe
        os._exit(0)
    try:
        late = receive(one, np.zeros(3), 1)
        two.close()
        with pytest.raises(FabricError, match="rank 1 left"):
            late.result(GUARD_S)
        with pytest.raises(FabricError, match="rank 1 left"):
            send(one, np.ones(3), 1).result(GUARD_S)
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def test_a_closed_messenger_leaves_no_thread_and_no_file(make_messengers):
    before = len(os.listdir("/proc/self/fd"))
    one, two = make_messengers(2)
    futures = send(one, np.ones(3), 1), receive(two, np.zeros(3), 0)
    for future in futures:
        future.result(GUARD_S)
    for messenger in (one, two):
        messenger.close()
        assert not messenger._thread.is_alive()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_forked_process_is_refused_and_does_not_close_the_connections_of_its_parent(make_messengers):
    one, two = make_messengers(2)
    pair = send(two, np.ones(3), 0), receive(one, np.zeros(3), 1)
    assert [future.result(GUARD_S) for future in pair] == [0, 1]
    if (child := os.fork()) == 0:
        try:
            send(one, np.ones(3), 1)
        except FabricError:
            one.close()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pair = send(two, np.ones(3), 0), receive(one, np.zeros(3), 1)
    assert [future.result(GUARD_S) for future in pair] == [0, 1]
