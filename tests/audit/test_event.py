"""Events as canonical JSON: the examples of RFC 8785, a second implementation, and refusals."""

from __future__ import annotations

import json
import re
import struct
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import strategies
from tests.audit import naive
from tests.audit.conftest import event

from ridgeline.audit.ledger.event import decode, encode, parse_line
from ridgeline.errors import InputError, Unverified
from ridgeline.native import canonical_json

# RFC 8785, appendix B: the bits of a double and how ECMAScript writes it.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize("bits", NUMBERS)
def test_numbers_are_written_as_the_rfc_has_them(bits):
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json(value).decode() == NUMBERS[bits] == naive.number(value)


def test_names_are_sorted_as_the_rfc_requires():
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    decoded = json.loads(canonical_json(dict.fromkeys(names, 0)))
    assert list(decoded) == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


@settings(max_examples=400, deadline=None)
@given(strategies.json_values)
def test_canonical_json_is_what_a_second_implementation_writes(value):
    assert canonical_json(value).decode() == naive.canonical(value)


@settings(max_examples=400, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_reads_back_as_itself(value):
    assert float(canonical_json(value)) == value


@settings(max_examples=200, deadline=None)
@given(strategies.events)
def test_an_event_comes_back_and_its_entry_is_canonical(given_event):
    encoded = encode([given_event])
    (entry,) = naive.bundle(encoded.entries)
    decoded = decode(entry)
    assert {k: decoded[k] for k in given_event} == given_event
    assert encoded.hashes == naive.leaf(entry)
    assert naive.canonical(json.loads(entry)) == entry.decode()


def test_time_keeps_every_nanosecond():
    late = event(0) | {"time": 2**63 - 1}
    assert decode(naive.bundle(encode([late]).entries)[0])["time"] == 2**63 - 1


def test_an_event_too_large_for_an_entry_is_stored_beside_the_log():
    big = event(1) | {"attributes": {"text": "x" * 70_000}}
    encoded = encode([event(0), big])
    ((index, digest, stored),) = encoded.large
    decoded = decode(naive.bundle(encoded.entries)[1])
    assert index == 1
    assert decoded["stored"] == {"bytes": len(stored), "sha256": digest}
    assert sha256(stored).hexdigest() == digest
    assert decode(stored) == big


def test_the_largest_entry_that_fits_stays_in_the_log():
    free_bytes = 65_535 - len(naive.bundle(encode([event(1) | {"attributes": {"text": ""}}]).entries)[0])
    fits = encode([event(1) | {"attributes": {"text": "x" * free_bytes}}])
    assert not fits.large
    assert len(fits.entries) == 2 + 65_535
    assert encode([event(1) | {"attributes": {"text": "x" * (free_bytes + 1)}}]).large


DEEP: list = []
for _ in range(70):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1700000000000000001", 1_700_000_000_000_000_001),
        ('"1700000000000000001"', 1_700_000_000_000_000_001),
        ('"2023-11-14T22:13:20Z"', 1_700_000_000_000_000_000),
        ('"2023-11-14t22:13:20.000000007z"', 1_700_000_000_000_000_007),
        ('"2023-11-15 00:13:20.5+02:00"', 1_700_000_000_500_000_000),
        ("5", 5),
    ],
)
def test_a_time_is_nanoseconds_or_rfc_3339(text, ns):
    event = parse_line(f'{{"source": "t", "action": "a.b", "time": {text}}}', "line 1")
    assert event["time"] == ns
    assert decode(encode([event]).entries[2:])["time"] == ns


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1700000000", "line 3: time is 1700000000, which looks like seconds (as nanoseconds it is 1970-01-01T00:00"),
        ("1700000000000", "which looks like milliseconds"),
        ('"1700000000000000"', "which looks like microseconds"),
        ('"2026-11-18T10:00:00+99:00"', "line 3: time is '2026-11-18T10:00:00+99:00', which no calendar"),
        ('"yesterday"', "time is 'yesterday'; give nanoseconds since 1970, or RFC 3339"),
        ('"2023-11-14T22:13:20"', "or RFC 3339"),
        ('"90d"', "or RFC 3339"),
        ('"2023-13-14T22:13:20Z"', "which no calendar or clock has"),
    ],
)
def test_a_time_of_another_unit_is_refused_not_misread(text, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        parse_line(f'{{"source": "t", "action": "a.b", "time": {text}}}', "line 3")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": None}, "has no source"),
        ({"source": ""}, "empty source"),
        ({"action": "no spaces"}, "words joined by dots"),
        ({"action": ".a"}, "words joined by dots"),
        ({"action": "a."}, "words joined by dots"),
        ({"action": "ridgeline.ledger.prune"}, "the ledger's own"),
        ({"actor": 5}, "actor is a int"),
        ({"actor": "a" * 1025}, "at most 1024"),
        ({"subject": "a" * 4097}, "at most 4096"),
        ({"time": -1}, "time is outside"),
        ({"time": 2**63}, "time is outside"),
        ({"time": 1.5}, "time is a float"),
        ({"time": True}, "time is a bool"),
        ({"time": "01"}, "time is not nanoseconds"),
        ({"time": "1e9"}, "time is not nanoseconds"),
        ({"attributes": [1]}, "attributes is not an object"),
        ({"attributes": {"n": 2**53}}, "attributes.n is an integer beyond"),
        ({"attributes": {"n": [1, float("nan")]}}, "attributes.n[1] is nan"),
        ({"attributes": {"n": b"x"}}, "attributes.n is a bytes"),
        ({"attributes": {5: 1}}, "a name that is no string"),
        ({"attributes": {"n": "\ud800"}}, "lone surrogate"),
        ({"attributes": {"\ud800": 1}}, "lone surrogate"),
        ({"attributes": {"n": DEEP}}, "nested more than"),
        ({"colour": "red"}, "unknown name 'colour'"),
    ],
)
def test_what_is_wrong_is_named_with_its_event(change, words):
    with pytest.raises(InputError) as caught:
        encode([event(0), event(1) | change])
    assert str(caught.value).startswith("event 1 ")
    assert words in str(caught.value)


@pytest.mark.parametrize("wrong", [{"source": "a"}, "text", b"bytes"])
def test_a_single_event_is_not_a_list_of_events(wrong):
    with pytest.raises(InputError, match="list"):
        encode(wrong)


@pytest.mark.parametrize("line", ["", "[1]", "{", '{"a":1,"a":2}', '{"a":NaN}', "nul", '"text"', "[" * 100_000])
def test_a_line_that_is_no_object_is_named(line):
    with pytest.raises(InputError, match="line 3"):
        parse_line(line, "line 3 of stdin")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | strategies.json_values.map(lambda v: json.dumps(v).encode()))
def test_bytes_that_are_no_event_are_refused(data):
    with pytest.raises(Unverified):
        decode(data)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_an_entry_that_is_changed_and_still_reads_has_another_hash(data):
    (entry,) = naive.bundle(encode([event(5)]).entries)
    at = data.draw(st.integers(0, len(entry) - 1))
    other = entry[:at] + bytes([data.draw(st.integers(0, 255))]) + entry[at + 1 :]
    try:
        decode(other)
    except Unverified:
        return
    assert other == entry or naive.leaf(other) != naive.leaf(entry)
