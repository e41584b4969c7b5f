"""Events per second that several watchers score at once, each with its log, its detector and its share of the hosts.

    python benchmarks/audit_watchers.py --watchers 1,2,4 --device cuda [--seconds 30] [--fresh 10]

Scoring is one Python thread per watcher, because an event is compared with those before it. So more events than one
watcher scores need several: hosts are divided among them, and each has a log of its own. Each watcher is a process that
sends log-like events through ledger and scorer as fast as they are scored. Reports for each number of watchers the sum
of the rates, the CPU time per event, and whether all logs verify.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import tempfile
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from ridgeline.audit.ledger.verify import examine
from ridgeline.cli import SPIN_COUNT
from ridgeline.workloads._audit_engine import Lines, Ours

MODEL = "all-MiniLM-L6-v2"
AHEAD, AT_ONCE = 1_024, 256  # most events in the backlog; events per call
WARM = 5_000  # events before the measured ones


def run_watcher(
    folder: Path, device: str, seconds: float, fresh: float, seed: int, start: Barrier, pipe: Connection
) -> None:
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # as `ridgeline audit watch` does, before torch is imported
    engine, lines = Ours(folder, MODEL, device, None), Lines(60, fresh, seed)
    while engine.given < WARM:
        engine.send(lines.take(AT_ONCE))
        engine.settle()
    start.wait()
    begin_s, cpu_s, before = time.perf_counter(), time.process_time(), engine.scorer.scored
    while time.perf_counter() - begin_s < seconds:
        if engine.given - engine.scorer.scored < AHEAD:
            engine.send(lines.take(AT_ONCE))
        else:
            time.sleep(0.0005)
    engine.settle()
    took_s, used_s, scored = time.perf_counter() - begin_s, time.process_time() - cpu_s, engine.scorer.scored - before
    ledger = engine.ledger
    engine.close()
    pipe.send((scored, took_s, used_s, examine(ledger.path, ledger.verifier).ok))


def measure(watchers: int, device: str, seconds: float, fresh: float, folder: Path) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    start, pipes = context.Barrier(watchers), []
    for number in range(watchers):
        (folder / str(number)).mkdir()
        pipe, other = context.Pipe(duplex=False)
        words = (folder / str(number), device, seconds, fresh, number, start, other)
        context.Process(target=run_watcher, args=words, daemon=True).start()
        other.close()
        pipes.append(pipe)
    results = [pipe.recv() for pipe in pipes]
    return {
        "watchers": watchers,
        "events_per_s": round(sum(scored / took_s for scored, took_s, _, _ in results)),
        "cpu_us_per_event": round(sum(r[2] for r in results) / sum(r[0] for r in results) * 1e6, 1),
        "all_verify": all(ok for _, _, _, ok in results),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watchers", default="1,2", help="numbers of watchers, one after the other")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--fresh", type=float, default=10.0, help="new sentences per thousand events (default: 10)")
    parser.add_argument("--folder", type=Path, default=Path())
    args = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    for count in map(int, args.watchers.split(",")):
        with tempfile.TemporaryDirectory(dir=args.folder, prefix=".audit-") as temporary:
            row = measure(count, args.device, args.seconds, args.fresh, Path(temporary))
        print(json.dumps({"device": args.device, "fresh_per_thousand": args.fresh, **row}), flush=True)


if __name__ == "__main__":
    main()
