"""The forward pass of encoders of base size with random weights, beside transformers, against the matmul of this run.

    python benchmarks/embed_families.py [--device cuda] [--dtype bfloat16] [--tokens 131072] [--tokenizer FOLDER]

Half a minute on one H200. Needs transformers. Texts of one length, so both compute without padding; ours is packed.
FLOPs are those of the products (attention of local layers in its window only). Prints TFLOP/s of both and of a large
matmul in the same type; medians of the times, contenders in turn.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import ridgeline
from ridgeline.embed import Tokens

LENGTHS = (128, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=131_072, help="tokens of one call")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder with the files of any BERT tokenizer")
    parser.add_argument("--layers", type=int, default=None, help="fewer layers, to try the script")
    parser.add_argument("--matmul", type=int, default=8192, help="rows and columns of the matmul")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    dtype = getattr(torch, args.dtype)
    print(f"matmul of {args.matmul}: {measure_matmul(args.matmul, dtype, args.device) / 1e12:.1f} TFLOP/s")
    for kind in ("bert", "modernbert"):
        with tempfile.TemporaryDirectory() as temporary:
            folder, model = make_folder(kind, Path(temporary), args.tokenizer, args.layers)
            peer = model.to(args.device, dtype).eval()
            with ridgeline.Embedder(folder, device=args.device, dtype=args.dtype, max_tokens=512) as embedder:
                for length in LENGTHS:
                    race(kind, length, embedder, peer, args.tokens // length)


def race(kind: str, length: int, embedder: ridgeline.Embedder, peer: Any, count: int) -> None:
    ids = np.random.default_rng(0).integers(1_000, 20_000, (count, length)).astype(np.int32)
    tokens = Tokens(ids.ravel(), np.arange(count + 1, dtype=np.int64) * length)
    on_device = torch.from_numpy(ids.astype(np.int64)).to(peer.device)

    def run_peer() -> None:
        with torch.inference_mode():
            peer(input_ids=on_device)

    ours, theirs = measure(lambda: embedder.encode_tokens(tokens), run_peer)
    flops = count * count_flops(kind, length, peer.config)
    print(
        f"{kind} {length} tokens: ours {flops / ours / 1e12:.1f} TFLOP/s from tokens to vectors on the host, "
        f"transformers sdpa {flops / theirs / 1e12:.1f} forward only, time / ours {theirs / ours:.2f}",
        flush=True,
    )


def make_folder(kind: str, folder: Path, tokenizer: Path, layers: int | None) -> tuple[Path, Any]:
    """Save a model of base size with random weights; return its folder and the model."""
    torch.manual_seed(0)
    settings = {} if layers is None else {"num_hidden_layers": layers}
    if kind == "bert":
        model = transformers.BertModel(transformers.BertConfig(**settings))
    else:
        model = transformers.ModernBertModel(transformers.ModernBertConfig(**settings))
    model.save_pretrained(folder)
    for file in tokenizer.glob("*.json"):
        if "token" in file.name:
            shutil.copy(file, folder)
    return folder, model


def count_flops(kind: str, length: int, config: Any) -> float:
    """FLOPs of the products of one text."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    if kind == "bert":
        return layers * length * (2 * (4 * hidden**2 + 2 * hidden * config.intermediate_size) + 4 * length * hidden)
    products = 2 * (4 * hidden**2 + 3 * hidden * config.intermediate_size)
    local = sum(name == "sliding_attention" for name in config.layer_types)
    window = min(length, config.local_attention + 1)
    attention = 4 * hidden * ((layers - local) * length + local * window)
    return length * (layers * products + attention)


def measure_matmul(size: int, dtype: torch.dtype, device: str) -> float:
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    (seconds,) = measure(lambda: [a @ b for _ in range(5)])
    return 5 * 2 * size**3 / seconds


def measure(*functions: Callable[[], Any], rounds: int = 7) -> list[float]:
    """Median seconds of each function, in turn."""
    times: list[list[float]] = [[] for _ in functions]
    for number in range(rounds + 2):
        for function, seconds in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number >= 2:  # the first two compile and allocate
                seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


if __name__ == "__main__":
    main()
