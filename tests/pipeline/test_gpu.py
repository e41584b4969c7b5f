"""The stream on a real GPU: correct results, real overlap, nothing overwritten, all memory freed.

python -m pytest -m gpu tests/pipeline/test_gpu.py
"""

from __future__ import annotations

import gc
import itertools
import time

import pytest

torch = pytest.importorskip("torch")

from ridgeline.errors import BatchError  # noqa: E402
from ridgeline.pipeline import Staging, allocate_pinned, stream, sum_stage_seconds  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]
MIB = 1 << 20


def work(batch):
    return {"twice": batch["x"] * 2, "sum": batch["x"].double().sum(), "turned": batch["x"].flip(0)}


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("pin", [False, True])
def test_results_equal_those_of_the_cpu_stream(depth, pin):
    inputs = []
    for size in (1, 0, 100_001, 7, 3_000_000, 500_000, 64):
        x = torch.randn(size, 3)
        if pin:
            x = allocate_pinned(x.shape).copy_(x)
            assert x.is_pinned() or not size
        inputs.append({"x": x})
    fast = list(stream(inputs, work, device="cuda", depth=depth))
    slow = list(stream(inputs, work, device="cpu"))
    for cpu_result, gpu_result in zip(slow, fast, strict=True):
        assert list(cpu_result) == list(gpu_result)
        for name in ("twice", "turned"):
            assert gpu_result[name].device.type == "cpu"
            assert torch.equal(cpu_result[name], gpu_result[name])
        assert torch.allclose(cpu_result["sum"], gpu_result["sum"])


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("pin", [False, True])
def test_recorded_results_equal_those_of_the_cpu_stream(depth, pin):
    staging, inputs = Staging(), []
    for index in range(24):
        x = torch.randn(200_003 if index < 14 else 70_001, 3)
        inputs.append({"x": allocate_pinned(x.shape).copy_(x) if pin else x})
    for _ in range(2):  # recorded, and replayed again
        fast = stream(inputs, work, device="cuda", depth=depth, graph=True, staging=staging)
        for cpu_result, gpu_result in zip(stream(inputs, work, device="cpu"), fast, strict=True):
            assert torch.equal(cpu_result["twice"], gpu_result["twice"])
            assert torch.equal(cpu_result["turned"], gpu_result["turned"])
            assert torch.allclose(cpu_result["sum"], gpu_result["sum"])


def test_recorded_results_do_not_change_while_later_batches_run():
    inputs = [{"x": torch.full((1 << 20,), float(index))} for index in range(12)]
    results = list(stream(inputs, make_heavy_fn(20), device="cuda", graph=True))
    expected = [r["y"] for r in stream(inputs, make_heavy_fn(20), device="cpu")]
    assert all(torch.equal(result["y"], tensor) for result, tensor in zip(results, expected, strict=True))


def test_after_a_failed_recording_the_device_still_works():
    def read_value(batch):
        return {"y": batch["x"] * float(batch["x"].sum().item() > 0)}

    inputs = [{"x": torch.ones(1000)} for _ in range(6)]
    results = stream(inputs, read_value, device="cuda", graph=True)
    assert torch.equal(next(results)["y"], torch.ones(1000))
    with pytest.raises(BatchError, match="batch 1: fn cannot be recorded as a CUDA graph"):
        next(results)
    assert [float(r["y"].sum()) for r in stream(inputs, read_value, device="cuda")] == [1000.0] * 6


def test_every_type_is_streamed():
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.bool, torch.uint8):
        x = torch.randint(0, 2, (1000,)).to(dtype)
        (result,) = stream([{"x": x}], lambda b: {"x": b["x"].clone()}, device="cuda")
        assert torch.equal(result["x"], x)


def make_heavy_fn(times):
    """Takes a multiple of the time of a copy of the same bytes in device memory."""

    def fn(batch):
        y = batch["x"]
        for _ in range(times):
            y = y * 1.0001
        return {"y": y}

    return fn


def test_copies_and_computation_overlap():
    size, count = 64 * MIB // 4, 16
    buffer = [allocate_pinned((size,)).fill_(1) for _ in range(4)]
    targets = [allocate_pinned((size,)) for _ in range(4)]
    source = lambda: ({"x": buffer[i % 4]} for i in range(count))  # noqa: E731
    out = lambda i: {"y": targets[i % 4]}  # noqa: E731

    def run_timed(fn):
        with stream(source(), fn, device="cuda", out=out) as results:
            for _ in results:
                pass
            return results.timeline()

    run_timed(make_heavy_fn(20))  # allocates memory and loads kernels
    timeline = run_timed(make_heavy_fn(20))
    stages = sum_stage_seconds(timeline)
    total_s = timeline[-1].d2h[1] - timeline[0].h2d[0]
    print({k: f"{1e3 * v:.1f} ms" for k, v in stages.items()}, f"total {1e3 * total_s:.1f} ms")
    assert total_s < 0.75 * sum(stages.values())
    overlap_s = lambda a, b: min(a[1], b[1]) - max(a[0], b[0])  # noqa: E731
    assert (
        sum(overlap_s(b.h2d, a.d2h) > 0 for a, b in itertools.pairwise(timeline))
        + sum(overlap_s(c.h2d, a.d2h) > 0 for a, c in zip(timeline, timeline[2:], strict=False))
        > len(timeline) // 2
    )
    for a, b in itertools.pairwise(timeline):  # each stage runs one batch after the other
        for stage in ("h2d", "compute", "d2h"):
            assert getattr(a, stage)[1] <= getattr(b, stage)[0] + 2e-6


def test_results_do_not_change_while_later_batches_run():
    """The typical bug of rings: kept results, one source buffer for all batches, a caller that is slow at first."""
    buffer = torch.empty(2_000_000)

    def source():
        for index in range(20):
            buffer.fill_(index)
            yield {"x": buffer}

    results = []
    for result in stream(source(), lambda b: {"same": b["x"], "part": b["x"][::2], "new": b["x"] + 1}, device="cuda"):
        results.append(result)
        if len(results) < 4:
            time.sleep(0.02)
    for index, result in enumerate(results):
        assert (result["same"] == index).all()
        assert (result["part"] == index).all()
        assert (result["new"] == index + 1).all()


def test_an_fn_that_writes_all_results_into_one_buffer_is_refused():
    buffer = torch.zeros(3, device="cuda")
    with pytest.raises(BatchError, match=r"batch 1: fn gave 'x' in the memory of an earlier result"):
        list(stream([{"x": torch.ones(3)}] * 2, lambda b: {"x": torch.add(b["x"], 1, out=buffer)}, device="cuda"))


def test_fn_waits_for_work_on_the_stream_of_the_caller():
    weight = torch.zeros(4_000_000, device="cuda")
    for _ in range(200):
        weight += 1  # queued on the stream of the caller
    (result,) = stream([{"x": torch.ones(4_000_000)}], lambda b: {"y": b["x"] * weight}, device="cuda")
    assert (result["y"] == 200).all()


def test_out_tensors_may_be_pinned_or_not():
    for buffer in (allocate_pinned((3, 1000)), torch.zeros(3, 1000)):
        buffer.zero_()
        source = ({"x": torch.full((1000,), float(i))} for i in range(3))
        results = list(stream(source, lambda b: {"y": b["x"] + 1}, device="cuda", out=lambda i: {"y": buffer[i]}))  # noqa: B023
        assert [r["y"].data_ptr() for r in results] == [buffer[i].data_ptr() for i in range(3)]
        assert buffer.mean(1).tolist() == [1, 2, 3]


def test_an_error_has_its_batch_number_and_comes_after_all_earlier_results():
    def fn(batch):
        if int(batch["x"][0]) == 5:
            raise ValueError("no such number")
        return {"x": batch["x"] * 2}

    good = []
    with pytest.raises(BatchError, match="batch 5: fn raised ValueError: no such number"):
        good += (int(r["x"][0]) for r in stream(({"x": torch.tensor([i])} for i in range(9)), fn, device="cuda"))
    assert good == [0, 2, 4, 6, 8]
    assert int(next(iter(stream([{"x": torch.tensor([1])}], fn, device="cuda")))["x"]) == 2  # the next stream works


def test_leaving_early_ends_the_work_and_frees_the_memory():
    gc.collect()  # garbage of earlier tests
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    source = ({"x": torch.ones(4 * MIB)} for _ in range(50))
    for _ in stream(source, make_heavy_fn(50), device="cuda"):
        break
    assert torch.cuda.current_stream().query(), "no work is left"
    torch.cuda.synchronize()
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


def test_pinned_pages_are_freed_and_can_be_pinned_again():
    for _ in range(20):
        buffer = allocate_pinned((64 * MIB // 4,))
        assert buffer.is_pinned()
        part = buffer[5:]
        del buffer
        assert part.is_pinned()
        del part


def test_fn_waits_for_work_on_another_stream_of_the_caller():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        weight = torch.zeros(4_000_000, device="cuda")
        for _ in range(200):
            weight += 1
        (result,) = stream([{"x": torch.ones(4_000_000)}], lambda b: {"y": b["x"] * weight}, device="cuda")
    assert (result["y"] == 200).all()
