"""Advice: given if the records show a difference, and not otherwise.

python -m pytest tests/lab/report/test_advice.py
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.sample_records import PASSED, make_dtypes, make_experiment, make_knee, make_nodes, make_race

from ridgeline.lab.report.advice import find_advice


def list_advice(*records):
    return [(advice.what, advice.why) for advice in find_advice(records)]


def test_the_knee_of_a_sweep_is_the_smallest_size_with_nearly_the_best_rate():
    (advice,) = find_advice(make_knee())
    assert advice.what == "batch = 1024"
    assert "× that of batch = 1; more only adds waiting" in advice.why
    assert [r.case["batch"] for r in advice.records] == [1, 1024]


def test_a_rate_that_still_rises_at_the_end_gives_advice_to_go_on():
    rising = [make_race("made", {"batch": b}, 1e4 + b, {}, work={"items": b}) for b in (1, 10, 100, 1000)]
    (advice,) = find_advice(rising)
    assert advice.what == "batch = 1000 or more"
    assert "larger was not measured" in advice.why


@pytest.mark.parametrize("name", ["n", "rows", "tokens"])
def test_the_size_of_a_problem_is_not_a_choice(name):
    assert not find_advice([make_race("made", {name: b}, 200 + b, {}, work={"items": b}) for b in (1, 16, 256, 1024)])


def test_a_flat_sweep_gives_no_advice():
    assert not find_advice(
        [make_race("made", {"batch": b}, 100.0 * b, {}, work={"items": b}) for b in (1, 16, 256, 1024)]
    )


def test_two_points_are_not_a_sweep():
    assert not find_advice([make_race("made", {"batch": b}, 200 + b, {}, work={"items": b}) for b in (1, 1024)])


def test_a_faster_type_is_named_with_its_error():
    (advice,) = find_advice(make_dtypes())
    assert advice.what == "dtype = bfloat16"
    assert advice.why.startswith("4.0 × as fast as float32 [")
    assert "largest error is 0.01 against 1e-06" in advice.why


@pytest.mark.parametrize(("name", "good", "bad"), [("memory", "pinned", "pageable"), ("compile", True, False)])
def test_memory_and_compilation_are_choices_too(name, good, bad):
    ways = [make_race("made", {"n": 8, name: way}, ns, {}) for way, ns in ((bad, 2e3), (good, 1e3))]
    assert list_advice(*ways)[0][0] == f"{name} = {good}"


def test_the_better_node_is_named():
    (advice,) = find_advice(make_nodes())
    assert advice.what == "node 0"
    assert advice.why.startswith("1.40 × as fast as from node 1 [")


def test_a_faster_peer_is_named_with_its_quality():
    checks = {n: {**PASSED, "quality": {"recall": r}} for n, r in (("ridgeline", 1.0), ("peer", 0.9))}
    (advice,) = find_advice([make_race("made", {"n": 8}, 1e3, {"peer": 500.0}, checks=checks)])
    assert advice.what == "consider peer"
    assert advice.why == "ahead of ridgeline in 1 of 1 cases, at most 2.0 ×; recall 0.9 against 1"


def test_a_slower_peer_gives_no_advice():
    assert not find_advice([make_race("made", {"n": 8}, 1e3, {"peer": 3e3})])


def test_a_study_gives_its_own_advice_only_if_there_was_a_choice():
    sentences = find_advice(make_experiment())
    assert sentences
    assert all(advice.workload == "study" and not advice.what for advice in sentences)
    assert any("small" in advice.why for advice in sentences)
    one_way = [r for r in make_experiment() if r.case["batch_size"] == 8 and r.placement[0]["node"] == 0]
    assert not find_advice(one_way)


def test_noisy_records_give_no_advice():
    rng = random.Random(1)

    def add_noise(record):
        contenders = tuple(
            replace(x, samples_ns=tuple(ns * rng.lognormvariate(0, 0.5) for ns in x.samples_ns))
            for x in record.contenders
        )
        return replace(record, contenders=contenders)

    assert not find_advice([add_noise(r) for r in (*make_dtypes(), *make_nodes())])


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(["dtype", "memory", "node"]))
def test_equal_ways_under_different_load_give_no_advice(seed, what):
    """Both sides come from one distribution; each run has its own level within 1 %."""
    rng = random.Random(seed)
    level = [1e3 * rng.lognormvariate(0, 0.005) for _ in range(2)]
    if what == "node":
        ways = [replace(one, contenders=make_race("placed", {"n": 8}, ns, {}, seed=seed + i).contenders)
                for i, (one, ns) in enumerate(zip(make_nodes(), level, strict=True))]  # fmt: skip
    else:
        ways = [make_race("made", {"n": 8, what: f"way {i}"}, ns, {}, seed=seed + i) for i, ns in enumerate(level)]
    assert not find_advice(ways)
