"""The search kernels on this machine's GPU: right or wrong against float64, and the time of each block shape.

    python benchmarks/search_gpu_sweep.py [--only scan,bytes,halves,batch,lists,whole] [--rows 1000000] [--large]

Times are GPU times by CUDA events around replays of a graph, so that Python's share is not in them; medians. Rows
are clustered unit vectors (4,000 centres, noise 0.9), fp16. `--large` adds one query over 10 M rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from ridgeline.kernels.search import batch as search_batch
from ridgeline.kernels.search import begin as search_begin
from ridgeline.kernels.search import bytes as search_bytes
from ridgeline.kernels.search import exact as search_exact
from ridgeline.kernels.search import inverted as search_inverted
from ridgeline.kernels.search import kmeans as search_kmeans
from ridgeline.kernels.search import lists as search_lists
from ridgeline.kernels.search import scan as search_scan
from ridgeline.kernels.search import select as search_select
from ridgeline.kernels.search import settle as search_settle
from ridgeline.kernels.search import short as search_short
from ridgeline.kernels.search import sketch as search_sketch

DEPTH, K, QUERIES = 384, 10, 1024
SCAN = [(32, 64, 4), (64, 64, 4), (64, 64, 8), (32, 64, 2), (16, 64, 2), (32, 128, 4), (16, 128, 4), (64, 128, 8)]
BYTES = [(64, 32, 4), (64, 32, 8), (32, 32, 4), (32, 32, 2), (64, 64, 4), (64, 32, 2)]
HALVES = [(64, 64, 4), (64, 16, 4), (64, 16, 2), (32, 16, 2), (32, 64, 4), (64, 16, 8)]
BATCH = [
    (128, 128, 64, 4, 3), (128, 128, 64, 4, 4), (128, 128, 64, 8, 3), (128, 256, 64, 8, 3), (128, 256, 64, 8, 4),
    (64, 256, 64, 4, 3), (256, 128, 64, 8, 3), (128, 128, 128, 4, 2),
]  # fmt: skip
LISTS = [(16, 128, 64, 4, 3), (32, 128, 64, 4, 3), (32, 128, 128, 4, 2), (64, 128, 64, 4, 3), (64, 64, 64, 4, 3),
         (32, 256, 64, 8, 3)]  # fmt: skip


def made(count: int, seed: int) -> torch.Tensor:
    chance = torch.Generator(device="cuda").manual_seed(0)
    centres = torch.randn(4000, DEPTH, device="cuda", generator=chance)
    chance.manual_seed(seed)
    out = torch.empty(count, DEPTH, dtype=torch.float16, device="cuda")
    for at in range(0, count, 1_000_000):
        n = min(1_000_000, count - at)
        near = centres[torch.randint(0, 4000, (n,), device="cuda", generator=chance)]
        x = near + 0.9 * torch.randn(n, DEPTH, device="cuda", generator=chance)
        out[at : at + n] = torch.nn.functional.normalize(x, dim=1)
    return out


def timed(call: Callable[[], Any], repeats: int = 10, rounds: int = 7) -> float:
    """Milliseconds of one call."""
    call()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    graph.replay()
    taken = []
    for _ in range(rounds):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        taken.append(start.elapsed_time(stop) / repeats)
    return statistics.median(taken)


def truth(queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The true k-th best score of each query, float64."""
    best = torch.full((len(queries), K), -10.0, dtype=torch.float64, device="cuda")
    for part in rows.split(500_000):
        best = torch.cat([best, queries.double() @ part.double().T], 1).topk(K).values
    return best[:, -1]


def checked(found: tuple[torch.Tensor, torch.Tensor], queries: torch.Tensor, rows: torch.Tensor) -> str:
    """How much worse than the true k-th the worst returned score is, and how many of the true k best are there."""
    score = (rows[found[1]].double() * queries.double()[:, None, :]).sum(2)
    kth = truth(queries, rows)[:, None]
    worse = (kth - score.min(1, keepdim=True).values).max().item()
    told = (score - found[0].double()).abs().max().item()
    recall = (score >= kth - 1e-6).double().mean().item()
    return f"worse {max(worse, 0):.1e}  told {told:.1e}  recall {recall:.4f}"


def certified(queries: torch.Tensor, rows: torch.Tensor, longest: torch.Tensor) -> int:
    """How many queries need no second pass."""
    wanted = search_exact.candidates_for(K)
    small, size, error = search_batch.rounded(queries, rows.dtype, longest)
    tiles, bound = search_select.picked(search_batch.maxima(small, size, rows), wanted)
    settled = torch.zeros(len(queries), dtype=torch.uint8, device="cuda")
    search_settle.settle(
        queries, rows, search_batch.rescore(queries, rows, tiles), tiles, K, tile=search_batch.TILE, candidates=wanted,
        scores_by="slot", certificate=(bound, error, settled),
    )  # fmt: skip
    return int(settled.sum())


def swept(name: str, shapes: list[Any], call: Callable[[Any], Any], repeats: int = 10) -> None:
    found = []
    for shape in shapes:
        try:
            found.append((timed(lambda shape=shape: call(shape), repeats), shape))
        except Exception as error:  # a shape that asks for too much is no reason to stop
            print(f"{name:9} {shape}: {str(error).splitlines()[0][:90]}")
            torch.cuda.synchronize()
    for taken, shape in sorted(found):
        print(f"{name:9} {taken:8.4f} ms  {shape}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="scan,bytes,halves,batch,lists,whole")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--large", action="store_true")
    given = parser.parse_args()
    only = given.only.split(",")
    began = time.perf_counter()
    rows, queries = made(given.rows, 1), made(QUERIES, 2).float()
    one, longest = queries[:1], torch.full((1,), 1.001, device="cuda")
    grid = search_bytes.grid_of(rows[:200_000])
    codes = search_bytes.encode(rows, *grid)
    print(f"{torch.cuda.get_device_name()}, {given.rows:,} x {DEPTH} fp16, k = {K}")
    if "scan" in only:
        swept("scan", SCAN, lambda s: search_scan.scan(one, rows, shape=s))
    if "bytes" in only:
        for terms in (2, 3):
            words = search_bytes.words_of(one, *grid, terms=terms)
            swept(f"bytes x{terms}", BYTES, lambda s, words=words: search_bytes.scan(words, codes, shape=s))
    if "halves" in only:
        sketch = search_sketch.sketch_of(codes)
        digits = search_sketch.digits_for(sketch)
        search_begin.prepare(one, True, grid, digits=digits)
        scores, best, groups = search_short.room_for(sketch.shape[0] * sketch.shape[1], sketch.shape[1], 32, one.device)
        out = scores, best
        swept("halves", HALVES, lambda s: search_sketch.scan(digits, sketch, given.rows, out, groups=groups, shape=s))
    if "batch" in only:
        small, size, _ = search_batch.rounded(queries, rows.dtype, longest)
        swept("batch", BATCH, lambda s: search_batch.maxima(small, size, rows, shape=s), 2)
        few = [(16, 128, 64, 4, 4), (16, 64, 64, 4, 4), (16, 128, 128, 4, 3), (16, 256, 64, 8, 3)]
        swept("batch 16", few, lambda s: search_batch.maxima(small[:16], size[:16], rows, shape=s), 4)
    start = time.perf_counter()
    for _ in range(2):  # the second time without what the first use of a library costs
        torch.cuda.synchronize()
        start = time.perf_counter()
        sample = search_kmeans.sample_of(rows, 1024)
        centres = search_kmeans.train(sample, 1024)
        near, _ = search_kmeans.assign(rows, centres)
        _, place, starts = search_kmeans.grouped(near, 1024)
        stored = rows[place]
        torch.cuda.synchronize()
        print(f"build     {(time.perf_counter() - start) * 1e3:8.1f} ms")
    widest = int(starts.diff().max())
    most = -(-widest // search_lists.TILE)
    if "lists" in only:
        small, size, _ = search_batch.rounded(queries, rows.dtype, longest)
        for probes in (4, 16):
            lists = search_lists.probe(queries, centres, probes)
            swept(
                f"lists {probes}", LISTS,
                lambda s, lists=lists: search_lists.maxima(small, size, stored, lists, starts, most, shape=s), 4,
            )  # fmt: skip
    if "whole" in only:
        print(f"lists: longest {widest}, mean {given.rows / 1024:.0f}")
        _whole(one, queries, rows, longest, grid, codes, centres, starts, widest, place, stored)
    if given.large:
        del codes, stored
        large = made(10_000_000, 3)
        taken = timed(lambda: search_exact.one(one, large, K), 2)
        print(f"10 M, one {taken:8.4f} ms  {checked(search_exact.one(one, large, K), one, large)}")
    print(f"{time.perf_counter() - began:.0f} s in all")


def _whole(
    one: torch.Tensor, queries: torch.Tensor, rows: torch.Tensor, longest: torch.Tensor,
    grid: search_exact.Grid, codes: torch.Tensor, centres: torch.Tensor, starts: torch.Tensor, widest: int,
    place: torch.Tensor, stored: torch.Tensor,
) -> None:  # fmt: skip
    """Whole searches, and the parts they are made of."""

    def tell(name: str, asked: torch.Tensor, call: Callable[[torch.Tensor], Any], repeats: int) -> None:
        taken = timed(lambda: call(asked), repeats)
        some = asked[:64]
        found = tuple(t[:64] for t in call(asked))
        print(f"{name:24} {taken:8.4f} ms  {checked(found, some, rows)}")

    tell("exact, 1", one, lambda q: search_exact.one(q, rows, K), 10)
    tell("exact, 16", queries[:16], lambda q: search_exact.many(q, rows, K, longest), 4)
    tell("exact, 1024", queries, lambda q: search_exact.many(q, rows, K, longest), 2)
    print(f"  certified at once: {certified(queries, rows, longest)} of {QUERIES}")
    for wanted in (32, 64):
        more = {"grid": grid, "refine": rows, "candidates": wanted}
        tell(f"SQ8 + refine {wanted}, 1", one, lambda q, more=more: search_exact.one(q, codes, K, **more), 10)
    far = torch.full((1,), 128.0 * DEPTH**0.5, device="cuda")
    more = {"grid": grid, "refine": rows, "candidates": 32}
    tell("SQ8 + refine 32, 1024", queries, lambda q: search_exact.many(q, codes, K, far, **more), 2)
    for probes in (1, 4, 16):

        def look(q: torch.Tensor, probes: int = probes) -> Any:
            return search_inverted.search(q, centres, starts, widest, stored, K, probes, ids=place)

        tell(f"IVF1024,Flat {probes}, 1", one, look, 10)
        tell(f"IVF1024,Flat {probes}, 1024", queries, look, 2)
    scores, maxima = search_scan.scan(one, rows)
    tiles, _ = search_select.picked(maxima, 16)
    parts: dict[str, Callable[[], Any]] = {
        "coarse": lambda: search_select.coarse(maxima, 128),
        "coarse + pick 16": lambda: search_select.picked(maxima, 16),
        "settle 16": lambda: search_settle.settle(
            one, rows, scores, tiles, K, tile=search_scan.TILE, candidates=16
        ),
        "words": lambda: search_bytes.words_of(one, *grid),
        "probe 16, 1": lambda: search_lists.probe(one, centres, 16),
        "probe 16, 1024": lambda: search_lists.probe(queries, centres, 16),
    }  # fmt: skip
    for name, call in parts.items():
        print(f"  {name:22} {timed(call, 20):8.4f} ms")


if __name__ == "__main__":
    main()
