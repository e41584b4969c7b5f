"""Run a watcher for minutes: does it keep up, do waits and memory stay constant, and what follows for other rates?

    python benchmarks/audit_soak.py [--minutes 10] [--load 0.7 | --rate 300] [--fresh 10] [--known 0] [--batch 128]

Sends log-like events through ledger and scorer (as `audit watch` does, without its sources), at a fixed rate or at a
share of the capacity that it measures first. Every minute it reports the waits of the events: from the time an event
is due to the time its score is recorded. At the end it reports the waits of all events and a forecast for other rates.
On a shared machine the times are rough, but backlog and memory must not grow there either. `--known 30000` starts with
a log of 30,000 known sentences without encoding them: their vectors are random. Later sentences are encoded.
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
AHEAD, AT_ONCE = 1_024, 256  # most events in the backlog while the capacity is measured; events per call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--load", type=float, default=0.7, help="share of the capacity (default: 0.7)")
    load.add_argument("--rate", type=float, help="events per second, instead of a share of the capacity")
    parser.add_argument("--fresh", type=float, default=10.0, help="new sentences per thousand events (default: 10)")
    parser.add_argument(
        "--known", type=int, default=0, help="sentences known at the start, with random vectors (CPU only)"
    )
    parser.add_argument("--batch", type=int, help="most events scored together (default: that of the watcher)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, default=Path())
    arguments = parser.parse_args()
    if arguments.known and arguments.device != "cpu":
        parser.error(f"--known {arguments.known} needs --device cpu, not {arguments.device}.")
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # as `ridgeline audit watch` does, before torch is imported
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix=".audit-") as temporary:
        encode = RandomEncoder(make_encoder(MODEL, arguments.device)) if arguments.known else None
        engine = Ours(Path(temporary), MODEL, arguments.device, arguments.batch, encode=encode)
        lines = Lines(60, arguments.fresh)
        engine.send(lines.take(1_000))
        engine.settle()
        if encode is not None:
            teach_sentences(engine, lines, encode, arguments.known)
        capacity = measure_capacity(engine, lines)
        row = {"capacity_per_s": round(capacity), "fresh_per_thousand": arguments.fresh, "known": lines.fresh_count}
        print(json.dumps(row), flush=True)
        soak(engine, lines, arguments.rate or arguments.load * capacity, arguments.minutes)
        ledger = engine.ledger
        engine.close()
        report = examine(ledger.path, ledger.verifier)
        print(json.dumps({"verifies": report.ok, "entries": report.entries, "scored": engine.scorer.scored}))
        for prediction in forecast(capacity):
            wait = None if prediction.wait_s is None else round(prediction.wait_s * 1e3, 3)
            row = {"rate": prediction.what, "utilisation": round(prediction.utilisation, 6), "queue_ms": wait}
            print(json.dumps({**row, "backlog_per_hour": round(prediction.backlog_per_hour)}))


class RandomEncoder:
    """An encoder that returns random unit vectors while `answers_randomly` is set."""

    def __init__(self, encode: Encode) -> None:
        self._encode, self._rng, self.answers_randomly = encode, np.random.default_rng(1), False
        self._dim = encode(["ready"]).shape[1]

    def __call__(self, texts: list[str]) -> Vectors:
        if not self.answers_randomly:
            return self._encode(texts)
        vectors = self._rng.normal(size=(len(texts), self._dim)).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def teach_sentences(engine: Ours, lines: Lines, encode: RandomEncoder, known: int) -> None:
    """Send events, half of them with a new sentence, until `known` sentences are known."""
    encode.answers_randomly, lines.fresh, usual_fresh = True, 500.0, lines.fresh
    while lines.fresh_count < known:
        engine.send(lines.take(AT_ONCE))
        engine.settle()
    encode.answers_randomly, lines.fresh = False, usual_fresh


def measure_capacity(engine: Ours, lines: Lines) -> float:
    """Measure the events per second that the scorer sustains: the median of five stretches."""
    rates = []
    for _ in range(5):
        start_s, scored = time.perf_counter(), engine.scorer.scored
        while time.perf_counter() - start_s < STRETCH_S:
            if engine.given - engine.scorer.scored < AHEAD:
                engine.send(lines.take(AT_ONCE))
            else:
                time.sleep(0.0005)
        engine.settle()
        rates.append((engine.scorer.scored - scored) / (time.perf_counter() - start_s))
    return statistics.median(rates)


def soak(engine: Ours, lines: Lines, rate: float, minutes: float) -> None:
    waits: list[float] = []

    def on_recorded(piece: Any) -> None:
        now = time.time_ns()
        waits.extend((now - event["time"]) / 1e6 for event in piece.events if event["source"] == "bench")

    engine.scorer.on_recorded = on_recorded
    start_ns, sent, reported, minute = time.time_ns(), 0, 0, 0
    while (now := (time.time_ns() - start_ns) / 1e9) < minutes * 60:
        due = int(now * rate)
        if due > sent:
            events = lines.take(due - sent)
            for k, event in enumerate(events):
                event["time"] = start_ns + int((sent + k) / rate * 1e9)
            engine.send(events)
            sent = due
        if now // 60 > minute:
            minute, end = int(now // 60), len(waits)
            print_waits(engine, {"minute": minute}, waits[reported:end])
            reported = end
        time.sleep(0.002)
    engine.settle()
    engine.scorer.on_recorded = lambda piece: None
    print_waits(engine, {"minutes": round(minutes, 1), "rate_per_s": round(rate)}, waits)


def print_waits(engine: Ours, span: dict[str, Any], waits: list[float]) -> None:
    p50, p99, worst = (round(float(q), 1) for q in np.percentile(waits, [50, 99, 100]))
    row = {
        **span,
        "sent": engine.given,
        "scored": engine.scorer.scored,
        "wait_p50_ms": p50,
        "wait_p99_ms": p99,
        "wait_max_ms": worst,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
