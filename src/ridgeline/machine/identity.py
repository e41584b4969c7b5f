"""Which machine is this? A fingerprint to key caches and comparisons by, and the facts beside it.

The fingerprint tells kinds of machine apart, not single ones: two cloud instances of one type are the same
kind and may be compared. Memory size is left out, for it changes while a virtual machine runs.
"""

from __future__ import annotations

import hashlib
import json
import platform
from typing import Any

from ridgeline.machine.hardware import Topology, topology
from ridgeline.machine.nvml import driver_version


def fingerprint(on: Topology | None = None) -> str:
    """Sixteen hex digits of this kind of machine."""
    here = on or topology()
    kind = {
        "architecture": platform.machine(),
        "cpu": here.model,
        "usable_cpus": len(here.usable_cpus),
        "quota": here.limits.cpu_quota,
        "nodes": [[n.id, len(n.cpus)] for n in here.nodes],
        "caches": sorted({(c.level, c.bytes, len(c.cpus)) for c in here.caches}),
        "gpus": [g.name for g in here.gpus],
    }
    return hashlib.sha256(json.dumps(kind, sort_keys=True).encode()).hexdigest()[:16]


def facts(on: Topology | None = None) -> dict[str, Any]:
    """What a record should say about the machine it was made on."""
    here = on or topology()
    return {
        "fingerprint": fingerprint(here),
        "architecture": platform.machine(),
        "cpu": here.model,
        "usable_cpus": len(here.usable_cpus),
        "cpu_quota": here.limits.cpu_quota,
        "nodes": [
            {"id": n.id, "cpus": list(n.cpus), "memory_bytes": n.memory_bytes, "distances": n.distances}
            for n in here.nodes
        ],
        "llc_domains": [list(d) for d in here.llc_domains()],
        "memory_bytes": here.usable_memory_bytes,
        "gpus": [{"name": g.name, "link": g.link, "node": g.node, "memory_bytes": g.memory_bytes} for g in here.gpus],
        "nics": [{"name": n.name, "node": n.node, "speed": n.speed} for n in here.nics],
        "driver": driver_version(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
