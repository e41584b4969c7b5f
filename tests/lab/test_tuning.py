"""What to change: advice where the records show a difference, none where they do not.

python -m pytest tests/lab/test_tuning.py
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.made import GOOD, knee, nodes, race, studied, types

from ridgeline.lab.judge.tuning import changes


def told(*records):
    return [(change.what, change.why) for change in changes(records)]


def test_the_knee_of_a_sweep_is_the_smallest_size_that_is_nearly_the_best():
    (change,) = changes(knee())
    assert change.what == "batch = 1024"
    assert "× that of batch = 1; more only adds waiting" in change.why
    assert [r.case["batch"] for r in change.records] == [1, 1024]


def test_a_rate_that_still_rises_at_the_end_asks_for_more():
    rising = [race("made", {"batch": b}, 1e4 + b, {}, work={"items": b}) for b in (1, 10, 100, 1000)]
    (change,) = changes(rising)
    assert change.what == "batch = 1000 or more"
    assert "larger was not measured" in change.why


@pytest.mark.parametrize("name", ["n", "rows", "tokens"])
def test_the_size_of_a_problem_is_nobodys_choice(name):
    assert not changes([race("made", {name: b}, 200 + b, {}, work={"items": b}) for b in (1, 16, 256, 1024)])


def test_a_flat_sweep_gives_no_advice():
    assert not changes([race("made", {"batch": b}, 100.0 * b, {}, work={"items": b}) for b in (1, 16, 256, 1024)])


def test_two_points_are_no_sweep():
    assert not changes([race("made", {"batch": b}, 200 + b, {}, work={"items": b}) for b in (1, 1024)])


def test_a_faster_type_is_named_with_what_it_gives_up():
    (change,) = changes(types())
    assert change.what == "dtype = bfloat16"
    assert change.why.startswith("4.0 × as fast as float32 [")
    assert "largest error is 0.01 against 1e-06" in change.why


@pytest.mark.parametrize(("name", "good", "bad"), [("memory", "pinned", "pageable"), ("compile", True, False)])
def test_other_ways_of_doing_the_same_are_choices_too(name, good, bad):
    ways = [race("made", {"n": 8, name: way}, ns, {}) for way, ns in ((bad, 2e3), (good, 1e3))]
    assert told(*ways)[0][0] == f"{name} = {good}"


def test_the_better_node_is_named():
    (change,) = changes(nodes())
    assert change.what == "node 0"
    assert change.why.startswith("1.40 × as fast as from node 1 [")


def test_a_peer_that_is_ahead_is_named_with_its_quality():
    checks = {n: {**GOOD, "quality": {"recall": r}} for n, r in (("ridgeline", 1.0), ("peer", 0.9))}
    (change,) = changes([race("made", {"n": 8}, 1e3, {"peer": 500.0}, checks=checks)])
    assert change.what == "consider peer"
    assert change.why == "ahead of ridgeline in 1 of 1 cases, at most 2.0 ×; recall 0.9 against 1"


def test_a_peer_that_is_behind_is_no_advice():
    assert not changes([race("made", {"n": 8}, 1e3, {"peer": 3e3})])


def test_a_study_says_itself_what_to_choose_and_only_where_there_was_a_choice():
    said = changes(studied())
    assert said
    assert all(change.workload == "study" and not change.what for change in said)
    assert any("small" in change.why for change in said)
    one_way = [r for r in studied() if r.case["batch_size"] == 8 and r.placement[0]["node"] == 0]
    assert not changes(one_way)


def test_noisy_records_give_no_advice():
    rng = random.Random(1)

    def noisy(record):
        lanes = tuple(
            replace(x, samples_ns=tuple(ns * rng.lognormvariate(0, 0.5) for ns in x.samples_ns))
            for x in record.contenders
        )
        return replace(record, contenders=lanes)

    assert not changes([noisy(r) for r in (*types(), *nodes())])


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(["dtype", "memory", "node"]))
def test_equal_ways_in_different_weather_give_no_advice(seed, what):
    """Both sides from one distribution, each run with a level of its own within 1 %."""
    rng = random.Random(seed)
    level = [1e3 * rng.lognormvariate(0, 0.005) for _ in range(2)]
    if what == "node":
        ways = [replace(one, contenders=race("placed", {"n": 8}, ns, {}, seed=seed + i).contenders)
                for i, (one, ns) in enumerate(zip(nodes(), level, strict=True))]  # fmt: skip
    else:
        ways = [race("made", {"n": 8, what: f"way {i}"}, ns, {}, seed=seed + i) for i, ns in enumerate(level)]
    assert not changes(ways)
