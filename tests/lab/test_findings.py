"""Where each path stands, from made-up records: which case speaks for it, what limits it, who is its best peer.

python -m pytest tests/lab/test_findings.py
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.conftest import make_record

from ridgeline.lab.judge.findings import best_peer, latest, standings
from ridgeline.lab.judge.verdict import Comparison, Validity
from ridgeline.lab.record.record import append, read

GOOD = {"ok": True, "error": 0.0, "quality": {}, "note": ""}
BAD = {"ok": False, "error": 2.0, "quality": {}, "note": ""}


def race(ours=1000.0, *, case=None, work=None, **others):
    """Ours takes that many ns each time, the others theirs; 64 bytes of memory at 10 GB/s are a floor of 6.4 ns."""
    times = {"ridgeline": ours, **others}
    one = make_record({name.replace("_", " "): [ns] * 12 for name, ns in times.items()})
    whole = {"n": 8, "device": "cpu", "ranks": 1} if case is None else {"device": "cpu", "ranks": 1, **case}
    return replace(one, case=whole, work={**one.work, "flops": 0, **(work or {})})


def only(*records):
    (found,) = standings(records)
    return found


def test_a_path_is_told_with_its_rate_share_limit_and_best_peer():
    found = only(race(8.0, slow=80.0, best=24.0))
    assert (found.workload, found.device, found.unit) == ("made", "cpu", "rows/s")
    assert found.rate == pytest.approx(1e9)
    assert found.share == pytest.approx(0.8)
    assert (found.resource, found.limit) == ("memory", "memory bandwidth")
    assert (found.peer, found.verdict) == ("best", Comparison.SLOWER)
    assert found.ratio.value == pytest.approx(3.0)
    assert found.sentence == (
        "made is limited by memory bandwidth on this CPU: 80 % of the memory ceiling; 3.0 × as fast as best."
    )


def test_a_far_ceiling_limits_nothing_and_that_is_said():
    found = only(race(64.0, peer=64.0))
    assert found.limit is None
    assert found.sentence == (
        "made reaches 10 % of the memory ceiling on this CPU; what limits it is not known: its record is older than "
        "the count of CPU time in steps; record it again; level with peer."
    )


def test_a_stage_that_fills_the_step_is_the_limit_whatever_the_ceiling():
    one = race(8.0, peer=4.0)
    lanes = (replace(one.contenders[0], extras={"stages_ns": {"tokenize": [6, 6], "forward": [2, 2]}}),)
    found = only(replace(one, contenders=(*lanes, one.contenders[1])))
    assert found.stages == pytest.approx({"tokenize": 0.75, "forward": 0.25})
    assert found.limit == "tokenize (75 % of a step)"
    assert found.sentence.endswith("; peer is 2.0 × as fast.")


def test_without_ceiling_and_peer_only_the_rate_is_told():
    found = only(replace(race(8.0), ceilings={}, missing={"absent": "peers"}))
    assert (found.share, found.limit, found.peer) == (None, None, None)
    assert found.sentence == (
        "made does 1 G rows/s on this CPU; what limits it is not known: its record is older than the count of CPU time "
        "in steps; record it again; no peer took part (absent not installed)."
    )


def test_controls_and_other_ways_of_ours_are_no_peers():
    one = race(100.0, peer=300.0, memcpy=10.0, ridgeline_registered=50.0)
    version = replace(one.contenders[1], contender="ridgeline@abc", samples_ns=(1.0,) * 12)
    found = only(replace(one, contenders=(*one.contenders, version), controls=("memcpy",)))
    assert found.peer == "peer"
    assert found.words == {"SLOWER": 1}


def test_a_wrong_peer_is_no_best_peer():
    one = race(100.0, right=300.0, wrong=10.0)
    lanes = (*one.contenders[:2], replace(one.contenders[2], check=BAD))
    assert only(replace(one, contenders=lanes)).peer == "right"


def test_what_is_behind_or_wrong_elsewhere_is_counted():
    ahead = race(8.0, case={"n": 9}, work={"bytes": {"memory": 640}}, peer=80.0)
    behind = race(8.0, case={"n": 2}, peer=4.0)
    wrong = race(8.0, case={"n": 3}, peer=9.0)
    wrong = replace(wrong, contenders=(replace(wrong.contenders[0], check=BAD), *wrong.contenders[1:]))
    found = only(ahead, behind, wrong)
    assert (found.cases, found.bad) == (3, 1)
    assert found.sentence.endswith(
        "10 × as fast as peer; behind a peer in 1 other of 3 cases; 1 of 3 cases WRONG or INCOMPLETE."
    )


def test_where_nothing_of_ours_is_right_the_reason_is_the_finding():
    one = race(8.0, peer=9.0)
    found = only(replace(one, contenders=(replace(one.contenders[0], check=BAD), *one.contenders[1:])))
    assert found.rate is None
    assert found.validity is Validity.WRONG
    assert found.sentence.startswith("made on this CPU: WRONG, the output failed its check")


def test_the_main_kind_is_the_one_recorded_first():
    main = race(100.0, case={"stage": "whole", "n": 1})
    part = race(1.0, case={"stage": "part", "n": 100}, work={"bytes": {"memory": 6400}})
    assert only(main, part).record is main
    assert only(part, main).record is part


@settings(deadline=None)
@given(st.permutations([1, 2, 3, 4, 5]), st.lists(st.floats(1.0, 1e9), min_size=5, max_size=5))
def test_which_case_speaks_for_a_path_hangs_on_the_work_and_never_on_the_times(sizes, times):
    cases = [
        race(ns, case={"n": size}, work={"bytes": {"memory": 64 * size}}, peer=ns / 2)
        for size, ns in zip(sizes, times, strict=True)
    ]
    assert only(*cases).record.case["n"] == 5


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6))
def test_the_best_peer_is_the_fastest(ratios):
    found = only(race(1000.0, **{f"peer{i}": 1000.0 * r for i, r in enumerate(ratios)}))
    assert found.ratio.value == pytest.approx(min(ratios))
    assert f"peer{ratios.index(min(ratios))}" == found.peer or math.isclose(
        ratios[int(found.peer.removeprefix("peer"))], min(ratios)
    )


def test_machines_and_devices_are_paths_of_their_own_and_machines_stay_together():
    one = race(8.0)
    other = replace(race(8.0), machine={**one.machine, "fingerprint": "other"})
    gpu = replace(race(8.0), case={**one.case, "device": "cuda"})
    found = standings([one, other, gpu])
    assert [(s.machine, s.device) for s in found] == [
        (one.machine["fingerprint"], "cpu"),
        (one.machine["fingerprint"], "cuda"),
        ("other", "cpu"),
    ]
    assert "this GPU" in found[1].sentence


def test_the_newest_of_a_case_counts_whatever_order_the_files_came_in():
    old, new = race(8.0), replace(race(4.0), time="2026-02-01T00:00:00+00:00")
    assert latest([old, new]) == latest([new, old]) == [new]


def test_a_record_keeps_which_contenders_are_no_peers(tmp_path):
    append(tmp_path, replace(race(8.0, memcpy=4.0), controls=("memcpy",)))
    (kept,) = read(tmp_path).records
    assert kept.controls == ("memcpy",)
    assert only(kept).peer is None


def test_a_standing_is_json():
    told = json.loads(json.dumps(only(race(8.0, peer=24.0)).to_json()))
    assert told["best_peer"] == "peer"
    assert told["verdict"] == "SLOWER"
    assert told["sentence"].startswith("made is limited")


def test_no_records_are_no_paths():
    assert standings([]) == []
    assert best_peer([]) is None
