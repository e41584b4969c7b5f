"""Words in `audit search`: shared words count, opposites count against a text."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.audit import Ledger
from ridgeline.audit.watch.meaning import Meaning
from ridgeline.audit.watch.word_index import WordIndex

TEXTS = [
    "sshd authentication failure for user",
    "sshd Accepted password for user",
    "sshd session opened for user",
    "sshd session closed for user",
    "unit could not start",
    "unit started after its start failed",
    "",
]
ONCE = np.ones(len(TEXTS), int)


@pytest.fixture
def words():
    index = WordIndex()
    index.extend(TEXTS[:3])
    index.extend(TEXTS[3:])
    return index


@pytest.mark.parametrize(
    ("query", "best", "opposites"),
    [
        ("successful password", 1, {0, 5}),
        ("login failed", 5, {1}),  # the word itself counts more than "failure"
        ("wrong or invalid authentication", 0, {1}),
        ("opening a session", 2, {3}),
        ("Sessions close", 3, {2}),
        ("units that stop", 4, {5}),
        ("a unit did not start", 4, {5}),
        ("failed or successful authentication", 0, set()),
    ],
)
def test_shared_words_rate_a_text_and_opposites_contradict_it(words, query, best, opposites):
    shared, contradicts = words.compare(query, ONCE)
    assert np.argmax(shared) == best
    assert set(np.flatnonzero(contradicts).tolist()) == opposites
    assert (shared >= 0).all()
    assert (shared <= 1).all()


@pytest.mark.parametrize("query", ["", "the", "42", "zebra"])
def test_a_query_without_known_words_rates_nothing(words, query):
    shared, contradicts = words.compare(query, ONCE)
    assert not shared.any()
    assert not contradicts.any()
    assert len(WordIndex().compare(query, ONCE[:0])[0]) == 0


def test_a_word_that_every_text_has_says_little():
    many = WordIndex()
    many.extend(["log line"] * 50)
    assert many.compare("log", np.ones(50, int))[0].max() < 0.1


def test_search_puts_a_success_before_failures_that_are_nearer_in_meaning(tmp_path):
    def encode(texts):  # as the encoder does: failures are nearer to the query than successes
        return np.array([[0.6, 0.8] if "Accepted" in t else [0.8, 0.6] if "ssh" in t else [1, 0] for t in texts], "f4")

    messages = ["Accepted password for ann", "Failed password for ann", "authentication failure for ann"]
    with Ledger.create(tmp_path / "log", origin="example.test/words") as ledger:
        ledger.append([{"source": "t", "action": "ssh", "attributes": {"message": text}} for text in messages])
        meaning = Meaning(tmp_path / "m", str(ledger.verifier), "words", encode)
        meaning.catch_up(ledger)
        hits = meaning.search("successful login", 3, ledger)
        failures = meaning.search("failed login", 3, ledger)
    assert hits[0].event["attributes"]["message"] == messages[0]
    assert failures[-1].event["attributes"]["message"] == messages[0]
    assert all(0 <= hit.relevance <= 1 for hit in hits)
