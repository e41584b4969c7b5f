"""A server over tiny models, in a thread of the tests."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
from tests.embed import tiny

import ridgeline
from ridgeline.web import run_in_background

pytest.importorskip("torch")
pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

TEXTS = [text for text in tiny.TEXTS if text]


@contextmanager
def run_server(models, indexes=(), *, token=None, watch=False, wait=True, **settings):
    """Run a server until the block ends; yield (client, service)."""
    from ridgeline.serve import Service, Settings, create_app

    service = Service([str(m) for m in models], [str(i) for i in indexes], Settings("cpu", "float32", **settings))
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with (
        run_in_background(create_app(service, token=token, watch=watch)) as url,
        httpx.Client(base_url=url, timeout=20, trust_env=False, headers=headers) as client,
    ):
        if wait:
            wait_until(lambda: client.get("/health").status_code == 200)
        yield client, service


def wait_until(true, seconds=60.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def ask_in_threads(asks):
    """Call functions at once, each in a thread; return their results in order."""
    results = [None] * len(asks)

    def run(number, ask):
        results[number] = ask()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(asks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


class PausedModel:
    """Holds the batches of a served model until `release`, and counts them."""

    def __init__(self, model):
        self.batches, self.fail = 0, None
        self._run, self._go = model.batcher._run, threading.Event()
        model.batcher._run = self

    def __call__(self, output, tokens):
        self.batches += 1
        assert self._go.wait(60)
        if self.fail is not None:
            raise self.fail
        return self._run(output, tokens)

    def release(self):
        self._go.set()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tiny.make(tmp_path_factory.mktemp("models") / "mini", prompts={"query": "query : ", "passage": "passage : "})


@pytest.fixture(scope="session")
def embedder(folder):
    with ridgeline.Embedder(folder, device="cpu", dtype="float32") as embedder:
        yield embedder


@pytest.fixture(scope="session")
def vectors(embedder):
    """What the library gives for TEXTS."""
    return embedder.encode(TEXTS)


@pytest.fixture(scope="session")
def index_folder(vectors, tmp_path_factory):
    index = ridgeline.Index("Flat", metric="cosine", device="cpu")
    index.add(vectors, meta={"n": np.arange(len(vectors)), "word": [text.split()[0] for text in TEXTS]})
    path = tmp_path_factory.mktemp("indexes") / "films"
    index.save(path)
    return path


@pytest.fixture(scope="module")
def server(folder, index_folder):
    with run_server([f"mini={folder}"], [f"films={index_folder}"]) as (client, service):
        yield client, service


@pytest.fixture
def client(server):
    return server[0]


def run(scenario):
    """Run a coroutine in a thread: in this one, a browser of another test may have an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(scenario)).result(120)


@contextmanager
def run_engine(service, path):
    """Run the engine of workers in a thread until the block ends."""
    from ridgeline.serve.engine import Engine

    state, started = {}, threading.Event()

    async def answer():
        state["loop"], state["stop"] = asyncio.get_running_loop(), asyncio.Event()
        engine = Engine(service)
        started.set()
        await engine.run(listener, state["stop"])

    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)
        thread = threading.Thread(target=lambda: asyncio.run(answer()))
        thread.start()
        assert started.wait(60)
        try:
            yield
        finally:
            state["loop"].call_soon_threadsafe(state["stop"].set)
            thread.join(60)


@contextmanager
def run_worker(paths, settings, *, wait=True):
    """Run a worker of one or more engines in a thread; yield (client, its service)."""
    from ridgeline.serve import create_app
    from ridgeline.serve.worker import RemoteService

    service = RemoteService(paths if isinstance(paths, list) else [paths], settings)
    with (
        run_in_background(create_app(service)) as url,
        httpx.Client(base_url=url, timeout=20, trust_env=False) as client,
    ):
        if wait:
            wait_until(lambda: client.get("/health").status_code == 200)
        yield client, service
