"""The real all-MiniLM-L6-v2 against stored vectors of sentence-transformers 6.2."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ridgeline import Embedder
from ridgeline.embed.devices import multiplies_bytes

GOLDEN = json.loads((Path(__file__).parent / "golden_minilm.json").read_text(encoding="utf-8"))


def test_vectors_match_sentence_transformers(minilm):
    actual = minilm.encode([g["text"] for g in GOLDEN])
    for vector, golden in zip(actual, GOLDEN, strict=True):
        np.testing.assert_allclose(vector[:16], golden["first"], atol=2e-6)
        np.testing.assert_allclose(vector @ actual[0], golden["to_first"], atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(actual, axis=1), 1, atol=1e-6)


def test_tokens_match_hugging_face(minilm):
    tokens = minilm.tokenize([g["text"] for g in GOLDEN])
    assert [tokens[i].tolist() for i in range(len(GOLDEN))] == [g["ids"] for g in GOLDEN]


def test_a_text_has_the_same_vector_in_every_batch(minilm):
    texts = [g["text"] for g in GOLDEN]
    actual = minilm.encode(texts)
    for i in (0, 3):
        np.testing.assert_allclose(minilm.encode_one(texts[i]), actual[i], atol=1e-6)


def test_bfloat16_keeps_the_cosine(minilm):
    texts = [g["text"] for g in GOLDEN]
    with Embedder(device="cpu", dtype="bfloat16") as narrow:
        actual = narrow.encode(texts)
    assert (actual * minilm.encode(texts)).sum(1).min() >= 0.9998


def test_float16_keeps_the_cosine_for_texts_of_every_kind_and_length(half, minilm):
    texts = [g["text"] for g in GOLDEN]
    texts += [" ".join(texts)[:n] for n in range(1, 1400, 97)]
    with Embedder(device="cpu", dtype="float16") as narrow:
        actual = narrow.encode(texts)
        alone = narrow.encode_one(texts[-1])
    assert (actual * minilm.encode(texts)).sum(1).min() >= 0.99999
    assert alone @ actual[-1] >= 0.99999
    np.testing.assert_allclose(np.linalg.norm(actual, axis=1), 1, atol=1e-5)


@pytest.mark.skipif(not multiplies_bytes(), reason="this CPU has no instructions for int8")
def test_int8_stays_near_float32_and_gives_the_same_bits_in_any_batch(minilm):
    texts = [g["text"] for g in GOLDEN]
    texts += [" ".join(texts)[:n] for n in range(1, 1400, 97)]
    with Embedder(device="cpu", dtype="int8", batch_invariant=True) as narrow:
        actual = narrow.encode(texts)
        alone = narrow.encode_one(texts[-1])
    assert (actual * minilm.encode(texts)).sum(1).min() >= 0.985
    np.testing.assert_array_equal(alone, actual[-1])


def test_an_empty_list_keeps_its_width(minilm):
    assert minilm.encode([]).shape == (0, 384)
    assert minilm.dim == 384
    assert minilm.max_tokens == 256


@pytest.mark.peer
def test_the_golden_values_match_the_peer(minilm):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = pytest.importorskip("sentence_transformers")
        expected = peer.SentenceTransformer(str(minilm.folder), device="cpu").encode([g["text"] for g in GOLDEN])
    for vector, golden in zip(expected, GOLDEN, strict=True):
        np.testing.assert_allclose(vector[:16], golden["first"], atol=2e-6)
