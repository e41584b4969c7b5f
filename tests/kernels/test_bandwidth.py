"""The bandwidth kernels: in Triton's interpreter everywhere, compiled on a GPU.

python -m pytest tests/kernels
"""

from __future__ import annotations

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
pytest.importorskip("triton")

from ridgeline.kernels import bandwidth  # noqa: E402

BLOCK = bandwidth.BLOCK if CUDA else 32  # the interpreter reduces element by element
SIZES = [0, 1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5, 40 * BLOCK + 1]
interpreted = pytest.mark.skipif(CUDA, reason="kernels are compiled here")
compiled = pytest.mark.skipif(not CUDA, reason="no CUDA device here")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "BLOCK", BLOCK)


def check_reader(size: int, device: str) -> None:
    data = np.random.default_rng(size).integers(-(2**31), 2**31, size, dtype=np.int32)
    step = bandwidth.make_read_step(torch.from_numpy(data).to(device))
    for _ in range(2):  # a second step starts from zero
        actual = step().cpu().numpy()
    assert np.bitwise_xor.reduce(actual) == (np.bitwise_xor.reduce(data) if size else 0)
    assert actual.nbytes < 64 << 10


@interpreted
@pytest.mark.parametrize("size", SIZES)
def test_every_element_is_read_once(size: int):
    check_reader(size, "cpu")


@compiled
@pytest.mark.gpu
@pytest.mark.parametrize("size", [*SIZES, (1 << 24) + 3])
def test_on_a_gpu_every_element_is_read_once(size: int):
    check_reader(size, "cuda")


@compiled
@pytest.mark.gpu
def test_on_a_gpu_a_buffer_beyond_2_31_elements_is_read_to_its_end():
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of GPU memory")
    data = torch.zeros((1 << 31) + 8193, dtype=torch.int32, device="cuda")
    data[-1] = 12345
    assert np.bitwise_xor.reduce(bandwidth.make_read_step(data)().cpu().numpy()) == 12345
