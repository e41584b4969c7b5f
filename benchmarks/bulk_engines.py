"""Rates of bulk jobs on CPUs: one worker and two of one thread each, and the engine `ray` beside the engine `local`.

    python benchmarks/bulk_engines.py --out benchmarks/records/NAME-bulk-engines.txt     (on idle cores)

Titles of 21 tokens in the mean, Parquet to Parquet. A rate is the rows over the time from the moment when the workers
are ready (the start of processes and of a Ray cluster does not count) to the last commit. Both sides of a ratio run in
turn, and their medians count. One worker has one core, two workers have two cores; the driver shares them. Without Ray
the second part is left out; with it, both engines have `--cores` workers of one thread on as many cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bulk_gpu import write_source

from ridgeline.machine import topology

CHUNKS = 12  # of each worker, at least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=12_000, help="titles of one worker in the first part")
    parser.add_argument("--ray-rows", type=int, default=200_000, help="titles in the second part, 0 leaves it out")
    parser.add_argument("--cores", type=int, help="cores of the second part (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cores = find_cores()
    folder = Path(tempfile.mkdtemp(prefix="bulk-"))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    lines: list[str] = []

    def show(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")

    show(f"# {len(cores)} cores, load {os.getloadavg()[0]:.1f} at the start; all-MiniLM-L6-v2, float32")
    try:
        if len(cores) > 1:
            write_source(folder / "one-in", options.rows)
            write_source(folder / "two-in", 2 * options.rows)
            sides = {
                "one worker": (folder / "one-in", cores[:1], 1, "local"),
                "two workers": (folder / "two-in", cores[:2], 2, "local"),
            }
            compare(folder, sides, options.rounds, show)
        if options.ray_rows and find_spec("ray") is not None:
            write_source(folder / "ray-in", options.ray_rows)
            chosen = cores[: options.cores or len(cores)]
            sides = {name: (folder / "ray-in", chosen, len(chosen), name) for name in ("local", "ray")}
            compare(folder, sides, options.rounds, show)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_cores() -> list[int]:
    """Return one usable CPU of each core."""
    first: dict[tuple[int, int], int] = {}
    for cpu in topology().cpus:
        if cpu.usable and cpu.id in os.sched_getaffinity(0):
            first.setdefault((cpu.package, cpu.core), cpu.id)
    return sorted(first.values())


def compare(folder: Path, sides: dict[str, tuple[Path, list[int], int, str]], rounds: int, show: Any) -> None:
    rates: dict[str, list[float]] = {name: [] for name in sides}
    waits: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            rate, wait = time_job(folder / "out", *sides[name])
            rates[name].append(rate)
            waits[name].append(wait)
    for name in sides:
        shown = ", ".join(f"{rate:,.0f}" for rate in rates[name])
        show(f"{name}: {shown} titles/s; workers wait {100 * statistics.median(waits[name]):.1f} % of their time")
    first, second = (statistics.median(rates[name]) for name in sides)
    show(f"{' / '.join(reversed(list(sides)))}: {second / first:.3f}")


def time_job(out: Path, source: Path, cpus: list[int], workers: int, engine: str) -> tuple[float, float]:
    """Return (titles/s, the share of the time in which workers wait) of one job with workers of one thread."""
    shutil.rmtree(out, ignore_errors=True)
    rows = int(subprocess.check_output([sys.executable, "-c", COUNT, str(source)]))
    command = [sys.executable, "-m", "ridgeline", "bulk", "embed", str(source), "-o", str(out), "--column", "title"]
    command += ["--key", "id", "--device", "cpu", "--dtype", "float32", "--workers", str(workers), "--engine", engine]
    command += ["--chunk-rows", str(min(4096, -(-rows // (CHUNKS * workers)))), "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    subprocess.run(command, check=True, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, cpus))
    run = json.loads((out / "_ridgeline/runs.json").read_text())["runs"][-1]
    stages = run["stages"]
    return run["rows"] / (run["seconds"] - run["start_seconds"]), stages["wait"] / sum(stages.values())


COUNT = "import pyarrow.dataset as d, sys; print(d.dataset(sys.argv[1]).count_rows())"

if __name__ == "__main__":
    main()
