"""Exact MaxSim beside torch, as sentence-transformers computes it, on one CPU core: CPU time per query.

    python benchmarks/search_maxsim.py [--documents 4000]

Half a minute. Documents of 20 to 240 vectors of 128 dimensions, queries of 32; float32. torch pads the documents, as
sentence_transformers.util.maxsim does, in blocks that fit the caches; torch by document multiplies them one by one. All
return the top 10, with the same documents (checked). Medians, contenders in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from itertools import pairwise
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import numpy as np
import torch

from ridgeline.search import MultiIndex

DIM, K, ROUNDS, BLOCK = 128, 10, 9, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=4_000)
    args = parser.parse_args()
    random = np.random.default_rng(0)
    lengths = random.integers(20, 241, args.documents)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    vectors = random.standard_normal((offsets[-1], DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    contenders: dict[str, Any] = {}
    for codes in ("Flat", "SQ8", "RaBitQ"):
        index = MultiIndex(codes, device="cpu")
        index.add(vectors, offsets)
        contenders[f"ridgeline {codes}"] = lambda query, index=index: index.search(query, K)[1]
    parts = [torch.from_numpy(vectors[a:b]) for a, b in pairwise(offsets)]
    padded = [
        (torch.nn.utils.rnn.pad_sequence(parts[at : at + BLOCK], batch_first=True), make_mask(parts[at : at + BLOCK]))
        for at in range(0, len(parts), BLOCK)
    ]
    contenders["torch, padded"] = lambda query: search_padded(padded, torch.from_numpy(query))
    contenders["torch, by document"] = lambda query: (
        torch.stack([(torch.from_numpy(query) @ part.T).amax(1).sum() for part in parts]).topk(K).indices.numpy()
    )
    times: dict[str, list[float]] = {name: [] for name in contenders}
    same: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        query = random.standard_normal((32, DIM)).astype(np.float32)
        query[:8] += 4 * vectors[random.integers(offsets[-1]) :][:1]
        query /= np.linalg.norm(query, axis=1, keepdims=True)
        scores = np.maximum.reduceat(query.astype(np.float64) @ vectors.T.astype(np.float64), offsets[:-1], axis=1).sum(
            0
        )
        best = set(np.argsort(-scores)[:K].tolist())
        names = list(contenders)
        random.shuffle(names)
        for name in names:
            start = time.process_time()
            found = contenders[name](query)
            times[name].append(time.process_time() - start)
            same[name].append(len(best & set(np.asarray(found).tolist())) / K)
    print(f"{args.documents} documents, {offsets[-1]} vectors of {DIM}, one query of 32 vectors, one thread")
    print("contender | ms of CPU time per query | recall@10 against float64")
    for name in contenders:
        print(f"{name} | {statistics.median(times[name]) * 1e3:.1f} | {np.mean(same[name]):.3f}")


def make_mask(parts: list[Any]) -> Any:
    lengths = torch.tensor([len(part) for part in parts])
    return torch.arange(int(lengths.max()))[None] < lengths[:, None]


def search_padded(padded: list[Any], query: Any) -> Any:
    scores = []
    for block, mask in padded:
        products = torch.einsum("td,nsd->nts", query, block).masked_fill(~mask[:, None], float("-inf"))
        scores.append(products.amax(2).sum(1))
    return torch.cat(scores).topk(K).indices.numpy()


if __name__ == "__main__":
    main()
