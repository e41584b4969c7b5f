"""What the machine is going through: load, clocks, heat. Written before and after every measurement."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
        "gpu": asdict(gpu) if gpu else None,
    }
