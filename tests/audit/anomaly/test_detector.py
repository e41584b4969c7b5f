"""The detector: scores, reasons, limits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.simulated import BASE, KINDS, event, ordinary, sessions, strange_actor, words
from tests.strategies import events as any_events

from ridgeline.audit.anomaly.detector import Detector, Judgement
from ridgeline.audit.anomaly.sentences import describe_event, strip_masks
from ridgeline.errors import InputError, StoreError
from ridgeline.store import write_manifest

SECOND = 10**9


def units(count: int) -> list[dict]:
    return [
        {
            "time": BASE + i * SECOND,
            "source": "test",
            "actor": "root",
            "action": "systemd.unit.start",
            "subject": f"web{i % 7}.service",
            "attributes": {"pid": i},
        }
        for i in range(count)
    ]


def odd(time: int) -> dict:
    return {
        "time": time,
        "source": "test",
        "actor": "guest",
        "action": "firewall.rule.delete",
        "subject": "deny all inbound traffic",
        "attributes": {"chain": "INPUT"},
    }


def in_pieces(detector: Detector, events: list[dict], sizes: list[int]) -> list[Judgement]:
    judgements, at, turn = [], 0, 0
    while at < len(events):
        size = sizes[turn % len(sizes)]
        judgements += detector.score(events[at : at + size], range(at, min(at + size, len(events))))
        at, turn = at + size, turn + 1
    return judgements


def mix_events(count: int, seed: int = 0) -> list[dict]:
    rng = Random(seed)
    return [event(rng, i) for i in range(count)]


def test_the_odd_event_among_two_thousand_is_the_first_alert_and_says_why():
    rows = units(2000)
    rows[1500] = odd(rows[1500]["time"])
    judgements = Detector(words).score(rows, range(2000))
    first = max(judgements, key=lambda j: j.score)
    assert first.entry == 1500
    assert first.alert
    assert "firewall.rule.delete" in first.reason
    assert "guest" in first.reason
    assert "most similar normal event is 'systemd.unit.start" in first.reason
    assert first.nearest == (1499,)  # the last of the only normal template
    assert sum(j.alert for j in judgements) == 1
    assert all(0.0 <= j.score <= 1.0 for j in judgements)


def test_sessions_that_have_ended_name_the_same_event():
    rows = units(2000)
    rows[1500] = odd(rows[1500]["time"])
    detector = Detector(words)
    detector.score(rows, range(2000))
    assert max(detector.end_sessions(), key=lambda j: j.score).entry == 1500
    assert detector.end_sessions() == []


@given(st.lists(any_events, max_size=30), st.lists(st.integers(1, 9), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_how_events_are_cut_into_calls_makes_no_difference(rows, sizes):
    at_once = Detector(words).score(rows, range(len(rows)))
    assert in_pieces(Detector(words), rows, sizes) == at_once


def test_it_is_the_same_every_time():
    rows = mix_events(600)
    first, second = (Detector(words) for _ in range(2))
    assert first.score(rows, range(600)) == in_pieces(second, rows, [1, 50, 7])
    assert first.end_sessions(rows[-1]["time"]) == second.end_sessions(rows[-1]["time"])
    assert first.end_sessions() == second.end_sessions()


@pytest.mark.parametrize("cut", [0, 1, 400])
def test_a_saved_detector_goes_on_with_the_same_scores(tmp_path, cut):
    rows = mix_events(300) + [e for unit in sessions(KINDS[-1], count=40, share=0.3).train for e in unit.events]
    detector = Detector(words, alert_rate=0.01)
    detector.score(rows[:cut], range(cut))
    if cut:
        detector.label(cut - 1, "bad")
    detector.end_sessions(rows[cut]["time"])
    detector.save(tmp_path / "state")
    detector.save(tmp_path / "state")
    again = Detector.load(tmp_path / "state", words)
    rest = range(cut, len(rows))
    assert again.score(rows[cut:], rest) == detector.score(rows[cut:], rest)
    assert again.end_sessions() == detector.end_sessions()
    assert again.alert_rate == 0.01


def test_what_is_no_saved_detector_is_refused(tmp_path):
    with pytest.raises(StoreError):
        Detector.load(tmp_path / "nothing", words)
    Detector(words).save(tmp_path / "state")
    state = tmp_path / "state" / "detector.json"
    saved = json.loads(state.read_text())
    for wrong, message in (
        (saved | {"format": 0}, "another version"),
        ({"format": saved["format"]}, "no complete detector"),
    ):
        state.write_text(json.dumps(wrong))
        write_manifest(tmp_path / "state")
        with pytest.raises(StoreError, match=message):
            Detector.load(tmp_path / "state", words)
    state.write_text("{")  # not as its manifest has it
    with pytest.raises(StoreError):
        Detector.load(tmp_path / "state", words)


def test_vectors_that_differ_by_rounding_alone_come_to_the_same_scores():
    """As other machines, or other orders of adding, have them."""
    rng = np.random.default_rng(0)

    def round_parts(texts: list[str]) -> np.ndarray:
        return words(texts) * (1 + rng.choice([-1e-7, 0.0, 1e-7], (len(texts), 1)).astype(np.float32))

    rows = [odd(BASE + i * SECOND) | {"subject": f"{a} {b} {c} {d}"} for i, (a, b, c, d) in enumerate(_quads(400))]
    plain, other = (in_pieces(Detector(embed), rows, [50]) for embed in (words, round_parts))
    assert [j.score for j in other] == pytest.approx([j.score for j in plain], abs=1e-6)


def _quads(count: int) -> list[list[str]]:
    rng = Random(3)
    return [rng.choices(["red", "blue", "gray", "teal", "pink", "lime", "navy", "gold"], k=4) for _ in range(count)]


def test_templates_are_embedded_once():
    embedded: list[str] = []

    def embed(texts: list[str]) -> np.ndarray:
        embedded.extend(texts)
        return words(texts)

    detector = Detector(embed)
    in_pieces(detector, [*units(50), odd(BASE), *units(50)], [9])
    assert len(embedded) == len(set(embedded))
    assert strip_masks("firewall.rule.delete deny all inbound traffic chain=INPUT") in embedded
    count = len(embedded)
    detector.score(units(20), range(20))
    assert len(embedded) == count


@pytest.mark.parametrize("rate", [0.02, 0.005])
def test_alerts_on_ordinary_days_have_about_the_requested_rate(rate):
    detector, rng = Detector(words, alert_rate=rate), Random(5)
    rows = [event(rng, i) for i in range(9000)]
    for row in rows:  # a field with a long tail of values, so that rare things keep happening
        row["subject"] = f"{row['subject']} {'abcdefghijklmnopqrstuvwxyz'[min(25, int(rng.expovariate(0.25)))]}"
    judgements = in_pieces(detector, rows, [500])[1000:]
    share = sum(j.alert for j in judgements) / len(judgements)
    assert rate * 0.1 <= share <= rate * 1.5


def test_drift_without_anomalies_does_not_flood():
    """Every few hundred events a new kind of event appears and stays, another goes: ordinary life."""
    rng = Random(1)
    detector = Detector(words)
    verbs = [
        f"{a} {b}" for a in ("opens", "closes", "renews", "checks") for b in ("door", "lease", "tape", "queue", "key")
    ]
    rows = []
    for i in range(8000):
        now = i // 400
        verb = verbs[rng.randint(max(0, now - 4), now) % len(verbs)]
        rows.append(units(1)[0] | {"time": BASE + i * SECOND, "subject": verb})
    judgements = in_pieces(detector, rows, [400])
    assert sum(j.alert for j in judgements) <= 25  # 20 kinds were new
    assert sum(j.alert for j in judgements[4000:]) / 4000 <= 0.004


def test_what_comes_again_now_and_then_is_normal_sooner_than_what_comes_in_a_burst():
    """Six times, among two thousand others: every hundred events, or one after the other."""
    newness = {}
    for gap in (100, 1):
        rows = units(2000)
        for k in range(6):
            rows[600 + k * gap] = odd(rows[600 + k * gap]["time"])
        detector = Detector(words)
        detector.score(rows[:1400], range(1400))
        newness[gap] = detector.score([odd(rows[1400]["time"])], [1400], learn=False)[0].parts["new"]
    assert newness[100] < 0.2 * newness[1]


def test_what_goes_on_happening_stops_being_an_alert():
    rows = units(1500) + [odd(BASE + (1500 + i) * SECOND) for i in range(300)]
    judgements = in_pieces(Detector(words), rows, [100])
    assert judgements[1500].alert
    assert not any(j.alert for j in judgements[1600:])


def test_a_label_normal_lowers_and_a_label_bad_raises_similar_events():
    rows = units(1200)
    rows[1000] = odd(rows[1000]["time"])
    later = [odd(BASE + 1300 * SECOND)]
    scores = {}
    for verdict in ("normal", None, "bad"):
        detector = Detector(words)
        detector.score(rows, range(1200))
        if verdict:
            detector.label(1000, verdict)
        scores[verdict] = detector.score(later, [1300])[0]
    assert scores["normal"].score < scores[None].score < scores["bad"].score
    assert not scores["normal"].alert
    assert scores["bad"].alert
    assert "labelled bad" in scores["bad"].reason


def test_a_label_reaches_what_is_similar_but_not_everything():
    detector = Detector(words)
    rows = units(1000)
    rows[900] = odd(rows[900]["time"])
    detector.score(rows, range(1000))
    similar = odd(BASE + 2000 * SECOND) | {"subject": "deny all inbound traffic now"}
    other = units(1)[0] | {"subject": "completely different thing happened", "action": "disk.format"}
    plain = units(1)[0]

    def scores(minute: int) -> list[float]:
        rows = [e | {"time": BASE + minute * 60 * SECOND} for e in (similar, other, plain)]
        return [j.score for j in detector.score(rows, [5000] * 3, learn=False)]

    before = scores(100)
    detector.label(900, "bad")
    after = scores(200)
    assert after[0] > before[0]
    assert after[1:] == before[1:]
    detector.label(900, "normal")  # the last word counts
    assert scores(300)[0] < before[0]


def test_wrong_labels_and_settings_are_refused():
    detector = Detector(words)
    with pytest.raises(InputError, match="entry 7"):
        detector.label(7, "bad")
    detector.score(units(1), [7])
    with pytest.raises(InputError, match="maybe"):
        detector.label(7, "maybe")
    with pytest.raises(InputError, match="alert_rate"):
        Detector(words, alert_rate=0.0)
    with pytest.raises(InputError, match="one entry for each"):
        detector.score(units(2), [1])


def test_judging_without_learning_leaves_the_history_as_it_was():
    detector, other = Detector(words), Detector(words)
    rows = mix_events(400)
    for each in (detector, other):
        each.score(rows, range(400))
        each.end_sessions()
    detector.score([odd(rows[-1]["time"] + 1)], [401], learn=False)
    detector.end_sessions(learn=False)
    strange = [odd(rows[-1]["time"] + 120 * SECOND)]
    assert detector.score(strange, [402])[0].score == other.score(strange, [402])[0].score


def test_a_session_with_a_missing_step_says_so():
    rng, detector = Random(0), Detector(words)

    def session_events(i: int, texts: list[str]) -> list[dict]:
        row = units(1)[0] | {"action": "log.line", "attributes": {"session": f"s{i}"}}
        return [row | {"time": BASE + i * SECOND, "subject": text.format(n=i)} for text in texts]

    for i in range(600):
        texts = ordinary(rng)
        detector.score(session_events(i, texts), [i] * len(texts))
        detector.end_sessions()
    broken = ordinary(rng)[:-1]
    detector.score(session_events(600, broken), [600] * len(broken))
    [judgement] = detector.end_sessions()
    assert judgement.entry == 600
    assert "session=s600" in judgement.reason
    assert "ended with 'log.line reply <*> sent'" in judgement.reason


def test_a_burst_is_found_where_it_breaks():
    rows = [e | {"time": BASE + i * 60 * SECOND} for i, e in enumerate(mix_events(1500))]
    start = rows[-1]["time"] + 60 * SECOND
    login = next(e for e in rows if e["action"] == "user.login")
    rows += [login | {"time": start + i} for i in range(40)]
    judgements = in_pieces(Detector(words), rows, [100])
    assert max(j.parts.get("count", 0.0) for j in judgements[1500:]) > max(
        j.parts.get("count", 0.0) for j in judgements[200:1500]
    )
    assert any("times in a minute" in j.reason for j in judgements[1500:])


@pytest.mark.parametrize("seed", [0, 3, 4])
def test_an_unusual_actor_is_found_and_named(seed):
    data = strange_actor(seed, count=3000, share=0.003)
    rows = [unit.events[0] for unit in data.train + data.test]
    bad = {i for i, unit in enumerate(data.train + data.test) if unit.anomalous and i > 500}
    judgements = in_pieces(Detector(words), rows, [200])
    ranks = {j.entry: rank for rank, j in enumerate(sorted(judgements[500:], key=lambda j: -j.score))}
    assert np.median([ranks[i] for i in bad]) <= 15  # of 2,500
    assert all("actor" in judgements[i].parts for i in bad)
    assert "did this" in judgements[min(bad, key=lambda i: ranks[i])].reason


def test_an_hour_at_which_nothing_ever_happens_is_noticed():
    rng, rows = Random(0), []
    for day in range(40):
        for n in range(30):
            rows.append(event(rng, 0) | {"time": BASE + day * 86_400 * SECOND + n * 600 * SECOND})
    night = event(rng, 0, "file.read") | {"time": BASE + 40 * 86_400 * SECOND + 14 * 3600 * SECOND}
    day = event(rng, 0, "file.read") | {"time": BASE + 40 * 86_400 * SECOND + 3600 * SECOND}
    detector = Detector(words)
    detector.score(rows, range(len(rows)))
    assert "time" in detector.score([night], [9999], learn=False)[0].parts
    assert "time" not in detector.score([day], [9999], learn=False)[0].parts


@given(st.lists(any_events, max_size=20))
@settings(max_examples=12, deadline=None)
def test_the_detector_scores_saves_and_explains_any_event(rows):
    import tempfile

    detector = Detector(words)
    for j in detector.score(rows, range(len(rows))) + detector.end_sessions():
        assert 0.0 <= j.score <= 1.0
        assert isinstance(j.reason, str)
    with tempfile.TemporaryDirectory() as folder:
        detector.save(Path(folder) / "d")
        assert Detector.load(Path(folder) / "d", words).score(rows, range(len(rows))) == detector.score(
            rows, range(len(rows))
        )


def test_memory_is_bounded(monkeypatch):
    """Everything new all the time: other actors, words, sessions, templates."""
    from ridgeline.audit.anomaly import counts, history, neighbours
    from ridgeline.audit.anomaly import detector as module
    from ridgeline.audit.anomaly import sessions as open_sessions

    monkeypatch.setattr(history, "CONTEXTS", 40)
    monkeypatch.setattr(history, "SPAN", 20)
    monkeypatch.setattr(neighbours, "MOST", 64)
    monkeypatch.setattr(counts, "MOST", 32)
    monkeypatch.setattr(counts, "WIDEST", 64)
    monkeypatch.setattr(open_sessions, "OPEN", 50)
    monkeypatch.setattr(module, "OPEN", 50)
    monkeypatch.setattr(module, "REMEMBERED", 100)
    rng, detector = Random(0), Detector(words, memory=100)

    def strange(i: int) -> dict:
        name = "".join(rng.choices("abcdefghij", k=6))
        return {
            "time": BASE + i * SECOND,
            "source": name,
            "actor": name,
            "action": f"do.{name[:2]}",
            "subject": name,
            "attributes": {"session": name} if i % 2 else {},
        }

    sizes = []
    for n in range(3):
        for i in range(0, 600, 50):
            detector.score([strange(n * 600 + i + k) for k in range(50)], range(50))
            assert len(detector._sessions) <= 50
            assert len(detector._over) <= 50
            detector.end_sessions(BASE + (n * 600 + i) * SECOND)
        state = json.dumps([detector._history.state()[0] | {"known": 0}, detector._sessions.state()])
        sizes.append(len(state))
    assert sizes[2] < sizes[0] * 1.5
    assert sys.getsizeof(detector._recent) < 20_000


def test_a_sentence_has_the_action_first_and_no_session():
    row = {"action": "a.b", "subject": "c d", "attributes": {"z": [1, {"y": 2}], "b": "x", "session": "s1"}}
    assert describe_event(row) == 'a.b c d b=x z=[1, {"y": 2}]'
    assert describe_event({}) == "event"


def place(texts: list[str]) -> np.ndarray:
    """Vectors in which some words sound like trouble (first axis), some like routine (second axis)."""
    vectors = np.zeros((len(texts), 3), np.float32)
    for row, text in zip(vectors, texts, strict=True):
        row[0] = any(word in text.lower() for word in ("disabled", "panic", "failure", "attack"))
        row[1] = any(word in text.lower() for word in ("added", "started", "information"))
        row[2] = 0.5
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_newness_alone_raises_no_alert_and_trouble_does_even_after_it():
    rows = units(1500)
    for k, (action, subject, actor) in enumerate(
        [
            ("PortAdded", "br0", "root"),
            ("FirewallDisabled", "firewalld", "root"),
            ("KernelMessage", "PANIC disk", "root"),
            ("PortAdded", "eth9 by hand", "stranger"),
        ]
    ):
        rows.append(
            rows[0] | {"time": BASE + (1500 + k) * SECOND, "action": action, "subject": subject, "actor": actor}
        )
    harmless, firewall, panic, stranger = Detector(place).score(rows, range(len(rows)))[1500:]
    assert not harmless.alert
    assert "sounds like trouble" not in harmless.reason
    assert firewall.alert
    assert panic.alert
    assert stranger.alert
    assert "sounds like trouble" in panic.reason
    assert harmless.score < min(firewall.score, panic.score, stranger.score)


def test_anomalous_sessions_raise_alerts_though_there_are_more_of_them_than_the_rate():
    """Ranks of all sessions would let one in a hundred through; here one in eight is broken."""
    rng, detector = Random(1), Detector(words)
    found = wrong = broken = 0
    for i in range(900):
        bad = i >= 500 and rng.random() < 0.125
        texts = ordinary(rng)
        if bad:
            texts = [texts[0], *texts[2:-2], texts[1], *texts[-2:]]
        row = units(1)[0] | {"action": "log.line", "attributes": {"session": f"s{i}"}}
        detector.score(
            [row | {"time": BASE + i * SECOND, "subject": text.format(n=i)} for text in texts], [i] * len(texts)
        )
        [judgement] = detector.end_sessions()
        broken += bad
        found += bad and judgement.alert
        wrong += i >= 500 and not bad and judgement.alert
    assert found > 0.5 * broken
    assert wrong <= 20  # of 350


@pytest.mark.parametrize("verdict", ["normal", "bad"])
def test_the_label_of_a_session_counts_for_sessions_with_the_same_events(tmp_path, verdict):
    def make_session(number, actions):
        words = {"source": "t", "actor": "root", "subject": "job"}
        at = BASE + number * 60 * SECOND
        return [
            {**words, "time": at + k * SECOND, "action": f"step.{a}", "attributes": {"job_id": f"j{number}"}}
            for k, a in enumerate(actions)
        ]

    def judge(number, actions):
        rows = make_session(number, actions)
        return detector.score(rows, range(10 * number, 10 * number + len(rows))), detector.end_sessions()[-1]

    usual, odd = ("read", "check", "write", "close"), ("read", "write", "write", "write", "close")
    detector = Detector(lambda texts: np.eye(len(texts), 64, dtype=np.float32))
    for number in range(600):
        judge(number, usual)
    _, session = judge(600, odd)
    assert session.alert
    detector.label(session.entry, verdict)
    detector.save(tmp_path / "state")
    detector = Detector.load(tmp_path / "state", lambda texts: np.eye(len(texts), 64, dtype=np.float32))
    later_events, later = judge(601, odd)
    assert later.alert == (verdict == "bad")
    assert (later.score > session.score) == (verdict == "bad")
    if verdict == "bad":
        assert "the same events was labelled bad" in later.reason
    assert not any("label" in judgement.parts for judgement in later_events)  # its last event is as usual as before
    assert not judge(602, usual)[1].alert
