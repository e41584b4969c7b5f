"""The real all-mpnet-base-v2 against sentence-transformers 6.2; `python scripts/mpnet` fetches it (438 MB)."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest

import ridgeline

GOLDEN = json.loads((Path(__file__).parent / "golden_mpnet.json").read_text(encoding="utf-8"))
FOLDER = Path(os.environ.get("RIDGELINE_MPNET") or Path.home() / ".cache" / "ridgeline-tests" / "all-mpnet-base-v2")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mpnet():
    pytest.importorskip("torch")
    if not (FOLDER / "model.safetensors").is_file():
        pytest.skip("all-mpnet-base-v2 is not there; `python scripts/mpnet` fetches it")
    with ridgeline.Embedder(FOLDER, device="cpu", dtype="float32") as embedder:
        yield embedder


def test_vectors_match_sentence_transformers(mpnet):
    assert (mpnet.dim, mpnet.max_tokens) == (768, 384)
    actual = mpnet.encode([g["text"] for g in GOLDEN])
    for vector, golden in zip(actual, GOLDEN, strict=True):
        np.testing.assert_allclose(vector[:16], golden["first"], atol=3e-6)
        np.testing.assert_allclose(vector @ actual[0], golden["to_first"], atol=3e-6)


def test_its_tokenizer_is_native(mpnet):
    tokenizer = ridgeline.embed.load_tokenizer(FOLDER)
    assert tokenizer.native
    assert mpnet.tokenize([g["text"] for g in GOLDEN]).lengths.tolist() == [g["tokens"] for g in GOLDEN]
    tokenizers = pytest.importorskip("tokenizers")
    peer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    peer.no_padding()
    peer.enable_truncation(64)
    texts = [g["text"] for g in GOLDEN] + [f"a{chr(c)}b <{chr(c)}mask> <u{chr(c)}nk>" for c in range(1, 0x3000)]
    tokens = tokenizer.encode(texts, 64)
    assert [tokens[k].tolist() for k in range(len(texts))] == [e.ids for e in peer.encode_batch_fast(texts)]


@pytest.mark.peer
def test_film_titles_have_the_vectors_of_sentence_transformers(mpnet, data):
    peer = pytest.importorskip("sentence_transformers")
    path = data / "movielens" / "ml-latest-small" / "movies.csv"
    if not path.is_file():
        pytest.skip("movielens is not in the folder of datasets")
    with path.open(encoding="utf-8", newline="") as file:
        titles = [row[1] for row in list(csv.reader(file))[1:401]]
    expected = peer.SentenceTransformer(str(FOLDER), device="cpu").encode(titles, normalize_embeddings=True)
    actual = mpnet.encode(titles)
    assert (actual * expected).sum(1).min() >= 0.999999
    np.testing.assert_allclose(actual, expected, atol=3e-6)
