"""Ceilings: how fast this machine can move bytes and multiply, measured, so that every result has a limit.

    ridgeline machine --ceilings          (cached per kind of machine; --fresh measures again)

`measure_quick_ceilings` measures fewer ceilings, in seconds, in a separate process:

    python -m ridgeline.machine.ceiling_measurement cuda:0
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from ridgeline.errors import RidgelineError, StoreError, unknown
from ridgeline.machine.ceiling_types import Ceiling, Ceilings, Progress
from ridgeline.machine.hardware import Topology, topology
from ridgeline.machine.identity import fingerprint
from ridgeline.store import publish

QUICK_TIMEOUT_S = 180.0


def ceilings(
    device: str = "cpu", *, fresh: bool = False, progress: Progress | None = None, on: Topology | None = None
) -> Ceilings:
    """Return the ceilings of this machine, from the cache or measured now (under a minute).

    device    "cpu", "cuda" or "cuda:N"
    fresh     measure again even if the cache has an answer
    progress  called with one line of text before each measurement
    on        the topology of this machine, if the caller has read it already

    Raises InputError for a device that does not exist and MissingExtra when a GPU is measured without torch.
    """
    machine = on or topology()
    if device == "cuda":
        device = "cuda:0"
    if device != "cpu" and not (device.startswith("cuda:") and device[5:].isdecimal()):
        raise unknown("device", device, ["cpu", "cuda", "cuda:N"])
    if device != "cpu":
        machine.gpu(int(device[5:]))
    cached = None if fresh else _read_cache(cache_path(machine, device))
    if cached is not None:
        return cached
    report = progress or (lambda _: None)
    if device == "cpu":
        from ridgeline.machine.ceiling_cpu import measure_cpu

        rows = measure_cpu(machine, report)
    else:
        from ridgeline.machine.ceiling_gpu import measure_gpu

        rows = measure_gpu(machine, int(device[5:]), report)
    measured = Ceilings(device, fingerprint(machine), tuple(rows))
    _write_cache(measured, machine)
    return measured


def read_cached_ceilings(device: str, on: Topology | None = None) -> Ceilings | None:
    """Return the ceilings of an earlier measurement on this kind of machine, or None. Measures nothing."""
    return _read_cache(cache_path(on or topology(), "cuda:0" if device == "cuda" else device))


def remeasure_ceiling(known: Ceilings, ceiling: Ceiling, on: Topology) -> Ceilings:
    """Measure one ceiling again, keep the higher value, and return all ceilings of the device.

    A ceiling that was measured on a busy machine is too low, and results would exceed it. The race of a case starts
    with this call, so that the ceiling and the result are measured under the same load.
    """
    if known.device == "cpu":
        from ridgeline.machine.ceiling_cpu import remeasure_cpu

        latest = remeasure_cpu(ceiling, on)
    else:
        from ridgeline.machine.ceiling_gpu import remeasure_gpu

        latest = remeasure_gpu(ceiling, int(known.device[5:]))
    if latest is None or latest.value <= ceiling.value:
        return known
    rows = tuple(latest if c == ceiling else c for c in known.measured)
    higher = Ceilings(known.device, known.fingerprint, rows)
    _write_cache(higher, on)
    return higher


def measure_quick_ceilings(device: str, on: Topology) -> Ceilings:
    """Measure the ceilings that a study needs, in seconds: `device` is "cpu" or "cuda:N".

    A separate process measures, because a CUDA context in the calling process would take memory beside every point
    of the study. The cache is not written: `ridgeline machine --ceilings` measures more ceilings, and longer.
    """
    command = [sys.executable, "-m", "ridgeline.machine.ceiling_measurement", device]
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=QUICK_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise RidgelineError(f"the ceilings of {device} took longer than {QUICK_TIMEOUT_S:g} s.") from None
    lines = [line for line in process.stderr.splitlines() if line.strip()]
    if process.returncode:
        reason = lines[-1] if lines else f"exit code {process.returncode}"
        raise RidgelineError(f"the ceilings of {device} could not be measured: {reason[:300]}")
    try:
        # Libraries may print lines before the answer.
        answer = Ceilings.from_json(json.loads(process.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        answer = None
    if answer is None:
        raise RidgelineError(f"the ceilings of {device} could not be measured: the process gave no answer.")
    return Ceilings(device, fingerprint(on), answer.measured)


def main(device: str) -> None:
    """Print the quick ceilings of a device as one line of JSON."""
    machine = topology()
    rows: list[Ceiling]
    if device == "cpu":
        from ridgeline.machine.ceiling_cpu import measure_cpu_quickly

        rows = measure_cpu_quickly(machine, lambda _: None)
    else:
        from ridgeline.machine.ceiling_gpu import measure_gpu_quickly

        rows = measure_gpu_quickly(machine, int(device.partition(":")[2]), lambda _: None)
    print(json.dumps(Ceilings(device, fingerprint(machine), tuple(rows)).to_json()))


def cache_path(on: Topology, device: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "ridgeline" / "ceilings" / f"{fingerprint(on)}-{device.replace(':', '')}.json"


def _write_cache(measured: Ceilings, on: Topology) -> None:
    path = cache_path(on, measured.device)
    # Where nothing can be written (a read-only home, a full disk), the measurement is valid all the same.
    with suppress(OSError, StoreError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with publish(path) as temporary:
            temporary.write_text(json.dumps(measured.to_json(), indent=1))


def _read_cache(path: Path) -> Ceilings | None:
    """Return None when the file is missing, damaged or has another schema: the caller then measures again."""
    try:
        return Ceilings.from_json(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    main(sys.argv[1])
