"""Ceilings at a glance: those a study is held against, in seconds, by a process of its own.

    python -m ridgeline.machine.quick_ceilings cuda:0

The process that conducts a study never opens a GPU itself: a context there would lie beside every point it measures.
What is found so is not kept for the machine, since `ridgeline machine --ceilings` measures more, and longer.
"""

from __future__ import annotations

import json
import subprocess
import sys

from ridgeline.errors import RidgelineError
from ridgeline.machine.ceiling import Ceiling, Ceilings
from ridgeline.machine.hardware import Topology, topology
from ridgeline.machine.identity import fingerprint

PATIENCE_S = 180.0


def glance(device: str, on: Topology) -> Ceilings:
    """The ceilings of "cpu" or "cuda:N", measured now."""
    command = [sys.executable, "-m", "ridgeline.machine.quick_ceilings", device]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise RidgelineError(f"the ceilings of {device} took longer than {PATIENCE_S:g} s.") from None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode:
        said = lines[-1] if lines else f"exit code {done.returncode}"
        raise RidgelineError(f"the ceilings of {device} could not be measured: {said[:300]}")
    try:
        told = Ceilings.from_json(json.loads(done.stdout.splitlines()[-1]))  # libraries may have talked before
    except (ValueError, IndexError):
        told = None
    if told is None:
        raise RidgelineError(f"the ceilings of {device} could not be measured: no answer came.")
    return Ceilings(device, fingerprint(on), told.measured)


def main(device: str) -> None:
    here = topology()
    rows: list[Ceiling]
    if device == "cpu":
        from ridgeline.machine.cpu_ceiling import glance_cpu

        rows = glance_cpu(here, lambda _: None)
    else:
        from ridgeline.machine.gpu_ceiling import glance_gpu

        rows = glance_gpu(here, int(device.partition(":")[2]), lambda _: None)
    print(json.dumps(Ceilings(device, fingerprint(here), tuple(rows)).to_json()))


if __name__ == "__main__":
    main(sys.argv[1])
