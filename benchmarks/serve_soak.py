"""Memory of `ridgeline serve` under hours of load: a share of what it can do, in an open loop, with clients that leave.

    python benchmarks/serve_soak.py [MODEL] [--minutes 20] [--share 0.7] [--workers 2] [--out FILE]

First the clients send as fast as answers come, for 20 seconds: the capacity. Then requests arrive at random moments, at
this share of it: one to eight texts, floats or base64, now and then a cancelled one, a malformed one, a search, a
deadline that cannot be kept. Every minute a line has the memory of all processes of the server: their own pages, also
those in swap, without the files of libraries, whose share depends on other processes. The first two minutes are
warm-up. `change` is the median of the last quarter against that of the first one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from serve_load import WORDS, Server, make_texts, start_server

THREADS = 8
CAPACITY_S = 20.0
WARM_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=os.environ.get("RIDGELINE_MODEL", "all-MiniLM-L6-v2"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--share", type=float, default=0.7)
    parser.add_argument("--out", type=Path, help="also write the measured memory to this file, as JSON lines")
    options = parser.parse_args()
    texts = make_texts(512, 8)
    with tempfile.TemporaryDirectory() as folder:
        options.serve = f"--index films={make_index(Path(folder), options, texts)}"
        with start_server(options, options.workers) as server:
            run(server, options, texts)


def make_index(folder: Path, options: Any, texts: list[str]) -> Path:
    import ridgeline

    index = ridgeline.Index("Flat", metric="cosine", device="cpu")
    with ridgeline.Embedder(options.model, device=options.device, dtype=options.dtype) as embedder:
        index.add(embedder.encode(texts))
    index.save(folder / "films")
    return folder / "films"


def run(server: Server, options: Any, texts: list[str]) -> None:
    load = Load(server.port, texts)
    start_s = time.monotonic()
    load.run(CAPACITY_S, None)
    capacity = sum(load.counts.values()) / (time.monotonic() - start_s)
    rate = options.share * capacity
    print(f"capacity {capacity:.0f} requests/s with {THREADS} clients; the load is {rate:.0f} requests/s", flush=True)
    load.counts.clear()
    lines: list[dict[str, float]] = []
    thread = threading.Thread(target=load.run, args=(60 * options.minutes + WARM_S, rate))
    start_s = time.monotonic()
    thread.start()
    while thread.is_alive():
        thread.join(10)
        elapsed_s = time.monotonic() - start_s - WARM_S
        lines.append({"s": round(elapsed_s, 1), "mb": round(read_memory_mb(server), 2)})
        if len(lines) % 6 == 0:
            print(f"{elapsed_s / 60:6.1f} min  {lines[-1]['mb']:8.1f} MB  {dict(load.counts)}", flush=True)
    values = [line["mb"] for line in lines if line["s"] >= 0][:-1]
    quarter = max(1, len(values) // 4)
    first, last = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
    print(f"memory {first:.1f} MB → {last:.1f} MB: change {100 * (last / first - 1):+.2f} %")
    print(f"answers by status: {dict(load.counts)}, {load.failures or 'none'} lost")
    if options.out is not None:
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read_memory_mb(server: Server) -> float:
    """Return the memory of all processes of the server: anonymous pages, and those in swap."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    total = 0
    for pid in (str(server.process.pid), *children):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Anonymous:", "Swap:")):
                total += int(line.split()[1])
    return total / 1024


class Load:
    """Requests of all kinds."""

    def __init__(self, port: int, texts: list[str]) -> None:
        self._port, self._texts = port, texts
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def run(self, seconds: float, rate: float | None) -> None:
        """Send requests at a rate, or as fast as answers come."""
        end_s = time.monotonic() + seconds
        threads = [threading.Thread(target=self._run_client, args=(k, end_s, rate)) for k in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run_client(self, seed: int, end_s: float, rate: float | None) -> None:
        draw = random.Random(seed)  # noqa: S311  the same every time
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        due_s = time.monotonic()
        while time.monotonic() < end_s:
            if rate is not None:
                due_s += draw.expovariate(rate / THREADS)
                time.sleep(max(0.0, due_s - time.monotonic()))
            try:
                self.counts[self._send(draw, connection)] += 1
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
        connection.close()

    def _send(self, draw: random.Random, connection: http.client.HTTPConnection) -> str:
        kind = draw.random()
        count = draw.choice((1, 1, 2, 3, 8))
        body: dict[str, Any] = {"model": "m", "input": draw.sample(self._texts, count)}
        headers = {"content-type": "application/json"}
        path = "/v1/embeddings"
        if kind < 0.5:
            body["encoding_format"] = "base64"
        elif kind < 0.6:
            path, body = "/v1/search", {"index": "films", "input": body["input"], "k": 5}
        elif kind < 0.65:
            body["input"] = [draw.choice(WORDS), 5]
        elif kind < 0.7:
            headers["x-request-timeout"] = "0.001"
        elif kind < 0.75:
            self._leave(json.dumps(body).encode())
            return "left"
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        answer.read()
        return str(answer.status)

    def _leave(self, body: bytes) -> None:
        head = f"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self._port), 60) as connection:
            connection.sendall(head.encode() + body)


if __name__ == "__main__":
    main()
