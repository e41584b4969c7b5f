"""What can make a machine slower than its model: clocks, ECC, PCIe, NUMA, huge pages, heat, cgroup, other programs.

`find_causes` reads sysfs and procfs (live or recorded) and NVML. It reports what it found, not a guess: each cause
names the setting, its value, and what to do.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ridgeline.machine.hardware import Topology
from ridgeline.machine.limits import count_quota_throttles
from ridgeline.machine.nvml import GpuSettings
from ridgeline.machine.sysfs import Tree

CPUS = "sys/devices/system/cpu"
PCI = "sys/bus/pci/devices"
MEMORY, COMPUTE, LINK, GPU_MEMORY, GPU_COMPUTE = "memory", "compute", "link", "gpu memory", "gpu compute"
BUSY_GPU = 10  # percent of its time; an idle GPU has 0
RATES = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5, "32.0": 5, "64": 6, "64.0": 6}


@dataclass(frozen=True)
class Cause:
    """One reason why a value may be low."""

    what: str  # governor turbo heat cgroup load thp numa virtual pcie ecc clocks power throttle mig
    affects: tuple[str, ...]
    text: str  # a sentence: the state, and what to do


def find_causes(tree: Tree, machine: Topology, gpu: GpuSettings | None = None, index: int | None = None) -> list[Cause]:
    """Return what this machine shows that can slow it down; with `index` also for that GPU.

    gpu  the settings that NVML reports, None without NVML
    """
    causes = [*_check_clocks(tree, machine), *_check_limits(tree, machine), *_check_memory(tree, machine)]
    if index is not None:
        causes += _check_link(tree, machine, index)
        causes += _check_gpu(gpu) if gpu else []
    return causes


def _check_clocks(tree: Tree, machine: Topology) -> list[Cause]:
    causes = []
    governors = {
        text for cpu in machine.usable_cpus if (text := tree.text(CPUS, f"cpu{cpu}", "cpufreq", "scaling_governor"))
    }
    slow = sorted(governors - {"performance"})
    if slow:
        text = f"governor: {', '.join(slow)}; cpupower frequency-set -g performance keeps the clock high"
        causes.append(Cause("governor", (MEMORY, COMPUTE, LINK), text))
    if tree.number(CPUS, "intel_pstate", "no_turbo") == 1 or tree.number(CPUS, "cpufreq", "boost") == 0:
        causes.append(Cause("turbo", (COMPUTE, MEMORY), "turbo is off (intel_pstate/no_turbo or cpufreq/boost)"))
    events = sum(
        tree.number(CPUS, f"cpu{cpu}", "thermal_throttle", "core_throttle_count") or 0 for cpu in machine.usable_cpus
    )
    if events:
        text = f"heat: the CPUs were slowed down {events:,} times since the start; check the cooling"
        causes.append(Cause("heat", (COMPUTE, MEMORY), text))
    return causes


def _check_limits(tree: Tree, machine: Topology) -> list[Cause]:
    causes = []
    quota, cpus = machine.limits.cpu_quota, len(machine.usable_cpus)
    if quota is not None and quota < cpus:
        throttles = count_quota_throttles(tree)
        counted = f", which stopped it {throttles:,} times" if throttles else ""
        text = f"cgroup: a quota of {quota:g} CPUs on {cpus}{counted}; raise cpu.max, or ask for more CPUs"
        causes.append(Cause("cgroup", (MEMORY, COMPUTE, LINK), text))
    load = _read_load(tree)
    if load is not None and load > max(1.0, 0.5 * cpus):
        text = f"load: {load:.1f} on {cpus} CPUs; stop other programs and measure again with --fresh"
        causes.append(Cause("load", (MEMORY, COMPUTE, LINK), text))
    if re.search(r"^flags\s*:.*\bhypervisor\b", tree.text("proc/cpuinfo") or "", re.MULTILINE):
        text = "virtual machine: its neighbours share caches, memory channels and the turbo clock"
        causes.append(Cause("virtual", (MEMORY, COMPUTE), text))
    return causes


def _check_memory(tree: Tree, machine: Topology) -> list[Cause]:
    causes = []
    pages = tree.text("sys/kernel/mm/transparent_hugepage/enabled") or ""
    if "[never]" in pages:
        text = "huge pages: transparent_hugepage is never; 'madvise' or 'always' saves misses of the TLB"
        causes.append(Cause("thp", (MEMORY, COMPUTE), text))
    if len(machine.memory_nodes) > 1 and (tree.number("proc/sys/kernel/numa_balancing") or 0) > 0:
        text = "NUMA: automatic balancing moves pages while programs run; bind them (ridgeline machine --plan)"
        causes.append(Cause("numa", (MEMORY, LINK), text))
    nodes = {cpu.node for cpu in machine.cpus if cpu.usable}
    barred = [n.id for n in machine.nodes if n.id in nodes and n.id not in machine.memory_nodes and n.memory_bytes]
    if barred and machine.limits.memory_nodes is not None:
        names = ", ".join(map(str, barred))
        text = f"NUMA: this process may not use the memory of its own node {names} (cpuset.mems)"
        causes.append(Cause("numa", (MEMORY, LINK), text))
    return causes


def _check_link(tree: Tree, machine: Topology, index: int) -> list[Cause]:
    gpu, causes = machine.gpu(index), []
    width, most = (tree.number(PCI, gpu.pci, name) for name in ("current_link_width", "max_link_width"))
    if width and most and 0 < width < most:
        text = f"PCIe: {width} of {most} lanes are in use; reseat the card, and check the slot and the riser"
        causes.append(Cause("pcie", (LINK,), text))
    now, best = (_read_generation(tree, gpu.pci, name) for name in ("current_link_speed", "max_link_speed"))
    if now and best and now < best:
        text = f"PCIe: generation {now} of {best}; normal at rest, a fault if it stays so during transfers"
        causes.append(Cause("pcie", (LINK,), text))
    if len(machine.memory_nodes) > 1 and gpu.node is None:
        text = f"NUMA: the firmware does not say which node is near GPU {index}; compare the nodes in --ceilings"
        causes.append(Cause("numa", (LINK,), text))
    return causes


def _check_gpu(gpu: GpuSettings) -> list[Cause]:
    causes = []
    if gpu.mig:
        text = "MIG is on: an instance has a part of the processors and of the memory"
        causes.append(Cause("mig", (GPU_MEMORY, GPU_COMPUTE, LINK), text))
    if gpu.ecc and not gpu.hbm:
        text = "ECC is on: on GDDR memory it takes 6 to 10 % of the bandwidth"
        causes.append(Cause("ecc", (GPU_MEMORY,), text))
    if gpu.power_limit_w and gpu.default_power_w and gpu.power_limit_w < 0.98 * gpu.default_power_w:
        text = f"power: limited to {gpu.power_limit_w:.0f} of {gpu.default_power_w:.0f} W (nvidia-smi -pl)"
        causes.append(Cause("power", (GPU_COMPUTE, GPU_MEMORY), text))
    for name, now, usual, affects in (
        ("sm", gpu.application_sm_mhz, gpu.default_sm_mhz, GPU_COMPUTE),
        ("memory", gpu.application_memory_mhz, gpu.default_memory_mhz, GPU_MEMORY),
    ):
        if now and usual and now < 0.98 * usual:
            text = f"clocks: the {name} clock is set to {now} of {usual} MHz (nvidia-smi -rac resets it)"
            causes.append(Cause("clocks", (affects,), text))
    if gpu.throttle_reasons:
        text = f"throttle: {', '.join(gpu.throttle_reasons)}; check the cooling and the power supply"
        causes.append(Cause("throttle", (GPU_COMPUTE, GPU_MEMORY), text))
    if gpu.busy_percent and gpu.busy_percent > BUSY_GPU:
        text = f"load: other programs used the GPU for {gpu.busy_percent} % of its time before the measurement"
        causes.append(Cause("load", (GPU_COMPUTE, GPU_MEMORY, LINK), text))
    return causes


def _read_load(tree: Tree) -> float | None:
    if tree.live:
        return os.getloadavg()[0]
    words = (tree.text("proc/loadavg") or "").split()
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def _read_generation(tree: Tree, pci: str, name: str) -> int | None:
    match = re.match(r"([\d.]+) GT/s", tree.text(PCI, pci, name) or "")
    return RATES.get(match[1]) if match else None
