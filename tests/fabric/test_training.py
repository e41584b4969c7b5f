"""Training steps and tuning: what the backward pass hides, and the error of predictions."""

from __future__ import annotations

import json

import pytest

from ridgeline import fabric
from ridgeline.errors import InputError
from ridgeline.fabric import Model, Network
from ridgeline.fabric.config import FabricConfig
from ridgeline.fabric.cost_tables import make_tables
from ridgeline.fabric.selection import NEVER, AlgorithmChoice, Thresholds, choose_thresholds, get_tuning_path
from ridgeline.fabric.tuning import find_threshold, load_tuned_network


def test_one_bucket_is_never_hidden_and_many_are():
    slow = Network("slow", None, 0.0, 1e9)
    model = Model(100_000_000, 10.0, 1, "items")
    one_bucket = fabric.training_step(model, ranks=2, network=slow, bucket_bytes=1 << 30, algorithms=("ring",))
    assert one_bucket.exposed_s == pytest.approx(0.1)  # 2 × (n − 1) / n × 100 MB at 1 GB/s
    many_buckets = fabric.training_step(model, ranks=2, network=slow, bucket_bytes=1_000_000, algorithms=("ring",))
    assert many_buckets.comm_s == pytest.approx(one_bucket.comm_s)
    assert many_buckets.exposed_s == pytest.approx(0.001)
    assert many_buckets.efficiency > one_bucket.efficiency


def test_strong_scaling_loses_more_than_weak():
    weak, strong = (fabric.training_step("bert-large", ranks=512, scaling=s) for s in ("weak", "strong"))
    assert strong.efficiency < weak.efficiency <= 1
    assert weak.kind == "predicted"
    alone = fabric.training_step("bert-large", ranks=1)
    assert alone.efficiency == 1
    with pytest.raises(InputError, match="no model 'bert'"):
        fabric.training_step("bert", ranks=8)


def test_a_replica_of_many_ranks_sums_inside_and_between_replicas():
    """GPT-175B: each rank sends 1/64 of the gradients over one adapter, with 6 sums per layer and sequence inside."""
    one, two = (fabric.training_step("gpt-175b", ranks=n) for n in (64, 128))
    model = fabric.MODELS["gpt-175b"]
    wire = fabric.predict(fabric.schedule("all_reduce", "ring", ranks=8), network="dgx-a100", nbytes=model.inside_bytes)
    assert one.algorithm == "none"
    assert model.inside_calls * wire.seconds * 0.3 < one.exposed_s <= model.inside_calls * wire.seconds
    assert two.items_per_s == pytest.approx(2 * one.items_per_s, rel=1e-3)
    between = two.comm_s - one.comm_s
    assert between >= model.gradient_bytes / 25e9, "the least that a rank must send over its adapter"
    strong = fabric.training_step("gpt-175b", ranks=128, scaling="strong")
    assert strong.compute_s == pytest.approx(one.compute_s / 2)
    with pytest.raises(InputError, match="one replica takes 64"):
        fabric.training_step("gpt-175b", ranks=96)
    flops = 6 * 174_591_683_584 * one.items_per_s
    assert flops < 64 * 312e12, "no more than 64 A100 can do"


def test_the_tables_agree_with_the_predictions_they_are_made_of():
    tables = {table.title: table for table in make_tables("dgx-a100")}
    for table in tables.values():
        assert table.kind == "predicted"
        assert all(len(row) == len(table.columns) for row in table.rows)
    ring = tables["all_reduce by ring, 8 nodes (64 ranks) of dgx-a100"]
    plan = fabric.schedule("all_reduce", "ring", ranks=64, network="dgx-a100")
    last = fabric.predict(plan, network="dgx-a100", nbytes=1 << 30)
    assert ring.rows[-1][:2] == (1 << 30, pytest.approx(last.seconds))
    strong = tables["bert-large, strong scaling on dgx-a100"].rows
    assert [r[0] for r in strong] == [1, 2, 4, 8, 16, 32, 64]
    assert [r[3] for r in strong] == sorted((r[3] for r in strong), reverse=True)
    assert all(table.rows for table in make_tables("100gbe"))


@pytest.mark.ranks
def test_tune_saves_a_network_with_its_error(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_tuned_network(2) is None
    result = fabric.tune(2, sizes=(1 << 12, 1 << 16))
    network, worst = load_tuned_network(2)
    assert worst == pytest.approx(result.worst)
    prediction = fabric.predict(fabric.schedule("all_reduce", "direct", ranks=2), network=network, nbytes=1 << 16)
    assert prediction.seconds == pytest.approx(result.seconds["direct"][1 << 16], rel=1e-6)
    assert [e.nbytes for e in result.errors] == [3 << 12, 3 << 14]
    thresholds = choose_thresholds(FabricConfig(), 2)
    assert {name: getattr(thresholds, name) for name in result.thresholds} == result.thresholds
    assert "whole_bytes" in result.thresholds


@pytest.mark.parametrize(
    ("default", "other", "threshold"),
    [
        ([1, 1, 1], [2, 2, 2], NEVER),
        ([1, 1, 1], [0.5, 0.5, 0.5], 0),
        ([1, 1, 1], [0.5, 2, 0.5], 800),  # faster at two separate sizes: the threshold is at the last
        ([1, 1, 1], [0.5, 0.5, 0.97], NEVER),  # not clearly faster
    ],
)
def test_the_threshold_is_where_the_other_method_becomes_clearly_faster(default, other, threshold):
    assert find_threshold([100, 400, 1600], default=default, other=other) == threshold


def test_thresholds_come_from_settings_then_measurements_then_defaults(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert choose_thresholds(FabricConfig(), 2).whole_bytes == choose_thresholds(FabricConfig(), 8).whole_bytes == NEVER
    assert choose_thresholds(FabricConfig(), 16).whole_bytes < 1024
    get_tuning_path().parent.mkdir(parents=True)
    get_tuning_path().write_text(json.dumps({"ways": {"16": {"whole_bytes": 2000, "foreign_bytes": 7}}}))
    assert choose_thresholds(FabricConfig(), 16) == Thresholds(2000, 7, NEVER)
    assert choose_thresholds(FabricConfig(whole_bytes=0, foreign_move_bytes=5), 16) == Thresholds(0, 7, 5)
    with pytest.raises(InputError, match="whole_bytes is -2"):
        FabricConfig(whole_bytes=-2)


def test_the_measured_table_chooses_by_size(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = [{"up_to": 1000, "algorithm": "tree"}, {"up_to": 1 << 62, "algorithm": "direct"}]
    get_tuning_path().parent.mkdir(parents=True)
    get_tuning_path().write_text(json.dumps({"choice": {"all_reduce": {"4": rows}}}))
    choice = AlgorithmChoice(FabricConfig(), 4)
    assert choice.native_up_to == -1
    assert choice.get_program("all_reduce", None, 0, 0, 1000).name == "tree"
    assert choice.get_program("all_reduce", None, 0, 0, 1001) is None
    assert choice.get_program("all_reduce", "ring", 0, 0, 1001).name == "ring"
    assert AlgorithmChoice(FabricConfig(), 2).native_up_to == 1 << 62
    assert AlgorithmChoice(FabricConfig(collective_algorithm="ring"), 2).native_up_to == -1
    rows.reverse()
    rows[0]["up_to"] = 4096
    get_tuning_path().write_text(json.dumps({"choice": {"all_reduce": {"4": rows}}}))
    assert AlgorithmChoice(FabricConfig(), 4).native_up_to == 4096, "small calls still use the native algorithm"
    assert (
        AlgorithmChoice(FabricConfig(collective_algorithm="ring"), 2).get_program("all_reduce", None, 0, 0, 5).name
        == "ring"
    )
