"""OpenAI's interface, judged by its own client; vectors are those of the library to the last bit."""

from __future__ import annotations

import asyncio
import base64
import gzip

import httpx
import numpy as np
import pytest
from tests.serve.conftest import TEXTS, run, run_server

from ridgeline.embed import Tokens
from ridgeline.errors import InputError

openai = pytest.importorskip("openai")


@pytest.fixture
def api(client):
    with openai.OpenAI(
        base_url=f"{client.base_url}/v1", api_key="none", max_retries=0, http_client=httpx.Client(trust_env=False)
    ) as api:
        yield api


def read_vectors(answer):
    return np.array([row.embedding for row in answer.data], np.float32)


def test_a_list_of_texts_has_the_vectors_of_the_library(api, embedder, vectors):
    answer = api.embeddings.create(model="mini", input=TEXTS)
    assert (read_vectors(answer) == vectors).all()
    assert [row.index for row in answer.data] == list(range(len(TEXTS)))
    assert (answer.object, answer.model) == ("list", "mini")
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == len(embedder.tokenize(TEXTS).ids)


def test_one_text_as_floats_or_base64_is_the_same_vector(client, vectors):
    floats = client.post("/v1/embeddings", json={"model": "mini", "input": TEXTS[3]}).json()
    body = {"model": "mini", "input": TEXTS[3], "encoding_format": "base64"}
    coded = client.post("/v1/embeddings", json=body).json()
    assert (np.array(floats["data"][0]["embedding"], np.float32) == vectors[3]).all()
    assert (np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4") == vectors[3]).all()


def test_token_ids_are_taken_as_given(api, embedder, vectors):
    tokens = embedder.tokenize(TEXTS[:2])
    rows = [tokens[i].tolist() for i in range(2)]
    assert (read_vectors(api.embeddings.create(model="mini", input=rows[0])) == vectors[:1]).all()
    assert (read_vectors(api.embeddings.create(model="mini", input=rows)) == vectors[:2]).all()


def test_dimensions_cuts_and_scales_to_length_1(api, vectors):
    short = read_vectors(api.embeddings.create(model="mini", input=TEXTS[:3], dimensions=8))
    expected = vectors[:3, :8] / np.linalg.norm(vectors[:3, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(short, expected, atol=1e-6)


def test_a_hundred_requests_at_once_get_their_own_vectors(client, vectors):
    async def ask_all():
        async with openai.AsyncOpenAI(
            base_url=f"{client.base_url}/v1", api_key="none", http_client=httpx.AsyncClient(trust_env=False)
        ) as api:
            return await asyncio.gather(
                *(api.embeddings.create(model="mini", input=TEXTS[i % 20 : i % 20 + 1 + i % 5]) for i in range(100))
            )

    for i, answer in enumerate(run(ask_all())):
        assert (read_vectors(answer) == vectors[i % 20 : i % 20 + 1 + i % 5]).all()


def test_models_are_listed(api, client):
    assert [(model.id, model.object) for model in api.models.list()] == [("mini", "model")]
    assert api.models.retrieve("mini").id == "mini"
    with pytest.raises(openai.NotFoundError) as error:
        api.models.retrieve("nosuch")
    assert error.value.body["code"] == "model_not_found"


LONG = "the red cat runs " * 30


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"model": "nosuch"}, 404, ["model_not_found", "mini"]),
        ({"model": None}, 400, ["'model' is missing"]),
        ({"input": []}, 400, ["'input' is empty"]),
        ({"input": ""}, 400, ["'input' 0 is an empty string"]),
        ({"input": ["a", ""]}, 400, ["'input' 1 is an empty string"]),
        ({"input": None}, 400, ["'input' is missing"]),
        ({"input": 5}, 400, ["a string or a list of strings"]),
        ({"input": [None]}, 400, ["a string or a list of strings"]),
        ({"input": [True, 3]}, 400, ["a string or a list of strings"]),
        ({"input": [[1, "a"]]}, 400, ["token ids"]),
        ({"input": [[]]}, 400, ["no token ids"]),
        ({"input": [[2, 99_999_999, 3]]}, 400, ["99999999", "0 to 26"]),
        ({"input": [[1, -1]]}, 400, ["-1", "0 to 26"]),
        ({"input": [[2, 2**63, 3]]}, 400, ["9223372036854775808", "0 to 26"]),
        ({"input": [[2, 2**64, 3]]}, 400, ["token ids"]),
        ({"input": [[2] * 24 + [3]]}, 400, ["context_length_exceeded", "25 token ids", "24"]),
        ({"input": ["a"] * 2049}, 400, ["at most 2048"]),
        ({"input": LONG}, 400, ["context_length_exceeded", "'mini' takes", "truncate"]),
        ({"dimensions": 5000}, 400, ["1 to 32"]),
        ({"dimensions": 0}, 400, ["1 to 32"]),
        ({"dimensions": 1.5}, 400, ["whole number"]),
        ({"encoding_format": "int8"}, 400, ["float or base64"]),
        ({"inputs": "x"}, 400, ["'inputs' is unknown", "encoding_format"]),
        ({"truncate": "yes"}, 400, ["true or false"]),
    ],
)
def test_a_bad_request_is_one_sentence_in_the_shape_of_openai(client, change, status, words):
    answer = client.post("/v1/embeddings", json={"model": "mini", "input": "a cat", **change})
    error = answer.json()["error"]
    assert answer.status_code == status
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    for word in words:
        assert word in f"{error['message']} {error['code']}"
    assert "/" not in error["message"].replace("/v1", ""), "a path of the server is shown"


@pytest.mark.filterwarnings("ignore:.* the limit of 24 tokens")  # in the server, where the client asks for it
@pytest.mark.parametrize("body", [{"input": LONG}, {"input": [[2, *[7] * 40, 3]]}])
def test_a_long_text_is_cut_on_request(client, embedder, body):
    answer = client.post("/v1/embeddings", json={"model": "mini", "truncate": True, **body}).json()
    assert answer["usage"]["prompt_tokens"] == 24
    if isinstance(body["input"], str):
        assert (np.array(answer["data"][0]["embedding"], np.float32) == embedder.encode_one(LONG)).all()


def test_two_models_stand_side_by_side_under_their_names(folder, tmp_path, embedder):
    from tests.embed import tiny

    other = tiny.make(tmp_path / "other", pooling="cls")
    with run_server([folder, f"second={other}"]) as (client, _):
        assert [m["id"] for m in client.get("/v1/models").json()["data"]] == ["mini", "second"]
        first, second = (
            np.array(client.post("/v1/embeddings", json={"model": m, "input": TEXTS[0]}).json()["data"][0]["embedding"])
            for m in ("mini", "second")
        )
    assert (first.astype(np.float32) == embedder.encode_one(TEXTS[0])).all()
    assert first @ second < 0.99


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed", "/v2/rerank"])
def test_a_compressed_body_is_refused_by_that_name(client, path):
    body = gzip.compress(b'{"model": "mini", "input": "a"}')
    answer = client.post(path, content=body, headers={"content-encoding": "gzip"})
    assert answer.status_code == 415
    assert "compressed" in str(answer.json())
    plain = {"content": b'{"model": "mini", "input": "a"}', "headers": {"content-encoding": "identity"}}
    assert client.post("/v1/embeddings", **plain).status_code == 200


def test_a_model_answers_under_its_aliases_too_and_after_a_reload(folder, vectors):
    with run_server([f"mini,text-embedding-ada-002,org/mini={folder}"]) as (client, _):
        assert [m["id"] for m in client.get("/v1/models").json()["data"]] == [
            "mini",
            "text-embedding-ada-002",
            "org/mini",
        ]
        assert client.get("/v1/models/org/mini").json()["id"] == "org/mini"
        assert client.post("/admin/reload", json={"model": "org/mini"}).status_code == 200
        for name in ("mini", "text-embedding-ada-002", "org/mini"):
            answer = client.post("/v1/embeddings", json={"model": name, "input": TEXTS[0]}).json()
            assert (np.array(answer["data"][0]["embedding"], np.float32) == vectors[0]).all()
        refused = client.post("/v1/embeddings", json={"model": "nosuch", "input": "a"})
        assert (refused.status_code, "org/mini" in refused.json()["error"]["message"]) == (404, True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["a,a={}"], "two of the models"),
        (["a,b={}", "b={}"], "two of the models"),
        (["a,={}"], "is no name"),
        (["a,.b={}"], "no name"),
    ],
)
def test_names_that_cannot_be_are_refused(folder, words, sentence):
    with pytest.raises(InputError, match=sentence), run_server([word.format(folder) for word in words]):
        pass


def test_token_ids_of_another_tokenizer_are_refused(client, embedder):
    """LangChain sends those of OpenAI's: a list without the special tokens of the model is not one of its own."""
    ids = embedder.tokenize(TEXTS[:1])[0].tolist()[1:-1]
    for path, field in (("/v1/embeddings", "input"), ("/embed", "inputs")):
        answer = client.post(path, json={"model": "mini", field: [ids]})
        assert answer.status_code == (400 if field == "input" else 422)
        assert "another tokenizer" in str(answer.json())
    begin, end = (f(embedder.tokenize(TEXTS[:1])[0].tolist()) for f in (lambda x: x[:1], lambda x: x[-1:]))
    for half in (begin + ids, ids + end, end + ids + begin, end + ids):  # "!" can be the number of <s>, by chance
        assert client.post("/v1/embeddings", json={"model": "mini", "input": half}).status_code == 400
    body = {"model": "mini", "add_special_tokens": False}
    got = client.post("/v1/embeddings", json={**body, "input": ids}).json()["data"][0]["embedding"]
    bare = Tokens(np.array(ids, np.int32), np.array([0, len(ids)]))
    assert (np.array(got, np.float32) == embedder.encode_tokens(bare)[0]).all()
    assert client.post("/v1/embeddings", json={**body, "input": "a text"}).status_code == 400


@pytest.mark.filterwarnings("ignore:.* the limit of 24 tokens")  # in the server, where the client asks for it
def test_token_ids_that_are_too_long_are_cut_as_their_text(client, embedder):
    text = " ".join(["the red cat"] * 100)
    ids = embedder.tokenize([" ".join(["the red cat"] * 3)])[0].tolist()
    ids = [ids[0], *ids[1:-1] * 34, ids[-1]]
    assert len(ids) > embedder.max_tokens
    body = {"model": "mini", "truncate": True}
    vectors = [client.post("/v1/embeddings", json={**body, "input": i}).json() for i in (text, ids)]
    assert vectors[0]["data"] == vectors[1]["data"]
    assert client.post("/v1/embeddings", json={"model": "mini", "input": ids}).status_code == 400
