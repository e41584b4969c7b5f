"""A watcher for minutes: does it keep up, do its waits and its memory stay, and what does that mean for other rates?

    python benchmarks/audit_soak.py [--minutes 10] [--rate 300] [--fresh 10] [--device cpu]

Sends log-like events at a fixed rate through ledger and scorer (as `audit watch` does, without its sources), reports
every minute, and forecasts from the capacity it measured at the beginning. On a shared machine the times are an
impression; that backlog and memory do not grow is what this is about.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from ridgeline.audit.capacity import forecast
from ridgeline.audit.verify import examine
from ridgeline.workloads._audit_engine import Lines, Ours


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--minutes", type=float, default=10.0)
    words.add_argument("--rate", type=float, default=300.0, help="events per second")
    words.add_argument("--fresh", type=float, default=10.0, help="never seen before, of a thousand")
    words.add_argument("--device", default="cpu")
    words.add_argument("--folder", type=Path, default=Path())
    asked = words.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder, prefix=".audit-") as place:
        engine, lines = Ours(Path(place), "all-MiniLM-L6-v2", asked.device, 512), Lines(60, asked.fresh)
        engine.send(lines.take(1_000))
        engine.settle()
        capacity = measured(engine, lines)
        print(json.dumps({"capacity_per_s": round(capacity), "fresh_per_thousand": asked.fresh}), flush=True)
        soak(engine, lines, asked.rate, asked.minutes)
        ledger = engine.ledger
        engine.close()
        report = examine(ledger.path, ledger.verifier)
        print(json.dumps({"verifies": report.ok, "entries": report.entries, "scored": engine.scorer.scored}))
        for told in forecast(capacity):
            wait = None if told.wait_s is None else round(told.wait_s * 1e3, 3)
            row = {"rate": told.what, "utilisation": round(told.utilisation, 6), "queue_ms": wait}
            print(json.dumps({**row, "backlog_per_hour": round(told.backlog_per_hour)}))


def measured(engine: Ours, lines: Lines) -> float:
    """Events per second, the best of three."""
    found = []
    for _ in range(3):
        events = lines.take(2_000)
        began = time.perf_counter()
        engine.send(events)
        engine.settle()
        found.append(len(events) / (time.perf_counter() - began))
    return max(found)


def soak(engine: Ours, lines: Lines, rate: float, minutes: float) -> None:
    begin, sent, minute = time.monotonic(), 0, 0
    engine.scorer.waits.clear()
    while (now := time.monotonic() - begin) < minutes * 60:
        due = int(now * rate)
        if due > sent:
            engine.send(lines.take(due - sent))
            sent = due
        if now // 60 > minute:
            minute = int(now // 60)
            tell(engine, minute)
        time.sleep(0.005)
    engine.settle()
    tell(engine, minutes)


def tell(engine: Ours, minute: float) -> None:
    waits = np.array(engine.scorer.waits)
    row = {
        "minute": round(minute, 1),
        "sent": engine.given,
        "scored": engine.scorer.scored,
        "wait_p50_ms": round(float(np.percentile(waits, 50)) * 1e3, 1),
        "wait_p99_ms": round(float(np.percentile(waits, 99)) * 1e3, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
