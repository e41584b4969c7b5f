"""Rates of bulk jobs on CPUs: one worker and two of one thread each, and the engine `ray` beside the engine `local`.

    python benchmarks/bulk_engines.py --out benchmarks/records/NAME-bulk-engines.txt     (on idle cores)

Titles of 21 tokens in the mean, Parquet to Parquet. A rate is the rows over the time from the moment when the workers
are ready (the start of processes and of a Ray cluster does not count) to the last commit. Both sides of a ratio run in
turn, and their medians count. One worker has one core, two workers have two cores; the driver shares them. Without Ray
the second part is left out; with it, both engines have `--cores` workers of one thread on as many cores.

The CPU time of all processes of a job is counted as well, from its first part on. It says what an engine costs beside
its workers, also on a machine that others use: rates compare only on idle cores.
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
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bulk_gpu import write_source

from ridgeline.machine import topology

CHUNKS = 12  # of each worker, at least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=int, default=12_000, help="titles of one worker in the first part, 0 leaves it out"
    )
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
        if options.rows and len(cores) > 1:
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
    steady: dict[str, list[float]] = {name: [] for name in sides}
    costs: dict[str, list[CpuTime]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            rate, later, wait, cost = time_job(folder / "out", *sides[name])
            rates[name].append(rate)
            steady[name].append(later)
            waits[name].append(wait)
            costs[name].append(cost)
    for name in sides:
        shown = ", ".join(f"{rate:,.0f}" for rate in rates[name])
        show(f"{name}: {shown} titles/s; workers wait {100 * statistics.median(waits[name]):.1f} % of their time")
        show(f"{name}: from the first part on {', '.join(f'{rate:,.0f}' for rate in steady[name])} titles/s")
        kinds = {kind for cost in costs[name] for kind in cost.seconds}
        total = {kind: sum(cost.seconds.get(kind, 0.0) for cost in costs[name]) for kind in kinds}
        by_kind = [f"{kind} {total[kind]:.2f}" for kind in sorted(total, key=total.__getitem__, reverse=True)]
        share = total[WORKERS] / sum(total.values())
        wall_s = sum(cost.wall_s for cost in costs[name])
        show(
            f"{name}: CPU time in {wall_s:.0f} s since the first part, by kind of process: {', '.join(by_kind)} s; "
            f"workers have {100 * share:.1f} % of it"
        )
    first, second = (statistics.median(rates[name]) for name in sides)
    before, after = (statistics.median(steady[name]) for name in sides)
    ratio = " / ".join(reversed(list(sides)))
    show(f"{ratio}: {second / first:.3f}; from the first part on {after / before:.3f}")


WORKERS = "workers"
KINDS = {
    "ray::Actor": WORKERS,
    "pipeline.worker import main": WORKERS,
    "-m ridgeline": "driver",
    "gcs_server": "gcs_server",
    "log_monitor": "log monitor",
    "monitor.py": "autoscaler",
    "dashboard/dashboard": "dashboard",
    "ray::DashboardAgent": "agents",
    "ray::RuntimeEnvAgent": "agents",
    "raylet/raylet": "raylet",
}


@dataclass
class CpuTime:
    """The CPU time of a job by kind of process, and the time by the clock, since its first part was there."""

    seconds: dict[str, float] = field(default_factory=dict)
    wall_s: float = 0.0


def watch(process: subprocess.Popen[bytes], out: Path) -> CpuTime:
    """Wait for a job; read the CPU time of its processes twice a second, as Ray does not wait for all of them."""
    before: dict[int, float] = {}
    latest: dict[int, tuple[str, float]] = {}
    first_s = last_s = 0.0
    while process.poll() is None:
        for pid, (kind, total) in read_processes(process.pid).items():
            latest[pid] = (
                latest[pid][0] if pid in latest and kind == "others" else kind,
                total,
            )  # a zombie has no name
        last_s = time.monotonic()
        if not first_s and any(out.glob("part-*.parquet")):
            first_s, before = last_s, {pid: seconds for pid, (_, seconds) in latest.items()}
        time.sleep(0.5)
    seconds: dict[str, float] = {}
    for pid, (kind, total) in latest.items():
        seconds[kind] = seconds.get(kind, 0.0) + total - before.get(pid, 0.0)
    return CpuTime(seconds, last_s - first_s)


def read_processes(root: int) -> dict[int, tuple[str, float]]:
    """Return (kind, seconds of CPU time) of a process and all that it started."""
    children: dict[int, list[int]] = {}
    known: dict[int, tuple[str, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        pid = int(folder.name)
        children.setdefault(int(fields[1]), []).append(pid)
        kind = next((name for part, name in KINDS.items() if part in command), "others")
        known[pid] = (kind, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    family = [root]
    for pid in family:
        family += children.get(pid, [])
    return {pid: known[pid] for pid in family if pid in known and known[pid][1] > 0}


def time_job(
    out: Path, source: Path, cpus: list[int], workers: int, engine: str
) -> tuple[float, float, float, CpuTime]:
    """Return titles/s, those from the first part on, the share of the time in which workers wait, and the CPU time.

    The workers have one thread each.
    """
    shutil.rmtree(out, ignore_errors=True)
    rows = int(subprocess.check_output([sys.executable, "-c", COUNT, str(source)]))
    command = [sys.executable, "-m", "ridgeline", "bulk", "embed", str(source), "-o", str(out), "--column", "title"]
    command += ["--key", "id", "--device", "cpu", "--dtype", "float32", "--workers", str(workers), "--engine", engine]
    command += ["--chunk-rows", str(min(4096, -(-rows // (CHUNKS * workers)))), "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    job = subprocess.Popen(command, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, cpus))
    cost = watch(job, out)
    if job.returncode:
        raise subprocess.CalledProcessError(job.returncode, command)
    run = json.loads((out / "_ridgeline/runs.json").read_text())["runs"][-1]
    stages = run["stages"]
    rate = run["rows"] / (run["seconds"] - run["start_seconds"])
    return rate, run["rows_per_s"], stages["wait"] / sum(stages.values()), cost


COUNT = "import pyarrow.dataset as d, sys; print(d.dataset(sys.argv[1]).count_rows())"

if __name__ == "__main__":
    main()
