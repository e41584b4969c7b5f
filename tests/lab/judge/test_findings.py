"""Summaries of paths from artificial records: the representative case, the limit, the best peer.

python -m pytest tests/lab/judge/test_findings.py
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.conftest import make_record

from ridgeline.lab.judge import Comparison, Validity, find_best_peer, rank_path, select_latest, summarise_paths
from ridgeline.lab.record import append_record, read_records

FAILED = {"ok": False, "error": 2.0, "quality": {}, "note": ""}


def make_race(ours=1000.0, *, case=None, work=None, **others):
    """Make a record: nanoseconds of ours and of the others; 64 bytes of memory at 10 GB/s have a floor of 6.4 ns."""
    times = {"ridgeline": ours, **others}
    one = make_record({name.replace("_", " "): [ns] * 12 for name, ns in times.items()})
    full_case = {"n": 8, "device": "cpu", "ranks": 1} if case is None else {"device": "cpu", "ranks": 1, **case}
    return replace(one, case=full_case, work={**one.work, "flops": 0, **(work or {})})


def summarise(*records):
    (summary,) = summarise_paths(records)
    return summary


def test_a_summary_has_rate_share_limit_and_best_peer():
    summary = summarise(make_race(8.0, slow=80.0, best=24.0))
    assert (summary.workload, summary.device, summary.unit) == ("made", "cpu", "rows/s")
    assert summary.rate == pytest.approx(1e9)
    assert summary.share == pytest.approx(0.8)
    assert (summary.resource, summary.limit) == ("memory", "memory bandwidth")
    assert (summary.peer, summary.verdict) == ("best", Comparison.SLOWER)
    assert summary.ratio.value == pytest.approx(3.0)
    assert summary.sentence == (
        "made is limited by memory bandwidth on this CPU: 80 % of the memory ceiling; 3.0 × as fast as best."
    )


def test_a_distant_ceiling_is_not_the_limit():
    summary = summarise(make_race(64.0, peer=64.0))
    assert summary.limit is None
    assert summary.sentence == (
        "made reaches 10 % of the memory ceiling on this CPU; what limits it is not known: its record does not "
        "have the CPU time of its steps; record it again; level with peer."
    )


def test_a_stage_that_fills_the_step_is_the_limit_whatever_the_ceiling():
    one = make_race(8.0, peer=4.0)
    contenders = (replace(one.contenders[0], extras={"stages_ns": {"tokenize": [6, 6], "forward": [2, 2]}}),)
    summary = summarise(replace(one, contenders=(*contenders, one.contenders[1])))
    assert summary.stages == pytest.approx({"tokenize": 0.75, "forward": 0.25})
    assert summary.limit == "tokenize (75 % of a step)"
    assert summary.sentence.endswith("; a loss: peer is 2.0 × as fast.")


def test_without_ceiling_and_peer_the_summary_has_only_the_rate():
    summary = summarise(replace(make_race(8.0), ceilings={}, missing={"absent": "peers"}))
    assert (summary.share, summary.limit, summary.peer) == (None, None, None)
    assert summary.sentence == (
        "made does 1 G rows/s on this CPU; what limits it is not known: its record does not have the CPU time of its "
        "steps; record it again; no peer took part (absent not installed)."
    )


def test_controls_and_variants_of_ours_are_not_peers():
    one = make_race(100.0, peer=300.0, memcpy=10.0, ridgeline_registered=50.0)
    version = replace(one.contenders[1], contender="ridgeline@abc", samples_ns=(1.0,) * 12)
    summary = summarise(replace(one, contenders=(*one.contenders, version), controls=("memcpy",)))
    assert summary.peer == "peer"
    assert summary.verdict_counts == {"SLOWER": 1}


def test_a_wrong_peer_is_not_the_best_peer():
    one = make_race(100.0, right=300.0, wrong=10.0)
    contenders = (*one.contenders[:2], replace(one.contenders[2], check=FAILED))
    assert summarise(replace(one, contenders=contenders)).peer == "right"


def test_cases_behind_a_peer_and_wrong_cases_are_counted():
    ahead = make_race(8.0, case={"n": 9}, work={"bytes": {"memory": 640}}, peer=80.0)
    behind = make_race(8.0, case={"n": 2}, peer=4.0)
    wrong = make_race(8.0, case={"n": 3}, peer=9.0)
    wrong = replace(wrong, contenders=(replace(wrong.contenders[0], check=FAILED), *wrong.contenders[1:]))
    summary = summarise(ahead, behind, wrong)
    assert (summary.cases, summary.bad) == (3, 1)
    assert summary.sentence.endswith(
        "10 × as fast as peer; a loss in 1 other of 3 cases; 1 of 3 cases WRONG or INCOMPLETE."
    )


def test_losses_rank_first_then_doubts_and_wins_last():
    def rank(ours: float = 8.0, samples: list[float] | None = None, **peers: float) -> tuple[int, float]:
        one = make_race(ours, **peers)
        if samples:
            one = replace(one, contenders=(replace(one.contenders[0], samples_ns=tuple(samples)), *one.contenders[1:]))
        return rank_path(summarise(one))

    wrong = make_race(8.0, peer=80.0)
    wrong = replace(wrong, contenders=(replace(wrong.contenders[0], check=FAILED), *wrong.contenders[1:]))
    ranks = [
        rank_path(summarise(wrong)),
        rank(peer=2.0),
        rank(peer=4.0),
        rank_path(summarise(make_race(8.0, case={"n": 9}, work={"bytes": {"memory": 640}}, peer=80.0),
                            make_race(8.0, case={"n": 2}, peer=4.0))),
        rank(samples=[4.0, 12.0] * 6, peer=80.0),
        rank(peer=8.0),
        rank(),
        rank(peer=16.0),
        rank(peer=80.0),
    ]  # fmt: skip
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)


def test_a_rate_in_doubt_has_fewer_digits():
    steady, doubtful = (
        summarise(replace(one, contenders=(replace(one.contenders[0], samples_ns=tuple(samples)),)))
        for one, samples in ((make_race(8.0), [7.11] * 12), (make_race(8.0), [6.11, 8.11] * 6))
    )
    assert steady.rate_text == "1.13 G rows/s"
    assert doubtful.rate_text == "1.1 G rows/s"


def test_without_a_valid_time_of_ours_the_reason_is_the_finding():
    one = make_race(8.0, peer=9.0)
    summary = summarise(replace(one, contenders=(replace(one.contenders[0], check=FAILED), *one.contenders[1:])))
    assert summary.rate is None
    assert summary.validity is Validity.WRONG
    assert summary.sentence.startswith("made on this CPU: WRONG, the output failed its check")


def test_the_main_kind_is_that_of_the_first_record():
    main = make_race(100.0, case={"stage": "whole", "n": 1})
    part = make_race(1.0, case={"stage": "part", "n": 100}, work={"bytes": {"memory": 6400}})
    assert summarise(main, part).record is main
    assert summarise(part, main).record is part


@settings(deadline=None)
@given(st.permutations([1, 2, 3, 4, 5]), st.lists(st.floats(1.0, 1e9), min_size=5, max_size=5))
def test_the_representative_case_depends_on_the_work_and_never_on_the_times(sizes, times):
    cases = [
        make_race(ns, case={"n": size}, work={"bytes": {"memory": 64 * size}}, peer=ns / 2)
        for size, ns in zip(sizes, times, strict=True)
    ]
    assert summarise(*cases).record.case["n"] == 5


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6))
def test_the_best_peer_is_the_fastest(ratios):
    summary = summarise(make_race(1000.0, **{f"peer{i}": 1000.0 * r for i, r in enumerate(ratios)}))
    assert summary.ratio.value == pytest.approx(min(ratios))
    assert f"peer{ratios.index(min(ratios))}" == summary.peer or math.isclose(
        ratios[int(summary.peer.removeprefix("peer"))], min(ratios)
    )


def test_machines_and_devices_are_separate_paths_ordered_by_machine():
    one = make_race(8.0)
    other = replace(make_race(8.0), machine={**one.machine, "fingerprint": "other"})
    gpu = replace(make_race(8.0), case={**one.case, "device": "cuda"})
    summary = summarise_paths([one, other, gpu])
    assert [(s.machine, s.device) for s in summary] == [
        (one.machine["fingerprint"], "cpu"),
        (one.machine["fingerprint"], "cuda"),
        ("other", "cpu"),
    ]
    assert "this GPU" in summary[1].sentence


def test_the_newest_record_of_a_case_counts_in_any_order_of_files():
    old, new = make_race(8.0), replace(make_race(4.0), time="2026-02-01T00:00:00+00:00")
    assert select_latest([old, new]) == select_latest([new, old]) == [new]


def test_a_record_stores_its_controls(tmp_path):
    append_record(tmp_path, replace(make_race(8.0, memcpy=4.0), controls=("memcpy",)))
    (record,) = read_records(tmp_path).records
    assert record.controls == ("memcpy",)
    assert summarise(record).peer is None


def test_a_summary_is_json():
    summary = json.loads(json.dumps(summarise(make_race(8.0, peer=24.0)).to_json()))
    assert summary["best_peer"] == "peer"
    assert summary["verdict"] == "SLOWER"
    assert summary["sentence"].startswith("made is limited")


def test_without_records_there_are_no_paths():
    assert summarise_paths([]) == []
    assert find_best_peer([]) is None
