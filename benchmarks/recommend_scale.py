"""Time and memory of `ridgeline recommend fit --no-text` on drawn ratings of a large catalogue.

    python benchmarks/recommend_scale.py --ratings 10000000 --users 200000 --items 1000000 [--device cuda]

The popularity of items follows a Pareto law. Prints seconds by the clock, seconds of CPU time and the peak memory of
the fit, reading included. `--limit-gib` stops the fit at that much memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BLOCK = 10_000_000  # ratings to draw at a time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratings", type=int, default=10_000_000)
    parser.add_argument("--users", type=int, default=200_000)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit-gib", type=float, help="of memory for the fit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "data", options.ratings, options.users, options.items)
        command = [sys.executable, "-m", "ridgeline", "recommend", "fit", f"{folder}/data", "-o", f"{folder}/model"]
        command += ["--no-text", "--device", options.device, "--quiet"]
        load, start = os.getloadavg()[0], time.perf_counter()
        subprocess.run(command, check=True, preexec_fn=lambda: limit_memory(options.limit_gib))
        seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{options.ratings:,} ratings, {options.users:,} users, {options.items:,} items, {options.device}, "
        f"{len(os.sched_getaffinity(0))} CPUs, load before {load:.1f}: {seconds:.0f} s by the clock, "
        f"{used.ru_utime + used.ru_stime:.0f} s of CPU time, peak memory {used.ru_maxrss / 2**20:.2f} GiB"
    )


def limit_memory(gib: float | None) -> None:
    if gib is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (int(gib * 2**30), int(gib * 2**30)))


def write(folder: Path, ratings: int, users: int, items: int) -> None:
    """Write items.parquet and interactions.parquet; a user who drew an item twice has rated it once."""
    folder.mkdir()
    pq.write_table(
        pa.table({"item": np.arange(items), "title": [f"Item {n}" for n in range(items)]}), folder / "items.parquet"
    )
    rng = np.random.default_rng(0)
    columns = {"user": pa.int64(), "item": pa.int64(), "rating": pa.float64(), "time": pa.int64()}
    with pq.ParquetWriter(folder / "interactions.parquet", pa.schema(columns)) as writer:
        for first in range(0, ratings, BLOCK):
            count = min(BLOCK, ratings - first)
            drawn = np.minimum((rng.pareto(1.1, count) * 500).astype(np.int64), items - 1)
            times = np.arange(first, first + count) + 1_700_000_000
            writer.write_table(
                pa.table(
                    {"user": rng.integers(0, users, count), "item": drawn, "rating": np.full(count, 5.0), "time": times}
                )
            )


if __name__ == "__main__":
    main()
