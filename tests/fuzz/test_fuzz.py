"""The harnesses of `make fuzz` over their seeds and mutations of them, without atheris."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz import harnesses
from tests.fuzz.harnesses import HARNESSES, seeds

from ridgeline.audit.ledger.checkpoint import Verifier


@pytest.mark.parametrize("name", HARNESSES)
def test_a_harness_holds_for_its_seeds_and_for_nothing_at_all(name):
    for data in (*seeds(name), b"", b"\0", b"\xff" * 40):
        HARNESSES[name](data)


@pytest.mark.slow
@pytest.mark.parametrize("name", HARNESSES)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_harness_holds_for_what_is_nearly_right(name, data):
    data_bytes = data.draw(st.sampled_from(seeds(name)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(data_bytes)))
        end = data.draw(st.integers(at, min(len(data_bytes), at + 40)))
        data_bytes = data_bytes[:at] + data.draw(st.binary(max_size=8)) + data_bytes[end:]
    HARNESSES[name](data_bytes)


def test_a_verifier_that_believes_anything_does_not_get_past_the_harness(monkeypatch):
    monkeypatch.setattr(Verifier, "_holds", lambda *_: True)
    data_bytes = seeds("checkpoint")[0].replace(b"\n300\n", b"\n301\n")
    with pytest.raises(AssertionError, match="the key did not sign this"):
        HARNESSES["checkpoint"](data_bytes)


def test_a_reader_that_proves_nothing_does_not_get_past_the_harness(monkeypatch):
    monkeypatch.setattr(
        harnesses, "read_bundle", lambda tiles, _, number: harnesses.split_bundle(tiles.bundle(number, 256), "")
    )
    with pytest.raises(AssertionError):
        HARNESSES["tile"](seeds("tile")[0].replace(b"br7", b"br8"))
