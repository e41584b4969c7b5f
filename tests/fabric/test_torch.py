"""The torch back end: its calls compared by value, and training with the same weights as gloo."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fabric import ranks_torch as jobs

from ridgeline import fabric

pytestmark = pytest.mark.ranks
pytest.importorskip("torch.distributed")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_of_torch_distributed(tmp_path, ranks):
    assert fabric.spawn(jobs.find_wrong_torch_calls, ranks, args=(tmp_path / "store",), timeout=120) == [[]] * ranks


@pytest.mark.slow
@pytest.mark.parametrize("train", [jobs.train_with_ddp, jobs.train_with_fsdp], ids=["DDP", "FSDP"])
def test_training_ends_with_the_weights_of_gloo(tmp_path, train):
    weights, other_rank = fabric.spawn(train, 2, args=("ridgeline", tmp_path / "store"), timeout=120)
    gloo_weights, _ = fabric.spawn(train, 2, args=("gloo", tmp_path / "store"), timeout=120)
    for a, b, c in zip(weights, other_rank, gloo_weights, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-5, atol=1e-6)
