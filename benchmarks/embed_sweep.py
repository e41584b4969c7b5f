"""The whole sweep of embedding on one device: batches, lengths, types, one text, tokenizing, loading, peak memory.

    python benchmarks/embed_sweep.py [--device cuda] [--rounds 7] [--peer] [--batches 1 16 …] [--lengths 8 16 …]

About a minute and a half on one H200 with --peer, which races sentence-transformers (float16 and float32, in turn with
ours, batches of at most 512 texts) at every batch size. The workload's own full profile (`ridgeline bench embed
--profile full`) races every peer at every point and takes far longer. Texts are random words of the vocabulary, one
token each; another set in each round. Times are medians of the wall clock, results in host memory; peak memory is
torch's on a GPU, with the model, and not asked for on a CPU. Cosines are with float32 on the CPU.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import ridgeline
from ridgeline.workloads import _embed_peers as peers
from ridgeline.workloads._embed_texts import Ring, count_flops, draw_lengths, find_words, load_model

MODEL = "all-MiniLM-L6-v2"
BATCHES = (1, 16, 32, 128, 256, 512, 1024, 2048, 4096)
LENGTHS = (8, 16, 32, 64, 128, 256, 512)
BATCH, TOKENS = 1024, 32
DTYPES = ("float16", "bfloat16", "float32")
CALLS = 400  # of one text
CHECKED = 64  # texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peer", action="store_true", help="race sentence-transformers at every batch size")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*the limit of .* tokens")
    gpu = options.device != "cpu"
    name = torch.cuda.get_device_name() if gpu else f"{torch.get_num_threads()} threads"
    print(f"{name} · torch {torch.__version__} · {len(os.sched_getaffinity(0))} CPUs · {MODEL}")
    dtypes = DTYPES if gpu else tuple(dict.fromkeys((ridgeline.Embedder(MODEL, device="cpu").dtype, "float32")))
    loading(options.device, dtypes)
    batch = min(BATCH, max(options.batches))
    for dtype in dtypes:
        with embedder(options.device, dtype) as embedder_ours:
            peer_s = sentence(options, embedder_ours, dtype)
            sweep(
                f"batch, {TOKENS} tokens", embedder_ours, [(n, TOKENS) for n in options.batches], peer_s, options.rounds
            )
            sweep(f"tokens, {batch} texts", embedder_ours, [(batch, n) for n in options.lengths], {}, options.rounds)
            one(embedder_ours, options.lengths)
            nearness(embedder_ours)
    tokenizing(options.batches, options.rounds)


def embedder(device: str, dtype: str) -> Any:
    return ridgeline.Embedder(MODEL, device=device, dtype=dtype, max_tokens=max(LENGTHS), prompt="")


def sentence(options: argparse.Namespace, embedder_ours: Any, dtype: str) -> dict[str, Any]:
    """The peer in float32, and in our type."""
    if not options.peer or not peers.is_available(peers.SENTENCE):
        return {}
    kinds = ("float32",) if options.device == "cpu" else dict.fromkeys((dtype, "float32"))
    return {k: peers.load_sentence_transformer(load_model(MODEL), options.device, k, max(LENGTHS)) for k in kinds}


def loading(device: str, dtypes: tuple[str, ...]) -> None:
    print("\n## a model's folder → ready (weights verified), then its first text; the files are in the page cache")
    for dtype in dtypes:
        taken, first = [], []
        for _ in range(3):
            start_s = time.perf_counter()
            with embedder(device, dtype) as embedder_ours:
                settle(device)
                taken.append(time.perf_counter() - start_s)
                first.append(seconds(lambda: embedder_ours.encode(["a text"])))
        print(f"{dtype:9} load {1e3 * statistics.median(taken):.0f} ms, first text {1e3 * min(first):.1f} ms")


def sweep(what: str, embedder_ours: Any, points: list[tuple[int, int]], peer_s: dict[str, Any], rounds: int) -> None:
    print(f"\n## {embedder_ours.dtype}, by {what}")
    model, words = load_model(MODEL), find_words(MODEL)
    for batch, tokens in points:
        lengths = draw_lengths("even", batch, tokens)
        ring = Ring(words, lengths)
        calls: dict[str, Callable[[int], Any]] = {
            "strings": lambda k: embedder_ours.encode(ring.sets[k][0]),  # noqa: B023
            "forward": lambda k: embedder_ours.encode_tokens(ring.sets[k][1]),  # noqa: B023
        }
        for dtype, peer in peer_s.items():
            calls[f"sentence-transformers {dtype}"] = lambda k, peer=peer: peer.encode(
                ring.sets[k][0],  # noqa: B023
                batch_size=min(batch, 512),  # noqa: B023
                normalize_embeddings=True,
                show_progress_bar=False,
            )
        peak = memory(str(embedder_ours.device), lambda: calls["strings"](0))  # noqa: B023
        measured_values = turns(calls, ring, rounds)
        rate = {contender: batch / taken for contender, taken in measured_values.items()}
        flops = count_flops(model, lengths) / measured_values["forward"] / 1e12
        reported = f"strings {rate['strings']:,.0f}/s  forward {rate['forward']:,.0f}/s  {flops:.1f} TFLOP/s  {peak}"
        ratios = "".join(
            f"  {contender} / ours {measured_values[contender] / measured_values['strings']:.1f}"
            for contender in list(calls)[2:]
        )
        print(f"batch {batch:5}  tokens {tokens:4}  {reported}{ratios}", flush=True)


def turns(calls: dict[str, Callable[[int], Any]], ring: Ring, rounds: int) -> dict[str, float]:
    """The median seconds of each, in turn, each round with texts of its own."""
    times: dict[str, list[float]] = {contender: [] for contender in calls}
    for call in calls.values():
        call(0)
    for turn in range(rounds):
        if turn % len(ring.sets) == 0:
            ring.rewrite()
        for contender, call in calls.items():
            times[contender].append(seconds(lambda: call(turn % len(ring.sets))))  # noqa: B023
    return {contender: statistics.median(taken) for contender, taken in times.items()}


def memory(device: str, work: Callable[[], Any]) -> str:
    if not device.startswith("cuda"):
        return ""
    gc.collect()
    work()
    torch.cuda.reset_peak_memory_stats()
    work()
    return f"peak {torch.cuda.max_memory_allocated() / 2**20:,.0f} MiB"


def one(embedder_ours: Any, lengths: list[int]) -> None:
    print(f"\n## {embedder_ours.dtype}, one text, string to vector")
    for tokens in lengths:
        texts = Ring(find_words(MODEL), draw_lengths("even", CALLS, tokens)).sets[0][0]
        small_batch = texts if str(embedder_ours.device) != "cpu" else texts[:20]
        for text in small_batch[:10]:
            embedder_ours.encode_one(text)
        taken = sorted(seconds(lambda: embedder_ours.encode_one(text)) for text in small_batch)  # noqa: B023
        p50, p99 = (1e3 * taken[int(len(taken) * q)] for q in (0.5, 0.99))
        print(f"tokens {tokens:4}  p50 {p50:.3f} ms  p99 {p99:.3f} ms")


def nearness(embedder_ours: Any) -> None:
    texts = Ring(find_words(MODEL), draw_lengths("movies", CHECKED, TOKENS)).sets[0][0]
    expected = embedder("cpu", "float32").encode(texts)
    lowest = float((expected * embedder_ours.encode(texts)).sum(1).min())
    print(f"{embedder_ours.dtype}: lowest cosine {lowest:.7f} over {CHECKED} texts")


def tokenizing(batches: list[int], rounds: int) -> None:
    print("\n## the tokenizer alone, beside tokenizers.encode_batch_fast")
    with embedder("cpu", "float32") as embedder_ours:
        peer_tokenizer = peers.load_tokenizers(load_model(MODEL), max(LENGTHS))
        for batch in batches:
            ring = Ring(find_words(MODEL), draw_lengths("even", batch, TOKENS))
            calls = {
                "ours": lambda k: embedder_ours.tokenize(ring.sets[k][0]),  # noqa: B023
                "theirs": lambda k: peer_tokenizer.encode_batch_fast(ring.sets[k][0]),  # noqa: B023
            }
            measured_values = turns(calls, ring, rounds)
            seconds, peer_seconds = measured_values["ours"], measured_values["theirs"]
            print(f"batch {batch:5}  {batch / seconds:,.0f}/s  ratio {peer_seconds / seconds:.1f}")


def settle(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


if __name__ == "__main__":
    main()
