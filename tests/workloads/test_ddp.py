"""`ddp`: the work of its models, detection of wrong gradients, a complete race of training steps."""

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
def test_the_flops_equal_those_that_torch_counts(name):
    from torch.utils.flop_counter import FlopCounterMode

    model = models.build_model(name)
    with FlopCounterMode(display=False) as counter:
        models.compute_loss(model, *models.make_batch(name, 2, 0, 1)).backward()
    torch_flops = counter.get_total_flops()
    if name == "resnet":  # the gradient of the images is not computed
        torch_flops += 2 * 2 * 9 * 3 * 32 * 32 * 32
    elif not any(
        "attention" in str(op) for op in counter.get_flop_counts()["Global"]
    ):  # torch does not count it on every CPU
        torch_flops += 3 * (2 * models.LENGTH) * models.LAYERS * 4 * models.LENGTH * models.WIDTH
    assert models.count_flops(name, 2) == pytest.approx(torch_flops, rel=1e-6)


def test_every_rank_starts_with_the_same_model_and_different_data():
    one, two = models.build_model("bert"), models.build_model("bert")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(models.make_batch("bert", 2, 0, 1)[0], models.make_batch("bert", 2, 1, 1)[0])


def test_wrong_gradients_and_different_weights_fail_the_check():
    case = Case({"model": "resnet", "rows": 2}, "cpu", 2)
    assert workload.check(case, {"error": 1e-7, "spread": 0.0}).ok
    assert not workload.check(case, {"error": 1e-3, "spread": 0.0}).ok
    assert not workload.check(case, {"error": 1e-7, "spread": 1e-9}).ok


@pytest.mark.slow
@pytest.mark.ranks
def test_a_race_of_training_steps_ends_with_right_gradients(tmp_path):
    words = ["bench", "ddp", "--ranks", "2", "--case", "model=resnet,rows=1", "--budget", "2s", "--json"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (record,) = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert {c["contender"] for c in record["contenders"]} == {"ridgeline", "torch gloo", "alone"}
    assert all(c["check"]["ok"] for c in record["contenders"])


@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_the_count_of_weights_equals_that_of_the_model(name):
    assert models.count_parameters(name) == sum(p.numel() for p in models.build_model(name).parameters())
