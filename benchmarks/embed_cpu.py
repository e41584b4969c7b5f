"""Embedding on this CPU against sentence-transformers, in one interleaved run; with --sweep, our own budget of tokens.

    python benchmarks/embed_cpu.py [--sweep | --types] [--dtype auto] [--rounds 7]

Needs `make peers` (not for --sweep and --types: our budgets of tokens, and our type against our float32); about three
minutes on two cores. Texts are random words of the vocabulary, 16, 32 and 128 tokens
long, and a mixture. The peer gets the best of its batch sizes 16 to 128, found first, and its own sorting. Ratios are
medians of peer time / our time, order alternating: on a shared machine only those mean anything.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import ridgeline

MODEL = "all-MiniLM-L6-v2"
SIZES = (16, 32, 64, 128)
BUDGETS = (256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--sweep", action="store_true", help="try budgets of tokens instead of racing")
    what.add_argument("--types", action="store_true", help="race the type against our own float32")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    ours = ridgeline.Embedder(MODEL, device="cpu", dtype=options.dtype)
    print(f"{ours} · torch {torch.__version__} · {torch.get_num_threads()} threads")
    sets = texts_of(ours)
    if options.sweep:
        sweep(ours, sets, options.rounds)
    elif options.types:
        types(ours, sets, options.rounds)
    else:
        race(ours, sets, options.rounds)


def texts_of(ours: Any) -> dict[str, list[str]]:
    draw = random.Random(3)  # noqa: S311  # the same texts every time
    lines = (ours.folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    words = [w for w in lines[2_000:20_000] if w.isalpha()]

    def make(count: int, least: int, most: int) -> list[str]:
        return [" ".join(draw.choices(words, k=draw.randint(least, most))) for _ in range(count)]

    # a word is a token here, and two more are the beginning and the end
    return {
        "16 tokens × 256": make(256, 14, 14),
        "32 tokens × 256": make(256, 30, 30),
        "10 to 42 tokens × 256": make(256, 8, 40),
        "128 tokens × 64": make(64, 126, 126),
        "8 to 256 tokens × 64": make(64, 6, 254),
        "one text of 16": make(1, 14, 14),
    }


def race(ours: Any, sets: dict[str, list[str]], rounds: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers import SentenceTransformer

        peer = SentenceTransformer(str(ours.folder), device="cpu")
    peer.encode(["warm"])
    for name, texts in sets.items():
        one(ours, peer, name, texts, rounds)


def one(ours: Any, peer: Any, name: str, texts: list[str], rounds: int) -> None:
    many = len(texts) > 1
    size = min(SIZES, key=lambda n: seconds(partial(peer.encode, texts, batch_size=n)))
    given = texts if many else texts[0]
    mine = partial(ours.encode if many else ours.encode_one, given)
    wanted = np.atleast_2d(peer.encode(given, batch_size=size, normalize_embeddings=True))
    cosine = float((wanted * np.atleast_2d(mine())).sum(1).min())
    turns = rounds if many else 15 * rounds
    theirs, own = alternate(partial(peer.encode, given, batch_size=size), mine, turns)
    ratio = statistics.median(t / o for t, o in zip(theirs, own, strict=True))
    print(
        f"{name:24} ours {len(texts) / min(own):7.1f} texts/s   "
        f"sentence-transformers {len(texts) / min(theirs):7.1f} (batch {size:3})   "
        f"ratio {ratio:.2f}   lowest cosine {cosine:.7f}",
        flush=True,
    )


def sweep(ours: Any, sets: dict[str, list[str]], rounds: int) -> None:
    for name, texts in sets.items():
        if len(texts) == 1:
            continue
        times: dict[int, list[float]] = {budget: [] for budget in BUDGETS}
        for _ in range(rounds):
            for budget in BUDGETS:
                times[budget].append(seconds(partial(ours.encode, texts, batch_tokens=budget)))
        shown = "  ".join(f"{b}: {len(texts) / min(t):.1f}" for b, t in times.items())
        print(f"{name:24} texts/s by budget  {shown}", flush=True)


def types(ours: Any, sets: dict[str, list[str]], rounds: int) -> None:
    wide = ridgeline.Embedder(MODEL, device="cpu", dtype="float32")
    for name, texts in sets.items():
        given, many = (texts, True) if len(texts) > 1 else (texts[0], False)
        mine, theirs = (partial(e.encode if many else e.encode_one, given) for e in (ours, wide))
        cosine = float((np.atleast_2d(mine()) * np.atleast_2d(theirs())).sum(1).min())
        first, second = alternate(theirs, mine, rounds if many else 15 * rounds)
        ratio = statistics.median(t / o for t, o in zip(first, second, strict=True))
        told = f"float32 / {ours.dtype}: ratio {ratio:.2f}   lowest cosine {cosine:.6f}"
        print(f"{name:24} {told}   best {len(texts) / min(second):.1f} texts/s", flush=True)


def alternate(this: Callable[[], Any], other: Callable[[], Any], rounds: int) -> tuple[list[float], list[float]]:
    this()
    other()
    first: list[float] = []
    second: list[float] = []
    for turn in range(rounds):
        if turn % 2:
            second.append(seconds(other))
            first.append(seconds(this))
        else:
            first.append(seconds(this))
            second.append(seconds(other))
    return first, second


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
