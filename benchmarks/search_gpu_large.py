"""Fifty million rows on one GPU: bytes, time of a query and of 256, recall against exact search over the originals.

    python benchmarks/search_gpu_large.py [--rows 50000000] [--out benchmarks/records/NAME-search-large.txt]

Some three minutes on one H200. Vectors of 384 dimensions without clusters (28 latent dimensions and noise 0.8), drawn
on the GPU in blocks and not kept: the index holds a byte per dimension.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import ridgeline

DIM, LATENT, K, QUERIES, BLOCK = 384, 28, 10, 256, 2_000_000
LISTS, TRAIN = 16_384, 2_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--lists", type=int, default=LISTS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines: list[str] = []

    def show(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")

    random = torch.Generator("cuda").manual_seed(1)
    mixture = torch.randn(LATENT, DIM, device="cuda", generator=random)
    queries = draw(QUERIES, mixture, random)
    show(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}: {options.rows:,} x {DIM}, k = {K}")
    truth = find_truth(queries, options.rows, mixture)
    for spec, settings in (
        ("SQ8", [{}]),
        (f"IVF{options.lists},SQ8", [{"nprobe": nprobe} for nprobe in (64, 128, 256, 512)]),
    ):
        index = ridgeline.Index(spec, metric="cosine", device="cuda")
        start = time.perf_counter()
        index.train(next(draw_blocks(TRAIN, mixture)))
        for block in draw_blocks(options.rows, mixture):
            index.add(block)
        torch.cuda.synchronize()
        show(f"{spec}: built in {time.perf_counter() - start:.1f} s, {index.stats()['bytes'] / 1e9:.1f} GB")
        for setting in settings:
            found = index.search(queries, K, **setting)[1].cpu().numpy()
            recall = np.mean([len(set(a) & set(b)) / K for a, b in zip(found.tolist(), truth.tolist(), strict=True)])
            one = time_calls(lambda at, i=index, s=setting: i.search(queries[at % QUERIES][None], K, **s), 60)
            many = time_calls(lambda _, i=index, s=setting: i.search(queries, K, **s), 5)
            show(
                f"{spec} {setting or ''}: recall {recall:.4f}, one query {one * 1e3:.2f} ms, {QUERIES} queries "
                f"{many * 1e3:.1f} ms"
            )
        del index
        torch.cuda.empty_cache()


def draw(count: int, mixture: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    latent = torch.randn(count, LATENT, device="cuda", generator=random)
    values = torch.randn(count, DIM, device="cuda", generator=random).mul_(0.8).addmm_(latent, mixture)
    return torch.nn.functional.normalize(values, dim=1)


def draw_blocks(rows: int, mixture: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same blocks every time."""
    random = torch.Generator("cuda").manual_seed(2)
    for at in range(0, rows, BLOCK):
        yield draw(min(BLOCK, rows - at), mixture, random)


def find_truth(queries: torch.Tensor, rows: int, mixture: torch.Tensor) -> np.ndarray:
    """Return the ids [queries, K] of the nearest rows in float32."""
    best, ids = queries.new_full((len(queries), K), float("-inf")), torch.zeros(len(queries), K).long().cuda()
    for number, block in enumerate(draw_blocks(rows, mixture)):
        scores, chosen = (queries @ block.T).topk(K)
        best, order = torch.cat([best, scores], 1).topk(K)
        ids = torch.cat([ids, chosen + number * BLOCK], 1).gather(1, order)
    return np.asarray(ids.cpu().numpy())


def time_calls(call: Callable[[int], object], rounds: int) -> float:
    times = []
    for at in range(rounds + 3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call(at)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:])


if __name__ == "__main__":
    main()
