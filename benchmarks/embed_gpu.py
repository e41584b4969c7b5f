"""Embedding on one GPU: right first, then the forward pass alone, strings to array, one text, and memory.

    python benchmarks/embed_gpu.py [--profile]

Under a minute on one H200. Texts are random words of the vocabulary, one token each; `movies` are 62,423 texts of the
lengths that titles with year and genres have. Times are medians by the GPU's clock for the forward pass and by the
wall clock for the rest; FLOPs are those of `workloads/embed.py`, nothing counted for padding.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpu_clock import on_device

import ridgeline
from ridgeline.embed.layers import Packed
from ridgeline.workloads._embed_texts import Ring, flops_of, lengths_of, model_of, words_of

MODEL = "all-MiniLM-L6-v2"
BUDGETS = (16_384, 32_768, 65_536, 131_072, 262_144)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="also say which kernels take the time")
    options = parser.parse_args()
    ours = ridgeline.Embedder(MODEL, device="cuda")
    print(f"{torch.cuda.get_device_name()} · torch {torch.__version__} · {ours}")
    movies = Ring(words_of(MODEL), lengths_of("movies", 62_423, 32)).sets[0][0]
    cosines(movies)
    forward(ours)
    whole(ours, movies)
    one(ours, movies)
    if options.profile:
        profile(ours)


def cosines(movies: list[str]) -> None:
    print("\n## lowest cosine with float32 on the CPU: 400 texts of 1 to 256 tokens")
    draw = np.random.default_rng(5)
    texts = ["", "a", "naïve café 东京", *movies[:200]]
    texts += [" ".join(draw.choice(movies, draw.integers(1, 12))) for _ in range(197)]
    wanted = ridgeline.Embedder(MODEL, device="cpu", dtype="float32").encode(texts)
    for dtype in ("float32", "float16", "bfloat16"):
        found = ridgeline.Embedder(MODEL, device="cuda", dtype=dtype).encode(texts)
        again = ridgeline.Embedder(MODEL, device="cuda", dtype=dtype).encode(texts)
        same = "the same run to run" if np.array_equal(found, again) else "NOT the same run to run"
        print(f"{dtype:9} {float((wanted * found).sum(1).min()):.7f}  {same}")


def forward(ours: Any) -> None:
    print("\n## forward alone: texts/s by tokens per text, and TFLOP/s")
    encoder, model = ours._open(), model_of(MODEL)
    for length in (8, 16, 24, 32, 64, 128, 256, 512):
        line = []
        for budget in BUDGETS:
            count = budget // length
            ids = torch.randint(1_000, 20_000, (count * length,), device="cuda", dtype=torch.int32)
            packed = Packed(torch.arange(count + 1, device="cuda") * length, ((0, count, length),))
            seconds = on_device(lambda ids=ids, packed=packed: encoder(ids, packed), 6, 3)
            line.append((count / seconds, flops_of(model, np.full(count, length)) / seconds / 1e12, budget))
        rate, teraflops, budget = max(line)
        print(f"{length:4} tokens: {rate:10,.0f}/s {teraflops:4.0f} TFLOP/s in batches of {budget:,} tokens;", end=" ")
        print("others", ", ".join(f"{b // 1024} k: {r:,.0f}" for r, _, b in line))


def whole(ours: Any, texts: list[str]) -> None:
    print(f"\n## strings to array: {len(texts):,} texts")
    for budget in BUDGETS:
        ours.encode(texts, batch_tokens=budget)
        torch.cuda.reset_peak_memory_stats()
        seconds = [clocked(lambda budget=budget: ours.encode(texts, batch_tokens=budget)) for _ in range(7)]
        peak = torch.cuda.max_memory_allocated() / 1e9
        print(f"batches of {budget:7,} tokens: {len(texts) / statistics.median(seconds):9,.0f}/s, peak {peak:.2f} GB")
    tokens = ours.tokenize(texts)
    parts = {"tokenize": lambda: ours.tokenize(texts), "tokens to array": lambda: ours.encode_tokens(tokens)}
    for name, step in parts.items():
        print(f"{name}: {statistics.median(clocked(step) for _ in range(5)) * 1e3:.1f} ms")


def one(ours: Any, texts: list[str]) -> None:
    print("\n## one text, string to vector")
    for text in texts[:200]:
        ours.encode_one(text)
    times = sorted(clocked(lambda text=text: ours.encode_one(text)) * 1e3 for text in texts[200:3_200])
    print(", ".join(f"p{p} {times[len(times) * p // 100]:.3f} ms" for p in (50, 90, 99)))


def profile(ours: Any) -> None:
    print("\n## where the forward pass spends its time: 65,536 tokens in texts of 24")
    count, encoder = 65_536 // 24, ours._open()
    ids = torch.randint(1_000, 20_000, (count * 24,), device="cuda", dtype=torch.int32)
    packed = Packed(torch.arange(count + 1, device="cuda") * 24, ((0, count, 24),))
    on_device(lambda: encoder(ids, packed), repeats=3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        encoder(ids, packed)
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.device_time_total)
    for event in events[:9]:
        print(f"{event.device_time_total:7.0f} µs in {event.count:3} of {event.key[:60]}")


def clocked(step: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
