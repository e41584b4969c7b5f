"""fn recorded as a graph: called for the first batches of a shape only, and right for all of them."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tests.pipeline import fake_cuda  # noqa: E402

from ridgeline.errors import BatchError  # noqa: E402
from ridgeline.pipeline import Staging, Stream, stream
from ridgeline.pipeline.overlapped import overlapped  # noqa: E402
from ridgeline.pipeline.timeline import Log  # noqa: E402


@pytest.fixture
def recorded(monkeypatch):
    """stream(…, graph=True) over played streams and graphs."""
    fake_cuda.install(monkeypatch, torch)

    def way(batches, fn, depth=2, staging=None):
        log = Log()
        return Stream(overlapped(batches, fn, torch.device("cpu"), depth, None, None, staging, log, True), log)

    return way


class Counted:
    """Doubles and turns what it is given, gives a part of it too, and knows how often it was called."""

    def __init__(self, factor=2.0):
        self.calls, self.factor = 0, factor

    def __call__(self, batch):
        self.calls += 1
        x = batch["x"]
        return {"y": (x * self.factor).flip(0), "sum": x.sum(), "same": x}


def ramps(sizes, start=0.0):
    return [{"x": torch.arange(float(size)) + start + 10 * i} for i, size in enumerate(sizes)]


def same(found, wanted):
    for here, there in zip(found, wanted, strict=True):
        assert here.keys() == there.keys()
        assert all(torch.equal(here[name], there[name]) for name in here)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 2), max_size=14), depth=st.integers(1, 3), kept=st.booleans())
def test_results_are_those_of_the_plain_loop_whatever_the_order_of_shapes(recorded, sizes, depth, kept):
    fn, staging = Counted(), Staging() if kept else None
    for start in (0.0, 0.5):  # the second stream may find the recordings of the first
        made = ramps(sizes, start)
        same(recorded(made, fn, depth, staging), stream(made, Counted(), device="cpu"))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_fn_is_called_once_and_once_for_each_slot(recorded, depth):
    fn, staging = Counted(), Staging()
    assert len(list(recorded(ramps([4] * 20), fn, depth, staging))) == 20
    assert fn.calls == 1 + (depth + 1)
    list(recorded(ramps([4] * 20), fn, depth, staging))
    assert fn.calls == 1 + (depth + 1), "kept with the staging"


def test_shapes_that_alternate_are_not_recorded_and_one_that_stays_is_recorded_anew(recorded):
    fn, staging = Counted(), Staging()
    list(recorded(ramps([3, 4] * 6), fn, 1, staging))
    assert fn.calls == 12
    list(recorded(ramps([5] * 12), fn, 1, staging))
    assert fn.calls == 12 + 1 + 2
    list(recorded(ramps([6] * 12), fn, 1, staging))
    assert fn.calls == 15 + 1 + 2


def test_another_fn_is_never_served_by_a_recording(recorded):
    staging = Staging()
    for factor in (2.0, 3.0):
        made = ramps([4] * 8)
        same(recorded(made, Counted(factor), 2, staging), stream(made, Counted(factor), device="cpu"))


def test_one_buffer_for_all_answers_is_refused_when_it_is_recorded(recorded):
    room = torch.empty(3)
    seen = []

    def fn(batch):
        seen.append(1)
        return {"y": torch.add(batch["x"], 1, out=room if len(seen) > 1 else torch.empty(3))}

    with pytest.raises(BatchError, match="batch 2: fn gave 'y' in the memory of an earlier result"):
        list(recorded(ramps([3] * 4), fn))


def test_an_fn_that_cannot_be_recorded_is_told_with_its_cure(recorded, monkeypatch):
    @contextmanager
    def refusing(made, stream=None, capture_error_mode="global"):
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refusing)
    results = recorded(ramps([3] * 4), Counted())
    assert torch.equal(next(results)["same"], torch.arange(3.0)), "the first one went through plainly"
    with pytest.raises(
        BatchError, match=r"batch 1: fn cannot be recorded .*not permitted.*; stream without graph=True"
    ):
        next(results)


def test_a_wrong_answer_is_told_and_not_what_the_end_of_recording_says_of_it(recorded, monkeypatch):
    @contextmanager
    def spoilt(made, stream=None, capture_error_mode="global"):
        try:
            yield
        finally:
            raise RuntimeError("capture was invalidated")

    monkeypatch.setattr(torch.cuda, "graph", spoilt)
    seen = []

    def fn(batch):
        seen.append(1)
        return {"y": batch["x"] + 1 if len(seen) == 1 else None}

    results = recorded(ramps([3] * 3), fn)
    next(results)
    with pytest.raises(BatchError, match="batch 1: fn gave 'y' as NoneType"):
        next(results)
