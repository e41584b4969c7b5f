"""A ledger of ten million entries: opening, proving, verifying, and the memory they take.

    python benchmarks/ledger_large.py [ENTRIES] [FOLDER]

Makes the log (some gigabytes, removed at the end), then asks each question in a fresh process. On a shared machine the
times are an impression; that memory stays flat and opening does not grow is what this is about.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ridgeline.audit import Ledger

ASK = """
import json, random, resource, statistics, sys, time
from ridgeline.audit import Ledger
path, what = sys.argv[1:]
Ledger.open(path).checkpoint()  # libraries are loaded before the clock runs
before, found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
rng = random.Random(0)
ledger = Ledger.open(path)
for _ in range({"open": 200, "prove": 500, "verify": 1}[what]):
    began = time.perf_counter_ns()
    if what == "open":
        ledger = Ledger.open(path)
        size = ledger.size
    elif what == "prove":
        ledger.prove_inclusion(rng.randrange(ledger.size))
    else:
        ledger.verify()
    found.append(time.perf_counter_ns() - began)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
told = {"ms": statistics.median(found) / 1e6, "worst_ms": max(found) / 1e6, "grown_mib": (after - before) / 1024}
print(json.dumps(told))
"""


def main(entries: int, folder: Path) -> None:
    place = Path(tempfile.mkdtemp(dir=folder, prefix=".ledger-"))
    try:
        path, half = place / "log", []
        began = time.perf_counter()
        with Ledger.create(path, origin="bench.example/log") as ledger:
            for start in range(0, entries, 10_000):
                ledger.append([_event(i) for i in range(start, min(start + 10_000, entries))])
                if start in (entries // 2, entries - 10_000):
                    half.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        seconds = time.perf_counter() - began
        print(f"{entries:,} entries appended in batches of 10,000 in {seconds:.0f} s, events made included")
        print(f"the writer's peak memory: {half[0]:.0f} MiB at half, {half[-1]:.0f} MiB at the end")
        for what in ("open", "prove", "verify"):
            done = subprocess.run([sys.executable, "-c", ASK, path, what], capture_output=True, text=True, check=True)
            told = json.loads(done.stdout)
            print(
                f"{what:7} median {told['ms']:.3f} ms, worst {told['worst_ms']:.3f} ms, "
                f"peak memory grown by {told['grown_mib']:.1f} MiB"
            )
            if what == "verify":
                print(f"        that is {entries / told['ms'] * 1000:,.0f} entries/s")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _event(i: int) -> dict[str, object]:
    return {
        "time": i,
        "source": "bench",
        "action": "network.ovs.bridge.create",
        "subject": f"br{i}",
        "attributes": {"n": i},
    }


if __name__ == "__main__":
    words = sys.argv[1:]
    main(int(words[0]) if words else 10_000_000, Path(words[1] if len(words) > 1 else "."))
