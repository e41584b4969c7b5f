"""What a model's folder says about itself: the encoder, the pooling, what follows it, its prompts.

Reads sentence-transformers folders (modules.json) and plain Hugging Face snapshots (then: mean pooling), old and new
spellings. What this encoder cannot do is refused here, by name, before any weight is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, unknown

# model_type → whether positions are counted as RoBERTa does: from the padding token's number on
FAMILIES = {"bert": False, "roberta": True, "xlm-roberta": True, "camembert": True}
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
POOLINGS = ("mean", "cls", "max")
AFTER = ("Identity", "Tanh", "GELU", "ReLU", "Sigmoid")  # what may follow a dense module

# the old spelling of a pooling module: one flag per mode, in the order in which several would be joined
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Dense:
    """A linear module after the pooling."""

    folder: Path
    activation: str


@dataclass(frozen=True)
class Config:
    """One model, as its folder describes it."""

    folder: Path  # of the encoder's config.json and weights
    layers: int
    heads: int
    hidden: int
    vocabulary: int
    positions: int  # rows of the position table
    activation: str
    epsilon: float
    first_position: int  # 0, or RoBERTa's padding number + 1
    padding: int | None  # the token that takes no position, for RoBERTa
    max_tokens: int
    lower: bool  # texts are lowered before the tokenizer sees them
    pooling: str
    dense: tuple[Dense, ...]
    prompts: Mapping[str, str]
    default_prompt: str | None


def read_config(folder: Path) -> Config:
    """Read and judge a model's folder."""
    steps = _modules(folder)
    root = folder / steps.pop("Transformer", "")
    told = _json(root / "config.json")
    kind = told.get("model_type")
    if kind not in FAMILIES:
        raise InputError(
            f"'{folder}' is a '{kind}' model; this encoder knows {', '.join(FAMILIES)} with mean, cls or max pooling."
        )
    if told.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(f"'{folder}' has {told['position_embedding_type']} positions; only absolute ones are known.")
    activation = told.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS)
    padding = int(told.get("pad_token_id") or 0)
    first = padding + 1 if FAMILIES[kind] else 0
    sentence = _sentence(root)
    prompts = _json(folder / "config_sentence_transformers.json", needed=False)
    return Config(
        folder=root,
        layers=told["num_hidden_layers"],
        heads=told["num_attention_heads"],
        hidden=told["hidden_size"],
        vocabulary=told["vocab_size"],
        positions=told["max_position_embeddings"],
        activation=activation,
        epsilon=told.get("layer_norm_eps", 1e-12),
        first_position=first,
        padding=padding if FAMILIES[kind] else None,
        max_tokens=_limit(root, sentence, told["max_position_embeddings"] - first),
        lower=bool(sentence.get("do_lower_case", False)),
        pooling=_pooling(folder, steps),
        dense=tuple(_dense(folder / path) for name, path in steps.items() if name.startswith("Dense")),
        prompts={k: v for k, v in (prompts.get("prompts") or {}).items() if isinstance(v, str)},
        default_prompt=prompts.get("default_prompt_name"),
    )


def prompt_of(config: Config, asked: str | None) -> str:
    """The text put before every input: by the name of one of the model's prompts, or as given."""
    if asked is None:
        return config.prompts.get(config.default_prompt, "") if config.default_prompt else ""
    if asked in config.prompts:
        return config.prompts[asked]
    if asked.isidentifier():  # a bare word is meant as a name
        raise unknown("prompt", asked, config.prompts)
    return asked


def _modules(folder: Path) -> dict[str, str]:
    """name of the class → subfolder, in order; Dense may come more than once."""
    if not (folder / "modules.json").is_file():
        return {}
    found: dict[str, str] = {}
    for entry in _json(folder / "modules.json"):
        name = str(entry["type"]).rpartition(".")[2]
        if name not in ("Transformer", "Pooling", "Dense", "Normalize", "Dropout"):
            raise InputError(f"'{folder}' has a {name} module; known are Transformer, Pooling, Dense and Normalize.")
        key = f"{name}{len(found)}" if name in found else name
        found[key] = entry.get("path", "")
    return found


def _pooling(folder: Path, steps: Mapping[str, str]) -> str:
    if "Pooling" not in steps:
        return "mean"
    told = _json(folder / steps["Pooling"] / "config.json")
    modes = told.get("pooling_mode") or [mode for flag, mode in _FLAGS.items() if told.get(flag)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise InputError(f"'{folder}' pools by {' + '.join(modes)}; known are {', '.join(POOLINGS)}, one at a time.")
    if told.get("include_prompt", True) is False:
        raise InputError(f"'{folder}' leaves its prompt out of the pooling, which is not done here.")
    return str(modes[0])


def _dense(folder: Path) -> Dense:
    told = _json(folder / "config.json")
    activation = str(told.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in AFTER:
        raise unknown(f"activation in '{folder}'", activation, AFTER)
    if told.get("use_residual"):
        raise InputError(f"'{folder}' is a dense module with a residual, which is not known here.")
    return Dense(folder, activation)


def _sentence(root: Path) -> dict[str, Any]:
    kinds = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert")
    for name in (f"sentence_{kind.replace('-', '_')}_config.json" for kind in kinds):
        if (root / name).is_file():
            return dict(_json(root / name))
    return {}


def _limit(root: Path, sentence: Mapping[str, Any], room: int) -> int:
    """Tokens per text: the folder's own limit, else the tokenizer's, never more than there are positions."""
    told = sentence.get("max_seq_length")
    if told is None:
        told = _json(root / "tokenizer_config.json", needed=False).get("model_max_length", room)
    return max(1, min(int(told), room))


def _json(file: Path, *, needed: bool = True) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not needed:
            return {}
        raise InputError(f"'{file.parent}' has no {file.name}, so it is no model's folder.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"'{file}' cannot be read: {error}.") from error
