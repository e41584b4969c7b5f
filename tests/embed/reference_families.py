"""Tiny random models of every family, and each family as its paper has it: one text at a time, float64.

Names and shapes of the tensors are written out here once more, so a mistake in the package's tables shows.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tests.embed import tiny

H, LAYERS, HEADS, INNER, LENGTH = 32, 3, 4, 48, 40
SIZES = {
    "hidden_size": H,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": LENGTH,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}
DECODER = {**SIZES, "num_key_value_heads": 2, "head_dim": 12, "rms_norm_eps": 1e-6}
HUB_NOMIC = {
    "model_type": "nomic_bert",
    "n_embd": H,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_inner": INNER,
    "n_positions": LENGTH,
    "activation_function": "swiglu",
    "layer_norm_epsilon": 1e-6,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
}
DEBERTA = {
    "model_type": "deberta-v2",
    "relative_attention": True,
    "position_buckets": 8,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "type_vocab_size": 0,
}
# name → its config.json
MODELS: dict[str, dict[str, Any]] = {
    "mpnet": {"model_type": "mpnet", "relative_attention_num_buckets": 32},
    "distilbert": {"model_type": "distilbert", "dim": H, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": INNER},
    "albert": {"model_type": "albert", "embedding_size": 20, "num_hidden_groups": 1, "hidden_act": "gelu_new"},
    "albert-groups": {"model_type": "albert", "embedding_size": H, "num_hidden_groups": 3, "inner_group_num": 2},
    "modernbert": {
        "model_type": "modernbert",
        "global_attn_every_n_layers": 2,
        "local_attention": 6,
        "norm_eps": 1e-6,
        "global_rope_theta": 8000.0,
        "local_rope_theta": 100.0,
    },
    "nomic": {"model_type": "nomic_bert", "hidden_act": "silu", "type_vocab_size": 2},
    "nomic-hub": HUB_NOMIC,
    "gte": {"model_type": "gte", "rope_theta": 500.0, "type_vocab_size": 1},
    "gte-hub": {
        "model_type": "new",
        "position_embedding_type": "rope",
        "rope_theta": 500.0,
        "rope_scaling": {"type": "ntk", "factor": 4.0},
        "layer_norm_type": "layer_norm",
        "pack_qkv": True,
        "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    },
    "jina-v2": {
        "model_type": "bert",
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        "num_attention_heads": 4,
        "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
    },
    "jina-v2-heads": {  # ALiBi's slopes for a number of heads that is no power of two
        "model_type": "bert",
        "position_embedding_type": "alibi",
        "feed_forward_type": "reglu",
        "hidden_size": 36,
        "num_attention_heads": 6,
    },
    "jina-v3": {"model_type": "jina_embeddings_v3", "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    "deberta": DEBERTA,
    "deberta-plain-distances": {
        **DEBERTA,
        "position_buckets": -1,
        "max_relative_positions": 6,
        "pos_att_type": "c2p",
        "share_att_key": False,
        "norm_rel_ebd": "none",
        "position_biased_input": True,
        "type_vocab_size": 2,
        "embedding_size": 20,
    },
    "qwen3": {"model_type": "qwen3", **DECODER, "hidden_act": "silu", "rope_theta": 700.0},
    "qwen3-window": {
        "model_type": "qwen3",
        **DECODER,
        "hidden_act": "silu",
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 1,
        "attention_bias": True,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **DECODER,
        "hidden_activation": "gelu_pytorch_tanh",
        "use_bidirectional_attention": True,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 10,
        "rope_theta": 900.0,
        "rope_local_base_freq": 50.0,
    },
    "gemma3-causal": {
        "model_type": "gemma3_text",
        **DECODER,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 5,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 12,
    },
}


def make(folder: Path, name: str, **changes: Any) -> Path:
    """A folder of this family with random weights, as Hugging Face has it."""
    folder.mkdir(parents=True)
    settings = {**SIZES, **MODELS[name], "vocab_size": tiny.tokenizer(folder, "bert"), **changes}
    tiny.write(folder / "config.json", settings)
    random = np.random.default_rng(len(name))
    tensors = {}
    for tensor, shape in list_shapes(name, settings).items():
        values = random.normal(size=shape) * (0.3 if len(shape) > 1 else 0.2)
        norm = tensor.endswith("weight") and len(shape) == 1 and settings["model_type"] != "gemma3_text"
        tensors[tensor] = (values + norm).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def list_shapes(name: str, s: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors."""
    h, inner, v = s.get("hidden_size", H), s["intermediate_size"], s["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(stem: str, rows: int, columns: int, bias: bool = True) -> None:
        shapes[f"{stem}.weight"] = (rows, columns)
        if bias:
            shapes[f"{stem}.bias"] = (rows,)

    def norm(stem: str, width: int = h, bias: bool = True) -> None:
        shapes[f"{stem}.weight"] = (width,)
        if bias:
            shapes[f"{stem}.bias"] = (width,)

    def bert_embeddings(width: int = h, types: int = 2, positions: bool = True) -> None:
        shapes["embeddings.word_embeddings.weight"] = (v, width)
        if positions:
            shapes["embeddings.position_embeddings.weight"] = (s["max_position_embeddings"], width)
        if types:
            shapes["embeddings.token_type_embeddings.weight"] = (types, width)
        norm("embeddings.LayerNorm", width)

    family = name.partition("-")[0] if not name.startswith("jina") else name[:7]
    if family == "mpnet":
        bert_embeddings(types=0)
        shapes["encoder.relative_attention_bias.weight"] = (32, HEADS)
        for i in range(LAYERS):
            stem = f"encoder.layer.{i}"
            for part in "qkvo":
                linear(f"{stem}.attention.attn.{part}", h, h)
            norm(f"{stem}.attention.LayerNorm")
            linear(f"{stem}.intermediate.dense", inner, h)
            linear(f"{stem}.output.dense", h, inner)
            norm(f"{stem}.output.LayerNorm")
    elif family == "distilbert":
        bert_embeddings(types=0)
        for i in range(LAYERS):
            stem = f"transformer.layer.{i}"
            for part in "qkv":
                linear(f"{stem}.attention.{part}_lin", h, h)
            linear(f"{stem}.attention.out_lin", h, h)
            norm(f"{stem}.sa_layer_norm")
            linear(f"{stem}.ffn.lin1", inner, h)
            linear(f"{stem}.ffn.lin2", h, inner)
            norm(f"{stem}.output_layer_norm")
    elif family == "albert":
        bert_embeddings(s["embedding_size"])
        linear("encoder.embedding_hidden_mapping_in", h, s["embedding_size"])
        for group in range(s["num_hidden_groups"]):
            for j in range(s.get("inner_group_num", 1)):
                stem = f"encoder.albert_layer_groups.{group}.albert_layers.{j}"
                for part in ("query", "key", "value", "dense"):
                    linear(f"{stem}.attention.{part}", h, h)
                norm(f"{stem}.attention.LayerNorm")
                linear(f"{stem}.ffn", inner, h)
                linear(f"{stem}.ffn_output", h, inner)
                norm(f"{stem}.full_layer_layer_norm")
    elif family == "modernbert":
        shapes["embeddings.tok_embeddings.weight"] = (v, h)
        norm("embeddings.norm", bias=False)
        norm("final_norm", bias=False)
        for i in range(LAYERS):
            if i:
                norm(f"layers.{i}.attn_norm", bias=False)
            linear(f"layers.{i}.attn.Wqkv", 3 * h, h, False)
            linear(f"layers.{i}.attn.Wo", h, h, False)
            norm(f"layers.{i}.mlp_norm", bias=False)
            linear(f"layers.{i}.mlp.Wi", 2 * inner, h, False)
            linear(f"layers.{i}.mlp.Wo", h, inner, False)
    elif name == "nomic-hub":
        bert_embeddings(positions=False)
        for part in ("weight", "bias"):
            shapes[f"emb_ln.{part}"] = shapes.pop(f"embeddings.LayerNorm.{part}")
        for i in range(LAYERS):
            stem = f"encoder.layers.{i}"
            linear(f"{stem}.attn.Wqkv", 3 * h, h, False)
            linear(f"{stem}.attn.out_proj", h, h, False)
            linear(f"{stem}.mlp.fc11", inner, h, False)
            linear(f"{stem}.mlp.fc12", inner, h, False)
            linear(f"{stem}.mlp.fc2", h, inner, False)
            norm(f"{stem}.norm1")
            norm(f"{stem}.norm2")
    elif name == "gte-hub":
        bert_embeddings(types=0, positions=False)
        for i in range(LAYERS):
            stem = f"encoder.layer.{i}"
            linear(f"{stem}.attention.qkv_proj", 3 * h, h)
            linear(f"{stem}.attention.o_proj", h, h)
            linear(f"{stem}.mlp.up_gate_proj", 2 * inner, h, False)
            linear(f"{stem}.mlp.down_proj", h, inner)
            norm(f"{stem}.attn_ln")
            norm(f"{stem}.mlp_ln")
    elif family in ("nomic", "gte", "jina-v3"):
        bert_embeddings(types=s.get("type_vocab_size", 1), positions=False)
        for i in range(LAYERS):
            stem = f"layers.{i}"
            for part in "qkvo":
                linear(f"{stem}.self_attn.{part}_proj", h, h, family != "nomic")
            norm(f"{stem}.post_attention_layernorm")
            norm(f"{stem}.post_mlp_layernorm")
            if family == "jina-v3":
                linear(f"{stem}.mlp.fc1", inner, h)
                linear(f"{stem}.mlp.fc2", h, inner)
            else:
                linear(f"{stem}.mlp.gate_proj", inner, h, False)
                linear(f"{stem}.mlp.up_proj", inner, h, False)
                linear(f"{stem}.mlp.down_proj", h, inner, family == "gte")
    elif family == "jina-v2":
        bert_embeddings(positions=False)
        for i in range(LAYERS):
            stem = f"encoder.layer.{i}"
            for part in ("query", "key", "value"):
                linear(f"{stem}.attention.self.{part}", h, h)
            linear(f"{stem}.attention.output.dense", h, h)
            norm(f"{stem}.attention.output.LayerNorm")
            linear(f"{stem}.mlp.gated_layers", 2 * inner, h, False)
            linear(f"{stem}.mlp.wo", h, inner)
            norm(f"{stem}.mlp.layernorm")
    elif family == "deberta":
        width = s.get("embedding_size", h)
        bert_embeddings(width, s["type_vocab_size"], s["position_biased_input"])
        norm("embeddings.LayerNorm")
        if width != h:
            linear("embeddings.embed_proj", h, width, False)
        rows = s["position_buckets"] if s["position_buckets"] > 0 else s["max_relative_positions"]
        shapes["encoder.rel_embeddings.weight"] = (2 * rows, h)
        if s["norm_rel_ebd"] == "layer_norm":
            norm("encoder.LayerNorm")
        for i in range(LAYERS):
            stem = f"encoder.layer.{i}"
            for part in ("query", "key", "value"):
                linear(f"{stem}.attention.self.{part}_proj", h, h)
            if not s["share_att_key"]:
                linear(f"{stem}.attention.self.pos_key_proj", h, h)
            linear(f"{stem}.attention.output.dense", h, h)
            norm(f"{stem}.attention.output.LayerNorm")
            linear(f"{stem}.intermediate.dense", inner, h)
            linear(f"{stem}.output.dense", h, inner)
            norm(f"{stem}.output.LayerNorm")
    else:  # decoders
        shapes["embed_tokens.weight"] = (v, h)
        norm("norm", bias=False)
        d, bias = s["head_dim"], s.get("attention_bias", False)
        for i in range(LAYERS):
            stem = f"layers.{i}"
            linear(f"{stem}.self_attn.q_proj", HEADS * d, h, bias)
            linear(f"{stem}.self_attn.k_proj", 2 * d, h, bias)
            linear(f"{stem}.self_attn.v_proj", 2 * d, h, bias)
            linear(f"{stem}.self_attn.o_proj", h, HEADS * d, bias)
            for part in ("q_norm", "k_norm"):
                norm(f"{stem}.self_attn.{part}", d, bias=False)
            linear(f"{stem}.mlp.gate_proj", inner, h, False)
            linear(f"{stem}.mlp.up_proj", inner, h, False)
            linear(f"{stem}.mlp.down_proj", h, inner, False)
            names = ["input_layernorm", "post_attention_layernorm"]
            if family == "gemma3":
                names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
            for part in names:
                norm(f"{stem}.{part}", bias=False)
    return shapes


class FamilyReference:
    """The last hidden states of one text, float64 [tokens, hidden]."""

    def __init__(self, folder: Path) -> None:
        self.s = json.loads((folder / "config.json").read_text())
        self.w = {k: v.astype(np.float64) for k, v in load_file(folder / "model.safetensors").items()}
        self.heads = self.s.get("num_attention_heads", self.s.get("n_heads", self.s.get("n_head", HEADS)))

    def compute_hidden(self, ids: list[int]) -> np.ndarray:
        kind = "jina_bert" if self.s.get("position_embedding_type") == "alibi" else self.s["model_type"]
        result: np.ndarray = getattr(self, f"_{kind.replace('-', '_')}")(ids)
        return result

    # parts

    def _linear(self, x, name):
        y = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def _norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        epsilon = 1e-12 if self.s["model_type"] == "distilbert" else 1e-6
        y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * self.w[f"{name}.weight"]
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def _rms(self, x, name):
        weight = self.w[f"{name}.weight"] + (self.s["model_type"] == "gemma3_text")
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight

    def _attend(self, q, k, v, *, scale=None, bias=None, rotary=None, see=None, head_norms=None):
        """q [n, heads · d]; bias(head, i, j) and see(i, j) are functions of two positions."""
        n, d = len(q), q.shape[1] // self.heads
        shared = q.shape[1] // k.shape[1]
        out = np.zeros((n, self.heads, d))
        for h in range(self.heads):
            query, key, value = (x.reshape(n, -1, d)[:, g] for x, g in ((q, h), (k, h // shared), (v, h // shared)))
            if head_norms:
                query, key = self._rms(query, head_norms[0]), self._rms(key, head_norms[1])
            if rotary:
                query, key = (turn(x, *rotary) for x in (query, key))
            scores = query @ key.T * (d**-0.5 if scale is None else scale)
            for i in range(n):
                for j in range(n):
                    if bias is not None:
                        scores[i, j] += bias(h, i, j, query, key)
                    if see is not None and not see(i, j):
                        scores[i, j] = -np.inf
            scores = np.exp(scores - scores.max(1, keepdims=True))
            out[:, h] = scores / scores.sum(1, keepdims=True) @ value
        return out.reshape(n, -1)

    def _embed(self, ids, positions=None):
        x = self.w["embeddings.word_embeddings.weight"][ids]
        if positions is not None:
            x = x + self.w["embeddings.position_embeddings.weight"][positions]
        if "embeddings.token_type_embeddings.weight" in self.w:
            x = x + self.w["embeddings.token_type_embeddings.weight"][0]
        return self._norm(x, "emb_ln" if "emb_ln.weight" in self.w else "embeddings.LayerNorm")

    # families

    def _mpnet(self, ids):
        count, positions = 1, []
        for token in ids:
            count += token != 1
            positions.append(count if token != 1 else 1)
        table = self.w["encoder.relative_attention_bias.weight"]
        x = self._embed(ids, positions)
        for i in range(LAYERS):
            stem = f"encoder.layer.{i}"
            q, k, v = (self._linear(x, f"{stem}.attention.attn.{part}") for part in "qkv")
            mixed = self._attend(q, k, v, bias=lambda h, i, j, *_: table[find_t5_bucket(j - i, 32), h])
            x = self._norm(x + self._linear(mixed, f"{stem}.attention.attn.o"), f"{stem}.attention.LayerNorm")
            inner = tiny.ACTIVATIONS["gelu"](self._linear(x, f"{stem}.intermediate.dense"))
            x = self._norm(x + self._linear(inner, f"{stem}.output.dense"), f"{stem}.output.LayerNorm")
        return x

    def _distilbert(self, ids):
        x = self._embed(ids, range(len(ids)))
        for i in range(LAYERS):
            stem = f"transformer.layer.{i}"
            mixed = self._attend(*(self._linear(x, f"{stem}.attention.{part}_lin") for part in "qkv"))
            x = self._norm(x + self._linear(mixed, f"{stem}.attention.out_lin"), f"{stem}.sa_layer_norm")
            inner = tiny.ACTIVATIONS["gelu"](self._linear(x, f"{stem}.ffn.lin1"))
            x = self._norm(x + self._linear(inner, f"{stem}.ffn.lin2"), f"{stem}.output_layer_norm")
        return x

    def _albert(self, ids):
        x = self._linear(self._embed(ids, range(len(ids))), "encoder.embedding_hidden_mapping_in")
        for i in range(LAYERS):
            group = i * self.s["num_hidden_groups"] // LAYERS
            for j in range(self.s.get("inner_group_num", 1)):
                stem = f"encoder.albert_layer_groups.{group}.albert_layers.{j}"
                parts = (self._linear(x, f"{stem}.attention.{part}") for part in ("query", "key", "value"))
                mixed = self._linear(self._attend(*parts), f"{stem}.attention.dense")
                x = self._norm(x + mixed, f"{stem}.attention.LayerNorm")
                inner = tiny.ACTIVATIONS[self.s["hidden_act"]](self._linear(x, f"{stem}.ffn"))
                x = self._norm(x + self._linear(inner, f"{stem}.ffn_output"), f"{stem}.full_layer_layer_norm")
        return x

    def _modernbert(self, ids):
        x = self._norm(self.w["embeddings.tok_embeddings.weight"][ids], "embeddings.norm")
        for i in range(LAYERS):
            stem, local = f"layers.{i}", i % 2 == 1
            y = self._norm(x, f"{stem}.attn_norm") if i else x
            q, k, v = np.split(self._linear(y, f"{stem}.attn.Wqkv"), 3, 1)
            see = (lambda a, b: abs(a - b) <= 3) if local else None
            rotary = (100.0,) if local else (8000.0,)
            x = x + self._linear(self._attend(q, k, v, rotary=rotary, see=see), f"{stem}.attn.Wo")
            gate, up = np.split(self._linear(self._norm(x, f"{stem}.mlp_norm"), f"{stem}.mlp.Wi"), 2, 1)
            x = x + self._linear(tiny.ACTIVATIONS["gelu"](gate) * up, f"{stem}.mlp.Wo")
        return self._norm(x, "final_norm")

    def _nomic_bert(self, ids):
        hub, x = "n_embd" in self.s, self._embed(ids)
        for i in range(LAYERS):
            if hub:
                stem = f"encoder.layers.{i}"
                q, k, v = np.split(self._linear(x, f"{stem}.attn.Wqkv"), 3, 1)
                names = ("attn.out_proj", "norm1", "mlp.fc12", "mlp.fc11", "mlp.fc2", "norm2")
            else:
                stem = f"layers.{i}"
                q, k, v = (self._linear(x, f"{stem}.self_attn.{part}_proj") for part in "qkv")
                names = ("self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj")
                names += ("mlp.down_proj", "post_mlp_layernorm")
            out, norm1, gate, up, down, norm2 = (f"{stem}.{name}" for name in names)
            x = self._norm(x + self._linear(self._attend(q, k, v, rotary=(1000.0,)), out), norm1)
            inner = silu(self._linear(x, gate)) * self._linear(x, up)
            x = self._norm(x + self._linear(inner, down), norm2)
        return x

    def _gte(self, ids):
        return self._run_gte(ids, (500.0,))

    def _new(self, ids):
        d = H // HEADS
        return self._run_gte(ids, (500.0 * 4, 4.0 ** (2 / d)))

    def _run_gte(self, ids, rotary):
        x = self._embed(ids)
        for i in range(LAYERS):
            if self.s["model_type"] == "new":
                stem = f"encoder.layer.{i}"
                q, k, v = np.split(self._linear(x, f"{stem}.attention.qkv_proj"), 3, 1)
                x = x + self._linear(self._attend(q, k, v, rotary=rotary), f"{stem}.attention.o_proj")
                x = self._norm(x, f"{stem}.attn_ln")
                up, gate = np.split(self._linear(x, f"{stem}.mlp.up_gate_proj"), 2, 1)
                end = f"{stem}.mlp_ln"
            else:
                stem = f"layers.{i}"
                q, k, v = (self._linear(x, f"{stem}.self_attn.{part}_proj") for part in "qkv")
                x = x + self._linear(self._attend(q, k, v, rotary=rotary), f"{stem}.self_attn.o_proj")
                x = self._norm(x, f"{stem}.post_attention_layernorm")
                up, gate = (self._linear(x, f"{stem}.mlp.{part}_proj") for part in ("up", "gate"))
                end = f"{stem}.post_mlp_layernorm"
            x = self._norm(x + self._linear(tiny.ACTIVATIONS["gelu"](gate) * up, f"{stem}.mlp.down_proj"), end)
        return x

    def _jina_embeddings_v3(self, ids):
        x = self._embed(ids)
        for i in range(LAYERS):
            stem = f"layers.{i}"
            q, k, v = (self._linear(x, f"{stem}.self_attn.{part}_proj") for part in "qkv")
            mixed = self._linear(self._attend(q, k, v, rotary=(300.0,)), f"{stem}.self_attn.o_proj")
            x = self._norm(x + mixed, f"{stem}.post_attention_layernorm")
            inner = tiny.ACTIVATIONS["gelu"](self._linear(x, f"{stem}.mlp.fc1"))
            x = self._norm(x + self._linear(inner, f"{stem}.mlp.fc2"), f"{stem}.post_mlp_layernorm")
        return x

    def _jina_bert(self, ids):
        # ALiBi: 1/4, 1/16, … for four heads; for six the four of four heads and every second of eight
        slopes = {4: [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]}
        slopes[6] = [*slopes[4], 2.0**-1, 2.0**-3]
        act = tiny.ACTIVATIONS["gelu" if self.s["feed_forward_type"] == "geglu" else "relu"]
        x = self._embed(ids)
        for i in range(LAYERS):
            stem = f"encoder.layer.{i}"
            q, k, v = (self._linear(x, f"{stem}.attention.self.{part}") for part in ("query", "key", "value"))
            mixed = self._attend(q, k, v, bias=lambda h, i, j, *_: -abs(i - j) * slopes[self.heads][h])
            x = x + self._linear(mixed, f"{stem}.attention.output.dense")
            x = self._norm(x, f"{stem}.attention.output.LayerNorm")
            gate, up = np.split(self._linear(x, f"{stem}.mlp.gated_layers"), 2, 1)
            x = self._norm(x + self._linear(act(gate) * up, f"{stem}.mlp.wo"), f"{stem}.mlp.layernorm")
        return x

    def _deberta_v2(self, ids):
        s = self.s
        x = self.w["embeddings.word_embeddings.weight"][ids]
        if s["position_biased_input"]:
            x = x + self.w["embeddings.position_embeddings.weight"][: len(ids)]
        if s["type_vocab_size"]:
            x = x + self.w["embeddings.token_type_embeddings.weight"][0]
        if "embeddings.embed_proj.weight" in self.w:
            x = self._linear(x, "embeddings.embed_proj")
        return self._run_deberta(self._norm(x, "embeddings.LayerNorm"))

    def _run_deberta(self, x):
        s, d = self.s, H // HEADS
        kinds = s["pos_att_type"].split("|") if isinstance(s["pos_att_type"], str) else s["pos_att_type"]
        span = s["position_buckets"] if s["position_buckets"] > 0 else s["max_relative_positions"]
        table = self.w["encoder.rel_embeddings.weight"]
        if s["norm_rel_ebd"] == "layer_norm":
            table = self._norm(table, "encoder.LayerNorm")
        scale = 1 / math.sqrt(d * (1 + len(kinds)))

        def find_row(distance):
            if s["position_buckets"] > 0:
                distance = find_deberta_bucket(distance, s["position_buckets"], LENGTH)
            return min(max(distance + span, 0), 2 * span - 1)

        for i in range(LAYERS):
            stem = f"encoder.layer.{i}"
            self_ = f"{stem}.attention.self"
            q, k, v = (self._linear(x, f"{self_}.{part}_proj") for part in ("query", "key", "value"))
            shared = s["share_att_key"]
            keys = self._linear(table, f"{self_}.{'key_proj' if shared else 'pos_key_proj'}").reshape(-1, HEADS, d)
            queries = None
            if "p2c" in kinds:
                name = "query_proj" if shared else "pos_query_proj"
                queries = self._linear(table, f"{self_}.{name}").reshape(-1, HEADS, d)

            def bias(h, a, b, query, key, keys=keys, queries=queries):
                total = 0.0
                if "c2p" in kinds:
                    total += query[a] @ keys[find_row(a - b), h]
                if "p2c" in kinds:
                    total += key[b] @ queries[find_row(a - b), h]
                return total * scale

            mixed = self._linear(self._attend(q, k, v, scale=scale, bias=bias), f"{stem}.attention.output.dense")
            x = self._norm(x + mixed, f"{stem}.attention.output.LayerNorm")
            inner = tiny.ACTIVATIONS["gelu"](self._linear(x, f"{stem}.intermediate.dense"))
            x = self._norm(x + self._linear(inner, f"{stem}.output.dense"), f"{stem}.output.LayerNorm")
        return x

    def _qwen3(self, ids):
        s, x = self.s, self.w["embed_tokens.weight"][ids]
        rotary = (s["rope_theta"],) if "rope_theta" in s else (10_000.0, 2.0)
        for i in range(LAYERS):
            stem = f"layers.{i}"
            windowed = s.get("use_sliding_window") and i >= 1

            def see(a, b, windowed=windowed):
                return b <= a and (not windowed or a - b < 4)

            y = self._rms(x, f"{stem}.input_layernorm")
            x = x + self._decode(y, stem, rotary, see, None)
            y = self._rms(x, f"{stem}.post_attention_layernorm")
            inner = silu(self._linear(y, f"{stem}.mlp.gate_proj")) * self._linear(y, f"{stem}.mlp.up_proj")
            x = x + self._linear(inner, f"{stem}.mlp.down_proj")
        return self._rms(x, "norm")

    def _gemma3_text(self, ids):
        s, x = self.s, self.w["embed_tokens.weight"][ids] * math.sqrt(H)
        both_ways = s.get("use_bidirectional_attention", False)
        for i in range(LAYERS):
            stem = f"layers.{i}"
            sliding = i % 2 == 0
            rotary = (s.get("rope_local_base_freq", 1e4),) if sliding else (s.get("rope_theta", 1e6),)

            def see(a, b, sliding=sliding):
                if both_ways:
                    return not sliding or abs(a - b) <= 3
                return b <= a and (not sliding or a - b < 5)

            y = self._decode(
                self._rms(x, f"{stem}.input_layernorm"), stem, rotary, see, s["query_pre_attn_scalar"] ** -0.5
            )
            x = x + self._rms(y, f"{stem}.post_attention_layernorm")
            y = self._rms(x, f"{stem}.pre_feedforward_layernorm")
            inner = tiny.ACTIVATIONS["gelu_new"](self._linear(y, f"{stem}.mlp.gate_proj"))
            y = self._linear(inner * self._linear(y, f"{stem}.mlp.up_proj"), f"{stem}.mlp.down_proj")
            x = x + self._rms(y, f"{stem}.post_feedforward_layernorm")
        return self._rms(x, "norm")

    def _decode(self, y, stem, rotary, see, scale):
        q, k, v = (self._linear(y, f"{stem}.self_attn.{part}_proj") for part in "qkv")
        norms = (f"{stem}.self_attn.q_norm", f"{stem}.self_attn.k_norm")
        mixed = self._attend(q, k, v, rotary=rotary, see=see, scale=scale, head_norms=norms)
        return self._linear(mixed, f"{stem}.self_attn.o_proj")


def silu(x):
    return x / (1 + np.exp(-x))


def turn(x, base, divisor=1.0):
    """Rotary positions: pairs (f, f + d/2) of each row turned by its position."""
    n, d = x.shape
    y = x.copy()
    for f in range(d // 2):
        angle = np.arange(n) * base ** (-2 * f / d) / divisor
        y[:, f] = x[:, f] * np.cos(angle) - x[:, f + d // 2] * np.sin(angle)
        y[:, f + d // 2] = x[:, f + d // 2] * np.cos(angle) + x[:, f] * np.sin(angle)
    return y


def find_t5_bucket(distance, buckets):
    half, exact = buckets // 2, buckets // 4
    first = half if distance > 0 else 0
    size = abs(distance)
    if size < exact:
        return first + size
    return first + min(half - 1, exact + int(math.log(size / exact) / math.log(128 / exact) * (half - exact)))


def find_deberta_bucket(distance, buckets, longest):
    middle = buckets // 2
    if abs(distance) <= middle:
        return distance
    far = math.ceil(math.log(abs(distance) / middle) / math.log((longest - 1) / middle) * (middle - 1)) + middle
    return far if distance > 0 else -far
