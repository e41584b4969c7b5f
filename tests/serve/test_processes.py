"""The server as its users run it, one process or several: killed parts, the end, and many requests at once."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.serve.conftest import TEXTS, wait_until
from tests.serve.test_command import start
from tests.serve.test_load import changing, embed, read_vector  # noqa: F401  a fixture

pytestmark = pytest.mark.slow  # they start processes that load torch
REQUESTS = 24_000
CLIENTS = 8


def find_children(process):
    """Return the numbers of the processes that a process started: the engine first."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sorted(map(int, children))


def is_healthy(client):
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:  # a connection to a killed worker
        return False


def count_requests(client):
    lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    found = [line for line in lines if line.startswith("ridgeline_serve_requests_total{") and "/v1/embeddings" in line]
    return sum(float(line.split()[-1]) for line in found)


def test_a_killed_engine_is_started_again_and_requests_get_503_meanwhile(folder, vectors):
    with start(f"mini={folder}", "--workers", 2) as (process, client, _):
        assert (read_vector(embed(client)) == vectors[0]).all()
        os.kill(find_children(process)[0], signal.SIGKILL)
        wait_until(lambda: client.get("/health").status_code == 503)
        answer = embed(client)
        if answer.status_code != 200:  # it is not there again yet
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
        wait_until(lambda: is_healthy(client))
        assert (read_vector(embed(client)) == vectors[0]).all()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "the engine was killed by signal 9 and is started again" in err


def test_one_of_two_engines_answers_while_the_other_is_started_again(folder, index_folder, vectors):
    with start(f"mini={folder}", "--index", f"films={index_folder}", "--device", "cpu,cpu") as (process, client, _):
        engines = find_children(process)[:2]
        assert all((read_vector(embed(client, TEXTS[n])) == vectors[n]).all() for n in range(6))
        os.kill(engines[1], signal.SIGKILL)
        wait_until(lambda: client.get("/health").status_code == 503)
        assert all((read_vector(embed(client, TEXTS[n])) == vectors[n]).all() for n in range(6))
        assert client.post("/v1/search", json={"index": "films", "input": TEXTS[:1], "k": 1}).status_code == 200
        wait_until(lambda: is_healthy(client))
        assert engines[1] not in find_children(process)
        assert all((read_vector(embed(client, TEXTS[n])) == vectors[n]).all() for n in range(6))
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "the engine 2 (cpu) was killed by signal 9 and is started again" in err


def test_a_killed_worker_is_started_again_and_its_requests_stay_counted(folder, vectors):
    with start(f"mini={folder}", "--workers", 2) as (process, client, _):
        for _ in range(10):
            assert embed(client).status_code == 200
        before = find_children(process)
        for worker in before[1:]:
            os.kill(worker, signal.SIGKILL)
        wait_until(lambda: len(set(find_children(process)) - set(before)) == 2 and is_healthy(client))
        assert (read_vector(embed(client)) == vectors[0]).all()
        assert count_requests(client) == 11
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_no_process_outlives_a_killed_server(folder):
    with start(f"mini={folder}", "--workers", 2) as (process, _, _line):
        children = find_children(process)
        assert len(children) == 3
        process.kill()
        process.wait()
        wait_until(lambda: not any(is_running(child) for child in children))


def is_running(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_metrics_are_those_of_all_workers(folder):
    with start(f"mini={folder}", "--workers", 2) as (_, client, _line):
        port = client.base_url.port
        for _ in range(20):  # a connection each, so that both workers take some
            assert send_once(port, {"model": "mini", "input": TEXTS[0]})[0] == 200
        assert count_requests(client) == 20
        assert 'ridgeline_serve_texts_total{model="mini"} 21.0' in client.get("/metrics").text  # and the first text
        assert 'ridgeline_serve_queue_requests{model="mini"} 0.0' in client.get("/metrics").text


def send(connection, body):
    connection.request("POST", "/v1/embeddings", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def send_once(port, body):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
        return send(connection, body)


@pytest.mark.parametrize("workers", [1, 2])
def test_many_requests_with_a_reload_cancelled_ones_and_an_end_are_answered_to_the_last_bit(changing, workers):  # noqa: F811
    folder, replace, old, new = changing
    state = {"sent": 0, "reloaded": False, "ending": False}
    counted = threading.Lock()
    wrong, seen, cancelled = [], {"old": 0, "new": 0}, [0]

    def ask(seed):
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            ask_until_the_end(random.Random(seed), connection)

    def ask_until_the_end(rng, connection):
        while not state["ending"]:
            with counted:
                if state["sent"] >= REQUESTS:
                    return
                state["sent"] += 1
            rows = [rng.randrange(len(TEXTS)) for _ in range(rng.choice([1, 1, 2, 5, 9]))]
            body = {"model": "mini", "input": [TEXTS[i] for i in rows]}
            if rng.random() < 0.05:
                leave(body)
                continue
            must_be_new = state["reloaded"]
            try:
                status, answer = send(connection, body)
            except (OSError, http.client.HTTPException) as error:
                if not state["ending"]:
                    wrong.append(repr(error))
                return
            if status != 200:
                wrong.append((status, answer))
                continue
            got = np.array([row["embedding"] for row in answer["data"]], np.float32)
            version = "new" if (got == new[rows]).all() else "old" if (got == old[rows]).all() else "mixed"
            if version == "mixed" or (must_be_new and version == "old"):
                wrong.append(version)
            else:
                with counted:
                    seen[version] += 1

    def leave(body):
        content = json.dumps(body).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.sendall(head + content)
        cancelled[0] += 1

    last = []
    with start(f"mini={folder}", "--workers", workers, "--max-batch-tokens", 256) as (process, client, _):
        port = client.base_url.port
        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        wait_until(lambda: state["sent"] > REQUESTS // 2, 600)
        replace()
        assert client.post("/admin/reload", json={"model": "mini"}).json() == {"reloaded": "mini"}
        state["reloaded"] = True
        wait_until(lambda: state["sent"] >= REQUESTS - CLIENTS, 600)
        long = {"model": "mini", "input": TEXTS * 60}
        asks = [threading.Thread(target=lambda: last.append(send_once(port, long))) for _ in range(6)]
        for thread in asks:
            thread.start()
        wait_until(lambda: last or count_waiting(client) >= 6)
        state["ending"] = True
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
        for thread in (*threads, *asks):
            thread.join(120)
    assert (process.returncode, out, err) == (0, "", "")
    assert wrong == []
    assert min(seen["old"], seen["new"], 2 * cancelled[0]) > 1000
    assert [status for status, _ in last] == [200] * 6
    for _, answer in last:
        got = np.array([row["embedding"] for row in answer["data"]], np.float32)
        assert (got == np.tile(new, (60, 1))).all()


def count_waiting(client):
    for line in client.get("/metrics").text.splitlines():
        if line.startswith('ridgeline_serve_queue_requests{model="mini"}'):
            return float(line.split()[-1])
    return 0


def test_a_server_that_cannot_load_its_model_says_so_and_leaves_with_2(tmp_path, capfd):
    from ridgeline.cli import main

    before = time.monotonic()
    with pytest.raises(SystemExit) as end:
        main(["serve", "--port", "0", "--workers", "2", str(tmp_path)])
    assert end.value.code == 2
    assert time.monotonic() - before < 60
    assert capfd.readouterr().err.count("\n") == 1
