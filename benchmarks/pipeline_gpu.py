"""The cost of `pipeline.stream` on a GPU: host time of each call, copies, and ViTs with and without overlap.

    python benchmarks/pipeline_gpu.py            (about a minute; one GPU)

Primitives in µs of host time (best of 5 rounds of 300), copies in GB/s (median of 5), then the ViT of the workload
pipeline: 32 batches, median of 9, in turn with a plain loop, with one CUDA stream, with one stream and the model as a
CUDA graph, and with our stream without graphs. Overlap is the slowest stage alone over the time of all together.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import torch

from ridgeline.lab import Case
from ridgeline.pipeline import allocate_pinned, sum_stage_seconds
from ridgeline.pipeline.gpu_stream import CallerStream, make_stream_setter
from ridgeline.pipeline.pinned_memory import is_pinned
from ridgeline.workloads import pipeline

CASES: list[dict[str, Any]] = [
    {"depth": 0, "output": "tokens"},
    *({"depth": 0, "batch": n} for n in (4, 8, 16)),
    *({"batch": n} for n in (4, 8, 16, 32, 64)),
    *({"depth": n} for n in (1, 2)),
    *({"batch": 128, "depth": n} for n in (0, 1, 2, 3, 4, 6, 12)),
]
ROUNDS = 9


def main() -> None:
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(" ".join(f"{name} {measure_us(call):.2f}" for name, call in list_calls()))
    for megabytes in (1, 9.6, 16, 64, 256):
        print(f"{megabytes:g} MB: {measure_copies(int(megabytes * 1e6))}")
    with torch.inference_mode():
        for changes in CASES:
            print(changes, measure_stream(Case({**pipeline.BASE, **changes}, "cuda")), flush=True)


def measure_us(call: Callable[[], Any], repeats: int = 300) -> float:
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(repeats):
            call()
        times.append((perf_counter() - start) / repeats * 1e6)
    torch.cuda.synchronize()
    return min(times)


def list_calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    device = torch.device("cuda", torch.cuda.current_device())
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    event, first = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for recorded in (first, event):
        recorded.record(current)
    torch.cuda.synchronize()
    host, pinned, on_gpu = torch.empty(2048).pin_memory(), allocate_pinned((2048,)), torch.empty(2048, device=device)
    caller = CallerStream(device)
    select_side, select_current = make_stream_setter(side), make_stream_setter(current)
    yield "record", lambda: event.record(side)
    yield "new event+record", lambda: torch.cuda.Event(enable_timing=True).record(side)
    yield "elapsed", lambda: first.elapsed_time(first)
    yield "wait_event", lambda: side.wait_event(event)
    yield "set_stream twice", lambda: (torch.cuda.set_stream(side), torch.cuda.set_stream(current))
    yield "set by number twice", lambda: (select_side(), select_current())
    yield "current_stream", lambda: torch.cuda.current_stream(device)
    yield "get and restore", lambda: (caller.get(), caller.restore())
    yield "torch is_pinned", host.is_pinned
    yield "is_pinned", lambda: is_pinned(pinned)
    yield "copy8k h2d", lambda: on_gpu.copy_(pinned, non_blocking=True)
    yield "copy8k d2h", lambda: pinned.copy_(on_gpu, non_blocking=True)
    yield "empty", lambda: torch.empty((2048,), dtype=torch.float32, device=device)
    yield "add", lambda: on_gpu + 1


def measure_copies(size: int) -> str:
    source, target = allocate_pinned((size,), torch.uint8), allocate_pinned((size,), torch.uint8)
    gpu_target, gpu_source = (torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    cuda_streams = [torch.cuda.Stream() for _ in range(2)]

    def up() -> None:
        with torch.cuda.stream(cuda_streams[0]):
            gpu_target.copy_(source, non_blocking=True)

    def down() -> None:
        with torch.cuda.stream(cuda_streams[1]):
            target.copy_(gpu_source, non_blocking=True)

    def measure_rate(*copies: Callable[[], None]) -> float:
        calls, times = max(4, int(5e8 / size)), []
        for _ in range(6):
            torch.cuda.synchronize()
            start = perf_counter()
            for _ in range(calls):
                for copy in copies:
                    copy()
            torch.cuda.synchronize()
            times.append((perf_counter() - start) / calls)
        return size / statistics.median(times[1:]) / 1e9

    return f"up {measure_rate(up):.1f} down {measure_rate(down):.1f} both {measure_rate(up, down):.1f} each, GB/s"


def measure_stream(case: Case) -> str:
    dtype = getattr(torch, case["dtype"])
    model = pipeline.build(pipeline.make_vit(case)).to("cuda", dtype)
    data, plain = (pipeline._make_data(case, dtype, pinned=pin) for pin in (True, False))
    alone = {s: ns / case["batches"] / 1e3 for s, ns in pipeline._measure_alone(data, model, "cuda").items()}
    contenders = {
        "ours": (pipeline.make_streamed(model), data),
        "eager": (pipeline.make_streamed(model, graph=False), data),
        "loop": (pipeline._run_loop, plain),
        "one": (pipeline._run_one_stream, data),
        "graph": (pipeline._make_one_graph(), data),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    timeline: list[Any] = []
    for _ in range(ROUNDS + 1):
        for name, (run, memory) in contenders.items():
            torch.cuda.synchronize()
            start = perf_counter()
            result = run(case, memory, model, "cuda")
            torch.cuda.synchronize()
            times[name].append((perf_counter() - start) / case["batches"] * 1e6)
            timeline = result if name == "ours" else timeline
    median = {name: statistics.median(values[1:]) for name, values in times.items()}
    during = {s: round(1e6 * t / case["batches"], 1) for s, t in sum_stage_seconds(timeline).items()}
    ours = median["ours"]
    return (
        f"achieved {ours:.0f} us/batch (min {min(times['ours']):.0f}) "
        f"alone { {s: round(t, 1) for s, t in alone.items()} } busy {during} "
        f"overlap {max(alone.values()) / ours:.3f} "
        + " ".join(f"{name} {median[name] / ours:.2f}x" for name in contenders if name != "ours")
    )


if __name__ == "__main__":
    main()
