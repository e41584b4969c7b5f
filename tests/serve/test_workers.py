"""Workers and the engine, in threads of the tests: the answers of one process, whatever happens to them."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import socket
import threading
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.conftest import TEXTS, PausedModel, ask_in_threads, run, run_engine, run_worker, wait_until
from tests.serve.test_load import changing, embed, read_vector  # noqa: F401  a fixture

from ridgeline.embed import TooLong
from ridgeline.errors import InputError
from ridgeline.serve import Service, Settings
from ridgeline.serve.api_errors import ApiError
from ridgeline.serve.batcher import Stopped
from ridgeline.serve.engine import _make_portable


@contextmanager
def run_workers(path, models, indexes=(), **settings):
    """Run an engine and two workers; yield (clients, service of the engine)."""
    options = Settings("cpu", "float32", **settings)
    service = Service([str(m) for m in models], [str(i) for i in indexes], options)
    with (
        run_engine(service, path),
        run_worker(path, options) as (first, _),
        run_worker(path, options) as (second, _),
    ):
        yield (first, second), service


@pytest.fixture
def path(tmp_path):
    return tmp_path / "engine"


@pytest.fixture(scope="module")
def workers(folder, index_folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "engine"
    with run_workers(path, [f"mini={folder}"], [f"films={index_folder}"]) as (clients, service):
        yield clients, service


@pytest.fixture
def own(path, folder):
    """Two workers of their own, whose model waits for `release`."""
    with run_workers(path, [f"mini={folder}"], max_queue=3) as (clients, service):
        paused = PausedModel(service.models["mini"])
        yield clients, service, paused
        paused.release()


def test_every_worker_answers_with_the_bits_of_the_library(workers, vectors):
    clients, _ = workers

    def ask(n):
        rows = [(n * 7 + k) % len(TEXTS) for k in range(1 + n % 11)]
        answer = embed(clients[n % 2], [TEXTS[i] for i in rows]).json()
        got = np.array([row["embedding"] for row in answer["data"]], np.float32)
        return (got == vectors[rows]).all()

    assert all(ask_in_threads([lambda n=n: ask(n) for n in range(24)]))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "mini", "input": TEXTS[:3], "encoding_format": "base64"}),
        ("/v1/embeddings", {"model": "mini", "input": [5, 6, 7]}),
        ("/v1/embeddings", {"model": "mini", "input": "cat " * 3000}),
        ("/v1/embeddings", {"model": "nosuch", "input": "x"}),
        ("/embed", {"inputs": TEXTS[:2], "prompt_name": "query"}),
        ("/embed_all", {"inputs": TEXTS[:2]}),
        ("/embed_sparse", {"inputs": TEXTS[:2]}),
        ("/similarity", {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:3]}}),
        ("/tokenize", {"inputs": TEXTS[:2]}),
        ("/rerank", {"query": TEXTS[0], "texts": TEXTS[1:3]}),
        ("/v1/search", {"index": "films", "input": TEXTS[:2], "k": 3, "where": "n > 1"}),
        ("/v1/search", {"index": "films", "input": TEXTS[:2], "where": "n >"}),
        ("/v1/search", {"index": "nosuch", "input": TEXTS[:2]}),
        ("/v1/indexes/films/add", {"ids": [0], "input": TEXTS[:1]}),
        ("/v1/indexes/films/remove", {"ids": [12345]}),
        ("/admin/reload", {"model": "nosuch"}),
    ],
)
def test_a_worker_answers_what_a_single_process_answers(workers, server, path, body):
    alone, both = server[0].post(path, json=body), workers[0][0].post(path, json=body)
    assert (both.status_code, both.content) == (alone.status_code, alone.content)


def test_workers_describe_the_models_of_the_engine(workers, server):
    clients, _ = workers
    for path in ("/info", "/health"):
        assert clients[1].get(path).json() == server[0].get(path).json()
    assert [m["id"] for m in clients[1].get("/v1/models").json()["data"]] == ["mini"]
    assert "films" in clients[1].get("/").text


def test_rows_added_by_one_worker_are_found_by_the_other(path, folder, index_folder):
    with run_workers(path, [f"mini={folder}"], [f"films={index_folder}"]) as ((first, second), _):
        meta = {"n": [1], "word": ["walrus"]}
        added = first.post("/v1/indexes/films/add", json={"ids": [900], "input": ["a walrus"], "meta": meta})
        assert added.json() == {"count": len(TEXTS) + 1}
        found = second.post("/v1/search", json={"index": "films", "input": ["a walrus"], "k": 1}).json()
        assert found["results"][0][0]["id"] == 900
        assert second.get("/info").json()["indexes"][0]["rows"] == len(TEXTS) + 1
        assert second.post("/v1/indexes/films/remove", json={"ids": [900]}).json() == {"removed": 1}


def test_the_queue_has_one_limit_for_all_workers(own, vectors):
    clients, _, paused = own
    answers = []
    asks = [threading.Thread(target=lambda n=n: answers.append(embed(clients[n % 2]))) for n in range(8)]
    for ask in asks:
        ask.start()
    wait_until(lambda: len(answers) == 5)
    paused.release()
    for ask in asks:
        ask.join()
    refused = [answer for answer in answers if answer.status_code != 200]
    assert [answer.status_code for answer in refused] == [429] * 5
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert all((read_vector(a) == vectors[0]).all() for a in answers if a.status_code == 200)
    assert embed(clients[0]).status_code == 200, "the queue is free again"


def test_a_request_without_a_reader_leaves_the_queue_of_the_engine(own, vectors):
    (first, second), service, paused = own
    model = service.models["mini"]
    running = threading.Thread(target=embed, args=(first,))
    running.start()
    wait_until(lambda: paused.batches == 1)
    late = embed(second, TEXTS[1], headers={"x-request-timeout": "0.05"})
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    wait_until(lambda: model.users == 1)
    with socket.create_connection(("127.0.0.1", second.base_url.port)) as wire:
        body = b'{"model": "mini", "input": "the red cat runs"}'
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        wire.sendall(head.encode() + body)
        wait_until(lambda: model.users == 2)
    wait_until(lambda: model.users == 1)
    assert model.batcher.waiting_tokens == 0
    paused.release()
    running.join()
    assert (read_vector(embed(first)) == vectors[0]).all()
    assert paused.batches == 2, "a text without a reader was computed"


def test_the_requests_of_a_worker_that_is_gone_leave_the_queue(path, folder):
    options = Settings("cpu", "float32")
    service = Service([f"mini={folder}"], [], options)
    with run_engine(service, path), run_worker(path, options) as (first, _):
        paused = PausedModel(service.models["mini"])
        running = threading.Thread(target=embed, args=(first,))
        running.start()
        wait_until(lambda: paused.batches == 1)
        with run_worker(path, options) as (second, worker):
            answers = []
            waiting = threading.Thread(target=lambda: answers.append(embed(second)))
            waiting.start()
            wait_until(lambda: service.models["mini"].users == 2)
            worker._links[0].engine._connection._transport.abort()  # as the kernel does for a killed process
            wait_until(lambda: service.models["mini"].users == 1)
            waiting.join()
            assert answers[0].status_code == 503
        paused.release()
        running.join()


def test_after_a_reload_every_worker_has_the_new_model(changing, path):  # noqa: F811
    folder, replace, old, new = changing
    with run_workers(path, [f"mini={folder}"]) as (clients, service):
        before = service.models["mini"]
        assert all((read_vector(embed(client)) == old[0]).all() for client in clients)
        replace()
        assert clients[0].post("/admin/reload", json={"model": "mini"}).json() == {"reloaded": "mini"}
        assert all((read_vector(embed(client)) == new[0]).all() for client in clients)
        wait_until(lambda: not before.batcher._thread.is_alive())


def test_a_request_that_a_worker_tokenizes_during_a_reload_is_answered_by_the_old_model(changing, path, monkeypatch):  # noqa: F811
    from ridgeline.serve import app
    from ridgeline.serve.served_model import ServedEmbedder

    folder, replace, old, new = changing
    go, begun, tokenize = threading.Event(), threading.Event(), ServedEmbedder.tokenize

    def wait_and_tokenize(model, texts, *, truncate):
        if texts == [TEXTS[0]]:
            begun.set()
            assert go.wait(60)
        return tokenize(model, texts, truncate=truncate)

    monkeypatch.setattr(app, "LOOP_CHARACTERS", 0)  # tokenize beside the event loop
    monkeypatch.setattr(ServedEmbedder, "tokenize", wait_and_tokenize)
    with run_workers(path, [f"mini={folder}"]) as ((first, second), service):
        before, answers = service.models["mini"], []
        ask = threading.Thread(target=lambda: answers.append(embed(first)))
        ask.start()
        assert begun.wait(60)
        replace()
        assert second.post("/admin/reload", json={"model": "mini"}).status_code == 200
        assert (read_vector(embed(first, TEXTS[1])) == new[1]).all()
        assert before.batcher._thread.is_alive()
        go.set()
        ask.join()
        wait_until(lambda: not before.batcher._thread.is_alive())
    assert (read_vector(answers[0]) == old[0]).all()


def test_without_the_engine_workers_answer_503_and_then_as_before(path, folder, vectors):
    options = Settings("cpu", "float32")
    with run_worker(path, options, wait=False) as (client, _):
        for _ in range(2):
            answer = embed(client)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
            assert answer.headers["retry-after"]
            assert client.get("/health").status_code == 503
            assert client.get("/metrics").status_code == 200
            assert client.get("/").status_code == 200
            with run_engine(Service([f"mini={folder}"], [], options), path):
                wait_until(lambda: client.get("/health").status_code == 200)
                assert (read_vector(embed(client)) == vectors[0]).all()
            wait_until(lambda: client.get("/health").status_code == 503)


def test_workers_know_that_a_model_failed_and_that_it_is_loaded_again(own, vectors):
    (first, second), service, paused = own
    broken = service.models["mini"]
    paused.fail = RuntimeError("CUDA error near the secret text")
    paused.release()
    answer = embed(first)
    assert (answer.status_code, "secret" in answer.text) == (503, False)
    wait_until(lambda: service.models["mini"] is not broken and second.get("/health").status_code == 200)
    assert (read_vector(embed(second)) == vectors[0]).all()


def test_an_engine_whose_device_is_lost_gives_up(own, monkeypatch):
    (first, _), service, paused = own
    gave_up = threading.Event()
    monkeypatch.setattr(service, "give_up", gave_up.set)
    monkeypatch.setattr(type(service.models["mini"]), "answers", lambda model: False)
    paused.fail = RuntimeError("CUDA error: an illegal memory access")
    paused.release()
    assert embed(first).status_code == 503
    assert gave_up.wait(60)


@pytest.mark.parametrize(
    "error",
    [
        ApiError(429, "too many", code="rate_limit_exceeded", param="model", headers={"retry-after": "3"}),
        TooLong("text 0 is too long."),
        InputError("no such column."),
        Stopped("try again."),
    ],
)
def test_errors_arrive_as_they_were_raised(error):
    got = pickle.loads(pickle.dumps(_make_portable(error)))
    assert (type(got), str(got), vars(got)) == (type(error), str(error), vars(error))


def test_an_unknown_error_says_nothing_of_its_cause():
    assert "secret" not in str(_make_portable(ValueError("a secret text")))


@contextmanager
def run_two_engines(tmp_path, folder, indexes=()):
    """Run a worker of two engines; yield (client, services, a way to end the second one)."""
    options = Settings("cpu", "float32")
    services = [Service([f"mini={folder}"], [str(i) for i in names], options) for names in (indexes, ())]
    paths = [tmp_path / "one", tmp_path / "two"]
    with (
        run_engine(services[0], paths[0]),
        ExitStack() as second,
        run_worker(paths, options, wait=False) as (client, _),
    ):
        second.enter_context(run_engine(services[1], paths[1]))
        wait_until(lambda: client.get("/health").status_code == 200)
        yield client, services, second.close


def test_two_engines_share_the_requests_of_a_worker(tmp_path, folder, index_folder, vectors):
    with run_two_engines(tmp_path, folder, [f"films={index_folder}"]) as (client, services, end_second):
        paused = [PausedModel(service.models["mini"]) for service in services]
        answers = [None] * 6

        def ask(n):
            answers[n] = read_vector(embed(client, TEXTS[n]))

        asks = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
        for thread in asks:
            thread.start()
        wait_until(lambda: [service.models["mini"].users for service in services] == [3, 3])
        assert 'queue_requests{model="mini"} 6.0' in client.get("/metrics").text
        for model in paused:
            model.release()
        for thread in asks:
            thread.join()
        assert all((answers[n] == vectors[n]).all() for n in range(6))
        found = client.post("/v1/search", json={"index": "films", "input": TEXTS[:1], "k": 1}).json()
        assert found["results"][0][0]["id"] == 0
        end_second()
        wait_until(lambda: client.get("/health").status_code == 503)
        assert (read_vector(embed(client)) == vectors[0]).all(), "the first engine answers alone"


def test_a_reload_reaches_every_engine(changing, tmp_path):  # noqa: F811
    folder, replace, old, new = changing
    with run_two_engines(tmp_path, folder) as (client, services, _):
        before = [service.models["mini"] for service in services]
        assert (read_vector(embed(client)) == old[0]).all()
        replace()
        assert client.post("/admin/reload", json={"model": "mini"}).status_code == 200
        assert all(service.models["mini"] is not model for service, model in zip(services, before, strict=True))
        assert all((read_vector(embed(client, TEXTS[n])) == new[n]).all() for n in range(6))
        assert client.post("/admin/reload", json={"index": "nosuch"}).status_code == 404


def test_devices_without_a_model_are_refused(index_folder):
    from ridgeline.serve import serve

    with pytest.raises(InputError, match="2 devices and no model"):
        serve(indexes=[str(index_folder)], device="cpu,cpu", port=0)


def test_messages_of_any_size_arrive_in_order():
    from ridgeline.serve.messages import Connection

    messages = [("array", n, np.arange(n, dtype=np.float32)) for n in (0, 1, 7, 100_000, 3, 1_000_000, 2)]

    async def scenario():
        got, lost = [], asyncio.Event()
        left, right = socket.socketpair()
        sender = Connection(lambda *_: None, lambda _: None)
        reader = Connection(lambda _, message: got.append(message), lambda _: lost.set())
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: sender, sock=left)
        await loop.create_unix_connection(lambda: reader, sock=right)
        for message in messages:
            sender.send(*message)
        sender.close()
        await asyncio.wait_for(lost.wait(), 60)
        sender.send("to nobody")
        return got

    got = run(scenario())
    assert [m[:2] for m in got] == [m[:2] for m in messages]
    assert all((a[2] == b[2]).all() for a, b in zip(got, messages, strict=True))


@given(
    st.lists(st.lists(st.integers(0, 3000), max_size=4), max_size=6),
    st.lists(st.integers(1, 70_000), min_size=1, max_size=8),
)
def test_messages_arrive_whole_however_the_socket_cuts_them(packets, pieces):
    from ridgeline.serve.messages import Connection, _pack

    sent = [[("m", n, np.arange(n, dtype=np.int32), b"x" * (n % 7)) for n in packet] for packet in packets]
    got = []
    reader = Connection(lambda _, message: got.append(message), lambda _: None)
    content, begin = b"".join(bytes(part) for packet in sent for part in _pack(packet)), 0
    cuts = itertools.cycle(pieces)
    while begin < len(content):
        memory = reader.get_buffer(-1)
        size = min(next(cuts), len(memory), len(content) - begin)
        memory[:size] = content[begin : begin + size]
        begin += size
        reader.buffer_updated(size)
    expected = [message for packet in sent for message in packet]
    assert [(m[1], m[3]) for m in got] == [(m[1], m[3]) for m in expected]
    for a, b in zip(got, expected, strict=True):
        assert (a[2] == b[2]).all()
        assert a[2].flags.writeable
        assert a[2].flags.aligned


def test_messages_of_another_thread_arrive_whole_between_those_of_the_loop():
    from ridgeline.serve.messages import Connection

    count, sent_at_once = 400, 0
    sizes = [1, 50, 3000, 100_000]  # the last is more than the socket takes at once

    async def scenario():
        nonlocal sent_at_once
        got, complete = [], asyncio.Event()

        def receive(_, message):
            got.append(message)
            if len(got) == 2 * count:
                complete.set()

        left, right = socket.socketpair()
        sender, reader = Connection(lambda *_: None, lambda _: None), Connection(receive, lambda _: None)
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: sender, sock=left)
        await loop.create_unix_connection(lambda: reader, sock=right)

        def send_all():
            nonlocal sent_at_once
            for n in range(count):
                message = ("thread", n, np.full(sizes[n % 4], n, np.float32))
                if sender.send_from_thread(loop, *message):
                    sent_at_once += 1
                else:
                    loop.call_soon_threadsafe(sender.send, *message)

        thread = threading.Thread(target=send_all)
        thread.start()
        for n in range(count):
            sender.send("loop", n, np.full(sizes[n % 3], n, np.float32))
            await asyncio.sleep(0)
        await asyncio.wait_for(complete.wait(), 60)
        thread.join()
        sender.close()
        await asyncio.sleep(0.01)
        assert not sender.send_from_thread(loop, "to nobody")
        reader.close()
        return got

    got = run(scenario())
    for name in ("thread", "loop"):
        messages = [m for m in got if m[0] == name]
        assert sorted(m[1] for m in messages) == list(range(count))
        assert all((m[2] == m[1]).all() and len(m[2]) == sizes[m[1] % (4 if name == "thread" else 3)] for m in messages)
    assert sent_at_once > 0
