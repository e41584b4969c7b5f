"""A ledger of ten million entries: time and memory to open it, to prove an entry and to verify it.

    python benchmarks/ledger_large.py [ENTRIES] [FOLDER]

Creates the log (some gigabytes, removed at the end), then measures each operation in a new process. On a shared machine
the times are rough. The result that counts: memory stays flat, and the time to open does not grow with the log.
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

MEASURE = """
import json, random, resource, statistics, sys, time
from ridgeline.audit import Ledger
path, what = sys.argv[1:]
Ledger.open(path).checkpoint()  # libraries are loaded before the clock runs
before, times_ns = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
rng = random.Random(0)
ledger = Ledger.open(path)
for _ in range({"open": 200, "prove": 500, "verify": 1}[what]):
    start_ns = time.perf_counter_ns()
    if what == "open":
        ledger = Ledger.open(path)
        size = ledger.size
    elif what == "prove":
        ledger.prove_inclusion(rng.randrange(ledger.size))
    else:
        ledger.verify()
    times_ns.append(time.perf_counter_ns() - start_ns)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = {"ms": statistics.median(times_ns) / 1e6, "worst_ms": max(times_ns) / 1e6}
report["growth_mib"] = (after - before) / 1024
print(json.dumps(report))
"""


def main(entries: int, folder: Path) -> None:
    temporary = Path(tempfile.mkdtemp(dir=folder, prefix=".ledger-"))
    try:
        path, peaks_mib = temporary / "log", []
        start_s = time.perf_counter()
        with Ledger.create(path, origin="bench.example/log") as ledger:
            for start in range(0, entries, 10_000):
                ledger.append([_event(i) for i in range(start, min(start + 10_000, entries))])
                if start in (entries // 2, entries - 10_000):
                    peaks_mib.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        seconds = time.perf_counter() - start_s
        print(f"{entries:,} entries appended in batches of 10,000 in {seconds:.0f} s, event creation included")
        print(f"the writer's peak memory: {peaks_mib[0]:.0f} MiB at half, {peaks_mib[-1]:.0f} MiB at the end")
        for what in ("open", "prove", "verify"):
            done = subprocess.run(
                [sys.executable, "-c", MEASURE, path, what], capture_output=True, text=True, check=True
            )
            report = json.loads(done.stdout)
            print(
                f"{what:7} median {report['ms']:.3f} ms, worst {report['worst_ms']:.3f} ms, "
                f"peak memory grows by {report['growth_mib']:.1f} MiB"
            )
            if what == "verify":
                print(f"        that is {entries / report['ms'] * 1000:,.0f} entries/s")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _event(i: int) -> dict[str, object]:
    return {
        "time": i,
        "source": "bench",
        "action": "network.ovs.bridge.create",
        "subject": f"br{i}",
        "attributes": {"n": i},
    }


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(int(arguments[0]) if arguments else 10_000_000, Path(arguments[1] if len(arguments) > 1 else "."))
