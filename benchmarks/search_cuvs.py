"""Search on one GPU beside cuVS (CAGRA, IVF-Flat, IVF-PQ with refining, brute force): time at equal recall, in turn.

    python benchmarks/search_cuvs.py [--rows 1000000] [--out benchmarks/records/NAME-search-cuvs.txt]

Some three minutes on one H200. Vectors of 384 dimensions, clustered (4,000 centres, noise 0.9) and not (28 latent
dimensions and noise 0.8), of unit length, in float16 for all. cuVS has one handle in torch's stream, so that a call
does not wait; queries and answers stay on the GPU. Each contender gets the least setting that reaches the recall on
other queries than those of the race, then all take turns, one call each. A contender that fails is named. cuVS does
not keep the vectors alive that it was built from: the searches here hold them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ridgeline

DIM, K, CENTRES, LATENT, MANY, ROUNDS = 384, 10, 4_000, 28, 1_024, 60
RECALLS = (0.95, 0.99)
Find = Callable[[torch.Tensor], torch.Tensor]  # queries → ids
Build = Callable[[torch.Tensor], tuple[list[Any], Callable[[Any], Find]]]  # vectors → (settings, setting → find)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--data", nargs="*", default=["unclustered", "clustered"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines: list[str] = []

    def show(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")

    show(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}: {options.rows:,} x {DIM}, float16, k = {K}")
    for data in options.data:
        random = torch.Generator("cuda").manual_seed(0)
        base = torch.randn(CENTRES if data == "clustered" else LATENT, DIM, device="cuda", generator=random)
        vectors = draw(data, options.rows, base, random)
        tuning, queries = draw(data, MANY, base, random), draw(data, 4 * MANY, base, random)
        truths = [find_truth(vectors, part) for part in (tuning, queries)]
        finds = tune_all(vectors, tuning, truths[0], data, show)
        for recall in RECALLS:
            chosen = {name: find for (name, reached), find in finds.items() if reached == recall}
            for count in (1, MANY):
                times = race(chosen, queries, count)
                for name, find in chosen.items():
                    reached_recall = compute_recall(find, queries[:MANY], truths[1][:MANY], count)
                    show(
                        f"{data}, recall >= {recall}, {count} queries: {name:40} "
                        f"{statistics.median(times[name]) * 1e3:.3f} ms, recall {reached_recall:.4f}"
                    )


def draw(data: str, count: int, base: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    noise = torch.randn(count, DIM, device="cuda", generator=random)
    if data == "clustered":
        values = base[torch.randint(0, CENTRES, (count,), device="cuda", generator=random)] + 0.9 * noise
    else:
        values = torch.randn(count, LATENT, device="cuda", generator=random) @ base + 0.8 * noise
    return torch.nn.functional.normalize(values, dim=1)


def find_truth(vectors: torch.Tensor, queries: torch.Tensor) -> np.ndarray:
    return np.concatenate([(part @ vectors.T).topk(K)[1].cpu().numpy() for part in queries.split(256)])


def tune_all(
    vectors: torch.Tensor, tuning: torch.Tensor, truth: np.ndarray, data: str, show: Callable[[str], None]
) -> dict[tuple[str, float], Find]:
    """Return (name with its setting, recall) → search, with the least setting that reaches each recall."""
    finds: dict[tuple[str, float], Find] = {}
    builders: dict[str, Build] = {
        "ridgeline IVF1024,Flat": build_ours("IVF1024,Flat"),
        "ridgeline Flat": build_ours("Flat"),
        "cuVS CAGRA": build_cagra,
        "cuVS IVF-Flat": build_lists,
        "cuVS IVF-PQ, refined": build_codes,
        "cuVS brute force": build_exact,
    }
    for name, builder in builders.items():
        start = time.perf_counter()
        try:
            settings, make = builder(vectors)
            torch.cuda.synchronize()
            show(f"{data}: {name} built in {time.perf_counter() - start:.1f} s")
            missing = list(RECALLS)
            for setting in settings:
                reached = compute_recall(make(setting), tuning, truth, MANY)
                while missing and reached >= missing[0]:
                    finds[f"{name} {setting or ''}".strip(), missing.pop(0)] = make(setting)
                if not missing:
                    break
            for recall in missing:
                show(f"{data}: {name} does not reach {recall}")
        except Exception as error:  # a peer that cannot run here is a line of the record
            show(f"{data}: {name}: {type(error).__name__}: {str(error)[:300]}")
    return finds


def build_ours(spec: str) -> Build:
    def build(vectors: torch.Tensor) -> tuple[list[Any], Callable[[Any], Find]]:
        index = ridgeline.Index(spec, metric="cosine", device="cuda", dtype="float16")
        index.train(vectors)
        index.add(vectors)
        if spec == "Flat":
            return [None], lambda _: lambda queries: index.search(queries, K)[1]
        return [
            1,
            2,
            4,
            8,
            16,
            24,
            32,
            48,
            64,
            96,
            128,
            192,
            256,
            384,
        ], lambda nprobe: lambda queries: index.search(queries, K, nprobe=nprobe)[1]

    return build


def open_cuvs() -> Any:
    from cuvs.common import Resources

    return Resources(stream=torch.cuda.current_stream().cuda_stream)


def build_cagra(vectors: torch.Tensor) -> tuple[list[Any], Callable[[Any], Find]]:
    from cuvs.neighbors import cagra

    handle, stored = open_cuvs(), vectors.half()
    parameters = cagra.IndexParams(metric="sqeuclidean", graph_degree=64, intermediate_graph_degree=128)
    index = cagra.build(parameters, stored, resources=handle)

    def make(itopk: int) -> Find:
        search = cagra.SearchParams(itopk_size=itopk)
        return lambda queries, _=stored: torch.as_tensor(
            cagra.search(search, index, queries.half(), K, resources=handle)[1], device="cuda"
        )

    return [16, 32, 48, 64, 96, 128, 192, 256, 384, 512], make


def build_lists(vectors: torch.Tensor) -> tuple[list[Any], Callable[[Any], Find]]:
    from cuvs.neighbors import ivf_flat

    handle, stored = open_cuvs(), vectors.half()
    index = ivf_flat.build(ivf_flat.IndexParams(n_lists=1024, metric="inner_product"), stored, resources=handle)

    def make(nprobe: int) -> Find:
        search = ivf_flat.SearchParams(n_probes=nprobe)
        return lambda queries, _=stored: torch.as_tensor(
            ivf_flat.search(search, index, queries.half(), K, resources=handle)[1], device="cuda"
        )

    return [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384], make


def build_codes(vectors: torch.Tensor) -> tuple[list[Any], Callable[[Any], Find]]:
    from cuvs.neighbors import ivf_pq, refine

    handle, stored = open_cuvs(), vectors.half()
    parameters = ivf_pq.IndexParams(n_lists=1024, metric="inner_product", pq_dim=96)
    index = ivf_pq.build(parameters, stored, resources=handle)

    def make(nprobe: int) -> Find:
        search = ivf_pq.SearchParams(n_probes=nprobe, lut_dtype=np.float16, internal_distance_dtype=np.float16)

        def find(queries: torch.Tensor) -> torch.Tensor:
            half = queries.half()
            candidates = ivf_pq.search(search, index, half, 4 * K, resources=handle)[1]
            best = refine(stored, half, candidates, k=K, metric="inner_product", resources=handle)[1]
            return torch.as_tensor(best, device="cuda")

        return find

    return [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384], make


def build_exact(vectors: torch.Tensor) -> tuple[list[Any], Callable[[Any], Find]]:
    from cuvs.neighbors import brute_force

    handle, stored = open_cuvs(), vectors.half()
    index = brute_force.build(stored, metric="inner_product", resources=handle)
    return (
        [None],
        lambda _: (
            lambda queries: torch.as_tensor(
                brute_force.search(index, queries.half(), K, resources=handle)[1], device="cuda"
            )
        ),
    )


def compute_recall(find: Find, queries: torch.Tensor, truth: np.ndarray, count: int) -> float:
    if count == 1:
        queries = queries[:200]
    found = np.concatenate([find(part).cpu().numpy() for part in queries.split(count)])
    return float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found.tolist(), truth.tolist(), strict=False)]))


def race(finds: dict[str, Find], queries: torch.Tensor, count: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in finds}
    order = np.random.default_rng(0)
    for number in range(ROUNDS + 10):
        for name in order.permutation(list(finds)):
            at = number * count % (len(queries) - count + 1)
            torch.cuda.synchronize()
            start = time.perf_counter()
            finds[name](queries[at : at + count])
            torch.cuda.synchronize()
            if number >= 10:
                times[name].append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    main()
