"""Lists of users and searches while items and ratings arrive, at a server in a process of its own.

    python benchmarks/recommend_live.py MODEL [--seconds 20] [--items 100] [--clients 4]

MODEL is a folder that `ridgeline recommend fit` wrote; its changes go to a copy. `--items` items and as many ratings
arrive each second. Prints, in milliseconds: the time of each list, of each POST of an item, and from the answer to that
POST until a search for its words finds the item.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import numpy as np

from ridgeline.recommend import Recommender

WORDS = ("amber", "basin", "cedar", "delta", "ember", "fjord", "glade", "heron", "islet", "jetty", "kelp", "larch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--items", type=int, default=100, help="that arrive each second")
    parser.add_argument("--clients", type=int, default=4, help="that ask for lists, one request after the other")
    options = parser.parse_args()
    with Recommender.load(options.model) as model:
        users = model.user_ids.tolist()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(options.model, Path(folder) / "model")
        command = [sys.executable, "-m", "ridgeline", "recommend", "serve", f"{folder}/model", "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            try:
                url = read_url(server)
                wait_until_ready(url)
                times = run(url, users, options.seconds, options.items, options.clients)
            finally:
                server.terminate()
    for name, values in times.items():
        if len(values) < 2:
            continue
        cuts = statistics.quantiles(values, n=100)
        print(f"{name}: {len(values):,}, median {statistics.median(values):.1f}, p99 {cuts[98]:.1f} ms")


def read_url(server: subprocess.Popen[str]) -> str:
    for line in server.stderr or ():
        match = re.search(r"http://[0-9.:]+", line)
        if match:
            threading.Thread(target=lambda: list(server.stderr or ()), daemon=True).start()
            return match[0]
    raise SystemExit("the server did not start")


def wait_until_ready(url: str) -> None:
    while httpx.get(f"{url}/api/health").status_code != 200:
        time.sleep(0.1)


def run(url: str, users: list[object], seconds: float, rate: int, clients: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"list": [], "POST of an item": [], "until a search finds it": []}
    stop, rng = threading.Event(), np.random.default_rng(0)

    def ask(seed: int) -> None:
        own = np.random.default_rng(seed)
        with httpx.Client(base_url=url, timeout=60) as client:
            while not stop.is_set():
                start = time.perf_counter()
                client.get("/api/recommend", params={"user": str(users[own.integers(len(users))])}).raise_for_status()
                times["list"].append(1e3 * (time.perf_counter() - start))

    def send(number: int) -> None:
        title = " ".join(rng.choice(WORDS, 6))
        item = {"id": f"live{number}", "title": f"{title} {number}"}
        with httpx.Client(base_url=url, timeout=60) as client:
            start = time.perf_counter()
            client.post("/api/items", json={"items": [item]}).raise_for_status()
            done = time.perf_counter()
            times["POST of an item"].append(1e3 * (done - start))
            rating = {"user": f"fan{number}", "item": item["id"], "rating": 5}
            client.post("/api/ratings", json={"ratings": [rating]}).raise_for_status()
            if number % 20 == 0:
                while True:
                    found = client.get("/api/search", params={"q": item["title"], "k": 5}).json()
                    if item["id"] in [hit["item"] for hit in found]:
                        break
                times["until a search finds it"].append(1e3 * (time.perf_counter() - done))

    readers = [threading.Thread(target=ask, args=(seed,)) for seed in range(clients)]
    for thread in readers:
        thread.start()
    senders = []
    start = time.perf_counter()
    for number in range(int(seconds * rate)):
        time.sleep(max(0.0, start + number / rate - time.perf_counter()))
        senders.append(threading.Thread(target=send, args=(number,)))
        senders[-1].start()
    for thread in senders:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    return times


if __name__ == "__main__":
    main()
