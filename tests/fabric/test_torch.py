"""The torch back end: its calls by value, and training that ends with the weights of gloo."""

from __future__ import annotations

import numpy as np
import pytest
from tests.fabric import ranks_torch as work

from ridgeline import fabric

pytestmark = pytest.mark.ranks
pytest.importorskip("torch.distributed")


@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_of_torch_distributed(tmp_path, ranks):
    assert fabric.spawn(work.torch_calls, ranks, args=(tmp_path / "store",), timeout=120) == [[]] * ranks


@pytest.mark.parametrize("train", [work.trained, work.sharded], ids=["DDP", "FSDP"])
def test_training_ends_with_the_weights_of_gloo(tmp_path, train):
    ours, also = fabric.spawn(train, 2, args=("ridgeline", tmp_path / "store"), timeout=120)
    theirs, _ = fabric.spawn(train, 2, args=("gloo", tmp_path / "store"), timeout=120)
    for a, b, c in zip(ours, also, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-5, atol=1e-6)
