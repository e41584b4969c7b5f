"""Embedding on this CPU against every other backend that is installed, in one interleaved run.

    python benchmarks/embed_cpu.py [--sweep | --types | --cosines FILMS] [--dtype auto] [--rounds 7] [--count 256]

Needs `make peers`; some minutes on two cores. (Not for --sweep, our budgets of tokens; --types, our type against our
float32; --cosines, how near it comes to it over MovieLens's movies.csv and hostile texts.) Texts are random words of
the vocabulary, 16, 32 and 128 tokens long, and mixtures. Backends and their settings are those of the workload
(docs/embed.md): sentence-transformers in float32 (bfloat16, too, where that is our type), transformers compiled (texts
of one length), ONNX Runtime int8 and float32, OpenVINO in our type, and our own float32. With --dtype int8 also our
other kinds of instructions for bytes, and our bfloat16 where the CPU has it. Each gets the best of its batch sizes,
found first; all take turns, in an order that rotates. Ratios are medians of their time / our time: on a shared machine
only those mean anything. With --one-core everything has one CPU and one thread, and CPU time is counted: what others
do on the machine matters little then. Cosines are with our float32. ONNX Runtime needs `onnx` to export the model;
where that is missing, --onnx takes a file from elsewhere (it lies in ~/.cache/ridgeline/peers after a race).
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
ORT_FLOAT = "ONNX Runtime float32"
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
    embedder_ours = ridgeline.Embedder(MODEL, device="cpu", dtype=options.dtype)
    print(f"{embedder_ours} · torch {torch.__version__} · {torch.get_num_threads()} threads")
    if options.dtype == "int8":
        from ridgeline.native import chosen_int8

        print(f"products of bytes by {chosen_int8()}")
    sets = {
        k: v for k, v in make_texts(embedder_ours, options.count).items() if any(k.startswith(o) for o in options.only)
    }
    if options.sweep:
        sweep(embedder_ours, sets, options.rounds)
    elif options.types:
        types(embedder_ours, sets, options.rounds)
    elif options.cosines:
        cosines(embedder_ours, options.cosines)
    else:
        race(embedder_ours, sets, options)


def make_texts(embedder_ours: Any, count: int) -> dict[str, list[str]]:
    draw = random.Random(3)  # noqa: S311  # the same texts every time
    lines = (embedder_ours.folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
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


def race(embedder_ours: Any, sets: dict[str, list[str]], options: argparse.Namespace) -> None:
    from ridgeline.workloads import _embed_peers as peers
    from ridgeline.workloads._embed_texts import load_model

    model = load_model(MODEL)
    limit = model.limit(256)
    tokenizer = peers.load_tokenizers(model, limit)
    wide = ridgeline.Embedder(MODEL, device="cpu", dtype="float32")
    others = load_others() if embedder_ours.dtype == "int8" else []
    narrow = (
        "bfloat16" if embedder_ours.dtype == "bfloat16" else "float32"
    )  # torch by itself multiplies float16 one by one
    sentences = {
        f"{peers.SENTENCE} {dtype}": peers.load_sentence_transformer(model, "cpu", dtype, limit)
        for dtype in dict.fromkeys(("float32", narrow))
        if peers.is_available(peers.SENTENCE)
    }
    saved = {}  # an engine is made once; OpenVINO's one for few texts and one for many

    def engine(name: str, many: bool) -> Any:
        hint = "THROUGHPUT" if many else "LATENCY"
        dtype = embedder_ours.dtype if name == peers.OPENVINO and embedder_ours.dtype != "int8" else narrow
        key = name, hint if name == peers.OPENVINO else ""
        if key not in saved:
            file = options.onnx if name == peers.ORT else None
            file = peers.export_onnx_float32(model) if name == ORT_FLOAT else file
            built = (
                peers.load_onnx_runtime(file)
                if file
                else peers.load_engine.__wrapped__(name, model, "cpu", dtype, hint)
            )
            saved[key] = built[0]
        return saved[key]

    prepared = []
    for name, texts in sets.items():
        many, even = len(texts) > 1, len({len(text.split()) for text in texts}) == 1
        calls: dict[str, Callable[[], Any]] = {}
        for contender, local in (("ours", embedder_ours), ("our float32", wide), *others):
            calls[contender] = partial(local.encode, texts) if many else partial(local.encode_one, texts[0])
        for contender, sentence in sentences.items():
            encode = partial(sentence.encode, normalize_embeddings=True, show_progress_bar=False)
            size = best(lambda n, s: encode(texts[:n], batch_size=s), texts)  # noqa: B023
            calls[contender] = partial(encode, texts if many else texts[0], batch_size=size)
        for contender in (peers.COMPILED, peers.ORT, ORT_FLOAT, peers.OPENVINO):
            known = peers.ORT if contender == ORT_FLOAT else contender
            present = peers.is_available(known) or (contender == peers.ORT and options.onnx)
            if not present or (contender == peers.COMPILED and (options.uncompiled or not even)):
                continue
            run = engine(contender, many)
            through = partial(peers.encode_texts, run, tokenizer)
            # a compiled graph has one shape, and another takes minutes to compile: no sizes are tried
            tokens = len(texts[0].split()) + 2
            tried = peers.COMPILED_TOKENS["cpu"] // tokens if contender == peers.COMPILED else 0
            size = tried or best(lambda n, s: through(texts[:n], s), texts)  # noqa: B023
            calls[contender] = partial(through, texts, min(size, len(texts)))
        prepared.append((name, len(texts), calls, options.rounds * (1 if many else 10)))
    if options.wait:
        input("ready: Enter begins the race\n")
    for words in prepared:
        one(*words)


def load_others() -> list[tuple[str, Any]]:
    """Embedders in int8 by the slower instructions of this CPU, and in bfloat16 if it multiplies that."""
    from ridgeline.embed.devices import multiplies_bfloat16
    from ridgeline.native import int8_instructions

    others = []
    for name in int8_instructions()[1:-1]:
        os.environ["RIDGELINE_INT8"] = name
        others.append((f"ours by {name}", ridgeline.Embedder(MODEL, device="cpu", dtype="int8")))
        others[-1][1].encode("now, while the name is set")
        del os.environ["RIDGELINE_INT8"]
    if multiplies_bfloat16():
        others.append(("our bfloat16", ridgeline.Embedder(MODEL, device="cpu", dtype="bfloat16")))
    return others


def best(run: Callable[[int, int], Any], texts: list[str]) -> int:
    from ridgeline.workloads._embed_peers import find_best_size

    return find_best_size(run, len(texts), "cpu")


def one(name: str, texts: int, calls: dict[str, Callable[[], Any]], rounds: int) -> None:
    expected = np.atleast_2d(calls["our float32"]())
    lowest = {contender: float((expected * unit(call())).sum(1).min()) for contender, call in calls.items()}
    times: dict[str, list[float]] = {contender: [] for contender in calls}
    order = list(calls)
    for _ in range(rounds):
        for contender in order:
            time.sleep(PAUSE_S)
            times[contender].append(seconds(calls[contender]))
        order = order[1:] + order[:1]
    for contender, taken in times.items():
        ratio = statistics.median(t / o for t, o in zip(taken, times["ours"], strict=True))
        reported = (
            f"{texts / min(taken):7.1f} texts/s   time / ours {ratio:.2f}   lowest cosine {lowest[contender]:.6f}"
        )
        print(f"{name:24} {contender:30} {reported}", flush=True)


def unit(vectors: Any) -> Any:
    """OpenVINO's float16 norms are off by some 1e-4."""
    rows = np.atleast_2d(vectors).astype(float)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def sweep(embedder_ours: Any, sets: dict[str, list[str]], rounds: int) -> None:
    for name, texts in sets.items():
        if len(texts) == 1:
            continue
        times: dict[int, list[float]] = {budget: [] for budget in BUDGETS}
        for _ in range(rounds):
            for budget in BUDGETS:
                times[budget].append(seconds(partial(embedder_ours.encode, texts, batch_tokens=budget)))
        formatted = "  ".join(f"{b}: {len(texts) / min(t):.1f}" for b, t in times.items())
        print(f"{name:24} texts/s by budget  {formatted}", flush=True)


def types(embedder_ours: Any, sets: dict[str, list[str]], rounds: int) -> None:
    wide = ridgeline.Embedder(MODEL, device="cpu", dtype="float32")
    for name, texts in sets.items():
        given, many = (texts, True) if len(texts) > 1 else (texts[0], False)
        mine, peer_s = (partial(e.encode if many else e.encode_one, given) for e in (embedder_ours, wide))
        cosine = float((np.atleast_2d(mine()) * np.atleast_2d(peer_s())).sum(1).min())
        first, second = alternate(peer_s, mine, rounds if many else 15 * rounds)
        ratio = statistics.median(t / o for t, o in zip(first, second, strict=True))
        reported = f"float32 / {embedder_ours.dtype}: ratio {ratio:.2f}   lowest cosine {cosine:.6f}"
        print(f"{name:24} {reported}   best {len(texts) / min(second):.1f} texts/s", flush=True)


def cosines(embedder_ours: Any, films: Path) -> None:
    with films.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    wide = ridgeline.Embedder(MODEL, device="cpu", dtype="float32")
    sets = {"films": [f"{row['title']}. Genres: {row['genres'].replace('|', ', ')}" for row in rows]}
    for name, texts in {**sets, "others": hostile(embedder_ours)}.items():
        measured_values = (unit(embedder_ours.encode(texts)) * unit(wide.encode(texts))).sum(1)
        print(
            f"{name} {len(texts)} lowest cosine {measured_values.min():.7f} mean {measured_values.mean():.7f}",
            flush=True,
        )


def hostile(embedder_ours: Any) -> list[str]:
    """Random words, random characters of all planes, and what has broken encoders: 509 texts."""
    draw = random.Random(5)  # noqa: S311  # the same texts every time
    planes = ((0x20, 0x7E), (0xA0, 0x2FFF), (0x3000, 0xD7FF), (0x10000, 0x1FFFF))
    words = [text for texts in make_texts(embedder_ours, 64).values() for text in texts]
    signs = ["".join(chr(draw.randint(*draw.choice(planes))) for _ in range(draw.randint(1, 200))) for _ in range(275)]
    known = ["", " ", "a", "a" * 300, "the " * 300, "1 " * 200, "!?" * 100, "\u200b\x00tab\tnl\n", "e\u0301 vs é"]
    small_batch = [
        " ".join(draw.choices(words[0].split(), k=k % 3 + 1)) for k in range(509 - len(words) - len(signs) - len(known))
    ]
    return [*words, *signs, *known, *small_batch]


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
