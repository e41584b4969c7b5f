"""Read the configuration of a model folder: encoder, pooling, dense modules, prompts.

Supports sentence-transformers folders (modules.json) and plain Hugging Face snapshots (with mean pooling), in old and
new spellings. A model that this encoder cannot run is refused here, by name, before any weight is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, unknown

# model_type → whether positions start after the number of the padding token, as RoBERTa's do
FAMILIES = {"bert": False, "roberta": True, "xlm-roberta": True, "camembert": True}
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
POOLINGS = ("mean", "cls", "max")
DENSE_ACTIVATIONS = ("Identity", "Tanh", "GELU", "ReLU", "Sigmoid")  # after a dense module

_MODULES = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")  # Dropout does nothing outside training
_SPARSE_MODULES = ("SpladePooling", "MLMTransformer", "SparseAutoEncoder", "SparseStaticEmbedding")
_KINDS = {"CrossEncoder": "a cross-encoder (reranker)", "SparseEncoder": "a sparse encoder (SPLADE)"}
# the ends of architectures with a head: their hidden states were trained for something else than a vector per text
_TASKS = {
    "SequenceClassification": "a cross-encoder (reranker) or another classifier of texts",
    "TokenClassification": "a classifier of tokens",
    "QuestionAnswering": "a model that answers questions",
    "MultipleChoice": "a model that chooses between answers",
    "MaskedLM": "a sparse encoder (SPLADE) or another masked language model",
    "CausalLM": "a language model that writes text",
}

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
    """A linear module after the pooling; `normalized` if a Normalize module comes before it."""

    folder: Path
    activation: str
    normalized: bool = False


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


def read_config(folder: Path, *, encoder_only: bool = False) -> Config:
    """Read and check the configuration of a model folder; raises InputError if the encoder cannot run it.

    encoder_only  accept a folder with any head (a reranker, SPLADE, ColBERT); heads.py reads the modules after the
                  encoder, so pooling and dense modules are left out here
    """
    modules = find_encoder_module(folder) if encoder_only else _read_modules(folder)
    root = folder / next((path for name, path in modules if name == "Transformer"), "")
    settings = _read_json(root / "config.json")
    _refuse_other_kinds(folder, root, settings, bool(modules), encoder_only)
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
        pooling=_read_pooling(folder, modules),  # "mean" without a pooling module
        dense=_read_all_dense(folder, modules),
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


def _read_modules(folder: Path) -> list[tuple[str, str]]:
    """Return (class name, subfolder) of the modules in order; refuse an order that this encoder cannot run."""
    if not (folder / "modules.json").is_file():
        return []
    modules: list[tuple[str, str]] = []
    for entry in _read_json(folder / "modules.json"):
        package, _, name = str(entry["type"]).rpartition(".")
        if name in _SPARSE_MODULES:
            raise _make_kind_error(folder, "a sparse encoder (SPLADE)")
        if package.partition(".")[0] not in ("sentence_transformers", ""):
            raise InputError(f"'{folder}' has the module '{entry['type']}', which is code of its own; it is not run.")
        if name not in _MODULES:
            raise InputError(f"'{folder}' has a {name} module; known are Transformer, Pooling, Dense and Normalize.")
        modules.append((name, entry.get("path", "")))
    names = [name for name, _ in modules]
    order = " → ".join(names)
    if not names or names[0] != "Transformer" or names.count("Transformer") != 1:
        raise InputError(f"'{folder}' has the modules {order or '(none)'}; one Transformer must come first.")
    if names.count("Pooling") != 1 or any(name in ("Dense", "Normalize") for name in names[: names.index("Pooling")]):
        raise InputError(
            f"'{folder}' has the modules {order}; one Pooling must come after the Transformer, before Dense and "
            "Normalize."
        )
    return modules


def find_encoder_module(folder: Path) -> list[tuple[str, str]]:
    """Return [("Transformer", subfolder)], whatever modules follow it; [] without modules.json."""
    if not (folder / "modules.json").is_file():
        return []
    for entry in _read_json(folder / "modules.json"):
        if str(entry["type"]).rpartition(".")[2] in ("Transformer", "MLMTransformer"):
            return [("Transformer", entry.get("path", ""))]
    raise InputError(f"'{folder}' has no Transformer module (modules.json).")


def _refuse_other_kinds(
    folder: Path, root: Path, settings: Mapping[str, Any], has_modules: bool, encoder_only: bool
) -> None:
    """Refuse models that are no sentence encoders, and models with code of their own."""
    kind = _read_json(folder / "config_sentence_transformers.json", needed=False).get("model_type")
    if kind not in (None, "SentenceTransformer") and not encoder_only:
        raise _make_kind_error(folder, _KINDS.get(kind, f"a {kind}"))
    for file in ("config.json", "tokenizer_config.json"):
        own_code = (settings if file == "config.json" else _read_json(root / file, needed=False)).get("auto_map")
        if own_code:
            raise InputError(
                f"'{folder}' brings code of its own (auto_map in {file}: {own_code}), which is not run; without it "
                "the vectors would be others."
            )
    if has_modules or encoder_only:  # sentence-transformers takes only the encoder from such weights
        return
    for architecture in settings.get("architectures") or []:
        task = str(architecture).partition("For")[2]
        if task in _TASKS:
            raise _make_kind_error(folder, f"{_TASKS[task]} ({architecture})")


def _make_kind_error(folder: Path, kind: str) -> InputError:
    return InputError(
        f"'{folder}' is {kind}, not a sentence encoder, so it says nothing about one vector per text; give a model "
        "with a pooling module (modules.json)."
    )


def _read_pooling(folder: Path, modules: Sequence[tuple[str, str]]) -> str:
    pooling_path = next((path for name, path in modules if name == "Pooling"), None)
    if pooling_path is None:
        return "mean"
    settings = _read_json(folder / pooling_path / "config.json")
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


def _read_all_dense(folder: Path, modules: Sequence[tuple[str, str]]) -> tuple[Dense, ...]:
    """Return the dense modules in order. A Normalize at the end is not among them: `Embedder(normalize=)` does it."""
    dense, normalized = [], False
    for name, path in modules:
        if name == "Dense":
            dense.append(_read_dense(folder / path, normalized))
            normalized = False
        normalized = normalized or name == "Normalize"
    return tuple(dense)


def _read_dense(folder: Path, normalized: bool) -> Dense:
    settings = _read_json(folder / "config.json")
    if settings.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise InputError(
            f"'{folder}' is a dense module for '{settings['module_input_name']}'; only one for 'sentence_embedding' "
            "is known here."
        )
    activation = str(settings.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in DENSE_ACTIVATIONS:
        raise unknown(f"activation in '{folder}'", activation, DENSE_ACTIVATIONS)
    if settings.get("use_residual"):
        raise InputError(f"'{folder}' is a dense module with a residual, which is not known here.")
    return Dense(folder, activation, normalized)


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
