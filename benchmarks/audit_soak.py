"""A watcher for minutes: does it keep up, do its waits and its memory stay, and what does that mean for other rates?

    python benchmarks/audit_soak.py [--minutes 10] [--load 0.7 | --rate 300] [--fresh 10] [--known 0] [--batch 128]

Sends log-like events through ledger and scorer (as `audit watch` does, without its sources), at a fixed rate or at a
share of the capacity it measured at the beginning. Reports every minute the waits of its events, from when they were
due to when their scores were recorded; at the end those of all of them, and a forecast for other rates. On a shared
machine the times are an impression; that backlog and memory do not grow holds there too. `--known 30000` begins where a
log with so many sentences stands, without the minutes it took: their vectors are drawn, all that comes is encoded.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.audit.ledger.verify import examine
from ridgeline.audit.watch.capacity import forecast
from ridgeline.audit.watch.meaning import Encode, Vectors, make_encoder
from ridgeline.cli import SPIN_COUNT
from ridgeline.workloads._audit_engine import Lines, Ours

STRETCH_S = 2.0
MODEL = "all-MiniLM-L6-v2"
AHEAD, AT_ONCE = 1_024, 256  # events that may wait while the capacity is measured; sent at a time


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--minutes", type=float, default=10.0)
    how = words.add_mutually_exclusive_group()
    how.add_argument("--load", type=float, default=0.7, help="share of the capacity")
    how.add_argument("--rate", type=float, help="events per second, instead of a share")
    words.add_argument("--fresh", type=float, default=10.0, help="never seen before, of a thousand")
    words.add_argument("--known", type=int, default=0, help="sentences it knows before; their vectors are drawn (CPU)")
    words.add_argument("--batch", type=int, help="events scored together, at most; as the watcher has it if not given")
    words.add_argument("--device", default="cpu")
    words.add_argument("--folder", type=Path, default=Path())
    asked = words.parse_args()
    if asked.known and asked.device != "cpu":
        words.error(f"--known {asked.known} goes with --device cpu, not with {asked.device}.")
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # as `ridgeline audit watch` does, before torch is imported
    with tempfile.TemporaryDirectory(dir=asked.folder, prefix=".audit-") as place:
        encode = Drawn(make_encoder(MODEL, asked.device)) if asked.known else None
        engine = Ours(Path(place), MODEL, asked.device, asked.batch, encode=encode)
        lines = Lines(60, asked.fresh)
        engine.send(lines.take(1_000))
        engine.settle()
        if encode is not None:
            acquaint(engine, lines, encode, asked.known)
        capacity = measured(engine, lines)
        row = {"capacity_per_s": round(capacity), "fresh_per_thousand": asked.fresh, "known": lines.made}
        print(json.dumps(row), flush=True)
        soak(engine, lines, asked.rate or asked.load * capacity, asked.minutes)
        ledger = engine.ledger
        engine.close()
        report = examine(ledger.path, ledger.verifier)
        print(json.dumps({"verifies": report.ok, "entries": report.entries, "scored": engine.scorer.scored}))
        for told in forecast(capacity):
            wait = None if told.wait_s is None else round(told.wait_s * 1e3, 3)
            row = {"rate": told.what, "utilisation": round(told.utilisation, 6), "queue_ms": wait}
            print(json.dumps({**row, "backlog_per_hour": round(told.backlog_per_hour)}))


class Drawn:
    """An encoder that answers by lot while it is told to."""

    def __init__(self, encode: Encode) -> None:
        self._encode, self._rng, self.by_lot = encode, np.random.default_rng(1), False
        self._dim = encode(["ready"]).shape[1]

    def __call__(self, texts: list[str]) -> Vectors:
        if not self.by_lot:
            return self._encode(texts)
        found = self._rng.normal(size=(len(texts), self._dim)).astype(np.float32)
        return found / np.linalg.norm(found, axis=1, keepdims=True)


def acquaint(engine: Ours, lines: Lines, encode: Drawn, known: int) -> None:
    """Every second sentence is new, until there were so many."""
    encode.by_lot, lines.fresh, usual = True, 500.0, lines.fresh
    while lines.made < known:
        engine.send(lines.take(AT_ONCE))
        engine.settle()
    encode.by_lot, lines.fresh = False, usual


def measured(engine: Ours, lines: Lines) -> float:
    """Events per second that it can go on with: sent as fast as they are scored, the median of five stretches."""
    found = []
    for _ in range(5):
        began, scored = time.perf_counter(), engine.scorer.scored
        while time.perf_counter() - began < STRETCH_S:
            if engine.given - engine.scorer.scored < AHEAD:
                engine.send(lines.take(AT_ONCE))
            else:
                time.sleep(0.0005)
        engine.settle()
        found.append((engine.scorer.scored - scored) / (time.perf_counter() - began))
    return statistics.median(found)


def soak(engine: Ours, lines: Lines, rate: float, minutes: float) -> None:
    waits: list[float] = []

    def on_recorded(piece: Any) -> None:
        now = time.time_ns()
        waits.extend((now - event["time"]) / 1e6 for event in piece.events if event["source"] == "bench")

    engine.scorer.on_recorded = on_recorded
    begin, sent, told, minute = time.time_ns(), 0, 0, 0
    while (now := (time.time_ns() - begin) / 1e9) < minutes * 60:
        due = int(now * rate)
        if due > sent:
            events = lines.take(due - sent)
            for k, event in enumerate(events):
                event["time"] = begin + int((sent + k) / rate * 1e9)
            engine.send(events)
            sent = due
        if now // 60 > minute:
            minute, upto = int(now // 60), len(waits)
            tell(engine, {"minute": minute}, waits[told:upto])
            told = upto
        time.sleep(0.002)
    engine.settle()
    engine.scorer.on_recorded = lambda piece: None
    tell(engine, {"minutes": round(minutes, 1), "rate_per_s": round(rate)}, waits)


def tell(engine: Ours, when: dict[str, Any], waits: list[float]) -> None:
    half, most, worst = (round(float(q), 1) for q in np.percentile(waits, [50, 99, 100]))
    row = {
        **when,
        "sent": engine.given,
        "scored": engine.scorer.scored,
        "wait_p50_ms": half,
        "wait_p99_ms": most,
        "wait_max_ms": worst,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
