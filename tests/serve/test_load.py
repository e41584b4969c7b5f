"""Under load: a bounded queue, deadlines, clients that leave, a model that fails, a model that is replaced."""

from __future__ import annotations

import os
import shutil
import socket
import threading

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.embed import tiny
from tests.serve.conftest import TEXTS, PausedModel, ask_in_threads, run_server, wait_until

import ridgeline


def embed(client, text=TEXTS[0], **more):
    return client.post("/v1/embeddings", json={"model": "mini", "input": text}, **more)


def read_vector(answer):
    return np.array(answer.json()["data"][0]["embedding"], np.float32)


@pytest.fixture
def own(folder):
    """A server of its own, whose model waits for `release`."""
    with run_server([f"mini={folder}"], max_queue=3) as (client, service):
        paused = PausedModel(service.models["mini"])
        yield client, service, paused
        paused.release()


def test_a_full_queue_answers_429_with_a_time_and_the_others_their_vectors(own, vectors):
    client, _, paused = own
    answers = []
    asks = [threading.Thread(target=lambda: answers.append(embed(client))) for _ in range(8)]
    for ask in asks:
        ask.start()
    wait_until(lambda: len(answers) == 5)
    paused.release()
    for ask in asks:
        ask.join()
    refused = [answer for answer in answers if answer.status_code != 200]
    assert [answer.status_code for answer in refused] == [429] * 5
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert refused[0].json()["error"]["type"] == "rate_limit_error"
    assert refused[0].json()["error"]["code"] == "rate_limit_exceeded"
    assert all((read_vector(a) == vectors[0]).all() for a in answers if a.status_code == 200)
    assert embed(client).status_code == 200, "the queue is free again"


def test_a_deadline_is_kept_and_its_texts_leave_the_queue(own, vectors):
    client, service, paused = own
    first = threading.Thread(target=embed, args=(client,))
    first.start()
    wait_until(lambda: paused.batches == 1)
    late = embed(client, TEXTS[1], headers={"x-request-timeout": "0.05"})
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    assert "0.05 s" in late.json()["error"]["message"]
    wait_until(lambda: service.models["mini"].users == 1)
    assert service.models["mini"].batcher.waiting_tokens == 0
    paused.release()
    first.join()
    assert (read_vector(embed(client)) == vectors[0]).all()
    assert paused.batches == 2, "a text without a reader was computed"


@pytest.mark.parametrize("seconds", ["soon", "0", "-1", "nan", "inf", "1e9", ""])
def test_a_deadline_that_cannot_be_is_refused(client, seconds):
    answer = embed(client, headers={"x-request-timeout": seconds})
    assert (answer.status_code, "X-Request-Timeout" in answer.text) == (400, True)


def test_a_client_that_leaves_takes_its_texts_along(own, vectors):
    client, service, paused = own
    model = service.models["mini"]
    first = threading.Thread(target=embed, args=(client,))
    first.start()
    wait_until(lambda: paused.batches == 1)
    with socket.create_connection(("127.0.0.1", client.base_url.port)) as wire:
        body = b'{"model": "mini", "input": "the red cat runs"}'
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        wire.sendall(head.encode() + body)
        wait_until(lambda: model.users == 2)
    wait_until(lambda: model.users == 1)
    assert model.batcher.waiting_tokens == 0
    paused.release()
    first.join()
    assert (read_vector(embed(client)) == vectors[0]).all()
    assert paused.batches == 2, "a text without a reader was computed"


def test_a_model_that_fails_is_loaded_again_and_answers_503_meanwhile(own, vectors, caplog):
    client, service, paused = own
    broken = service.models["mini"]
    paused.fail = RuntimeError("CUDA error near the secret text")
    paused.release()
    answer = embed(client)
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    wait_until(lambda: client.get("/health").status_code == 200 and service.models["mini"] is not broken)
    assert (read_vector(embed(client)) == vectors[0]).all()
    assert "'mini' failed and is loaded again (RuntimeError at" in caplog.text
    assert "secret" not in caplog.text


def test_a_model_that_cannot_be_loaded_again_is_not_ready_and_says_so(own, monkeypatch):
    from ridgeline.serve import service as module

    client, _, paused = own
    loads = []

    def fail(*given, **more):
        loads.append(given)
        raise RuntimeError("no memory")

    monkeypatch.setattr(module, "load_model", fail)
    paused.fail = RuntimeError("CUDA error")
    paused.release()
    assert embed(client).status_code == 503
    wait_until(lambda: loads)
    assert client.get("/health").status_code == 503
    answer = embed(client)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")


def test_it_is_ready_once_a_first_text_was_encoded(folder, monkeypatch):
    from ridgeline.serve.served_model import ServedEmbedder

    go, warm_up = threading.Event(), ServedEmbedder.warm_up

    async def wait_and_warm_up(model):
        import asyncio

        await asyncio.to_thread(go.wait, 60)
        await warm_up(model)

    monkeypatch.setattr(ServedEmbedder, "warm_up", wait_and_warm_up)
    with run_server([f"mini={folder}"], wait=False) as (client, _):
        before = client.get("/health")
        assert (before.status_code, before.json()) == (503, {"status": "starting"})
        assert before.headers["retry-after"]
        assert embed(client).status_code == 200, "an early request is answered"
        go.set()
        wait_until(lambda: client.get("/health").status_code == 200)
        assert client.get("/health").json() == {"status": "ok"}


@pytest.fixture
def changing(tmp_path):
    """A model folder, and a function that replaces its weights; with the vectors of before and after."""
    folder = tiny.make(tmp_path / "mini")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = next(n for n in tensors if n.endswith("1.output.dense.weight"))
    tensors[name] = tensors[name][::-1].copy()
    other = shutil.copytree(folder, tmp_path / "other")
    save_file(tensors, other / "model.safetensors")

    def replace():
        shutil.copy(other / "model.safetensors", folder / "next")
        os.replace(folder / "next", file)

    vectors = []
    for path in (folder, other):
        with ridgeline.Embedder(path, device="cpu", dtype="float32") as embedder:
            vectors.append(embedder.encode(TEXTS))
    assert not (vectors[0] == vectors[1]).any()
    return folder, replace, *vectors


def damage(folder):
    """Replace the weights by a file that is none; to write into the file in use would end the process."""
    (folder / "next").write_bytes(b"damaged")
    os.replace(folder / "next", folder / "model.safetensors")


def test_a_reload_under_load_loses_and_mixes_nothing(changing):
    folder, replace, old, new = changing
    stop, answers = threading.Event(), []
    with run_server([f"mini={folder}"]) as (client, service):

        def ask():
            while not stop.is_set():
                body = {"model": "mini", "input": TEXTS}
                answers.append(client.post("/v1/embeddings", json=body))

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for thread in asking:
            thread.start()
        wait_until(lambda: len(answers) > 10)
        before = service.models["mini"]
        replace()
        assert client.post("/admin/reload", json={"model": "mini"}).json() == {"reloaded": "mini"}
        assert (read_vector(embed(client)) == new[0]).all(), "an answer after the reload is the old model's"
        count = len(answers)
        wait_until(lambda: len(answers) > count + 10)
        stop.set()
        for thread in asking:
            thread.join()
        wait_until(lambda: not before.batcher._thread.is_alive())
    assert {answer.status_code for answer in answers} == {200}
    seen = []
    for answer in answers:
        got = np.array([row["embedding"] for row in answer.json()["data"]], np.float32)
        seen.append([(got == old).all(), (got == new).all()].index(True))
    assert {0, 1} == set(seen)


def test_a_request_that_is_tokenized_during_a_reload_is_answered_by_the_old_model(changing, monkeypatch):
    from ridgeline.serve import app
    from ridgeline.serve.served_model import ServedEmbedder

    folder, replace, old, new = changing
    go, tokenize = threading.Event(), ServedEmbedder.tokenize

    def wait_and_tokenize(model, texts, *, truncate):
        if texts == [TEXTS[0]] and model.users:
            assert go.wait(60)
        return tokenize(model, texts, truncate=truncate)

    monkeypatch.setattr(app, "LOOP_CHARACTERS", 0)  # tokenize beside the event loop
    monkeypatch.setattr(ServedEmbedder, "tokenize", wait_and_tokenize)
    with run_server([f"mini={folder}"]) as (client, service):
        before, answers = service.models["mini"], []
        ask = threading.Thread(target=lambda: answers.append(embed(client)))
        ask.start()
        wait_until(lambda: before.users == 1)
        replace()
        assert client.post("/admin/reload", json={"model": "mini"}).status_code == 200
        assert (read_vector(embed(client, TEXTS[1])) == new[1]).all()
        go.set()
        ask.join()
    assert (read_vector(answers[0]) == old[0]).all()


def test_a_reload_of_a_damaged_folder_keeps_the_old_model(changing):
    folder, _, old, _ = changing
    with run_server([f"mini={folder}"]) as (client, _):
        damage(folder)
        answer = client.post("/admin/reload", json={"model": "mini"})
        assert 400 <= answer.status_code < 500, answer.text
        assert (read_vector(embed(client)) == old[0]).all()
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 400), ({"model": "mini", "index": "films"}, 400), ({"model": "nosuch"}, 404), ({"index": "nosuch"}, 404)],
)
def test_a_reload_names_one_thing_that_is_there(client, body, status):
    assert client.post("/admin/reload", json=body).status_code == status


def test_a_changed_folder_is_loaded_again_on_request(changing, monkeypatch, caplog):
    from ridgeline.serve import service as module

    monkeypatch.setattr(module, "WATCH_S", 0.02)
    folder, replace, old, new = changing
    with run_server([f"mini={folder}"], watch=True) as (client, service):
        assert (read_vector(embed(client)) == old[0]).all()
        replace()
        wait_until(lambda: (read_vector(embed(client)) == new[0]).all())
        damage(folder)
        wait_until(lambda: "was not loaded again" in caplog.text)
        assert (read_vector(embed(client)) == new[0]).all()
        replace()
        model = service.models["mini"]
        wait_until(lambda: service.models["mini"] is not model)
        assert (read_vector(embed(client)) == new[0]).all()
    assert str(folder) not in "".join(
        r.getMessage() for r in caplog.records if "not loaded again" not in r.getMessage()
    )


def test_requests_of_many_sizes_get_the_bits_of_the_library(folder, vectors):
    def ask(client, n):
        rows = [(n * 7 + k) % len(TEXTS) for k in range(1 + n % 11)]
        answer = client.post("/v1/embeddings", json={"model": "mini", "input": [TEXTS[i] for i in rows]}).json()
        got = np.array([row["embedding"] for row in answer["data"]], np.float32)
        return (got == vectors[rows]).all()

    with run_server([f"mini={folder}"], max_batch_tokens=64) as (client, _):
        assert all(ask_in_threads([lambda n=n: ask(client, n) for n in range(40)]))
