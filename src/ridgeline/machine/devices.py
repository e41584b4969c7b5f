"""GPUs and network cards: what they are and which node they hang from.

The node of a PCI device comes from sysfs. Its `numa_node` of −1 means the firmware did not say; that is
kept as None and said so, never taken for node 0. (`nvmlDeviceGetNumaNodeId` answers another question: it
names the node a GPU's own memory forms on Grace and POWER machines.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ridgeline.machine.nvml import NvmlGpu, installed_gpus
from ridgeline.machine.sysfs import CpuSet, Tree

PCI = "sys/bus/pci/devices"
NODE = "sys/devices/system/node/node"
NET = "sys/class/net"
RDMA = "sys/class/infiniband"
GPU_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD"}
ARM_CORES = {
    ("0x41", "0xd0c"): "ARM Neoverse-N1",
    ("0x41", "0xd40"): "ARM Neoverse-V1",
    ("0x41", "0xd49"): "ARM Neoverse-N2",
    ("0x41", "0xd4f"): "ARM Neoverse-V2",
    ("0x41", "0xd84"): "ARM Neoverse-V3",
    ("0x41", "0xd8e"): "ARM Neoverse-N3",
    ("0x48", "0xd01"): "HiSilicon Kunpeng-920",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0x46", "0x001"): "Fujitsu A64FX",
}


@dataclass(frozen=True)
class Gpu:
    index: int  # as CUDA numbers it in this process
    uuid: str | None
    name: str
    pci: str
    node: int | None  # None: the firmware does not say
    cpus: tuple[int, ...]  # CPUs the kernel calls local
    memory_bytes: int | None
    link: str | None  # "PCIe 5.0 x16"


@dataclass(frozen=True)
class Nic:
    name: str
    pci: str | None
    node: int | None
    speed: int | None  # Mbit/s; None when the link is down or the driver does not say


def gpus(tree: Tree, owner: Mapping[int, int], notes: list[str]) -> tuple[Gpu, ...]:
    """The GPUs this process sees, in CUDA's order; `owner` maps CPUs to nodes."""
    if not tree.live:
        found = _recorded_gpus(tree, owner)
    else:
        seen = visible(installed_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        found = [_from_nvml(tree, owner, i, gpu) for i, gpu in enumerate(seen)]
        if len({g.name for g in found}) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            notes.append("GPUs of several models: CUDA numbers them fastest first; set CUDA_DEVICE_ORDER=PCI_BUS_ID")
    notes += [
        f"GPU {g.index} ({g.pci}): its node is unknown, the firmware does not say" for g in found if g.node is None
    ]
    return tuple(found)


def visible(gpus: list[NvmlGpu], setting: str | None) -> list[NvmlGpu]:
    """What CUDA_VISIBLE_DEVICES leaves, in its order.

    As CUDA does: indices or (prefixes of) UUIDs; the first entry that names nothing hides itself and the
    rest; an entry named twice hides everything.
    """
    if setting is None:
        return gpus
    chosen: list[NvmlGpu] = []
    for word in setting.split(","):
        word = word.strip()
        if word.isdecimal():
            match = gpus[int(word) : int(word) + 1]
        else:
            match = [g for g in gpus if word and g.uuid.startswith(word)]
        if len(match) != 1:
            break
        if match[0] in chosen:
            return []
        chosen += match
    return chosen


def nics(tree: Tree, owner: Mapping[int, int]) -> tuple[Nic, ...]:
    """Physical network and RDMA ports; bridges, tunnels and loopback are not hardware."""
    found: list[Nic] = []
    for kind, read_speed in ((NET, _net_speed), (RDMA, _rdma_speed)):
        try:
            names = sorted(p.name for p in tree.path(kind).iterdir())
        except OSError:
            continue
        for name in names:
            # In recorded trees the class link may survive while its `device` link was left out.
            pci = tree.pci_address(kind, name, "device") or tree.pci_address(kind, name)
            if pci or tree.path(kind, name, "device").exists():
                node = locality(tree, pci, owner)[0] if pci else None
                found.append(Nic(name, pci, node, read_speed(tree, name)))
    return tuple(found)


def locality(tree: Tree, pci: str, owner: Mapping[int, int]) -> tuple[int | None, CpuSet]:
    """The node of a PCI function (None = unknown) and the CPUs the kernel calls local to it."""
    cpus = (tree.cpus(f"{PCI}/{pci}", "local_cpus", "local_cpulist") or frozenset()) & frozenset(owner)
    node = tree.number(PCI, pci, "numa_node")
    if node in owner.values() or (node is not None and tree.path(f"{NODE}{node}").is_dir()):
        return node, cpus
    # No number told, or one that no node has, but CPUs of exactly one node out of several: that is an answer too.
    nodes = {owner[c] for c in cpus}
    several = len(set(owner.values())) > 1
    return (nodes.pop() if len(nodes) == 1 and several else None), cpus


def gpu_memory_nodes(tree: Tree) -> dict[int, str]:
    """Nodes that are a GPU's own memory (POWER9, Grace), by the NVIDIA driver's word."""
    found: dict[int, str] = {}
    for pci in _driver_gpus(tree):
        status = tree.text("proc/driver/nvidia/gpus", pci, "numa_status") or ""
        told = re.search(r"Node:\s*(\d+)", status)
        if told:
            found[int(told[1])] = pci
    return found


def arm_core(implementer: str, part: str) -> str:
    return ARM_CORES.get((implementer.lower(), part.lower()), f"ARM core {implementer}:{part}")


def _from_nvml(tree: Tree, owner: Mapping[int, int], index: int, gpu: NvmlGpu) -> Gpu:
    node, cpus = locality(tree, gpu.pci, owner)
    return Gpu(
        index=index,
        uuid=gpu.uuid,
        name=gpu.name,
        pci=gpu.pci,
        node=node,
        cpus=tuple(sorted(cpus)),
        memory_bytes=gpu.memory_bytes,
        link=gpu.link or _link(tree, gpu.pci),
    )


def _recorded_gpus(tree: Tree, owner: Mapping[int, int]) -> list[Gpu]:
    driven = set(_driver_gpus(tree))
    try:
        functions = sorted(p.name.lower() for p in tree.path(PCI).iterdir())
    except OSError:
        return []
    found: list[Gpu] = []
    for pci in functions:
        kind, vendor = tree.number(PCI, pci, "class"), tree.number(PCI, pci, "vendor")
        # 0x03 is a display controller; server boards carry a management VGA chip that is no GPU.
        if kind is None or kind >> 16 != 0x03 or not (vendor in GPU_VENDORS or pci in driven):
            continue
        node, cpus = locality(tree, pci, owner)
        device = tree.number(PCI, pci, "device")
        name = GPU_VENDORS.get(vendor or 0, "NVIDIA")
        gpu = Gpu(len(found), None, name, pci, node, tuple(sorted(cpus)), None, _link(tree, pci))
        found.append(replace(gpu, name=f"{name} {device:04x}") if device is not None else gpu)
    return found


def _driver_gpus(tree: Tree) -> list[str]:
    try:
        return sorted(p.name.lower() for p in tree.path("proc/driver/nvidia/gpus").iterdir())
    except OSError:
        return []


def _link(tree: Tree, pci: str) -> str | None:
    """ "PCIe 4.0 x16" from the link's transfer rate; the generation doubles with it."""
    rate = re.match(r"([\d.]+) GT/s", tree.text(PCI, pci, "max_link_speed") or "")
    width = tree.number(PCI, pci, "max_link_width")
    generation = {"2.5": "1.0", "5": "2.0", "5.0": "2.0", "8": "3.0", "8.0": "3.0", "16.0": "4.0"}
    generation |= {"16": "4.0", "32.0": "5.0", "32": "5.0", "64.0": "6.0", "64": "6.0"}
    return f"PCIe {generation[rate[1]]} x{width}" if rate and rate[1] in generation and width else None


def _net_speed(tree: Tree, name: str) -> int | None:
    speed = tree.number(NET, name, "speed")
    return speed if speed and speed > 0 else None


def _rdma_speed(tree: Tree, name: str) -> int | None:
    rates = [tree.text(RDMA, name, "ports", str(p), "rate") for p in tree.numbered(f"{RDMA}/{name}/ports", "")]
    told = [float(m[1]) for r in rates if r and (m := re.match(r"(\d+(?:\.\d+)?) Gb/sec", r))]
    return round(max(told) * 1000) if told else None
