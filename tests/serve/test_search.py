"""Search over HTTP: texts or vectors, conditions, rows that come and go."""

from __future__ import annotations

import numpy as np
import pytest
from tests.embed import tiny
from tests.serve.conftest import TEXTS, ask_in_threads, run_server

import ridgeline


def read_ids(answer):
    return [[row["id"] for row in rows] for rows in answer.json()["results"]]


def search(client, **body):
    return client.post("/v1/search", json={"index": "films", **body})


@pytest.fixture
def fresh(folder, index_folder):
    """A server of its own, for tests that change the index."""
    with run_server([f"mini={folder}"], [f"films={index_folder}"]) as (client, _):
        yield client


def test_texts_and_vectors_find_what_the_library_finds(client, index_folder, vectors):
    scores, ids = ridgeline.Index.load(index_folder, device="cpu").search(vectors[:3], 5)
    by_text = search(client, input=TEXTS[:3], k=5)
    by_vector = search(client, vectors=vectors[:3].tolist(), k=5)
    assert read_ids(by_text) == read_ids(by_vector) == ids.tolist()
    assert [[row["score"] for row in rows] for rows in by_text.json()["results"]] == scores.tolist()
    assert read_ids(search(client, input=TEXTS[0])) == [read_ids(search(client, input=TEXTS[0], k=10))[0]]
    assert read_ids(search(client, vectors=vectors[0].tolist(), k=1)) == [[int(ids[0, 0])]]


def test_a_condition_and_a_recall_apply(client):
    [found] = read_ids(search(client, input=TEXTS[0], k=50, where="n >= 20"))
    assert found
    assert all(i >= 20 for i in found)
    assert search(client, input=TEXTS[0], k=3, recall=0.9).status_code == 200


def test_more_results_than_rows_give_all_rows(client):
    assert len(read_ids(search(client, input=TEXTS[0], k=1000))[0]) == len(TEXTS)


def test_rows_are_found_once_added_and_gone_once_removed(fresh, embedder):
    text = "the cat stops"
    added = fresh.post(
        "/v1/indexes/films/add", json={"ids": [9001], "input": [text], "meta": {"n": [-5], "word": ["x"]}}
    )
    assert (added.status_code, added.json()) == (200, {"count": len(TEXTS) + 1})
    assert read_ids(search(fresh, input=text, k=1)) == [[9001]]
    assert read_ids(search(fresh, input=text, k=5, where="n < 0")) == [[9001]]
    vector = embedder.encode_one("a dog runs").tolist()
    meta = {"n": [0], "word": ["y"]}
    assert (
        fresh.post("/v1/indexes/films/add", json={"ids": [9002], "vectors": [vector], "meta": meta}).status_code == 200
    )
    removed = fresh.post("/v1/indexes/films/remove", json={"ids": [9001]})
    assert removed.json() == {"removed": 1}
    again = fresh.post("/v1/indexes/films/remove", json={"ids": [9001]})
    assert (again.status_code, "9001 is not in the index" in again.text) == (400, True)
    assert 9001 not in read_ids(search(fresh, input=text, k=1000))[0]
    assert 9002 in read_ids(search(fresh, input=text, k=1000))[0]


def test_a_reload_reads_the_folder_again(fresh):
    fresh.post("/v1/indexes/films/remove", json={"ids": [0]})
    assert fresh.post("/admin/reload", json={"index": "films"}).json() == {"reloaded": "films"}
    assert read_ids(search(fresh, input=TEXTS[0], k=1)) == [[0]]


def test_searches_while_rows_change_see_whole_changes(fresh, vectors):
    rows = [[100 + k, 200 + k] for k in range(8)]
    meta = {"n": [1, 2], "word": ["x", "y"]}

    def change(ids):
        def send():
            add = fresh.post("/v1/indexes/films/add", json={"ids": ids, "vectors": vectors[:2].tolist(), "meta": meta})
            remove = fresh.post("/v1/indexes/films/remove", json={"ids": ids})
            return add.status_code, remove.json()

        return send

    def look():
        [found] = read_ids(search(fresh, vectors=vectors[0].tolist(), k=1000))
        return [i for i in found if i >= 100]

    results = ask_in_threads([*(change(ids) for ids in rows), *[look] * 16])
    assert results[: len(rows)] == [(200, {"removed": 2})] * len(rows)
    for seen in results[len(rows) :]:
        for low, high in rows:
            assert (low in seen) == (high in seen), "half of an add was visible"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"index": "nosuch", "input": "a"}, 404, ["index_not_found", "films"]),
        ({"index": None, "input": "a"}, 400, ["'index' is missing"]),
        ({}, 400, ["'input' or 'vectors'"]),
        ({"input": "a", "vectors": [[1.0] * 32]}, 400, ["one of the two"]),
        ({"vectors": [[1, 2]]}, 400, ["2 components", "has 32"]),
        ({"vectors": [["a"] * 32]}, 400, ["list of numbers"]),
        ({"vectors": [[True] * 32]}, 400, ["list of numbers"]),
        ({"vectors": [[1e39] * 32]}, 400, ["too large"]),
        ({"vectors": [[10**30] * 32]}, 200, []),
        ({"vectors": 5}, 400, ["list of vectors"]),
        ({"vectors": []}, 400, ["empty"]),
        ({"input": "a", "k": 0}, 400, ["1 to 1000"]),
        ({"input": "a", "k": 2**70}, 400, ["1 to 1000"]),
        ({"input": "a", "where": "n >>= 3"}, 400, []),
        ({"input": "a", "where": "nosuch = 3"}, 400, ["nosuch"]),
        ({"input": "a", "where": 5}, 400, ["string"]),
        ({"input": "a", "recall": "high"}, 400, ["number"]),
        ({"input": "a", "recall": 2.0}, 400, ["recall"]),
        ({"input": "a", "model": "nosuch"}, 404, ["mini"]),
        ({"input": "a " * 50}, 400, ["context_length_exceeded"]),
    ],
)
def test_a_bad_search_is_one_sentence(client, body, status, words):
    answer = client.post("/v1/search", json={"index": "films", **body})
    assert answer.status_code == status, answer.text
    for word in words:
        assert word in str(answer.json()["error"])


ONE = [1.0] * 32


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"ids": [], "vectors": [ONE]}, "whole numbers"),
        ({"ids": [1.5], "vectors": [ONE]}, "whole numbers"),
        ({"ids": [2**63], "vectors": [ONE]}, "whole numbers"),
        ({"ids": [700, 701], "vectors": [ONE]}, "2 ids and 1 vectors"),
        ({"ids": [0], "vectors": [ONE]}, "0"),
        ({"ids": [700], "vectors": [ONE], "meta": {"n": [1]}}, "word"),
        ({"ids": [700], "vectors": [ONE], "meta": {"n": [1, 2], "word": ["a", "b"]}}, ""),
        ({"ids": [700], "vectors": [ONE], "meta": {"n": ["one"], "word": ["a"]}}, ""),
        ({"ids": [700], "vectors": [ONE], "meta": {"n": [{}], "word": [[1]]}}, "meta"),
        ({"ids": [700], "vectors": [ONE], "meta": {"n": [1], "word": "a"}}, "object of lists"),
        ({"ids": [700], "vectors": [ONE], "meta": [1]}, "meta"),
        ({"ids": [700], "vectors": [ONE], "meta": {"n": [2**64 - 1], "word": ["a"]}}, ""),
        ({"ids": [700], "vectors": [ONE], "name": "films"}, "'name' is unknown"),
    ],
)
def test_a_bad_row_is_refused_and_nothing_is_added(client, body, words):
    answer = client.post("/v1/indexes/films/add", json=body)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]
    assert client.get("/info").json()["indexes"][0]["rows"] == len(TEXTS)


def test_texts_need_a_model_that_fits_the_index(folder, index_folder, tmp_path):
    other = tiny.make(tmp_path / "other", dense="Tanh")
    with run_server([f"other={other}"], [f"films={index_folder}"]) as (client, _):
        answer = search(client, input="a")
        assert (answer.status_code, "name the 'model'" in answer.text) == (400, True)
        answer = search(client, input="a", model="other")
        assert "'other' has 12 dimensions, and the index 'films' 32." in answer.text
    with run_server([f"mini={folder}", f"twin={folder}"], [f"films={index_folder}"]) as (client, _):
        assert "mini, twin" in search(client, input="a").text
        assert search(client, input="a", model="twin").status_code == 200


def test_an_index_alone_needs_no_model(index_folder, vectors):
    with run_server([], [index_folder]) as (client, _):
        assert read_ids(search(client, vectors=vectors[:1].tolist(), k=1)) == [[0]]
        assert client.post("/v1/embeddings", json={"model": "mini", "input": "a"}).status_code == 404
        assert "no embedding model" in client.post("/embed", json={"inputs": "a"}).json()["error"]


def test_scores_of_a_distance_are_distances(folder, vectors, tmp_path):
    index = ridgeline.Index("Flat", metric="l2", device="cpu")
    index.add(vectors, ids=np.arange(len(vectors)) * 3)
    index.save(tmp_path / "l2")
    with run_server([folder], [tmp_path / "l2"]) as (client, _):
        [[best, *_]] = client.post("/v1/search", json={"index": "l2", "input": TEXTS[2]}).json()["results"]
    assert best["id"] == 6
    assert best["score"] == pytest.approx(0, abs=1e-5)
