"""The torch back end in processes: its calls by value, training as with gloo, torch's own tests, and killed ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.fabric import ranks_torch as jobs
from tests.fabric.torch_chaos import KINDS

from ridgeline import fabric

pytestmark = [pytest.mark.ranks, pytest.mark.slow]
pytest.importorskip("torch.distributed")

FOLDER = Path(__file__).parent
KILLS = os.environ.get("RIDGELINE_CHAOS", "3")  # of each kind
# Tests of torch that only gloo can pass, and why.
GLOO_ONLY = {
    "test_monitored_barrier_gloo": "torch has monitored_barrier for gloo only",
    "test_monitored_barrier_gloo_rank_0_timeout": "torch has monitored_barrier for gloo only",
    "test_monitored_barrier_gloo_subgroup": "torch has monitored_barrier for gloo only",
}


@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_of_torch_distributed(tmp_path, ranks):
    assert fabric.spawn(jobs.find_wrong_torch_calls, ranks, args=(tmp_path / "store",), timeout=120) == [[]] * ranks


def test_calls_of_torch_distributed_between_hosts(tmp_path):
    results = fabric.spawn(jobs.find_wrong_torch_calls, 3, args=(tmp_path / "store",), hosts=2, timeout=120)
    assert results == [[]] * 3


@pytest.mark.parametrize("train", [jobs.train_with_ddp, jobs.train_with_fsdp], ids=["DDP", "FSDP"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_training_ends_with_the_weights_of_gloo(tmp_path, train, hosts):
    weights, other_rank = fabric.spawn(train, 2, args=("ridgeline", tmp_path / "store"), hosts=hosts, timeout=120)
    gloo_weights, _ = fabric.spawn(train, 2, args=("gloo", tmp_path / "store"), timeout=120)
    for a, b, c in zip(weights, other_rank, gloo_weights, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-5, atol=1e-6)


def test_a_sharded_tensor_and_a_checkpoint(tmp_path):
    assert fabric.spawn(jobs.use_tensor_and_checkpoint, 2, args=(tmp_path,), timeout=120) == [[]] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_other_ranks_raise_when_a_rank_is_killed_in_training(kind):
    done = subprocess.run(
        [sys.executable, FOLDER / "torch_chaos.py", kind, KILLS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def run_suite(backend: str, names: list[str]) -> dict[str, str]:
    command = [sys.executable, FOLDER / "torch_suite.py", backend, "3", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_the_tests_of_torch_that_pass_with_gloo_pass_with_ours():
    passed = [name for name, outcome in run_suite("gloo", []).items() if outcome == "passed"]
    failed = {name: outcome for name, outcome in run_suite("ridgeline", passed).items() if outcome != "passed"}
    assert not failed.keys() - GLOO_ONLY, failed
    assert len(passed) - len(failed) >= 90
