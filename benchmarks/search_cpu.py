"""Race approximate search on one core by CPU time, at equal recall: our graph and lists, FAISS, hnswlib, SVS.

    python benchmarks/search_cpu.py [--vectors real.npy] [--rows 24000] [--recall .95 .99] [--out record.txt]

One process on one CPU. The contenders take turns in a shuffled order; a turn searches fresh queries for about 5 ms.
Each contender uses the cheapest setting that reaches the recall on 500 queries, which are not those that are timed.
Without --vectors: unit vectors of 28 latent dimensions and noise, without clusters, so that lists must be paid for.
--vectors: .npy [n, dim] of unit vectors; the last 1,000 are the queries. FAISS, hnswlib and SVS
(`scalable-vs`) are left out if missing.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")

import numpy as np  # noqa: E402

import ridgeline as rl  # noqa: E402

QUERIES, TUNED = 1000, 500
EFFORTS = (10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512)
PROBES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128)

Search = Callable[[np.ndarray], np.ndarray]
Contender = tuple[str, tuple[int, ...], Callable[[int], Search]]  # name, settings, search with a setting


def draw_vectors(rows: int, dim: int = 384, latent: int = 28) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    axes = random.standard_normal((latent, dim)).astype(np.float32)
    values = random.standard_normal((rows + QUERIES, latent)).astype(np.float32) @ axes
    values += 0.8 * random.standard_normal(values.shape).astype(np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    return values[:rows], values[rows:]


def build_ours(vectors: np.ndarray, lists: int) -> Iterator[Contender]:
    graph = rl.Index("HNSW32", metric="cosine", device="cpu")
    graph.add(vectors)
    yield "ridgeline HNSW32", EFFORTS, lambda effort: lambda q: graph.search(q, 10, ef=effort)[1]
    flat = rl.Index(f"IVF{lists},Flat", metric="cosine", device="cpu")
    flat.train(vectors)
    flat.add(vectors)
    yield f"ridgeline IVF{lists},Flat", PROBES, lambda probes: lambda q: flat.search(q, 10, nprobe=probes)[1]


def build_faiss(vectors: np.ndarray, lists: int) -> Iterator[Contender]:
    try:
        import faiss
    except ImportError:
        return
    faiss.omp_set_num_threads(1)
    faiss.cvar.distance_compute_blas_threshold = 20
    dim = vectors.shape[1]
    for build in (40, 200):
        graph = faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = build
        graph.add(vectors)

        def search_graph(effort: int, graph: Any = graph) -> Search:
            parameters = faiss.SearchParametersHNSW(efSearch=effort)
            return lambda q: graph.search(q, 10, params=parameters)[1]

        yield f"FAISS HNSW32 efConstruction {build}", EFFORTS, search_graph

    for spec, factors in (
        (f"IVF{lists},PQ{dim // 4}x4fs,RFlat", (4, 10, 20)),
        (f"IVF{lists},RaBitQ,RFlat", (10, 30)),
        (f"IVF{lists},RaBitQ4,RFlat", (2, 4)),
        (f"IVF{lists},SQ8,RFlat", (2,)),
        (f"IVF{lists},Flat", (0,)),
    ):
        index = faiss.index_factory(dim, spec, faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.add(vectors)
        for factor in factors:

            def search_lists(probes: int, index: Any = index, factor: int = factor) -> Search:
                parameters = faiss.SearchParametersIVF(nprobe=probes)
                if factor:
                    parameters = faiss.IndexRefineSearchParameters(k_factor=factor, base_index_params=parameters)
                return lambda q: index.search(q, 10, params=parameters)[1]

            yield f"FAISS {spec}" + (f" k_factor {factor}" if factor else ""), PROBES, search_lists


def build_hnswlib(vectors: np.ndarray) -> Iterator[Contender]:
    try:
        import hnswlib
    except ImportError:
        return
    graph = hnswlib.Index("ip", vectors.shape[1])
    graph.init_index(len(vectors), M=32, ef_construction=200)
    graph.add_items(vectors, num_threads=1)

    def search(effort: int) -> Search:
        def run(q: np.ndarray) -> np.ndarray:
            return graph.knn_query(q, 10, num_threads=1)[0]

        run.prepare = lambda: graph.set_ef(effort)  # type: ignore[attr-defined]
        return run

    yield "hnswlib M32 efConstruction 200", EFFORTS, search


def build_svs(vectors: np.ndarray, queries: np.ndarray, truth: np.ndarray) -> Iterator[Contender]:
    """One Vamana graph, built over LVQ8, walked over the codes that its guide names for many dimensions.

    SVS calibrates how far ahead it fetches and whether it remembers the rows that it has seen.
    """
    try:
        import svs
    except ImportError:
        return
    dim = vectors.shape[1]
    with tempfile.TemporaryDirectory() as folder:
        svs.write_vecs(vectors, f"{folder}/vectors.fvecs")
        source = svs.VectorDataLoader(f"{folder}/vectors.fvecs", svs.DataType.float32, dims=dim)
        parameters = svs.VamanaBuildParameters(alpha=0.95, graph_max_degree=64, window_size=200)
        built = svs.Vamana.build(parameters, svs.LVQLoader(source, primary=8), svs.DistanceType.MIP, 1)
        built.save(f"{folder}/config", f"{folder}/graph", f"{folder}/codes")
        for name, codes in (
            ("LVQ8", svs.LVQLoader(source, primary=8)),
            ("LVQ4x8", svs.LVQLoader(source, primary=4, residual=8)),
            (f"LeanVec{dim // 2} 4x8", svs.LeanVecLoader(source, dim // 2, svs.LeanVecKind.lvq4, svs.LeanVecKind.lvq8)),
        ):
            graph = svs.GraphLoader(f"{folder}/graph")
            index = svs.Vamana(f"{folder}/config", graph, codes, svs.DistanceType.MIP, num_threads=1)
            tuned = index.experimental_calibrate(queries, truth.astype(np.uint32), 10, 0.95)

            def search(window: int, index: Any = index, tuned: Any = tuned) -> Search:
                parameters = svs.VamanaSearchParameters(
                    svs.SearchBufferConfig(window),
                    tuned.search_buffer_visited_set,
                    tuned.prefetch_lookahead,
                    tuned.prefetch_step,
                )

                def run(q: np.ndarray) -> np.ndarray:
                    return index.search(q, 10)[0]

                run.prepare = lambda: setattr(index, "search_parameters", parameters)  # type: ignore[attr-defined]
                return run

            yield f"SVS Vamana 64, {name}", EFFORTS, search


def compute_recall(found: np.ndarray, truth: np.ndarray) -> float:
    return float((found[:, :, None].astype(np.int64) == truth[:, None, :]).any(1).mean())


def race(
    contenders: list, queries: np.ndarray, truth: np.ndarray, wanted: float, rounds: int, say: Callable[[str], None]
) -> None:
    tuned = []
    for label, settings, make in contenders:
        for setting in settings:
            search = make(setting)
            getattr(search, "prepare", lambda: None)()
            recall = compute_recall(search(queries[:TUNED]), truth[:TUNED])
            if recall >= wanted:
                tuned.append((label, setting, recall, search))
                break
        else:
            say(f"  {label}: never reaches {wanted}")
    random = np.random.default_rng(1)
    for count in (1, 3, 100):
        repeats = max(1, 60 // count)
        times: dict[str, list[float]] = {label: [] for label, *_ in tuned}
        for turn in range(rounds):
            for at in random.permutation(len(tuned)):
                label, _, _, search = tuned[at]
                getattr(search, "prepare", lambda: None)()
                low = TUNED + (turn * 37) % (QUERIES - TUNED - count * min(repeats, (QUERIES - TUNED) // count) + 1)
                parts = [queries[low + n * count : low + (n + 1) * count] for n in range(repeats)]
                search(queries[:count])  # the caches and branches of the contender before are not ours
                start = time.process_time()
                for part in parts:
                    search(part)
                times[label].append((time.process_time() - start) / (repeats * count))
        base = np.array(times[tuned[0][0]])
        say(f"  batches of {count}: µs per query, median; that ÷ {tuned[0][0]}, median [95 % interval]")
        for label, setting, recall, _ in tuned:
            ratio = np.array(times[label]) / base
            draws = np.median(random.choice(ratio, (1000, len(ratio))), axis=1)
            low, high = np.quantile(draws, (0.025, 0.975))
            say(
                f"    {label:44} at {setting:3}, recall {recall:.4f}: {np.median(times[label]) * 1e6:8.1f}"
                f"   {np.median(ratio):5.2f} [{low:.2f}, {high:.2f}]"
            )


def main() -> None:
    if hasattr(os, "sched_setaffinity"):  # or ours would use a thread per CPU
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vectors", help="unit vectors [n, dim] as .npy; the last 1,000 are the queries")
    parser.add_argument("--rows", type=int, default=24_000, help="rows to draw without --vectors (default: 24000)")
    parser.add_argument("--lists", type=int, default=256, help="lists of the IVF indexes (default: 256)")
    parser.add_argument("--recall", type=float, nargs="+", default=[0.95, 0.99], help="recalls (default: .95 .99)")
    parser.add_argument("--rounds", type=int, default=25, help="turns of each contender (default: 25)")
    parser.add_argument(
        "--leave-out", nargs="+", default=[], choices=["FAISS", "hnswlib", "SVS"], help="libraries that do not race"
    )
    parser.add_argument("--out", help="append the lines to this file, too")
    options = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)
        if options.out:
            with open(options.out, "a") as file:
                file.write(line + "\n")

    if options.vectors:
        values = np.ascontiguousarray(np.load(options.vectors), np.float32)
        vectors, queries = values[:-QUERIES], values[-QUERIES:]
    else:
        vectors, queries = draw_vectors(options.rows)
    truth = np.argsort(-(queries @ vectors.T), axis=1, kind="stable")[:, :10]
    source = "real vectors" if options.vectors else "drawn vectors without clusters"
    say(f"{source}: {len(vectors)} × {vectors.shape[1]}, k 10, one thread, {platform.machine()}")
    contenders = []
    builders = {
        "ridgeline": build_ours(vectors, options.lists),
        "FAISS": build_faiss(vectors, options.lists),
        "hnswlib": build_hnswlib(vectors),
        "SVS": build_svs(vectors, queries[:TUNED], truth[:TUNED]),
    }
    for library, builder in builders.items():
        if library in options.leave_out:
            continue
        start = time.process_time()
        for label, settings, make in builder:
            say(f"  build {label}: {time.process_time() - start:.2f} s")
            contenders.append((label, settings, make))
            start = time.process_time()
    for wanted in options.recall:
        say(f" recall@10 >= {wanted}")
        race(contenders, queries, truth, wanted, options.rounds, say)


if __name__ == "__main__":
    main()
