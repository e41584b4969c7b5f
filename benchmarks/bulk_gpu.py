"""A bulk job of ten million titles on one GPU: Parquet to Parquet beside the rate in memory, then killed and resumed.

    python benchmarks/bulk_gpu.py --out benchmarks/records/NAME-bulk.txt

Titles are random words of one token each, 21 tokens in the mean; vectors are stored as float16. Three runs in turn:

1. `Embedder.encode` of `--memory-rows` titles in memory, before and after the jobs; the faster one counts.
2. One job from end to end. Its rate counts twice: with the start of its processes, and without it, as in memory.
3. The same job, killed with all its processes (SIGKILL) `--kills` times on its way, and resumed by the same command.

The rows of both targets are counted and compared with the source, by pyarrow: every id once, the same titles, no vector
missing; and the parts of both targets have the same bytes. `--device cpu --rows 6000 --chunk-rows 500` tries it out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.compute as compute
import pyarrow.dataset as dataset
import pyarrow.parquet as parquet

import ridgeline
from ridgeline.workloads._embed_texts import draw_lengths, find_words

MODEL = "all-MiniLM-L6-v2"
FILE_ROWS = 500_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--memory-rows", type=int, default=2_000_000, help="titles of a run in memory, at most --rows")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--chunk-rows", type=int, default=65_536)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--folder", type=Path, help="where source and targets lie (default: a temporary folder)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bulk-", dir=options.folder))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    lines: list[str] = []

    def show(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")

    try:
        measure(folder, options, show)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, options: argparse.Namespace, show: Any) -> None:
    show(f"# {describe_machine(options.device)}; ridgeline {ridgeline.__version__}")
    started = time.perf_counter()
    tokens = write_source(folder / "in", options.rows)
    size = sum(file.stat().st_size for file in (folder / "in").iterdir())
    show(
        f"{options.rows:,} titles of {tokens:.1f} tokens in the mean, {size / 1e6:,.0f} MB of Parquet, "
        f"written in {time.perf_counter() - started:.0f} s; {MODEL}, {options.dtype}, "
        f"chunks of {options.chunk_rows:,} rows"
    )
    in_memory = [time_in_memory(folder / "in", options)]
    wall_s = time_job(folder / "in", folder / "whole", options, kills=0)[0]
    answer = json.loads((folder / "whole.json").read_text())
    seconds = answer["stage_seconds"]
    show(
        f"one job: {wall_s:.1f} s from end to end, {seconds['wall']:.1f} s of it with workers; seconds of all workers: "
        + ", ".join(f"{stage} {seconds[stage]:.1f}" for stage in ("read", "compute", "write"))
    )
    summary = json.loads((folder / "whole/_ridgeline/runs.json").read_text())["runs"][-1]
    show(f"the run: {json.dumps(summary)}")
    show(count_rows(folder / "in", folder / "whole", options.rows))
    in_memory.append(time_in_memory(folder / "in", options))
    best = max(in_memory)
    show(f"in memory: {', '.join(f'{rate:,.0f}' for rate in in_memory)} titles/s")
    whole, ready = options.rows / wall_s, options.rows / (seconds["wall"] - summary["start_seconds"])
    show(
        f"Parquet to Parquet: {whole:,.0f} titles/s with the start of all processes, {100 * whole / best:.0f} % of the "
        f"rate in memory; {ready:,.0f} titles/s, {100 * ready / best:.0f} %, from the moment when workers are ready"
    )
    killed_s, kills = time_job(folder / "in", folder / "killed", options, options.kills)
    show(f"killed {kills} times with all its processes and resumed: {killed_s:.1f} s with all starts")
    show(count_rows(folder / "in", folder / "killed", options.rows))
    same = hash_parts(folder / "whole") == hash_parts(folder / "killed")
    show(f"parts of both targets: {'the same bytes' if same else 'NOT the same bytes'}")


def describe_machine(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device.startswith("cuda") else f"{os.cpu_count()} CPUs"


def write_source(folder: Path, rows: int) -> float:
    """Write titles of words of one token each; return the mean number of tokens, with those at both ends."""
    folder.mkdir()
    words = find_words(MODEL)
    lengths = draw_lengths("movies", rows, 0)
    dictionary = arrow.array(words.words.tolist(), arrow.string())
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        own = lengths[first : first + FILE_ROWS] - 2  # a token at both ends
        random = np.random.default_rng(number)
        drawn = dictionary.take(arrow.array(random.integers(0, len(dictionary), int(own.sum()))))
        offsets = arrow.array(np.concatenate([[0], np.cumsum(own)]).astype(np.int32))
        titles = compute.binary_join(arrow.ListArray.from_arrays(offsets, drawn), " ")
        ids = arrow.array(np.arange(first, first + len(own)))
        parquet.write_table(
            arrow.table({"id": ids, "title": titles}), folder / f"{number:04}.parquet", row_group_size=65_536
        )
    return float(lengths.mean())


def time_in_memory(source: Path, options: argparse.Namespace) -> float:
    """Return the titles/s of one call with a list of strings, after a small call to warm up."""
    table = dataset.dataset(source).head(min(options.memory_rows, options.rows), columns=["title"])
    titles = table["title"].to_pylist()
    embedder = ridgeline.Embedder(MODEL, device=options.device, dtype=options.dtype)
    embedder.encode(titles[: len(titles) // 20])
    started = time.perf_counter()
    embedder.encode(titles)
    rate = len(titles) / (time.perf_counter() - started)
    embedder.close()
    return rate


def time_job(source: Path, out: Path, options: argparse.Namespace, kills: int) -> tuple[float, int]:
    """Return the seconds of a job to its end, and how often it was killed (after each further share of parts)."""
    command = [sys.executable, "-m", "ridgeline", "bulk", "embed", str(source), "-o", str(out)]
    command += ["--column", "title", "--key", "id", "--device", options.device, "--dtype", options.dtype]
    command += ["--vectors", "float16", "--chunk-rows", str(options.chunk_rows), "--json", "--quiet"]
    command += ["--workers", str(options.workers)] if options.workers else []
    chunks = -(-options.rows // options.chunk_rows)
    done = 0
    started = time.perf_counter()
    for turn in range(kills + 1):
        with out.with_suffix(".json").open("w") as answer:
            process = subprocess.Popen(command, stdout=answer, start_new_session=True)
            share = chunks * (turn + 1) / (kills + 1)
            while process.poll() is None:
                time.sleep(0.02)
                if turn < kills and len(list(out.glob("part-*.parquet"))) >= share:
                    os.killpg(process.pid, signal.SIGKILL)
                    done += 1
                    break
            code = process.wait()
        if code not in (0, -signal.SIGKILL):
            raise SystemExit(f"the job ended with exit code {code}")
    return time.perf_counter() - started, done


def count_rows(source: Path, target: Path, rows: int) -> str:
    """Compare a target with its source by pyarrow."""
    files = sorted(target.glob("part-*.parquet"))
    texts = dataset.dataset(sorted(map(str, source.iterdir()))).to_table(columns=["id", "title"])
    table = dataset.dataset(list(map(str, files))).to_table(columns=["id", "title"])
    same = table.num_rows == rows and table.equals(texts)
    with ThreadPoolExecutor() as threads:
        bad = sum(threads.map(count_bad_vectors, files))
    return (
        f"counted by pyarrow: {table.num_rows:,} rows in {len(files)} parts, ids and titles in order "
        f"{'as in the source' if same else 'NOT as in the source'}, {bad} vectors whose length is not 1"
    )


def count_bad_vectors(file: Path) -> int:
    """Count the vectors of a part whose length is not 1."""
    bad = 0
    for batch in parquet.ParquetFile(file).iter_batches(65_536, columns=["vector"], use_threads=False):
        values = batch["vector"].flatten().to_numpy().reshape(len(batch), -1).astype(np.float32)
        bad += int((np.abs((values * values).sum(1) - 1) > 0.01).sum())
    return bad


def hash_parts(folder: Path) -> dict[str, str]:
    hashes = {}
    for file in sorted(folder.glob("part-*.parquet")):
        with file.open("rb") as stream:
            hashes[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return hashes


if __name__ == "__main__":
    main()
