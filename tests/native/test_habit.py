"""Whose threads resample asks, in a world that is made up: torch's threads spin for a while after each operation, ours
get no CPU meanwhile, and the clock is ours.

python -m pytest tests/native/test_habit.py
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline import native

THREADS, SPIN_S = 16, 0.015  # torch's, and for how long they look for work before they sleep
ALONE_S, SHARED_S = 220e-6, 20e-6  # a call without help, and by all


@dataclass
class World:
    seed: int
    waits: float = 0.0  # of calls on lent threads, how many keep the caller waiting
    wait_s: float = 60e-6
    held: float = 0.0  # of calls by our own, how many lose a thread to the spinning ones for some milliseconds
    now: float = 1000.0
    habit: native.Habit = field(default_factory=native.Habit)
    spins_until: float = 0.0
    burnt: float = 0.0
    calls_s: float = 0.0
    lent: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def spinning(self) -> bool:
        return self.now < self.spins_until

    def pass_by(self, seconds: float) -> None:
        self.burnt += max(0.0, min(seconds, self.spins_until - self.now)) * (THREADS - 1)
        self.now += seconds

    def torch(self, seconds: float = 600e-6) -> None:
        self.spins_until = self.now + seconds + SPIN_S
        self.pass_by(seconds)

    def call(self) -> None:
        busy = (THREADS - 1) * self.spinning()
        theirs = self.habit.look_around(self.now, THREADS, lambda glance: busy, lambda: self.burnt)
        worked, waited, missed = SHARED_S, 1e-6, False
        if theirs:
            if self.random.random() < self.waits:
                waited = self.wait_s
            self.spins_until = self.now + worked + waited + SPIN_S
        elif self.habit.alone(self.now):
            self.pass_by(ALONE_S)
            self.habit.after_alone(self.now, ALONE_S, THREADS)
            self.calls_s += ALONE_S
            self.lent.append(theirs)
            return
        elif self.spinning():
            worked, missed = ALONE_S, True
            if self.random.random() < self.held:
                waited = 4e-3
        self.pass_by(worked + waited)
        after = self.habit.after_lent if theirs else self.habit.after_own
        after(self.now, worked, waited, missed, THREADS)
        self.calls_s += worked + waited
        self.lent.append(theirs)

    def beside_torch(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.torch()
            self.call()
            self.call()


def share(lent: list[bool]) -> float:
    return sum(lent) / len(lent)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32), waits=st.floats(0, 0.3), held=st.floats(0, 0.5))
def test_beside_torch_its_threads_do_nearly_all_calls_even_if_some_keep_us_waiting(seed, waits, held):
    """Who tries our own and is held up by them works alone for a while, and comes back all the same."""
    world = World(seed, waits, held=held)
    world.beside_torch(2)  # it comes to trust them
    world.lent.clear()
    world.beside_torch(8)
    assert share(world.lent) > 0.94


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32), wait_s=st.floats(2e-3, 20e-3))
def test_lenders_who_always_keep_us_waiting_for_long_are_hardly_asked(seed, wait_s):
    world = World(seed, 1.0, wait_s)
    world.beside_torch(10)
    assert share(world.lent) < 0.01
    assert world.calls_s < 1.5 * len(world.lent) * ALONE_S


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32), apart_s=st.floats(1e-3, 14e-3), beside_s=st.floats(0.05, 12))
def test_when_torch_has_ended_its_threads_are_soon_left_to_sleep(seed, apart_s, beside_s):
    """Though each call on them keeps them spinning until the next."""
    world = World(seed)
    world.beside_torch(beside_s)
    ended = world.now
    last = ended
    while world.now < ended + 10:
        world.pass_by(apart_s)
        world.call()
        if world.lent[-1]:
            last = world.now
    assert last - ended < min(3.3, 0.2 + 2 * beside_s)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32), waits=st.floats(0, 0.3))
def test_lenders_who_become_slow_are_left_however_long_they_were_trusted(seed, waits):
    world = World(seed, waits)
    world.beside_torch(8)
    world.waits, world.wait_s = 1.0, 5e-3
    world.lent.clear()
    world.beside_torch(10)
    assert share(world.lent) < 0.02


def test_nobody_is_asked_where_nobody_spins():
    world = World(0)
    for _ in range(2000):
        world.pass_by(1e-3)
        world.call()
    assert not any(world.lent)


def test_torch_in_bursts_finds_its_threads_asked_within_milliseconds():
    world = World(0)
    for _ in range(20):
        world.pass_by(0.5)
        world.lent.clear()
        world.beside_torch(0.1)
        first = world.lent.index(True)
        assert first < 20
        assert all(world.lent[first:])


def test_a_caller_who_waited_long_for_its_own_works_alone_for_longer():
    habit = native.Habit()
    habit.after_own(10.0, 100e-6, 5e-3, False, 2)
    assert habit.alone(10.0 + 19 * 5e-3)
    assert not habit.alone(10.0 + 21 * 5e-3)


@pytest.mark.parametrize(("threads", "share"), [(2, 2), (16, 2 / 15)])
@pytest.mark.parametrize("came", [True, False])
def test_a_wait_is_no_reason_to_work_alone_if_their_help_has_saved_more(threads, share, came):
    """A wait of 5 ms is made good, twice over, by 10 ms of two threads' work or by 0.7 ms of sixteen's."""
    for done, alone in ((0.8 * share, True), (1.2 * share, not came)):
        habit, now = native.Habit(), 10.0
        for _ in range(10):
            habit.after_own(now, done * 5e-3 / 10, 0.0, not came, threads)
            now += 1e-3
        habit.after_own(now, 1e-6, 5e-3, False, threads)
        assert habit.alone(now + 1e-3) == alone
        now += 1.0
        habit.after_own(now, 1e-6, 5e-3, False, threads)  # once more, and nothing in between
        assert habit.alone(now + 1e-3)
