"""Encoders of base size with random weights beside transformers and sentence-transformers, in one run.

    python benchmarks/embed_families.py [--models bert,modernbert] [--parts forward,texts,pairs] [--texts 8000]

About 80 s on one H200. Needs sentence-transformers. Everything in bfloat16, weights random, words of one token each.
  forward  the forward pass alone on the device, texts of one length (128, 512), so that both compute without padding:
           TFLOP/s of the products (attention of local layers in its window only), and the share of a large matmul of
           this run. transformers with sdpa; --compile adds transformers under torch.compile (a minute more)
  texts    strings to vectors on the host, texts of mixed length (mean 100 tokens): Embedder.encode and
           SentenceTransformer.encode at its fastest batch size of a first round
  pairs    strings to scores, one query and documents (mean 100 tokens together): Reranker.score and
           CrossEncoder.predict, likewise
Medians; contenders in turn in every round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import ridgeline
from ridgeline.embed import Reranker
from ridgeline.embed.layers import Packed

LENGTHS = (128, 512)
BATCH_SIZES = (64, 256, 1024)  # of the peers; they sort texts by length
VOCABULARY = 30_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--models", default="bert,modernbert")
    parser.add_argument("--parts", default="forward,texts,pairs")
    parser.add_argument("--tokens", type=int, default=131_072, help="tokens of one forward pass")
    parser.add_argument("--texts", type=int, default=8_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="also race transformers under torch.compile")
    parser.add_argument("--layers", type=int, default=None, help="fewer layers, to try the script")
    parser.add_argument("--matmul", type=int, default=8192, help="rows and columns of the matmul")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    versions = [f"{p.__name__} {p.__version__}" for p in (torch, transformers, sentence_transformers)]
    print(*versions, args.dtype, sep=" · ")
    parts = {"forward": race_forward, "texts": race_texts, "pairs": race_pairs}
    with tempfile.TemporaryDirectory() as temporary:
        for kind in args.models.split(","):
            for part in args.parts.split(","):
                parts[part](kind, Path(temporary), args)


def race_forward(kind: str, folder: Path, args: argparse.Namespace) -> None:
    dtype = getattr(torch, args.dtype)
    with ridgeline.Embedder(make_folder(kind, folder, args), device=args.device, dtype=args.dtype) as embedder:
        encoder = embedder._get_encoder()
        peers = {"transformers sdpa": load_peer(kind, folder, args)}
        if args.compile:
            peers["transformers compiled"] = torch.compile(load_peer(kind, folder, args))
        a, b = (torch.randn(args.matmul, args.matmul, device=args.device, dtype=dtype) for _ in range(2))
        for length in LENGTHS:
            count = args.tokens // length
            ids = torch.randint(10, VOCABULARY, (count, length), device=args.device)
            packed = Packed(torch.arange(count + 1, device=args.device) * length, ((0, count, length),))
            flat = ids.flatten().int()

            def compute(flat: Any = flat, packed: Packed = packed) -> None:
                encoder(flat, Packed(packed.offsets, packed.runs))

            runs: dict[str, Callable[[], Any]] = {"matmul": lambda: [a @ b for _ in range(5)], "ridgeline": compute}
            runs |= {name: lambda peer=peer, ids=ids: run_peer(peer, ids) for name, peer in peers.items()}
            times = dict(zip(runs, measure(runs.values(), args.rounds), strict=True))
            ceiling = 5 * 2 * args.matmul**3 / times.pop("matmul") / 1e12
            flops = count * count_flops(kind, length, next(iter(peers.values())).config)
            line = [f"{n} {flops / s / 1e12:.0f} ({flops / s / 1e10 / ceiling:.0f} %)" for n, s in times.items()]
            print(f"{kind} forward, {length} tokens, TFLOP/s of {ceiling:.0f}:", "; ".join(line), flush=True)


def run_peer(peer: Any, ids: Any) -> None:
    with torch.inference_mode():
        peer(input_ids=ids)


def race_texts(kind: str, folder: Path, args: argparse.Namespace) -> None:
    texts = make_texts(args.texts, 98)
    model_folder = make_folder(kind, folder, args)
    peer = sentence_transformers.SentenceTransformer(
        str(model_folder), device=args.device, model_kwargs={"dtype": args.dtype, "attn_implementation": "sdpa"}
    )
    with ridgeline.Embedder(model_folder, device=args.device, dtype=args.dtype) as embedder:
        options = {"normalize_embeddings": True, "show_progress_bar": False}
        expected = peer.encode(texts[:500], **options).astype(np.float32)
        cosine = (embedder.encode(texts[:500]) * expected).sum(1).min()
        race(
            f"{kind} texts of {count_tokens(embedder, texts):.0f} tokens",
            len(texts),
            lambda: embedder.encode(texts),
            lambda size: peer.encode(texts, batch_size=size, **options),
            "sentence-transformers",
            f"lowest cosine of the two {cosine:.5f}",
            args.rounds,
        )


def race_pairs(kind: str, folder: Path, args: argparse.Namespace) -> None:
    model_folder = make_folder(kind, folder, args, classifier=True)
    query, *documents = make_texts(args.texts + 1, 86)
    query = " ".join(query.split()[:10])
    peer = sentence_transformers.CrossEncoder(
        str(model_folder), device=args.device, max_length=512, model_kwargs={"dtype": getattr(torch, args.dtype)}
    )
    pairs = [(query, document) for document in documents]
    reranker = Reranker(model_folder, device=args.device, dtype=args.dtype, max_tokens=512)
    expected = peer.predict(pairs[:500], show_progress_bar=False).astype(np.float32)
    error = np.abs(reranker.score(query, documents[:500]) - expected).max()
    race(
        f"{kind} pairs",
        len(documents),
        lambda: reranker.score(query, documents),
        lambda size: peer.predict(pairs, batch_size=size, show_progress_bar=False),
        "CrossEncoder",
        f"largest difference of the scores {error:.1e}",
        args.rounds,
    )


def race(
    what: str, count: int, ours: Callable[[], Any], call_peer: Callable[[int], Any], name: str, check: str, rounds: int
) -> None:
    """Race ours and the peer at its fastest batch size."""
    ours()
    call_peer(BATCH_SIZES[0])  # the first call sets up
    seconds = {size: measure_once(lambda size=size: call_peer(size)) for size in BATCH_SIZES}
    best = min(seconds, key=seconds.__getitem__)
    our_seconds, peer_seconds = measure([ours, lambda: call_peer(best)], rounds, warm_up=0)
    print(
        f"{what}: ridgeline {count / our_seconds:,.0f}/s; {name} {count / peer_seconds:,.0f}/s with batch_size {best}; "
        f"time / ours {peer_seconds / our_seconds:.2f}; {check}",
        flush=True,
    )


def make_folder(kind: str, parent: Path, args: argparse.Namespace, classifier: bool = False) -> Path:
    """Save a model of base size with random weights and a WordPiece tokenizer, once."""
    folder = parent / f"{kind}-{classifier}"
    if folder.exists():
        return folder
    torch.manual_seed(0)
    settings: dict[str, Any] = {} if args.layers is None else {"num_hidden_layers": args.layers}
    settings |= {"vocab_size": VOCABULARY + 10, "pad_token_id": 0} | ({"num_labels": 1} if classifier else {})
    if kind == "modernbert":  # its other special tokens lie beyond this vocabulary
        settings |= {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    config = {"bert": transformers.BertConfig, "modernbert": transformers.ModernBertConfig}[kind](**settings)
    auto = transformers.AutoModelForSequenceClassification if classifier else transformers.AutoModel
    auto.from_config(config).save_pretrained(folder)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *(f"[{i}]" for i in range(5)), *(f"w{i}" for i in range(VOCABULARY))]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{token[1:-1].lower()}_token": token for token in special}
    inputs = ["input_ids", "attention_mask"] + (["token_type_ids"] if kind == "bert" else [])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=512, model_input_names=inputs, **names
    ).save_pretrained(folder)
    return folder


def load_peer(kind: str, folder: Path, args: argparse.Namespace) -> Any:
    path = make_folder(kind, folder, args)
    model = transformers.AutoModel.from_pretrained(
        path, dtype=getattr(torch, args.dtype), attn_implementation="sdpa", device_map=None
    )
    return model.to(args.device).eval()


def make_texts(count: int, words: float) -> list[str]:
    """Texts whose numbers of words are log-normal with this mean, 8 to 500."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(np.log(words) - 0.32, 0.8, count).astype(int), 8, 500)
    return [" ".join(f"w{i}" for i in random.integers(0, VOCABULARY, n)) for n in lengths]


def count_tokens(embedder: ridgeline.Embedder, texts: list[str]) -> float:
    return float(embedder.tokenize(texts).lengths.mean())


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


def measure_once(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(functions: Any, rounds: int, warm_up: int = 2) -> list[float]:
    """Median seconds of each function, in turn."""
    functions = list(functions)
    times: list[list[float]] = [[] for _ in functions]
    for number in range(rounds + warm_up):
        for function, seconds in zip(functions, times, strict=True):
            taken = measure_once(function)
            if number >= warm_up:  # the first ones compile and allocate
                seconds.append(taken)
    return [statistics.median(seconds) for seconds in times]


if __name__ == "__main__":
    main()
