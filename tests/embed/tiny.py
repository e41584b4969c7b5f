"""Small random models in the layouts that users have, and a BERT reference in float64."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

WORDS = [
    "the",
    "a",
    "red",
    "blue",
    "cat",
    "dog",
    "runs",
    "sleeps",
    "fast",
    "slowly",
    "under",
    "over",
    "tree",
    "house",
    "and",
    "then",
    "stops",
    "##s",
    "##ing",
    "query",
    "passage",
    ":",
]
HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 32, 2, 4, 64, 40
SPECIAL = {
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
}
TEXTS = [
    "the red cat runs",
    "",
    "a dog",
    "the blue dog sleeps under the tree and then stops",
    "unknowable",
    "a dog",
] + [" ".join(WORDS[(i * j) % 17] for j in range(1, 2 + i % 13)) for i in range(20)]


def make(
    folder: Path,
    kind: str = "bert",
    pooling: str | None = "mean",
    *,
    dense: str | None = None,
    prompts: dict[str, str] | None = None,
    default_prompt: str | None = None,
    limit: int | None = 24,
    prefix: str = "",
    modern: bool = False,
    vocabulary: int | None = None,
    **config: Any,
) -> Path:
    """A sentence-transformers folder; with pooling=None a plain snapshot of a Hugging Face model."""
    folder.mkdir(parents=True)
    size = tokenizer(folder, kind)
    settings = {
        "model_type": kind,
        "architectures": [{"bert": "BertModel", "roberta": "RobertaModel", "xlm-roberta": "XLMRobertaModel"}[kind]],
        "vocab_size": vocabulary or size,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2 if kind == "bert" else 1,
        "layer_norm_eps": 1e-12 if kind == "bert" else 1e-5,
        "hidden_act": "gelu",
        "pad_token_id": 0 if kind == "bert" else 1,
        **config,
    }
    write(folder / "config.json", settings)
    save_file(weights(settings, prefix), folder / "model.safetensors")
    if limit is not None:
        write(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
    if prompts is not None or default_prompt is not None:
        words = {"prompts": prompts or {}, "default_prompt_name": default_prompt}
        write(folder / "config_sentence_transformers.json", words)
    if pooling is None:
        return folder
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    (folder / "1_Pooling").mkdir()
    if modern:
        write(folder / "1_Pooling/config.json", {"embedding_dimension": HIDDEN, "pooling_mode": pooling})
    else:
        names = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
        flags = {f"pooling_mode_{name}": mode == pooling for mode, name in names.items()}
        write(folder / "1_Pooling/config.json", {"word_embedding_dimension": HIDDEN, **flags})
    if dense is not None:
        modules.append(("2_Dense", "Dense"))
        (folder / "2_Dense").mkdir()
        shape = {"in_features": HIDDEN, "out_features": 12, "bias": True}
        write(folder / "2_Dense/config.json", {**shape, "activation_function": f"torch.nn.modules.activation.{dense}"})
        random = np.random.default_rng(5)
        parts = {"linear.weight": random.normal(size=(12, HIDDEN)), "linear.bias": random.normal(size=12)}
        save_file({k: v.astype(np.float32) for k, v in parts.items()}, folder / "2_Dense/model.safetensors")
    modules.append((f"{len(modules)}_Normalize", "Normalize"))
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(modules)
    ]
    write(folder / "modules.json", entries)
    return folder


def write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content))


def tokenizer(folder: Path, kind: str) -> int:
    """Write a WordPiece tokenizer with the special tokens of the family; return the size of its vocabulary."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    special = SPECIAL["bert" if kind == "bert" else "roberta"]
    vocab = {word: i for i, word in enumerate([*special, *WORDS])}
    unknown, first, last = ("[UNK]", "[CLS]", "[SEP]") if kind == "bert" else ("<unk>", "<s>", "</s>")
    module = Tokenizer(WordPiece(vocab, unk_token=unknown))
    module.pre_tokenizer = Whitespace()
    middle = last if kind == "bert" else f"{last} {last}"
    second = "$B:1" if kind == "bert" else "$B"
    module.post_processor = TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {middle} {second} {last}{':1' if kind == 'bert' else ''}",
        special_tokens=[(first, vocab[first]), (last, vocab[last])],
    )
    module.add_special_tokens(special)
    module.save(str(folder / "tokenizer.json"))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL["bert"], strict=True))
    if kind != "bert":
        names = {
            "pad_token": "<pad>",
            "unk_token": "<unk>",
            "cls_token": "<s>",
            "sep_token": "</s>",
            "mask_token": "<mask>",
        }
    write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **names},
    )
    return len(vocab)


def weights(settings: dict[str, Any], prefix: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(11)

    def draw_weights(*shape: int) -> np.ndarray:
        return (random.normal(size=shape) * 0.3).astype(np.float32)

    width, inner = settings["hidden_size"], settings["intermediate_size"]
    vectors = {
        "embeddings.word_embeddings.weight": draw_weights(settings["vocab_size"], width),
        "embeddings.position_embeddings.weight": draw_weights(settings["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": draw_weights(settings["type_vocab_size"], width),
        "embeddings.LayerNorm.weight": 1 + draw_weights(width),
        "embeddings.LayerNorm.bias": draw_weights(width),
    }
    shapes = {
        "attention.self.query": (width, width),
        "attention.self.key": (width, width),
        "attention.self.value": (width, width),
        "attention.output.dense": (width, width),
        "intermediate.dense": (inner, width),
        "output.dense": (width, inner),
    }
    for i in range(settings["num_hidden_layers"]):
        stem = f"encoder.layer.{i}."
        for name, shape in shapes.items():
            vectors |= {f"{stem}{name}.weight": draw_weights(*shape), f"{stem}{name}.bias": draw_weights(shape[0])}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            vectors |= {
                f"{stem}{name}.weight": 1 + draw_weights(width),
                f"{stem}{name}.bias": draw_weights(width),
            }
    vectors |= {
        "pooler.dense.weight": draw_weights(width, width),
        "pooler.dense.bias": draw_weights(width),
    }  # present, and not used
    return {prefix + name: tensor for name, tensor in vectors.items()}


class Reference:
    """BERT as in the paper: one text at a time, float64."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        self.settings = json.loads((folder / "config.json").read_text())
        self.w = {
            k.removeprefix(prefix): v.astype(np.float64) for k, v in load_file(folder / "model.safetensors").items()
        }
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def compute_hidden(self, ids: list[int]) -> np.ndarray:
        w, n = self.w, len(ids)
        if self.settings["model_type"] == "bert":
            positions = list(range(n))
        else:
            pad, count, positions = self.settings["pad_token_id"], 0, []
            for token in ids:
                count += token != pad
                positions.append(pad + count if token != pad else pad)
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][positions]
        x = self._norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        heads, size = (
            self.settings["num_attention_heads"],
            self.settings["hidden_size"] // self.settings["num_attention_heads"],
        )
        for i in range(self.settings["num_hidden_layers"]):
            stem = f"encoder.layer.{i}."
            q, k, v = (self._linear(x, f"{stem}attention.self.{name}") for name in ("query", "key", "value"))
            mixed = np.zeros_like(x)
            for h in range(heads):
                part = slice(h * size, (h + 1) * size)
                scores = q[:, part] @ k[:, part].T / math.sqrt(size)
                scores = np.exp(scores - scores.max(1, keepdims=True))
                mixed[:, part] = scores / scores.sum(1, keepdims=True) @ v[:, part]
            x = self._norm(
                x + self._linear(mixed, f"{stem}attention.output.dense"), f"{stem}attention.output.LayerNorm"
            )
            inner = self._linear(x, f"{stem}intermediate.dense")
            inner = ACTIVATIONS[self.settings["hidden_act"]](inner)
            x = self._norm(x + self._linear(inner, f"{stem}output.dense"), f"{stem}output.LayerNorm")
        return x

    def pool_hidden(self, text: str, mode: str, limit: int = 24) -> np.ndarray:
        self.tokenizer.enable_truncation(limit)
        x = self.compute_hidden(self.tokenizer.encode(text).ids)
        return {"mean": x.mean(0), "cls": x[0], "max": x.max(0)}[mode]

    def encode(self, texts: list[str], mode: str = "mean", limit: int = 24) -> np.ndarray:
        vectors = np.stack([self.pool_hidden(t, mode, limit) for t in texts])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.settings["layer_norm_eps"])
        return scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _gelu_by_tanh(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"gelu": _gelu, "gelu_new": _gelu_by_tanh, "relu": lambda x: np.maximum(x, 0)}
