"""Embedding on this CPU against every other backend that is installed, in one interleaved run.

    python benchmarks/embed_cpu.py [--sweep | --types | --cosines FILMS] [--dtype auto] [--rounds 7] [--count 256]

Needs `make peers`; some minutes on two cores. (Not for --sweep, our budgets of tokens; --types, our type against our
float32; --cosines, how near it comes to it over MovieLens's movies.csv and hostile texts.) Texts are random words of
the vocabulary, 16, 32 and 128 tokens long, and mixtures. Backends and their settings are those of the workload
(docs/embed.md): sentence-transformers in float32 (bfloat16, too, where that is our type), transformers compiled
(texts of one length), ONNX Runtime int8, OpenVINO in our type, and our own float32. Each gets the best of its batch
sizes, found first; all take turns, in an order that rotates. Ratios are medians of their time / our time: on a shared
machine only those mean anything. With --one-core everything has one CPU and one thread, and CPU time is counted: what
others do on the machine matters little then. Cosines are with our float32. ONNX Runtime needs `onnx` to export the
model; where that is missing, --onnx takes a file from elsewhere (it lies in ~/.cache/ridgeline/peers after a race).
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ridgeline

MODEL = "all-MiniLM-L6-v2"
PAUSE_S = 0.05  # before each call of a race: threads of the one before may still spin
clock: list[Callable[[], float]] = [time.perf_counter]
BUDGETS = (256, 512, 1_024, 2_048, 4_096, 8_192, 16_384)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--sweep", action="store_true", help="try budgets of tokens instead of racing")
    what.add_argument("--types", action="store_true", help="race the type against our own float32")
    what.add_argument("--cosines", type=Path, help="how near the type comes to our own float32: a movies.csv")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=256, help="texts of a set; a quarter of it where they are long")
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of the names of sets")
    parser.add_argument("--onnx", type=Path, help="int8 model for ONNX Runtime, exported elsewhere")
    parser.add_argument(
        "--uncompiled", action="store_true", help="leave out transformers compiled: minutes for a shape"
    )
    parser.add_argument("--wait", action="store_true", help="race when Enter is pressed, everything made before")
    parser.add_argument("--one-core", action="store_true", help="one CPU, one thread, CPU time")
    options = parser.parse_args()
    if options.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        torch.set_num_threads(1)
        clock[0] = time.process_time
    ours = ridgeline.Embedder(MODEL, device="cpu", dtype=options.dtype)
    print(f"{ours} · torch {torch.__version__} · {torch.get_num_threads()} threads")
    sets = {k: v for k, v in texts_of(ours, options.count).items() if any(k.startswith(o) for o in options.only)}
    if options.sweep:
        sweep(ours, sets, options.rounds)
    elif options.types:
        types(ours, sets, options.rounds)
    elif options.cosines:
        cosines(ours, options.cosines)
    else:
        race(ours, sets, options)


def texts_of(ours: Any, count: int) -> dict[str, list[str]]:
    draw = random.Random(3)  # noqa: S311  # the same texts every time
    lines = (ours.folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    words = [w for w in lines[2_000:20_000] if w.isalpha()]

    def make(texts: int, least: int, most: int) -> list[str]:
        return [" ".join(draw.choices(words, k=draw.randint(least, most))) for _ in range(texts)]

    # a word is a token here, and two more are the beginning and the end
    return {
        f"16 tokens × {count}": make(count, 14, 14),
        f"32 tokens × {count}": make(count, 30, 30),
        f"10 to 42 tokens × {count}": make(count, 8, 40),
        f"128 tokens × {count // 4}": make(count // 4, 126, 126),
        f"8 to 256 tokens × {count // 4}": make(count // 4, 6, 254),
        "one text of 16": make(1, 14, 14),
    }


def race(ours: Any, sets: dict[str, list[str]], options: argparse.Namespace) -> None:
    from ridgeline.workloads import _embed_peers as peers
    from ridgeline.workloads._embed_texts import model_of

    model = model_of(MODEL)
    limit = model.limit(256)
    tokenizer = peers.tokenizer(model, limit)
    wide = ridgeline.Embedder(MODEL, device="cpu", dtype="float32")
    narrow = "bfloat16" if ours.dtype == "bfloat16" else "float32"  # torch by itself multiplies float16 one by one
    sentences = {
        f"{peers.SENTENCE} {dtype}": peers.sentence_transformer(model, "cpu", dtype, limit)
        for dtype in dict.fromkeys(("float32", narrow))
        if peers.there(peers.SENTENCE)
    }
    kept = {}  # an engine is made once; OpenVINO's one for few texts and one for many

    def engine(name: str, many: bool) -> Any:
        hint = "THROUGHPUT" if many else "LATENCY"
        dtype = ours.dtype if name == peers.OPENVINO else narrow
        key = name, hint if name == peers.OPENVINO else ""
        if key not in kept:
            given = name == peers.ORT and options.onnx
            made = (
                peers.ort_engine(options.onnx) if given else peers.engine.__wrapped__(name, model, "cpu", dtype, hint)
            )
            kept[key] = made[0]
        return kept[key]

    prepared = []
    for name, texts in sets.items():
        many, even = len(texts) > 1, len({len(text.split()) for text in texts}) == 1
        calls: dict[str, Callable[[], Any]] = {}
        for who, own in (("ours", ours), ("our float32", wide)):
            calls[who] = partial(own.encode, texts) if many else partial(own.encode_one, texts[0])
        for who, sentence in sentences.items():
            encode = partial(sentence.encode, normalize_embeddings=True, show_progress_bar=False)
            size = best(lambda n, s: encode(texts[:n], batch_size=s), texts)  # noqa: B023
            calls[who] = partial(encode, texts if many else texts[0], batch_size=size)
        for who in (peers.COMPILED, peers.ORT, peers.OPENVINO):
            there = peers.there(who) or (who == peers.ORT and options.onnx)
            if not there or (who == peers.COMPILED and (options.uncompiled or not even)):
                continue
            run = engine(who, many)
            through = partial(peers.texts_through, run, tokenizer)
            # a compiled graph has one shape, and another takes minutes to compile: no sizes are tried
            tokens = len(texts[0].split()) + 2
            tried = peers.COMPILED_TOKENS["cpu"] // tokens if who == peers.COMPILED else 0
            size = tried or best(lambda n, s: through(texts[:n], s), texts)  # noqa: B023
            calls[who] = partial(through, texts, min(size, len(texts)))
        prepared.append((name, len(texts), calls, options.rounds * (1 if many else 10)))
    if options.wait:
        input("ready: Enter begins the race\n")
    for words in prepared:
        one(*words)


def best(run: Callable[[int, int], Any], texts: list[str]) -> int:
    from ridgeline.workloads._embed_peers import best_size

    return best_size(run, len(texts), "cpu")


def one(name: str, texts: int, calls: dict[str, Callable[[], Any]], rounds: int) -> None:
    wanted = np.atleast_2d(calls["our float32"]())
    lowest = {who: float((wanted * unit(call())).sum(1).min()) for who, call in calls.items()}
    times: dict[str, list[float]] = {who: [] for who in calls}
    order = list(calls)
    for _ in range(rounds):
        for who in order:
            time.sleep(PAUSE_S)
            times[who].append(seconds(calls[who]))
        order = order[1:] + order[:1]
    for who, taken in times.items():
        ratio = statistics.median(t / o for t, o in zip(taken, times["ours"], strict=True))
        told = f"{texts / min(taken):7.1f} texts/s   time / ours {ratio:.2f}   lowest cosine {lowest[who]:.6f}"
        print(f"{name:24} {who:30} {told}", flush=True)


def unit(vectors: Any) -> Any:
    """OpenVINO's float16 norms are off by some 1e-4."""
    rows = np.atleast_2d(vectors).astype(float)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


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


def cosines(ours: Any, films: Path) -> None:
    with films.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    wide = ridgeline.Embedder(MODEL, device="cpu", dtype="float32")
    sets = {"films": [f"{row['title']}. Genres: {row['genres'].replace('|', ', ')}" for row in rows]}
    for name, texts in {**sets, "others": hostile(ours)}.items():
        found = (unit(ours.encode(texts)) * unit(wide.encode(texts))).sum(1)
        print(f"{name} {len(texts)} lowest cosine {found.min():.7f} mean {found.mean():.7f}", flush=True)


def hostile(ours: Any) -> list[str]:
    """Random words, random characters of all planes, and what has broken encoders: 509 texts."""
    draw = random.Random(5)  # noqa: S311  # the same texts every time
    planes = ((0x20, 0x7E), (0xA0, 0x2FFF), (0x3000, 0xD7FF), (0x10000, 0x1FFFF))
    words = [text for texts in texts_of(ours, 64).values() for text in texts]
    signs = ["".join(chr(draw.randint(*draw.choice(planes))) for _ in range(draw.randint(1, 200))) for _ in range(275)]
    known = ["", " ", "a", "a" * 300, "the " * 300, "1 " * 200, "!?" * 100, "\u200b\x00tab\tnl\n", "e\u0301 vs é"]
    few = [
        " ".join(draw.choices(words[0].split(), k=k % 3 + 1)) for k in range(509 - len(words) - len(signs) - len(known))
    ]
    return [*words, *signs, *known, *few]


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
    start = clock[0]()
    work()
    return clock[0]() - start


if __name__ == "__main__":
    main()
