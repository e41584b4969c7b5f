"""The latency of a warm recommendation service, over HTTP on this machine.

    python benchmarks/recommend_service.py MODEL [--calls 200]

MODEL is a folder that `ridgeline recommend fit` wrote. Every kind of request is sent in turn, each time with other
titles, texts and users, so that no result can be cached. Prints a Markdown table: median, slowest percent, and the
CPU time of client and server together over all threads, which is more reliable than wall time on a shared machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import httpx
import numpy as np

from ridgeline.cli import SPIN_COUNT
from ridgeline.machine import topology
from ridgeline.machine.clock import now_ns
from ridgeline.recommend import Recommender
from ridgeline.recommend.http_service import create_app
from ridgeline.recommend.item_vectors import item_texts
from ridgeline.web import run_in_background

WARM = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--calls", type=int, default=200, metavar="N", help="of each kind")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # as `ridgeline recommend serve` does, before torch is imported
    rng = np.random.default_rng(0)
    with Recommender.load(options.model, device=options.device) as model, run_in_background(create_app(model)) as url:
        texts, titles, users = item_texts(model.catalogue), model.catalogue.titles, model.user_ids.tolist()
        with httpx.Client(base_url=url, timeout=60) as client:
            kinds = {
                "a new user, by five titles": lambda: client.post("/api/new", json={"liked": some(rng, titles, 5)}),
                "a new user, by a text": lambda: client.post("/api/new", json={"text": some(rng, texts, 1)[0]}),
                "a new item, by its text": lambda: client.get(
                    "/api/search", params={"q": f"{some(rng, texts, 1)[0]}!"}
                ),
                "like an item": lambda: client.get("/api/similar", params={"title": some(rng, titles, 1)[0]}),
                "like a misspelt title": lambda: client.get("/api/similar", params={"title": slip(rng, titles)}),
                "a known user": lambda: client.get("/api/recommend", params={"user": some(rng, users, 1)[0]}),
            }
            durations: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
            for turn in range(options.calls + WARM):
                for kind, ask in kinds.items():
                    start, busy = now_ns(), time.process_time_ns()
                    answer = ask()
                    spent = (now_ns() - start) / 1e6, (time.process_time_ns() - busy) / 1e6
                    if answer.status_code != 200 or len(answer.json()) != 10:
                        raise SystemExit(f"{kind}: {answer.status_code} {answer.text[:200]}")
                    if turn >= WARM:
                        durations[kind].append(spent)
    cpus = len(topology().usable_cpus)
    print(
        f"{len(titles):,} items, {len(users):,} users, {options.device}, {cpus} CPUs, load {os.getloadavg()[0]:.1f}\n"
    )
    print("| question | median ms | 99 % within ms | CPU ms | calls |\n|---|---|---|---|---|")
    for kind, pairs in durations.items():
        ms, cpu = zip(*pairs, strict=True)
        cells = f"{statistics.median(ms):.1f} | {float(np.quantile(ms, 0.99)):.1f} | {statistics.median(cpu):.1f}"
        print(f"| {kind} | {cells} | {len(ms)} |")


def some(rng: np.random.Generator, values: list, count: int) -> list:
    return [values[i] for i in rng.choice(len(values), count, replace=False)]


def slip(rng: np.random.Generator, titles: list[str]) -> str:
    """A title of some length with two letters exchanged."""
    title = some(rng, [t for t in titles if len(t) > 16], 1)[0]
    return title[:3] + title[4] + title[3] + title[5:]


if __name__ == "__main__":
    main()
