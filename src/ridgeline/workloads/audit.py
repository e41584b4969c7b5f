"""`audit`: record an event, encode and score it, record its score.

    ridgeline bench audit --case stage=stream,events=2000,fresh=10

stage    stream    `events` at once; done when the last score is in the ledger
                   (extras["stages_ns"]: the time of each stage)
         load      the same events one by one, at 70 % of the rate that `stream` reached just before; the record has
                   the waits
stock    number of different sentences that repeat (their numbers change)
fresh    new sentences per thousand events: the encoder encodes each of them

Files go to the current folder, or to the folder RIDGELINE_DISK. The model is the default encoder. The compulsory work
is the encoder's operations for the new sentences, and the bytes of the entries.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.lab import OURS, Case, Check, Profile, Run, Steps, Work, installed
from ridgeline.machine import Placement
from ridgeline.workloads._stages import MAX_STEPS, collect_stages
from ridgeline.workloads.trajectory import on_device

AHEAD = 4  # sets of events drawn before the clock runs; a step and its warm-up use one or two each
BASE: dict[str, Any] = {"stage": "stream", "events": 2_000, "stock": 60, "fresh": 10, "batch": 128}
STAGES = ("stream", "load")
MANY = 20_000  # events of a step on a GPU: about one second of work
SHARE = 0.7  # share of the capacity at which waits are measured
EVERY = "every event encoded"
MODEL = "all-MiniLM-L6-v2"
EVENT_BYTES = 200
TOKENS = 18  # of an average sentence: 6·(L·(8·384² + 4·384·1536) + 4·L²·384) operations
FLOPS = 6 * (TOKENS * (8 * 384**2 + 4 * 384 * 1536) + 4 * TOKENS**2 * 384)
_PEER_MOST = 256  # most events for the peer: it needs seconds for them on a CPU


class AuditWorkload:
    name = "audit"
    weight = 2.0
    devices = ("cpu", "cuda")
    note = (
        "An event is on the disk before it is scored. A sentence is encoded only once, so the rate depends on the "
        "number of new sentences per thousand events (`fresh`)."
    )

    def cases(self, profile: Profile) -> Iterable[Case]:
        if not installed("cryptography") or not installed("torch"):
            return []
        cpu: list[dict[str, Any]] = [{}, {"events": 32}, {"stage": "load"}]
        gpu: list[dict[str, Any]] = [{}, {"events": _PEER_MOST}, {"stage": "load"}]
        if profile is Profile.FULL:
            cpu += [{"events": _PEER_MOST}]
            more: list[dict[str, Any]] = [{"fresh": n} for n in (0, 1, 100)] + [{"batch": n} for n in (32, 512, 2_048)]
            more += [{"stage": "load", "fresh": 1}]
            cpu, gpu = cpu + more, gpu + more
        cases = [Case({**BASE, **change}, "cpu") for change in cpu]
        large = {**BASE, "events": MANY, "batch": 512}
        return cases + [Case({**large, **change}, "cuda") for change in gpu if change != {"batch": 512}]

    def work(self, case: Case) -> Work:
        fresh = case["events"] * case["fresh"] / 1000
        return Work(case["events"], "events", flops=fresh * FLOPS, bytes={"memory": case["events"] * EVENT_BYTES})

    def contenders(self, case: Case) -> Sequence[str]:
        if case["stage"] not in STAGES:
            raise InputError(f"stage is '{case['stage']}'; there are: {', '.join(STAGES)}.")
        return [OURS, EVERY] if case["stage"] == "stream" and case["events"] <= _PEER_MOST else [OURS]

    def libraries(self, case: Case, contender: str) -> Sequence[str]:
        return ("torch", "ridgeline.workloads._audit_engine")

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        from ridgeline.workloads._audit_engine import EveryEvent, Lines, Ours

        folder = Path(tempfile.mkdtemp(dir=os.environ.get("RIDGELINE_DISK", "."), prefix=".audit-"))
        try:
            device = on_device(case, place)
            engine: Any = (
                Ours(folder, MODEL, device, case["batch"]) if contender == OURS else EveryEvent(folder, MODEL, device)
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        lines, drawn, extras = Lines(case["stock"], case["fresh"]), list[list[Any]](), dict[str, Any]()
        stage_times: deque[Mapping[str, int]] = deque(maxlen=MAX_STEPS)
        # Learn the stock before the clock runs; the peer only needs something to compare with.
        engine.send(lines.take(500 if contender == OURS else case["stock"]))
        engine.settle()

        def take() -> list[Any]:
            """Return unused events: if sent twice, their sentences would not be new."""
            return drawn.pop() if drawn else lines.take(case["events"])

        def reset() -> None:
            drawn.extend(lines.take(case["events"]) for _ in range(AHEAD - len(drawn)))

        def stream() -> None:
            events, before = take(), engine.stage_ns if contender == OURS else None
            engine.send(events)
            engine.settle()
            if before is not None:
                stage_times.append(engine.stage_ns - before)

        def leave() -> None:
            engine.close()
            shutil.rmtree(folder, ignore_errors=True)

        def result() -> Callable[[], tuple[bool, str]]:
            size, last = engine.ledger.checkpoint().size, engine.scorer.position if contender == OURS else 0
            ok = engine.scorer.scored == engine.given if contender == OURS else engine.scored == engine.given
            return lambda: (ok and size >= engine.given and last <= size, "every event recorded and scored")

        step = stream if case["stage"] == "stream" else _under_load(engine, take, extras)
        settings = {"model": MODEL, **({"batch": case["batch"], "wait_ms": 2.0} if contender == OURS else {})}

        def report_extras() -> dict[str, Any]:
            return {**extras, **({"stages_ns": collect_stages(stage_times)} if stage_times else {})}

        return Steps(step, result, reset, leave, settings, report_extras)

    def check(self, case: Case, result: Callable[[], tuple[bool, str]]) -> Check:
        ok, message = result()
        return Check(ok, 0.0 if ok else 1.0, {}, message)


def _under_load(engine: Any, take: Callable[[], list[Any]], extras: dict[str, Any]) -> Callable[[], None]:
    """Send events at 70 % of capacity; the wait of an event is from its scheduled time to its recorded score.

    The extras cover the events of all steps; capacity and rate are medians over the steps.
    """
    waits, capacities = list[float](), list[float]()

    def step() -> None:
        more, events = take(), take()
        start_s = time.perf_counter()
        engine.send(more)
        engine.settle()
        capacity = len(events) / (time.perf_counter() - start_s)
        rate = SHARE * capacity
        capacities.append(capacity)

        def on_recorded(piece: Any) -> None:
            now = time.time_ns()
            waits.extend((now - event["time"]) / 1e9 for event in piece.events if event["source"] == "bench")

        engine.scorer.on_recorded = on_recorded
        start, sent = time.time_ns(), 0
        while sent < len(events):
            due = min(len(events), int((time.time_ns() - start) / 1e9 * rate) + 1)
            for k in range(sent, due):
                events[k]["time"] = start + int(k / rate * 1e9)
            if due > sent:
                engine.send(events[sent:due])
                sent = due
            else:
                time.sleep(0.0005)
        engine.settle()
        engine.scorer.on_recorded = lambda piece: None
        wait_s = np.array(waits)
        extras.update(
            capacity_per_s=float(np.median(capacities)),
            load_per_s=SHARE * float(np.median(capacities)),
            waits=len(wait_s),
            wait_p50_ms=float(np.percentile(wait_s, 50) * 1e3),
            wait_p99_ms=float(np.percentile(wait_s, 99) * 1e3),
        )

    return step


workload = AuditWorkload()
