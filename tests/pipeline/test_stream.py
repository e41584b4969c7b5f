"""Streams of batches: order, shapes, ownership, bounds, errors; on the CPU and with the ring of the GPU.

python -m pytest tests/pipeline/test_stream.py
"""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
from collections import Counter, deque
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from tests.pipeline import fake_cuda  # noqa: E402

from ridgeline.errors import BatchError, InputError  # noqa: E402
from ridgeline.pipeline import (  # noqa: E402
    STAGES,
    BatchStream,
    Staging,
    allocate_pinned,
    compute_overlap,
    make_chrome_trace,
    stream,
    sum_stage_seconds,
)
from ridgeline.pipeline.gpu_stream import stream_on_gpu  # noqa: E402
from ridgeline.pipeline.pinned_memory import Slot  # noqa: E402
from ridgeline.pipeline.timeline import Log  # noqa: E402

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.fixture(params=["plain", "ring", "recorded"])
def run_stream(request, monkeypatch):
    """stream(batches, fn, depth, …): on the CPU, or with the ring of the GPU on fake CUDA streams and graphs."""
    if request.param == "plain":
        return lambda batches, fn, depth=2, **options: stream(batches, fn, device="cpu", depth=depth, **options)
    fake_cuda.install(monkeypatch, torch)

    def ring(batches, fn, depth=2, out=None, take=None, staging=None):
        log = Log()
        graph = request.param == "recorded"
        return BatchStream(stream_on_gpu(batches, fn, torch.device("cpu"), depth, out, take, staging, log, graph), log)

    return ring


def make_tensor(shape, dtype, seed):
    return torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
batches = st.lists(st.dictionaries(st.sampled_from("abc"), st.tuples(shapes, st.sampled_from(DTYPES))), max_size=8)
few_examples = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@few_examples
@given(plan=batches, depth=st.integers(1, 4))
def test_results_come_in_order_for_any_shapes(run_stream, plan, depth):
    inputs = [{n: make_tensor(*what, seed) for n, what in spec.items()} for seed, spec in enumerate(plan)]

    def fn(batch):
        return {
            **{f"{n}'": t.clone() for n, t in batch.items()},
            "sum": sum((t.double().sum() for t in batch.values()), torch.zeros(()).double()),
        }

    results = list(run_stream(iter(inputs), fn, depth))
    assert len(results) == len(inputs)
    for result, batch in zip(results, inputs, strict=True):
        expected = fn(batch)
        assert list(result) == list(expected)
        for name, tensor in expected.items():
            assert (result[name].dtype, result[name].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(result[name], tensor)


@few_examples
@given(count=st.integers(0, 12), depth=st.integers(1, 4), stop=st.integers(0, 12))
def test_never_more_than_depth_and_one_batches_are_pulled_ahead(run_stream, count, depth, stop):
    pulled = []

    def source():
        for index in range(count):
            pulled.append(index)
            yield {"x": torch.tensor([index])}

    with run_stream(source(), lambda b: {"x": b["x"] + 1}, depth) as results:
        assert pulled == []
        for done, _ in enumerate(results):
            assert len(pulled) - done <= depth + 1
            if done == stop:
                break
    before = len(pulled)
    assert list(results) == []  # closed
    assert len(pulled) == before


@few_examples
@given(depth=st.integers(1, 4), bad=st.integers(0, 6), where=st.sampled_from(["source", "fn"]))
def test_an_error_has_its_batch_number_and_comes_after_all_earlier_results(run_stream, depth, bad, where):
    def source():
        for index in range(8):
            if where == "source" and index == bad:
                raise OSError("the disk is gone")
            yield {"x": torch.full((1 + index % 2,), index)}  # alternating shapes: fn is called for each

    def fn(batch):
        if where == "fn" and batch["x"][0].item() == bad:
            raise ValueError("no such number")
        return {"x": batch["x"] * 2}

    results, values = run_stream(source(), fn, depth), []
    with pytest.raises(BatchError) as error:
        values += (r["x"][0].item() for r in results)
    assert values == [2 * i for i in range(bad)]
    assert error.value.index == bad
    reason = (
        "the source raised OSError: the disk is gone" if where == "source" else "fn raised ValueError: no such number"
    )
    assert str(error.value) == f"batch {bad}: {reason}."
    assert isinstance(error.value.__cause__, OSError if where == "source" else ValueError)


def test_stop_iteration_inside_fn_is_an_error_and_not_the_end(run_stream):
    def fn(batch):
        raise StopIteration

    with pytest.raises(BatchError, match="batch 0: fn raised StopIteration"):
        list(run_stream([{"x": torch.zeros(1)}], fn))


def test_results_do_not_change_while_later_batches_run(run_stream):
    """The typical bug of rings: the next batch overwrites a result."""
    buffer = np.zeros(1000)

    def source():
        for index in range(9):
            buffer[:] = index  # a source may reuse one buffer
            yield {"x": buffer}

    results = list(run_stream(source(), lambda b: {"same": b["x"], "part": b["x"][::2], "new": b["x"] + 1}, 1))
    for index, result in enumerate(results):
        assert (result["same"] == index).all()
        assert (result["part"] == index).all()
        assert (result["new"] == index + 1).all()
    results[0]["new"].fill_(-1)
    assert (results[1]["new"] == 2).all()


def test_an_fn_that_writes_all_results_into_one_buffer_is_refused(run_stream):
    buffer = torch.zeros(3)
    with pytest.raises(BatchError, match=r"batch 1: fn gave 'x' in the memory of an earlier result; give fresh"):
        list(run_stream([{"x": torch.ones(3)}] * 2, lambda b: {"x": torch.add(b["x"], 1, out=buffer)}))


def make_rotating_fn(count, make=torch.empty):
    """An fn that writes its results into several buffers in turn."""
    buffers, calls = [make(3) for _ in range(count)], iter(range(1000))

    def fn(batch):
        buffer = torch.as_tensor(buffers[next(calls) % count])
        return {"x": torch.add(batch["x"], 1, out=buffer)}

    return fn


def make_batches(count):
    return ({"x": torch.full((3,), float(i))} for i in range(count))


@pytest.mark.parametrize("make", [torch.empty, lambda n: np.empty(n, np.float32)], ids=["torch", "numpy"])
@pytest.mark.parametrize("buffers", [2, 3, 5])
def test_the_cpu_stream_refuses_the_memory_of_any_result_in_use(make, buffers):
    """A later batch would overwrite a result that the caller still has."""
    parts = (result["x"][1:] for result in stream(make_batches(6), make_rotating_fn(buffers, make), device="cpu"))
    results = []
    with pytest.raises(BatchError, match=rf"batch {buffers}: fn gave 'x' in the memory of an earlier result"):
        results += parts  # a view of a result keeps its memory too
    assert len(results) == buffers


def test_an_array_may_be_reused_after_its_result_is_freed():
    make = partial(np.empty, dtype=np.float32)
    values = [result["x"][0].item() for result in stream(make_batches(8), make_rotating_fn(2, make), device="cpu")]
    assert values == [1, 2, 3, 4, 5, 6, 7, 8]


def test_an_fn_may_reuse_buffers_if_results_are_copied_at_once():
    target = torch.zeros(6, 3)
    list(stream(make_batches(6), make_rotating_fn(2), device="cpu", out=lambda i: {"x": target[i]}))
    assert target[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    results = stream(make_batches(6), make_rotating_fn(2), device="cpu", take=lambda i, given: given["x"][0].item())
    assert list(results) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("keep", [0, 3])
def test_freed_memory_may_be_used_again(run_stream, keep):
    """torch's allocator returns the same addresses again; a result at such an address is not refused."""
    results, empty = deque(maxlen=keep), []
    addresses = set()
    for index, result in enumerate(run_stream(make_batches(700), lambda b: {"x": b["x"] + 1, "y": torch.empty(0)})):
        assert result["x"][0].item() == index + 1
        addresses.add(result["x"].data_ptr())
        results.append(result)
        empty.append(result["y"][:])
    assert len(addresses) < 700


def test_results_are_written_to_the_tensors_of_out(run_stream):
    target = torch.zeros(4, 3)

    def out(index):
        return {"x": target[index]} if index != 2 else None

    results = list(run_stream(({"x": torch.full((3,), i)} for i in range(4)), lambda b: {"x": b["x"] + 0.5}, out=out))
    assert target.tolist() == [[0.5] * 3, [1.5] * 3, [0.0] * 3, [3.5] * 3]
    assert [r["x"].data_ptr() == target[i].data_ptr() for i, r in enumerate(results)] == [True, True, False, True]
    assert (results[2]["x"] == 2.5).all()


def test_take_gets_every_result_once_in_order_and_returns_the_results(run_stream):
    target = torch.zeros(6, 3)

    def take(index, tensors):
        target[index] = tensors["x"]
        return index * 10

    inputs = ({"x": torch.full((3,), float(i))} for i in range(6))
    assert list(run_stream(inputs, lambda b: {"x": b["x"] + 1}, take=take)) == [0, 10, 20, 30, 40, 50]
    assert target[:, 0].tolist() == [1, 2, 3, 4, 5, 6]


def test_an_error_in_take_has_its_batch_number(run_stream):
    def take(index, tensors):
        if index == 1:
            raise ValueError("no space")

    with pytest.raises(BatchError, match="batch 1: take raised ValueError: no space"):
        list(run_stream(({"x": torch.ones(2)} for _ in range(4)), lambda b: {"x": b["x"] + 1}, take=take))


def test_a_staging_serves_one_stream_at_a_time(run_stream):
    staging = Staging()

    def run():
        return run_stream(
            ({"x": torch.full((4,), float(i))} for i in range(5)), lambda b: {"x": b["x"] * 2}, staging=staging
        )

    first = run()
    values = [next(first)["x"][0].item()]
    values += [result["x"][0].item() for result in run()]  # while the first is open
    values += [result["x"][0].item() for result in first]
    assert values == [0, 0, 2, 4, 6, 8, 2, 4, 6, 8]
    slots = list(staging.slots)
    assert [result["x"][0].item() for result in run()] == [0, 2, 4, 6, 8]
    assert staging.slots == slots


def test_out_and_take_together_are_refused():
    with pytest.raises(InputError, match=r"either out .* or take"):
        stream([], lambda b: b, device="cpu", out=lambda i: None, take=lambda i, tensors: None)


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        ({"y": torch.zeros(3)}, "batch 0: out gave a tensor for 'y', fn gives x."),
        (
            {"x": torch.zeros(2)},
            "batch 0: out gave 'x' as float32 [2] on cpu; the result is float32 [3], for the host.",
        ),
        ({"x": torch.zeros(3).int()}, "out gave 'x' as int32 [3] on cpu; the result is float32 [3]"),
    ],
)
def test_an_out_tensor_of_another_shape_is_refused(run_stream, buffer, message):
    with pytest.raises(BatchError) as error:
        list(run_stream([{"x": torch.zeros(3)}], lambda b: {"x": b["x"] + 1}, out=lambda index: buffer))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("batch", "fn", "message"),
    [
        ([1], lambda b: b, "batch 0: the source gave a list; give dicts of tensors or arrays."),
        ({"x": "word"}, lambda b: b, "batch 0: the source gave 'x' as str; give a tensor or an array."),
        ({"x": torch.zeros(1, device="meta")}, lambda b: b, "the source gave 'x' on meta; give host memory."),
        ({"x": torch.zeros(1)}, lambda b: b["x"], "batch 0: fn gave a Tensor; give a dict of tensors."),
        ({"x": torch.zeros(1)}, lambda b: {"y": 3}, "batch 0: fn gave 'y' as int; give a tensor."),
        ({"x": torch.zeros(1)}, lambda b: {"y": b["x"].to("meta")}, "fn gave 'y' on meta; leave it on cpu."),
    ],
)
def test_the_error_for_an_invalid_batch_names_the_value(run_stream, batch, fn, message):
    with pytest.raises(BatchError) as error:
        list(run_stream([batch], fn))
    assert message in str(error.value)


def test_arrays_of_any_layout_come_through(run_stream):
    base = np.arange(12.0).reshape(3, 4)
    locked = base.copy()
    locked.flags.writeable = False
    (result,) = list(run_stream([{"back": base[::-1], "across": base.T, "locked": locked}], lambda b: dict(b)))
    assert np.array_equal(result["back"], base[::-1])
    assert np.array_equal(result["across"], base.T)
    assert np.array_equal(result["locked"], locked)


def test_results_have_no_gradients(run_stream):
    weight = torch.ones(2, requires_grad=True)
    (result,) = list(run_stream([{"x": torch.ones(2)}], lambda b: {"y": b["x"] * weight}))
    assert not result["y"].requires_grad


def test_the_timeline_has_every_batch_in_order_and_stages_follow_each_other(run_stream):
    with run_stream(({"x": torch.ones(50)} for _ in range(5)), lambda b: {"y": b["x"] * 2}) as results:
        list(results)
        timeline = results.timeline()
    assert [t.index for t in timeline] == list(range(5))
    for t in timeline:
        moments = [*t.h2d, *t.compute, *t.d2h]
        assert moments == sorted(moments)
    assert set(sum_stage_seconds(timeline)) == {"h2d", "compute", "d2h"}
    assert sum_stage_seconds(timeline)["compute"] > 0


def test_the_timeline_is_a_chrome_trace_of_one_event_per_batch_and_stage(run_stream):
    results = run_stream(({"x": torch.ones(4)} for _ in range(3)), lambda b: {"x": b["x"] + 1})
    list(results)
    trace = json.loads(json.dumps(make_chrome_trace(results.timeline(), "a test")))
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(spans) == 9
    assert {(e["name"], e["cat"]) for e in spans} == {(f"batch {n}", s) for n in range(3) for s in STAGES}
    assert all(e["dur"] >= 0 for e in spans)
    assert trace["traceEvents"][0]["args"]["name"] == "a test"


def test_overlap_is_the_slowest_stage_over_the_total():
    assert compute_overlap({"h2d": 1.0, "compute": 4.0, "d2h": 2.0}, 5.0) == 0.8
    assert compute_overlap({}, 5.0) == 0


def test_leaving_early_drains_every_stream(monkeypatch):
    fake_cuda.install(monkeypatch, torch)
    for _ in stream_on_gpu(
        ({"x": torch.ones(1)} for _ in range(9)), lambda b: dict(b), torch.device("cpu"), 2, None, None, None, Log()
    ):
        break
    gc.collect()
    cuda_streams = fake_cuda.Stream.instances[:3]
    assert [cuda_stream.drained for cuda_stream in cuda_streams] == [True] * 3


@pytest.mark.parametrize("fails", [False, True])
def test_fn_runs_on_a_separate_cuda_stream_and_the_stream_of_the_caller_is_restored(monkeypatch, fails):
    cuda_streams, current = fake_cuda.install(monkeypatch, torch)
    caller, seen = current[-1], []

    def fn(batch):
        seen.append(current[-1])
        if fails and len(seen) == 3:
            raise ValueError("no")
        return {"x": batch["x"].clone()}

    results = stream_on_gpu(
        ({"x": torch.ones(1)} for _ in range(5)), fn, torch.device("cpu"), 2, None, None, None, Log()
    )
    with pytest.raises(BatchError, match="fn raised ValueError: no") if fails else contextlib.nullcontext():
        for _ in results:
            assert current[-1] is caller
    assert current[-1] is caller
    assert seen == [cuda_streams[1]] * (3 if fails else 5)


def test_the_number_of_cuda_calls_per_batch_is_constant(monkeypatch):
    """For small batches the host is the bottleneck: events are reused, streams are set and not created."""
    fake_cuda.install(monkeypatch, torch)
    calls = Counter()

    def count(owner, name):
        real = getattr(owner, name)

        def make_batches(*args, **kwargs):
            calls[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, make_batches)

    for name in ("Event", "set_stream", "current_stream"):
        count(torch.cuda, name)
    for name in ("record", "synchronize", "elapsed_time"):
        count(fake_cuda.Event, name)
    count(fake_cuda.Stream, "wait_event")
    for batches in (10, 110):
        calls.clear()
        inputs = ({"x": torch.ones(3)} for _ in range(batches))
        list(stream_on_gpu(inputs, lambda b: {"x": b["x"] + 1}, torch.device("cpu"), 2, None, None, None, Log()))
        assert calls == {
            "Event": 6 * 3 + 2,  # three slots, the caller, and the start
            "set_stream": 4 * batches,
            "current_stream": batches,
            "record": 7 * batches + 1,
            "wait_event": 3 * batches,
            "synchronize": batches,
            "elapsed_time": 6 * batches,
        }


def test_a_slot_returns_the_same_buffer_again_and_grows_when_needed():
    slot = Slot()
    first = slot.get_buffer("in", "x", torch.Size([2, 3]), torch.float32)
    assert slot.get_buffer("in", "x", (2, 3), torch.float32) is first
    assert slot.get_buffer("out", "x", (2, 3), torch.float32) is not first
    smaller = slot.get_buffer("in", "x", (3,), torch.int16)
    assert (smaller.shape, smaller.dtype, smaller.data_ptr()) == ((3,), torch.int16, first.data_ptr())
    assert slot.get_buffer("in", "x", (50, 2), torch.float64).shape == (50, 2)
    square = slot.get_buffer("in", "y", (2, 2), torch.float32)
    square.t_()  # a `take` may transpose its tensor
    assert slot.get_buffer("in", "y", (2, 2), torch.float32).is_contiguous()


@pytest.mark.parametrize(
    ("arguments", "message"), [({"depth": 0}, "depth is 0"), ({"device": "meta"}, "no device 'meta'")]
)
def test_wrong_arguments_are_refused_at_once(arguments, message):
    with pytest.raises(InputError, match=message):
        stream([], dict, **{"device": "cpu", **arguments})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_error_for_a_missing_gpu_is_one_sentence():
    with pytest.raises(InputError, match="device cuda: this process sees no GPU; use cpu"):
        stream([], dict, device="cuda")


def test_allocate_pinned_returns_the_given_shape_and_type():
    buffer = allocate_pinned((3, 0, 2), torch.int16)
    assert (buffer.shape, buffer.dtype) == ((3, 0, 2), torch.int16)
    assert allocate_pinned((5,)).dtype == torch.float32


def test_the_import_does_not_load_torch():
    code = "import sys, ridgeline.pipeline; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"
