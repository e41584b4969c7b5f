"""Two runs compared: through their shared peers where they have some, honestly unclear where they have none.

python -m pytest tests/lab/test_compare.py
"""

from __future__ import annotations

import random

import pytest

from ridgeline.errors import Exit, NotComparable
from ridgeline.lab.judge.compare import changes, exit_code, unmatched


def made(record, ours: float, *, weather: float = 1.0, peer: float = 200.0, noise: float = 0.01, seed: int = 0, **more):
    rng = random.Random(seed)
    storm = [weather * rng.lognormvariate(0, 0.1) for _ in range(40)]
    times = {"ridgeline": [ours * s * rng.lognormvariate(0, noise) for s in storm]}
    if peer:
        times["peer"] = [peer * s * rng.lognormvariate(0, noise) for s in storm]
    return record(times, **more)


def test_a_run_compared_with_itself_is_same(record):
    one = made(record, 100, noise=0.5)
    found = changes([one], [one])
    assert found[0].comparison == "SAME"
    assert exit_code(found) is Exit.OK


def test_a_slowdown_is_found_and_sets_the_exit_code(record):
    found = changes([made(record, 100)], [made(record, 110, seed=1)])
    assert found[0].comparison == "SLOWER"
    assert exit_code(found) is Exit.SLOWER


def test_a_speed_up_is_no_failure(record):
    found = changes([made(record, 100)], [made(record, 80, seed=1)])
    assert found[0].comparison == "FASTER"
    assert exit_code(found) is Exit.OK


def test_shared_peers_take_the_weather_out(record):
    """B was measured in a storm that made everything 60 % slower; the code is the same."""
    found = changes([made(record, 100)], [made(record, 100, weather=1.6, seed=1)])
    assert found[0].comparison == "SAME"
    assert found[0].basis == "relative to peer in the same race"


def test_without_a_shared_peer_the_weather_stays_in_and_is_said(record):
    found = changes([made(record, 100, peer=0)], [made(record, 100, peer=0, weather=1.6, seed=1)])
    assert found[0].comparison == "SLOWER"
    assert "weather included" in found[0].basis


def test_noise_without_an_answer_is_unclear(record):
    found = changes([made(record, 100, noise=0.6)], [made(record, 104, noise=0.6, seed=1)])
    assert found[0].comparison == "UNCLEAR"
    assert exit_code(found) is Exit.UNCLEAR


def test_a_short_race_in_a_storm_proves_nothing(record):
    """Seen with equal codes on two busy cores: the peers were preempted in every round, ours in two of six."""
    rng = random.Random(0)
    calm = {"ridgeline": 471, "numpy": 482, "torch": 545}
    before = record({name: [time * rng.lognormvariate(0, 0.01) for _ in range(44)] for name, time in calm.items()})
    after = record(
        {
            "ridgeline": [12217, 19941, 495, 495, 486, 486],
            "numpy": [19998, 31979, 538, 509, 19990, 24061],
            "torch": [11954, 16032, 16043, 15944, 19425, 545],
        }
    )
    (found,) = changes([before], [after])
    assert found.comparison == "UNCLEAR"
    assert "too noisy" in found.basis


def test_the_latest_record_of_a_case_counts(record):
    assert changes([made(record, 300), made(record, 100)], [made(record, 100, seed=1)])[0].comparison == "SAME"


@pytest.mark.parametrize(
    "change",
    [
        {"workload": "other"},
        {"case": {"n": 9, "device": "cpu", "ranks": 1}},
        {"machine": {"fingerprint": "another"}},
    ],
)
def test_what_has_nothing_in_common_is_not_comparable(record, change):
    with pytest.raises(NotComparable):
        changes([made(record, 100)], [made(record, 100, **change)])


def test_a_wrong_output_is_not_compared(record):
    wrong = {"ridgeline": {"ok": False, "error": 1.0, "quality": {}, "note": ""}}
    with pytest.raises(NotComparable, match="no case in common has a valid time"):
        changes([made(record, 100)], [made(record, 100, checks=wrong)])


def test_a_case_that_lost_its_time_is_said_and_no_success(record):
    """The other case is the same; a regression from right to wrong must not pass for that."""
    wrong = {"ridgeline": {"ok": False, "error": 1.0, "quality": {}, "note": ""}}
    other = {"case": {"n": 9, "device": "cpu", "ranks": 1}}
    before = [made(record, 100), made(record, 100, **other)]
    found = changes(before, [made(record, 100, seed=1), made(record, 100, checks=wrong, **other)])
    assert [change.comparison for change in found] == ["SAME", None]
    assert "B is WRONG" in found[1].basis
    assert found[1].to_json()["ratio"] is None
    assert exit_code(found) is Exit.NOT_COMPARABLE


def test_records_of_two_machines_in_one_file_are_kept_apart(record):
    here, there = made(record, 100), made(record, 300, machine={"fingerprint": "another"})
    assert [change.comparison for change in changes([here, there], [made(record, 100, seed=1)])] == ["SAME"]
    assert unmatched([here, there], [here]) == (1, 0)


def test_cold_and_warm_are_different_questions(record):
    with pytest.raises(NotComparable):
        changes([made(record, 100)], [made(record, 100, plan={"cold": True})])


def test_the_latest_record_is_that_of_the_latest_time_wherever_its_line_is(record):
    before = [made(record, 100)]
    old = made(record, 100, seed=1, time="2026-03-01T00:00:00+00:00")
    new = made(record, 200, seed=2, time="2026-12-01T00:00:00+00:00")
    for after in ([old, new], [new, old]):
        assert changes(before, after)[0].comparison == "SLOWER"
        assert changes(after, before)[0].comparison == "FASTER"
    again = made(record, 100, seed=3, time=new.time)
    assert changes(before, [new, again])[0].after is again  # of one time: the later line
