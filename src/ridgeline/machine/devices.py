"""GPUs and network cards: what they are and to which node they are attached.

The node of a PCI device comes from sysfs. A `numa_node` of −1 means that the firmware does not give one; the node
is then None and a note says so; it is never node 0. (`nvmlDeviceGetNumaNodeId` answers another question: it names
the node that the memory of a GPU forms on Grace and POWER machines.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ridgeline.machine.nvml import NvmlGpu, list_installed_gpus
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
    """A GPU that this process can use."""

    index: int  # CUDA's number in this process
    uuid: str | None
    name: str
    pci: str
    node: int | None  # None: the firmware does not give it
    cpus: tuple[int, ...]  # CPUs that the kernel lists as local
    memory_bytes: int | None
    link: str | None  # "PCIe 5.0 x16"


@dataclass(frozen=True)
class Nic:
    """A physical network or RDMA port."""

    name: str
    pci: str | None
    node: int | None
    speed: int | None  # Mbit/s; None when the link is down or the driver gives no speed


def list_gpus(tree: Tree, node_by_cpu: Mapping[int, int], notes: list[str]) -> tuple[Gpu, ...]:
    """The GPUs this process sees, in CUDA's order; `node_by_cpu` maps CPUs to nodes."""
    if not tree.live:
        result = _list_recorded_gpus(tree, node_by_cpu)
    else:
        visible = filter_visible(list_installed_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        result = [_make_gpu(tree, node_by_cpu, i, gpu) for i, gpu in enumerate(visible)]
        if len({g.name for g in result}) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            notes.append("GPUs of several models: CUDA numbers them fastest first; set CUDA_DEVICE_ORDER=PCI_BUS_ID")
    notes += [
        f"GPU {g.index} ({g.pci}): its node is unknown, the firmware does not say" for g in result if g.node is None
    ]
    return tuple(result)


def filter_visible(gpus: list[NvmlGpu], setting: str | None) -> list[NvmlGpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES (`setting`) allows, in its order.

    The rules are CUDA's: entries are indices or (prefixes of) UUIDs; the first entry that matches no GPU hides
    itself and the rest; a GPU that is named twice hides all GPUs.
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


def list_nics(tree: Tree, node_by_cpu: Mapping[int, int]) -> tuple[Nic, ...]:
    """Physical network and RDMA ports; bridges, tunnels and loopback are not hardware."""
    ports: list[Nic] = []
    for kind, read_speed in ((NET, _read_net_speed), (RDMA, _read_rdma_speed)):
        try:
            names = sorted(p.name for p in tree.path(kind).iterdir())
        except OSError:
            continue
        for name in names:
            # A recorded tree may contain the class link without its `device` link.
            pci = tree.pci_address(kind, name, "device") or tree.pci_address(kind, name)
            if pci or tree.path(kind, name, "device").exists():
                node = find_locality(tree, pci, node_by_cpu)[0] if pci else None
                ports.append(Nic(name, pci, node, read_speed(tree, name)))
    return tuple(ports)


def find_locality(tree: Tree, pci: str, node_by_cpu: Mapping[int, int]) -> tuple[int | None, CpuSet]:
    """The node of a PCI function (None = unknown) and the CPUs that the kernel lists as local to it."""
    cpus = (tree.cpus(f"{PCI}/{pci}", "local_cpus", "local_cpulist") or frozenset()) & frozenset(node_by_cpu)
    node = tree.number(PCI, pci, "numa_node")
    if node in node_by_cpu.values() or (node is not None and tree.path(f"{NODE}{node}").is_dir()):
        return node, cpus
    # Without a valid number, local CPUs that all lie on one of several nodes give the node.
    nodes = {node_by_cpu[c] for c in cpus}
    several = len(set(node_by_cpu.values())) > 1
    return (nodes.pop() if len(nodes) == 1 and several else None), cpus


def find_gpu_memory_nodes(tree: Tree) -> dict[int, str]:
    """Nodes that are the memory of a GPU (POWER9, Grace), with its PCI address, as the NVIDIA driver lists them."""
    pci_by_node: dict[int, str] = {}
    for pci in _list_driver_gpus(tree):
        status = tree.text("proc/driver/nvidia/gpus", pci, "numa_status") or ""
        match = re.search(r"Node:\s*(\d+)", status)
        if match:
            pci_by_node[int(match[1])] = pci
    return pci_by_node


def name_arm_core(implementer: str, part: str) -> str:
    return ARM_CORES.get((implementer.lower(), part.lower()), f"ARM core {implementer}:{part}")


def _make_gpu(tree: Tree, node_by_cpu: Mapping[int, int], index: int, gpu: NvmlGpu) -> Gpu:
    node, cpus = find_locality(tree, gpu.pci, node_by_cpu)
    return Gpu(
        index=index,
        uuid=gpu.uuid,
        name=gpu.name,
        pci=gpu.pci,
        node=node,
        cpus=tuple(sorted(cpus)),
        memory_bytes=gpu.memory_bytes,
        link=gpu.link or _read_link(tree, gpu.pci),
    )


def _list_recorded_gpus(tree: Tree, node_by_cpu: Mapping[int, int]) -> list[Gpu]:
    driver_gpus = set(_list_driver_gpus(tree))
    try:
        functions = sorted(p.name.lower() for p in tree.path(PCI).iterdir())
    except OSError:
        return []
    result: list[Gpu] = []
    for pci in functions:
        kind, vendor = tree.number(PCI, pci, "class"), tree.number(PCI, pci, "vendor")
        # 0x03 is a display controller; server boards carry a management VGA chip that is no GPU.
        if kind is None or kind >> 16 != 0x03 or not (vendor in GPU_VENDORS or pci in driver_gpus):
            continue
        node, cpus = find_locality(tree, pci, node_by_cpu)
        device = tree.number(PCI, pci, "device")
        name = GPU_VENDORS.get(vendor or 0, "NVIDIA")
        gpu = Gpu(len(result), None, name, pci, node, tuple(sorted(cpus)), None, _read_link(tree, pci))
        result.append(replace(gpu, name=f"{name} {device:04x}") if device is not None else gpu)
    return result


def _list_driver_gpus(tree: Tree) -> list[str]:
    try:
        return sorted(p.name.lower() for p in tree.path("proc/driver/nvidia/gpus").iterdir())
    except OSError:
        return []


def _read_link(tree: Tree, pci: str) -> str | None:
    """ "PCIe 4.0 x16" from the link's transfer rate; the generation doubles with it."""
    rate = re.match(r"([\d.]+) GT/s", tree.text(PCI, pci, "max_link_speed") or "")
    width = tree.number(PCI, pci, "max_link_width")
    generation = {"2.5": "1.0", "5": "2.0", "5.0": "2.0", "8": "3.0", "8.0": "3.0", "16.0": "4.0"}
    generation |= {"16": "4.0", "32.0": "5.0", "32": "5.0", "64.0": "6.0", "64": "6.0"}
    return f"PCIe {generation[rate[1]]} x{width}" if rate and rate[1] in generation and width else None


def _read_net_speed(tree: Tree, name: str) -> int | None:
    speed = tree.number(NET, name, "speed")
    return speed if speed and speed > 0 else None


def _read_rdma_speed(tree: Tree, name: str) -> int | None:
    rates = [tree.text(RDMA, name, "ports", str(p), "rate") for p in tree.list_numbers(f"{RDMA}/{name}/ports", "")]
    speeds = [float(m[1]) for r in rates if r and (m := re.match(r"(\d+(?:\.\d+)?) Gb/sec", r))]
    return round(max(speeds) * 1000) if speeds else None
