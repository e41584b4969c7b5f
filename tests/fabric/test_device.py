"""Tensors on devices use process groups of torch; gloo replaces NCCL, which needs a GPU per rank."""

from __future__ import annotations

import pytest
from tests.fabric import ranks_device as jobs

from ridgeline import fabric

pytestmark = pytest.mark.ranks
pytest.importorskip("torch.distributed")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_call_works_with_device_tensors(ranks):
    assert fabric.spawn(jobs.find_wrong_device_calls, ranks, timeout=120) == [[]] * ranks


@pytest.mark.slow
def test_wrong_arguments_are_refused_and_errors_name_rank_and_call():
    first, second = fabric.spawn(jobs.get_device_errors, 2, timeout=120)
    assert "out has 4 elements where 3 are needed" in first[0]
    assert "out must be a tensor of torch.float32" in first[1]
    assert "no reduction 'median'" in first[2]
    assert first[3].startswith("all_reduce on rank 0: ")
    assert len(second) == 3


def test_nccl_works_with_the_tensors_of_a_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    assert fabric.spawn(jobs.find_wrong_gpu_calls, 1, timeout=120) == [[]]
