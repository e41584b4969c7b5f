"""Tensors on devices go by torch's process groups; here gloo stands in for NCCL, which wants a GPU per rank."""

from __future__ import annotations

import pytest
from tests.fabric import ranks_device as work

from ridgeline import fabric

pytestmark = pytest.mark.ranks
pytest.importorskip("torch.distributed")


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_call_takes_tensors_of_a_device(ranks):
    assert fabric.spawn(work.device_calls, ranks, timeout=120) == [[]] * ranks


def test_slips_are_refused_and_errors_name_rank_and_call():
    first, second = fabric.spawn(work.device_slips, 2, timeout=120)
    assert "out has 4 elements where 3 are needed" in first[0]
    assert "out must be a tensor of torch.float32" in first[1]
    assert "no reduction 'median'" in first[2]
    assert first[3].startswith("all_reduce on rank 0: ")
    assert len(second) == 3


def test_nccl_takes_the_tensors_of_a_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    (told,) = fabric.spawn(work.on_a_gpu, 1, timeout=120)
    assert told == []
