"""Whether a text's vector on a GPU has the same bits in any batch, and what the promise costs.

    python benchmarks/embed_batch_invariant.py [--types float16,bfloat16,float32] [--rounds 9]

About 40 s on one H200. A BERT of MiniLM's shape with random weights, so no download is needed.
  bits  the share of 400 texts whose vector equals, in all bits, its vector in a batch of 2,000, and the largest
        difference: encoded alone, in batches of 2 to 32, of 400, of 2,000 in another order, with a small budget; with
        and without batch_invariant
  rate  texts/s of 62,423 film-like texts (mean 21 tokens), tokens to vectors on the host, with and without in turn;
        the forward pass alone by the GPU's clock; one text
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_clock import time_on_device
from safetensors.numpy import save_file

import ridgeline
from ridgeline.embed import Tokens
from ridgeline.embed.layers import Packed

VOCABULARY, LAYERS, HIDDEN, HEADS, INNER = 20_000, 6, 384, 12, 1536
FILMS, TEXTS, SAMPLE = 62_423, 2_000, 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default="float16,bfloat16,float32")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    random = np.random.default_rng(1)
    texts, films = draw(random, TEXTS, 40, 0.9), draw(random, FILMS, 20.1, 0.3)
    print(f"{torch.cuda.get_device_name()} · torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_model(Path(temporary))
        for dtype in options.types.split(","):
            embedders = {
                name: ridgeline.Embedder(folder, device="cuda", dtype=dtype, batch_invariant=promised)
                for name, promised in (("without", False), ("batch_invariant", True))
            }
            for name, embedder in embedders.items():
                print(
                    f"{dtype} {name}: share with the same bits (largest difference)", compare(embedder, texts, random)
                )
            race(dtype, embedders, films, options.rounds)


def draw(random: np.random.Generator, count: int, mean: float, sigma: float) -> Tokens:
    lengths = np.clip(random.lognormal(np.log(mean), sigma, count).astype(int), 3, 500)
    ids = random.integers(5, VOCABULARY, lengths.sum()).astype(np.int32)
    return Tokens(ids, np.concatenate([[0], np.cumsum(lengths)]))


def pick(tokens: Tokens, rows: Any) -> Tokens:
    parts = [tokens[i] for i in rows]
    return Tokens(np.concatenate(parts), np.concatenate([[0], np.cumsum([len(part) for part in parts])]))


def compare(embedder: ridgeline.Embedder, texts: Tokens, random: np.random.Generator) -> str:
    together = embedder.encode_tokens(texts)
    alone = [embedder.encode_tokens(pick(texts, [i])) for i in range(SAMPLE)]
    parts, begin = [], 0
    while begin < SAMPLE:
        end = min(SAMPLE, begin + int(random.integers(2, 33)))
        parts.append(embedder.encode_tokens(pick(texts, range(begin, end))))
        begin = end
    order = random.permutation(TEXTS)
    shuffled = np.empty_like(together)
    shuffled[order] = embedder.encode_tokens(pick(texts, order))
    others = {
        "alone": np.concatenate(alone),
        "batches of 2 to 32": np.concatenate(parts),
        "400": embedder.encode_tokens(pick(texts, range(SAMPLE))),
        "2,000 shuffled": shuffled[:SAMPLE],
        "500 tokens per batch": embedder.encode_tokens(texts, batch_tokens=500)[:SAMPLE],
    }
    expected = together[:SAMPLE]
    return "; ".join(
        f"{name} {(other == expected).all(1).mean():.1%} ({np.abs(other - expected).max():.0e})"
        for name, other in others.items()
    )


def race(dtype: str, embedders: dict[str, ridgeline.Embedder], films: Tokens, rounds: int) -> None:
    total: dict[str, list[float]] = {name: [] for name in embedders}
    for turn in range(rounds + 1):
        for name, embedder in embedders.items():
            start = time.perf_counter()
            embedder.encode_tokens(films)
            if turn:
                total[name].append(time.perf_counter() - start)
    forward = {name: time_forward(embedder) for name, embedder in embedders.items()}
    single = {name: time_single(embedder, films) for name, embedder in embedders.items()}
    rates = {name: statistics.median(seconds) for name, seconds in total.items()}
    for name in embedders:
        print(
            f"{dtype} {name}: {FILMS / rates[name]:,.0f} texts/s; forward pass {forward[name] * 1e3:.2f} ms; "
            f"one text {single[name] * 1e3:.3f} ms"
        )
    print(
        f"{dtype}: batch_invariant has {rates['without'] / rates['batch_invariant']:.3f} of the rate, "
        f"{forward['without'] / forward['batch_invariant']:.3f} in the forward pass",
        flush=True,
    )


def time_forward(embedder: ridgeline.Embedder) -> float:
    """Seconds of the encoder over 131,072 tokens in texts of 16 to 26."""
    lengths = np.repeat(np.arange(16, 27), 131_072 // 11 // np.arange(16, 27))
    runs, begin = [], 0
    for length in np.unique(lengths):
        count = int((lengths == length).sum())
        runs.append((begin, count, int(length)))
        begin += count * int(length)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])).cuda()
    ids = torch.randint(5, VOCABULARY, (begin,), device="cuda", dtype=torch.int32)
    encoder = embedder._get_encoder()
    return float(time_on_device(lambda: encoder(ids, Packed(offsets, tuple(runs))), 10, 3))


def time_single(embedder: ridgeline.Embedder, films: Tokens) -> float:
    seconds = []
    for i in range(300):
        tokens = pick(films, [i])
        start = time.perf_counter()
        embedder._encode_directly(tokens)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[50:])


def write_model(folder: Path) -> Path:
    """A folder as Hugging Face has it, with random weights and a vocabulary of numbered words."""
    random = np.random.default_rng(0)

    def draw_weights(*shape: int) -> Any:
        return (0.05 * random.standard_normal(shape)).astype(np.float32)

    tensors = {
        "embeddings.word_embeddings.weight": draw_weights(VOCABULARY, HIDDEN),
        "embeddings.position_embeddings.weight": draw_weights(512, HIDDEN),
        "embeddings.token_type_embeddings.weight": draw_weights(2, HIDDEN),
    }
    shapes = {"attention.output.dense": (HIDDEN, HIDDEN), "intermediate.dense": (INNER, HIDDEN)}
    shapes |= {f"attention.self.{part}": (HIDDEN, HIDDEN) for part in ("query", "key", "value")}
    shapes["output.dense"] = (HIDDEN, INNER)
    norms = ["embeddings.LayerNorm"]
    for i in range(LAYERS):
        stem = f"encoder.layer.{i}."
        for name, shape in shapes.items():
            tensors[f"{stem}{name}.weight"], tensors[f"{stem}{name}.bias"] = (
                draw_weights(*shape),
                draw_weights(shape[0]),
            )
        norms += [f"{stem}attention.output.LayerNorm", f"{stem}output.LayerNorm"]
    for name in norms:
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = 1 + draw_weights(HIDDEN), draw_weights(HIDDEN)
    save_file(tensors, folder / "model.safetensors")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(VOCABULARY - 5))]
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    main()
