"""Two runs compared: relative to their shared peers if they have some, else as measured.

python -m pytest tests/lab/judge/test_compare.py
"""

from __future__ import annotations

import random

import pytest

from ridgeline.errors import Exit, NotComparable
from ridgeline.lab.judge import choose_exit_code, compare_records, count_unmatched


def make(record, ours: float, *, load: float = 1.0, peer: float = 200.0, noise: float = 0.01, seed: int = 0, **changes):
    rng = random.Random(seed)
    loads = [load * rng.lognormvariate(0, 0.1) for _ in range(40)]
    times = {"ridgeline": [ours * s * rng.lognormvariate(0, noise) for s in loads]}
    if peer:
        times["peer"] = [peer * s * rng.lognormvariate(0, noise) for s in loads]
    return record(times, **changes)


def test_a_run_compared_with_itself_is_same(record):
    one = make(record, 100, noise=0.5)
    changes = compare_records([one], [one])
    assert changes[0].comparison == "SAME"
    assert choose_exit_code(changes) is Exit.OK


def test_a_slowdown_is_detected_and_sets_the_exit_code(record):
    changes = compare_records([make(record, 100)], [make(record, 110, seed=1)])
    assert changes[0].comparison == "SLOWER"
    assert choose_exit_code(changes) is Exit.SLOWER


def test_a_speed_up_is_not_a_failure(record):
    changes = compare_records([make(record, 100)], [make(record, 80, seed=1)])
    assert changes[0].comparison == "FASTER"
    assert choose_exit_code(changes) is Exit.OK


def test_shared_peers_cancel_the_load(record):
    """B was measured under load that made everything 60 % slower; the code is the same."""
    changes = compare_records([make(record, 100)], [make(record, 100, load=1.6, seed=1)])
    assert changes[0].comparison == "SAME"
    assert changes[0].basis == "relative to peer in the same race"


def test_without_a_shared_peer_the_basis_says_that_load_is_included(record):
    changes = compare_records([make(record, 100, peer=0)], [make(record, 100, peer=0, load=1.6, seed=1)])
    assert changes[0].comparison == "SLOWER"
    assert "load included" in changes[0].basis


def test_noise_without_an_answer_is_unclear(record):
    changes = compare_records([make(record, 100, noise=0.6)], [make(record, 104, noise=0.6, seed=1)])
    assert changes[0].comparison == "UNCLEAR"
    assert choose_exit_code(changes) is Exit.UNCLEAR


def test_a_short_race_under_heavy_load_is_unclear(record):
    """Observed with equal codes on two busy cores: the peers were preempted in every round, ours in two of six."""
    rng = random.Random(0)
    idle = {"ridgeline": 471, "numpy": 482, "torch": 545}
    before = record({name: [time * rng.lognormvariate(0, 0.01) for _ in range(44)] for name, time in idle.items()})
    after = record(
        {
            "ridgeline": [12217, 19941, 495, 495, 486, 486],
            "numpy": [19998, 31979, 538, 509, 19990, 24061],
            "torch": [11954, 16032, 16043, 15944, 19425, 545],
        }
    )
    (changes,) = compare_records([before], [after])
    assert changes.comparison == "UNCLEAR"
    assert "too noisy" in changes.basis


def test_the_latest_record_of_a_case_counts(record):
    assert compare_records([make(record, 300), make(record, 100)], [make(record, 100, seed=1)])[0].comparison == "SAME"


@pytest.mark.parametrize(
    "change",
    [
        {"workload": "other"},
        {"case": {"n": 9, "device": "cpu", "ranks": 1}},
        {"machine": {"fingerprint": "another"}},
    ],
)
def test_runs_without_a_common_case_are_not_comparable(record, change):
    with pytest.raises(NotComparable):
        compare_records([make(record, 100)], [make(record, 100, **change)])


def test_a_wrong_output_is_not_compared(record):
    wrong = {"ridgeline": {"ok": False, "error": 1.0, "quality": {}, "note": ""}}
    with pytest.raises(NotComparable, match="no case in common has a valid time"):
        compare_records([make(record, 100)], [make(record, 100, checks=wrong)])


def test_a_case_that_lost_its_valid_time_is_not_a_success(record):
    """The other case is SAME; a change from correct to wrong must not pass because of that."""
    wrong = {"ridgeline": {"ok": False, "error": 1.0, "quality": {}, "note": ""}}
    other = {"case": {"n": 9, "device": "cpu", "ranks": 1}}
    before = [make(record, 100), make(record, 100, **other)]
    changes = compare_records(before, [make(record, 100, seed=1), make(record, 100, checks=wrong, **other)])
    assert [change.comparison for change in changes] == ["SAME", None]
    assert "B is WRONG" in changes[1].basis
    assert changes[1].to_json()["ratio"] is None
    assert choose_exit_code(changes) is Exit.NOT_COMPARABLE


def test_records_of_two_machines_in_one_file_are_separate(record):
    ours, other = make(record, 100), make(record, 300, machine={"fingerprint": "another"})
    assert [change.comparison for change in compare_records([ours, other], [make(record, 100, seed=1)])] == ["SAME"]
    assert count_unmatched([ours, other], [ours]) == (1, 0)


def test_cold_and_warm_are_different_cases(record):
    with pytest.raises(NotComparable):
        compare_records([make(record, 100)], [make(record, 100, plan={"cold": True})])


def test_the_latest_record_is_chosen_by_time_and_not_by_line(record):
    before = [make(record, 100)]
    old = make(record, 100, seed=1, time="2026-03-01T00:00:00+00:00")
    new = make(record, 200, seed=2, time="2026-12-01T00:00:00+00:00")
    for after in ([old, new], [new, old]):
        assert compare_records(before, after)[0].comparison == "SLOWER"
        assert compare_records(after, before)[0].comparison == "FASTER"
    again = make(record, 100, seed=3, time=new.time)
    assert compare_records(before, [new, again])[0].after is again  # of one time: the later line
