"""Sparse vectors, one vector per token and hidden states, against float64 references of tiny models."""

from __future__ import annotations

import json
import shutil
import string
import threading

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.embed import tiny
from tests.embed.tiny import HIDDEN, TEXTS, Reference

from ridgeline import Embedder
from ridgeline.errors import InputError

torch = pytest.importorskip("torch")

from ridgeline.embed import TokenVectors, heads  # noqa: E402
from ridgeline.embed.devices import choose_cpu_dtype  # noqa: E402

RANDOM = np.random.default_rng(3)
LIMIT = 24  # tokens


def draw(*shape):
    return (RANDOM.normal(size=shape) * 0.4).astype(np.float32)


def add_tensors(folder, tensors):
    file = folder / "model.safetensors"
    save_file(load_file(file) | tensors, file)


def set_modules(folder, modules, kind):
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(modules)
    ]
    tiny.write(folder / "modules.json", entries)
    settings = folder / "config_sentence_transformers.json"
    tiny.write(settings, (json.loads(settings.read_text()) if settings.exists() else {}) | {"model_type": kind})


@pytest.fixture(scope="module")
def splade(tmp_path_factory):
    """A masked language model with tied weights and a SpladePooling module."""
    folder = tiny.make(tmp_path_factory.mktemp("splade") / "m", prefix="bert.", architectures=["BertForMaskedLM"])
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    transform = {"dense.weight": draw(HIDDEN, HIDDEN), "dense.bias": draw(HIDDEN)}
    transform |= {"LayerNorm.weight": 1 + draw(HIDDEN), "LayerNorm.bias": draw(HIDDEN)}
    named = {f"cls.predictions.transform.{name}": tensor for name, tensor in transform.items()}
    add_tensors(folder, named | {"cls.predictions.bias": draw(size)})
    (folder / "1_Splade").mkdir()
    tiny.write(folder / "1_Splade/config.json", {"pooling_strategy": "max", "activation_function": "relu"})
    set_modules(folder, [("MLMTransformer", ""), ("SpladePooling", "1_Splade")], "SparseEncoder")
    return folder


def compute_splade(folder, text, pooling="max", activation="relu"):
    reference = Reference(folder, "bert.")
    w = reference.w
    reference.tokenizer.enable_truncation(LIMIT)
    x = reference.compute_hidden(reference.tokenizer.encode(text).ids)
    x = reference._linear(x, "cls.predictions.transform.dense")
    x = tiny.ACTIVATIONS["gelu"](x)
    x = reference._norm(x, "cls.predictions.transform.LayerNorm")
    logits = x @ w["embeddings.word_embeddings.weight"].T + w["cls.predictions.bias"]
    values = np.log1p(np.maximum(logits, 0))
    if activation == "log1p_relu":
        values = np.log1p(values)
    return values.max(0) if pooling == "max" else values.sum(0)


@pytest.mark.parametrize(("pooling", "activation"), [("max", "relu"), ("sum", "relu"), ("max", "log1p_relu")])
@pytest.mark.parametrize("logits", [1 << 24, 1])  # all tokens of a text at once, or one after the other
def test_splade_gives_the_vocabulary_weights_of_the_reference(splade, monkeypatch, pooling, activation, logits):
    monkeypatch.setattr(heads, "LOGITS", logits)
    tiny.write(splade / "1_Splade/config.json", {"pooling_strategy": pooling, "activation_function": activation})
    with Embedder(splade, device="cpu", dtype="float32") as embedder:
        assert embedder.outputs == ("sparse", "tokens")
        actual = embedder.encode(TEXTS, output="sparse", batch_tokens=40)
    assert (actual.format, actual.dtype) == ("csr", np.float32)
    assert actual.has_sorted_indices
    assert (actual.data > 0).all()
    expected = np.stack([compute_splade(splade, text, pooling, activation) for text in TEXTS])
    np.testing.assert_allclose(actual.toarray(), expected, rtol=1e-5, atol=1e-5)


def test_a_model_without_pooling_has_no_dense_output(splade):
    with Embedder(splade, device="cpu", dtype="float32") as embedder:
        for way in (embedder.encode, embedder.encode_one, lambda t: next(embedder.encode_blocks([t]))):
            with pytest.raises(InputError, match="has no 'dense' output; it has 'sparse' and 'tokens'"):
                way("a cat")
    with pytest.raises(InputError, match="has no 'dense' output"):
        Embedder(splade, device="cpu", truncate_dim=8)


@pytest.fixture(scope="module", params=["safetensors", "pt"])
def three(request, tmp_path_factory):
    """A model as bge-m3: dense, a weight per token, a vector per token."""
    folder = tiny.make(tmp_path_factory.mktemp("three") / "m", "xlm-roberta", "cls")
    for name, rows in (("sparse_linear", 1), ("colbert_linear", 16)):
        tensors = {"weight": draw(rows, HIDDEN), "bias": draw(rows)}
        save_file(tensors, folder / f"{name}.safetensors")
        if request.param == "pt":
            torch.save({k: torch.from_numpy(v) for k, v in tensors.items()}, folder / f"{name}.pt")
    return folder, *(load_file(folder / f"{name}.safetensors") for name in ("sparse_linear", "colbert_linear"))


def test_three_outputs_come_from_one_pass(three):
    folder, sparse, multi = three
    if (folder / "sparse_linear.pt").exists():  # read these
        for name in ("sparse_linear", "colbert_linear"):
            (folder / f"{name}.safetensors").unlink(missing_ok=True)
    reference = Reference(folder)
    reference.tokenizer.enable_truncation(LIMIT)
    with Embedder(folder, device="cpu", dtype="float32") as embedder:
        assert embedder.outputs == ("dense", "sparse", "multi", "tokens")
        results = embedder.encode(TEXTS, output=("dense", "sparse", "multi", "tokens"), batch_tokens=50)
        single = embedder.encode(TEXTS[3], output=("dense", "sparse", "multi", "tokens"))
        from_tokens = embedder.encode_tokens(embedder.tokenize(TEXTS), output=("dense", "multi"))
    special = {reference.tokenizer.token_to_id(t) for t in ("<s>", "</s>", "<pad>", "<unk>")}
    np.testing.assert_allclose(results["dense"], reference.encode(TEXTS, "cls"), atol=2e-6)
    for i, text in enumerate(TEXTS):
        ids = reference.tokenizer.encode(text).ids
        hidden = reference.compute_hidden(ids)
        np.testing.assert_allclose(results["tokens"][i], hidden, atol=2e-5)
        weights = np.maximum(hidden @ sparse["weight"][0].astype(float) + sparse["bias"][0], 0)
        row = np.zeros(results["sparse"].shape[1])
        for token, weight in zip(ids, weights, strict=True):
            if token not in special:
                row[token] = max(row[token], weight)
        np.testing.assert_allclose(results["sparse"].toarray()[i], row, atol=2e-5)
        vectors = hidden[1:] @ multi["weight"].T.astype(float) + multi["bias"]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(results["multi"][i], vectors, atol=1e-5)
    assert results["multi"].offsets.dtype == np.int64
    assert list(results) == ["dense", "sparse", "multi", "tokens"]
    np.testing.assert_array_equal(from_tokens["multi"].vectors, results["multi"].vectors)
    np.testing.assert_array_equal(single["dense"], results["dense"][3])
    np.testing.assert_array_equal(single["multi"], results["multi"][3])
    np.testing.assert_array_equal(single["sparse"].toarray()[0], results["sparse"].toarray()[3])


def test_a_damaged_linear_file_is_one_sentence(tmp_path):
    folder = tiny.make(tmp_path / "m", "xlm-roberta", "cls")
    (folder / "sparse_linear.pt").write_bytes(b"no tensors")
    with (
        Embedder(folder, device="cpu", dtype="float32") as embedder,
        pytest.raises(InputError, match=r"sparse_linear.pt' cannot be read as a linear layer"),
    ):
        embedder.encode(TEXTS, output="sparse")


@pytest.fixture(scope="module")
def colbert(tmp_path_factory):
    """Transformer, Dense, MultiVectorMask, Normalize: what MultiVectorEncoder saves."""
    folder = tiny.make(
        tmp_path_factory.mktemp("colbert") / "m", prompts={"query": "query : ", "document": "passage : "}
    )
    tiny.write(folder / "sentence_bert_config.json", {"max_seq_length": LIMIT, "query_length": 8})
    for part in ("1_Dense", "2_Mask"):
        (folder / part).mkdir()
    shape = {"in_features": HIDDEN, "out_features": 12, "bias": False, "module_input_name": "token_embeddings"}
    tiny.write(folder / "1_Dense/config.json", shape | {"activation_function": "torch.nn.modules.linear.Identity"})
    save_file({"linear.weight": draw(12, HIDDEN)}, folder / "1_Dense/model.safetensors")
    tiny.write(folder / "2_Mask/config.json", {"skiplist_words": [":", "the", "no such word"]})
    modules = [("Transformer", ""), ("Dense", "1_Dense"), ("MultiVectorMask", "2_Mask"), ("Normalize", "")]
    set_modules(folder, modules, "MultiVectorEncoder")
    return folder


@pytest.mark.parametrize(("prompt", "limit", "skips"), [(None, LIMIT, True), ("query", 8, False)])
def test_multi_vectors_leave_out_skipped_words_of_documents(colbert, prompt, limit, skips):
    reference = Reference(colbert)
    reference.tokenizer.enable_truncation(limit)
    weight = load_file(colbert / "1_Dense/model.safetensors")["linear.weight"].astype(float)
    skipped = [reference.tokenizer.token_to_id(word) for word in (":", "the")] if skips else []
    with Embedder(colbert, device="cpu", dtype="float32", prompt=prompt) as embedder:
        assert (embedder.outputs, embedder.dim, embedder.max_tokens) == (("multi", "tokens"), 12, limit)
        with pytest.warns(UserWarning, match="limit of"):
            actual = embedder.encode(["the " * 40, *TEXTS], output="multi")
    assert isinstance(actual, TokenVectors)
    assert len(actual) == 1 + len(TEXTS)
    for vectors, text in zip(actual, ["the " * 40, *TEXTS], strict=True):
        ids = reference.tokenizer.encode(("query : " if prompt else "passage : ") + text).ids
        expected = reference.compute_hidden(ids) @ weight.T
        expected = expected[[token not in skipped for token in ids]]
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_pylate_folders_skip_punctuation_and_refuse_prefixes(colbert, tmp_path):
    folder = shutil.copytree(colbert, tmp_path / "m")
    set_modules(folder, [("Transformer", ""), ("Dense", "1_Dense")], "ColBERT")
    config = json.loads((folder / "config_sentence_transformers.json").read_text())
    tiny.write(
        folder / "config_sentence_transformers.json", config | {"do_query_expansion": False, "document_length": 9}
    )
    multi = heads.find_heads(folder).multi
    assert multi is not None
    assert multi.skipped_words == tuple(string.punctuation)
    assert (multi.normalize, multi.document_length, multi.expands_queries) == (True, 9, False)
    tiny.write(folder / "config_sentence_transformers.json", config | {"query_prefix": "[Q] "})
    with pytest.raises(InputError, match="inserts prefix tokens; load it once with"):
        Embedder(folder, device="cpu")


def test_queries_that_are_extended_by_mask_tokens_are_refused(colbert, tmp_path):
    folder = shutil.copytree(colbert, tmp_path / "m")
    tiny.write(folder / "sentence_bert_config.json", {"query_expansion": {"length": 32}})
    with pytest.raises(InputError, match="extends queries by mask tokens"):
        Embedder(folder, device="cpu", prompt="query")
    Embedder(folder, device="cpu").close()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("sparse", r"has no 'sparse' output; it has 'dense' and 'tokens'"),
        ("vectors", "no output 'vectors'"),
        ((), "output is empty"),
        (("dense", "multi"), "has no 'multi' output"),
    ],
)
def test_an_output_that_is_not_there_is_refused(embedder, output, message):
    for texts in (TEXTS, "a cat"):
        with pytest.raises(InputError, match=message):
            embedder.encode(texts, output=output)


def test_tensors_are_for_the_dense_output(embedder):
    assert embedder.encode("a cat", to="torch").shape == (HIDDEN,)
    with pytest.raises(InputError, match="to='torch' is for the output 'dense' alone"):
        embedder.encode(TEXTS, output="tokens", to="torch")


def test_one_text_has_one_vector(embedder):
    vector = embedder.encode(TEXTS[0])
    assert vector.shape == (HIDDEN,)
    np.testing.assert_array_equal(vector, embedder.encode(TEXTS)[0])
    np.testing.assert_array_equal(vector, embedder.encode(TEXTS[0], batch_tokens=3))
    named = embedder.encode(TEXTS[0], output=("dense",))
    np.testing.assert_array_equal(named["dense"], vector)
    assert embedder.encode(TEXTS[0], output="tokens").shape == (6, HIDDEN)


def test_no_texts_give_empty_outputs(embedder, splade):
    results = embedder.encode([], output=("dense", "tokens"))
    assert results["dense"].shape == (0, HIDDEN)
    assert (results["tokens"].vectors.shape, results["tokens"].offsets.tolist()) == ((0, HIDDEN), [0])
    with Embedder(splade, device="cpu", dtype="float32") as sparse:
        assert sparse.encode([], output="sparse").shape[0] == 0
        assert sparse.encode(iter(TEXTS[:3]), output="sparse").shape[0] == 3


# The same bits in any batch.

CPU_DTYPES = sorted({"float32", "bfloat16", choose_cpu_dtype()})


@pytest.mark.parametrize("dtype", CPU_DTYPES)
@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"dense": "Tanh"}, marks=pytest.mark.slow),  # ten seconds each
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"pooling": "max"}, marks=pytest.mark.slow),
        pytest.param({"hidden_act": "gelu_new"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_text_has_the_same_bits_in_any_batch(tmp_path, dtype, how):
    folder = tiny.make(tmp_path / "m", num_attention_heads=2, **how)
    random = np.random.default_rng(2)
    texts = [" ".join(random.choice(tiny.WORDS[:17], size=random.integers(0, 20))) for _ in range(90)]
    with Embedder(folder, device="cpu", dtype=dtype, batch_invariant=True) as embedder:
        outputs = ("dense", "tokens")
        together = embedder.encode(texts)
        for other in (
            np.stack([embedder.encode(text) for text in texts]),
            np.concatenate([embedder.encode([text]) for text in texts]),
            embedder.encode(texts[::-1])[::-1],
            embedder.encode(texts, batch_tokens=37),
            embedder.encode(texts, output=outputs)["dense"],
            embedder.encode_tokens(embedder.tokenize(texts)),
        ):
            np.testing.assert_array_equal(other, together)
        tokens = embedder.encode(texts, output="tokens")
        for i in (0, 17, 89):
            np.testing.assert_array_equal(embedder.encode(texts[i], output="tokens"), tokens[i])
        results = {}

        def work(i):
            results[i] = embedder.encode(texts[i::3])

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i in range(3):
            np.testing.assert_array_equal(results[i], together[i::3])
        count = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            np.testing.assert_array_equal(embedder.encode(texts), together)
        finally:
            torch.set_num_threads(count)


def test_other_outputs_have_the_same_bits_in_any_batch(splade, colbert, three):
    tiny.write(splade / "1_Splade/config.json", {"pooling_strategy": "sum"})
    for folder, name in ((splade, "sparse"), (colbert, "multi"), (three[0], "sparse"), (three[0], "multi")):
        with Embedder(folder, device="cpu", dtype="float32", batch_invariant=True) as embedder:
            together, small = (embedder.encode(TEXTS, output=name, batch_tokens=budget) for budget in (4000, 30))
            alone = [embedder.encode(text, output=name) for text in TEXTS]
        if name == "sparse":
            assert (together != small).nnz == 0
            assert all((together[[i]] != row).nnz == 0 for i, row in enumerate(alone))
        else:
            np.testing.assert_array_equal(together.vectors, small.vectors)
            np.testing.assert_array_equal(together.vectors, np.concatenate(alone))


def test_one_token_sums_in_the_same_order_as_many():
    """oneDNN sums a product with one row in another order; with this many columns the bits differ."""
    from ridgeline.embed.config import Config
    from ridgeline.embed.layers_cpu import choose_cpu_layers

    config = Config(
        **dict.fromkeys(Config.__dataclass_fields__) | {"activation": "gelu", "heads": 2}  # type: ignore[arg-type]
    )
    layers = choose_cpu_layers(config, torch.device("cpu"), torch.float32)
    if not layers.batch_invariant:
        pytest.skip("this build of torch has no oneDNN")
    random = torch.Generator().manual_seed(1)
    weight, bias, x = (torch.randn(*s, generator=random) for s in ((384, 1536), (384,), (64, 1536)))
    linear, head = layers.prepare_linear(weight, bias), layers.prepare_head(weight, bias)
    for step in (
        lambda rows: layers.linear(rows, linear),
        lambda rows: layers.up(rows, linear),
        lambda rows: layers.head_linear(rows, head),
    ):
        together = step(x)
        for count in (1, 2, 3, 17):
            assert torch.equal(step(x[:count]), together[:count])


def test_the_promise_is_refused_where_it_does_not_hold(folder, monkeypatch):
    from ridgeline.embed import layers_cpu

    monkeypatch.setattr(layers_cpu, "_onednn_works", lambda dtype: False)
    with pytest.raises(InputError, match="batch_invariant is not available for dtype 'float32' on cpu"):
        Embedder(folder, device="cpu", dtype="float32", batch_invariant=True)


def test_the_tokens_of_a_text_are_a_view():
    tokens = TokenVectors(np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 1, 3]))
    assert tokens[-1].tolist() == [[2, 3], [4, 5]]
    with pytest.raises(IndexError):
        tokens[2]
    assert tokens[0].tolist() == [[0, 1]]
