"""What `pipeline.stream` costs on a GPU: what each call takes of the host, copies, and ViTs overlapped or not.

    python benchmarks/pipeline_gpu.py            (about a minute; one GPU)

Primitives in µs of host time (best of 5 rounds of 300), copies in GB/s (median of 5), then the workload pipeline's own
ViT: 32 batches, median of 9, in turn with a plain loop, with one CUDA stream, with one stream and the model recorded as
a graph, and with our own stream without graphs. Overlap is the slowest stage alone over what was achieved.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import torch

from ridgeline.lab import Case
from ridgeline.pipeline import busy, pinned
from ridgeline.pipeline.current import Caller, turn
from ridgeline.pipeline.staging import is_ready
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
    print(" ".join(f"{name} {micros(call):.2f}" for name, call in calls()))
    for megabytes in (1, 9.6, 16, 64, 256):
        print(f"{megabytes:g} MB: {copies(int(megabytes * 1e6))}")
    with torch.inference_mode():
        for changed in CASES:
            print(changed, through(Case({**pipeline.BASE, **changed}, "cuda")), flush=True)


def micros(call: Callable[[], Any], times: int = 300) -> float:
    taken = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = perf_counter()
        for _ in range(times):
            call()
        taken.append((perf_counter() - began) / times * 1e6)
    torch.cuda.synchronize()
    return min(taken)


def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    device = torch.device("cuda", torch.cuda.current_device())
    side, here = torch.cuda.Stream(), torch.cuda.current_stream()
    event, first = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for one in (first, event):
        one.record(here)
    torch.cuda.synchronize()
    host, own, there = torch.empty(2048).pin_memory(), pinned((2048,)), torch.empty(2048, device=device)
    caller, to_side, back = Caller(device), turn(side), turn(here)
    yield "record", lambda: event.record(side)
    yield "new event+record", lambda: torch.cuda.Event(enable_timing=True).record(side)
    yield "elapsed", lambda: first.elapsed_time(first)
    yield "wait_event", lambda: side.wait_event(event)
    yield "set_stream twice", lambda: (torch.cuda.set_stream(side), torch.cuda.set_stream(here))
    yield "turn twice", lambda: (to_side(), back())
    yield "current_stream", lambda: torch.cuda.current_stream(device)
    yield "caller and back", lambda: (caller.stream(), caller.back())
    yield "is_pinned", host.is_pinned
    yield "is_ready", lambda: is_ready(own)
    yield "copy8k h2d", lambda: there.copy_(own, non_blocking=True)
    yield "copy8k d2h", lambda: own.copy_(there, non_blocking=True)
    yield "empty", lambda: torch.empty((2048,), dtype=torch.float32, device=device)
    yield "add", lambda: there + 1


def copies(size: int) -> str:
    host, back = pinned((size,), torch.uint8), pinned((size,), torch.uint8)
    there, other = (torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    lanes = [torch.cuda.Stream() for _ in range(2)]

    def up() -> None:
        with torch.cuda.stream(lanes[0]):
            there.copy_(host, non_blocking=True)

    def down() -> None:
        with torch.cuda.stream(lanes[1]):
            back.copy_(other, non_blocking=True)

    def rate(*ways: Callable[[], None]) -> float:
        calls, taken = max(4, int(5e8 / size)), []
        for _ in range(6):
            torch.cuda.synchronize()
            began = perf_counter()
            for _ in range(calls):
                for way in ways:
                    way()
            torch.cuda.synchronize()
            taken.append((perf_counter() - began) / calls)
        return size / statistics.median(taken[1:]) / 1e9

    return f"up {rate(up):.1f} down {rate(down):.1f} both {rate(up, down):.1f} each, GB/s"


def through(case: Case) -> str:
    dtype = getattr(torch, case["dtype"])
    model = pipeline.build(pipeline.vit_of(case)).to("cuda", dtype)
    data, plain = (pipeline._data(case, dtype, pinned_too=pin) for pin in (True, False))
    alone = {s: ns / case["batches"] / 1e3 for s, ns in pipeline._alone(data, model, "cuda").items()}
    ways = {
        "ours": (pipeline.streamed(model), data),
        "eager": (pipeline.streamed(model, graph=False), data),
        "loop": (pipeline._loop, plain),
        "one": (pipeline._one_stream, data),
        "graph": (pipeline._one_graph(), data),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    timeline: list[Any] = []
    for _ in range(ROUNDS + 1):
        for name, (way, memory) in ways.items():
            torch.cuda.synchronize()
            began = perf_counter()
            told = way(case, memory, model, "cuda")
            torch.cuda.synchronize()
            taken[name].append((perf_counter() - began) / case["batches"] * 1e6)
            timeline = told if name == "ours" else timeline
    median = {name: statistics.median(times[1:]) for name, times in taken.items()}
    during = {s: round(1e6 * t / case["batches"], 1) for s, t in busy(timeline).items()}
    ours = median["ours"]
    return (
        f"achieved {ours:.0f} us/batch (min {min(taken['ours']):.0f}) "
        f"alone { {s: round(t, 1) for s, t in alone.items()} } busy {during} "
        f"overlap {max(alone.values()) / ours:.3f} "
        + " ".join(f"{name} {median[name] / ours:.2f}x" for name in ways if name != "ours")
    )


if __name__ == "__main__":
    main()
