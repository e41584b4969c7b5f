"""What recorded CUDA graphs could save a reranker: one pair alone, and the pairs of one request, on a GPU.

    python benchmarks/rerank_gpu.py [MODEL] [--dtype float16]

MODEL is the folder of an embedder of BERT's family with a pooler (default: all-MiniLM-L6-v2): the script makes a
cross-encoder of its weights, and of a random head. Rerankers are not recorded, embedders are: `embedder, graph` and
`embedder, launches` are the same layers over the same number of tokens with a recorded graph and without, so their
difference is about what a reranker would gain. `tokenize` is the part of `Reranker.score` before the layers. Times are
medians in milliseconds, in turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ridgeline
from ridgeline.embed import Tokens, find_model

PAIRS = (1, 10, 100)
WORDS = 48  # of a document; with the query and special tokens, 64 tokens a pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="all-MiniLM-L6-v2")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        folder = make_cross_encoder(find_model(options.model).folder, Path(parent) / "cross")
        settings = {"device": options.device, "dtype": options.dtype, "batch_invariant": True}
        reranker, embedder = ridgeline.Reranker(folder, **settings), ridgeline.Embedder(options.model, **settings)
        print(f"{options.device}, {options.dtype}, {options.rounds} rounds")
        for count in PAIRS:
            measure(reranker, embedder, count, options.rounds)


def make_cross_encoder(source: Path, folder: Path) -> Path:
    from safetensors.numpy import load_file, save_file

    folder.mkdir()
    for path in source.glob("*.json"):
        shutil.copy(path, folder)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "score"}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "modules.json").unlink(missing_ok=True)
    tensors = {f"bert.{name}": values for name, values in load_file(source / "model.safetensors").items()}
    head = np.random.default_rng(1).normal(size=(1, config["hidden_size"])).astype(np.float32)
    save_file(
        tensors | {"classifier.weight": head, "classifier.bias": np.zeros(1, np.float32)}, folder / "model.safetensors"
    )
    return folder


def measure(reranker: ridgeline.Reranker, embedder: ridgeline.Embedder, count: int, rounds: int) -> None:
    query, documents = "a quiet film about the sea at night", ["river " * WORDS + str(i) for i in range(count)]
    pairs = reranker.tokenize(query, documents)
    tokens = Tokens(pairs.ids % embedder.config.vocabulary, pairs.offsets)  # of a pair, the second text's are higher
    ways: dict[str, Callable[[], object]] = {
        "reranker": lambda: reranker.score(query, documents),
        "tokenize": lambda: reranker.tokenize(query, documents),
        "embedder, graph": lambda: embedder.encode_tokens(tokens),
        "embedder, launches": lambda: embedder.encode_tokens(tokens, batch_tokens=65_536),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 20):
        for name, call in ways.items():
            start_s = time.perf_counter()
            call()
            if number >= 20:
                times[name].append(1e3 * (time.perf_counter() - start_s))
    medians = "  ".join(f"{name} {statistics.median(values):.3f}" for name, values in times.items())
    print(f"{count} pairs of {len(tokens.ids) / count:.0f} tokens: {medians}", flush=True)


if __name__ == "__main__":
    main()
