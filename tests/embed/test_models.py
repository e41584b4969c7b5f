"""Every folder layout has the vectors of a float64 reference, of transformers, and of sentence-transformers."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.embed import tiny
from tests.embed.tiny import TEXTS, Reference

from ridgeline import Embedder
from ridgeline.embed import Tokens
from ridgeline.errors import InputError

LAYOUTS = {
    "bert-mean": {"pooling": "mean"},
    "bert-cls": {"pooling": "cls"},
    "bert-max": {"pooling": "max"},
    "bert-modern": {"pooling": "cls", "modern": True},
    "bert-prefixed": {"prefix": "bert."},
    "bert-relu": {"hidden_act": "relu"},
    "bert-tanh": {"hidden_act": "gelu_new"},
    "snapshot": {"pooling": None},
    "roberta-mean": {"kind": "roberta", "prefix": "roberta."},
    "xlm-roberta-mean": {"kind": "xlm-roberta"},  # e5-large's
    "xlm-roberta-cls": {"kind": "xlm-roberta", "pooling": "cls"},
}


@pytest.fixture(scope="module")
def new_model(tmp_path_factory):
    root = tmp_path_factory.mktemp("layouts")
    return {name: tiny.make(root / name, **how) for name, how in LAYOUTS.items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_matches_the_reference(new_model, name: str):
    how = LAYOUTS[name]
    with Embedder(new_model[name], device="cpu", dtype="float32") as embedder:
        actual = embedder.encode(TEXTS)
    expected = Reference(new_model[name], how.get("prefix", "")).encode(TEXTS, how.get("pooling") or "mean")
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, atol=2e-6)


@pytest.mark.parametrize("name", ["bert-mean", "roberta-mean", "xlm-roberta-mean"])
def test_bfloat16_is_close_to_the_reference(new_model, name: str):
    with Embedder(new_model[name], device="cpu", dtype="bfloat16") as embedder:
        actual = embedder.encode(TEXTS)
    expected = Reference(new_model[name], LAYOUTS[name].get("prefix", "")).encode(TEXTS)
    assert (actual * expected).sum(1).min() > 0.999


@pytest.mark.parametrize("name", LAYOUTS)
def test_float16_is_close_to_the_reference_for_every_layout(half, new_model, name: str):
    how = LAYOUTS[name]
    with Embedder(new_model[name], device="cpu", dtype="float16") as embedder:
        actual = embedder.encode(TEXTS)
    expected = Reference(new_model[name], how.get("prefix", "")).encode(TEXTS, how.get("pooling") or "mean")
    assert actual.dtype == np.float32
    assert (actual * expected).sum(1).min() >= 0.99998  # tiny models of random weights round worse than real ones


def test_values_beyond_float16_are_an_error(half, new_model, monkeypatch):
    from ridgeline.embed.layers_cpu import Float16Layers

    plain = Float16Layers.prepare_linear
    monkeypatch.setattr(Float16Layers, "prepare_linear", lambda self, weight, bias: plain(self, weight * 1e6, bias))
    with Embedder(new_model["bert-mean"], device="cpu", dtype="float16") as embedder:
        for encode in (lambda: embedder.encode(TEXTS), lambda: embedder.encode_one("a")):
            with pytest.raises(InputError, match="beyond the range of float16; use dtype='float32'"):
                encode()


@pytest.mark.peer
@pytest.mark.parametrize("name", ["bert-mean", "bert-relu", "roberta-mean", "xlm-roberta-mean"])
def test_hidden_states_match_transformers(new_model, name: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        model = transformers.AutoModel.from_pretrained(new_model[name], attn_implementation="eager").eval()
    import torch

    pad = json.loads((new_model[name] / "config.json").read_text())["pad_token_id"]
    with Embedder(new_model[name], device="cpu", dtype="float32", normalize=False) as embedder:
        tokens = embedder.tokenize([*TEXTS, "a <pad> dog <pad> cat" if pad else "a [PAD] dog"])
        actual = embedder.encode_tokens(tokens)
    for i in range(len(tokens)):
        with torch.inference_mode():
            ids = torch.from_numpy(tokens[i].astype(np.int64))[None]
            expected = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(actual[i], expected.numpy(), atol=1e-5)


@pytest.mark.peer
@pytest.mark.parametrize("name", ["bert-cls", "bert-max", "dense", "roberta-mean"])
def test_vectors_match_sentence_transformers(new_model, tmp_path, name: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = pytest.importorskip("sentence_transformers")
        path = tiny.make(tmp_path / "d", dense="Tanh") if name == "dense" else new_model[name]
        expected = peer.SentenceTransformer(str(path), device="cpu").encode(TEXTS, batch_size=5)
    with Embedder(path, device="cpu", dtype="float32") as embedder:
        np.testing.assert_allclose(embedder.encode(TEXTS), expected, atol=1e-5)


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize(("activation", "apply"), [("Tanh", np.tanh), ("Identity", lambda x: x), ("SiLU", silu)])
def test_a_dense_module_follows_the_pooling(tmp_path, activation, apply):
    path = tiny.make(tmp_path / "m", dense=activation)
    parts = load_file(path / "2_Dense/model.safetensors")
    reference = Reference(path)
    pooled = np.stack([reference.pool_hidden(t, "mean") for t in TEXTS])
    expected = apply(pooled @ parts["linear.weight"].T.astype(float) + parts["linear.bias"])
    with Embedder(path, device="cpu", dtype="float32", normalize=False) as embedder:
        assert embedder.dim == 12
        np.testing.assert_allclose(embedder.encode(TEXTS), expected, atol=1e-5)


def test_several_poolings_are_joined(tmp_path):
    path = tiny.make(tmp_path / "m", dense="Tanh")
    names = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}
    tiny.write(path / "1_Pooling/config.json", {"word_embedding_dimension": tiny.HIDDEN, **names})
    reference = Reference(path)
    expected = np.concatenate(
        [np.stack([reference.pool_hidden(text, mode) for text in TEXTS]) for mode in ("cls", "max", "mean")], 1
    )
    set_modules(path, "Transformer", "Pooling")
    with Embedder(path, device="cpu", dtype="float32", normalize=False) as embedder:
        assert embedder.dim == 3 * tiny.HIDDEN
        np.testing.assert_allclose(embedder.encode(TEXTS), expected, atol=2e-5)
        np.testing.assert_allclose(embedder.encode(TEXTS[3]), expected[3], atol=2e-5)
    with Embedder(path, device="cpu", dtype="float32") as embedder:
        unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(embedder.encode(TEXTS), unit, atol=2e-6)
        np.testing.assert_allclose(embedder.encode(TEXTS[3]), unit[3], atol=2e-6)


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
def test_the_pooling_leaves_the_prompt_out_on_request(folder, tmp_path, mode):
    path = shutil.copytree(folder, tmp_path / "m")
    tiny.write(path / "1_Pooling/config.json", {"pooling_mode": mode, "include_prompt": False})
    prompt, reference = "query : ", Reference(path)
    expected = []
    for text in TEXTS:
        reference.tokenizer.enable_truncation(24)
        rows = reference.compute_hidden(reference.tokenizer.encode(prompt + text).ids)[3:]  # [CLS] query :
        expected.append({"mean": rows.mean(0), "cls": rows[0], "max": rows.max(0)}[mode])
    with Embedder(path, device="cpu", dtype="float32", normalize=False, prompt=prompt) as embedder:
        for actual in (
            embedder.encode(TEXTS, batch_tokens=50),
            np.stack([embedder.encode(text) for text in TEXTS]),
            np.stack(list(embedder.encode_iter(TEXTS))),
            embedder.encode(TEXTS, output=("dense", "tokens"))["dense"],
            embedder.encode_tokens(embedder.tokenize(TEXTS)),
        ):
            np.testing.assert_allclose(actual, expected, atol=2e-5)
        with pytest.raises(InputError, match="no tokens beyond the 3 of the prompt"):
            embedder.encode_tokens(Tokens(np.array([2, 3], np.int32), np.array([0, 2])))
    with (
        Embedder(path, device="cpu", dtype="float32", normalize=False) as embedder,
        Embedder(set_pooling(path, mode), device="cpu", dtype="float32", normalize=False) as plain,
    ):  # without a prompt all tokens count
        np.testing.assert_array_equal(embedder.encode(TEXTS), plain.encode(TEXTS))


def set_pooling(path: Path, mode: str) -> Path:
    other = shutil.copytree(path, path.parent / "other")
    tiny.write(other / "1_Pooling/config.json", {"pooling_mode": mode})
    return other


def set_modules(path: Path, *names: str) -> Path:
    """Write modules.json with these modules, each with the folder that `tiny.make` gave it."""
    folders = {"Pooling": "1_Pooling", "Dense": "2_Dense", "LayerNorm": "2_LayerNorm", "Normalize": "3_Normalize"}
    entries = [
        {"idx": i, "name": str(i), "path": folders.get(name, ""), "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ]
    tiny.write(path / "modules.json", entries)
    return path


def apply_modules(path: Path, names: tuple[str, ...], pooled):
    """The modules after the pooling in torch, one by one, in float64."""
    import torch

    parts = {name: torch.from_numpy(t).double() for name, t in load_file(path / "2_Dense/model.safetensors").items()}
    vectors = torch.from_numpy(pooled)
    for name in names[2:]:
        if name == "Normalize":
            vectors = torch.nn.functional.normalize(vectors, dim=1)
        elif name == "Dense":
            vectors = torch.tanh(torch.nn.functional.linear(vectors, parts["linear.weight"], parts["linear.bias"]))
        elif name == "LayerNorm":
            norm = load_file(path / "2_LayerNorm/model.safetensors").items()
            norm = {name: torch.from_numpy(tensor).double() for name, tensor in norm}
            width = (vectors.shape[1],)
            vectors = torch.nn.functional.layer_norm(vectors, width, norm["norm.weight"], norm["norm.bias"])
    return vectors.numpy()


@pytest.mark.parametrize(
    "after",
    [
        ("Dense", "Normalize"),
        ("Normalize", "Dense"),
        ("Normalize", "Dense", "Normalize"),
        ("Normalize", "Dropout", "Dense"),
        ("Dense",),
        ("LayerNorm",),
        ("Normalize", "LayerNorm", "Dense"),
        ("LayerNorm", "Normalize"),
    ],
)
def test_the_order_of_modules_is_kept(tmp_path, after):
    names = ("Transformer", "Pooling", *after)
    path = set_modules(tiny.make(tmp_path / "m", dense="Tanh"), *names)
    (path / "2_LayerNorm").mkdir()
    norm = np.random.default_rng(3).normal(size=(2, tiny.HIDDEN)).astype(np.float32)
    save_file({"norm.weight": norm[0], "norm.bias": norm[1].copy()}, path / "2_LayerNorm/model.safetensors")
    reference = Reference(path)
    pooled = np.stack([reference.pool_hidden(t, "mean") for t in TEXTS])
    ends_with_normalize = after[-1] == "Normalize"
    with Embedder(path, device="cpu", dtype="float32", normalize=ends_with_normalize) as embedder:
        np.testing.assert_allclose(embedder.encode(TEXTS), apply_modules(path, names, pooled), atol=1e-5)
        np.testing.assert_allclose(embedder.encode_one(TEXTS[0]), apply_modules(path, names, pooled[:1])[0], atol=1e-5)


@pytest.mark.parametrize(
    "names",
    [
        ("Pooling", "Transformer"),
        ("Transformer", "Dense", "Pooling"),
        ("Transformer", "Normalize", "Pooling", "Dense"),
        ("Transformer", "Pooling", "Pooling"),
        ("Transformer", "Transformer", "Pooling"),
        ("Transformer", "Normalize"),
        (),
    ],
)
def test_an_order_of_modules_that_cannot_be_run_is_refused(tmp_path, names):
    path = set_modules(tiny.make(tmp_path / "m", dense="Tanh"), *names)
    with pytest.raises(InputError, match=r"has the modules .*; one (Transformer|Pooling) must come"):
        Embedder(path, device="cpu")


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("BertForSequenceClassification", r"is a cross-encoder \(reranker\) .*BertForSequenceClassification"),
        ("BertForTokenClassification", "is a classifier of tokens"),
    ],
)
def test_a_checkpoint_for_another_task_is_refused_by_name(tmp_path, architecture, message):
    with pytest.raises(InputError, match=message):
        Embedder(tiny.make(tmp_path / "m", pooling=None, architectures=[architecture]), device="cpu")
    with Embedder(tiny.make(tmp_path / "n", architectures=[architecture]), device="cpu") as embedder:
        assert embedder.encode(["a cat"]).shape == (1, tiny.HIDDEN)  # its folder has a pooling module


@pytest.mark.parametrize(
    ("kind", "message"), [("CrossEncoder", "is a cross-encoder"), ("SparseEncoder", "is a sparse encoder")]
)
def test_a_folder_of_another_kind_of_sentence_transformers_is_refused(tmp_path, kind, message):
    path = tiny.make(tmp_path / "m")
    tiny.write(path / "config_sentence_transformers.json", {"model_type": kind})
    with pytest.raises(InputError, match=message):
        Embedder(path, device="cpu")


def test_a_masked_language_model_without_its_head_is_refused(tmp_path):
    splade = set_modules(tiny.make(tmp_path / "m"), "MLMTransformer", "SpladePooling")
    plain = tiny.make(tmp_path / "n", pooling=None, architectures=["BertForMaskedLM"])
    for path in (splade, plain):
        with pytest.raises(InputError, match="hold no head of a masked language model"):
            Embedder(path, device="cpu")
    with Embedder(tiny.make(tmp_path / "p", architectures=["BertForMaskedLM"]), device="cpu") as embedder:
        assert embedder.outputs == ("dense", "tokens")  # its folder has a pooling module


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_of_a_model_is_refused_and_named(tmp_path, file):
    path = tiny.make(tmp_path / "m")
    tiny.write(path / file, json.loads((path / file).read_text()) | {"auto_map": {"AutoModel": "own.OwnModel"}})
    with pytest.raises(InputError, match=rf"auto_map in {file}: .*own\.OwnModel.*not run"):
        Embedder(path, device="cpu")
    path = tiny.make(tmp_path / "n")
    entries = json.loads((path / "modules.json").read_text())
    entries[0]["type"] = "custom_st.Transformer"
    tiny.write(path / "modules.json", entries)
    with pytest.raises(InputError, match=r"module 'custom_st.Transformer', which is code of its own"):
        Embedder(path, device="cpu")


def test_an_adapter_beside_the_weights_is_refused(tmp_path):
    path = tiny.make(tmp_path / "m")
    tiny.write(path / "adapter_config.json", {"peft_type": "LORA"})
    with pytest.raises(InputError, match="has an adapter, which is not applied here; merge it into the weights"):
        Embedder(path, device="cpu")


def test_a_dense_module_over_tokens_is_refused(tmp_path):
    path = tiny.make(tmp_path / "m", dense="Tanh")
    settings = json.loads((path / "2_Dense/config.json").read_text())
    tiny.write(path / "2_Dense/config.json", settings | {"module_input_name": "token_embeddings"})
    with pytest.raises(InputError, match="for 'token_embeddings'; only one for 'sentence_embedding'"):
        Embedder(path, device="cpu")


def test_matryoshka_keeps_the_first_components_and_normalises_them(folder):
    with Embedder(folder, device="cpu", dtype="float32", truncate_dim=8) as embedder:
        actual = embedder.encode(TEXTS)
    expected = Reference(folder).encode(TEXTS)[:, :8]
    assert actual.shape == (len(TEXTS), 8)
    np.testing.assert_allclose(actual, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=3e-6)


def test_prompts_come_by_name_by_default_or_as_words(tmp_path):
    prompts = {"query": "query : ", "passage": "passage : "}
    path = tiny.make(tmp_path / "m", prompts=prompts, default_prompt="passage")
    reference = Reference(path)
    for prompt_name, before in ((None, "passage : "), ("query", "query : "), ("the red ", "the red "), ("", "")):
        with Embedder(path, device="cpu", dtype="float32", prompt=prompt_name) as embedder:
            actual = embedder.encode(["a cat", "dog"])
        np.testing.assert_allclose(actual, reference.encode([f"{before}a cat", f"{before}dog"]), atol=2e-6)
    with pytest.raises(InputError, match=r"no prompt 'querry'; did you mean 'query'"):
        Embedder(path, device="cpu", prompt="querry")


def test_the_folder_sets_the_token_limit(tmp_path):
    long = "cat " * 100
    for name, how, limit in (("told", {"limit": 10}, 10), ("bert", {"limit": None}, 40), ("more", {"limit": 999}, 40)):
        with (
            Embedder(tiny.make(tmp_path / name, **how), device="cpu") as embedder,
            pytest.warns(UserWarning, match="text 0"),
        ):
            assert embedder.tokenize([long]).lengths.tolist() == [limit]
    roberta = tiny.make(tmp_path / "roberta", "roberta", limit=None)
    with Embedder(roberta, device="cpu") as embedder, pytest.warns(UserWarning, match="limit of 38 tokens"):
        assert embedder.tokenize([long]).lengths.tolist() == [38]  # RoBERTa reserves two positions
    with Embedder(roberta, device="cpu", max_tokens=5) as embedder, pytest.warns(UserWarning, match="2 texts reach"):
        assert embedder.tokenize([long, "a", long]).lengths.tolist() == [5, 3, 5]


def test_weights_in_parts_are_put_together(folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / "m")
    complete = load_file(path / "model.safetensors")
    names = sorted(complete)
    where = {}
    for part, some in (("a.safetensors", names[:20]), ("b.safetensors", names[20:])):
        save_file({n: complete[n] for n in some}, path / part)
        where |= dict.fromkeys(some, part)
    (path / "model.safetensors").unlink()
    tiny.write(path / "model.safetensors.index.json", {"weight_map": where})
    with Embedder(path, device="cpu", dtype="float32") as embedder:
        np.testing.assert_allclose(embedder.encode(TEXTS), Reference(folder).encode(TEXTS), atol=2e-6)


def test_do_lower_case_keeps_special_tokens(folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / "m")
    tiny.write(path / "sentence_bert_config.json", {"max_seq_length": 24, "do_lower_case": True})
    with Embedder(path, device="cpu") as embedder, Embedder(folder, device="cpu") as plain:
        expected = plain.tokenize(["the red [MASK] runs"]).ids.tolist()
        assert embedder.tokenize(["THE Red [MASK] runs"]).ids.tolist() == expected
        assert plain.tokenize(["THE Red [MASK] runs"]).ids.tolist() != expected


def test_old_names_of_norms_and_half_weights_are_read(folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / "m")
    old = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t.astype(
            np.float16
        )
        for n, t in load_file(path / "model.safetensors").items()
    }
    save_file(old, path / "model.safetensors")
    with Embedder(path, device="cpu", dtype="float32") as embedder:
        assert (embedder.encode(TEXTS) * Reference(folder).encode(TEXTS)).sum(1).min() > 0.99999


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"model_type": "t5"}, "is a 't5' model"),
        ("config.json", {"position_embedding_type": "relative_key"}, "relative_key positions"),
        ("config.json", {"hidden_act": "swish"}, "no activation 'swish'"),
        ("config.json", {"vocab_size": 12}, r"the tokenizer knows \d+ tokens, the weights 12"),
        ("config.json", {"vocab_size": 99}, "weights know .* config.json says 99"),
        ("config.json", {"num_hidden_layers": 3}, "lack 'encoder.layer.2"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "middle"]}, r"pools by cls \+ middle"),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean", "include_prompt": False}, "leaves its prompt out"),
    ],
)
def test_unsupported_models_are_refused_by_name(folder, tmp_path, file, change, message):
    path = shutil.copytree(folder, tmp_path / "m")
    tiny.write(path / file, json.loads((path / file).read_text()) | change)
    with pytest.raises(InputError, match=message):
        Embedder(path, device="cpu")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.json", "[]", "config.json' holds list, not an object"),
        ("config.json", "null", "config.json' holds NoneType, not an object"),
        ("modules.json", "null", "modules.json' is no list of modules"),
        ("modules.json", "[1]", "modules.json' is no list of modules"),
        ("modules.json", '[{"idx": 0}]', "modules.json' is no list of modules"),
        ("config_sentence_transformers.json", "[]", "config_sentence_transformers.json' holds list"),
        ("config_sentence_transformers.json", '{"prompts": ["a"]}', "prompts that are no object"),
        ("config_sentence_transformers.json", '{"default_prompt_name": "q"}', "the default prompt 'q', which is not"),
        ("config_sentence_transformers.json", '{"truncate_dim": 0}', "the truncate_dim 0; it must be 1 or more"),
        ("config_sentence_transformers.json", '{"truncate_dim": "a"}', "the truncate_dim 'a'; it must be"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json' holds list"),
        ("sentence_bert_config.json", '{"max_seq_length": 0}', "the limit of 0 tokens per text"),
        ("sentence_bert_config.json", '{"max_seq_length": "many"}', "the limit of 'many' tokens per text"),
        ("model.safetensors.index.json", "{", "index.json' cannot be read"),
        ("model.safetensors.index.json", "{}", "index.json' has no weight_map"),
        ("model.safetensors.index.json", '{"weight_map": {"a": 1}}', "index.json' has no weight_map"),
    ],
)
def test_a_file_of_another_form_is_refused_by_name(folder, tmp_path, file, text, message):
    path = shutil.copytree(folder, tmp_path / "m")
    (path / file).write_text(text)
    if file.startswith("model"):
        (path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=message):
        Embedder(path, device="cpu")


@pytest.mark.parametrize("limit", [None, 1e30, float("inf"), 10**30, 512])
def test_a_tokenizer_without_a_limit_takes_as_many_tokens_as_there_are_positions(tmp_path, limit):
    path = tiny.make(tmp_path / "m", limit=None)
    config = json.loads((path / "tokenizer_config.json").read_text()) | {"model_max_length": limit}
    tiny.write(path / "tokenizer_config.json", config)
    with Embedder(path, device="cpu") as embedder:
        assert embedder.max_tokens == tiny.POSITIONS


def test_a_damaged_or_empty_folder_is_one_sentence(folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / "m")
    (path / "model.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        Embedder(path, device="cpu")
    (path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no weights \(model.safetensors\)"):
        Embedder(path, device="cpu")
    (path / "pytorch_model.bin").touch()
    with pytest.raises(InputError, match=r"pytorch_model.bin is not read, for it may run code"):
        Embedder(path, device="cpu")
    (path / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"neither tokenizer\.json nor vocab\.txt"):
        Embedder(path, device="cpu")
    (path / "config.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        Embedder(path, device="cpu")
    (path / "config.json").unlink()
    with pytest.raises(InputError, match=r"no config\.json"):
        Embedder(path, device="cpu")
