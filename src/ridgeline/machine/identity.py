"""The identity of a machine: a fingerprint for caches and comparisons, and a description for records.

A fingerprint identifies a kind of machine, not a single one: two cloud instances of one type have the same
fingerprint and may be compared. Memory size is not part of it, because it changes while a virtual machine runs.
"""

from __future__ import annotations

import hashlib
import json
import platform
from typing import Any

from ridgeline.machine.hardware import Topology, topology
from ridgeline.machine.nvml import read_driver_version


def fingerprint(on: Topology | None = None) -> str:
    """Return sixteen hex digits that identify this kind of machine, or the kind of `on`."""
    machine = on or topology()
    kind = {
        "architecture": platform.machine(),
        "cpu": machine.model,
        "usable_cpus": len(machine.usable_cpus),
        "quota": machine.limits.cpu_quota,
        "nodes": [[n.id, len(n.cpus)] for n in machine.nodes],
        "caches": sorted({(c.level, c.bytes, len(c.cpus)) for c in machine.caches}),
        "gpus": [g.name for g in machine.gpus],
    }
    return hashlib.sha256(json.dumps(kind, sort_keys=True).encode()).hexdigest()[:16]


def describe_machine(on: Topology | None = None) -> dict[str, Any]:
    """Return the description of this machine, or of `on`, that a record holds, as JSON values."""
    machine = on or topology()
    return {
        "fingerprint": fingerprint(machine),
        "architecture": platform.machine(),
        "cpu": machine.model,
        "usable_cpus": len(machine.usable_cpus),
        "cpu_quota": machine.limits.cpu_quota,
        "nodes": [
            {"id": n.id, "cpus": list(n.cpus), "memory_bytes": n.memory_bytes, "distances": n.distances}
            for n in machine.nodes
        ],
        "llc_domains": [list(d) for d in machine.llc_domains()],
        "memory_bytes": machine.usable_memory_bytes,
        "gpus": [
            {"name": g.name, "link": g.link, "node": g.node, "memory_bytes": g.memory_bytes} for g in machine.gpus
        ],
        "nics": [{"name": n.name, "node": n.node, "speed": n.speed} for n in machine.nics],
        "driver": read_driver_version(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
