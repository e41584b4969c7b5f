"""Exact MaxSim on one GPU beside torch and fast-plaid: time of a query, recall against exact scores of the originals.

    python benchmarks/search_maxsim_gpu.py [--documents 57000] [--out benchmarks/records/NAME-search-maxsim.txt]

Two minutes on one H200. Documents of 130 unit vectors of 128 dimensions in float16, drawn around 8,192 centres and a
topic of their own; a query is 32 vectors of one document with noise. Documents have equal lengths, so that torch needs
no padding. fast-plaid (PyPI) is an approximate index of 4-bit codes: several settings, the first are its defaults. Each
answer is on the host. Contenders take turns, medians count; fast-plaid is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ridgeline
from ridgeline.search import MultiIndex

DIM, LENGTH, QUERY, CENTRES, K, ROUNDS = 128, 130, 32, 8_192, 10, 60
PLAID_SETTINGS = ((8, 4096), (16, 8192), (32, 8192))  # lists per query vector, documents scored in full
Search = Callable[[torch.Tensor], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=57_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines: list[str] = []

    def show(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")

    vectors, queries = draw(options.documents)
    show(
        f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, ridgeline {ridgeline.__version__}: "
        f"{options.documents:,} documents of {LENGTH} vectors of {DIM} in float16, queries of {QUERY}, k = {K}"
    )
    truth = [rank_by_torch(vectors.float(), query.float())[1] for query in queries]
    contenders = build(vectors, show)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    recalls: dict[str, list[float]] = {name: [] for name in contenders}
    order = np.random.default_rng(0)
    for number in range(ROUNDS + 5):
        query = queries[number % len(queries)]
        for name in order.permutation(list(contenders)):
            torch.cuda.synchronize()
            start = time.perf_counter()
            ids = contenders[name](query)
            elapsed_s = time.perf_counter() - start
            if number >= 5:
                times[name].append(elapsed_s)
                recalls[name].append(len(set(np.asarray(ids).tolist()) & set(truth[number % len(queries)])) / K)
    for name in contenders:
        spread = np.quantile(times[name], [0.1, 0.9]) * 1e3
        show(
            f"{name:44} {statistics.median(times[name]) * 1e3:.3f} ms a query ({spread[0]:.3f} to {spread[1]:.3f}), "
            f"recall {np.mean(recalls[name]):.4f}"
        )
    ours = statistics.median(times["ridgeline Flat"])
    for name in contenders:
        show(f"{name} / ridgeline Flat: {statistics.median(times[name]) / ours:.2f}")


def draw(documents: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """([N, 130, 128] float16 on the GPU, 40 queries [32, 128])."""
    random = torch.Generator("cuda").manual_seed(0)
    centres = torch.randn(CENTRES, DIM, device="cuda", generator=random)
    vectors = torch.empty(documents, LENGTH, DIM, dtype=torch.float16, device="cuda")
    for at in range(0, documents, 5_000):
        part = vectors[at : at + 5_000]
        chosen = torch.randint(0, CENTRES, part.shape[:2], device="cuda", generator=random)
        topic = torch.randn(len(part), 1, DIM, device="cuda", generator=random)
        noise = torch.randn(part.shape, device="cuda", generator=random)
        part.copy_(torch.nn.functional.normalize(centres[chosen] + 0.5 * topic + 0.5 * noise, dim=2))
    queries = []
    for document in torch.randint(0, documents, (40,), device="cuda", generator=random).tolist():
        chosen = torch.randperm(LENGTH, device="cuda", generator=random)[:QUERY]
        noise = torch.randn(QUERY, DIM, device="cuda", generator=random) / DIM**0.5
        queries.append(torch.nn.functional.normalize(vectors[document, chosen].float() + 0.9 * noise, dim=1).half())
    return vectors, queries


def rank_by_torch(vectors: torch.Tensor, query: torch.Tensor) -> tuple[list[float], list[int]]:
    """Score all documents by one matrix product in parts that fit the memory, as an expert writes it."""
    flat, scores = vectors.view(-1, DIM), []
    for at in range(0, len(vectors), 8_192):
        products = flat[at * LENGTH : (at + 8_192) * LENGTH] @ query.T  # [documents · 130, 32]
        scores.append(products.view(-1, LENGTH, len(query)).amax(1).float().sum(1))
    best, ids = torch.cat(scores).topk(K)
    return best.tolist(), ids.tolist()


def build(vectors: torch.Tensor, show: Callable[[str], None]) -> dict[str, Search]:
    documents = len(vectors)
    flat = vectors.view(-1, DIM).float().cpu().numpy()
    offsets = np.arange(documents + 1) * LENGTH
    contenders: dict[str, Search] = {}
    for codes in ("Flat", "SQ8"):
        index = MultiIndex(codes, device="cuda")
        index.add(flat, offsets)
        contenders[f"ridgeline {codes}"] = lambda query, index=index: index.search(query.cpu().numpy(), K)[1]
    compiled = torch.compile(rank_by_torch)
    contenders["torch, products in parts, float16"] = lambda query: rank_by_torch(vectors, query)[1]
    try:
        compiled(vectors, torch.zeros(QUERY, DIM, dtype=torch.float16, device="cuda"))
        contenders["torch.compile of it"] = lambda query: compiled(vectors, query)[1]
    except Exception as error:
        show(f"torch.compile: {type(error).__name__}")
    if find_spec("fast_plaid") is not None:
        from fast_plaid.search import FastPlaid

        folder = tempfile.mkdtemp(prefix="plaid-")
        start = time.perf_counter()
        plaid = FastPlaid(index=folder, device="cuda")
        plaid.create(documents_embeddings=list(vectors.cpu().unbind()))
        show(f"fast-plaid built in {time.perf_counter() - start:.0f} s")
        for probes, scored in PLAID_SETTINGS:
            contenders[f"fast-plaid, {probes} lists, {scored} in full"] = lambda query, probes=probes, scored=scored: [
                row[0]
                for row in plaid.search(
                    query[None], top_k=K, n_ivf_probe=probes, n_full_scores=scored, show_progress=False
                )[0]
            ]
    return contenders


if __name__ == "__main__":
    main()
