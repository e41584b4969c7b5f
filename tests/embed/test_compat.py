"""The classes of sentence-transformers: the same results, and arguments that are not here refused by name."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import sys
import types
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.embed import test_reranker, tiny
from tests.embed.tiny import HIDDEN, TEXTS

from ridgeline import Embedder
from ridgeline.errors import InputError

torch = pytest.importorskip("torch")

from ridgeline.embed.compat import sentence_transformers as compat  # noqa: E402

PROMPTS = {"query": "query : ", "passage": "passage : "}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.make(tmp_path_factory.mktemp("compat") / "dense", prompts=PROMPTS)


@pytest.fixture(scope="module")
def model(folder):
    with compat.SentenceTransformer(str(folder), device="cpu") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def rerankers(tmp_path_factory):
    root = tmp_path_factory.mktemp("compat")
    return {labels: test_reranker.make(root / str(labels), labels=labels) for labels in (1, 3)}


@pytest.fixture(scope="module")
def splade(tmp_path_factory):
    folder = tiny.make(tmp_path_factory.mktemp("compat") / "splade", pooling=None, architectures=["BertForMaskedLM"])
    random = np.random.default_rng(1)
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    head = {"transform.dense.weight": (HIDDEN, HIDDEN), "transform.dense.bias": (HIDDEN,), "bias": (size,)}
    head |= {"transform.LayerNorm.weight": (HIDDEN,), "transform.LayerNorm.bias": (HIDDEN,)}
    named = {f"cls.predictions.{k}": random.normal(size=s).astype(np.float32) for k, s in head.items()}
    tensors = {f"bert.{k}": v for k, v in load_file(folder / "model.safetensors").items() if "pooler" not in k}
    save_file(tensors | named, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def colbert(tmp_path_factory):
    folder = tiny.make(tmp_path_factory.mktemp("compat") / "colbert")
    modules = [("Transformer", ""), ("MultiVectorMask", "1_Mask"), ("Normalize", "")]
    (folder / "1_Mask").mkdir()
    tiny.write(folder / "1_Mask/config.json", {"skiplist_words": ["the"]})
    entries = [
        {"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.x.{n}"}
        for i, (n, p) in enumerate(modules)
    ]
    tiny.write(folder / "modules.json", entries)
    tiny.write(folder / "config_sentence_transformers.json", {"model_type": "MultiVectorEncoder"})
    return folder


def test_encode_answers_in_the_asked_form(model, folder):
    with Embedder(folder, device="cpu", dtype="float32") as embedder:
        expected = embedder.encode(TEXTS)  # the folder ends with Normalize
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-6)
    assert model.encode(TEXTS[0]).shape == (HIDDEN,)
    assert isinstance(model.encode(TEXTS, convert_to_tensor=True), torch.Tensor)
    parts = model.encode(TEXTS, convert_to_numpy=False)
    assert isinstance(parts, list)
    np.testing.assert_array_equal(torch.stack(parts).numpy(), model.encode(sentences=TEXTS, batch_size=3))
    tokens = model.encode(TEXTS[:2], output_value="token_embeddings")
    assert [t.shape for t in tokens] == [(6, HIDDEN), (2, HIDDEN)]
    assert model.encode([]).shape == (0,)
    assert len(model.encode([], convert_to_tensor=True)) == 0


def test_prompts_go_by_name_by_task_and_by_default(model, folder):
    query = model.encode(["query : a cat"])
    for other in (
        model.encode(["a cat"], prompt_name="query"),
        model.encode(["a cat"], prompt="query : "),
        model.encode_query(["a cat"]),
    ):
        np.testing.assert_array_equal(other, query)
    np.testing.assert_array_equal(model.encode_document(["a cat"]), model.encode(["a cat"]))  # not its "passage"
    given = {"document": "passage : "}
    with compat.SentenceTransformer(folder, device="cpu", prompts=given, default_prompt_name="query") as own:
        np.testing.assert_array_equal(own.encode_document(["a cat"]), model.encode(["passage : a cat"]))
        np.testing.assert_array_equal(own.encode(["a cat"]), query)
    with compat.SentenceTransformer(folder, device="cpu", prompts={"mine": "red "}, default_prompt_name="mine") as own:
        np.testing.assert_array_equal(own.encode(["cat"]), model.encode(["red cat"]))
    with pytest.raises(InputError, match="Prompt name 'querry' not found in the configured prompts"):
        model.encode(["a"], prompt_name="querry")


def test_truncation_comes_before_normalising(model):
    cut = model.encode(TEXTS)[:, :8]
    np.testing.assert_allclose(model.encode(TEXTS, truncate_dim=8), cut, atol=1e-7)
    expected = cut / np.linalg.norm(cut, axis=1, keepdims=True)
    np.testing.assert_allclose(model.encode(TEXTS, truncate_dim=8, normalize_embeddings=True), expected, atol=1e-6)


@pytest.mark.parametrize("name", compat.SIMILARITIES)
def test_similarities_follow_their_formulas(folder, name):
    with compat.SentenceTransformer(folder, device="cpu", similarity_fn_name=name) as model:
        a, b = 2 * model.encode(TEXTS[:3]), model.encode(TEXTS[3:6])
        matrix, pairs = model.similarity(a, b).numpy(), model.similarity_pairwise(a, b).numpy()
    formulas = {
        "cosine": lambda x, y: x @ y / np.linalg.norm(x) / np.linalg.norm(y),
        "dot": lambda x, y: x @ y,
        "euclidean": lambda x, y: -np.linalg.norm(x - y),
        "manhattan": lambda x, y: -np.abs(x - y).sum(),
    }
    expected = np.array([[formulas[name](x, y) for y in b] for x in a])
    np.testing.assert_allclose(matrix, expected, atol=1e-4)
    np.testing.assert_allclose(pairs, np.diag(expected), atol=1e-4)


def test_properties(folder):
    with compat.SentenceTransformer(folder, truncate_dim=8, model_kwargs={"dtype": torch.bfloat16}) as model:
        assert (model.get_sentence_embedding_dimension(), model.max_seq_length) == (8, 24)
        assert model.device == torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model.max_seq_length = 5
        with pytest.warns(UserWarning, match="limit of 5 tokens"):
            assert model.encode("a red cat runs over the tree").shape == (8,)
        with pytest.raises(InputError, match="max_seq_length is 99; this model takes 3 to 40"):
            model.max_seq_length = 99


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda c, f: c.SentenceTransformer(f, backend="onnx"), "no argument 'backend'"),
        (lambda c, f: c.SentenceTransformer(f, trust_remote_code=True), "no argument 'trust_remote_code'"),
        (lambda c, f: c.SentenceTransformer(f, revision="abc"), "a revision is chosen when the model is fetched"),
        (lambda c, f: c.SentenceTransformer(f, model_kwargs={"attn": 1}), "model_kwargs has 'attn'"),
        (lambda c, f: c.SentenceTransformer(), "needs the folder or the name"),
        (lambda c, f: c.SentenceTransformer(f, similarity_fn_name="jaccard"), "no similarity 'jaccard'"),
        (lambda c, f: c.SentenceTransformer(f, tokenizer_kwargs={"x": 1}), "tokenizer_kwargs has 'x'"),
        (lambda c, f: c.SentenceTransformer(f).encode(["a"], pool={}), "must come from start_multi_process_pool"),
        (lambda c, f: c.SentenceTransformer(f).encode_multi_process(["a"]), "encode_multi_process needs a pool"),
        (lambda c, f: c.SentenceTransformer(f).encode("a", precision="int8"), "int8 quantization ranges from a single"),
        (lambda c, f: c.SentenceTransformer(f).half(), "make it with model_kwargs={'dtype': 'float16'}"),
        (lambda c, f: c.SentenceTransformer(f).to("cuda:7"), "make another one for device='cuda:7'"),
        (lambda c, f: c.SentenceTransformer(f).encode(["a"], precision="int4"), "Precision 'int4' is not supported"),
        (lambda c, f: c.SentenceTransformer(f).encode(["a"], device="cuda:7"), "make another one for device="),
        (lambda c, f: c.SentenceTransformer(f).encode(["a"], batch_size=0), "batch_size is 0"),
        (lambda c, f: c.SentenceTransformer(f).encode(), "encode needs texts"),
        (lambda c, f: c.SparseEncoder(f), "has no 'sparse' output"),
        (lambda c, f: c.MultiVectorEncoder(f), "has no 'multi' output"),
        (lambda c, f: c.CrossEncoder(f), "has the modules"),
    ],
)
def test_what_is_not_here_is_refused_by_name(folder, way, message):
    with pytest.raises(InputError, match=message):
        way(compat, folder)


def test_arguments_about_downloads_change_nothing(folder):
    compat.SentenceTransformer(folder, device="cpu", cache_folder="x", local_files_only=True, token=None).close()


def test_defaults_and_keys_that_change_nothing_are_welcome(folder, model):
    defaults = {"backend": "torch", "modules": None, "config_kwargs": None, "trust_remote_code": False}
    keys = {"model_kwargs": {"attn_implementation": "sdpa"}, "tokenizer_kwargs": {"padding_side": "left"}}
    with compat.SentenceTransformer(folder, device="cpu", use_auth_token=None, **defaults, **keys) as other:
        np.testing.assert_array_equal(other.encode(TEXTS), model.encode(TEXTS))
        assert other.to("cpu").eval().float().cpu() is other
        assert other.to(torch.device("cpu"), torch.float32) is other
        assert other.dtype == torch.float32


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_encodes_the_same_with_what_was_changed(folder, splade, colbert, rerankers, way):
    with compat.SentenceTransformer(folder, device="cpu", truncate_dim=8) as model:
        model.max_seq_length, model.prompts["mine"], model.default_prompt_name = 6, "red ", "mine"
        model.similarity_fn_name, model.truncate_dim = "dot", 7
        with way(model) as other, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # texts are cut
            np.testing.assert_array_equal(other.encode(TEXTS), model.encode(TEXTS))
            assert (other.max_seq_length, other.similarity_fn_name, other.truncate_dim) == (6, "dot", 7)
    with compat.CrossEncoder(rerankers[1], device="cpu", max_length=20) as model, way(model) as other:
        np.testing.assert_array_equal(other.predict([TEXTS[:2]]), model.predict([TEXTS[:2]]))
    with compat.SparseEncoder(splade, device="cpu", max_active_dims=3) as model, way(model) as other:
        assert torch.equal(other.encode(TEXTS).to_dense(), model.encode(TEXTS).to_dense())
    with compat.MultiVectorEncoder(colbert, device="cpu") as model, way(model) as other:
        assert torch.equal(other.encode_query("a dog"), model.encode_query("a dog"))


def test_the_folder_may_cut_vectors(model, tmp_path):
    cut = tiny.make(tmp_path / "cut", prompts=PROMPTS)
    settings = json.loads((cut / "config_sentence_transformers.json").read_text())
    tiny.write(cut / "config_sentence_transformers.json", settings | {"truncate_dim": 8})
    full = model.encode(TEXTS)
    with compat.SentenceTransformer(cut, device="cpu") as other:
        assert (other.truncate_dim, other.get_embedding_dimension()) == (8, 8)
        np.testing.assert_array_equal(other.encode(TEXTS), full[:, :8])
        np.testing.assert_array_equal(other.encode(TEXTS, truncate_dim=20), full[:, :20])
    with Embedder(cut, device="cpu", dtype="float32") as embedder:
        expected = full[:, :8] / np.linalg.norm(full[:, :8], axis=1, keepdims=True)
        np.testing.assert_allclose(embedder.encode(TEXTS), expected, atol=1e-6)
    with Embedder(cut, device="cpu", dtype="float32", truncate_dim=HIDDEN) as embedder:
        assert embedder.encode(TEXTS[0]).shape == (HIDDEN,)


@pytest.mark.slow  # processes are started
def test_processes_encode_the_same(model, folder):
    texts = TEXTS * 5
    expected = model.encode(texts, prompt_name="query", normalize_embeddings=True)
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    options = {"prompt_name": "query", "normalize_embeddings": True}
    try:
        np.testing.assert_allclose(model.encode(texts, pool=pool, **options), expected, atol=1e-6)
        np.testing.assert_allclose(
            model.encode_multi_process(texts, pool, chunk_size=7, **options), expected, atol=1e-6
        )
        np.testing.assert_allclose(model.encode(texts[0], pool=pool, **options), expected[0], atol=1e-6)
        assert model.encode([], pool=pool).shape == (0,)
        with pytest.raises(InputError, match="no output_value 'token_embeddings'"):
            model.encode(texts, pool=pool, output_value="token_embeddings")
    finally:
        model.stop_multi_process_pool(pool)
    np.testing.assert_allclose(model.encode(texts, device=["cpu"], **options), expected, atol=1e-6)


def test_a_pool_without_devices_has_no_more_processes_than_cpus(model, monkeypatch):
    started = {}

    class Pool:
        def __init__(self, name, *, devices, **settings):
            started["devices"] = devices

        def __enter__(self):
            return self

    monkeypatch.setattr(compat, "EmbedderPool", Pool)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for cpus, expected in ((1, 1), (3, 3), (64, 4)):
        monkeypatch.setattr(compat.os, "sched_getaffinity", lambda _, n=cpus: set(range(n)))
        model.start_multi_process_pool()
        assert started["devices"] == ["cpu"] * expected


@pytest.mark.peer
def test_the_tokenizer_is_that_of_transformers(model):
    pytest.importorskip("transformers")
    ids = model.tokenizer.encode("the red cat")
    assert ids == model.tokenize(["the red cat"])["input_ids"][0].tolist()
    assert model.tokenizer.decode(ids, skip_special_tokens=True) == "the red cat"


def test_features_are_encoded_with_padding_on_either_side(model):
    texts = TEXTS[2:6]
    expected = model.encode(texts)
    rows = model.encode(texts, output_value="token_embeddings")
    features = model.tokenize(texts)
    outputs = model(features)
    np.testing.assert_allclose(outputs["sentence_embedding"], expected, atol=1e-6)
    for row, padded, mask in zip(rows, outputs["token_embeddings"], features["attention_mask"], strict=True):
        np.testing.assert_allclose(padded[mask > 0], row, atol=1e-6)
        assert not padded[mask == 0].any()
    flipped = {name: values.flip(1) for name, values in features.items()}
    ids, mask = flipped["input_ids"], flipped["attention_mask"]
    for i, row in enumerate(mask > 0):  # padding on the left, tokens in their order
        ids[i, row] = ids[i, row].flip(0)
    types = torch.zeros_like(ids)
    left = model.forward({"input_ids": ids, "attention_mask": mask, "token_type_ids": types})
    np.testing.assert_allclose(left["sentence_embedding"], expected, atol=1e-6)
    with pytest.raises(InputError, match="token_type_ids are not 0"):
        model({"input_ids": ids, "token_type_ids": types + 1})
    with pytest.raises(InputError, match="no input_ids"):
        model({"attention_mask": mask})


def test_everything_of_a_text_comes_in_a_dict(model):
    single = model.encode(TEXTS[3], output_value=None, prompt="query : ", truncate_dim=9)
    rows = model.encode(TEXTS[2:5], output_value=None, prompt="query : ", truncate_dim=9)
    vectors = model.encode(TEXTS[2:5], prompt="query : ", truncate_dim=9)
    tokens = model.encode(TEXTS[2:5], prompt="query : ", output_value="token_embeddings")
    for row, text, vector, hidden in zip(rows, TEXTS[2:5], vectors, tokens, strict=True):
        ids = model.tokenize([text], prompt="query : ")["input_ids"][0]
        np.testing.assert_array_equal(row["input_ids"], ids)
        np.testing.assert_array_equal(row["attention_mask"], torch.ones(len(ids)))
        np.testing.assert_allclose(row["sentence_embedding"], vector, atol=1e-6)
        np.testing.assert_allclose(row["token_embeddings"], hidden, atol=1e-6)
    np.testing.assert_allclose(single["sentence_embedding"], vectors[1], atol=1e-6)


def test_a_saved_model_encodes_the_same(folder, tmp_path, rerankers):
    with compat.SentenceTransformer(str(folder), device="cpu", similarity_fn_name="dot") as model:
        model.max_seq_length, model.truncate_dim, model.prompts["query"] = 21, 7, "a red "
        model.set_pooling_include_prompt(False)
        expected = model.encode_query(TEXTS)
        model.save_pretrained(tmp_path / "a", safe_serialization=True)
        with pytest.raises(InputError, match="is the folder of this model"):
            model.save(folder)
        with pytest.raises(InputError, match="no argument 'push'"):
            model.save(tmp_path / "b", push=True)
        with pytest.raises(InputError, match="only written as safetensors"):
            model.save(tmp_path / "b", safe_serialization=False)
    with compat.SentenceTransformer(tmp_path / "a", device="cpu") as saved:
        np.testing.assert_array_equal(saved.encode_query(TEXTS), expected)
        assert (saved.max_seq_length, saved.truncate_dim, saved.similarity_fn_name) == (21, 7, "dot")
    with compat.CrossEncoder(rerankers[1], device="cpu") as model:
        model.save(str(tmp_path / "c"))
        with compat.CrossEncoder(tmp_path / "c", device="cpu") as saved:
            np.testing.assert_array_equal(saved.predict([("a", "b")]), model.predict([("a", "b")]))


def test_the_prompt_is_left_out_of_the_pooling_on_request(folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / "m")
    tiny.write(path / "1_Pooling/config.json", {"pooling_mode": "mean", "include_prompt": False})
    with (
        compat.SentenceTransformer(path, device="cpu") as model,
        compat.SentenceTransformer(folder, device="cpu") as plain,
        Embedder(path, device="cpu", dtype="float32", prompt="query") as embedder,
    ):
        assert (plain.encode_query(TEXTS) != model.encode_query(TEXTS)).any()
        np.testing.assert_allclose(model.encode_query(TEXTS), embedder.encode(TEXTS), atol=1e-6)
        np.testing.assert_array_equal(model.encode(TEXTS), plain.encode(TEXTS))
        plain.set_pooling_include_prompt(False)
        np.testing.assert_array_equal(plain.encode_query(TEXTS), model.encode_query(TEXTS))
        copied = copy.deepcopy(plain)
        np.testing.assert_array_equal(copied.encode_query(TEXTS), model.encode_query(TEXTS))
        with pytest.raises(InputError, match="leaves its prompt out"):
            model.tokenize(TEXTS, prompt="query : ")


def test_what_modules_would_say_is_refused_with_the_cure(model):
    with pytest.raises(InputError, match=r"not separate here \(model\[0\]\); max_seq_length"):
        model[0]
    with pytest.raises(InputError, match="not a dict"):
        model.encode({"text": "a cat"})
    with pytest.raises(InputError, match="give strings only"):
        model.encode([("the red cat", "a dog")])
    with pytest.raises(InputError, match="takes a list of texts"):
        model.tokenize("the cat")
    with pytest.raises(TypeError, match="abstract"):
        compat._Model("m")


def test_a_program_that_asks_for_their_class_gets_yes(model, rerankers, monkeypatch):
    """KeyBERT and BERTopic load another model without a word where they get no."""
    assert "sentence_transformers" in str(type(model))
    monkeypatch.delitem(sys.modules, "sentence_transformers", raising=False)
    assert model.__class__ is compat.SentenceTransformer
    library = types.ModuleType("sentence_transformers")
    library.SentenceTransformer = type("SentenceTransformer", (), {})
    monkeypatch.setitem(sys.modules, "sentence_transformers", library)
    assert isinstance(model, library.SentenceTransformer)
    assert isinstance(model, compat.SentenceTransformer)
    assert not isinstance(model, compat.SparseEncoder)
    with compat.CrossEncoder(rerankers[1], device="cpu") as other:  # not in this library
        assert other.__class__ is compat.CrossEncoder

    class Own(compat.SentenceTransformer):
        pass

    with Own(model._name, device="cpu") as own:
        assert isinstance(own, library.SentenceTransformer)
        assert type(copy.copy(own)) is Own


@pytest.mark.peer
def test_evaluators_of_sentence_transformers_take_the_model(model, tmp_path):
    peer = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    firsts, seconds = TEXTS[6:16], TEXTS[7:17]
    evaluator = peer.EmbeddingSimilarityEvaluator(firsts, seconds, np.linspace(0, 1, 10).tolist(), name="tiny")
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(model._name, device="cpu")
    expected = evaluator(theirs)
    assert model.evaluate(evaluator, str(tmp_path / "scores")) == pytest.approx(expected, abs=1e-5)


def test_cross_encoders_predict_and_rank(rerankers):
    pairs = [("the red cat", text) for text in TEXTS]
    with compat.CrossEncoder(rerankers[1], device="cpu", max_length=20) as model:
        scores = model.predict(pairs)
        ranking = model.rank("the red cat", TEXTS, top_k=3, return_documents=True)
        raw = model.predict(pairs, activation_fn=torch.nn.Identity(), convert_to_tensor=True)
        assert (model.max_seq_length, model.num_labels) == (20, 1)
        assert model.predict(pairs[2]) == pytest.approx(scores[2])
        assert model.predict([]).shape == (0,)
        model.max_length = 6
        assert model.max_seq_length == 6
        with pytest.warns(UserWarning, match="limit of 6 tokens"):
            cut = model.predict(pairs, num_workers=0)
        with pytest.raises(InputError, match="max_tokens is 99"):
            model.max_length = 99
    too_long = pytest.warns(UserWarning, match="limit of 6 tokens")
    with compat.CrossEncoder(rerankers[1], device="cpu", max_length=6) as model, too_long:
        np.testing.assert_array_equal(model.predict(pairs), cut)
    assert (cut != scores).any()
    np.testing.assert_allclose(raw.sigmoid().numpy(), scores, atol=1e-6)
    best = int(scores.argmax())
    assert ranking[0] == {"corpus_id": best, "score": pytest.approx(scores[best]), "text": TEXTS[best]}
    with compat.CrossEncoder(rerankers[3], device="cpu") as model:
        np.testing.assert_allclose(model.predict(pairs[:4], apply_softmax=True).sum(1), 1, atol=1e-6)
        with pytest.raises(InputError, match="a model with 3 outputs does not rank"):
            model.rank("a", ["b"])
    with pytest.raises(InputError, match="num_labels is 2"):
        compat.CrossEncoder(rerankers[1], device="cpu", num_labels=2)


def test_progress_is_printed_on_request(model, rerankers, capsys):
    model.encode(TEXTS, show_progress_bar=True)
    assert f"{len(TEXTS)} of {len(TEXTS)} texts" in capsys.readouterr().err
    with compat.CrossEncoder(rerankers[1], device="cpu") as cross:
        cross.predict([("a", "b"), ("c", "d")], show_progress_bar=True)
    assert "2 of 2 texts" in capsys.readouterr().err


def test_sparse_vectors_are_counted_and_intersected(splade):
    with compat.SparseEncoder(str(splade), device="cpu") as model:
        rows = model.encode(TEXTS[:4])
        dense = rows.to_dense()
        stats = model.sparsity(rows)
        assert stats["active_dims"] == pytest.approx((dense > 0).sum(1).float().mean().item())
        assert stats["sparsity_ratio"] == pytest.approx((dense == 0).float().mean().item())
        assert model.sparsity(rows[0])["active_dims"] == (dense[0] > 0).sum()
        assert model.sparsity(dense[:0]) == {"active_dims": 0.0, "sparsity_ratio": 1.0}
        shared = model.intersection(rows[0], rows)
        np.testing.assert_allclose(shared.to_dense(), dense[0] * dense)
        np.testing.assert_allclose(model.intersection(dense[0], -dense[1]).to_dense(), np.zeros(len(dense[0])))
        with pytest.raises(InputError, match="takes a vector"):
            model.intersection(rows, rows)
        with pytest.raises(InputError, match="dimensions"):
            model.intersection(dense[0], dense[0][:3])
        with pytest.raises(InputError, match="top_k is 0"):
            model.decode(rows, top_k=0)


def test_sparse_encoders_give_sparse_tensors(splade):
    with compat.SparseEncoder(splade, device="cpu") as model:
        tensor = model.encode(TEXTS)
        dense = model.encode(TEXTS, convert_to_sparse_tensor=False)
        assert tensor.is_sparse
        assert torch.equal(tensor.to_dense(), dense)
        assert model.encode(TEXTS[0]).shape == (dense.shape[1],)
        assert len(model.encode(TEXTS, convert_to_tensor=False)) == len(TEXTS)
        few = model.encode(TEXTS, max_active_dims=3, convert_to_sparse_tensor=False)
        assert (few > 0).sum(1).max() <= 3
        assert torch.equal(few.amax(1), dense.amax(1))
        np.testing.assert_allclose(model.similarity(tensor, tensor), dense @ dense.T, rtol=1e-5)


def test_multi_vector_encoders_score_by_the_best_tokens(colbert):
    with compat.MultiVectorEncoder(colbert, device="cpu") as model:
        queries, documents = model.encode_query(TEXTS[2:4]), model.encode_document(TEXTS[:4])
        scores = model.similarity(queries, documents)
        single = model.encode_document(TEXTS[0], convert_to_numpy=True)
        with pytest.raises(InputError, match="give task='query' or task='document'"):
            model.encode(TEXTS)
    np.testing.assert_array_equal(single, documents[0].numpy())
    assert len(documents[0]) == 5  # without "the"
    expected = [
        [sum(max(float(q @ d) for d in document) for q in query) for document in documents] for query in queries
    ]
    np.testing.assert_allclose(scores, expected, atol=1e-5)


@pytest.mark.peer
def test_results_are_those_of_sentence_transformers(folder, rerankers, splade):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = pytest.importorskip("sentence_transformers")
        theirs, ours = (c.SentenceTransformer(str(folder), device="cpu") for c in (peer, compat))
        for call in (
            lambda m: m.encode(TEXTS, batch_size=3),
            lambda m: m.encode(TEXTS[2]),
            lambda m: m.encode_query(TEXTS[2:4], truncate_dim=9, normalize_embeddings=True),
            lambda m: m.encode_document(TEXTS[2:4], convert_to_tensor=True),
            lambda m: m.similarity(m.encode(TEXTS[2:4]), m.encode(TEXTS)),
            lambda m: m.encode([]),
            lambda m: m(m.tokenize(TEXTS[2:5]))["sentence_embedding"].detach(),
            lambda m: m.encode(TEXTS[2], output_value=None)["token_embeddings"],
            lambda m: m.set_pooling_include_prompt(False) or m.encode_query(TEXTS),
        ):
            mine, expected = call(ours), call(theirs)
            assert type(mine) is type(expected)
            np.testing.assert_allclose(mine, expected, atol=1e-5)
        theirs, ours = (c.SparseEncoder(str(splade), device="cpu") for c in (peer, compat))
        mine, expected = ours.encode(TEXTS), theirs.encode(TEXTS)
        np.testing.assert_allclose(mine.to_dense(), expected.to_dense(), rtol=1e-4, atol=1e-4)
        for words, other in zip(ours.decode(mine, top_k=4), theirs.decode(expected, top_k=4), strict=True):
            assert [word for word, _ in words] == [word for word, _ in other]
            np.testing.assert_allclose([w for _, w in words], [w for _, w in other], rtol=1e-4)
        assert ours.sparsity(mine) == pytest.approx(theirs.sparsity(expected))
        shared = [m.intersection(v[0], v).to_dense() for m, v in ((ours, mine), (theirs, expected))]
        np.testing.assert_allclose(*shared, rtol=1e-4, atol=1e-4)
        pairs = [m.similarity_pairwise(m.encode(TEXTS[:3]), m.encode(TEXTS[1:4])) for m in (ours, theirs)]
        np.testing.assert_allclose(*pairs, rtol=1e-4)
        for labels, path in rerankers.items():
            theirs, ours = (c.CrossEncoder(str(path), device="cpu", max_length=20) for c in (peer, compat))
            pairs = [("the red cat", text) for text in TEXTS]
            np.testing.assert_allclose(ours.predict(pairs), theirs.predict(pairs), atol=1e-5)
            if labels == 1:
                ids = [[r["corpus_id"] for r in m.rank("a dog", TEXTS[2:8])] for m in (ours, theirs)]
                assert ids[0] == ids[1]


def test_precisions_are_those_of_quantize_embeddings(model):
    vectors = model.encode(TEXTS, convert_to_tensor=True)
    low, high = vectors.numpy().min(0), vectors.numpy().max(0)
    levels = np.floor((vectors.numpy() - low) / ((high - low) / 255)).clip(0, 255)
    np.testing.assert_array_equal(model.encode(TEXTS, precision="uint8"), levels.astype(np.uint8))
    np.testing.assert_array_equal(model.encode(TEXTS, precision="int8"), (levels - 128).astype(np.int8))
    bits = np.packbits(vectors.numpy() > 0, axis=1)
    np.testing.assert_array_equal(model.encode(TEXTS, precision="ubinary"), bits)
    binary = model.encode(TEXTS, precision="binary", convert_to_tensor=True)
    assert binary.dtype == torch.int8
    np.testing.assert_array_equal(binary.numpy(), bits.astype(int) - 128)
    constant = compat.quantize(np.ones((3, 2), np.float32), "uint8")
    assert (constant == 0).all()


def test_settings_change_as_attributes(model, folder, caplog):
    with model.truncate_embeddings(5):
        assert model.get_embedding_dimension() == 5
        assert model.encode("a dog").shape == (5,)
    assert model.encode("a dog").shape == (HIDDEN,)
    tokens = model.tokenize(["a dog", "the red cat runs"])
    assert tokens["attention_mask"].sum(1).tolist() == [4, 6]
    assert tokens["input_ids"][0, :4].tolist() == model._embedder.tokenize(["a dog"]).ids.tolist()
    with compat.SentenceTransformer(str(folder), device="cpu") as other:
        other.similarity_fn_name = type("Function", (), {"value": "euclidean"})()  # a member of an enum
        assert other.similarity_fn_name == "euclidean"
        with pytest.raises(ValueError, match="'nothing' not found in the configured prompts"):
            other.encode("a dog", prompt_name="nothing")
        with pytest.raises(ValueError, match="has no argument 'normalize'"):
            other.encode("a dog", normalize=True)
        assert other.get_model_kwargs() == []
        other.encode("a dog", prompt="so: ", prompt_name="query")
    assert "Ignoring the `prompt_name`" in caplog.text
