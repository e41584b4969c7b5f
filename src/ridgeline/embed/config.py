"""Read the configuration of a model folder: encoder, pooling, dense modules, prompts.

Supports sentence-transformers folders (modules.json) and plain Hugging Face snapshots (with mean pooling), in old and
new spellings. A model that this encoder cannot run is refused here, by name, before any weight is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, unknown

# model_type → whether positions start after the number of the padding token, as RoBERTa's do
FAMILIES = {"bert": False, "roberta": True, "xlm-roberta": True, "camembert": True}
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
POOLINGS = ("mean", "cls", "max")
DENSE_ACTIVATIONS = ("Identity", "Tanh", "GELU", "ReLU", "Sigmoid")  # after a dense module

# the old spelling of a pooling module: one flag per mode, in the order in which several are joined
_POOLING_FLAGS = {
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
    padding: int | None  # the token without a position, for RoBERTa
    max_tokens: int
    lower: bool  # texts are converted to lower case before tokenizing
    pooling: str
    dense: tuple[Dense, ...]
    prompts: Mapping[str, str]
    default_prompt: str | None


def read_config(folder: Path) -> Config:
    """Read and check the configuration of a model folder; raises InputError if the encoder cannot run it."""
    modules = _read_modules(folder)
    root = folder / modules.pop("Transformer", "")
    settings = _read_json(root / "config.json")
    model_type = settings.get("model_type")
    if model_type not in FAMILIES:
        raise InputError(
            f"'{folder}' is a '{model_type}' model; this encoder knows {', '.join(FAMILIES)} "
            "with mean, cls or max pooling."
        )
    if settings.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(
            f"'{folder}' has {settings['position_embedding_type']} positions; only absolute ones are known."
        )
    activation = settings.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS)
    padding = int(settings.get("pad_token_id") or 0)
    first = padding + 1 if FAMILIES[model_type] else 0
    sentence = _read_sentence_config(root)
    prompts = _read_json(folder / "config_sentence_transformers.json", needed=False)
    return Config(
        folder=root,
        layers=settings["num_hidden_layers"],
        heads=settings["num_attention_heads"],
        hidden=settings["hidden_size"],
        vocabulary=settings["vocab_size"],
        positions=settings["max_position_embeddings"],
        activation=activation,
        epsilon=settings.get("layer_norm_eps", 1e-12),
        first_position=first,
        padding=padding if FAMILIES[model_type] else None,
        max_tokens=_choose_max_tokens(root, sentence, settings["max_position_embeddings"] - first),
        lower=bool(sentence.get("do_lower_case", False)),
        pooling=_read_pooling(folder, modules),
        dense=tuple(_read_dense(folder / path) for name, path in modules.items() if name.startswith("Dense")),
        prompts={k: v for k, v in (prompts.get("prompts") or {}).items() if isinstance(v, str)},
        default_prompt=prompts.get("default_prompt_name"),
    )


def choose_prompt(config: Config, prompt: str | None) -> str:
    """Return the text before every input: a prompt of the model by its name, or the given text."""
    if prompt is None:
        return config.prompts.get(config.default_prompt, "") if config.default_prompt else ""
    if prompt in config.prompts:
        return config.prompts[prompt]
    if prompt.isidentifier():  # a single word is a name
        raise unknown("prompt", prompt, config.prompts)
    return prompt


def _read_modules(folder: Path) -> dict[str, str]:
    """class name → subfolder, in order; Dense can occur more than once."""
    if not (folder / "modules.json").is_file():
        return {}
    modules: dict[str, str] = {}
    for entry in _read_json(folder / "modules.json"):
        name = str(entry["type"]).rpartition(".")[2]
        if name not in ("Transformer", "Pooling", "Dense", "Normalize", "Dropout"):
            raise InputError(f"'{folder}' has a {name} module; known are Transformer, Pooling, Dense and Normalize.")
        key = f"{name}{len(modules)}" if name in modules else name
        modules[key] = entry.get("path", "")
    return modules


def _read_pooling(folder: Path, modules: Mapping[str, str]) -> str:
    if "Pooling" not in modules:
        return "mean"
    settings = _read_json(folder / modules["Pooling"] / "config.json")
    modes = (
        settings.get("pooling_mode")
        or [mode for flag, mode in _POOLING_FLAGS.items() if settings.get(flag)]
        or ["mean"]
    )
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise InputError(f"'{folder}' pools by {' + '.join(modes)}; known are {', '.join(POOLINGS)}, one at a time.")
    if settings.get("include_prompt", True) is False:
        raise InputError(f"'{folder}' leaves its prompt out of the pooling, which is not done here.")
    return str(modes[0])


def _read_dense(folder: Path) -> Dense:
    settings = _read_json(folder / "config.json")
    activation = str(settings.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in DENSE_ACTIVATIONS:
        raise unknown(f"activation in '{folder}'", activation, DENSE_ACTIVATIONS)
    if settings.get("use_residual"):
        raise InputError(f"'{folder}' is a dense module with a residual, which is not known here.")
    return Dense(folder, activation)


def _read_sentence_config(root: Path) -> dict[str, Any]:
    kinds = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert")
    for name in (f"sentence_{kind.replace('-', '_')}_config.json" for kind in kinds):
        if (root / name).is_file():
            return dict(_read_json(root / name))
    return {}


def _choose_max_tokens(root: Path, sentence: Mapping[str, Any], position_count: int) -> int:
    """Tokens per text: the limit of the folder, else of the tokenizer, at most the number of positions."""
    limit = sentence.get("max_seq_length")
    if limit is None:
        limit = _read_json(root / "tokenizer_config.json", needed=False).get("model_max_length", position_count)
    return max(1, min(int(limit), position_count))


def _read_json(file: Path, *, needed: bool = True) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not needed:
            return {}
        raise InputError(f"'{file.parent}' has no {file.name}, so it is no model's folder.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"'{file}' cannot be read: {error}.") from error
