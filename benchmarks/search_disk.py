"""An index larger than memory: build it on disk from a mapped file, open it, search it; memory, time and recall.

    python benchmarks/search_disk.py FOLDER [--rows 1000000] [--spec "IVF1024,RaBitQ2,Refine(Flat)"]

Vectors of 384 dimensions without clusters are written to FOLDER first, then the index is built from that file. Memory
is what the process cannot give back (anonymous), and the peak of all that is mapped, which the kernel can drop.
"""

from __future__ import annotations

import argparse
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline import Index

DIM, LATENT, K, QUERIES, BLOCK = 384, 28, 10, 200, 65_536


class Memory:
    """The largest anonymous memory and the largest resident memory while a block runs."""

    def __enter__(self) -> Memory:
        self.anonymous = self.resident = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            status = Path("/proc/self/status").read_text(encoding="ascii")
            sizes = {name: int(value) / 1e6 for name, value in re.findall(r"(\w+):\s+(\d+) kB", status)}
            self.anonymous = max(self.anonymous, sizes["RssAnon"])
            self.resident = max(self.resident, sizes["VmRSS"])

    def __str__(self) -> str:
        return f"{self.anonymous:.2f} GB anonymous, {self.resident:.2f} GB with mapped files"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--spec", default="IVF1024,RaBitQ2,Refine(Flat)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    mixture = random.standard_normal((LATENT, DIM)).astype(np.float32)
    source = given.folder / "vectors.npy"
    queries = draw(random, QUERIES, mixture)
    best = np.full((QUERIES, K), -np.inf, np.float32)
    truth = np.zeros((QUERIES, K), np.int64)
    values = np.lib.format.open_memmap(source, "w+", np.float32, (given.rows, DIM))
    for at in range(0, given.rows, BLOCK):
        block = draw(random, min(BLOCK, given.rows - at), mixture)
        values[at : at + len(block)] = block
        scores = np.concatenate([best, queries @ block.T], 1)
        rows = np.concatenate([truth, np.broadcast_to(np.arange(at, at + len(block)), (QUERIES, len(block)))], 1)
        chosen = np.argpartition(-scores, K, axis=1)[:, :K]
        best, truth = np.take_along_axis(scores, chosen, 1), np.take_along_axis(rows, chosen, 1)
    values.flush()
    del values
    print(f"{given.rows} rows, {DIM} dimensions, {given.rows * DIM * 4 / 1e9:.2f} GB of vectors; {given.spec}")
    start, cpu = time.perf_counter(), time.process_time()
    with Memory() as memory:
        Index.build(given.folder / "index", source, given.spec, metric="cosine")
    print(f"built in {time.perf_counter() - start:.0f} s, {time.process_time() - cpu:.0f} s of CPU time; {memory}")
    with Memory() as memory:
        index = Index.load(given.folder / "index")
        for nprobe in (16, 32, 64, 128, 256):
            start = time.perf_counter()
            found = [index.search(query, K, nprobe=nprobe)[1] for query in queries]
            elapsed_s = time.perf_counter() - start
            recall = np.mean(
                [len(set(a) & set(b)) / K for a, b in zip(np.array(found).tolist(), truth.tolist(), strict=True)]
            )
            print(f"nprobe {nprobe}: recall {recall:.4f}, {1e3 * elapsed_s / QUERIES:.2f} ms a query", flush=True)
    print(f"searched with {memory}")


def draw(random: np.random.Generator, count: int, mixture: Any) -> Any:
    latent = random.standard_normal((count, LATENT)).astype(np.float32)
    values = latent @ mixture + 0.8 * random.standard_normal((count, DIM)).astype(np.float32)
    return values / np.linalg.norm(values, axis=1, keepdims=True)


if __name__ == "__main__":
    main()
