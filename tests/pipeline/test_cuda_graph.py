"""fn recorded as a CUDA graph: called only for the first batches of a shape, and correct for all."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tests.pipeline import fake_cuda  # noqa: E402

from ridgeline.errors import BatchError  # noqa: E402
from ridgeline.pipeline import BatchStream, Staging, stream  # noqa: E402
from ridgeline.pipeline.gpu_stream import stream_on_gpu  # noqa: E402
from ridgeline.pipeline.timeline import Log  # noqa: E402


@pytest.fixture
def run_recorded(monkeypatch):
    """stream(…, graph=True) with fake CUDA streams and graphs."""
    fake_cuda.install(monkeypatch, torch)

    def run(batches, fn, depth=2, staging=None):
        log = Log()
        return BatchStream(stream_on_gpu(batches, fn, torch.device("cpu"), depth, None, None, staging, log, True), log)

    return run


class CountingFn:
    """Doubles and reverses its batch, returns its batch too, and counts its calls."""

    def __init__(self, factor=2.0):
        self.calls, self.factor = 0, factor

    def __call__(self, batch):
        self.calls += 1
        x = batch["x"]
        return {"y": (x * self.factor).flip(0), "sum": x.sum(), "same": x}


def make_batches(sizes, start=0.0):
    return [{"x": torch.arange(float(size)) + start + 10 * i} for i, size in enumerate(sizes)]


def check_equal(results, expected):
    for result, reference in zip(results, expected, strict=True):
        assert result.keys() == reference.keys()
        assert all(torch.equal(result[name], reference[name]) for name in result)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 2), max_size=14), depth=st.integers(1, 3), reuse_staging=st.booleans())
def test_results_equal_those_of_the_cpu_stream_for_any_order_of_shapes(run_recorded, sizes, depth, reuse_staging):
    fn, staging = CountingFn(), Staging() if reuse_staging else None
    for start in (0.0, 0.5):  # the second stream may use the recordings of the first
        inputs = make_batches(sizes, start)
        check_equal(run_recorded(inputs, fn, depth, staging), stream(inputs, CountingFn(), device="cpu"))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_fn_is_called_once_plus_once_for_each_slot(run_recorded, depth):
    fn, staging = CountingFn(), Staging()
    assert len(list(run_recorded(make_batches([4] * 20), fn, depth, staging))) == 20
    assert fn.calls == 1 + (depth + 1)
    list(run_recorded(make_batches([4] * 20), fn, depth, staging))
    assert fn.calls == 1 + (depth + 1), "the staging keeps the recordings"


def test_alternating_shapes_are_not_recorded_and_a_new_constant_shape_is(run_recorded):
    fn, staging = CountingFn(), Staging()
    list(run_recorded(make_batches([3, 4] * 6), fn, 1, staging))
    assert fn.calls == 12
    list(run_recorded(make_batches([5] * 12), fn, 1, staging))
    assert fn.calls == 12 + 1 + 2
    list(run_recorded(make_batches([6] * 12), fn, 1, staging))
    assert fn.calls == 15 + 1 + 2


def test_a_recording_is_never_used_for_another_fn(run_recorded):
    staging = Staging()
    for factor in (2.0, 3.0):
        inputs = make_batches([4] * 8)
        check_equal(
            run_recorded(inputs, CountingFn(factor), 2, staging), stream(inputs, CountingFn(factor), device="cpu")
        )


def test_one_buffer_for_all_results_is_refused_during_recording(run_recorded):
    buffer = torch.empty(3)
    calls = []

    def fn(batch):
        calls.append(1)
        return {"y": torch.add(batch["x"], 1, out=buffer if len(calls) > 1 else torch.empty(3))}

    with pytest.raises(BatchError, match="batch 2: fn gave 'y' in the memory of an earlier result"):
        list(run_recorded(make_batches([3] * 4), fn))


def test_the_error_for_an_fn_that_cannot_be_recorded_names_the_remedy(run_recorded, monkeypatch):
    @contextmanager
    def refuse(graph, stream=None, capture_error_mode="global"):
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    results = run_recorded(make_batches([3] * 4), CountingFn())
    assert torch.equal(next(results)["same"], torch.arange(3.0)), "fn computes the first batch"
    with pytest.raises(
        BatchError, match=r"batch 1: fn cannot be recorded .*not permitted.*; stream without graph=True"
    ):
        next(results)


def test_the_error_names_the_wrong_result_and_not_the_failed_capture(run_recorded, monkeypatch):
    @contextmanager
    def invalidate(graph, stream=None, capture_error_mode="global"):
        try:
            yield
        finally:
            raise RuntimeError("capture was invalidated")

    monkeypatch.setattr(torch.cuda, "graph", invalidate)
    calls = []

    def fn(batch):
        calls.append(1)
        return {"y": batch["x"] + 1 if len(calls) == 1 else None}

    results = run_recorded(make_batches([3] * 3), fn)
    next(results)
    with pytest.raises(BatchError, match="batch 1: fn gave 'y' as NoneType"):
        next(results)
