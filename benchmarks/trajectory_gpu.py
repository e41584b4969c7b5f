"""The resampler on one GPU: first correctness of every kind, then speed relative to the GPU's memory.

    python benchmarks/trajectory_gpu.py [--sweep]

Takes about a minute on one H200. Times are medians; TB/s counts every compulsory byte once (all frames,
stamps and targets in, all results out), and its share is of a device-to-device copy measured here.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from gpu_clock import time_on_device

import ridgeline
from ridgeline.kernels.resample import resample

S, T, D = 100, 50, 32
KINDS = ("linear", "previous", "nearest", "angle", "slerp", "cubic")
SMALL, LARGE = 256, 65_536


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", action="store_true", help="also try other tiles and warps")
    options = parser.parse_args()
    started = time.perf_counter()
    print(torch.cuda.get_device_name(), "· torch", torch.__version__)
    copy = section("copy", copy_bandwidth) or float("nan")
    print(f"copy {copy / 1e12:.2f} TB/s")
    section("every kind against the reference", right)
    section(f"batch {SMALL}: one call", small)
    section(f"batch {LARGE}: share of copy", lambda: large(copy))
    section("S = 4096 → T = 1024 against torch", long)
    if options.sweep:
        section("tiles and warps", lambda: sweep(copy))
    print(f"\n{time.perf_counter() - started:.0f} s in all")


def section(title: str, body: Callable[[], Any]) -> Any:
    print(f"\n## {title}", flush=True)
    try:
        return body()
    except Exception:  # the other sections still have something to say
        traceback.print_exc()
        return None


def batch(
    size: int, dtype: torch.dtype, *, stamps: int = S, targets: int = T, clock: torch.dtype = torch.float32
) -> Any:
    values = torch.randn(size, stamps, D, device="cuda", dtype=torch.float32).to(dtype)
    times = torch.rand(size, stamps, device="cuda").cumsum(1)
    at = (torch.linspace(0, 1, targets, device="cuda") * times[:, -1:]).contiguous()
    if clock == torch.int64:
        times, at = (times * 1e9).long(), (at * 1e9).long()
    out = torch.empty(size, targets, D, device="cuda", dtype=dtype)
    return values, times.to(clock), at.to(clock), out


def count_bytes(*tensors: torch.Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def from_host(step: Callable[[], Any], repeats: int = 2000, rounds: int = 5) -> float:
    """Seconds per call for a caller that does not wait in between."""
    for _ in range(20):
        step()
    samples = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) / repeats)
    return statistics.median(samples)


def capture_graph(step: Callable[[], Any]) -> Callable[[], None]:
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


def copy_bandwidth() -> float:
    source = torch.empty(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return 2 * count_bytes(source) / time_on_device(lambda: target.copy_(source), 10)


def reference() -> ModuleType:
    path = Path(__file__).parents[1] / "tests" / "kernels" / "reference_resample.py"
    spec = importlib.util.spec_from_file_location("reference_resample", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def right() -> None:
    slow = reference()
    limit = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
    for kind in KINDS:
        for dtype, allowed in limit.items():
            for clock, outside in ((torch.float64, "clamp"), (torch.int64, "nan"), (torch.float32, "extrapolate")):
                values, times, at, out = batch(12, dtype, clock=clock)
                mask = torch.empty(at.shape, dtype=torch.bool, device="cuda")
                at = at + (times[:, 3:4] - times[:, :1])  # some targets beyond the end
                channels = ((0, D, kind),)
                for _ in range(3):  # compiled, tried, launched directly
                    out.fill_(7)
                    resample.run(values, times, at, out, mask, channels=channels, outside=outside)
                plain = (x.cpu().numpy() for x in (values.double(), times, at))
                want, want_mask = slow.resample(*plain, channels, outside=outside)
                most = torch.finfo(dtype).max  # a cubic far beyond a short last span leaves float16
                want = np.clip(want, -most, most)
                error = np.clip(out.double().cpu().numpy(), -most, most) - want
                if kind == "angle":
                    error -= np.round(error / (2 * np.pi)) * 2 * np.pi
                worst = np.nanmax(np.abs(error)) / max(1.0, np.nanmax(np.abs(want)))
                if outside == "extrapolate" and kind in ("slerp", "angle"):  # which turn by a narrowed weight's error
                    ends = times[:, -2:].double()
                    worst /= max(1.0, float(((at[:, -1].double() - ends[:, 0]) / (ends[:, 1] - ends[:, 0])).max()))
                fine = worst <= allowed and (mask.cpu().numpy() == want_mask).all()
                fine = fine and (np.isnan(want) == np.isnan(out.double().cpu().numpy())).all()
                if not fine or (clock == torch.float64 and dtype == torch.float32):
                    print(
                        f"{'ok   ' if fine else 'WRONG'} {kind:9}{name(dtype):10}{name(clock):9}{outside:12}{worst:.1e}"
                    )


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def small() -> None:
    """As users call it, as its Python function launches it, and as a graph."""
    print(f"{'':22}{'call µs':>9}{'run µs':>9}{'replay µs':>11}")
    for kind in ("linear", "cubic", "slerp"):
        for dtype in (torch.bfloat16, torch.float32):
            tensors, channels = batch(SMALL, dtype), ((0, D, kind),)
            *three, out = tensors
            called = functools.partial(ridgeline.resample, *three, kind=kind, out=out, check=False)
            step = functools.partial(resample.run, *tensors, channels=channels)
            call, run, replay = from_host(called), from_host(step), from_host(capture_graph(step))
            print(f"{kind:9}{name(dtype):13}{call * 1e6:9.2f}{run * 1e6:9.2f}{replay * 1e6:11.2f}")


def large(copy: float) -> None:
    print(f"{'':34}{'µs':>8}{'TB/s':>7}{'of copy':>9}")
    for dtype in (torch.bfloat16, torch.float32):
        for kind in KINDS:
            values, times, at, out = batch(LARGE, dtype)
            line(
                kind, dtype, copy, count_bytes(values, times, at, out), values, times, at, out, channels=((0, D, kind),)
            )
        for clock in (torch.float64, torch.int64):
            values, times, at, out = batch(LARGE, dtype, clock=clock)
            moved = count_bytes(values, times, at, out)
            line(f"linear, {name(clock)} stamps", dtype, copy, moved, values, times, at, out)
        draw_ragged(dtype, copy)


def draw_ragged(dtype: torch.dtype, copy: float) -> None:
    """Lengths from 2 to S; only the frames and targets there are count as bytes, results are all written."""
    values, times, at, out = batch(LARGE, dtype)
    lengths = torch.randint(2, S + 1, (LARGE,), device="cuda")
    at = (torch.linspace(0, 1, T, device="cuda") * times.gather(1, lengths[:, None] - 1)).contiguous()
    frame = D * values.element_size() + times.element_size()
    moved = int(lengths.sum()) * frame + count_bytes(at, out, lengths)
    line("linear, lengths", dtype, copy, moved, values, times, at, out, lengths=lengths)
    keep = torch.arange(S, device="cuda") < lengths[:, None]
    offsets = torch.zeros(LARGE + 1, dtype=torch.int64, device="cuda")
    torch.cumsum(lengths, 0, out=offsets[1:])
    line("linear, packed", dtype, copy, moved, values[keep], times[keep], at, out, offsets=offsets)


def line(label: str, dtype: torch.dtype, copy: float, moved: int, *tensors: torch.Tensor, **options: Any) -> float:
    seconds = time_on_device(lambda: resample.run(*tensors, **options))
    share = moved / seconds / copy
    print(f"{label:24}{name(dtype):10}{seconds * 1e6:8.1f}{moved / seconds / 1e12:7.2f}{share:9.1%}", flush=True)
    return share


def with_torch(values: torch.Tensor, times: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """searchsorted + gather, as one writes it."""
    right = torch.searchsorted(times, at, right=True).clamp(1, times.shape[1] - 1)
    a, b = times.gather(1, right - 1), times.gather(1, right)
    w = ((at - a) / (b - a)).clamp(0, 1).unsqueeze(-1).to(values.dtype)
    index = right.unsqueeze(-1).expand(-1, -1, values.shape[2])
    x = values.gather(1, index - 1)
    return x + (values.gather(1, index) - x) * w


def long() -> None:
    print(f"{'':30}{'ridgeline µs':>13}{'eager':>9}{'compiled':>10}")
    compiled = torch.compile(with_torch, dynamic=False)
    for clock in (torch.float32, torch.float64):
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
            values, times, at, out = batch(SMALL, dtype, stamps=4096, targets=1024, clock=clock)
            ours = time_on_device(lambda: resample.run(values, times, at, out))  # noqa: B023
            eager = time_on_device(lambda: with_torch(values, times, at), 5)  # noqa: B023
            fused = float("nan")
            try:
                fused = time_on_device(lambda: compiled(values, times, at), 5)  # noqa: B023
            except Exception as error:
                print("torch.compile:", str(error).splitlines()[0][:100])
            label = f"{name(dtype)}, {name(clock)} stamps"
            print(f"{label:30}{ours * 1e6:13.1f}{eager * 1e6:9.1f}{fused * 1e6:10.1f}", flush=True)


def sweep(copy: float) -> None:
    """Sweep targets and channels per program, warps and registers; the launch module has the best as constants."""
    tables: tuple[dict[Any, Any], ...] = (resample.SHAPES, resample.WARPS, resample.REGISTERS)
    before = [dict(table) for table in tables]
    shapes = ((32, 32, 1), (16, 32, 1), (32, 16, 1), (32, 8, 1), (16, 16, 1), (64, 32, 2), (64, 8, 2))
    try:
        for kind, registers in (
            ("linear", (0, 64)),
            ("angle", (0, 64)),
            ("slerp", (0, 64)),
            ("cubic", (0, 96, 112, 128)),
        ):
            for dtype in (torch.bfloat16, torch.float32):
                values, times, at, out = batch(LARGE, dtype)
                moved = count_bytes(values, times, at, out)
                for most, (rows, wide, warps) in itertools.product(registers, shapes):
                    resample.SHAPES[kind, dtype.itemsize], resample.WARPS[kind] = (rows, wide), warps
                    resample.REGISTERS[kind, dtype.itemsize] = most or 255
                    resample._plans.clear()
                    label = f"{kind} {rows}×{wide}, {warps} w{f', {most} r' if most else ''}"
                    line(label, dtype, copy, moved, values, times, at, out, channels=((0, D, kind),))
    finally:
        for table, usual in zip(tables, before, strict=True):
            table.clear()
            table.update(usual)
        resample._plans.clear()


if __name__ == "__main__":
    main()
