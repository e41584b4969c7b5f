"""What the machine is going through: load, clocks, heat. Written before and after every measurement."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ridgeline.machine.limits import quota_throttled
from ridgeline.machine.nvml import gpu_weather
from ridgeline.machine.sysfs import Tree


def weather(gpu_uuid: str | None = None) -> dict[str, Any]:
    """The state of this moment, ready for a record."""
    tree = Tree(Path("/"))
    clocks = [
        khz
        for cpu in sorted(os.sched_getaffinity(0))
        if (khz := tree.number(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"))
    ]
    gpu = gpu_weather(gpu_uuid) if gpu_uuid else None
    return {
        "load_average": os.getloadavg()[0],
        "cpu_mhz": round(sum(clocks) / len(clocks) / 1000) if clocks else None,
        "quota_throttled": quota_throttled(tree),
        "thermal_events": _thermal_events(tree),
        "gpu": asdict(gpu) if gpu else None,
    }


def _thermal_events(tree: Tree) -> int | None:
    """How often the CPUs slowed down for heat since boot, where the kernel counts it (x86)."""
    counts = [
        count
        for cpu in sorted(os.sched_getaffinity(0))
        if (count := tree.number(f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count")) is not None
    ]
    return sum(counts) if counts else None
