"""Templates: masking, variables, and independence of the order."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.audit.anomaly.template import LETTERS, MASK, VALUES, WORDS, Miner, mask

words = st.sampled_from(["start", "stop", "a", "b", "c", "d", "e", "f", "7", "0x1f", "10.0.0.1", "<*>"])
sentences = st.lists(words, min_size=1, max_size=5).map(" ".join)
anything = st.text(max_size=80) | st.text("<*>-:.1a \t", max_size=30) | sentences


@given(anything)
def test_masking_twice_is_masking_once(text):
    assert mask(mask(text)) == mask(text)


@given(anything)
def test_no_digit_is_left(text):
    assert not any(letter.isdecimal() for letter in mask(text))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("took 12.5 ms, 3 tries", "took <*> ms, <*> tries"),
        ("from 10.0.0.7:22 to fe80::1%eth0", "from <*> to <*>%eth<*>"),
        ("peer 2001:db8::8a2e:370:7334 left", "peer <*> left"),
        ("mac 00:1b:44:11:3a:b7 at 0xdeadbeef", "mac <*> at <*>"),
        ("id 123e4567-e89b-12d3-a456-426614174000 ok", "id <*> ok"),
        ("commit 9fceb02d0ae5 by ann", "commit <*> by ann"),
        ("Jun 14 15:16:01 combo sshd[19939]: x", "<*> combo sshd[<*>]: x"),
        ("Mon, 3 Feb 2025 09:05:00 up", "<*> up"),
        ("May is a month, Sun is a star", "May is a month, Sun is a star"),
        ("2005-06-03T15:42:50.675872 R02-M1-N0", "<*> R<*>-M<*>-N<*>"),
        ("/var/log/app-12/x.log", "/var/log/app-<*>/x.log"),
        ("facade decade", "facade decade"),
        ("blk_-1608999687919862906 blk_38865049064139660", "blk_<*> blk_<*>"),
        ("٣ items", "<*> items"),
        ("", ""),
    ],
)
def test_what_is_masked(text, masked):
    assert mask(text) == masked


def test_long_texts_are_cut_and_stay_as_they_are():
    text = mask("1a" * 10_000 + " x" * 500)
    assert mask(text) == text
    assert len(text.split()) <= WORDS
    assert all(len(word) <= LETTERS for word in text.split())


@given(st.lists(sentences, max_size=40))
def test_a_template_is_its_own_template(texts):
    miner = Miner()
    for text in texts:
        template = miner.learn(text)
        again = miner.learn(template.text)
        assert (again.id, again.text, again.new) == (template.id, template.text, False)


@given(st.lists(sentences, max_size=60), st.integers(0, 1000))
def test_the_order_of_texts_does_not_matter_to_what_is_found(texts, seed):
    first, second = Miner(), Miner()
    shuffled = Random(seed).sample(texts, len(texts))
    for text in texts:
        first.learn(text)
    for text in shuffled:
        second.learn(text)
    assert [first.find(text) for text in texts] == [second.find(text) for text in texts]


@given(st.lists(sentences, max_size=60))
def test_what_was_learnt_is_found(texts):
    miner = Miner()
    for text in texts:
        miner.learn(text)
    for text in texts:
        template = miner.learn(text)
        assert template.text == miner.find(text) == miner.text(template.id)
        assert not template.new


@given(st.lists(sentences | anything, max_size=50), st.lists(sentences, max_size=30))
@settings(max_examples=100, deadline=None)
def test_a_restored_miner_goes_on_the_same_way(before, after):
    miner = Miner()
    for text in before:
        miner.learn(text)
    restored = Miner.restore(json.loads(json.dumps(miner.state())))
    assert [miner.learn(text) for text in after] == [restored.learn(text) for text in after]
    assert restored.state() == miner.state()
    assert restored._ids == miner._ids


def test_a_word_becomes_a_variable_once_enough_were_seen_in_its_place():
    miner = Miner()
    names = ["ann", "bob", "cyd", "dan", "eve"][: VALUES + 1]
    template = [miner.learn(f"login of {name} failed") for name in names]
    assert [t.new for t in template] == [True] * (VALUES - 1) + [False] * 2
    assert template[-1].text == f"login of {MASK} failed"
    assert template[-1].id == template[0].id
    assert miner.text(template[1].id) == template[-1].text
    assert miner.learn("logout of ann failed").new


def test_two_variables_in_one_text_are_found():
    miner = Miner()
    for user in ("ann", "bob", "cyd", "dan"):
        for host in ("red", "blue", "gray", "teal"):
            miner.learn(f"login of {user} from {host} failed")
    assert miner.find("login of eve from pink failed") == f"login of {MASK} from {MASK} failed"


def test_the_first_word_is_never_a_variable():
    miner = Miner()
    template = {miner.learn(f"{action} it").text for action in "abcdefgh"}
    assert len(template) == 8


def test_memory_is_bounded(monkeypatch):
    import ridgeline.audit.anomaly.template as module

    for name, value in {"TEMPLATES": 50, "PLACES": 200, "RECENT": 100}.items():
        monkeypatch.setattr(module, name, value)
    miner, rng = Miner(), Random(0)
    for _ in range(3000):
        miner.learn("".join(rng.choices("abcdefgh", k=3)) + " " + " ".join(rng.choices(["x", "y", "z", "w", "v"], k=3)))
    assert len(miner) <= 50 + 512  # one for each first word beyond
    assert len(miner._places) == 200
    assert max(len(miner._restore_known), len(miner._counted)) <= 101


def test_the_oldest_places_give_way_one_by_one_and_variables_stay(monkeypatch):
    import ridgeline.audit.anomaly.template as module

    monkeypatch.setattr(module, "PLACES", 10)
    miner, old = Miner(), [f"login of {name}" for name in ("ann", "bob", "cyd", "dan")]
    for text in [*old, "first a", "first b"]:
        miner.learn(text)
    for k in range(9):
        miner.learn(f"other{'x' * k} a")
    assert len(miner._places) == 10
    assert ("first", "") in miner._places
    miner.learn("last a")
    assert ("first", "") not in miner._places
    assert miner.find("login of eve") == f"login of {MASK}"
    for word in "cd":  # a and b are forgotten
        miner.learn(f"first {word}")
    assert miner.find("first e") == "first e"


def close_over(texts: list[str], values: int) -> set[tuple[str, str]]:
    """The places that are variable, by going over all texts until nothing is added any more."""
    closure, count = {mask(text) for text in texts}, -1
    while count != len(closure):
        count, seen = len(closure), {}
        for words in [text.split(" ") for text in closure]:
            for at in range(1, len(words)):
                seen.setdefault((" ".join(words[:at]), " ".join(words[at + 1 :])), set()).add(words[at])
        variable = {place for place, template in seen.items() if len(template - {MASK}) >= values}
        closure |= {f"{before} {MASK} {after}".rstrip() for before, after in variable}
    return variable


@given(st.lists(sentences, max_size=60), st.integers(2, 4))
@settings(max_examples=150, deadline=None)
def test_the_variable_places_are_those_of_going_over_all_texts_again_and_again(texts, values):
    miner = Miner(values)
    for text in texts:
        miner.learn(text)
    assert set(miner._variables) == close_over(texts, values)


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "c", "d", "<*>"]), min_size=2, max_size=5), min_size=1, max_size=60),
    st.lists(st.lists(st.sampled_from(["a", "b", "c", "e", "<*>"]), min_size=2, max_size=5), max_size=20),
)
@settings(max_examples=200, deadline=None)
def test_the_closest_pattern_is_that_of_a_walk_over_all_of_them(learnt, query):
    miner = Miner(values=2)
    for words in learnt:
        miner.learn(" ".join(words))
    patterns = [text.split(" ") for closure in miner._patterns.values() for texts in closure.values() for text in texts]
    for words in query:
        candidates = [
            (pattern.count("<*>"), pattern)
            for pattern in patterns
            if len(pattern) == len(words)
            and pattern[0] == words[0]
            and all(p in (w, "<*>") for p, w in zip(pattern, words, strict=True))
        ]
        expected = " ".join(min(candidates)[1]) if candidates else " ".join(words)
        assert miner._matching(" ".join(words)) == expected
