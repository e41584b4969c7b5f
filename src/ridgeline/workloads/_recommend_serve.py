"""Task `serve`: the best items of users over HTTP, for many clients at once, while ratings arrive.

A step is `requests` requests of each of `clients` clients, each on a connection of its own; `updates` of 100 requests
are ratings, the others ask for a user's list. The server is `ridgeline recommend serve` in a process of its own, with a
model of ratings alone. "in process" asks the model without a server: a bound. extras["calls_ns"] has the time of each
list, extras["updates_ns"] of each rating, extras["server_cpu_ns"] the CPU time of the server for a step.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import RidgelineError
from ridgeline.lab import OURS, Case, Check, Run, Steps, Work, installed
from ridgeline.machine import now_ns
from ridgeline.recommend import Catalogue, Histories, Options, Ratings, Recommender, build_histories
from ridgeline.recommend.models import Ease, Hybrid, ItemKnn, Popularity, RecentPopularity, Semantic
from ridgeline.workloads._recommend_fit import draw_ratings

IN_PROCESS = "in process"
SETTINGS = {"clients": 8, "requests": 4, "updates": 0}
START_S, REQUEST_S = 120.0, 60.0
MAX_CALLS = 8_192
MAX_ERROR = 1e-4  # of a score
WEIGHTS = {"ease": 1.0, "era": 0.1}
PENALTY = 100.0


def contenders() -> list[str]:
    return [OURS, IN_PROCESS] if not missing() else [IN_PROCESS]


def missing() -> dict[str, str]:
    return {} if installed("starlette") and installed("uvicorn") else {OURS: "serve"}


def work(case: Case) -> Work:
    weights = _count_calls(case) * case["likes"] * case["items"]  # of EASE, read for each list
    return Work(_count_calls(case), "lists", 2.0 * weights, {"memory": 4.0 * weights})


def prepare(case: Case, contender: str) -> Run:
    model = make_model(case["users"], case["items"], case["likes"])
    state: dict[str, Any] = {"turn": 0}
    calls: deque[int] = deque(maxlen=MAX_CALLS)
    updates: deque[int] = deque(maxlen=MAX_CALLS)
    cpu: list[int] = []
    server = None if contender == IN_PROCESS else _Server(model)

    def reset() -> None:
        rng = np.random.default_rng([3, state["turn"]])
        state["users"] = rng.integers(0, case["users"], _count_calls(case)).tolist()
        state["rates"] = (rng.random(_count_calls(case)) * 100 < _get(case, "updates")).tolist()
        state["turn"] += 1

    def step() -> None:
        if server is None:
            state["lists"] = [_rank(model, user, case["k"]) for user in state["users"]]
            return
        start_ns = server.read_cpu_ns()
        state["lists"] = server.ask(state["users"], state["rates"], case, calls, updates)
        cpu.append(server.read_cpu_ns() - start_ns)

    def result() -> dict[str, Any]:
        return {"users": state["users"], "lists": state["lists"], "rates": state["rates"]}

    def close() -> None:
        if server is not None:
            server.stop()

    def extras() -> dict[str, Any]:
        if server is None:
            return {}
        return {"calls_ns": list(calls), "updates_ns": list(updates), "server_cpu_ns": cpu}

    reset()
    return Steps(step, result, reset, close, {"weights": WEIGHTS, **SETTINGS}, extras)


def check(case: Case, result: dict[str, Any]) -> Check:
    if len(result["lists"]) != len(result["users"]):
        return Check(False, None, {}, f"{len(result['lists'])} answers for {len(result['users'])} requests")
    if _get(case, "updates"):  # the lists follow the ratings; what they are is checked without updates
        sizes = {len(answer) for answer, rates in zip(result["lists"], result["rates"], strict=True) if not rates}
        good = sizes <= {min(case["k"], case["items"])}
        return Check(good, None, {}, "lists of the right length" if good else f"lists of {sorted(sizes)} items")
    model, off = make_model(case["users"], case["items"], case["likes"]), 0.0
    for user, answer in list(zip(result["users"], result["lists"], strict=True))[:32]:
        scores = [score for _, score in _rank(model, user, case["k"])]
        off = max(off, float(np.abs(np.array(scores) - [score for _, score in answer]).max()))
    return Check(off <= MAX_ERROR, off, {}, f"scores against the model in process; allowed: {MAX_ERROR}")


@lru_cache(maxsize=1)
def make_model(users: int, items: int, likes: int) -> Recommender:
    """Make a model of EASE and recent popularity over drawn ratings, without texts."""
    ratings: Ratings = draw_ratings(users, items, likes)
    histories: Histories = build_histories(ratings, users, items)
    ids, titles = np.arange(items), [f"Item {item}" for item in range(items)]
    catalogue = Catalogue(ids, titles, np.zeros(items, np.int64), [()] * items, [()] * items)
    vectors = np.zeros((items, 0), np.float32)
    recent, parts = RecentPopularity(catalogue.years), (Semantic(vectors), Popularity(), ItemKnn(0))
    hybrid = Hybrid(Ease(PENALTY), *parts, recent, WEIGHTS).fit(histories)
    return Recommender(catalogue, np.arange(users), histories, histories, hybrid, vectors, encoder="", name="made")


def _rank(model: Recommender, user: int, k: int) -> list[tuple[int, float]]:
    return [(a.item, a.score) for a in model.recommend(user, Options(k))]


def _get(case: Case, name: str) -> int:
    return int(case.params.get(name, SETTINGS[name]))


def _count_calls(case: Case) -> int:
    return _get(case, "clients") * _get(case, "requests")


class _Server:
    """`ridgeline recommend serve` in a process of its own."""

    def __init__(self, model: Recommender) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ridgeline-bench-"))
        model.save(self._folder / "model")
        command = [sys.executable, "-m", "ridgeline", "recommend", "serve", str(self._folder / "model"), "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._connections: list[http.client.HTTPConnection] = []
        try:
            self._port = self._read_port()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def ask(
        self, users: list[int], rates: list[bool], case: Case, calls: deque[int], updates: deque[int]
    ) -> list[list[tuple[int, float]]]:
        """Send all requests from as many threads as there are clients; return the lists, empty for ratings."""
        clients = _get(case, "clients")
        while len(self._connections) < clients:
            self._connections.append(http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_S))
        answers: list[list[tuple[int, float]]] = [[] for _ in users]
        errors: list[BaseException] = []

        def run(client: int) -> None:
            try:
                for number in range(client, len(users), clients):
                    start = now_ns()
                    answers[number] = self._send(self._connections[client], users[number], rates[number], case, number)
                    (updates if rates[number] else calls).append(now_ns() - start)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(client,)) for client in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return answers

    def read_cpu_ns(self) -> int:
        """Return the CPU time of the server."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * (10**9 // os.sysconf("SC_CLK_TCK"))

    def stop(self) -> None:
        for connection in self._connections:
            connection.close()
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(
        self, connection: http.client.HTTPConnection, user: int, is_rating: bool, case: Case, number: int
    ) -> list[tuple[int, float]]:
        if is_rating:
            rating = {"user": user, "item": number % case["items"], "rating": 5}
            body = json.dumps({"ratings": [rating]})
            connection.request("POST", "/api/ratings", body, {"content-type": "application/json"})
        else:
            connection.request("GET", f"/api/recommend?user={user}&k={case['k']}")
        response = connection.getresponse()
        text = response.read()
        if response.status not in (200, 201):
            raise RidgelineError(f"the server answered {response.status}: {text[:200].decode(errors='replace')}")
        return [] if is_rating else [(a["item"], a["score"]) for a in json.loads(text)]

    def _read_port(self) -> int:
        for line in self._process.stderr or ():
            match = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if match:
                threading.Thread(target=lambda: list(self._process.stderr or ()), daemon=True).start()
                return int(match[1])
        raise RidgelineError(f"the server did not start (exit code {self._process.wait()}).")

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=REQUEST_S)
            try:
                connection.request("GET", "/api/health")
                if connection.getresponse().status == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            finally:
                connection.close()
            time.sleep(0.1)
        raise RidgelineError(f"the server was not ready within {START_S:.0f} s (exit code {self._process.poll()}).")
