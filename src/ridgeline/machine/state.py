"""The state of the machine: load, clocks, heat. The lab records it before and after every measurement."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ridgeline.machine.limits import count_quota_throttles
from ridgeline.machine.nvml import read_gpu_state
from ridgeline.machine.sysfs import Tree


def read_machine_state(gpu_uuid: str | None = None) -> dict[str, Any]:
    """Return load, clocks (MHz) and throttle counts of the CPUs, and the state of one GPU, as JSON values."""
    tree = Tree(Path("/"))
    clocks = [
        khz
        for cpu in sorted(os.sched_getaffinity(0))
        if (khz := tree.number(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"))
    ]
    gpu = read_gpu_state(gpu_uuid) if gpu_uuid else None
    return {
        "load_average": os.getloadavg()[0],
        "cpu_mhz": round(sum(clocks) / len(clocks) / 1000) if clocks else None,
        "quota_throttled": count_quota_throttles(tree),
        "thermal_events": _count_thermal_events(tree),
        "gpu": asdict(gpu) if gpu else None,
    }


def _count_thermal_events(tree: Tree) -> int | None:
    """How often heat has slowed the CPUs down since boot; None where the kernel does not count it (not x86)."""
    counts = [
        count
        for cpu in sorted(os.sched_getaffinity(0))
        if (count := tree.number(f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count")) is not None
    ]
    return sum(counts) if counts else None
