"""Ranges for a profiler: pushed and popped in pairs where there is CUDA, nothing elsewhere."""

from __future__ import annotations

import pytest

from ridgeline.pipeline import ranges


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
