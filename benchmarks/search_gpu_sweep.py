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

from ridgeline.kernels.search import inverted_lists
from ridgeline.kernels.search import kmeans as search_kmeans
from ridgeline.kernels.search import one_query as search_one_query
from ridgeline.kernels.search import queries as search_queries
from ridgeline.kernels.search import rescore as search_rescore
from ridgeline.kernels.search import scalar_codes as search_scalar_codes
from ridgeline.kernels.search import scan as search_scan
from ridgeline.kernels.search import search as search_search
from ridgeline.kernels.search import top_k as search_top_k

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


def make_vectors(count: int, seed: int) -> torch.Tensor:
    chance = torch.Generator(device="cuda").manual_seed(0)
    centres = torch.randn(4000, DEPTH, device="cuda", generator=chance)
    chance.manual_seed(seed)
    out = torch.empty(count, DEPTH, dtype=torch.float16, device="cuda")
    for at in range(0, count, 1_000_000):
        n = min(1_000_000, count - at)
        nearest = centres[torch.randint(0, 4000, (n,), device="cuda", generator=chance)]
        x = nearest + 0.9 * torch.randn(n, DEPTH, device="cuda", generator=chance)
        out[at : at + n] = torch.nn.functional.normalize(x, dim=1)
    return out


def time_call(call: Callable[[], Any], repeats: int = 10, rounds: int = 7) -> float:
    """Milliseconds of one call."""
    call()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    graph.replay()
    select_rows = []
    for _ in range(rounds):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        select_rows.append(start.elapsed_time(stop) / repeats)
    return statistics.median(select_rows)


def truth(queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The true k-th best score of each query, float64."""
    best = torch.full((len(queries), K), -10.0, dtype=torch.float64, device="cuda")
    for part in rows.split(500_000):
        best = torch.cat([best, queries.double() @ part.double().T], 1).topk(K).values
    return best[:, -1]


def check_result(measured_values: tuple[torch.Tensor, torch.Tensor], queries: torch.Tensor, rows: torch.Tensor) -> str:
    """How much worse than the true k-th the worst returned score is, and how many of the true k best are there."""
    score = (rows[measured_values[1]].double() * queries.double()[:, None, :]).sum(2)
    kth = truth(queries, rows)[:, None]
    worse = (kth - score.min(1, keepdim=True).values).max().item()
    reported = (score - measured_values[0].double()).abs().max().item()
    recall = (score >= kth - 1e-6).double().mean().item()
    return f"worse {max(worse, 0):.1e}  told {reported:.1e}  recall {recall:.4f}"


def measure_certificates(queries: torch.Tensor, rows: torch.Tensor, longest: torch.Tensor) -> int:
    """How many queries need no second pass."""
    expected = search_search.choose_candidate_count(K)
    small, size, error = search_queries.round_queries(queries, search_queries.Rounding(rows.dtype, longest))
    tiles, bound = search_top_k.select_tiles(search_scan.compute_tile_maxima(small, size, rows), expected)
    settled = torch.zeros(len(queries), dtype=torch.uint8, device="cuda")
    search_rescore.rescore_candidates(
        queries, rows, search_scan.rescore_tiles(queries, rows, tiles), tiles, K, tile=search_scan.BATCH_TILE,
        candidates=expected, scores_by="slot", certificate=(bound, error, settled),
    )  # fmt: skip
    return int(settled.sum())


def sweep_shapes(name: str, shapes: list[Any], call: Callable[[Any], Any], repeats: int = 10) -> None:
    measured_values = []
    for shape in shapes:
        try:
            measured_values.append((time_call(lambda shape=shape: call(shape), repeats), shape))
        except Exception as error:  # a shape that asks for too much is no reason to stop
            print(f"{name:9} {shape}: {str(error).splitlines()[0][:90]}")
            torch.cuda.synchronize()
    for select_rows, shape in sorted(measured_values):
        print(f"{name:9} {select_rows:8.4f} ms  {shape}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="scan,bytes,halves,batch,lists,whole")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--large", action="store_true")
    given = parser.parse_args()
    only = given.only.split(",")
    start_s = time.perf_counter()
    rows, queries = make_vectors(given.rows, 1), make_vectors(QUERIES, 2).float()
    one, longest = queries[:1], torch.full((1,), 1.001, device="cuda")
    grid = search_scalar_codes.fit_grid(rows[:200_000])
    codes = search_scalar_codes.encode_scalar(rows, *grid)
    print(f"{torch.cuda.get_device_name()}, {given.rows:,} x {DEPTH} fp16, k = {K}")
    if "scan" in only:
        sweep_shapes("scan", SCAN, lambda s: search_scan.scan_rows(one, rows, shape=s))
    if "bytes" in only:
        for terms in (2, 3):
            words = search_scalar_codes.pack_queries(one, *grid, terms=terms)
            sweep_shapes(
                f"bytes x{terms}", BYTES, lambda s, words=words: search_scalar_codes.scan_codes(words, codes, shape=s)
            )
    if "halves" in only:
        sketch = search_scalar_codes.build_sketch(codes)
        digits = search_scalar_codes.allocate_digits(sketch)
        search_queries.prepare_one_query(one, True, grid, digits=digits)
        scores, best, groups = search_one_query.allocate_scores(
            sketch.shape[0] * sketch.shape[1], sketch.shape[1], one.device
        )
        out = scores, best
        sweep_shapes(
            "halves",
            HALVES,
            lambda s: search_scalar_codes.scan_sketch(digits, sketch, given.rows, out, groups=groups, shape=s),
        )
    if "batch" in only:
        small, size, _ = search_queries.round_queries(queries, search_queries.Rounding(rows.dtype, longest))
        sweep_shapes("batch", BATCH, lambda s: search_scan.compute_tile_maxima(small, size, rows, shape=s), 2)
        small_batch = [(16, 128, 64, 4, 4), (16, 64, 64, 4, 4), (16, 128, 128, 4, 3), (16, 256, 64, 8, 3)]
        sweep_shapes(
            "batch 16", small_batch, lambda s: search_scan.compute_tile_maxima(small[:16], size[:16], rows, shape=s), 4
        )
    start = time.perf_counter()
    for _ in range(2):  # the second time without what the first use of a library costs
        torch.cuda.synchronize()
        start = time.perf_counter()
        sample = search_kmeans.sample_rows(rows, 1024)
        centres = search_kmeans.train_centres(sample, 1024)
        nearest, _ = search_kmeans.assign_centres(rows, centres)
        _, place, starts = search_kmeans.group_by_list(nearest, 1024)
        stored = rows[place]
        torch.cuda.synchronize()
        print(f"build     {(time.perf_counter() - start) * 1e3:8.1f} ms")
    widest = int(starts.diff().max())
    most = -(-widest // inverted_lists.LIST_BATCH_TILE)
    if "lists" in only:
        small, size, _ = search_queries.round_queries(queries, search_queries.Rounding(rows.dtype, longest))
        for probes in (4, 16):
            lists = inverted_lists.find_nearest_lists(queries, centres, probes)
            sweep_shapes(
                f"lists {probes}", LISTS, lambda s,
                lists=lists: inverted_lists.compute_list_maxima(small, size, stored, lists, starts, most, shape=s),
                4,
            )  # fmt: skip
    if "whole" in only:
        print(f"lists: longest {widest}, mean {given.rows / 1024:.0f}")
        _search_all(one, queries, rows, longest, grid, codes, centres, starts, widest, place, stored)
    if given.large:
        del codes, stored
        large = make_vectors(10_000_000, 3)
        select_rows = time_call(lambda: search_search.search_rows(one, large, K), 2)
        print(f"10 M, one {select_rows:8.4f} ms  {check_result(search_search.search_rows(one, large, K), one, large)}")
    print(f"{time.perf_counter() - start_s:.0f} s in all")


def _search_all(
    one: torch.Tensor, queries: torch.Tensor, rows: torch.Tensor, longest: torch.Tensor,
    grid: search_search.Grid, codes: torch.Tensor, centres: torch.Tensor, starts: torch.Tensor, widest: int,
    place: torch.Tensor, stored: torch.Tensor,
) -> None:  # fmt: skip
    """Whole searches, and the parts they are made of."""

    def tell(name: str, query_set: torch.Tensor, call: Callable[[torch.Tensor], Any], repeats: int) -> None:
        select_rows = time_call(lambda: call(query_set), repeats)
        some = query_set[:64]
        measured_values = tuple(t[:64] for t in call(query_set))
        print(f"{name:24} {select_rows:8.4f} ms  {check_result(measured_values, some, rows)}")

    tell("exact, 1", one, lambda q: search_search.search_rows(q, rows, K), 10)
    tell("exact, 16", queries[:16], lambda q: search_search.search_rows_batch(q, rows, K, longest), 4)
    tell("exact, 1024", queries, lambda q: search_search.search_rows_batch(q, rows, K, longest), 2)
    print(f"  certified at once: {measure_certificates(queries, rows, longest)} of {QUERIES}")
    for expected in (32, 64):
        more = {"grid": grid, "refine": rows, "candidates": expected}
        tell(
            f"SQ8 + refine {expected}, 1", one, lambda q, more=more: search_search.search_rows(q, codes, K, **more), 10
        )
    far = torch.full((1,), 128.0 * DEPTH**0.5, device="cuda")
    more = {"grid": grid, "refine": rows, "candidates": 32}
    tell("SQ8 + refine 32, 1024", queries, lambda q: search_search.search_rows_batch(q, codes, K, far, **more), 2)
    for probes in (1, 4, 16):

        def look(q: torch.Tensor, probes: int = probes) -> Any:
            return search_search.search_lists(q, centres, starts, widest, stored, K, probes, ids=place)

        tell(f"IVF1024,Flat {probes}, 1", one, look, 10)
        tell(f"IVF1024,Flat {probes}, 1024", queries, look, 2)
    scores, maxima = search_scan.scan_rows(one, rows)
    tiles, _ = search_top_k.select_tiles(maxima, 16)
    parts: dict[str, Callable[[], Any]] = {
        "pick 16": lambda: search_top_k.select_tiles(maxima, 16),
        "settle 16": lambda: search_rescore.rescore_candidates(
            one, rows, scores, tiles, K, tile=search_scan.SCAN_TILE, candidates=16
        ),
        "words": lambda: search_scalar_codes.pack_queries(one, *grid),
        "probe 16, 1": lambda: inverted_lists.find_nearest_lists(one, centres, 16),
        "probe 16, 1024": lambda: inverted_lists.find_nearest_lists(queries, centres, 16),
    }  # fmt: skip
    for name, call in parts.items():
        print(f"  {name:22} {time_call(call, 20):8.4f} ms")


if __name__ == "__main__":
    main()
