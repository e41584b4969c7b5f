"""The paths of Text Embeddings Inference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.embed import tiny
from tests.serve.conftest import TEXTS, run_server

import ridgeline


def test_embed_answers_vectors_of_texts_and_of_token_ids(client, embedder, vectors):
    assert (np.array(client.post("/embed", json={"inputs": TEXTS[:3]}).json(), np.float32) == vectors[:3]).all()
    assert (np.array(client.post("/embed", json={"inputs": TEXTS[0]}).json(), np.float32) == vectors[:1]).all()
    ids = embedder.tokenize(TEXTS[:1])[0].tolist()
    assert (np.array(client.post("/embed", json={"inputs": [ids]}).json(), np.float32) == vectors[:1]).all()
    short = np.array(client.post("/embed", json={"inputs": TEXTS[0], "dimensions": 5}).json())
    assert short.shape == (1, 5)
    assert np.linalg.norm(short) == pytest.approx(1)


def test_embed_puts_a_prompt_before_the_text(client, embedder):
    answer = client.post("/embed", json={"inputs": "red cat", "prompt_name": "query"}).json()
    assert (np.array(answer[0], np.float32) == embedder.encode_one("query : red cat")).all()
    refused = client.post("/embed", json={"inputs": "red cat", "prompt_name": "nosuch"})
    assert refused.status_code == 422
    assert "query, passage" in refused.json()["error"]


def test_embed_all_answers_a_vector_per_token(client, embedder):
    answer = client.post("/embed_all", json={"inputs": TEXTS[:3]}).json()
    expected = embedder.encode(TEXTS[:3], output="tokens")
    for i, row in enumerate(answer):
        assert (np.array(row, np.float32) == expected[i]).all()


def test_embed_sparse_answers_the_weights_of_words(tmp_path):
    folder = tiny.make(tmp_path / "m3")
    random = np.random.default_rng(0)
    from safetensors.numpy import save_file

    head = {"weight": random.normal(size=(1, tiny.HIDDEN)), "bias": np.full(1, 2.0)}
    save_file({k: v.astype(np.float32) for k, v in head.items()}, folder / "sparse_linear.safetensors")
    with ridgeline.Embedder(folder, device="cpu", dtype="float32") as embedder:
        expected = embedder.encode(TEXTS, output="sparse").toarray()
    with run_server([folder]) as (client, _):
        answer = client.post("/embed_sparse", json={"inputs": TEXTS}).json()
        dense = client.post("/embed", json={"inputs": TEXTS[:1]})
    got = np.zeros_like(expected)
    for i, row in enumerate(answer):
        for entry in row:
            got[i, entry["index"]] = entry["value"]
    assert (got == expected).all()
    assert (got > 0).any()
    assert dense.status_code == 200


def test_a_model_without_sparse_vectors_says_which_outputs_it_has(client):
    answer = client.post("/embed_sparse", json={"inputs": "a cat"})
    assert answer.status_code == 422
    assert answer.json() == {
        "error": "'mini' has no output 'sparse'; it has: dense, tokens.",
        "error_type": "validation",
    }


def test_similarity_is_the_cosine_to_each_sentence(client, vectors):
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:5]}}
    np.testing.assert_allclose(client.post("/similarity", json=body).json(), vectors[1:5] @ vectors[0], atol=1e-6)


def test_tokenize_shows_number_text_and_place_of_every_token(client, embedder):
    text = "the red dogs"
    [row] = client.post("/tokenize", json={"inputs": text}).json()
    assert [token["id"] for token in row] == embedder.tokenize([text])[0].tolist()
    assert [token["text"] for token in row] == ["[CLS]", "the", "red", "dog", "s", "[SEP]"]
    assert [token["special"] for token in row] == [True, False, False, False, False, True]
    assert [(token["start"], token["stop"]) for token in row[1:-1]] == [(0, 3), (4, 7), (8, 11), (11, 12)]
    [bare] = client.post("/tokenize", json={"inputs": text, "add_special_tokens": False}).json()
    assert bare == row[1:-1]


def test_info_describes_the_first_model_and_lists_all(client):
    info = client.get("/info").json()
    assert (info["model_id"], info["model_dtype"], info["max_input_length"]) == ("mini", "float32", 24)
    assert [model["name"] for model in info["models"]] == ["mini"]
    assert info["indexes"] == [{"name": "films", "rows": len(TEXTS), "dim": 32}]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/embed", {}, 422, "'inputs' is missing"),
        ("/embed", {"inputs": []}, 422, "'inputs' is empty"),
        ("/embed", {"inputs": "a " * 100}, 413, "truncate"),
        ("/embed", {"inputs": "a", "model": "nosuch"}, 404, "mini"),
        ("/embed", {"inputs": "a", "normalize": False}, 422, "length 1"),
        ("/embed", {"inputs": "a", "truncation_direction": "Left"}, 422, "Right"),
        ("/similarity", {"inputs": "a"}, 422, "'inputs' must be an object"),
        ("/similarity", {"inputs": {"source_sentence": "a"}}, 422, "'sentences' is missing"),
        ("/similarity", {"inputs": {"source_sentence": "", "sentences": ["a"]}}, 422, "source_sentence"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": "b"}, "parameters": [1]}, 422, "parameters"),
        ("/tokenize", {"inputs": "a " * 600_000}, 422, "characters"),
        ("/embed_all", {"inputs": [[2, 3]]}, 200, ""),
        ("/embed", {"inputs": [[2, 3]], "prompt_name": "query"}, 422, "'prompt_name' is for texts"),
        ("/embed_all", {"inputs": [2, 3], "truncation_direction": "left"}, 422, "Right"),
    ],
)
def test_a_bad_request_is_one_sentence_in_the_shape_of_tei(client, path, body, status, words):
    answer = client.post(path, json=body)
    assert answer.status_code == status
    if status != 200:
        assert set(answer.json()) == {"error", "error_type"}
        assert words in answer.json()["error"]


def test_embed_all_refuses_an_answer_that_would_fill_the_memory(client, monkeypatch):
    from ridgeline.serve import app

    monkeypatch.setattr(app, "MAX_VALUES", 500)
    assert client.post("/embed_all", json={"inputs": "the red cat"}).status_code == 200
    answer = client.post("/embed_all", json={"inputs": TEXTS})
    assert answer.status_code == 422
    assert "send fewer texts" in answer.json()["error"]


def test_the_root_answers_as_the_path_that_takes_the_fields(client, vectors):
    """Clients of Hugging Face (`InferenceClient(URL)`) post everything to the address itself."""
    for body in ({"inputs": TEXTS[:2]}, {"inputs": TEXTS[:2], "truncate": True, "normalize": True}):
        assert (np.array(client.post("/", json=body).json(), np.float32) == vectors[:2]).all()
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:3]}}
    assert client.post("/", json=body).json() == client.post("/similarity", json=body).json()
    for body, words in (({}, "'inputs' is missing"), ({"inputs": "a", "raw_scores": True}, "'raw_scores' is unknown")):
        refused = client.post("/", json=body)
        assert (refused.status_code, refused.json()["error_type"]) == (422, "validation")
        assert words in refused.json()["error"]
    assert client.get("/").headers["content-type"].startswith("text/html")
