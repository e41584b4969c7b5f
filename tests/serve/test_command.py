"""The command: what it prints, what it refuses, how it ends."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
from tests.serve.conftest import TEXTS, wait_until

from ridgeline.cli import main


@contextmanager
def start(*words, **environment):
    """Run the command as a process; yield (process, client, first line)."""
    command = [sys.executable, "-m", "ridgeline", "serve", "--device", "cpu", *map(str, words), "--port", "0"]
    with subprocess.Popen(
        [*command, "--dtype", "float32"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            line = process.stdout.readline()
            assert "Serving on http" in line, process.stderr.read()
            url = line.split()[2]
            with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
                wait_until(lambda: client.get("/health").status_code == 200)
                yield process, client, line
        finally:
            process.kill()


@pytest.mark.slow  # starts processes that load torch
def test_sigterm_answers_what_was_accepted_and_exits_with_0(folder, index_folder, vectors):
    with start(f"mini={folder}", "--index", f"films={index_folder}", "--max-batch-tokens", 64) as (
        process,
        client,
        line,
    ):
        assert line == f"Serving on {str(client.base_url).rstrip('/')}/ (Ctrl-C stops it)\n"
        answers = []

        def ask():
            answers.append(client.post("/v1/embeddings", json={"model": "mini", "input": TEXTS * 60}))

        asks = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asks:
            thread.start()
        queue = 'ridgeline_serve_queue_requests{model="mini"} 3.0'
        wait_until(lambda: answers or queue in client.get("/metrics").text)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        for thread in asks:
            thread.join()
    assert (process.returncode, out, err) == (0, "", "")
    assert [answer.status_code for answer in answers] == [200] * 3
    for answer in answers:
        got = np.array([row["embedding"] for row in answer.json()["data"]], np.float32)
        assert (got == np.tile(vectors, (60, 1))).all()


@pytest.mark.slow
def test_a_token_comes_from_a_file_that_is_made_or_from_the_environment(folder, tmp_path):
    file = tmp_path / "token"
    with start(f"mini={folder}", "--token-file", file) as (process, client, line):
        token = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        body = {"model": "mini", "input": "a secret walrus"}
        assert client.post("/v1/embeddings", json=body).status_code == 401
        headers = {"authorization": f"Bearer {token}"}
        assert client.post("/v1/embeddings", json=body, headers=headers).status_code == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert "walrus" not in line + out + err
    assert token not in line + out + err
    with start(f"mini={folder}", RIDGELINE_SERVE_TOKEN="correct-horse-battery-staple") as (_, client, _line):
        assert client.get("/v1/models").status_code == 401


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/nosuch/model"], "nosuch"),
        (["{folder}", "--host", "0.0.0.0"], "can be reached from other machines"),
        (["{folder}", "--port", "70000"], "there is no port 70000"),
        (["{folder}", "--index", "/nosuch/index"], "nosuch"),
        (["{folder}", "--dtype", "int3"], "int3"),
        (["{folder}", "--max-queue", "0"], "--max-queue is 0"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(folder, words, message, capsys, monkeypatch):
    monkeypatch.delenv("RIDGELINE_SERVE_TOKEN", raising=False)
    with pytest.raises(SystemExit) as end:
        main(["serve", "--port", "0", *(word.format(folder=folder) for word in words)])
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert message in error
    assert error.count("\n") == 1
