"""Scores of pairs against a float64 reference, and tokens of pairs against `tokenizers`."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tests.embed import tiny
from tests.embed.oracle import SPECIAL, describe_tokenizer
from tests.embed.tiny import HIDDEN, TEXTS, WORDS, Reference

import ridgeline
from ridgeline.errors import InputError

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")

from ridgeline.embed import Reranker, TooLong  # noqa: E402
from ridgeline.embed.pairs import PairTokenizer  # noqa: E402

QUERY = "the red cat"
LIMIT = 24


def make(folder, kind="bert", labels=1, **config):
    """A folder as transformers saves …ForSequenceClassification."""
    random = np.random.default_rng(7)

    def draw(*shape):
        return (random.normal(size=shape) * 0.5).astype(np.float32)

    architecture = {"bert": "Bert", "xlm-roberta": "XLMRoberta"}[kind] + "ForSequenceClassification"
    prefix = "bert." if kind == "bert" else "roberta."
    config["id2label"] = {str(i): f"label {i}" for i in range(labels)}
    tiny.make(folder, kind, pooling=None, architectures=[architecture], prefix=prefix, **config)
    tensors = load_file(folder / "model.safetensors")
    if kind == "bert":
        tensors |= {"classifier.weight": draw(labels, HIDDEN), "classifier.bias": draw(labels)}
    else:
        tensors |= {"classifier.dense.weight": draw(HIDDEN, HIDDEN), "classifier.dense.bias": draw(HIDDEN)}
        tensors |= {"classifier.out_proj.weight": draw(labels, HIDDEN), "classifier.out_proj.bias": draw(labels)}
    save_file(tensors, folder / "model.safetensors")
    if kind == "bert":
        names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
        config = json.loads((folder / "tokenizer_config.json").read_text())
        tiny.write(folder / "tokenizer_config.json", config | names)
    return folder


def compute_logits(folder, pairs, limit=LIMIT):
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    reference = Reference(folder, "bert." if kind == "bert" else "roberta.")
    reference.tokenizer.enable_truncation(limit)
    word, w, rows = reference.w["embeddings.word_embeddings.weight"], reference.w, []
    types = w["embeddings.token_type_embeddings.weight"]
    w["embeddings.word_embeddings.weight"] = np.concatenate([word, word + types[-1] - types[0]])
    for query, document in pairs:
        encoding = reference.tokenizer.encode(query, document)
        second = np.array(encoding.type_ids) * len(word)
        first = reference.compute_hidden((np.array(encoding.ids) + second).tolist())[0]
        if kind == "bert":
            x = np.tanh(reference._linear(first, "pooler.dense"))
            rows.append(reference._linear(x, "classifier"))
        else:
            x = np.tanh(reference._linear(first, "classifier.dense"))
            rows.append(reference._linear(x, "classifier.out_proj"))
    return np.array(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("rerankers") / "bert")


@pytest.fixture(scope="module")
def reranker(folder):
    with Reranker(folder, device="cpu", dtype="float32") as model:
        yield model


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_scores_are_those_of_the_reference(tmp_path, kind):
    folder = make(tmp_path / "m", kind)
    logits = compute_logits(folder, [(QUERY, text) for text in TEXTS])[:, 0]
    with Reranker(folder, device="cpu", dtype="float32", activation="identity") as model:
        scores = model.score(QUERY, TEXTS)
        assert (scores.dtype, scores.shape) == (np.float32, (len(TEXTS),))
        np.testing.assert_allclose(scores, logits, atol=1e-5)
    with Reranker(folder, device="cpu", dtype="float32") as model:
        np.testing.assert_allclose(model.score(QUERY, TEXTS), 1 / (1 + np.exp(-logits)), atol=1e-5)
        np.testing.assert_allclose(model.score(QUERY, TEXTS, raw=True), logits, atol=1e-5)
        assert ridgeline.Reranker is Reranker


def test_the_longer_side_of_a_pair_is_cut(reranker, folder):
    long, short = "the red dog sleeps " * 9, "a cat runs"
    pairs = [(long, short), (short, long), (long, "blue " + long), (long[:60], long)]
    with pytest.warns(UserWarning, match="4 pairs reach the limit of 24 tokens"):
        scores = reranker.score_pairs(pairs, raw=True)
    np.testing.assert_allclose(scores, compute_logits(folder, pairs)[:, 0], atol=1e-5)


def test_rank_gives_the_best_documents_first(reranker):
    scores = reranker.score(QUERY, TEXTS)
    ranking = reranker.rank(QUERY, TEXTS)
    assert [entry["corpus_id"] for entry in ranking] == np.argsort(-scores, kind="stable").tolist()
    assert ranking[0] == {"corpus_id": int(scores.argmax()), "score": float(scores.max())}
    assert reranker.rank(QUERY, TEXTS, top_k=3) == ranking[:3]
    assert reranker.rank(QUERY, TEXTS, top_k=0) == reranker.rank(QUERY, []) == []
    equal = reranker.rank(QUERY, ["a dog"] * 4)
    assert [entry["corpus_id"] for entry in equal] == [0, 1, 2, 3]


def test_several_outputs_are_columns(tmp_path):
    folder = make(tmp_path / "m", labels=3)
    logits = compute_logits(folder, [(QUERY, text) for text in TEXTS])
    with Reranker(folder, device="cpu", dtype="float32") as model:
        np.testing.assert_allclose(model.score(QUERY, TEXTS), logits, atol=1e-5)
        assert model.score(QUERY, []).shape == (0, 3)
        with pytest.raises(InputError, match="has 3 outputs, so it does not rank"):
            model.rank(QUERY, TEXTS)
    with Reranker(folder, device="cpu", dtype="float32", activation="softmax") as model:
        powers = np.exp(logits - logits.max(1, keepdims=True))
        np.testing.assert_allclose(model.score(QUERY, TEXTS), powers / powers.sum(1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize(
    ("file", "content", "activation"),
    [
        ("config_sentence_transformers.json", {"activation_fn": "torch.nn.modules.linear.Identity"}, "identity"),
        ("config.json", {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, "tanh"),
        ("config.json", {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
    ],
)
def test_the_activation_of_the_folder_is_used(tmp_path, file, content, activation):
    folder = make(tmp_path / "m")
    path = folder / file
    tiny.write(path, (json.loads(path.read_text()) if path.exists() else {}) | content)
    with Reranker(folder, device="cpu", dtype="float32") as model:
        assert model.activation == activation
        logits = model.score(QUERY, TEXTS, raw=True)
        expected = np.tanh(logits) if activation == "tanh" else logits
        np.testing.assert_allclose(model.score(QUERY, TEXTS), expected, atol=1e-6)


def test_many_windows_keep_the_order(reranker, monkeypatch):
    expected = reranker.score(QUERY, TEXTS)
    monkeypatch.setattr("ridgeline.embed.reranker.WINDOW_PAIRS", 3)
    np.testing.assert_array_equal(reranker.score(QUERY, iter(TEXTS), batch_tokens=30), expected)
    pairs = [(QUERY, text) for text in TEXTS]
    np.testing.assert_array_equal(reranker.score_pairs(iter(pairs)), expected)


def test_a_pair_has_the_same_bits_in_any_batch(folder):
    for dtype in ("float32", "bfloat16"):
        with Reranker(folder, device="cpu", dtype=dtype, batch_invariant=True) as model:
            together = model.score(QUERY, TEXTS)
            np.testing.assert_array_equal(np.concatenate([model.score(QUERY, [t]) for t in TEXTS]), together)
            np.testing.assert_array_equal(model.score(QUERY, TEXTS, batch_tokens=31), together)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda r: r.score(QUERY, "a cat"), "documents is one str; give a list"),
        (lambda r: r.score(3, TEXTS), "the query is int"),
        (lambda r: r.score(QUERY, ["a", None]), "text 1 is NoneType"),
        (lambda r: r.score(QUERY, ["a", "b \ud800"]), "text 1 has a lone surrogate"),
        (lambda r: r.score_pairs([("a", "b"), ("c",)]), "pair 1 is .* give two texts"),
        (lambda r: r.score_pairs(["ab"]), "pair 0 is 'ab'"),
        (lambda r: r.score(QUERY, TEXTS, batch_tokens=0), "batch_tokens is 0"),
        (lambda r: r.rank(QUERY, TEXTS, top_k=-1), "top_k is -1"),
    ],
)
def test_bad_input_is_one_sentence(reranker, way, message):
    with pytest.raises(InputError, match=message):
        way(reranker)


def test_a_model_that_is_no_reranker_is_refused(tmp_path):
    with pytest.raises(InputError, match="hold no classifier that is known here, so it is no reranker"):
        Reranker(tiny.make(tmp_path / "m", pooling=None), device="cpu")
    folder = make(tmp_path / "n")
    with pytest.raises(InputError, match="no activation 'sigmoidal'"):
        Reranker(folder, device="cpu", activation="sigmoidal")
    with pytest.raises(InputError, match="takes 5 to 40"):
        Reranker(folder, device="cpu", max_tokens=41)
    with pytest.raises(InputError, match=r"is a cross-encoder \(reranker\)"):
        ridgeline.Embedder(folder, device="cpu")
    tiny.write(folder / "config_sentence_transformers.json", {"activation_fn": "own.Code"})
    with pytest.raises(InputError, match=r"has the activation 'own\.Code'; give one of"):
        Reranker(folder, device="cpu")
    tiny.write(folder / "config_sentence_transformers.json", {"default_prompt_name": "query"})
    with pytest.raises(InputError, match="puts the prompt 'query' before its pairs"):
        Reranker(folder, device="cpu")
    entries = [{"type": "sentence_transformers.x.Transformer"}, {"type": "sentence_transformers.x.LogitScore"}]
    tiny.write(folder / "modules.json", entries)
    with pytest.raises(InputError, match="has the modules Transformer → LogitScore; a reranker here is"):
        Reranker(folder, device="cpu")
    model = Reranker(make(tmp_path / "p"), device="cpu")
    model.close()
    with pytest.raises(InputError, match="this reranker is closed"):
        model.score(QUERY, TEXTS)


PAIR_WORDS = ["a", "cat", "##s", "the", "xylo", "##phone"]


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers") / "bert"
    folder.mkdir()
    tiny.write(folder / "tokenizer.json", describe_tokenizer(PAIR_WORDS))
    return folder


texts = st.lists(st.sampled_from(["a", "cats", "the", "xylophone", "?", "zebra"]), max_size=14).map(" ".join)


@settings(deadline=None, max_examples=60)
@given(pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=5), limit=st.integers(5, 20), same=st.booleans())
def test_native_pairs_are_those_of_tokenizers(bert_folder, pairs, limit, same):
    size = len(SPECIAL) + len(PAIR_WORDS)
    tokenizer = PairTokenizer(bert_folder, limit, size)
    assert tokenizer.native
    peer = tokenizers.Tokenizer.from_file(str(bert_folder / "tokenizer.json"))
    peer.no_padding()
    peer.enable_truncation(limit, strategy="longest_first")
    firsts = [pairs[0][0]] * len(pairs) if same else [first for first, _ in pairs]
    seconds = [second for _, second in pairs]
    tokens = tokenizer.encode(firsts, seconds)
    for i, row in enumerate(peer.encode_batch(list(zip(firsts, seconds, strict=True)))):
        assert tokens[i].tolist() == [n + size * t for n, t in zip(row.ids, row.type_ids, strict=True)]


def test_a_vocabulary_of_lines_knows_pairs(tmp_path, bert_folder):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *PAIR_WORDS]) + "\n")
    for limit in (6, 40):
        tokens = [PairTokenizer(f, limit, 100).encode(["a cat"], ["the cats"]) for f in (tmp_path, bert_folder)]
        assert tokens[0][0].tolist() == tokens[1][0].tolist()


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_scores_match_sentence_transformers(tmp_path, kind):
    folder = make(tmp_path / "m", kind)
    long = " ".join(WORDS[:17] * 4)
    pairs = [(QUERY, text) for text in TEXTS] + [(long, QUERY), (QUERY, long), (long, long)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = pytest.importorskip("sentence_transformers")
        expected = peer.CrossEncoder(str(folder), device="cpu", max_length=LIMIT).predict(pairs)
        with Reranker(folder, device="cpu", dtype="float32") as model:
            np.testing.assert_allclose(model.score_pairs(pairs), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_tokens_of_pairs_give_the_scores_of_the_texts_and_a_long_pair_is_refused_on_request(tmp_path, kind):
    documents = [text for text in TEXTS if text][:8]
    with Reranker(make(tmp_path / "r", kind), device="cpu", dtype="float32") as reranker:
        tokens = reranker.tokenize(QUERY, documents, truncate=False)
        assert (reranker.score_tokens(tokens) == reranker.score(QUERY, documents)).all()
        assert (reranker.score_tokens(tokens, raw=True) == reranker.score(QUERY, documents, raw=True)).all()
        room = LIMIT - (reranker.tokenize(QUERY, ["a"]).lengths[0] - 1)
        assert reranker.tokenize(QUERY, ["a " * room], truncate=False).lengths[0] == LIMIT  # just fits
        with pytest.raises(TooLong, match=f"document 1 have more than the {LIMIT} tokens"):
            reranker.tokenize(QUERY, ["a", "a " * (room + 1)], truncate=False)
        with pytest.warns(UserWarning, match="reaches the limit"):
            assert reranker.tokenize(QUERY, ["a " * 100]).lengths[0] == LIMIT
        with pytest.raises(InputError, match="text 0 is int"):
            reranker.tokenize(QUERY, [5])


def test_do_lower_case_keeps_special_tokens(tmp_path):
    folder = make(tmp_path / "m")
    with Reranker(folder, device="cpu") as plain:
        expected = plain.score("the [MASK]", ["a red cat"])
    tiny.write(folder / "sentence_bert_config.json", {"do_lower_case": True})
    with Reranker(folder, device="cpu") as reranker:
        np.testing.assert_array_equal(reranker.score("THE [MASK]", ["A Red cat"]), expected)
