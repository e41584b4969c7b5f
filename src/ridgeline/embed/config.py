"""Read the configuration of a model folder: encoder, poolings, the modules after them, prompts.

Supports sentence-transformers folders (modules.json), plain Hugging Face snapshots (with mean pooling) and static
tables (StaticEmbedding, model2vec), in old and new spellings. A model that this encoder cannot run is refused here, by
name, before any weight is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.embed.families import FAMILIES, Family, Rotary, find_family
from ridgeline.embed.folder_files import list_modules, read_json_object
from ridgeline.errors import InputError, unknown

STATIC = "static"  # the family of static tables: words without layers
MAX_STATIC_TOKENS = 1 << 20  # a table has no limit
POOLINGS = ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
# after a dense module: classes of torch.nn without parameters
DENSE_ACTIVATIONS = (
    "Identity", "Tanh", "GELU", "ReLU", "Sigmoid", "SiLU", "LeakyReLU", "ELU", "SELU", "ReLU6", "Mish", "Softplus",
    "Softsign", "Hardtanh", "Hardswish",
)  # fmt: skip

# Dropout does nothing outside training
_MODULES = ("Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", "Dropout")
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
class LayerNorm:
    """A layer norm after the pooling; `normalized` if a Normalize module comes before it."""

    folder: Path
    normalized: bool = False


@dataclass(frozen=True)
class Config:
    """One model, as its folder describes it. The fields after `default_prompt` have BERT's values as defaults."""

    folder: Path  # of the encoder's config.json and weights
    layers: int  # with weights of their own
    heads: int
    hidden: int
    vocabulary: int
    positions: int  # rows of the position table, or the most tokens
    activation: str
    epsilon: float
    max_tokens: int
    lower: bool  # texts are converted to lower case, but not special tokens in them ([MASK])
    poolings: tuple[str, ...]  # several: their vectors one after the other
    modules: tuple[Dense | LayerNorm, ...]  # after the pooling
    prompts: Mapping[str, str]
    default_prompt: str | None
    model_type: str = "bert"  # the family (families.py)
    ends_with_norm: bool = False  # the last module is Normalize; `Embedder(normalize=)` does it
    similarity: str | None = None  # the function that the model was trained for
    truncate_dim: int | None = None  # components of a vector that are kept; None: all
    pools_prompt: bool = True  # whether the tokens of a prompt count in the pooling
    position_table: bool = False
    first_position: int = 0  # of the table: 0, or RoBERTa's padding number + 1
    padding: int | None = None  # the token without a position, for RoBERTa
    embed_norm: bool = True
    embed_scale: float = 1.0  # of the table of words
    projected: bool = False  # the table of words is narrower than the hidden states
    projects_first: bool = False  # the norm comes after the projection
    placement: str = "post"  # of norms: "post" (after the residual), "pre" (before attention and MLP), "both" sides
    skips_first_norm: bool = False  # no norm before the first attention
    rms: bool = False  # norms by the root of the mean square, without a bias
    gated: bool = False  # MLP: down(activation(gate(x)) · up(x))
    biases: frozenset[str] = frozenset()  # of the parts qkv, out, up, down, norm
    key_heads: int = 0  # fewer than heads: several queries share a key
    head_width: int = 0
    scale: float | None = None  # of the products of queries and keys; None: 1 / √head_width
    causal: bool = False
    rotary: tuple[Rotary, ...] = ()  # for each layer
    windows: tuple[int | None, ...] = ()  # for each layer: the largest distance of a query to its keys; None: any
    layer_order: tuple[int, ...] = ()  # the layers in the order of their use; () once each
    inner_group: int = 1  # ALBERT: layers per group
    bias: str | None = None  # by distance: "buckets" (MPNet), "alibi", "disentangled" (DeBERTa)
    buckets: int = 0
    longest_distance: int = 0
    disentangled: tuple[str, ...] = ()  # "c2p", "p2c"
    has_distances: bool = False  # the weights have a table of distances
    normalizes_distances: bool = False
    shares_position_projections: bool = False
    wide_range: bool = False  # hidden states beyond the range of float16
    dropped_token: int | None = None  # a static table without this token
    max_characters: int | None = None  # of a text, cut before tokenizing

    @property
    def pooling(self) -> str:
        """The name of the pooling; of several: "cls + mean"."""
        return " + ".join(self.poolings)

    @property
    def plain(self) -> bool:
        """Whether it is built like BERT: absolute positions, norms after the residual, no gate, full attention."""
        return self.plain_attention and (
            self.position_table and self.embed_norm and not self.projected and not self.gated and not self.layer_order
        )

    @property
    def plain_attention(self) -> bool:
        """Whether every token attends to all tokens of its text, without positions or norms inside the attention."""
        return (
            self.placement == "post"
            and self.layers > 0
            and self.bias is None
            and not self.rotary
            and not self.causal
            and self.scale is None
            and self.key_heads == self.heads
        )


def read_config(folder: Path, *, encoder_only: bool = False) -> Config:
    """Read and check the configuration of a model folder; raises InputError if the encoder cannot run it.

    encoder_only  accept a folder with any head (a reranker, SPLADE, ColBERT); heads.py reads the modules after the
                  encoder, so pooling and dense modules are left out here
    """
    static = _find_static(folder)
    if static is not None:
        return _read_static(folder, *static)
    modules = find_encoder_module(folder) if encoder_only else _read_modules(folder)
    root = folder / next((path for name, path in modules if name == "Transformer"), "")
    if (root / "adapter_config.json").is_file():
        raise InputError(f"'{root}' has an adapter, which is not applied here; merge it into the weights with peft.")
    settings = read_json_object(root / "config.json")
    family = find_family(str(settings.get("model_type")), settings)
    _refuse_other_kinds(folder, root, settings, family, bool(modules), encoder_only)
    if family is None:
        raise InputError(
            f"'{folder}' is a '{settings.get('model_type')}' model; this encoder knows {', '.join(FAMILIES)} "
            "and static tables."
        )
    try:
        fields = family[1].read(settings)
    except InputError as error:
        raise InputError(f"'{folder}': {error}") from None
    except KeyError as error:
        raise InputError(f"'{root}/config.json' lacks {error}; fetch the model again.") from None
    sentence = _read_sentence_config(root)
    return Config(
        folder=root,
        model_type=family[0],
        max_tokens=_choose_max_tokens(root, sentence, fields["positions"] - fields.get("first_position", 0)),
        lower=bool(sentence.get("do_lower_case", False)),
        **_read_pooling(folder, modules),
        modules=_read_later_modules(folder, modules),
        ends_with_norm=bool(modules) and modules[-1][0] == "Normalize",
        **_read_prompts(folder),
        **fields,
    )


def _read_prompts(folder: Path) -> dict[str, Any]:
    file = folder / "config_sentence_transformers.json"
    settings = read_json_object(file, needed=False)
    prompts, width = settings.get("prompts") or {}, settings.get("truncate_dim")
    if not isinstance(prompts, Mapping):
        raise InputError(f"'{file}' has prompts that are no object with names; correct them.")
    if width is not None and (type(width) is not int or width < 1):
        raise InputError(f"'{file}' has the truncate_dim {width!r}; it must be 1 or more, or null.")
    prompts = {name: text for name, text in prompts.items() if isinstance(text, str)}
    default = settings.get("default_prompt_name")
    if default is not None and default not in {"query", "document", *prompts}:
        raise InputError(f"'{file}' has the default prompt {default!r}, which is not among its prompts; correct it.")
    return {
        "prompts": prompts,
        "default_prompt": default,
        "similarity": settings.get("similarity_fn_name"),
        "truncate_dim": width,
    }


def _find_static(folder: Path) -> tuple[Path, bool] | None:
    """Return the folder of a static table and whether model2vec wrote it; None if it is no static table."""
    if (folder / "modules.json").is_file():
        modules = list_modules(folder)
        names = [kind.rpartition(".")[2] for kind, _ in modules]
        if "StaticEmbedding" not in names:
            return None
        if names not in (["StaticEmbedding"], ["StaticEmbedding", "Normalize"]):
            raise InputError(f"'{folder}' has the modules {' → '.join(names)}; only Normalize may follow a table.")
        return folder / modules[0][1], False
    config = read_json_object(folder / "config.json")
    return (folder, True) if config.get("model_type") == "model2vec" else None


def _read_static(folder: Path, root: Path, is_model2vec: bool) -> Config:
    from ridgeline.embed.tensor_files import read_table_shape

    vocabulary, width = read_table_shape(root)
    settings = read_json_object(root / "config.json", needed=False)
    own_limit = settings.get("max_length", 512) if is_model2vec else None
    limit = own_limit or MAX_STATIC_TOKENS
    return Config(
        folder=root,
        model_type=STATIC,
        layers=0,
        heads=1,
        hidden=width,
        vocabulary=vocabulary,
        positions=limit,
        activation="gelu",
        epsilon=0.0,
        max_tokens=limit,
        lower=False,
        poolings=("mean",),
        modules=(),
        embed_norm=False,
        ends_with_norm=_ends_with_norm(folder, settings, is_model2vec),
        dropped_token=_find_unknown_token(root) if is_model2vec else None,
        max_characters=own_limit * _find_median_length(root) if own_limit else None,
        **_read_prompts(folder),
    )


def _ends_with_norm(folder: Path, settings: Mapping[str, Any], is_model2vec: bool) -> bool:
    if is_model2vec:
        return bool(settings.get("normalize", False))
    return list_modules(folder)[-1][0].endswith("Normalize")


def _find_median_length(root: Path) -> int:
    """Return the median length of a token in characters, by which model2vec cuts long texts before it tokenizes."""
    vocabulary = read_json_object(root / "tokenizer.json").get("model", {}).get("vocab", {})
    lengths = sorted(len(entry[0] if isinstance(entry, list) else entry) for entry in vocabulary)
    middle = len(lengths) // 2
    return (lengths[middle] + lengths[~middle]) // 2 if lengths else 1


def _find_unknown_token(root: Path) -> int | None:
    """Return the number of the tokenizer's unknown token, which model2vec leaves out."""
    model = read_json_object(root / "tokenizer.json").get("model", {})
    if model.get("type") == "Unigram":
        number = model.get("unk_id")
        return None if number is None else int(number)
    name = model.get("unk_token")
    return model.get("vocab", {}).get(name) if name else None


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
    for kind, path in list_modules(folder):
        package, _, name = kind.rpartition(".")
        if name in _SPARSE_MODULES:
            raise _make_kind_error(folder, "a sparse encoder (SPLADE)")
        if package.partition(".")[0] not in ("sentence_transformers", ""):
            raise InputError(f"'{folder}' has the module '{kind}', which is code of its own; it is not run.")
        if name not in _MODULES:
            raise InputError(
                f"'{folder}' has a {name} module; known are Transformer, Pooling, Dense, LayerNorm and Normalize."
            )
        modules.append((name, path))
    names = [name for name, _ in modules]
    order = " → ".join(names)
    if not names or names[0] != "Transformer" or names.count("Transformer") != 1:
        raise InputError(f"'{folder}' has the modules {order or '(none)'}; one Transformer must come first.")
    if names.count("Pooling") != 1 or not set(names[1 : names.index("Pooling")]) <= {"Dropout"}:
        raise InputError(
            f"'{folder}' has the modules {order}; one Pooling must come after the Transformer, before Dense, "
            "LayerNorm and Normalize."
        )
    return modules


def find_encoder_module(folder: Path) -> list[tuple[str, str]]:
    """Return [("Transformer", subfolder)], whatever modules follow it; [] without modules.json."""
    if not (folder / "modules.json").is_file():
        return []
    for kind, path in list_modules(folder):
        if kind.rpartition(".")[2] in ("Transformer", "MLMTransformer"):
            return [("Transformer", path)]
    raise InputError(f"'{folder}' has no Transformer module (modules.json).")


def _refuse_other_kinds(
    folder: Path,
    root: Path,
    settings: Mapping[str, Any],
    family: tuple[str, Family] | None,
    has_modules: bool,
    encoder_only: bool,
) -> None:
    """Refuse models that are no sentence encoders, and models with code of their own."""
    kind = read_json_object(folder / "config_sentence_transformers.json", needed=False).get("model_type")
    if kind not in (None, "SentenceTransformer") and not encoder_only:
        raise _make_kind_error(folder, _KINDS.get(kind, f"a {kind}"))
    for file in ("config.json", "tokenizer_config.json"):
        own_code = (settings if file == "config.json" else read_json_object(root / file, needed=False)).get("auto_map")
        if own_code and not _is_replaced(own_code, family):
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


def _is_replaced(own_code: Any, family: tuple[str, Family] | None) -> bool:
    """Whether all classes of a folder's code are ones that a family here stands for."""
    if family is None or not family[1].own_classes or not isinstance(own_code, Mapping):
        return False
    classes = [str(value).rpartition(".")[2] for value in own_code.values()]
    return all(name.startswith(family[1].own_classes) for name in classes)


def _make_kind_error(folder: Path, kind: str) -> InputError:
    return InputError(
        f"'{folder}' is {kind}, not a sentence encoder, so it says nothing about one vector per text; give a model "
        "with a pooling module (modules.json)."
    )


def _read_pooling(folder: Path, modules: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the poolings, "mean" without a pooling module, and whether they take the tokens of a prompt."""
    pooling_path = next((path for name, path in modules if name == "Pooling"), None)
    if pooling_path is None:
        return {"poolings": ("mean",)}
    settings = read_json_object(folder / pooling_path / "config.json")
    modes = (
        settings.get("pooling_mode")
        or [mode for flag, mode in _POOLING_FLAGS.items() if settings.get(flag)]
        or ["mean"]
    )
    modes = [modes] if isinstance(modes, str) else list(modes)
    for mode in modes:
        if mode not in POOLINGS:
            raise InputError(f"'{folder}' pools by {' + '.join(map(str, modes))}; known are {', '.join(POOLINGS)}.")
    pools_prompt = settings.get("include_prompt", True) is not False
    if not pools_prompt and "weightedmean" in modes:
        raise InputError(f"'{folder}' leaves its prompt out of a weightedmean, which is not done here.")
    return {"poolings": tuple(modes), "pools_prompt": pools_prompt}


def _read_later_modules(folder: Path, modules: Sequence[tuple[str, str]]) -> tuple[Dense | LayerNorm, ...]:
    """Return the modules after the pooling in order. A Normalize at the end is not among them:
    `Embedder(normalize=)` does it.
    """
    later: list[Dense | LayerNorm] = []
    normalized = False
    for name, path in modules:
        if name in ("Dense", "LayerNorm"):
            later.append(
                _read_dense(folder / path, normalized) if name == "Dense" else LayerNorm(folder / path, normalized)
            )
            normalized = False
        normalized = normalized or name == "Normalize"
    return tuple(later)


def _read_dense(folder: Path, normalized: bool) -> Dense:
    settings = read_json_object(folder / "config.json")
    if settings.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise InputError(
            f"'{folder}' is a dense module for '{settings['module_input_name']}'; only one for 'sentence_embedding' "
            "is known here."
        )
    package, _, activation = str(settings.get("activation_function", "torch.Tanh")).rpartition(".")
    if package.partition(".")[0] not in ("torch", ""):
        raise InputError(f"'{folder}' has the activation {package}.{activation}, code of its own, which is not run.")
    if activation not in DENSE_ACTIVATIONS:
        raise unknown(f"activation in '{folder}'", activation, DENSE_ACTIVATIONS)
    if settings.get("use_residual"):
        raise InputError(f"'{folder}' is a dense module with a residual, which is not known here.")
    return Dense(folder, activation, normalized)


def _read_sentence_config(root: Path) -> dict[str, Any]:
    kinds = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert")
    for name in (f"sentence_{kind.replace('-', '_')}_config.json" for kind in kinds):
        if (root / name).is_file():
            return dict(read_json_object(root / name))
    return {}


def _choose_max_tokens(root: Path, sentence: Mapping[str, Any], position_count: int) -> int:
    """Tokens per text: the limit of the folder, else of the tokenizer, at most the number of positions."""
    limit = sentence.get("max_seq_length")
    if limit is None:
        limit = read_json_object(root / "tokenizer_config.json", needed=False).get("model_max_length")
    try:
        number = math.inf if limit is None else float(limit)
    except (TypeError, ValueError):
        number = math.nan
    if not number >= 1:
        raise InputError(f"'{root}' has the limit of {limit!r} tokens per text; correct max_seq_length there.")
    return int(min(number, position_count))
