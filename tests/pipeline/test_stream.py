"""Streams of batches: order, shapes, ownership, bounds, errors; as a plain loop and through the ring.

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
from ridgeline.pipeline import STAGES, Staging, Stream, busy, chrome_trace, overlap, pinned, stream
from ridgeline.pipeline.overlapped import overlapped  # noqa: E402
from ridgeline.pipeline.staging import Slot  # noqa: E402
from ridgeline.pipeline.timeline import Log  # noqa: E402

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.fixture(params=["plain", "ring", "recorded"])
def way(request, monkeypatch):
    """stream(batches, fn, depth, …) on the CPU: the plain loop, or the GPU's ring over played streams and graphs."""
    if request.param == "plain":
        return lambda batches, fn, depth=2, **how: stream(batches, fn, device="cpu", depth=depth, **how)
    fake_cuda.install(monkeypatch, torch)

    def ring(batches, fn, depth=2, out=None, take=None, staging=None):
        log = Log()
        graph = request.param == "recorded"
        return Stream(overlapped(batches, fn, torch.device("cpu"), depth, out, take, staging, log, graph), log)

    return ring


def numbers(shape, dtype, seed):
    return torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
batches = st.lists(st.dictionaries(st.sampled_from("abc"), st.tuples(shapes, st.sampled_from(DTYPES))), max_size=8)
once = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@once
@given(plan=batches, depth=st.integers(1, 4))
def test_results_come_in_order_whatever_the_shapes(way, plan, depth):
    made = [{n: numbers(*what, seed) for n, what in spec.items()} for seed, spec in enumerate(plan)]

    def fn(batch):
        return {
            **{f"{n}'": t.clone() for n, t in batch.items()},
            "sum": sum((t.double().sum() for t in batch.values()), torch.zeros(()).double()),
        }

    found = list(way(iter(made), fn, depth))
    assert len(found) == len(made)
    for result, batch in zip(found, made, strict=True):
        wanted = fn(batch)
        assert list(result) == list(wanted)
        for name, tensor in wanted.items():
            assert (result[name].dtype, result[name].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(result[name], tensor)


@once
@given(count=st.integers(0, 12), depth=st.integers(1, 4), stop=st.integers(0, 12))
def test_never_more_than_depth_and_one_batches_are_pulled_ahead(way, count, depth, stop):
    pulled = []

    def source():
        for index in range(count):
            pulled.append(index)
            yield {"x": torch.tensor([index])}

    with way(source(), lambda b: {"x": b["x"] + 1}, depth) as results:
        assert pulled == []
        for done, _ in enumerate(results):
            assert len(pulled) - done <= depth + 1
            if done == stop:
                break
    before = len(pulled)
    assert list(results) == []  # closed
    assert len(pulled) == before


@once
@given(depth=st.integers(1, 4), bad=st.integers(0, 6), where=st.sampled_from(["source", "fn"]))
def test_an_error_names_its_batch_after_all_results_before_it(way, depth, bad, where):
    def source():
        for index in range(8):
            if where == "source" and index == bad:
                raise OSError("the disk is gone")
            yield {"x": torch.full((1 + index % 2,), index)}  # no two of a kind: fn is called for each

    def fn(batch):
        if where == "fn" and batch["x"][0].item() == bad:
            raise ValueError("no such number")
        return {"x": batch["x"] * 2}

    results, found = way(source(), fn, depth), []
    with pytest.raises(BatchError) as error:
        found += (r["x"][0].item() for r in results)
    assert found == [2 * i for i in range(bad)]
    assert error.value.index == bad
    told = (
        "the source raised OSError: the disk is gone" if where == "source" else "fn raised ValueError: no such number"
    )
    assert str(error.value) == f"batch {bad}: {told}."
    assert isinstance(error.value.__cause__, OSError if where == "source" else ValueError)


def test_a_stop_inside_fn_is_an_error_and_not_an_end(way):
    def fn(batch):
        raise StopIteration

    with pytest.raises(BatchError, match="batch 0: fn raised StopIteration"):
        list(way([{"x": torch.zeros(1)}], fn))


def test_results_stay_as_they_are_while_later_batches_go_through(way):
    """THE bug of rings: a result in memory that the next batch is written into."""
    buffer = np.zeros(1000)

    def source():
        for index in range(9):
            buffer[:] = index  # a source may use one buffer for all
            yield {"x": buffer}

    held = list(way(source(), lambda b: {"same": b["x"], "part": b["x"][::2], "new": b["x"] + 1}, 1))
    for index, result in enumerate(held):
        assert (result["same"] == index).all()
        assert (result["part"] == index).all()
        assert (result["new"] == index + 1).all()
    held[0]["new"].fill_(-1)
    assert (held[1]["new"] == 2).all()


def test_an_fn_that_writes_all_its_answers_into_one_buffer_is_refused(way):
    room = torch.zeros(3)
    with pytest.raises(BatchError, match=r"batch 1: fn gave 'x' in the memory of an earlier result; give fresh"):
        list(way([{"x": torch.ones(3)}] * 2, lambda b: {"x": torch.add(b["x"], 1, out=room)}))


def rotating(count, make=torch.empty):
    """fn that writes its answers into a few buffers in turn."""
    rooms, calls = [make(3) for _ in range(count)], iter(range(1000))

    def fn(batch):
        room = torch.as_tensor(rooms[next(calls) % count])
        return {"x": torch.add(batch["x"], 1, out=room)}

    return fn


def counted(count):
    return ({"x": torch.full((3,), float(i))} for i in range(count))


@pytest.mark.parametrize("make", [torch.empty, lambda n: np.empty(n, np.float32)], ids=["torch", "numpy"])
@pytest.mark.parametrize("rooms", [2, 3, 5])
def test_a_plain_loop_refuses_the_memory_of_any_result_that_is_held(make, rooms):
    """Held results showed what a later batch had written into them."""
    parts = (result["x"][1:] for result in stream(counted(6), rotating(rooms, make), device="cpu"))
    held = []
    with pytest.raises(BatchError, match=rf"batch {rooms}: fn gave 'x' in the memory of an earlier result"):
        held += parts  # a part of a result holds its memory too
    assert len(held) == rooms


def test_an_array_that_is_used_again_is_fine_once_its_result_is_gone():
    make = partial(np.empty, dtype=np.float32)
    told = [result["x"][0].item() for result in stream(counted(8), rotating(2, make), device="cpu")]
    assert told == [1, 2, 3, 4, 5, 6, 7, 8]


def test_buffers_in_turn_are_fine_where_results_are_copied_at_once():
    whole = torch.zeros(6, 3)
    list(stream(counted(6), rotating(2), device="cpu", out=lambda i: {"x": whole[i]}))
    assert whole[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    found = stream(counted(6), rotating(2), device="cpu", take=lambda i, given: given["x"][0].item())
    assert list(found) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("keep", [0, 3])
def test_memory_that_was_freed_may_come_again(way, keep):
    """torch's allocator gives the same addresses again and again; no answer in them is refused."""
    held, empty = deque(maxlen=keep), []
    places = set()
    for index, result in enumerate(way(counted(700), lambda b: {"x": b["x"] + 1, "y": torch.empty(0)})):
        assert result["x"][0].item() == index + 1
        places.add(result["x"].data_ptr())
        held.append(result)
        empty.append(result["y"][:])
    assert len(places) < 700


def test_results_can_land_where_the_caller_says(way):
    whole = torch.zeros(4, 3)

    def out(index):
        return {"x": whole[index]} if index != 2 else None

    results = list(way(({"x": torch.full((3,), i)} for i in range(4)), lambda b: {"x": b["x"] + 0.5}, out=out))
    assert whole.tolist() == [[0.5] * 3, [1.5] * 3, [0.0] * 3, [3.5] * 3]
    assert [r["x"].data_ptr() == whole[i].data_ptr() for i, r in enumerate(results)] == [True, True, False, True]
    assert (results[2]["x"] == 2.5).all()


def test_take_has_every_result_once_in_order_and_gives_what_comes_out(way):
    whole = torch.zeros(6, 3)

    def take(index, found):
        whole[index] = found["x"]
        return index * 10

    made = ({"x": torch.full((3,), float(i))} for i in range(6))
    assert list(way(made, lambda b: {"x": b["x"] + 1}, take=take)) == [0, 10, 20, 30, 40, 50]
    assert whole[:, 0].tolist() == [1, 2, 3, 4, 5, 6]


def test_an_error_in_take_names_its_batch(way):
    def take(index, found):
        if index == 1:
            raise ValueError("no room")

    with pytest.raises(BatchError, match="batch 1: take raised ValueError: no room"):
        list(way(({"x": torch.ones(2)} for _ in range(4)), lambda b: {"x": b["x"] + 1}, take=take))


def test_kept_staging_serves_one_stream_after_the_other_and_not_two_at_once(way):
    kept = Staging()

    def run():
        return way(({"x": torch.full((4,), float(i))} for i in range(5)), lambda b: {"x": b["x"] * 2}, staging=kept)

    first = run()
    held = [next(first)["x"][0].item()]
    held += [result["x"][0].item() for result in run()]  # in the midst of the first
    held += [result["x"][0].item() for result in first]
    assert held == [0, 0, 2, 4, 6, 8, 2, 4, 6, 8]
    slots = list(kept.slots)
    assert [result["x"][0].item() for result in run()] == [0, 2, 4, 6, 8]
    assert kept.slots == slots


def test_out_and_take_together_are_refused():
    with pytest.raises(InputError, match="either out or take"):
        stream([], lambda b: b, device="cpu", out=lambda i: None, take=lambda i, found: None)


@pytest.mark.parametrize(
    ("room", "said"),
    [
        ({"y": torch.zeros(3)}, "batch 0: out gave room for 'y', fn gives x."),
        (
            {"x": torch.zeros(2)},
            "batch 0: out gave 'x' as float32 [2] on cpu; the result is float32 [3], for the host.",
        ),
        ({"x": torch.zeros(3).int()}, "out gave 'x' as int32 [3] on cpu; the result is float32 [3]"),
    ],
)
def test_room_that_does_not_fit_is_refused(way, room, said):
    with pytest.raises(BatchError) as error:
        list(way([{"x": torch.zeros(3)}], lambda b: {"x": b["x"] + 1}, out=lambda index: room))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("batch", "fn", "said"),
    [
        ([1], lambda b: b, "batch 0: the source gave a list; give dicts of tensors or arrays."),
        ({"x": "word"}, lambda b: b, "batch 0: the source gave 'x' as str; give a tensor or an array."),
        ({"x": torch.zeros(1, device="meta")}, lambda b: b, "the source gave 'x' on meta; give host memory."),
        ({"x": torch.zeros(1)}, lambda b: b["x"], "batch 0: fn gave a Tensor; give a dict of tensors."),
        ({"x": torch.zeros(1)}, lambda b: {"y": 3}, "batch 0: fn gave 'y' as int; give a tensor."),
        ({"x": torch.zeros(1)}, lambda b: {"y": b["x"].to("meta")}, "fn gave 'y' on meta; leave it on cpu."),
    ],
)
def test_what_is_no_batch_is_refused_by_name(way, batch, fn, said):
    with pytest.raises(BatchError) as error:
        list(way([batch], fn))
    assert said in str(error.value)


def test_arrays_of_any_layout_come_through(way):
    base = np.arange(12.0).reshape(3, 4)
    locked = base.copy()
    locked.flags.writeable = False
    (found,) = list(way([{"back": base[::-1], "across": base.T, "locked": locked}], lambda b: dict(b)))
    assert np.array_equal(found["back"], base[::-1])
    assert np.array_equal(found["across"], base.T)
    assert np.array_equal(found["locked"], locked)


def test_what_needs_gradients_comes_back_without(way):
    weight = torch.ones(2, requires_grad=True)
    (found,) = list(way([{"x": torch.ones(2)}], lambda b: {"y": b["x"] * weight}))
    assert not found["y"].requires_grad


def test_the_timeline_has_every_batch_in_order_and_stages_follow_each_other(way):
    with way(({"x": torch.ones(50)} for _ in range(5)), lambda b: {"y": b["x"] * 2}) as results:
        list(results)
        told = results.timeline()
    assert [t.index for t in told] == list(range(5))
    for t in told:
        moments = [*t.h2d, *t.compute, *t.d2h]
        assert moments == sorted(moments)
    assert set(busy(told)) == {"h2d", "compute", "d2h"}
    assert busy(told)["compute"] > 0


def test_the_timeline_is_a_chrome_trace_of_one_event_per_batch_and_stage(way):
    results = way(({"x": torch.ones(4)} for _ in range(3)), lambda b: {"x": b["x"] + 1})
    list(results)
    trace = json.loads(json.dumps(chrome_trace(results.timeline(), "a test")))
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(spans) == 9
    assert {(e["name"], e["cat"]) for e in spans} == {(f"batch {n}", s) for n in range(3) for s in STAGES}
    assert all(e["dur"] >= 0 for e in spans)
    assert trace["traceEvents"][0]["args"]["name"] == "a test"


def test_overlap_is_the_slowest_stage_over_the_whole():
    assert overlap({"h2d": 1.0, "compute": 4.0, "d2h": 2.0}, 5.0) == 0.8
    assert overlap({}, 5.0) == 0


def test_leaving_early_drains_every_stream(monkeypatch):
    fake_cuda.install(monkeypatch, torch)
    for _ in overlapped(
        ({"x": torch.ones(1)} for _ in range(9)), lambda b: dict(b), torch.device("cpu"), 2, None, None, None, Log()
    ):
        break
    gc.collect()
    lanes = fake_cuda.Stream.made[:3]
    assert [lane.drained for lane in lanes] == [True] * 3


@pytest.mark.parametrize("fails", [False, True])
def test_fn_has_a_stream_of_its_own_and_the_caller_its_own_back(monkeypatch, fails):
    lanes, current = fake_cuda.install(monkeypatch, torch)
    caller, seen = current[-1], []

    def fn(batch):
        seen.append(current[-1])
        if fails and len(seen) == 3:
            raise ValueError("no")
        return {"x": batch["x"].clone()}

    results = overlapped(({"x": torch.ones(1)} for _ in range(5)), fn, torch.device("cpu"), 2, None, None, None, Log())
    with pytest.raises(BatchError, match="fn raised ValueError: no") if fails else contextlib.nullcontext():
        for _ in results:
            assert current[-1] is caller
    assert current[-1] is caller
    assert seen == [lanes[1]] * (3 if fails else 5)


def test_what_a_batch_asks_of_cuda_does_not_grow(monkeypatch):
    """On the way of a small batch the host is the bottleneck: events are reused, streams set and not made."""
    fake_cuda.install(monkeypatch, torch)
    calls = Counter()

    def count(owner, name):
        real = getattr(owner, name)

        def counted(*args, **kwargs):
            calls[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    for name in ("Event", "set_stream", "current_stream"):
        count(torch.cuda, name)
    for name in ("record", "synchronize", "elapsed_time"):
        count(fake_cuda.Event, name)
    count(fake_cuda.Stream, "wait_event")
    for batches in (10, 110):
        calls.clear()
        made = ({"x": torch.ones(3)} for _ in range(batches))
        list(overlapped(made, lambda b: {"x": b["x"] + 1}, torch.device("cpu"), 2, None, None, None, Log()))
        assert calls == {
            "Event": 6 * 3 + 2,  # of three slots, of the caller, and the beginning
            "set_stream": 4 * batches,
            "current_stream": batches,
            "record": 7 * batches + 1,
            "wait_event": 3 * batches,
            "synchronize": batches,
            "elapsed_time": 6 * batches,
        }


def test_a_slot_shows_the_same_room_again_and_grows_when_it_must():
    slot = Slot()
    first = slot.room("in", "x", torch.Size([2, 3]), torch.float32)
    assert slot.room("in", "x", (2, 3), torch.float32) is first
    assert slot.room("out", "x", (2, 3), torch.float32) is not first
    smaller = slot.room("in", "x", (3,), torch.int16)
    assert (smaller.shape, smaller.dtype, smaller.data_ptr()) == ((3,), torch.int16, first.data_ptr())
    assert slot.room("in", "x", (50, 2), torch.float64).shape == (50, 2)
    square = slot.room("in", "y", (2, 2), torch.float32)
    square.t_()  # a `take` may turn what it is shown
    assert slot.room("in", "y", (2, 2), torch.float32).is_contiguous()


@pytest.mark.parametrize(("words", "said"), [({"depth": 0}, "depth is 0"), ({"device": "meta"}, "no device 'meta'")])
def test_a_stream_that_cannot_be_is_refused_at_once(words, said):
    with pytest.raises(InputError, match=said):
        stream([], dict, **{"device": "cpu", **words})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one here")
def test_a_gpu_that_is_not_there_is_one_sentence():
    with pytest.raises(InputError, match="device cuda: no GPU is to be seen here; use cpu"):
        stream([], dict, device="cuda")


def test_pinned_gives_what_was_asked_for():
    room = pinned((3, 0, 2), torch.int16)
    assert (room.shape, room.dtype) == ((3, 0, 2), torch.int16)
    assert pinned((5,)).dtype == torch.float32


def test_importing_it_brings_no_torch():
    code = "import sys, ridgeline.pipeline; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"
