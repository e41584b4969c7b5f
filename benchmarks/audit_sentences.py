"""Time the scoring of sentences that no one saw before: `audit watch` over one event, then over 300 random sentences.

    python benchmarks/audit_sentences.py [--sentences 300] [--rounds 5]

The difference of the two is what 300 sentences cost beyond start-up. Each is a process of its own with an empty ledger.
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def draw_sentences(count: int, random_numbers: random.Random) -> list[str]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(random_numbers.choices(letters, k=random_numbers.randint(3, 9))) for _ in range(3000)]
    return [" ".join(random_numbers.choices(words, k=random_numbers.randint(5, 14))) for _ in range(count)]


def time_watching(sentences: list[str]) -> tuple[float, float]:
    """Seconds by the clock and of CPU time that `audit watch` takes to record and score the sentences."""
    lines = "".join(
        json.dumps({"source": "test", "actor": "root", "action": "say", "subject": text}) + "\n" for text in sentences
    )
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder) / "log")
        ledger = [sys.executable, "-m", "ridgeline", "audit", "init", log, "--origin", "benchmark.example/log"]
        subprocess.run(ledger, capture_output=True, check=True)
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-m", "ridgeline", "audit", "watch", log, "--jsonl", "-"]
        subprocess.run(command, input=lines, text=True, capture_output=True, check=True)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    random_numbers = random.Random(7)  # noqa: S311 (not for secrets)
    time_watching(draw_sentences(1, random_numbers))  # fills the caches of files
    results: dict[int, list[tuple[float, float]]] = {1: [], options.sentences: []}
    for _ in range(options.rounds):
        for count, times in results.items():
            times.append(time_watching(draw_sentences(count, random_numbers)))
    for count, times in results.items():
        clock, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{count} sentences: {clock:.2f} s by the clock, {cpu:.2f} s of CPU time, median of {len(times)}")
    clocks = [after[0] - before[0] for before, after in zip(*results.values(), strict=True)]
    print(f"beyond start-up: {statistics.median(clocks):.2f} s by the clock ({min(clocks):.2f} to {max(clocks):.2f})")


if __name__ == "__main__":
    main()
