"""Reranking as Cohere and Text Embeddings Inference have it; scores are those of the library."""

from __future__ import annotations

import numpy as np
import pytest
from tests.serve.conftest import TEXTS, ask_in_threads, run_server

import ridgeline

pytest.importorskip("tokenizers")
from tests.embed.test_reranker import make

QUERY = "the red cat"


@pytest.fixture(scope="module")
def cross(tmp_path_factory):
    return make(tmp_path_factory.mktemp("models") / "cross")


@pytest.fixture(scope="module")
def scores(cross):
    with ridgeline.Reranker(cross, device="cpu", dtype="float32") as reranker:
        yield reranker.score(QUERY, TEXTS), reranker.score(QUERY, TEXTS, raw=True)


@pytest.fixture(scope="module")
def server(folder, cross):
    with run_server([f"mini={folder}", cross]) as (client, service):
        yield client, service


def test_cohere_gets_the_best_documents_first(client, scores):
    order = np.argsort(-scores[0], kind="stable").tolist()
    body = {"model": "cross", "query": QUERY, "documents": TEXTS, "top_n": 4}
    answer = client.post("/v1/rerank", json=body).json()
    assert answer["model"] == "cross"
    assert answer["results"] == [{"index": i, "relevance_score": float(scores[0][i])} for i in order[:4]]
    documents = [{"text": text} for text in TEXTS]
    answer = client.post("/v1/rerank", json={"query": QUERY, "documents": documents, "return_documents": True}).json()
    assert [r["index"] for r in answer["results"]] == order
    assert all(r["document"] == {"text": TEXTS[r["index"]]} for r in answer["results"])


def test_tei_gets_scores_with_or_without_activation(client, scores):
    order = np.argsort(-scores[0], kind="stable").tolist()
    answer = client.post("/rerank", json={"query": QUERY, "texts": TEXTS}).json()
    assert answer == [{"index": i, "score": float(scores[0][i])} for i in order]
    options = {"raw_scores": True, "return_text": True}
    answer = client.post("/rerank", json={"query": QUERY, "texts": TEXTS, **options}).json()
    assert {r["text"]: r["score"] for r in answer} == {TEXTS[i]: float(score) for i, score in enumerate(scores[1])}


def test_rerankers_and_embedders_are_kept_apart(client):
    for path, body in {"/v1/embeddings": {"input": "a"}, "/v1/rerank": {"query": "a", "documents": ["b"]}}.items():
        model = "cross" if path == "/v1/embeddings" else "mini"
        answer = client.post(path, json={"model": model, **body})
        assert answer.status_code == 400
        assert f"'{model}' is no" in answer.json()["error"]["message"]
    assert [m["kind"] for m in client.get("/info").json()["models"]] == ["embedding", "reranker"]


def test_requests_at_once_get_the_scores_they_get_alone(client, scores):
    asks = [
        lambda n=n: client.post("/rerank", json={"query": QUERY, "texts": TEXTS[n:], "raw_scores": n % 2 == 1}).json()
        for n in range(8)
    ]
    for n, answer in enumerate(ask_in_threads(asks)):
        assert {r["index"]: r["score"] for r in answer} == {i: float(s) for i, s in enumerate(scores[n % 2][n:])}


@pytest.mark.filterwarnings("ignore:.* the limit of 24 tokens")  # in the server, where the client asks for it
def test_a_long_pair_is_refused_by_tei_and_cut_by_cohere_unless_told_otherwise(client):
    long = "a dog " * 40
    refused = client.post("/rerank", json={"query": QUERY, "texts": ["a", long]})
    assert (refused.status_code, "document 1" in refused.json()["error"]) == (413, True)
    assert "'cross' takes" in refused.json()["error"]
    assert client.post("/rerank", json={"query": QUERY, "texts": [long], "truncate": True}).status_code == 200
    assert client.post("/v1/rerank", json={"query": QUERY, "documents": [long]}).status_code == 200
    refused = client.post("/v1/rerank", json={"query": QUERY, "documents": [long], "truncate": False})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"documents": ["a"]}, "'query' is missing"),
        ({"query": "", "documents": ["a"]}, "'query' is an empty string"),
        ({"query": "a"}, "'documents' is missing"),
        ({"query": "a", "documents": []}, "'documents' is empty"),
        ({"query": "a", "documents": [{"title": "b"}]}, "list of strings"),
        ({"query": "a", "documents": ["b", ""]}, "'documents' 1 is an empty string"),
        ({"query": "a", "documents": ["b"], "top_n": 0}, "'top_n'"),
        ({"query": "a", "documents": ["b"], "return_documents": 1}, "true or false"),
        ({"query": ["a"], "documents": ["b"]}, "'query' must be a string"),
    ],
)
def test_a_bad_request_is_one_sentence(client, body, words):
    answer = client.post("/v1/rerank", json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_a_classifier_with_several_outputs_is_refused(tmp_path):
    with pytest.raises(ridgeline.RidgelineError, match="has 3 outputs"), run_server([make(tmp_path / "r", labels=3)]):
        pass


def test_the_second_version_of_cohere_is_answered_alike(client):
    body = {"model": "cross", "query": QUERY, "documents": TEXTS, "top_n": 4}
    first, second = (client.post(f"/v{n}/rerank", json=body).json() for n in (1, 2))
    assert first == second
    assert client.post("/v2/rerank", json={**body, "max_tokens_per_doc": 4096, "priority": 1}).json() == first
    refused = client.post("/v2/rerank", json={**body, "max_tokens_per_doc": 3})
    assert (refused.status_code, "max_tokens_per_doc" in refused.json()["message"]) == (400, True)
    assert client.post("/rerank", json=body).json() == first  # where vLLM takes the fields of Cohere
    assert client.post("/", json=body).json() == first


def test_an_error_has_what_clients_of_cohere_and_of_openai_read(client):
    answer = client.post("/v2/rerank", json={"model": "nosuch", "query": "a", "documents": ["b"]})
    assert answer.status_code == 404
    assert answer.json()["message"] == answer.json()["error"]["message"]
    assert "cross" in answer.json()["message"]


def test_tei_gets_the_best_texts_on_request(client, scores):
    order = np.argsort(-scores[0], kind="stable").tolist()
    answer = client.post("/rerank", json={"query": QUERY, "texts": TEXTS, "top_n": 3}).json()
    assert [row["index"] for row in answer] == order[:3]
    refused = client.post("/rerank", json={"query": QUERY, "texts": TEXTS, "return_documents": True})
    assert (refused.status_code, "'return_documents' is unknown" in refused.json()["error"]) == (422, True)
