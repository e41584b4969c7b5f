"""The families of encoders: how each is put together from parts, and the names of its tensors.

An encoder is positions × attention × feed-forward × norm. A family is one page here: `read` turns its config.json into
fields of `Config` (config.py), and the tables say under which published names its tensors are stored. No family has
code of its own in the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import InputError, unknown

Settings = Mapping[str, Any]
Fields = dict[str, Any]


@dataclass(frozen=True)
class Half:
    """The first or second half of the rows of a tensor that joins gate and up."""

    name: str
    second: bool = False


Source = str | tuple[str, ...] | Half  # one tensor, several under each other, or half of one


@dataclass(frozen=True)
class Rotary:
    """Rotary positions of a layer: inv_freq = base ** (-2i / width) / divisor."""

    base: float
    divisor: float = 1.0


@dataclass(frozen=True)
class Family:
    """One family: its configuration, and its tensors by the names that the encoder uses."""

    read: Callable[[Settings], Fields]
    anchor: tuple[str, ...]  # the table of words; what comes before it is the stem of all names
    tensors: Mapping[str, Sequence[Source]]  # of the model
    layer_stems: tuple[str, ...]  # of layer {i}
    layer: Mapping[str, Sequence[Source]]  # of a layer
    own_classes: tuple[str, ...] = ()  # code on the hub that this page replaces: how its classes begin
    norm_offset: float = 0.0  # added to the weights of norms
    unused: tuple[str, ...] = ()  # ends of tensors that published folders have, and that no model uses


ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")


def find_family(model_type: str, settings: Settings) -> tuple[str, Family] | None:
    """Return the name of the family and its page; None if it is not known."""
    if model_type == "bert" and settings.get("position_embedding_type") == "alibi":
        return "jina_bert", _JINA_BERT
    name = _ALIASES.get(model_type, model_type)
    return (name, FAMILIES[name]) if name in FAMILIES else None


# Reading configurations. Everything that would change the result and is not known is refused by its name and value.


def _refuse(settings: Settings, **expected: Any) -> None:
    """Raise unless each setting is missing, None, or one of the expected values."""
    for name, values in expected.items():
        value = settings.get(name)
        if value is not None and value not in values:
            known = ", ".join(map(repr, values)) or "none"
            raise InputError(f"{name} is {value!r}, which is not known here; known: {known}.")


def _read_activation(settings: Settings, *names: str, default: str = "gelu") -> str:
    activation = next((settings[name] for name in names if settings.get(name)), default)
    if activation not in ACTIVATIONS:
        raise unknown("activation", str(activation), ACTIVATIONS)
    return str(activation)


def _read_common(settings: Settings, **names: str) -> Fields:
    """Sizes under the names that most families use."""
    layers = settings[names.get("layers", "num_hidden_layers")]
    heads = settings[names.get("heads", "num_attention_heads")]
    hidden = settings[names.get("hidden", "hidden_size")]
    if hidden % heads and not settings.get("head_dim"):
        raise InputError(f"hidden_size is {hidden}, which {heads} heads do not divide.")
    return {
        "layers": layers,
        "heads": heads,
        "hidden": hidden,
        "vocabulary": settings["vocab_size"],
        "positions": settings[names.get("positions", "max_position_embeddings")],
        "epsilon": settings.get(names.get("epsilon", "layer_norm_eps"), 1e-12),
        "key_heads": heads,
        "head_width": settings.get("head_dim") or hidden // heads,
        "biases": frozenset(("qkv", "out", "up", "down", "norm")),
    }


def _read_bert(settings: Settings) -> Fields:
    _refuse(settings, is_decoder=(False,))
    kind = settings.get("position_embedding_type", "absolute")
    if kind != "absolute":
        raise InputError(f"it has {kind} positions; only absolute ones are known.")
    return _read_common(settings) | {
        "activation": _read_activation(settings, "hidden_act"),
        "position_table": True,
        "first_position": 0,
        "padding": None,
    }


def _read_roberta(settings: Settings) -> Fields:
    padding = int(settings.get("pad_token_id") or 0)
    return _read_bert(settings) | {"first_position": padding + 1, "padding": padding}


def _read_mpnet(settings: Settings) -> Fields:
    _refuse(settings, relative_attention_num_buckets=(32,))  # transformers computes no other number
    return _read_common(settings) | {
        "activation": _read_activation(settings, "hidden_act"),
        "position_table": True,
        "first_position": 2,
        "padding": 1,  # whatever the number of the padding token is
        "bias": "buckets",
        "buckets": 32,
    }


def _read_distilbert(settings: Settings) -> Fields:
    names = {"layers": "n_layers", "heads": "n_heads", "hidden": "dim"}
    return _read_common(settings, **names) | {
        "activation": _read_activation(settings, "activation"),
        "epsilon": 1e-12,
        "position_table": True,
    }


def _read_albert(settings: Settings) -> Fields:
    _refuse(settings, position_embedding_type=("absolute",))
    layers, groups = settings["num_hidden_layers"], settings.get("num_hidden_groups", 1)
    inner = settings.get("inner_group_num", 1)
    order = [int(i / (layers / groups)) * inner + j for i in range(layers) for j in range(inner)]
    return _read_common(settings) | {
        "activation": _read_activation(settings, "hidden_act", default="gelu_new"),
        "position_table": True,
        "layers": groups * inner,
        "layer_order": tuple(order),
        "inner_group": inner,
        "projected": True,
    }


def _read_modernbert(settings: Settings) -> Fields:
    layers = settings["num_hidden_layers"]
    every = settings.get("global_attn_every_n_layers", 3)
    kinds = settings.get("layer_types") or [
        "sliding_attention" if i % every else "full_attention" for i in range(layers)
    ]
    rotary = {
        "full_attention": _read_rotary(settings, "full_attention", "global_rope_theta", 160_000.0),
        "sliding_attention": _read_rotary(settings, "sliding_attention", "local_rope_theta", 10_000.0),
    }
    biases = [
        *(("qkv", "out") if settings.get("attention_bias") else ()),
        *(("up", "down") if settings.get("mlp_bias") else ()),
        *(("norm",) if settings.get("norm_bias") else ()),
    ]
    window = int(settings.get("local_attention", 128)) // 2
    return _read_common(settings, epsilon="norm_eps") | {
        "epsilon": settings.get("norm_eps", 1e-5),
        "activation": _read_activation(settings, "hidden_activation"),
        "placement": "pre",
        "gated": True,
        "biases": frozenset(biases),
        "rotary": tuple(rotary[kind] for kind in kinds),
        "windows": tuple(window if kind == "sliding_attention" else None for kind in kinds),
        "skips_first_norm": True,
    }


def _read_nomic(settings: Settings) -> Fields:
    if "n_embd" not in settings:  # as transformers writes it
        common = _read_common(settings)
        rotary = _read_rotary(settings, None, "rotary_emb_base", 1000.0)
        activation = _read_activation(settings, "hidden_act", default="silu")
    else:
        _refuse(
            settings,
            activation_function=("swiglu",),
            prenorm=(False,),
            use_rms_norm=(False,),
            rotary_emb_fraction=(1, 1.0),
            rotary_emb_interleaved=(False,),
            rotary_emb_scale_base=(),
            qkv_proj_bias=(False,),
            mlp_fc1_bias=(False,),
            mlp_fc2_bias=(False,),
            parallel_block=(False,),
            num_experts=(0,),
            causal=(False,),
        )
        names = {"layers": "n_layer", "heads": "n_head", "hidden": "n_embd", "positions": "n_positions"}
        common = _read_common(settings, **names, epsilon="layer_norm_epsilon")
        if settings.get("rotary_scaling_factor"):  # beyond these the frequencies would depend on the length
            common["positions"] = min(common["positions"], settings.get("max_trained_positions", 2048))
        rotary, activation = Rotary(float(settings.get("rotary_emb_base", 10_000))), "silu"
    return common | {
        "activation": activation,
        "gated": True,
        "biases": frozenset(("norm",)),
        "rotary": (rotary,) * common["layers"],
    }


def _read_gte(settings: Settings) -> Fields:
    _refuse(
        settings,
        layer_norm_type=("layer_norm",),
        position_embedding_type=("rope",) if settings.get("model_type") == "new" else ("rope", "absolute"),
        pack_qkv=(True, False),
        logn_attention_scale=(False,),
    )
    common, base = _read_common(settings), float(settings.get("rope_theta") or 0)
    scaling = settings.get("rope_scaling") or {}
    if scaling.get("type") == "ntk" and not scaling.get("mixed_b"):
        factor = float(scaling["factor"])  # https://kexue.fm/archives/9706
        rotary = Rotary(base * factor, factor ** (2 / common["head_width"]))
    else:
        rotary = _read_rotary(settings, None, "rope_theta", 160_000.0)
    return common | {
        "activation": _read_activation(settings, "hidden_act"),
        "gated": True,
        "biases": frozenset(("qkv", "out", "down", "norm")),
        "rotary": (rotary,) * common["layers"],
    }


def _read_jina_v3(settings: Settings) -> Fields:
    common = _read_common(settings)
    rotary = _read_rotary(settings, None, "rotary_emb_base", 20_000.0)
    return common | {
        "activation": _read_activation(settings, "hidden_act"),
        "rotary": (rotary,) * common["layers"],
    }


def _read_jina_bert(settings: Settings) -> Fields:
    _refuse(settings, is_decoder=(False,), feed_forward_type=("geglu", "reglu"))
    return _read_common(settings) | {
        "activation": {"geglu": "gelu", "reglu": "relu"}[settings.get("feed_forward_type", "geglu")],
        "gated": True,
        "biases": frozenset(("qkv", "out", "down", "norm")),
        "bias": "alibi",
    }


def _read_deberta(settings: Settings) -> Fields:
    _refuse(settings, conv_kernel_size=(0,))
    common = _read_common(settings)
    kinds = settings.get("pos_att_type") or []
    kinds = kinds.split("|") if isinstance(kinds, str) else list(kinds)
    relative = bool(settings.get("relative_attention", False))
    longest = settings.get("max_relative_positions", -1)
    longest = longest if longest > 0 else settings["max_position_embeddings"]
    buckets = settings.get("position_buckets", -1)
    norms = str(settings.get("norm_rel_ebd", "none")).lower().split("|")
    if not set(kinds) <= {"c2p", "p2c"}:
        raise InputError(f"pos_att_type is {kinds}; known are c2p and p2c.")
    width = settings.get("embedding_size", common["hidden"])
    scaled = 1 + len(kinds)
    return common | {
        "activation": _read_activation(settings, "hidden_act"),
        "position_table": bool(settings.get("position_biased_input", True)),
        "scale": (common["head_width"] * scaled) ** -0.5,
        "bias": "disentangled" if relative and kinds else None,
        "disentangled": tuple(kinds),
        "buckets": buckets,
        "longest_distance": longest,
        "shares_position_projections": bool(settings.get("share_att_key", False)),
        "normalizes_distances": "layer_norm" in [norm.strip() for norm in norms],
        "has_distances": relative,
        "projected": width != common["hidden"],
        "projects_first": True,
    }


def _read_decoder(settings: Settings) -> Fields:
    """What Qwen3 and Gemma 3 share."""
    return _read_common(settings, epsilon="rms_norm_eps") | {
        "epsilon": settings.get("rms_norm_eps", 1e-6),
        "key_heads": settings.get("num_key_value_heads") or settings["num_attention_heads"],
        "head_width": settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"],
        "gated": True,
        "rms": True,
        "embed_norm": False,
        "biases": frozenset(("qkv", "out")) if settings.get("attention_bias") else frozenset(),
    }


def _read_qwen3(settings: Settings) -> Fields:
    common = _read_decoder(settings)
    window = settings.get("sliding_window") if settings.get("use_sliding_window") else None
    first = settings.get("max_window_layers", 28)
    kinds = settings.get("layer_types") or [
        "sliding_attention" if window is not None and i >= first else "full_attention" for i in range(common["layers"])
    ]
    rotary = _read_rotary(settings, None, "rope_theta", 10_000.0)
    return common | {
        "activation": _read_activation(settings, "hidden_act", default="silu"),
        "placement": "pre",
        "causal": settings.get("is_causal", True) is not False,
        "rotary": (rotary,) * common["layers"],
        "windows": tuple(
            int(window) - 1 if window is not None and kind == "sliding_attention" else None for kind in kinds
        ),
    }


def _read_gemma3(settings: Settings) -> Fields:
    _refuse(settings, attn_logit_softcapping=())
    common = _read_decoder(settings)
    pattern = settings.get("sliding_window_pattern") or settings.get("_sliding_window_pattern") or 6
    kinds = settings.get("layer_types") or [
        "sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(common["layers"])
    ]
    rotary = {
        "full_attention": _read_rotary(settings, "full_attention", "rope_theta", 1_000_000.0),
        "sliding_attention": _read_rotary(
            {k: v for k, v in settings.items() if k != "rope_scaling"},
            "sliding_attention",
            "rope_local_base_freq",
            10_000.0,
        ),
    }
    both_ways = bool(settings.get("use_bidirectional_attention"))
    window = int(settings.get("sliding_window") or 4096)
    distance = window // 2 if both_ways else window - 1
    return common | {
        "activation": _read_activation(settings, "hidden_activation", "hidden_act", default="gelu_pytorch_tanh"),
        "placement": "both",
        "causal": not both_ways,
        "scale": settings.get("query_pre_attn_scalar", 256) ** -0.5,
        "rotary": tuple(rotary[kind] for kind in kinds),
        "windows": tuple(distance if kind == "sliding_attention" else None for kind in kinds),
        "embed_scale": common["hidden"] ** 0.5,
        "wide_range": True,
    }


def _read_rotary(settings: Settings, kind: str | None, key: str, default: float) -> Rotary:
    """Read the base and the linear scaling, in the spelling of transformers 5 or the older one."""
    parameters = settings.get("rope_parameters") or {}
    if kind is not None and kind in parameters:
        parameters = parameters[kind] or {}
    scaling = settings.get("rope_scaling") or {}
    parameters = {**scaling, **parameters}
    form = parameters.get("rope_type") or parameters.get("type") or "default"
    base = float(parameters.get("rope_theta") or settings.get(key) or default)
    if form not in ("default", "linear"):
        raise InputError(f"its rotary positions are of the type '{form}'; known are default and linear.")
    if float(parameters.get("partial_rotary_factor") or settings.get("partial_rotary_factor") or 1) != 1:
        raise InputError("its rotary positions turn a part of each head only, which is not known here.")
    return Rotary(base, float(parameters.get("factor") or 1) if form == "linear" else 1.0)


# Pages.


_BERT_EMBEDDINGS: dict[str, Sequence[Source]] = {
    "word": ("embeddings.word_embeddings",),
    "position": ("embeddings.position_embeddings",),
    "type": ("embeddings.token_type_embeddings",),
    "embed_norm": ("embeddings.LayerNorm",),
}
_BERT_LAYER: dict[str, Sequence[Source]] = {
    "qkv": (("attention.self.query", "attention.self.key", "attention.self.value"),),
    "out": ("attention.output.dense",),
    "out_norm": ("attention.output.LayerNorm",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
    "down_norm": ("output.LayerNorm",),
}
_WORDS = ("embeddings.word_embeddings.weight",)
_BERT = Family(_read_bert, _WORDS, _BERT_EMBEDDINGS, ("encoder.layer.{i}.",), _BERT_LAYER)
_ROBERTA = Family(_read_roberta, _WORDS, _BERT_EMBEDDINGS, ("encoder.layer.{i}.",), _BERT_LAYER)
_JINA_BERT = Family(
    _read_jina_bert,
    _WORDS,
    _BERT_EMBEDDINGS,
    ("encoder.layer.{i}.",),
    {
        **{name: _BERT_LAYER[name] for name in ("qkv", "out", "out_norm")},
        "gate": (Half("mlp.gated_layers"),),
        "up": (Half("mlp.gated_layers", second=True),),
        "down": ("mlp.wo",),
        "down_norm": ("mlp.layernorm",),
    },
    own_classes=("JinaBert",),
)
_MPNET = Family(
    _read_mpnet,
    _WORDS,
    _BERT_EMBEDDINGS | {"distances": ("encoder.relative_attention_bias",)},
    ("encoder.layer.{i}.",),
    {
        "qkv": (("attention.attn.q", "attention.attn.k", "attention.attn.v"),),
        "out": ("attention.attn.o",),
        "out_norm": ("attention.LayerNorm",),
        **{name: _BERT_LAYER[name] for name in ("up", "down", "down_norm")},
    },
)
_DISTILBERT = Family(
    _read_distilbert,
    _WORDS,
    _BERT_EMBEDDINGS,
    ("transformer.layer.{i}.",),
    {
        "qkv": (("attention.q_lin", "attention.k_lin", "attention.v_lin"),),
        "out": ("attention.out_lin",),
        "out_norm": ("sa_layer_norm",),
        "up": ("ffn.lin1",),
        "down": ("ffn.lin2",),
        "down_norm": ("output_layer_norm",),
    },
)
_ALBERT = Family(
    _read_albert,
    _WORDS,
    _BERT_EMBEDDINGS | {"projection": ("encoder.embedding_hidden_mapping_in",)},
    ("encoder.albert_layer_groups.{group}.albert_layers.{inner}.",),
    {
        "qkv": (("attention.query", "attention.key", "attention.value"),),
        "out": ("attention.dense",),
        "out_norm": ("attention.LayerNorm",),
        "up": ("ffn",),
        "down": ("ffn_output",),
        "down_norm": ("full_layer_layer_norm",),
    },
)
_MODERNBERT = Family(
    _read_modernbert,
    ("embeddings.tok_embeddings.weight",),
    {
        "word": ("embeddings.tok_embeddings",),
        "embed_norm": ("embeddings.norm",),
        "final_norm": ("final_norm",),
    },
    ("layers.{i}.",),
    {
        "attention_norm": ("attn_norm",),
        "qkv": ("attn.Wqkv",),
        "out": ("attn.Wo",),
        "mlp_norm": ("mlp_norm",),
        "gate": (Half("mlp.Wi"),),
        "up": (Half("mlp.Wi", second=True),),
        "down": ("mlp.Wo",),
    },
)
_ROTARY_EMBEDDINGS: dict[str, Sequence[Source]] = {
    "word": ("embeddings.word_embeddings",),
    "type": ("embeddings.token_type_embeddings",),
    "embed_norm": ("embeddings.LayerNorm", "emb_ln"),
}
_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_NOMIC = Family(
    _read_nomic,
    _WORDS,
    _ROTARY_EMBEDDINGS,
    ("layers.{i}.", "encoder.layers.{i}."),
    {
        "qkv": (_PROJECTIONS, "attn.Wqkv"),
        "out": ("self_attn.o_proj", "attn.out_proj"),
        "out_norm": ("post_attention_layernorm", "norm1"),
        "gate": ("mlp.gate_proj", "mlp.fc12"),
        "up": ("mlp.up_proj", "mlp.fc11"),
        "down": ("mlp.down_proj", "mlp.fc2"),
        "down_norm": ("post_mlp_layernorm", "norm2"),
    },
    own_classes=("NomicBert",),
)
_GTE = Family(
    _read_gte,
    _WORDS,
    _ROTARY_EMBEDDINGS,
    ("layers.{i}.", "encoder.layer.{i}."),
    {
        "qkv": (
            _PROJECTIONS,
            "attention.qkv_proj",
            ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        ),
        "out": ("self_attn.o_proj", "attention.o_proj"),
        "out_norm": ("post_attention_layernorm", "attn_ln"),
        "gate": ("mlp.gate_proj", Half("mlp.up_gate_proj", second=True)),
        "up": ("mlp.up_proj", Half("mlp.up_gate_proj")),
        "down": ("mlp.down_proj",),
        "down_norm": ("post_mlp_layernorm", "mlp_ln"),
    },
    own_classes=("New",),
)
_JINA_V3 = Family(
    _read_jina_v3,
    _WORDS,
    _ROTARY_EMBEDDINGS,
    ("layers.{i}.", "encoder.layers.{i}."),
    {
        "qkv": (_PROJECTIONS, "mixer.Wqkv"),
        "out": ("self_attn.o_proj", "mixer.out_proj"),
        "out_norm": ("post_attention_layernorm", "norm1"),
        "up": ("mlp.fc1",),
        "down": ("mlp.fc2",),
        "down_norm": ("post_mlp_layernorm", "norm2"),
    },
)
_DEBERTA = Family(
    _read_deberta,
    _WORDS,
    _BERT_EMBEDDINGS
    | {
        "projection": ("embeddings.embed_proj",),
        "distances": ("encoder.rel_embeddings",),
        "distance_norm": ("encoder.LayerNorm",),
    },
    ("encoder.layer.{i}.",),
    {
        **_BERT_LAYER,
        "qkv": (("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"),),
        "position_key": ("attention.self.pos_key_proj",),
        "position_query": ("attention.self.pos_query_proj",),
    },
    unused=("embeddings.position_embeddings.weight",),
)
_DECODER_TENSORS: dict[str, Sequence[Source]] = {"word": ("embed_tokens",), "final_norm": ("norm",)}
_DECODER_LAYER: dict[str, Sequence[Source]] = {
    "attention_norm": ("input_layernorm",),
    "qkv": (_PROJECTIONS,),
    "query_norm": ("self_attn.q_norm",),
    "key_norm": ("self_attn.k_norm",),
    "out": ("self_attn.o_proj",),
    "gate": ("mlp.gate_proj",),
    "up": ("mlp.up_proj",),
    "down": ("mlp.down_proj",),
}
_QWEN3 = Family(
    _read_qwen3,
    ("embed_tokens.weight",),
    _DECODER_TENSORS,
    ("layers.{i}.",),
    _DECODER_LAYER | {"mlp_norm": ("post_attention_layernorm",)},
)
_GEMMA3 = Family(
    _read_gemma3,
    ("embed_tokens.weight",),
    _DECODER_TENSORS,
    ("layers.{i}.",),
    _DECODER_LAYER
    | {
        "out_norm": ("post_attention_layernorm",),
        "mlp_norm": ("pre_feedforward_layernorm",),
        "down_norm": ("post_feedforward_layernorm",),
    },
    norm_offset=1.0,
)

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": _MPNET,
    "distilbert": _DISTILBERT,
    "albert": _ALBERT,
    "modernbert": _MODERNBERT,
    "nomic_bert": _NOMIC,
    "gte": _GTE,
    "jina_bert": _JINA_BERT,
    "jina_embeddings_v3": _JINA_V3,
    "deberta-v2": _DEBERTA,
    "qwen3": _QWEN3,
    "gemma3_text": _GEMMA3,
}
_ALIASES = {"new": "gte"}  # what GTE's own code calls itself
