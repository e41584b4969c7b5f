"""Every family has the hidden states of a float64 reference and of transformers; static tables; what is refused."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.draws import choose_draws
from tests.embed import tiny
from tests.embed.reference_families import MODELS, FamilyReference, make
from tests.embed.tiny import TEXTS

from ridgeline import Embedder, Reranker
from ridgeline.errors import InputError

torch = pytest.importorskip("torch")

LONG = " ".join(tiny.WORDS[i % 17] for i in range(33))
SAMPLES = [*TEXTS[:6], *TEXTS[14:20], LONG]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("families")
    return {name: make(root / name, name) for name in MODELS}


def load(folder, **settings):
    return Embedder(folder, device="cpu", max_tokens=38, **{"dtype": "float32", **settings})


@pytest.mark.parametrize("name", MODELS)
def test_every_family_matches_its_reference(folders, name):
    reference = FamilyReference(folders[name])
    with load(folders[name]) as embedder:
        tokens = embedder.tokenize(SAMPLES)
        actual = embedder.encode_tokens(tokens, output=("dense", "tokens"), batch_tokens=60)
    for i in range(len(tokens)):
        expected = reference.compute_hidden(tokens[i].tolist())
        np.testing.assert_allclose(actual["tokens"][i], expected, atol=2e-5 * np.abs(expected).max())
        mean = expected.mean(0)
        np.testing.assert_allclose(actual["dense"][i], mean / np.linalg.norm(mean), atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_is_close_for_every_family(folders, name):
    with load(folders[name]) as wide, load(folders[name], dtype="bfloat16") as narrow:
        assert (wide.encode(SAMPLES) * narrow.encode(SAMPLES)).sum(1).min() > 0.995


@pytest.mark.parametrize("name", MODELS)
def test_every_family_has_the_same_bits_in_any_batch(folders, name):
    texts = SAMPLES[:: choose_draws(3, 1)]
    with load(folders[name], batch_invariant=True) as embedder:
        together = embedder.encode(texts)
        np.testing.assert_array_equal(np.stack([embedder.encode(text) for text in texts]), together)
        np.testing.assert_array_equal(embedder.encode(texts[::-1], batch_tokens=45)[::-1], together)


@pytest.mark.peer
@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("jina-v2") and name != "gte-hub"])
def test_hidden_states_match_transformers(folders, tmp_path, name):
    folder = shutil.copytree(folders[name], tmp_path / "m")
    settings = json.loads((folder / "config.json").read_text())
    if name == "nomic-hub":  # the names that its own code uses, which transformers converts
        settings = make_transformers_config(settings)
        tiny.write(folder / "config.json", settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with load(folders[name]) as embedder:
        tokens = embedder.tokenize(SAMPLES)
        actual = embedder.encode_tokens(tokens, output="tokens")
    for i in range(len(tokens)):
        with torch.inference_mode():
            ids = torch.from_numpy(tokens[i].astype(np.int64))[None]
            expected = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].numpy()
        np.testing.assert_allclose(actual[i], expected, atol=1e-4 * np.abs(expected).max())


def make_transformers_config(hub):
    names = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    names |= {"n_inner": "intermediate_size", "n_positions": "max_position_embeddings"}
    settings = {names[k]: v for k, v in hub.items() if k in names}
    return settings | {
        "model_type": "nomic_bert",
        "layer_norm_eps": hub["layer_norm_epsilon"],
        "vocab_size": hub["vocab_size"],
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": hub["rotary_emb_base"]},
    }


POOLED = {
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / np.sqrt(len(x)),
    "weightedmean": lambda x: (x * np.arange(1, len(x) + 1)[:, None]).sum(0) / np.arange(1, len(x) + 1).sum(),
    "lasttoken": lambda x: x[-1],
}


@pytest.mark.parametrize("pooling", POOLED)
def test_every_pooling_matches_its_formula(tmp_path, pooling):
    folder = tiny.make(tmp_path / "m", pooling=pooling, modern=True)
    reference = tiny.Reference(folder)
    reference.tokenizer.enable_truncation(24)
    with Embedder(folder, device="cpu", dtype="float32", normalize=False, batch_invariant=True) as embedder:
        actual = embedder.encode(TEXTS, batch_tokens=50)
        np.testing.assert_array_equal(np.stack([embedder.encode(text) for text in TEXTS]), actual)
    for vector, text in zip(actual, TEXTS, strict=True):
        expected = POOLED[pooling](reference.compute_hidden(reference.tokenizer.encode(text).ids))
        np.testing.assert_allclose(vector, expected, atol=2e-5)


# Static tables.


def make_static(folder, kind, **config):
    folder.mkdir(parents=True)
    size = tiny.tokenizer(folder, "bert")
    table = np.random.default_rng(4).normal(size=(size, 12)).astype(np.float32)
    if kind == "sentence-transformers":
        save_file({"embedding.weight": table}, folder / "model.safetensors")
        entry = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"}
        tiny.write(folder / "modules.json", [entry])
        return folder, table
    weights = np.linspace(0.5, 2, size).astype(np.float32)
    mapping = np.arange(size)[::-1].astype(np.int64)
    save_file({"embeddings": table, "weights": weights, "mapping": mapping.copy()}, folder / "model.safetensors")
    tiny.write(folder / "config.json", {"model_type": "model2vec", "normalize": True, **config})
    return folder, table[mapping] * weights[:, None]


@pytest.mark.parametrize("kind", ["sentence-transformers", "model2vec"])
def test_static_tables_average_their_words(tmp_path, kind):
    folder, table = make_static(tmp_path / "m", kind)
    texts = ["the red cat", "a dog dog unknowable runs", "sleeps"]
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    with Embedder(folder, device="cpu", dtype="float32", normalize=False) as embedder:
        assert embedder.dim == 12
        actual = embedder.encode(texts)
        np.testing.assert_array_equal(embedder.encode_one(texts[0]), actual[0])
        nothing = embedder.encode(["", *texts])
    for vector, text in zip(actual, texts, strict=True):
        ids = [vocabulary.get(word, vocabulary["[UNK]"]) for word in text.split()]
        if kind == "model2vec":
            ids = [n for n in ids if n != vocabulary["[UNK]"]]
        np.testing.assert_allclose(vector, table[ids].mean(0), atol=1e-6)
    assert not nothing[0].any()  # no words: zeros, as the peers give
    np.testing.assert_array_equal(nothing[1:], actual)


def test_a_static_table_cuts_at_its_limit(tmp_path):
    folder, _ = make_static(tmp_path / "m", "model2vec", max_length=4)
    with Embedder(folder, device="cpu", dtype="float32") as embedder:
        with pytest.warns(UserWarning, match="limit of 4 tokens"):
            assert embedder.tokenize(["cat " * 9]).lengths.tolist() == [4]
        assert embedder.encode([""]).tolist() == [[0.0] * 12]


# What is refused.


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("nomic", {"model_type": "frobnicate"}, r"is a 'frobnicate' model; .*mpnet.*modernbert.*qwen3"),
        ("nomic-hub", {"auto_map": {"AutoModel": "own.Evil"}}, r"code of its own .*own\.Evil"),
        ("nomic-hub", {"num_experts": 8}, "num_experts is 8, which is not known here"),
        ("nomic-hub", {"rotary_emb_interleaved": True}, "rotary_emb_interleaved is True"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets is 16"),
        ("nomic", {"hidden_act": "swish"}, "no activation 'swish'"),
        ("qwen3", {"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "of the type 'yarn'; known are default"),
        ("qwen3", {"partial_rotary_factor": 0.5}, "turn a part of each head only"),
        (
            "gemma3",
            {"attn_logit_softcapping": 50.0},
            "attn_logit_softcapping is 50.0, which is not known here; known: none",
        ),
        ("deberta", {"conv_kernel_size": 3}, "conv_kernel_size is 3"),
        ("deberta", {"pos_att_type": ["p2p"]}, "pos_att_type is .*known are c2p and p2c"),
        ("jina-v2", {"feed_forward_type": "original"}, "feed_forward_type is 'original'"),
        ("modernbert", {"mlp_bias": True}, r"lack 'layers\.0\.mlp\.Wi\.bias'"),
        ("modernbert", {"num_hidden_layers": 2}, r"have 'layers\.2\..*', which a modernbert encoder .* has not"),
    ],
)
def test_what_is_not_known_is_refused_by_name(folders, tmp_path, name, change, message):
    folder = shutil.copytree(folders[name], tmp_path / "m")
    tiny.write(folder / "config.json", json.loads((folder / "config.json").read_text()) | change)
    with pytest.raises(InputError, match=message):
        Embedder(folder, device="cpu", dtype="float32")


def test_a_setting_that_is_missing_is_named(folders, tmp_path):
    folder = shutil.copytree(folders["qwen3"], tmp_path / "m")
    settings = json.loads((folder / "config.json").read_text())
    settings.pop("num_hidden_layers")
    tiny.write(folder / "config.json", settings)
    with pytest.raises(InputError, match=r"config\.json' lacks 'num_hidden_layers'"):
        Embedder(folder, device="cpu", dtype="float32")


def test_missing_and_added_tensors_are_named(folders, tmp_path):
    folder = shutil.copytree(folders["nomic"], tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    for change, message in (
        ({"layers.1.self_attn.k_proj.weight": None}, r"lack 'layers\.1\.self_attn\.k_proj\.weight'"),
        ({"layers.2.mlp.down_proj.weight": None}, r"lack 'layers\.2\.mlp\.down_proj\.weight'"),
        ({"layers.0.adapter.weight": np.zeros((2, 2), np.float32)}, r"have 'layers\.0\.adapter\.weight'"),
        ({"embeddings.word_embeddings.weight": None}, "so they are no nomic_bert's"),
    ):
        changed = {k: v for k, v in (tensors | change).items() if v is not None}
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(InputError, match=message):
            Embedder(folder, device="cpu", dtype="float32")
    harmless = {"pooler.dense.weight": np.zeros((2, 2), np.float32), "position_ids": np.zeros((1, 40), np.int64)}
    save_file(tensors | harmless, folder / "model.safetensors")
    Embedder(folder, device="cpu", dtype="float32").close()


def test_a_table_of_positions_that_deberta_does_not_use_is_harmless(folders, tmp_path):
    folder = shutil.copytree(folders["deberta"], tmp_path / "m")
    table = {"embeddings.position_embeddings.weight": np.ones((40, 32), np.float32)}
    save_file(load_file(folder / "model.safetensors") | table, folder / "model.safetensors")
    with load(folder) as other, load(folders["deberta"]) as embedder:
        np.testing.assert_array_equal(other.encode("a cat"), embedder.encode("a cat"))


def test_float16_on_a_cpu_is_for_bert(folders, monkeypatch):
    monkeypatch.setattr("ridgeline.embed.devices.multiplies_float16", lambda: True)
    monkeypatch.setattr("ridgeline.embed.devices.multiplies_bfloat16", lambda: False)
    with pytest.raises(InputError, match="dtype 'float16' on a CPU is for BERT and RoBERTa, not for modernbert"):
        Embedder(folders["modernbert"], device="cpu", dtype="float16")
    with Embedder(folders["modernbert"], device="cpu") as embedder:
        assert embedder.dtype == "float32"


# Rerankers.


def norm(x, weight):
    centred = x - x.mean()
    return centred / np.sqrt((centred**2).mean() + 1e-6) * weight


# family → stem of the encoder, shapes of the head, settings, hidden states [tokens, hidden] and tensors → score
HEADS = {
    "distilbert": (
        "distilbert.",
        {"pre_classifier.weight": (32, 32), "pre_classifier.bias": (32,), "classifier.weight": (1, 32)},
        {},
        lambda x, w: (
            w["classifier.weight"] @ np.maximum(w["pre_classifier.weight"] @ x[0] + w["pre_classifier.bias"], 0)
        ),
    ),
    "albert": (
        "albert.",
        {"albert.pooler.weight": (32, 32), "albert.pooler.bias": (32,), "classifier.weight": (1, 32)},
        {},
        lambda x, w: w["classifier.weight"] @ np.tanh(w["albert.pooler.weight"] @ x[0] + w["albert.pooler.bias"]),
    ),
    "modernbert": (
        "model.",
        {"head.dense.weight": (32, 32), "head.norm.weight": (32,), "classifier.weight": (1, 32)},
        {"classifier_pooling": "mean", "classifier_activation": "relu"},
        lambda x, w: (
            w["classifier.weight"] @ norm(np.maximum(w["head.dense.weight"] @ x.mean(0), 0), w["head.norm.weight"])
        ),
    ),
    "gte": (
        "gte.",
        {"gte.pooler.dense.weight": (32, 32), "gte.pooler.dense.bias": (32,), "classifier.weight": (1, 32)},
        {},
        lambda x, w: w["classifier.weight"] @ np.tanh(w["gte.pooler.dense.weight"] @ x[0] + w["gte.pooler.dense.bias"]),
    ),
    "qwen3": ("model.", {"score.weight": (1, 32)}, {}, lambda x, w: w["score.weight"] @ x[-1]),
}


@pytest.mark.parametrize("name", HEADS)
def test_rerankers_of_a_family_match_their_formula(folders, tmp_path, name):
    stem, shapes, settings, formula = HEADS[name]
    folder = shutil.copytree(folders[name], tmp_path / "m")
    random = np.random.default_rng(6)
    head = {k: random.normal(size=shape).astype(np.float32) * 0.4 for k, shape in shapes.items()}
    tensors = {stem + k: v for k, v in load_file(folder / "model.safetensors").items()}
    save_file(tensors | head, folder / "model.safetensors")
    tiny.write(folder / "config.json", json.loads((folder / "config.json").read_text()) | settings)
    reference = FamilyReference(folders[name])
    with Reranker(folder, device="cpu", dtype="float32", activation="identity", batch_invariant=True) as model:
        documents = SAMPLES[:6]
        tokens = model.tokenize("a red cat", documents)
        scores = model.score("a red cat", documents)
        np.testing.assert_array_equal(np.concatenate([model.score("a red cat", [d]) for d in documents]), scores)
    # no family but BERT gives the second text another type here
    expected = [formula(reference.compute_hidden(tokens[i].tolist()), head)[0] for i in range(len(tokens))]
    np.testing.assert_allclose(scores, expected, atol=2e-5 * np.abs(expected).max())


def test_a_table_of_positions_that_is_too_short_is_refused(folders, tmp_path):
    folder = shutil.copytree(folders["mpnet"], tmp_path / "m")
    settings = json.loads((folder / "config.json").read_text())
    tiny.write(folder / "config.json", settings | {"max_position_embeddings": 60})
    with pytest.raises(InputError, match=r"the weights have 40 positions, config\.json says 60"):
        load(folder)
