"""Events per second that the anomaly detector scores on one core, in CPU time (the machine may be shared).

    python benchmarks/audit_detector.py logs/Linux_2k.log

The encoder is left out: it runs once per template. Events: the lines of the file, five times, and synthetic events with
few templates. Embeddings are random, but equal texts have equal embeddings.
"""

from __future__ import annotations

import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.audit.anomaly.detector import Detector

BATCH = 256


def embed(texts: list[str]) -> Any:
    rows = np.array([np.random.default_rng(zlib.crc32(t.encode())).standard_normal(384) for t in texts], np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def read_events(path: Path) -> list[dict[str, Any]]:
    texts = path.read_text(errors="replace").splitlines() * 5
    return [
        {"time": 10**18 + i * 10**8, "source": "lines", "action": "log.line", "subject": line}
        for i, line in enumerate(texts)
    ]


def make_events(count: int) -> list[dict[str, Any]]:
    return [
        {
            "time": 10**18 + i * 10**9,
            "source": "host",
            "actor": ("root", "deploy", "ann")[i % 3],
            "action": ("unit.start", "file.read", "user.login")[i * i % 3],
            "subject": f"web{i % 7}.service",
            "attributes": {"pid": i},
        }
        for i in range(count)
    ]


def main() -> None:
    sets = {f"{p} ×5": read_events(Path(p)) for p in sys.argv[1:]} | {"synthetic": make_events(10_000)}
    for name, events in sets.items():
        detector, start = Detector(embed), time.process_time()
        for at in range(0, len(events), BATCH):
            piece = events[at : at + BATCH]
            detector.score(piece, range(at, at + len(piece)))
            detector.end_sessions(piece[-1]["time"])
        seconds = time.process_time() - start
        rate = len(events) / seconds
        print(f"{name}: {len(events):,} events, {len(detector.miner):,} templates, {rate:,.0f} events/s of CPU time")


if __name__ == "__main__":
    main()
