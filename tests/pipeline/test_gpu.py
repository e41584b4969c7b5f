"""The ring on a real GPU: right results, real overlap, nothing overwritten, nothing left behind.

python -m pytest -m gpu tests/pipeline/test_gpu.py
"""

from __future__ import annotations

import gc
import itertools
import time

import pytest

torch = pytest.importorskip("torch")

from ridgeline.errors import BatchError  # noqa: E402
from ridgeline.pipeline import Staging, busy, pinned, stream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
MIB = 1 << 20


def work(batch):
    return {"twice": batch["x"] * 2, "sum": batch["x"].double().sum(), "turned": batch["x"].flip(0)}


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("pin", [False, True])
def test_results_equal_those_of_the_plain_loop(depth, pin):
    made = []
    for size in (1, 0, 100_001, 7, 3_000_000, 500_000, 64):
        x = torch.randn(size, 3)
        if pin:
            x = pinned(x.shape).copy_(x)
            assert x.is_pinned() or not size
        made.append({"x": x})
    fast = list(stream(made, work, device="cuda", depth=depth))
    slow = list(stream(made, work, device="cpu"))
    for here, there in zip(slow, fast, strict=True):
        assert list(here) == list(there)
        for name in ("twice", "turned"):
            assert there[name].device.type == "cpu"
            assert torch.equal(here[name], there[name])
        assert torch.allclose(here["sum"], there["sum"])


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("pin", [False, True])
def test_recorded_results_equal_those_of_the_plain_loop(depth, pin):
    staging, made = Staging(), []
    for index in range(24):
        x = torch.randn(200_003 if index < 14 else 70_001, 3)
        made.append({"x": pinned(x.shape).copy_(x) if pin else x})
    for _ in range(2):  # recorded, and found again
        fast = stream(made, work, device="cuda", depth=depth, graph=True, staging=staging)
        for here, there in zip(stream(made, work, device="cpu"), fast, strict=True):
            assert torch.equal(here["twice"], there["twice"])
            assert torch.equal(here["turned"], there["turned"])
            assert torch.allclose(here["sum"], there["sum"])


def test_recorded_results_stay_as_they_are_while_later_batches_go_through():
    made = [{"x": torch.full((1 << 20,), float(index))} for index in range(12)]
    held = list(stream(made, heavy(20), device="cuda", graph=True))
    wanted = [r["y"] for r in stream(made, heavy(20), device="cpu")]
    assert all(torch.equal(here["y"], there) for here, there in zip(held, wanted, strict=True))


def test_what_cannot_be_recorded_is_told_and_the_device_goes_on():
    def asks(batch):
        return {"y": batch["x"] * float(batch["x"].sum().item() > 0)}

    made = [{"x": torch.ones(1000)} for _ in range(6)]
    results = stream(made, asks, device="cuda", graph=True)
    assert torch.equal(next(results)["y"], torch.ones(1000))
    with pytest.raises(BatchError, match="batch 1: fn cannot be recorded as a CUDA graph"):
        next(results)
    assert [float(r["y"].sum()) for r in stream(made, asks, device="cuda")] == [1000.0] * 6


def test_every_type_comes_through():
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.bool, torch.uint8):
        x = torch.randint(0, 2, (1000,)).to(dtype)
        (found,) = stream([{"x": x}], lambda b: {"x": b["x"].clone()}, device="cuda")
        assert torch.equal(found["x"], x)


def heavy(times):
    """As long on the device as some multiple of a copy of the same bytes through memory."""

    def fn(batch):
        y = batch["x"]
        for _ in range(times):
            y = y * 1.0001
        return {"y": y}

    return fn


def test_copies_and_computation_overlap():
    size, count = 64 * MIB // 4, 16
    room = [pinned((size,)).fill_(1) for _ in range(4)]
    back = [pinned((size,)) for _ in range(4)]
    source = lambda: ({"x": room[i % 4]} for i in range(count))  # noqa: E731
    out = lambda i: {"y": back[i % 4]}  # noqa: E731

    def timed(fn):
        with stream(source(), fn, device="cuda", out=out) as results:
            for _ in results:
                pass
            return results.timeline()

    timed(heavy(20))  # memory is there, kernels are loaded
    told = timed(heavy(20))
    stages = busy(told)
    whole = told[-1].d2h[1] - told[0].h2d[0]
    print({k: f"{1e3 * v:.1f} ms" for k, v in stages.items()}, f"whole {1e3 * whole:.1f} ms")
    assert whole < 0.75 * sum(stages.values())
    meet = lambda a, b: min(a[1], b[1]) - max(a[0], b[0])  # noqa: E731
    assert (
        sum(meet(b.h2d, a.d2h) > 0 for a, b in itertools.pairwise(told))
        + sum(meet(c.h2d, a.d2h) > 0 for a, c in zip(told, told[2:], strict=False))
        > len(told) // 2
    )
    for a, b in itertools.pairwise(told):  # but each stage takes one batch after the other
        for stage in ("h2d", "compute", "d2h"):
            assert getattr(a, stage)[1] <= getattr(b, stage)[0] + 2e-6


def test_results_stay_as_they_are_while_later_batches_go_through():
    """THE bug of rings. Held results, one source buffer for all batches, and a caller that is slow at first."""
    buffer = torch.empty(2_000_000)

    def source():
        for index in range(20):
            buffer.fill_(index)
            yield {"x": buffer}

    held = []
    for result in stream(source(), lambda b: {"same": b["x"], "part": b["x"][::2], "new": b["x"] + 1}, device="cuda"):
        held.append(result)
        if len(held) < 4:
            time.sleep(0.02)
    for index, result in enumerate(held):
        assert (result["same"] == index).all()
        assert (result["part"] == index).all()
        assert (result["new"] == index + 1).all()


def test_an_fn_that_writes_all_its_answers_into_one_buffer_is_refused():
    room = torch.zeros(3, device="cuda")
    with pytest.raises(BatchError, match=r"batch 1: fn gave 'x' in the memory of an earlier result"):
        list(stream([{"x": torch.ones(3)}] * 2, lambda b: {"x": torch.add(b["x"], 1, out=room)}, device="cuda"))


def test_what_fn_closes_over_may_still_be_in_the_making():
    weight = torch.zeros(4_000_000, device="cuda")
    for _ in range(200):
        weight += 1  # queued on the caller's stream, not waited for
    (found,) = stream([{"x": torch.ones(4_000_000)}], lambda b: {"y": b["x"] * weight}, device="cuda")
    assert (found["y"] == 200).all()


def test_pinned_room_is_written_by_the_gpu_and_plain_room_through_the_ring():
    for room in (pinned((3, 1000)), torch.zeros(3, 1000)):
        room.zero_()
        source = ({"x": torch.full((1000,), float(i))} for i in range(3))
        found = list(stream(source, lambda b: {"y": b["x"] + 1}, device="cuda", out=lambda i: {"y": room[i]}))  # noqa: B023
        assert [r["y"].data_ptr() for r in found] == [room[i].data_ptr() for i in range(3)]
        assert room.mean(1).tolist() == [1, 2, 3]


def test_an_error_names_its_batch_after_all_results_before_it():
    def fn(batch):
        if int(batch["x"][0]) == 5:
            raise ValueError("no such number")
        return {"x": batch["x"] * 2}

    good = []
    with pytest.raises(BatchError, match="batch 5: fn raised ValueError: no such number"):
        good += (int(r["x"][0]) for r in stream(({"x": torch.tensor([i])} for i in range(9)), fn, device="cuda"))
    assert good == [0, 2, 4, 6, 8]
    assert int(next(iter(stream([{"x": torch.tensor([1])}], fn, device="cuda")))["x"]) == 2  # the next one works


def test_leaving_early_ends_the_work_and_gives_the_memory_back():
    gc.collect()  # what tests before this one left
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    source = ({"x": torch.ones(4 * MIB)} for _ in range(50))
    for _ in stream(source, heavy(50), device="cuda"):
        break
    began = time.perf_counter()
    torch.cuda.synchronize()
    assert time.perf_counter() - began < 0.02  # nothing was left to wait for
    assert torch.cuda.memory_allocated() == before


def test_memory_is_bounded_by_depth():
    size = 16 * MIB
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    source = ({"x": torch.ones(size // 4)} for _ in range(20))
    for _ in stream(source, lambda b: {"y": b["x"] + 1}, device="cuda", depth=2):
        pass
    assert torch.cuda.max_memory_allocated() - before <= 3 * 2 * size + MIB  # in and out of depth + 1 batches


def test_pinned_pages_are_let_go_and_can_be_pinned_again():
    for _ in range(20):
        room = pinned((64 * MIB // 4,))
        assert room.is_pinned()
        part = room[5:]
        del room
        assert part.is_pinned()
        del part


def test_another_stream_of_the_caller_is_waited_for():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        weight = torch.zeros(4_000_000, device="cuda")
        for _ in range(200):
            weight += 1
        (found,) = stream([{"x": torch.ones(4_000_000)}], lambda b: {"y": b["x"] * weight}, device="cuda")
    assert (found["y"] == 200).all()
