"""Ranges for a profiler: pushed and popped in pairs where there is CUDA, nothing elsewhere."""

from __future__ import annotations

import pytest

from ridgeline.errors import BatchError
from ridgeline.pipeline import ranges
from ridgeline.pipeline.timeline import Log


class Recorder:
    def __init__(self):
        self.said = []

    def range_push(self, name):
        self.said.append(name)

    def range_pop(self):
        self.said.append("pop")


def test_a_range_is_closed_also_after_an_error(monkeypatch):
    pytest.importorskip("torch")
    seen = Recorder()
    monkeypatch.setattr(ranges, "_nvtx", lambda: seen)
    with ranges.span("outer"), pytest.raises(ValueError, match="inside"), ranges.span("inner"):
        raise ValueError("inside")
    assert seen.said == ["outer", "inner", "pop", "pop"]


def test_without_cuda_a_range_is_nothing(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ranges._nvtx.cache_clear()
    try:
        with ranges.span("nothing"):
            assert ranges._nvtx() is None
    finally:
        ranges._nvtx.cache_clear()


@pytest.fixture
def seen(monkeypatch):
    """A recorder in the place of torch.cuda.nvtx, and the played streams of a GPU."""
    torch = pytest.importorskip("torch")
    from tests.pipeline import fake_cuda

    fake_cuda.install(monkeypatch, torch)
    for name in ("RIDGELINE_NVTX", *ranges.PROFILED):
        monkeypatch.delenv(name, raising=False)
    recorder = Recorder()
    monkeypatch.setattr(ranges, "_nvtx", lambda: recorder)
    return recorder


def streamed(count, fn):
    import torch

    from ridgeline.pipeline.overlapped import overlapped

    batches = ({"x": torch.full((2,), float(n))} for n in range(count))
    return overlapped(batches, fn, torch.device("cpu"), 2, None, None, None, Log())


def each(count):
    return [word for n in range(count) for stage in ("h2d", "compute", "d2h") for word in (f"{stage} {n}", "pop")]


@pytest.mark.parametrize("name", ["RIDGELINE_NVTX", *ranges.PROFILED])
def test_under_a_profiler_every_stage_of_every_batch_has_a_range(monkeypatch, seen, name):
    monkeypatch.setenv(name, "1")
    inside = []
    found = list(streamed(4, lambda b: inside.append(seen.said[-1]) or {"y": b["x"] + 1}))
    assert [result["y"][0].item() for result in found] == [1, 2, 3, 4]
    assert seen.said == each(4)
    assert inside == [f"compute {n}" for n in range(4)], "fn runs within its own"


def test_a_stage_that_fails_closes_its_range(monkeypatch, seen):
    monkeypatch.setenv("RIDGELINE_NVTX", "1")

    def fn(batch):
        if batch["x"][0] == 1:
            raise ValueError("no")
        return {"y": batch["x"]}

    with pytest.raises(BatchError, match="batch 1: fn raised ValueError: no"):
        list(streamed(3, fn))
    assert seen.said == [*each(1), "h2d 1", "pop", "compute 1", "pop"]


@pytest.mark.parametrize("environment", [{}, {"RIDGELINE_NVTX": "0", "NVTX_INJECTION64_PATH": "/x.so"}])
def test_without_a_profiler_a_batch_pays_nothing(monkeypatch, seen, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranges, "span", lambda name: pytest.fail("a range was asked for"))
    assert len(list(streamed(3, dict))) == 3
    assert seen.said == []
