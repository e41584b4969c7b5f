"""The description of the interface is true, malformed requests are never an error of the server, metrics and tokens."""

from __future__ import annotations

import json
import logging
import random
import resource
import sys
import types
from contextlib import contextmanager

import httpx
import pytest
from tests.embed.test_reranker import make
from tests.serve.conftest import TEXTS, run_server

import ridgeline
from ridgeline.errors import InputError, RidgelineError

TOKEN = "correct-horse-battery-staple"
WORDS = ["the red cat", "a dog", "mini", "cross", "films", "n > 3", "n >", "", "é\u0000\ud7ff", "x" * 300, "word " * 60]


@pytest.fixture(scope="module")
def server(folder, index_folder, tmp_path_factory):
    cross = make(tmp_path_factory.mktemp("models") / "cross")
    with run_server([f"mini={folder}", cross], [f"films={index_folder}"]) as (client, service):
        yield client, service


def draw_json(rng, depth=0):
    """Any JSON value."""
    kinds = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice([0, 1, -1, 5, 2**31, 2**63, -(2**63) - 1, 10**40]),
        lambda: rng.choice([0.5, -0.0, 1e308, 1e-320, 3.4e39]),
        lambda: rng.choice(WORDS),
        lambda: [draw_json(rng, depth + 1) for _ in range(rng.randrange(3))],
        lambda: {rng.choice(WORDS): draw_json(rng, depth + 1) for _ in range(rng.randrange(3))},
    ]
    return rng.choice(kinds[: 5 if depth > 3 else 7])()


def draw_value(rng, schema, name=""):
    """A value that a schema of the description allows."""
    if "oneOf" in schema:
        return draw_value(rng, rng.choice(schema["oneOf"]), name)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "string":
        known = {"model": ["mini", "cross", "nosuch"], "index": ["films", "nosuch"], "prompt_name": ["query", "nosuch"]}
        return rng.choice(known.get(name, WORDS if "minLength" not in schema else [word for word in WORDS if word]))
    if kind == "integer":
        return rng.choice([1, 2, 7, 26, 500, 2**40])
    if kind == "number":
        return rng.choice([0.5, 1, -3.0, 0.9, 1e300])
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        items = schema.get("items", {})
        if items.get("type") == "number":
            return [rng.random() for _ in range(rng.choice([32, 32, 32, 2]))]
        return [draw_value(rng, items, name) for _ in range(rng.choice([1, 1, 2, 5]))]
    if kind == "object":
        required = schema.get("required", ())
        return {
            key: draw_value(rng, part, key)
            for key, part in schema.get("properties", {}).items()
            if key in required or rng.random() < 0.4
        }
    return draw_json(rng)


def draw_body(rng, schema):
    """The bytes of a body: allowed, or changed in a field, or in a few bytes."""
    body = draw_value(rng, schema)
    way = rng.random()
    if way < 0.4:
        for _ in range(rng.randrange(1, 3)):
            body[rng.choice([*schema["properties"], "nosuch"])] = draw_json(rng)
    elif way < 0.45:
        body = draw_json(rng)
    raw = bytearray(json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass"))
    if 0.45 <= way < 0.6:
        for _ in range(rng.randrange(1, 6)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    elif 0.6 <= way < 0.65:
        del raw[rng.randrange(len(raw)) :]
    return bytes(raw)


def check_answer(value, schema):
    """Whether a value is what a schema of the description says, as far as this description goes."""
    kinds = {"object": dict, "array": list, "number": (int, float), "string": str, "integer": int, "boolean": bool}
    if "type" in schema:
        assert isinstance(value, kinds[schema["type"]]), (value, schema)
    for key in schema.get("required", ()):
        assert key in value
    for key, part in schema.get("properties", {}).items():
        if key in value:
            check_answer(value[key], part)
    if "items" in schema:
        for item in value:
            check_answer(item, schema["items"])


def send_many(client, count, seed):
    """Send bodies to all paths of the description; return how often each status came."""
    rng = random.Random(seed)
    paths = {
        path: parts["post"] for path, parts in client.get("/openapi.json").json()["paths"].items() if "post" in parts
    }
    seen = {}
    for number in range(count):
        path, operation = rng.choice([*paths.items()])
        body = draw_body(rng, operation["requestBody"]["content"]["application/json"]["schema"])
        answer = client.post(path.replace("{name}", rng.choice(["films", "films", "nosuch"])), content=body)
        assert str(answer.status_code) in operation["responses"], (number, path, body, answer.status_code, answer.text)
        assert answer.status_code < 500, (number, path, body, answer.text)
        if answer.status_code == 200:
            check_answer(answer.json(), operation["responses"]["200"]["content"]["application/json"]["schema"])
        else:
            error = answer.json()["error"]
            message = error["message"] if isinstance(error, dict) else error
            assert message.endswith((".", ".)", "^")), message  # a filter is shown with its place below
            assert "Traceback" not in message
        seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
    return seen


@pytest.mark.filterwarnings("ignore:.* the limit of 24 tokens", "ignore:.*recall")  # in the server
def test_malformed_requests_are_never_an_error_of_the_server(client, caplog):
    seen = send_many(client, 250, seed=0)
    assert {200, 400, 404, 422} <= set(seen)
    assert client.get("/health").status_code == 200
    assert caplog.text == ""


@pytest.mark.slow  # a minute
@pytest.mark.filterwarnings("ignore:.* the limit of 24 tokens", "ignore:.*recall")
def test_ten_thousand_malformed_requests_are_never_an_error_of_the_server(client, caplog):
    seen = send_many(client, 10_000, seed=1)
    assert seen[200] > 500
    assert client.get("/health").status_code == 200
    assert caplog.text == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b'{"model": "mini", "input": "\xff\xfe"}',
        b'{"model": "mini", "input": "\\ud800"}',
        b'{"model": "mini", "input": NaN}',
        b'{"model": "mini", "input": [[Infinity]]}',
        b'{"model": "mini", "input": 1e999}',
        b'{"input":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"model": "mini", "input": [[' + b"9" * 5000 + b"]]}",
    ],
)
def test_a_body_that_is_no_json_object_is_one_sentence(client, body):
    for path in ("/v1/embeddings", "/embed"):
        answer = client.post(path, content=body)
        assert answer.status_code == (400 if path == "/v1/embeddings" else 422)
        assert answer.json()["error"]


def test_the_description_has_every_path_and_every_path_is_there(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/embeddings", "/embed", "/embed_sparse", "/embed_all", "/v1/rerank", "/rerank", "/v1/search"} <= set(
        paths
    )
    for path, operations in paths.items():
        for method, operation in operations.items():
            answer = client.request(method, path.replace("{name}", "films"), content=b"" if method == "post" else None)
            assert answer.status_code not in (404, 405), path
            assert str(answer.status_code) in operation["responses"]
    assert client.get("/v1/embeddings").status_code == 405
    missing = client.get("/v1/nosuch")
    assert (missing.status_code, set(missing.json()["error"])) == (404, {"message", "type", "param", "code"})


def test_metrics_count_requests_texts_tokens_and_batches(folder):
    with run_server([folder]) as (client, _):
        client.post("/v1/embeddings", json={"model": "mini", "input": TEXTS})
        client.post("/v1/embeddings", json={"model": "mini", "input": ""})
        text = client.get("/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['ridgeline_serve_requests_total{path="/v1/embeddings",status="200"}'] == "1.0"
    assert lines['ridgeline_serve_requests_total{path="/v1/embeddings",status="400"}'] == "1.0"
    assert float(lines['ridgeline_serve_texts_total{model="mini"}']) == len(TEXTS) + 1  # the first text of all
    assert float(lines['ridgeline_serve_tokens_total{model="mini"}']) > len(TEXTS)
    assert lines['ridgeline_serve_request_seconds_bucket{le="+Inf",path="/v1/embeddings"}'] == "2.0"
    assert float(lines['ridgeline_serve_batch_fill_count{model="mini"}']) >= 2
    assert lines['ridgeline_serve_queue_requests{model="mini"}'] == "0.0"
    assert "# TYPE ridgeline_serve_queue_tokens gauge" in text


def test_a_device_that_cannot_promise_the_same_bits_serves_without_the_promise(folder, monkeypatch):
    from ridgeline.embed import Embedder
    from ridgeline.serve import served_model

    def load(*words, batch_invariant=False, **options):
        if batch_invariant:
            raise InputError("batch_invariant is not available here.")
        return Embedder(*words, **options)

    for settings, promised in (({}, True), ({"batch_invariant": False}, False)):
        with run_server([folder], wait=False, **settings) as (client, _):
            assert client.get("/info").json()["models"][0]["batch_invariant"] is promised
    monkeypatch.setattr(served_model, "Embedder", load)
    with run_server([folder]) as (client, _):
        assert client.get("/info").json()["models"][0]["batch_invariant"] is False
        assert client.post("/v1/embeddings", json={"model": "mini", "input": "a"}).status_code == 200


def test_a_token_protects_all_but_readiness(folder):
    with run_server([folder], token=TOKEN) as (client, _), httpx.Client(trust_env=False, timeout=20) as stranger:
        url = str(client.base_url)
        assert client.post("/v1/embeddings", json={"model": "mini", "input": "a"}).status_code == 200
        assert stranger.get(url + "/health").status_code == 200
        for path in ("/", "/metrics", "/info", "/v1/models", "/openapi.json"):
            assert stranger.get(url + path).status_code == 401
        for path in ("/v1/embeddings", "/admin/reload", "/v1/search"):
            answer = stranger.post(url + path, json={}, headers={"authorization": "Bearer wrong-token-0123456789"})
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"


def test_an_error_of_the_server_says_nothing_of_its_cause_and_the_log_nothing_of_the_text(client, monkeypatch, caplog):
    from ridgeline.serve.served_model import ServedEmbedder

    def fail(self, texts, truncate):
        raise RuntimeError(f"cannot work with {texts}")

    monkeypatch.setattr(ServedEmbedder, "tokenize", fail)
    with caplog.at_level(logging.DEBUG):
        answer = client.post("/v1/embeddings", json={"model": "mini", "input": "the secret walrus"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    assert "walrus" not in answer.text + caplog.text
    assert "RuntimeError at test_interface.py" in caplog.text


def test_requests_are_spans_if_opentelemetry_is_there(client, monkeypatch):
    from ridgeline.serve import tracing

    spans = []

    @contextmanager
    def start_as_current_span(name, context, kind):
        spans.append((name, context, kind, attributes := {}))
        yield types.SimpleNamespace(set_attribute=attributes.__setitem__)

    tracer = types.SimpleNamespace(start_as_current_span=start_as_current_span)
    trace = types.SimpleNamespace(get_tracer=lambda name: tracer, SpanKind=types.SimpleNamespace(SERVER="server"))
    propagate = types.SimpleNamespace(extract=lambda headers: headers["traceparent"])
    monkeypatch.setitem(sys.modules, "opentelemetry", types.SimpleNamespace(trace=trace, propagate=propagate))
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", propagate)
    tracing.get_tracer.cache_clear()
    try:
        headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
        client.post("/v1/embeddings", json={"model": "mini", "input": ["a", "b"]}, headers=headers)
        client.post("/v1/indexes/films/remove", json={"ids": []}, headers=headers)
    finally:
        tracing.get_tracer.cache_clear()
    assert [span[0] for span in spans] == ["POST /v1/embeddings", "POST /v1/indexes/{name}/remove"]
    assert {span[1:3] for span in spans} == {(headers["traceparent"], "server")}
    assert [span[3]["http.response.status_code"] for span in spans] == [200, 400]


@pytest.mark.parametrize(
    ("models", "indexes", "settings", "words"),
    [
        ([], [], {}, "nothing to serve"),
        (["/nosuch/fold er"], [], {}, "'fold er' is no name"),
        (["/nosuch/folder"], [], {}, "/nosuch/folder(?!.*is no name)"),
        (["nosuch-model"], [], {}, "nosuch-model(?!.*is no name)"),
        (["a b={folder}"], [], {}, "'a b' is no name"),
        (["{folder}", "{folder}"], [], {}, "two of the models are called 'mini'"),
        (["{folder}"], ["/nosuch/index"], {}, "nosuch"),
        (["{folder}"], [], {"max_queue": 0}, "--max-queue is 0"),
        (["{folder}"], [], {"max_batch_tokens": 0}, "--max-batch-tokens is 0"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(folder, models, indexes, settings, words):
    models = [model.format(folder=folder) for model in models]
    with pytest.raises(RidgelineError, match=words), run_server(models, indexes, **settings):
        pass


def test_the_package_itself_serves(folder, monkeypatch):
    from ridgeline import web

    served = []
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)  # for the other tests
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
    monkeypatch.setattr(web, "serve", lambda app, **options: served.append((app, options)))
    ridgeline.serve([f"mini={folder}"], port=0, device="cpu", dtype="float32", token=TOKEN)
    [(app, options)] = served
    assert app.rules.token == TOKEN
    assert (options["port"], options["drain_s"], options["max_connections"]) == (0, 60.0, 4096)
    with pytest.raises(InputError, match="can be reached from other machines"):
        ridgeline.serve([f"mini={folder}"], host="0.0.0.0")
