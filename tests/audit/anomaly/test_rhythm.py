"""Events that come at even intervals are missed when they stop; those that come by chance are not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.audit.anomaly import Detector
from ridgeline.audit.anomaly.rhythm import ABSENT_AFTER, INTERVALS, SHORTEST_NS, Rhythms

SECOND = 10**9
START = 1_700_000_000 * SECOND


def embed(texts):
    vectors = np.random.default_rng(0).normal(size=(len(texts), 8)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def learn(rhythms, times, key=("beat", "a")):
    for entry, time in enumerate(times):
        rhythms.learn(key, int(time), entry)


@settings(max_examples=60, deadline=None)
@given(st.integers(SECOND, 3_600 * SECOND), st.floats(0, 0.4), st.integers(0, 1000))
def test_an_event_with_a_rhythm_is_absent_after_three_times_its_longest_interval_and_once(interval, jitter, seed):
    rng = np.random.default_rng(seed)
    intervals = (interval * (1 + jitter * rng.uniform(-1, 1, INTERVALS + 3))).astype(np.int64)
    times = START + np.cumsum(intervals)
    rhythms, last = Rhythms(), int(times[-1])
    learn(rhythms, times)
    due = max(int(ABSENT_AFTER * intervals[-INTERVALS:].max()), SHORTEST_NS)
    assert rhythms.find_absent(last + due) == []
    (absence,) = rhythms.find_absent(last + due + 2 * SECOND)
    assert (absence.key, absence.entry) == (("beat", "a"), len(times) - 1)
    assert rhythms.find_absent(last + 9 * due) == []
    rhythms.learn(("beat", "a"), last + 9 * due + interval, 99)  # it comes back: the pause is no interval
    assert rhythms.find_absent(last + 10 * due + interval - 2 * SECOND) == []
    assert len(rhythms.find_absent(last + 10 * due + interval + 2 * SECOND)) == 1


def test_events_that_come_by_chance_are_hardly_ever_expected():
    rng, told = np.random.default_rng(3), 0
    for _ in range(200):
        rhythms, now = Rhythms(), START
        for entry, pause in enumerate(rng.exponential(60 * SECOND, 300)):
            now += int(pause)
            told += len(rhythms.find_absent(now))
            rhythms.learn(("chance",), now, entry)
    assert told <= 3  # of 60,000 events


def test_nothing_is_absent_because_nobody_watched():
    rhythms, hour = Rhythms(), 3_600 * SECOND
    times = START + np.arange(40) * 60 * SECOND
    learn(rhythms, times)
    now = int(times[-1]) + hour
    rhythms.restart(now)
    assert rhythms.find_absent(now + 170 * SECOND) == []
    assert len(rhythms.find_absent(now + 190 * SECOND)) == 1
    learn(rhythms, now + 190 * SECOND + np.arange(3) * 60 * SECOND)
    assert len(rhythms.find_absent(now + hour)) == 1  # the hour did not become an interval


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100)), max_size=120), st.integers(0, 120))
def test_a_saved_state_goes_on_the_same(steps, cut):
    one, other, now = Rhythms(), Rhythms(), START
    for number, (key, pause) in enumerate(steps):
        now += pause * SECOND
        if number == cut:
            other = Rhythms.restore(json.loads(json.dumps(other.state())))
        for rhythms in (one, other):
            rhythms.learn((key, "x"), now, number)
        assert one.find_absent(now) == other.find_absent(now)
    assert one.state() == other.state()


def make_beat(second, host="web1", text="heartbeat ok"):
    words = {"source": "journal", "actor": "monitor", "action": "host.beat", "subject": host}
    return {**words, "time": START + second * SECOND, "attributes": {"message": text}}


@pytest.mark.parametrize("stops", [True, False])
def test_a_heartbeat_that_stops_is_an_alert_with_its_reason(tmp_path, stops):
    detector, absent = Detector(embed), []
    for minute in range(90):
        rows = [
            make_beat(60 * minute, host) for host in ("web1", "web2") if not (stops and minute >= 60 and host == "web2")
        ]
        rows += [make_beat(60 * minute + k, "db", f"query took {k} ms") for k in (7, 11, 30)]
        detector.score(rows, range(10 * minute, 10 * minute + len(rows)))
        absent += detector.find_absent()
        if minute == 30:
            detector.save(tmp_path / "state")
            detector = Detector.load(tmp_path / "state", embed)
    if not stops:
        assert absent == []
        return
    (judgement,) = absent
    assert judgement.alert
    assert judgement.score >= 0.5
    assert judgement.entry == 10 * 59 + 1
    assert "heartbeat ok" in judgement.reason
    assert "(web2 of monitor) came every 60 s and has not come for" in judgement.reason


def test_one_host_with_a_wrong_clock_makes_nothing_absent():
    detector = Detector(embed)
    rows = [make_beat(60 * minute) for minute in range(150)]
    detector.score(rows, range(150))
    detector.score([make_beat(10**7, "wrong", "x")], [150])
    assert detector.find_absent() == []
