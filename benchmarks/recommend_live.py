"""Lists of users and searches while items and ratings arrive, at a server in a process of its own.

    python benchmarks/recommend_live.py MODEL [--seconds 20] [--items 100] [--clients 1]

MODEL is a folder that `ridgeline recommend fit` wrote; its changes go to a copy. Clients, each a process, first ask for
lists alone; then `--items` items and as many ratings arrive each second while they go on. Prints, in milliseconds: the
time of each list, of each POST of an item, and from the answer to that POST until a search for its words finds the
item; and the CPU time of the server, which other programs on the machine change less.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import queue
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ridgeline.recommend import Recommender

WORDS = ("amber", "basin", "cedar", "delta", "ember", "fjord", "glade", "heron", "islet", "jetty", "kelp", "larch")
SENDERS = 16  # connections for items and ratings
SEARCH_EACH = 20  # items, of which one is searched for
WARM_S = 2.0


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, body: object = None) -> object:
        data = None if body is None else json.dumps(body)
        self.connection.request(method, path, data, {"content-type": "application/json"} if data else {})
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:200]!r}")
        return json.loads(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--items", type=int, default=100, help="that arrive each second")
    parser.add_argument("--clients", type=int, default=1, help="that ask for lists, one request after the other")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two lists of a client")
    options = parser.parse_args()
    with Recommender.load(options.model) as model:
        users = [str(user) for user in model.user_ids.tolist()]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(options.model, Path(folder) / "model")
        command = [sys.executable, "-m", "ridgeline", "recommend", "serve", f"{folder}/model", "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            try:
                port = read_port(server)
                wait_until_ready(port)
                run(server.pid, port, users, WARM_S, 0, options.clients, options.pause)
                print(f"load before: {load:.1f}, {len(os.sched_getaffinity(0))} CPUs")
                for rate in (0, options.items):
                    times, cpu_s = run(server.pid, port, users, options.seconds, rate, options.clients, options.pause)
                    print(f"\n{rate} items and ratings per second: {cpu_s:.2f} s of CPU time of the server")
                    for kind, values in times.items():
                        print_times(kind, values)
            finally:
                server.terminate()


def print_times(kind: str, values: list[float]) -> None:
    if len(values) > 1:
        last = statistics.quantiles(values, n=100)[98]
        print(f"{kind}: {len(values):,}, median {statistics.median(values):.1f}, p99 {last:.1f} ms")


def read_port(server: subprocess.Popen[str]) -> int:
    for line in server.stderr or ():
        match = re.search(r"http://[0-9.]+:([0-9]+)", line)
        if match:
            threading.Thread(target=lambda: list(server.stderr or ()), daemon=True).start()
            return int(match[1])
    raise SystemExit("the server did not start")


def wait_until_ready(port: int) -> None:
    while True:
        try:
            Client(port).ask("GET", "/api/health")
            return
        except RuntimeError:
            time.sleep(0.1)


def run(
    server: int, port: int, users: list[str], seconds: float, rate: int, clients: int, pause: float
) -> tuple[dict[str, list[float]], float]:
    """Return (times in ms by kind, CPU seconds of the server)."""
    times: dict[str, list[float]] = {"list": [], "POST of an item": [], "until a search finds it": []}
    rng = np.random.default_rng(0)
    waiting: queue.Queue[tuple[int, str] | None] = queue.Queue()

    def send() -> None:
        client = Client(port)
        for number, title in iter(waiting.get, None):
            start = time.perf_counter()
            client.ask("POST", "/api/items", {"items": [{"id": f"live{number}", "title": title}]})
            done = time.perf_counter()
            times["POST of an item"].append(1e3 * (done - start))
            rating = {"user": f"fan{number}", "item": f"live{number}", "rating": 5}
            client.ask("POST", "/api/ratings", {"ratings": [rating]})
            if number % SEARCH_EACH == 0:
                while True:
                    hits = client.ask("GET", f"/api/search?q={quote(title)}&k=5")
                    if f"live{number}" in [hit["item"] for hit in hits]:
                        break
                times["until a search finds it"].append(1e3 * (time.perf_counter() - done))

    senders = [threading.Thread(target=send) for _ in range(SENDERS if rate else 0)]
    context = multiprocessing.get_context("fork")
    stop, answers = context.Event(), context.Queue()
    askers = [
        context.Process(target=ask_for_lists, args=(port, users, seed, pause, stop, answers)) for seed in range(clients)
    ]
    busy = read_cpu_s(server)
    for asker in askers:  # before the threads, which a fork would not copy
        asker.start()
    for thread in senders:
        thread.start()
    start = time.perf_counter()
    for number in range(int(seconds * rate)):
        time.sleep(max(0.0, start + number / rate - time.perf_counter()))
        waiting.put((number, f"{' '.join(rng.choice(WORDS, 6))} {number}"))
    if not rate:
        time.sleep(seconds)
    for _ in senders:
        waiting.put(None)
    for thread in senders:
        thread.join()
    stop.set()
    for asker in askers:
        times["list"] += answers.get(timeout=60)
        asker.join()
    return times, read_cpu_s(server) - busy


def ask_for_lists(port: int, users: list[str], seed: int, pause: float, stop: Any, answers: Any) -> None:
    """Ask for the lists of random users until `stop`; send the times in ms."""
    rng, client, times = np.random.default_rng(seed), Client(port), []
    while not stop.wait(pause):
        start = time.perf_counter()
        client.ask("GET", f"/api/recommend?user={quote(users[rng.integers(len(users))])}")
        times.append(1e3 * (time.perf_counter() - start))
    answers.put(times)


def read_cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
