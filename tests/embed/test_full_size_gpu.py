"""Models of the size that people run, with random weights: vectors on a GPU beside those of transformers in float32.

Where transformers in float16 or bfloat16 are below LOWEST, ours may be as far from 1, within 5 %: the weights are
rounded alike, so one of the two is ahead by chance.

python -m pytest -s -m gpu tests/embed/test_full_size_gpu.py    # needs transformers; prints the lowest cosines
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.embed import tiny  # noqa: E402

from ridgeline.embed import Embedder, Tokens  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # DeBERTa of transformers
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

# Name -> class of the configuration, and what differs from its defaults, which are those of a base model.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {}),
    "roberta": ("RobertaConfig", {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRobertaConfig", {"vocab_size": 250_002, "max_position_embeddings": 514, "type_vocab_size": 1}),
    "mpnet": ("MPNetConfig", {"max_position_embeddings": 514}),
    "distilbert": ("DistilBertConfig", {}),
    "albert": (
        "AlbertConfig",
        {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3_072, "num_hidden_layers": 12},
    ),
    "modernbert": ("ModernBertConfig", {}),
    "nomic": ("NomicBertConfig", {}),
    "gte": ("GteConfig", {}),
    "deberta-v3": (
        "DebertaV2Config",
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3_072,
            "relative_attention": True,
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
            "type_vocab_size": 0,
            "max_relative_positions": -1,
        },
    ),
    "qwen3": (
        "Qwen3Config",
        {
            "hidden_size": 1_024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3_072,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "hidden_size": 768,
            "num_hidden_layers": 24,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "intermediate_size": 1_152,
            "sliding_window": 512,
            "use_bidirectional_attention": True,
        },
    ),
}
LOWEST = {"float32": 0.99999, "float16": 0.9998, "bfloat16": 0.9998}
FIRST_TOKEN = 10  # after the special tokens of all tokenizers


def make_model(name: str, **changes: Any) -> Any:
    kind, settings = MODELS[name]
    config_class = getattr(transformers, kind, None)
    if config_class is None:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    torch.manual_seed(0)
    config = config_class(**{**settings, **changes})
    return transformers.AutoModel.from_config(config, attn_implementation="eager").float().eval()


def draw_tokens(vocabulary: int, texts: int = 48, longest: int = 300) -> Tokens:
    random = np.random.default_rng(1)
    lengths = random.integers(3, longest, texts)
    ids = random.integers(FIRST_TOKEN, vocabulary, lengths.sum()).astype(np.int32)
    return Tokens(ids, np.r_[0, np.cumsum(lengths)])


def encode_by_transformers(model: Any, tokens: Tokens, device: str) -> np.ndarray:
    """Mean of the last hidden state, one text at a time, so without padding."""
    model = model.to(device)
    vectors = []
    with torch.no_grad():
        for text in (tokens[row] for row in range(len(tokens))):
            hidden = model(input_ids=torch.from_numpy(text.astype(np.int64))[None].to(device)).last_hidden_state
            vectors.append(hidden[0].double().mean(0).cpu().numpy())
    return np.stack(vectors)


def measure_cosines(vectors: np.ndarray, expected: np.ndarray) -> np.ndarray:
    products = (vectors.astype(np.float64) * expected).sum(1)
    return products / np.linalg.norm(vectors.astype(np.float64), axis=1) / np.linalg.norm(expected, axis=1)


@pytest.mark.parametrize("name", MODELS)
def test_a_full_size_model_has_the_vectors_of_transformers(name: str, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    folder = tmp_path / name
    model = make_model(name)
    model.save_pretrained(folder)
    tiny.tokenizer(folder, "bert")
    tokens = draw_tokens(model.config.vocab_size)
    expected = encode_by_transformers(model, tokens, "cuda")
    least, lines = dict(LOWEST), []
    for dtype in ("float16", "bfloat16"):
        peer = float(
            measure_cosines(encode_by_transformers(model.to(getattr(torch, dtype)), tokens, "cuda"), expected).min()
        )
        least[dtype] = min(least[dtype], 1 - 1.05 * (1 - peer))
        lines.append(f"transformers {dtype} {peer:.7f}")
        model = make_model(name)
    del model
    lowest = {}
    for dtype in LOWEST:
        with Embedder(folder, device="cuda", dtype=dtype) as embedder:
            lowest[dtype] = float(measure_cosines(embedder.encode_tokens(tokens), expected).min())
    ours = ", ".join(f"{dtype} {cosine:.7f}" for dtype, cosine in lowest.items())
    print(f"{name}: lowest cosine of {len(tokens)} texts to transformers in float32: {ours}; {', '.join(lines)}")
    assert all(lowest[dtype] >= cosine for dtype, cosine in least.items()), (lowest, least)
