"""A pickled model has no weights: it tokenizes as the model does, and does not encode."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
from tests.embed import tiny
from tests.embed.test_reranker import make

from ridgeline.embed import Embedder, Reranker, load_tokenizer
from ridgeline.embed.pairs import PairTokenizer
from ridgeline.errors import InputError

TEXTS = [text for text in tiny.TEXTS if text]


def copy(value):
    return pickle.loads(pickle.dumps(value))


def assert_same(one, other):
    assert one.ids.tolist() == other.ids.tolist()
    assert one.offsets.tolist() == other.offsets.tolist()


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_a_pickled_embedder_tokenizes_and_does_not_encode(tmp_path, kind):
    with Embedder(tiny.make(tmp_path / "m", kind), device="cpu", dtype="float32") as embedder:
        pickled = copy(embedder)
        assert_same(pickled.tokenize(TEXTS), embedder.tokenize(TEXTS))
        assert (pickled.device, pickled.dtype, pickled.dim) == ("cpu", "float32", embedder.dim)
        assert (pickled.max_tokens, pickled.outputs) == (embedder.max_tokens, embedder.outputs)
        embedder.encode(TEXTS)
    with pytest.raises(InputError, match="closed"):
        pickled.encode(TEXTS)
    assert pickled.tokenize(TEXTS).ids.tolist() == copy(pickled).tokenize(TEXTS).ids.tolist()


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_a_pickled_reranker_tokenizes_and_cuts_as_the_model_does(tmp_path, kind):
    with Reranker(make(tmp_path / "m", kind), device="cpu", dtype="float32") as reranker:
        pickled = copy(reranker)
        query = " ".join(TEXTS)
        with pytest.warns(UserWarning, match="limit"):
            expected = reranker.tokenize(query, TEXTS)
        with pytest.warns(UserWarning, match="limit"):
            assert_same(pickled.tokenize(query, TEXTS), expected)
        for model in (reranker, pickled):
            with pytest.raises(InputError, match="more than"):
                model.tokenize(query, TEXTS, truncate=False)
        assert_same(pickled.tokenize("cat", TEXTS[:2], truncate=False), reranker.tokenize("cat", TEXTS[:2]))


def test_native_tokenizers_can_be_pickled(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "dog", "##s", "the"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.native
    assert_same(copy(tokenizer).encode(["the cats", "a dog"]), tokenizer.encode(["the cats", "a dog"]))
    pairs = PairTokenizer(tmp_path, 8, 100)
    assert pairs.native
    assert_same(copy(pairs).encode(["the cats"], ["a dog"]), pairs.encode(["the cats"], ["a dog"]))
    assert pairs.copy(6).encode(["the cats"], ["a dog dog dog"]).lengths.tolist() == [6]
    assert pairs.max_tokens == 8


def test_a_process_that_only_tokenizes_does_not_import_torch(tmp_path):
    with Embedder(tiny.make(tmp_path / "m"), device="cpu", dtype="float32") as embedder:
        (tmp_path / "pickle").write_bytes(pickle.dumps(embedder))
        expected = embedder.tokenize(TEXTS[:1]).ids.tolist()
    code = f"""
import pickle, sys
embedder = pickle.load(open({str(tmp_path / "pickle")!r}, "rb"))
print(embedder.tokenize([{TEXTS[0]!r}]).ids.tolist(), "torch" in sys.modules)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == f"{expected} False\n"
