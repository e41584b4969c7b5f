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
from gpu_clock import time_on_device

import ridgeline
from ridgeline.embed.layers import Packed
from ridgeline.workloads._embed_texts import Ring, count_flops, draw_lengths, find_words, load_model

MODEL = "all-MiniLM-L6-v2"
BUDGETS = (16_384, 32_768, 65_536, 131_072, 262_144)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="also say which kernels take the time")
    options = parser.parse_args()
    embedder_ours = ridgeline.Embedder(MODEL, device="cuda")
    print(f"{torch.cuda.get_device_name()} · torch {torch.__version__} · {embedder_ours}")
    movies = Ring(find_words(MODEL), draw_lengths("movies", 62_423, 32)).sets[0][0]
    cosines(movies)
    forward(embedder_ours)
    complete(embedder_ours, movies)
    one(embedder_ours, movies)
    if options.profile:
        profile(embedder_ours)


def cosines(movies: list[str]) -> None:
    print("\n## lowest cosine with float32 on the CPU: 400 texts of 1 to 256 tokens")
    draw = np.random.default_rng(5)
    texts = ["", "a", "naïve café 东京", *movies[:200]]
    texts += [" ".join(draw.choice(movies, draw.integers(1, 12))) for _ in range(197)]
    expected = ridgeline.Embedder(MODEL, device="cpu", dtype="float32").encode(texts)
    for dtype in ("float32", "float16", "bfloat16"):
        values = ridgeline.Embedder(MODEL, device="cuda", dtype=dtype).encode(texts)
        again = ridgeline.Embedder(MODEL, device="cuda", dtype=dtype).encode(texts)
        same = "the same run to run" if np.array_equal(values, again) else "NOT the same run to run"
        print(f"{dtype:9} {float((expected * values).sum(1).min()):.7f}  {same}")


def forward(embedder_ours: Any) -> None:
    print("\n## forward alone: texts/s by tokens per text, and TFLOP/s")
    encoder, model = embedder_ours._get_encoder(), load_model(MODEL)
    for length in (8, 16, 24, 32, 64, 128, 256, 512):
        line = []
        for budget in BUDGETS:
            count = budget // length
            ids = torch.randint(1_000, 20_000, (count * length,), device="cuda", dtype=torch.int32)
            packed = Packed(torch.arange(count + 1, device="cuda") * length, ((0, count, length),))
            seconds = time_on_device(lambda ids=ids, packed=packed: encoder(ids, packed), 6, 3)
            line.append((count / seconds, count_flops(model, np.full(count, length)) / seconds / 1e12, budget))
        rate, teraflops, budget = max(line)
        print(f"{length:4} tokens: {rate:10,.0f}/s {teraflops:4.0f} TFLOP/s in batches of {budget:,} tokens;", end=" ")
        print("others", ", ".join(f"{b // 1024} k: {r:,.0f}" for r, _, b in line))


def complete(embedder_ours: Any, texts: list[str]) -> None:
    print(f"\n## strings to array: {len(texts):,} texts")
    for budget in BUDGETS:
        embedder_ours.encode(texts, batch_tokens=budget)
        torch.cuda.reset_peak_memory_stats()
        seconds = [
            time_stages(lambda budget=budget: embedder_ours.encode(texts, batch_tokens=budget)) for _ in range(7)
        ]
        peak = torch.cuda.max_memory_allocated() / 1e9
        print(f"batches of {budget:7,} tokens: {len(texts) / statistics.median(seconds):9,.0f}/s, peak {peak:.2f} GB")
    tokens = embedder_ours.tokenize(texts)
    parts = {
        "tokenize": lambda: embedder_ours.tokenize(texts),
        "tokens to array": lambda: embedder_ours.encode_tokens(tokens),
    }
    for name, step in parts.items():
        print(f"{name}: {statistics.median(time_stages(step) for _ in range(5)) * 1e3:.1f} ms")


def one(embedder_ours: Any, texts: list[str]) -> None:
    print("\n## one text, string to vector")
    for text in texts[:200]:
        embedder_ours.encode_one(text)
    times = sorted(time_stages(lambda text=text: embedder_ours.encode_one(text)) * 1e3 for text in texts[200:3_200])
    print(", ".join(f"p{p} {times[len(times) * p // 100]:.3f} ms" for p in (50, 90, 99)))


def profile(embedder_ours: Any) -> None:
    print("\n## where the forward pass spends its time: 65,536 tokens in texts of 24")
    count, encoder = 65_536 // 24, embedder_ours._get_encoder()
    ids = torch.randint(1_000, 20_000, (count * 24,), device="cuda", dtype=torch.int32)
    packed = Packed(torch.arange(count + 1, device="cuda") * 24, ((0, count, 24),))
    time_on_device(lambda: encoder(ids, packed), repeats=3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        encoder(ids, packed)
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.device_time_total)
    for event in events[:9]:
        print(f"{event.device_time_total:7.0f} µs in {event.count:3} of {event.key[:60]}")


def time_stages(step: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
