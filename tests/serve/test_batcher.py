"""Batches of the texts of many requests: every request gets its own results, and none holds up the others."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import numpy as np
import pytest
from tests.serve.conftest import run

from ridgeline.embed import Tokens
from ridgeline.errors import InputError
from ridgeline.serve.batcher import Batcher, Stopped

NEVER = 60.0  # seconds after which a wait is a failure


def make_tokens(texts: list[list[int]]) -> Tokens:
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return Tokens(np.array([number for text in texts for number in text], np.int32), offsets)


def add_tokens(output: str, tokens: Tokens) -> list[tuple[str, int]]:
    """The result of a text: the output and the sum of its tokens."""
    return [(output, int(tokens[i].sum())) for i in range(len(tokens))]


class Gate:
    """Runs batches one at a time, on request, and keeps what each held: the first token of every text."""

    def __init__(self, *, fail=None):
        self.batches: list[list[int]] = []
        self.started, self.turns, self.fail = threading.Semaphore(0), threading.Semaphore(0), fail

    def __call__(self, output, tokens):
        self.batches.append([int(tokens[i][0]) for i in range(len(tokens))])
        self.started.release()
        assert self.turns.acquire(timeout=NEVER)
        if self.fail is not None:
            self.fail(tokens)
        return add_tokens(output, tokens)

    async def wait_for_batch(self):
        assert await asyncio.to_thread(self.started.acquire, timeout=NEVER)

    def open(self, batches=1000):
        for _ in range(batches):
            self.turns.release()


async def start(batcher, number, texts, length=4, output="dense"):
    """Queue a request whose tokens are all `number`, and return its task."""
    task = asyncio.create_task(batcher.compute(make_tokens([[number] * length] * texts), output))
    await asyncio.sleep(0)
    return task


def test_requests_of_any_size_get_their_own_results_in_order():
    rng = random.Random(0)
    requests = [
        [[rng.randrange(1, 50) for _ in range(rng.randrange(1, 40))] for _ in range(rng.choice([1, 2, 9, 70]))]
        for _ in range(120)
    ]
    sizes = []

    async def scenario():
        batcher = Batcher("m", add_tokens, 64, observe=sizes.append)
        outputs = [rng.choice(["dense", "sparse"]) for _ in requests]
        answers = await asyncio.gather(
            *(batcher.compute(make_tokens(texts), o) for texts, o in zip(requests, outputs, strict=True))
        )
        for texts, output, answer in zip(requests, outputs, answers, strict=True):
            assert answer == [(output, sum(text)) for text in texts]
        batcher.close()
        assert batcher.waiting_tokens == 0

    run(scenario())
    assert sum(s.texts for s in sizes) == sum(map(len, requests))
    assert sum(s.tokens for s in sizes) == sum(len(text) for texts in requests for text in texts)
    assert all(s.tokens <= 64 or s.texts == 1 for s in sizes), "a batch is larger than its limit"
    assert max(s.requests for s in sizes) > 1


def test_an_idle_model_starts_at_once_and_a_busy_one_collects():
    async def scenario():
        gate = Gate()
        batcher = Batcher("m", gate, 1000)
        first = await start(batcher, 1, 2)
        await gate.wait_for_batch()  # it has begun, with nothing else in the queue
        others = [await start(batcher, number, 1) for number in (2, 3, 4)]
        gate.open()
        await asyncio.gather(first, *others)
        assert gate.batches == [[1, 1], [2, 3, 4]]
        batcher.close()

    run(scenario())


def test_a_short_request_does_not_wait_for_the_long_ones_before_it():
    async def scenario():
        gate = Gate()
        batcher = Batcher("m", gate, 64)
        blocker = await start(batcher, 99, 1)
        await gate.wait_for_batch()
        long = [await start(batcher, number, 1000) for number in range(1, 21)]
        short = await start(batcher, 50, 1)
        gate.open(3)  # the blocker, 16 of the long ones, the rest
        assert await short == [("dense", 200)]
        assert 50 in gate.batches[2]
        assert not any(task.done() for task in long)
        gate.open(10_000)
        for number, task in enumerate(long, 1):
            assert await task == [("dense", 4 * number)] * 1000
        await blocker
        batcher.close()

    run(scenario())


def test_a_long_request_goes_on_while_short_ones_keep_coming():
    async def scenario():
        gate = Gate()
        batcher = Batcher("m", gate, 64)
        long = await start(batcher, 1, 40)
        gate.open(100_000)
        served = 0
        while not long.done():
            await asyncio.gather(*[await start(batcher, 2, 1) for _ in range(30)])
            served += 1
            assert served < 100, "short requests hold up the long one"
        batcher.close()

    run(scenario())


def test_requests_that_fit_are_answered_in_order_of_arrival():
    async def scenario():
        gate = Gate()
        batcher = Batcher("m", gate, 64)
        blocker = await start(batcher, 99, 1)
        await gate.wait_for_batch()
        tasks = [await start(batcher, number, 1) for number in range(1, 33)]
        gate.open()
        await asyncio.gather(blocker, *tasks)
        assert gate.batches == [[99], [*range(1, 17)], [*range(17, 33)]]
        batcher.close()

    run(scenario())


def test_a_text_longer_than_a_batch_is_one_by_itself():
    async def scenario():
        sizes = []
        batcher = Batcher("m", add_tokens, 8, observe=sizes.append)
        assert await batcher.compute(make_tokens([[1] * 30, [2] * 3, [3] * 30]), "dense") == [
            ("dense", 30),
            ("dense", 6),
            ("dense", 90),
        ]
        batcher.close()
        await asyncio.sleep(0)  # sizes are observed after the answers
        assert [s.tokens for s in sizes] == [30, 3, 30]

    run(scenario())


def test_a_cancelled_request_leaves_the_queue_and_the_others_are_answered():
    async def scenario():
        gate = Gate()
        batcher = Batcher("m", gate, 64)
        running = await start(batcher, 1, 40)
        await gate.wait_for_batch()
        waiting, other = await start(batcher, 2, 40), await start(batcher, 3, 2)
        for task in (running, waiting):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert batcher.waiting_tokens == 8  # of the one that is left
        gate.open()
        assert await other == [("dense", 12)] * 2
        batcher.close()
        assert gate.batches == [[1] * 16, [3, 3]], "a cancelled request was computed on"
        assert batcher.waiting_tokens == 0

    run(scenario())


def test_a_refused_text_is_the_error_of_its_request_only():
    def refuse_seven(tokens):
        if 7 in tokens.ids:
            raise InputError("7 does not fit.")

    async def scenario():
        gate, failures = Gate(fail=refuse_seven), []
        batcher = Batcher("m", gate, 64, on_failure=failures.append)
        blocker = await start(batcher, 1, 1)
        await gate.wait_for_batch()
        good, bad, also_good = [await start(batcher, number, 3) for number in (2, 7, 3)]
        gate.open()
        assert await good == [("dense", 8)] * 3
        assert await also_good == [("dense", 12)] * 3
        with pytest.raises(InputError, match="7 does not fit"):
            await bad
        await blocker
        assert await batcher.compute(make_tokens([[5]]), "dense") == [("dense", 5)]
        assert failures == []
        batcher.close()

    run(scenario())


def test_a_broken_model_ends_all_that_wait_for_it_and_is_reported_once():
    def break_on_seven(tokens):
        if 7 in tokens.ids:
            raise RuntimeError("CUDA error: an illegal memory access")

    async def scenario():
        gate, failures = Gate(fail=break_on_seven), []
        batcher = Batcher("m", gate, 64, on_failure=failures.append)
        first = await start(batcher, 7, 100)
        await gate.wait_for_batch()
        second = await start(batcher, 2, 1)
        gate.open()
        for task in (first, second):
            with pytest.raises(Stopped, match="loaded again"):
                await task
        with pytest.raises(Stopped):
            await batcher.compute(make_tokens([[1]]), "dense")
        assert [str(e) for e in failures] == ["CUDA error: an illegal memory access"]
        assert batcher.waiting_tokens == 0
        batcher.close()

    run(scenario())


def test_closing_finishes_what_was_accepted_and_refuses_the_rest():
    async def scenario():
        gate = Gate()
        batcher = Batcher("m", gate, 64)
        accepted = [await start(batcher, number, 20) for number in (1, 2, 3)]
        await gate.wait_for_batch()
        closing = asyncio.create_task(asyncio.to_thread(batcher.close))
        while not batcher._closing:
            await asyncio.sleep(0.001)
        with pytest.raises(Stopped, match="try again"):
            await batcher.compute(make_tokens([[1]]), "dense")
        gate.open()
        assert [await task for task in accepted] == [[("dense", 4 * n)] * 20 for n in (1, 2, 3)]
        await closing

    run(scenario())


def test_many_requests_of_which_some_are_cancelled_at_any_moment():
    rng = random.Random(1)

    def slow(output, tokens):
        time.sleep(rng.random() * 0.0005)
        return add_tokens(output, tokens)

    async def scenario():
        batcher = Batcher("m", slow, 64)
        answered = 0

        async def ask(number):
            nonlocal answered
            await asyncio.sleep(rng.random() * 0.1)
            texts = [[number] * rng.randrange(1, 30) for _ in range(rng.choice([1, 3, 40]))]
            task = asyncio.create_task(batcher.compute(make_tokens(texts), "dense"))
            if rng.random() < 0.4:
                await asyncio.sleep(rng.random() * 0.02)
                if task.cancel():
                    return
            assert await task == [("dense", sum(text)) for text in texts]
            answered += 1

        await asyncio.gather(*(ask(number) for number in range(300)))
        assert answered > 150
        batcher.close()
        assert batcher.waiting_tokens == 0

    run(scenario())


def test_an_answer_does_not_wait_for_the_metrics_which_come_before_a_next_request():
    async def scenario():
        events = []
        batcher = Batcher("m", add_tokens, 100, observe=lambda sizes: events.append(("observed", sizes.tokens)))
        for ids in ([1, 2], [3]):
            await batcher.compute(make_tokens([ids]), "dense")
            events.append(("answered", len(ids)))
            await asyncio.sleep(0)
        batcher.close()
        assert events == [("answered", 2), ("observed", 2), ("answered", 1), ("observed", 1)]

    run(scenario())
