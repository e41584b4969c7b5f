"""Measure by CPU time what an increment of a bulk job costs, and what limits a job, on one machine without a GPU.

python benchmarks/bulk_increment.py --rows 1000000 --out benchmarks/records/NAME-bulk.txt

CPU time of the driver and its workers (getrusage of children included): other processes of the machine do not change
it much. The increment changes 1 % of the rows, spread over all chunks. The complete job is measured by its rate over
`--sample` rows, because a million rows take an hour on a CPU; its own start is counted once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

WORDS = [
    "red",
    "blue",
    "old",
    "new",
    "grand",
    "silent",
    "river",
    "night",
    "house",
    "king",
    "road",
    "star",
    "garden",
    "winter",
    "city",
    "dream",
    "love",
    "war",
    "island",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sample", type=int, default=6_000)
    parser.add_argument("--memory", action="store_true", help="Measure the peak memory alone.")
    parser.add_argument(
        "--driver", action="store_true", help="Measure the driver alone, with workers that cost nothing."
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bulk-"))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    try:
        if arguments.driver:
            lines = [measure_driver(folder)]
        elif arguments.memory:
            lines = measure_memory(folder, arguments.rows)
        else:
            lines = [*measure(folder, arguments.rows, arguments.sample), *measure_memory(folder, arguments.rows)]
    finally:
        shutil.rmtree(folder)
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if arguments.out:
        arguments.out.write_text(text)


def measure(folder: Path, rows: int, sample: int) -> list[str]:
    small, large = write_source(folder / "small", sample // 3, 0), write_source(folder / "sample", sample, 0)
    few_s, few_peak = run(small, folder / "few")
    many_s, _ = run(large, folder / "many")
    per_row = (many_s - few_s) / (sample - sample // 3)
    start_s = few_s - per_row * (sample // 3)
    whole_s = start_s + per_row * rows
    lines = [
        f"{rows:,} titles of 6 words, all-MiniLM-L6-v2, float32, one worker, chunks of 16,384 rows; CPU seconds",
        f"complete job: start {start_s:.1f}, {1e3 * per_row:.3f} ms per row (rate of {sample:,} rows): {whole_s:,.0f}",
    ]
    # The vectors of the target come from a model that is free, so that a million rows can be compared and rewritten.
    source = write_source(folder / "in", rows, 0)
    first_s, first_peak = run(source, folder / "out", free=True)
    write_source(folder / "in", rows, 1)
    increment_s, peak = run(source, folder / "out", "--incremental", free=True)
    nothing_s, _ = run(source, folder / "out", "--incremental", free=True)
    computed_s = 0.01 * rows * per_row
    total = increment_s + computed_s
    lines += [
        f"increment of 1 %: compare, read, copy and write {increment_s:.1f}, encode {0.01 * rows:,.0f} rows "
        f"{computed_s:.1f}: {total:.1f}, {100 * total / whole_s:.2f} % of the complete job",
        f"increment of nothing: {nothing_s:.1f}",
        f"all but encoding, complete job: {first_s:.1f}, {1e6 * first_s / rows:.1f} us per row",
        f"peak memory of the largest process, MiB: {sample // 3:,} rows with the model {few_peak:.0f}; "
        f"{rows:,} rows without it {first_peak:.0f}, their increment {peak:.0f}",
    ]
    return lines


def measure_memory(folder: Path, rows: int) -> list[str]:
    peaks = {}
    for count in (rows // 10, rows):
        _, peaks[count] = run(write_source(folder / f"source-{count}", count, 0), folder / f"out-{count}", free=True)
    few, many = peaks.values()
    return [
        f"peak memory of driver and worker in one process, without the model: {rows // 10:,} rows {few:.0f} MiB, "
        f"{rows:,} rows {many:.0f} MiB, {100 * (many / few - 1):+.1f} %"
    ]


def measure_driver(folder: Path, chunks: int = 3000) -> str:
    from ridgeline.bulk.job import Execution, run_chunks
    from ridgeline.bulk.parts import Outcome, Place, Task
    from ridgeline.bulk.target import Part, Target

    class Engine:
        devices, units = ["cuda:0"] * 8, 8

        def __enter__(self) -> Engine:
            return self

        def __exit__(self, *_: object) -> None:
            return

        def busy_seconds(self) -> dict[str, float]:
            return {str(number): 1.0 for number in range(8)}

        def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
            for task in tasks:
                name = f"part-{task.chunk:06}-{'a' * 16}.parquet"
                part = Part(task.chunk, name, 16_384, 25 << 20, "b" * 64, 0, None, 16_384, task.key)
                seconds = {"read": 0.01, "compute": 0.02, "write": 0.03}
                yield task, Outcome(part, None, seconds, (), Place("host", f"cuda:{task.chunk % 8}", task.chunk % 8))

    Execution.open = lambda self, factory: Engine()  # type: ignore[method-assign]
    tasks = [Task(number, (), "c" * 16) for number in range(chunks)]
    rows = dict.fromkeys(range(chunks), 16_384)
    with Target(str(folder / "target")) as target:
        target.begin({"generation": 1})
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        run_chunks(target, None, Execution(device="cpu").check(), tasks, {}, chunks * 16_384, rows, lambda *_: [])
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        commits = len(list((folder / "target/_ridgeline/commits").iterdir()))
    return (
        f"driver: {chunks:,} chunks of 8 workers that cost nothing: {1e3 * cpu_s / chunks:.3f} ms of CPU time for "
        f"each, {chunks / wall_s:,.0f} chunks/s by the clock, {commits} commits"
    )


def write_source(folder: Path, rows: int, change: int) -> Path:
    """Ten files; with `change`, every hundredth title is another one."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    folder.mkdir(exist_ok=True)
    size = -(-rows // 10)
    for number in range(10):
        ids = range(number * size, min(rows, (number + 1) * size))
        titles = [
            " ".join(WORDS[(i * step) % len(WORDS)] for step in (1, 3, 5, 7, 11))
            + f" {i}{'x' * (change and i % 100 == 0)}"
            for i in ids
        ]
        parquet.write_table(
            arrow.table({"id": arrow.array(ids), "title": titles}), folder / f"{number}.parquet", row_group_size=10_000
        )
    return folder


def run(source: Path, out: Path, *more: str, free: bool = False) -> tuple[float, float]:
    """Return (CPU seconds of a job with its workers, MiB of the largest of its processes)."""
    command = [sys.executable, *([str(Path(__file__).resolve()), "job"] if free else ["-m", "ridgeline"])]
    options = ["bulk", "embed", str(source), "-o", str(out), "--column", "title", "--key", "id", "--device", "cpu"]
    code = (
        "import json, resource, subprocess, sys\n"
        "r = subprocess.run(sys.argv[1:], capture_output=True, text=True)\n"
        "u = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps([r.returncode, u.ru_utime + u.ru_stime, u.ru_maxrss / 1024, r.stderr[-300:]]))\n"
    )
    full = [*command, *options, "--dtype", "float32", "--workers", "1", "--quiet", *more]
    done = subprocess.run([sys.executable, "-c", code, *full], capture_output=True, text=True, check=True)
    returned, seconds, peak, errors = json.loads(done.stdout)
    if returned:
        raise SystemExit(errors)
    return seconds, peak


def run_free_job(words: list[str]) -> None:
    """Run a job whose vectors have 384 components and cost nothing: the row's length, and random numbers."""
    import numpy as np
    import pyarrow as arrow
    from tests.bulk.sources_made import InlineEngine

    from ridgeline.bulk import embedding, job
    from ridgeline.bulk.row_worker import Computed, RowWorker
    from ridgeline.cli import main as run_command

    class FreeWorker(RowWorker):
        added = ("vector",)

        def compute(self, values: object) -> Computed:
            flat = np.random.default_rng(0).standard_normal(len(values) * 384).astype(np.float32)  # type: ignore[arg-type]
            column = arrow.FixedSizeListArray.from_arrays(arrow.array(flat), 384)
            return Computed(arrow.table({"vector": column}), [])

    embedding.EmbedFactory.__call__ = lambda self, device: FreeWorker(self, device)  # type: ignore[method-assign]
    job.LocalEngine = InlineEngine  # type: ignore[misc, assignment]
    run_command(words)


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        run_free_job(sys.argv[2:])
    else:
        main()
