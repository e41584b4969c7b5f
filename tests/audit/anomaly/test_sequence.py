"""Keys and transitions: what an event is known by, and how likely it is after the two before it."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.audit.anomaly import sequence
from ridgeline.audit.anomaly.sequence import END, START, Keys, Transitions

sessions = st.lists(st.lists(st.integers(0, 5), max_size=8), max_size=12)


def make(data: list[list[int]]) -> Transitions:
    transitions = Transitions()
    for keys in data:
        transitions.learn([START, START, *keys, END])
    return transitions


@given(sessions.filter(bool), st.integers(-1, 5), st.integers(-1, 5))
def test_the_chances_of_all_keys_sum_to_one_with_those_of_unknown_keys(data, second, last):
    transitions = make(data)
    known = {END, *(key for keys in data for key in keys)}
    total = sum(math.exp(-transitions.surprise(second, last, key)) for key in known)
    unknown = math.exp(-transitions.surprise(second, last, 999))
    assert math.isclose(total + sequence.OTHER * unknown, 1.0, rel_tol=1e-9)


@given(sessions)
def test_restored_transitions_give_the_same_surprises(data):
    transitions = make(data)
    again = Transitions.restore(json.loads(json.dumps(transitions.state())))
    for keys in [*data, [0, 7, 3]]:
        for triple in zip([START, *keys], keys, keys[1:], strict=False):
            assert again.surprise(*triple) == transitions.surprise(*triple)


def test_contexts_and_their_keys_are_bounded(monkeypatch):
    monkeypatch.setattr(sequence, "CONTEXTS", 50)
    monkeypatch.setattr(sequence, "KINDS", 20)
    transitions = make([[n, n + 1, n + 2] for n in range(500)])
    assert len(transitions._following) <= 50
    assert all(len(counts) <= 20 for _, counts in transitions._following.values())


def test_a_sentence_of_several_sessions_is_a_key_and_one_of_a_single_session_is_not():
    keys = Keys()
    for session in range(3):
        for _ in range(5):
            keys.learn(["syscall open", f"id {session}"], session)
    assert keys.find(["syscall open"], 7) > 7
    assert keys.find(["id 2"], 7) == 7
    assert keys.find(["id 2", "syscall open"], 7) == keys.find(["syscall open"], 7)
    again = Keys.restore(json.loads(json.dumps(keys.state())))
    assert again.find(["syscall open"], 7) == keys.find(["syscall open"], 7)


def test_old_sentences_are_forgotten():
    keys = Keys(span=10)
    for session in range(3):
        keys.learn(["old"], session)
    for n in range(100):
        keys.learn([f"new {n}"], n)
    assert keys.find(["old"], 7) == 7
    assert len(keys._current) + len(keys._previous) <= 22
