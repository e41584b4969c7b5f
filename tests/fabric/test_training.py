"""Training steps and tuning: what hides behind the backward pass, what does not, and how far a prediction is off."""

from __future__ import annotations

import json

import pytest

from ridgeline import fabric
from ridgeline.errors import InputError
from ridgeline.fabric import Model, Network
from ridgeline.fabric.choice import Choice, table_path
from ridgeline.fabric.config import FabricConfig
from ridgeline.fabric.cost_tables import tables
from ridgeline.fabric.tune_ways import begins
from ridgeline.fabric.tuning import tuned_network
from ridgeline.fabric.ways import NEVER, Ways, ways


def test_one_bucket_is_never_hidden_and_many_are():
    slow = Network("slow", None, 0.0, 1e9)
    one = Model(100_000_000, 10.0, 1, "items")
    whole = fabric.training_step(one, ranks=2, network=slow, bucket_bytes=1 << 30, algorithms=("ring",))
    assert whole.exposed_s == pytest.approx(0.1)  # 2 × (n − 1) / n × 100 MB at 1 GB/s
    parts = fabric.training_step(one, ranks=2, network=slow, bucket_bytes=1_000_000, algorithms=("ring",))
    assert parts.comm_s == pytest.approx(whole.comm_s)
    assert parts.exposed_s == pytest.approx(0.001)
    assert parts.efficiency > whole.efficiency


def test_strong_scaling_loses_more_than_weak():
    weak, strong = (fabric.training_step("bert-large", ranks=512, scaling=s) for s in ("weak", "strong"))
    assert strong.efficiency < weak.efficiency <= 1
    assert weak.kind == "predicted"
    alone = fabric.training_step("bert-large", ranks=1)
    assert alone.efficiency == 1
    with pytest.raises(InputError, match="no model 'bert'"):
        fabric.training_step("bert", ranks=8)


def test_a_replica_of_many_ranks_sums_inside_and_with_its_like():
    """GPT-175B by hand: gradients of one rank's 64th over one adapter each, 6 sums a layer and sequence inside."""
    one, two = (fabric.training_step("gpt-175b", ranks=n) for n in (64, 128))
    it = fabric.MODELS["gpt-175b"]
    wire = fabric.predict(fabric.schedule("all_reduce", "ring", ranks=8), network="dgx-a100", nbytes=it.inside_bytes)
    assert one.algorithm == "none"
    assert it.inside_calls * wire.seconds * 0.3 < one.exposed_s <= it.inside_calls * wire.seconds
    assert two.items_per_s == pytest.approx(2 * one.items_per_s, rel=1e-3)
    between = two.comm_s - one.comm_s
    assert between >= it.gradient_bytes / 25e9, "what a rank must send at least, over its own adapter"
    strong = fabric.training_step("gpt-175b", ranks=128, scaling="strong")
    assert strong.compute_s == pytest.approx(one.compute_s / 2)
    with pytest.raises(InputError, match="one replica takes 64"):
        fabric.training_step("gpt-175b", ranks=96)
    flops = 6 * 174_591_683_584 * one.items_per_s
    assert flops < 64 * 312e12, "no more than 64 A100 can do"


def test_the_tables_agree_with_the_predictions_they_are_made_of():
    found = {one.title: one for one in tables("dgx-a100")}
    assert all(one.kind == "predicted" and all(len(r) == len(one.columns) for r in one.rows) for one in found.values())
    ring = found["all_reduce by ring, 8 nodes (64 ranks) of dgx-a100"]
    last = fabric.predict(fabric.schedule("all_reduce", "ring", ranks=64), network="dgx-a100", nbytes=1 << 30)
    assert ring.rows[-1][:2] == (1 << 30, pytest.approx(last.seconds))
    strong = found["bert-large, strong scaling on dgx-a100"].rows
    assert [r[0] for r in strong] == [1, 2, 4, 8, 16, 32, 64]
    assert [r[3] for r in strong] == sorted((r[3] for r in strong), reverse=True)
    alone = tables("100gbe")
    assert all(one.rows for one in alone)


@pytest.mark.ranks
def test_tune_keeps_a_network_whose_error_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tuned_network(2) is None
    found = fabric.tune(2, sizes=(1 << 12, 1 << 16, 1 << 20))
    network, worst = tuned_network(2)
    assert worst == pytest.approx(found.worst)
    again = fabric.predict(fabric.schedule("all_reduce", "direct", ranks=2), network=network, nbytes=1 << 16)
    assert again.seconds == pytest.approx(found.seconds["direct"][1 << 16], rel=1e-6)
    assert [e.nbytes for e in found.errors] == [3 << 12, 3 << 14, 3 << 16, 3 << 18]
    kept = ways(FabricConfig(), 2)
    assert {name: getattr(kept, name) for name in found.ways} == found.ways
    assert "whole_bytes" in found.ways


@pytest.mark.parametrize(
    ("usual", "other", "wanted"),
    [
        ([1, 1, 1], [2, 2, 2], NEVER),
        ([1, 1, 1], [0.5, 0.5, 0.5], 0),
        ([1, 1, 1], [0.5, 2, 0.5], 800),  # what is faster here and there again is faster from the last on
        ([1, 1, 1], [0.5, 0.5, 0.97], NEVER),  # not clearly
    ],
)
def test_a_way_begins_where_it_is_clearly_faster_from_then_on(usual, other, wanted):
    assert begins([100, 400, 1600], usual=usual, other=other) == wanted


def test_ways_are_as_set_then_as_measured_then_as_usual(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ways(FabricConfig(), 2).whole_bytes == ways(FabricConfig(), 8).whole_bytes == NEVER
    assert ways(FabricConfig(), 16).whole_bytes < 1024
    table_path().parent.mkdir(parents=True)
    table_path().write_text(json.dumps({"ways": {"16": {"whole_bytes": 2000, "foreign_bytes": 7}}}))
    assert ways(FabricConfig(), 16) == Ways(2000, 7, NEVER)
    assert ways(FabricConfig(whole_bytes=0, foreign_move_bytes=5), 16) == Ways(0, 7, 5)
    with pytest.raises(InputError, match="whole_bytes is -2"):
        FabricConfig(whole_bytes=-2)


def test_the_measured_table_chooses_by_size(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = [{"up_to": 1000, "algorithm": "tree"}, {"up_to": 1 << 62, "algorithm": "direct"}]
    table_path().parent.mkdir(parents=True)
    table_path().write_text(json.dumps({"choice": {"all_reduce": {"4": rows}}}))
    choice = Choice(FabricConfig(), 4)
    assert choice.plain_up_to == -1
    assert choice.steps("all_reduce", None, 0, 0, 1000).name == "tree"
    assert choice.steps("all_reduce", None, 0, 0, 1001) is None
    assert choice.steps("all_reduce", "ring", 0, 0, 1001).name == "ring"
    assert Choice(FabricConfig(), 2).plain_up_to == 1 << 62
    assert Choice(FabricConfig(collective_algorithm="ring"), 2).plain_up_to == -1
    rows.reverse()
    rows[0]["up_to"] = 4096
    table_path().write_text(json.dumps({"choice": {"all_reduce": {"4": rows}}}))
    assert Choice(FabricConfig(), 4).plain_up_to == 4096, "small ones still take the short way"
    assert Choice(FabricConfig(collective_algorithm="ring"), 2).steps("all_reduce", None, 0, 0, 5).name == "ring"
