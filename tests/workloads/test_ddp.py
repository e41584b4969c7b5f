"""`ddp`: its models' work is counted right, wrong gradients are found, a race of training steps ends."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from ridgeline.cli import app
from ridgeline.lab import Case
from ridgeline.workloads import _ddp_models as models
from ridgeline.workloads.ddp import workload

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["resnet", "bert"])
def test_flops_are_those_torch_counts(name):
    from torch.utils.flop_counter import FlopCounterMode

    model = models.build(name)
    with FlopCounterMode(display=False) as counter:
        models.loss_of(model, *models.batch(name, 2, 0, 1)).backward()
    counted = counter.get_total_flops()
    if name == "resnet":  # nobody asks for the images' gradient
        counted += 2 * 2 * 9 * 3 * 32 * 32 * 32
    elif not any("attention" in str(op) for op in counter.get_flop_counts()["Global"]):  # not seen on every CPU
        counted += 3 * (2 * models.LENGTH) * models.LAYERS * 4 * models.LENGTH * models.WIDTH
    assert models.flops(name, 2) == pytest.approx(counted, rel=1e-6)


def test_every_rank_begins_with_one_model_and_its_own_data():
    one, two = models.build("bert"), models.build("bert")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(models.batch("bert", 2, 0, 1)[0], models.batch("bert", 2, 1, 1)[0])


def test_gradients_that_are_not_the_mean_or_ranks_apart_are_wrong():
    case = Case({"model": "resnet", "rows": 2}, "cpu", 2)
    assert workload.check(case, {"error": 1e-7, "apart": 0.0}).ok
    assert not workload.check(case, {"error": 1e-3, "apart": 0.0}).ok
    assert not workload.check(case, {"error": 1e-7, "apart": 1e-9}).ok


@pytest.mark.ranks
def test_a_race_of_training_steps_ends_with_right_gradients(tmp_path):
    words = ["bench", "ddp", "--ranks", "2", "--case", "model=resnet,rows=1", "--budget", "2s", "--json"]
    told = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert told.exit_code == 0, told.output
    (record,) = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {c["contender"] for c in record["contenders"]} == {"ridgeline", "torch gloo", "alone"}
    assert all(c["check"]["ok"] for c in record["contenders"])


@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_the_weights_are_counted_as_the_model_has_them(name):
    assert models.parameters(name) == sum(p.numel() for p in models.build(name).parameters())
