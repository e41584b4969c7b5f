"""NVTX ranges: pushed and popped in pairs with CUDA, nothing without."""

from __future__ import annotations

import pytest

from ridgeline.errors import BatchError
from ridgeline.pipeline import nvtx_ranges
from ridgeline.pipeline.timeline import Log


class Recorder:
    def __init__(self):
        self.events = []

    def range_push(self, name):
        self.events.append(name)

    def range_pop(self):
        self.events.append("pop")


def test_a_range_is_closed_even_after_an_error(monkeypatch):
    pytest.importorskip("torch")
    recorder = Recorder()
    monkeypatch.setattr(nvtx_ranges, "_get_nvtx", lambda: recorder)
    with nvtx_ranges.span("outer"), pytest.raises(ValueError, match="inside"), nvtx_ranges.span("inner"):
        raise ValueError("inside")
    assert recorder.events == ["outer", "inner", "pop", "pop"]


def test_without_cuda_a_range_does_nothing(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    nvtx_ranges._get_nvtx.cache_clear()
    try:
        with nvtx_ranges.span("nothing"):
            assert nvtx_ranges._get_nvtx() is None
    finally:
        nvtx_ranges._get_nvtx.cache_clear()


@pytest.fixture
def recorder(monkeypatch):
    """A recorder instead of torch.cuda.nvtx, and fake CUDA streams."""
    torch = pytest.importorskip("torch")
    from tests.pipeline import fake_cuda

    fake_cuda.install(monkeypatch, torch)
    for name in ("RIDGELINE_NVTX", *nvtx_ranges.PROFILER_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    recorder = Recorder()
    monkeypatch.setattr(nvtx_ranges, "_get_nvtx", lambda: recorder)
    return recorder


def run_stream(count, fn):
    import torch

    from ridgeline.pipeline.gpu_stream import stream_on_gpu

    batches = ({"x": torch.full((2,), float(n))} for n in range(count))
    return stream_on_gpu(batches, fn, torch.device("cpu"), 2, None, None, None, Log())


def expect_ranges(count):
    return [word for n in range(count) for stage in ("h2d", "compute", "d2h") for word in (f"{stage} {n}", "pop")]


@pytest.mark.parametrize("name", ["RIDGELINE_NVTX", *nvtx_ranges.PROFILER_VARIABLES])
def test_under_a_profiler_every_stage_of_every_batch_has_a_range(monkeypatch, recorder, name):
    monkeypatch.setenv(name, "1")
    inside = []
    results = list(run_stream(4, lambda b: inside.append(recorder.events[-1]) or {"y": b["x"] + 1}))
    assert [result["y"][0].item() for result in results] == [1, 2, 3, 4]
    assert recorder.events == expect_ranges(4)
    assert inside == [f"compute {n}" for n in range(4)], "fn runs inside its range"


def test_a_stage_that_fails_closes_its_range(monkeypatch, recorder):
    monkeypatch.setenv("RIDGELINE_NVTX", "1")

    def fn(batch):
        if batch["x"][0] == 1:
            raise ValueError("no")
        return {"y": batch["x"]}

    with pytest.raises(BatchError, match="batch 1: fn raised ValueError: no"):
        list(run_stream(3, fn))
    assert recorder.events == [*expect_ranges(1), "h2d 1", "pop", "compute 1", "pop"]


@pytest.mark.parametrize("environment", [{}, {"RIDGELINE_NVTX": "0", "NVTX_INJECTION64_PATH": "/x.so"}])
def test_without_a_profiler_no_range_is_created(monkeypatch, recorder, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(nvtx_ranges, "span", lambda name: pytest.fail("a range was created"))
    assert len(list(run_stream(3, dict))) == 3
    assert recorder.events == []
