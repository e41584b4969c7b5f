"""Repeated calls launch the kernel without Python (native.LaunchCache: tests/native/test_relaunch.py).

python -m pytest tests/kernels/test_resample_again.py
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import defaultdict

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.native.driver import driver, read  # noqa: E402

import ridgeline  # noqa: E402
from ridgeline.kernels.resample import resample  # noqa: E402
from ridgeline.native import Launch, LaunchCache, TensorReader  # noqa: E402
from ridgeline.trajectory.channels import KINDS  # noqa: E402

__all__ = ["driver"]

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def patch_compiler(driver):
    """What `_plan` would give on a GPU, with a CUDA driver of our own."""

    def plan(values, times, at, out, mask, offsets, channels, outside, max_gap):
        launches = []
        for start, stop, kind in channels or ((0, values.shape[2], "linear"),):
            launch = resample._Launch(start, stop, kind, not launches, 1, {}, ())
            launch.direct = Launch(1, 1, 32, 0, [(8, 0, 0), (4, -1, 5), (8, 1, 0), (8, 2, 0), (8, 3, 0)], driver)
            launch.stream, launch.v_at, launch.o_at, launch.c_at = (lambda device: 0), 0, 0, 0
            launches.append(launch)
        return launches

    return plan


def test_repeated_calls_of_one_kind_without_options_launch_without_python(driver, monkeypatch):
    again = defaultdict(lambda: LaunchCache(TensorReader(torch.Tensor)))
    monkeypatch.setattr(resample, "launches", again)
    monkeypatch.setattr(resample, "_plan", patch_compiler(driver))
    monkeypatch.setattr(resample, "_plans", {})
    values, times = torch.ones(2, 5, 8), torch.arange(5.0).repeat(2, 1)
    at, out, mask = torch.ones(2, 3), torch.empty(2, 3, 8), torch.empty(2, 3, dtype=torch.bool)
    lengths = torch.tensor([5, 5])
    for more in (
        {"outside": "nan"}, {"max_gap": 3.0}, {"mask": mask}, {"lengths": lengths}, {"scale": torch.ones(8)},
        {"channels": ((0, 4, "slerp"), (4, 8, "linear"))}, {"channels": ((4, 8, "cubic"),)},
    ):  # fmt: skip
        for _ in range(2):
            resample.run(values, times, at, out, **more)
    assert not again
    for kind in KINDS:
        all_channels = ((0, 8, kind),) if kind != "linear" else ()
        for _ in range(3):
            resample.run(values, times, at, out, channels=all_channels)
        assert len(again[kind]) == 1
        before = read(driver, "launches", ctypes.c_uint, 1)[0]
        assert again[kind](values.clone(), times, at, out)
        assert read(driver, "launches", ctypes.c_uint, 1) == [before + 1]
        assert not again[kind](values[:1], times[:1], at[:1], out[:1])
    monkeypatch.setattr(resample, "PLANS", len(resample._plans))
    resample.run(values[:1], times[:1], at[:1], out[:1])
    assert {kind: len(known) for kind, known in again.items()} == {**dict.fromkeys(KINDS, 0), "linear": 1}


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_a_repeated_call_launches_without_python(kind, monkeypatch):
    def fresh(seed):
        torch.manual_seed(seed)
        values = torch.randn(8, 30, 16, device="cuda")
        times = torch.rand(8, 30, device="cuda").cumsum(1)
        return values, times, torch.rand(8, 20, device="cuda") * 15, torch.zeros(8, 20, 16, device="cuda")

    def right(four, results):
        torch.cuda.synchronize()
        assert torch.equal(results, ridgeline.resample(*four[:3], kind=kind))

    for seed in range(3):  # compiled, launched, known
        *three, out = four = fresh(seed)
        ridgeline.resample(*three, kind=kind, out=out, check=False)
        right(four, out)

    def fail(*_, **__):
        raise AssertionError("the fast path did not launch it")

    known = [fresh(seed) for seed in range(3, 7)]
    with monkeypatch.context() as shut:
        shut.setattr(sys.modules["ridgeline.trajectory.resampling"], "_run", fail)
        *three, out = known[0]
        assert ridgeline.resample(*three, kind=kind, out=out, check=False) is out
        *three, out = known[1]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            three[0].mul_(2)  # on the same stream: else it would be a race
            assert ridgeline.resample(*three, kind=kind, out=out, check=False) is out
        torch.cuda.synchronize()
        *three, out = known[2]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ridgeline.resample(*three, kind=kind, out=out, check=False)
        assert not out.any(), "captured, not launched"
        graph.replay()
        *three, out = known[3]
        three[0].requires_grad_()
        with torch.no_grad():
            ridgeline.resample(*three, kind=kind, out=out, check=False)
    for four in known:
        right((four[0].detach(), *four[1:]), four[3])


@gpu
@pytest.mark.gpu
def test_on_a_gpu_other_threads_and_devices_get_correct_results():
    values, times = torch.randn(4, 30, 16, device="cuda"), torch.rand(4, 30, device="cuda").cumsum(1)
    at = torch.rand(4, 20, device="cuda") * 15
    expected = ridgeline.resample(values, times, at)
    out = torch.zeros_like(expected)
    for _ in range(3):
        ridgeline.resample(values, times, at, out=out, check=False)
    results = []
    for _ in range(2):

        def work():
            mine = torch.zeros_like(expected)
            for _ in range(3):
                ridgeline.resample(values, times, at, out=mine, check=False)
            torch.cuda.synchronize()
            results.append(mine)

        other = threading.Thread(target=work)
        other.start()
        other.join()
    results.append(ridgeline.resample(values, times.cpu(), at.cpu(), out=out, check=False))
    results.append(ridgeline.resample(values, times.tolist(), at.tolist(), out=out.zero_(), check=False))
    turned = torch.view_as_complex(torch.stack([values, -values], -1).contiguous()).conj().imag
    assert turned.is_neg()
    results.append(ridgeline.resample(turned, times, at, out=torch.zeros_like(expected), check=False))
    for one in results:
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-5)
